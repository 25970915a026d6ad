//! The launches of `kernels/correlations.cu`.
use super::plan::Plan;
use super::problem::Workspace;
use crate::cuda::{count, function};
use candle::Result;
use candle::cuda::cudarc::driver::{LaunchConfig, PushKernelArg};
use candle::cuda::{CudaDevice, WrapErr};

/// Signals and atoms of a block of `correlations_f32` and `correlations_f64`: `TILE`, `TILE_F64`.
const TILE: [usize; 2] = [128, 64];
/// Two stages of rows of f32 and of atoms in two parts, and the rows in two parts.
const SHARED_BYTES: usize = 2 * (128 * 36 * 4 + 2 * 128 * 40 * 2) + 2 * 128 * 40 * 2;

/// How kernels of this type of numbers end.
pub(super) fn suffix<T>() -> &'static str {
    if size_of::<T>() == 8 { "f64" } else { "f32" }
}

/// What the launches have in common; `memory` is the address of the workspace.
pub(super) struct Products<'a> {
    pub device: &'a CudaDevice,
    pub plan: &'a Plan,
    pub space: &'a Workspace,
    pub memory: u64,
    pub op: &'static str,
    pub n: usize,
    pub p: usize,
}

impl Products<'_> {
    fn at(&self, offset: usize) -> u64 {
        self.memory + offset as u64
    }

    /// `D̂` and `1 / ‖d‖` of the dictionary at the address.
    pub(super) fn unit_atoms<T>(&self, dictionary: u64) -> Result<()> {
        let Self { plan, space, op, .. } = self;
        let made = plan.makes_rows;
        let (features, row_stride, feature_stride) =
            if made { (self.p, 1, plan.width) } else { (plan.line, plan.line, 1) };
        let (unit, inverse_norms, refused) =
            (self.at(space.unit), self.at(space.inverse_norms), self.at(space.flags + 4));
        let halves = if made || size_of::<T>() == 8 { 0 } else { self.at(space.unit_halves) };
        let (n, p, features) = (count(op, self.n)?, count(op, self.p)?, count(op, features)?);
        let (width, slots) = (count(op, plan.width)?, count(op, plan.slots())?);
        let function = function(self.device, "correlations", &format!("unit_atoms_{}", suffix::<T>()))?;
        let mut launch = function.builder();
        launch.arg(&dictionary).arg(&unit).arg(&halves).arg(&inverse_norms).arg(&refused).arg(&n).arg(&p);
        launch.arg(&features).arg(&width).arg(&slots).arg(&row_stride).arg(&feature_stride);
        // SAFETY: (const T*, T*, half*, T*, unsigned*, unsigned × 5, size_t × 2): the dictionary holds n p numbers (checked by the
        // job), the workspace `width` rows or columns of `features`, n norms and two flags (Workspace::new).
        unsafe { launch.launch(a_warp_each(plan.width)) }.w()?;
        Ok(())
    }

    /// `‖y‖` and scales of the `rows` signals at the address.
    pub(super) fn signal_scales<T>(&self, signals: u64, rows: usize) -> Result<()> {
        let (norms, refused) = (self.at(self.space.norms), self.at(self.space.flags));
        let scales = if size_of::<T>() == 8 { 0 } else { self.at(self.space.scales) };
        let p = count(self.op, self.p)?;
        let function = function(self.device, "correlations", &format!("signal_scales_{}", suffix::<T>()))?;
        let mut launch = function.builder();
        launch.arg(&signals).arg(&norms).arg(&scales).arg(&refused).arg(&rows).arg(&p);
        // SAFETY: (const T*, T*, float*, unsigned*, size_t, unsigned): `rows` signals of p numbers, and room for as many
        // norms and scales (Workspace::new; rows is at most the plan's chunk).
        unsafe { launch.launch(a_warp_each(rows)) }.w()?;
        Ok(())
    }

    /// `α⁰` of the `rows` signals at the address, of which there may be none, and, with `gram_too`, `G`.
    pub(super) fn correlations<T>(&self, signals: u64, rows: usize, gram_too: bool) -> Result<()> {
        let Self { plan, space, op, .. } = self;
        let double = size_of::<T>() == 8;
        let (tile, bytes) = if double { (TILE[1], 0) } else { (TILE[0], SHARED_BYTES) };
        let function = function(self.device, "correlations", &format!("correlations_{}", suffix::<T>()))?;
        function.share(op, bytes)?;
        let (unit, halves, scales) = (self.at(space.unit), self.at(space.unit_halves), self.at(space.scales));
        let (correlations, gram) = (self.at(space.correlations), self.at(space.gram));
        // Whether rows of signals can be read 16 bytes at a time.
        let packs = i32::from(!double && self.p.is_multiple_of(4) && signals.is_multiple_of(16));
        let (p, line, width) = (count(op, self.p)?, count(op, plan.line)?, count(op, plan.width)?);
        let (signal_tiles, atom_tiles) = (count(op, rows.div_ceil(tile))?, count(op, plan.width / tile)?);
        let mut launch = function.builder();
        launch.arg(&signals).arg(&unit).arg(&halves).arg(&scales).arg(&correlations).arg(&gram).arg(&rows);
        launch.arg(&p).arg(&line).arg(&width).arg(&signal_tiles).arg(&packs);
        let config = LaunchConfig {
            grid_dim: (atom_tiles, signal_tiles + if gram_too { atom_tiles } else { 0 }, 1),
            block_dim: (256, 1, 1),
            shared_mem_bytes: bytes as u32,
        };
        // SAFETY: (const T* × 2, const half*, const float*, T* × 2, size_t, unsigned × 4, int): `rows` signals of p numbers with
        // their scales, `width` atoms of `line`, whole and in two parts, and room for rows × width and width × width results
        // (Workspace::new); every access is bounded by these sizes.
        unsafe { launch.launch(config) }.w()?;
        Ok(())
    }
}

/// One warp for each of `n` rows, in blocks of 8.
pub(super) fn a_warp_each(n: usize) -> LaunchConfig {
    LaunchConfig {
        grid_dim: (n.div_ceil(8).max(1) as u32, 1, 1),
        block_dim: (256, 1, 1),
        shared_mem_bytes: 0,
    }
}
