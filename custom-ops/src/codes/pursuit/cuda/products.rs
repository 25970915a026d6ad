//! The launches of `kernels/codes/correlations.cu`.
use super::{Call, suffix, warps};
use crate::codes::pursuit::plan::CORRELATIONS_BYTES;
use crate::core::cuda::Part;
use candle::Result;
use candle::cuda::CudaDType;

const FILE: &str = "correlations";
const THREADS: u32 = 256;
/// Signals and atoms of a block of `correlations_f32` and `correlations_f64`: `TILE`, `TILE_F64`.
const TILE: [usize; 2] = [128, 64];

impl<T: CudaDType> Call<'_, T> {
    /// The address of a part that only kernels of f32 have.
    fn for_f32<P>(&self, part: Part<P>) -> u64 {
        if size_of::<T>() == 8 { 0 } else { self.at(part) }
    }

    /// `D̂` and `1 / ‖d‖` of `atoms`, all of them with those of padding or none, and `‖y‖` and
    /// scales of `rows` signals from `first` on.
    pub(super) fn lengths(&self, atoms: usize, first: usize, rows: usize) -> Result<()> {
        let Self { plan, space, job, .. } = self;
        let made = plan.makes_rows;
        let (features, row_stride, feature_stride) =
            if made { (job.p, 1, plan.width) } else { (plan.line, plan.line, 1) };
        let halves = if made { 0 } else { self.for_f32(space.unit_halves) };
        let launch = self.gpu.launch(job.op, FILE, &format!("lengths_{}", suffix::<T>()))?;
        let launch = launch.num(self.dictionary).num(self.at(space.unit)).num(halves);
        let launch = launch.num(self.at(space.inverse_norms)).num(self.signals_from(first));
        let launch = launch.num(self.at(space.norms)).num(self.for_f32(space.scales)).num(self.refused);
        let launch = launch.num(rows).num(row_stride).num(feature_stride).count(atoms);
        let launch = launch.count(job.n).count(job.p).count(features).count(plan.slots());
        // SAFETY: (const T*, T*, half*, T*, const T*, T*, float*, unsigned*, size_t × 3, unsigned ×
        // 5): the dictionary holds n p numbers and there are `rows` signals of p from `first` on
        // (checked by the job); the workspace has `width` rows or columns of `features`, n norms,
        // and norms and scales of `rows` signals where there are any (Workspace::new; rows is at
        // most the plan's chunk); three flags.
        unsafe { warps(launch, atoms + rows).go() }
    }

    /// `α⁰` of `rows` signals from `first` on, of which there may be none, and, with `gram_too`,
    /// `G`.
    pub(super) fn correlations(&self, first: usize, rows: usize, gram_too: bool) -> Result<()> {
        let Self { plan, space, job, .. } = self;
        let double = size_of::<T>() == 8;
        let (tile, bytes) = if double { (TILE[1], 0) } else { (TILE[0], CORRELATIONS_BYTES) };
        let signals = self.signals_from(first);
        // Whether rows of signals can be read 16 bytes at a time.
        let packs = i32::from(!double && job.p.is_multiple_of(4) && signals.is_multiple_of(16));
        let (signal_tiles, atom_tiles) = (rows.div_ceil(tile), plan.width / tile);
        let launch = self.gpu.launch(job.op, FILE, &format!("correlations_{}", suffix::<T>()))?;
        let launch = launch.num(signals).num(self.at(space.unit)).num(self.for_f32(space.unit_halves));
        let launch = launch.num(self.for_f32(space.scales)).num(self.at(space.correlations));
        let launch =
            launch.num(self.at(space.gram)).num(rows).count(job.p).count(plan.line).count(plan.width);
        let launch = launch.count(signal_tiles).num(packs);
        let grid = [atom_tiles, signal_tiles + if gram_too { atom_tiles } else { 0 }, 1];
        // SAFETY: (const T* × 2, const half*, const float*, T* × 2, size_t, unsigned × 4, int):
        // `rows` signals of p numbers with their scales, `width` atoms of `line`, whole and in two
        // parts, and room for rows × width and width × width results (Workspace::new); every access
        // is bounded by these sizes.
        unsafe { launch.grid(grid, (THREADS, 1, 1)).shared(bytes).go() }
    }
}
