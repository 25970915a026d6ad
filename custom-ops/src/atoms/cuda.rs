//! The launches of kernels/atoms.cu and kernels/atom_statistics.cu.
use super::descend::{Descend, GROUP, UNUSED};
use super::statistics::Statistics;
use super::update::{OP as UPDATE, Sizes, Update};
use crate::cuda::{Function, Operand, count, function, view, view_mut};
use candle::backend::BackendStorage;
use candle::cuda::cudarc::driver::{DeviceRepr, LaunchConfig, PushKernelArg};
use candle::cuda::{CudaDType, CudaStorage, WrapErr};
use candle::{Layout, Result, Shape, WithDType};

/// Of kernels/atoms.cuh.
const WARP: usize = 32;
const WARPS: usize = 16;
const COLUMNS: usize = 128;
/// What a block may have without asking, and with.
const SHARED: usize = 48 * 1024;
const MAX_SHARED: usize = 227 * 1024;
/// Signals of a block of `follow`: one a warp.
const FOLLOW: usize = 8;

/// A storage with the layout of its operand.
type Stored<'a> = (&'a CudaStorage, &'a Layout);

/// A number as kernels take it.
pub(super) trait Number: CudaDType + WithDType + DeviceRepr {}
impl Number for f32 {}
impl Number for f64 {}

/// A kernel and its launch with so many blocks, threads and bytes of shared memory, which are asked for if need be.
fn config(
    op: &'static str,
    kernel: &Function,
    blocks: usize,
    threads: usize,
    shared: usize,
) -> Result<LaunchConfig> {
    if shared > MAX_SHARED {
        candle::bail!(
            "{op}: a block needs {shared} bytes of shared memory of {MAX_SHARED}; take fewer features or atoms, or the CPU"
        )
    }
    kernel.launch_with_shared(op, (blocks, 1), count(op, threads)?, shared)
}

impl Update<'_> {
    pub(super) fn cuda<T: Number>(
        &self,
        dtype: &str,
        d: Stored,
        x: Stored,
        e: Stored,
    ) -> Result<(CudaStorage, Shape)> {
        let device = d.0.device();
        let Sizes { m, s, n, p } = self.sizes;
        let (d_in, x_in) = (view::<T>(d.0, d.1, UPDATE)?, view::<T>(x.0, x.1, UPDATE)?);
        let e_in = view::<T>(e.0, e.1, UPDATE)?;
        let operands = [self.offsets, self.entries, self.indices, self.count].map(Operand::new);
        let [offsets, entries, indices, counts] = &operands;
        let (offsets, entries) = (offsets.view::<u32>(UPDATE)?, entries.view::<u32>(UPDATE)?);
        let (indices, counts) = (indices.view::<u32>(UPDATE)?, counts.view::<u32>(UPDATE)?);

        // SAFETY: uninitialised, but the two copies below fill it.
        let mut out = unsafe { device.alloc::<T>(n * p + m * s)? };
        let (mut d_out, mut x_out) = out.split_at_mut(n * p);
        device.memcpy_dtod(&d_in, &mut d_out)?;
        if m * s > 0 {
            device.memcpy_dtod(&x_in, &mut x_out)?;
        }
        // Only where a group follows another does the error change.
        let several = self.groups().count() > 1;
        // SAFETY: uninitialised, but the copy fills it, where it has any elements.
        let mut error = unsafe { device.alloc::<T>(if several { (m * p).max(1) } else { 1 })? };
        if several && m > 0 {
            device.memcpy_dtod(&e_in, &mut error.slice_mut(..m * p))?;
        }

        let update = function(device, "atoms", &format!("update_atoms_{dtype}"))?;
        let follow = function(device, "atoms", &format!("follow_{dtype}"))?;
        let (m_64, s_32, n_32, p_32) = (m as u64, count(UPDATE, s)?, count(UPDATE, n)?, count(UPDATE, p)?);
        let steps = u32::try_from(self.update.power_steps).unwrap_or(u32::MAX);
        let (tolerance, gamma) = (self.update.tolerance.powi(2), self.update.coherence_penalty);
        let shared = WARPS * 8 + (3 * p + WARPS * COLUMNS + WARPS) * size_of::<T>();
        for group in self.groups() {
            let (first, last) = (count(UPDATE, group.start)?, count(UPDATE, group.end)?);
            let mut launch = update.builder();
            launch.arg(&mut d_out).arg(&mut x_out).arg(&d_in).arg(&x_in);
            match several {
                true => launch.arg(&error),
                false => launch.arg(&e_in),
            };
            launch.arg(&offsets).arg(&entries).arg(&first).arg(&n_32).arg(&s_32).arg(&p_32);
            launch.arg(&steps).arg(&tolerance).arg(&gamma);
            // SAFETY: (2 × T*, 3 × const T*, 2 × const unsigned*, 5 × unsigned, 2 × double) of the shapes that `update_atoms`
            // checked; the lists are those of `AtomUses`, places below m · s; a block for each atom of the group.
            unsafe { launch.launch(config(UPDATE, &update, group.len(), WARP * WARPS, shared)?) }.w()?;
            if group.end < n && m > 0 {
                let (d_new, x_new) = (d_out.slice(..), x_out.slice(..));
                let mut launch = follow.builder();
                launch.arg(&mut error).arg(&d_new).arg(&x_new).arg(&d_in).arg(&x_in);
                launch.arg(&indices).arg(&counts).arg(&first).arg(&last);
                launch.arg(&m_64).arg(&s_32).arg(&p_32);
                // SAFETY: (T*, 4 × const T*, 2 × const unsigned*, 2 × unsigned, size_t, 2 × unsigned); `error` is the copy of
                // [m, p], since a group follows; a warp for each signal.
                unsafe { launch.launch(config(UPDATE, &follow, m.div_ceil(FOLLOW), WARP * FOLLOW, 0)?) }
                    .w()?;
            }
        }
        Ok((CudaStorage::wrap_cuda_slice(out, device.clone()), Shape::from(n * p + m * s)))
    }
}

impl Statistics<'_> {
    pub(super) fn cuda<T: Number>(&self, dtype: &str, sums: &mut CudaStorage, layout: &Layout) -> Result<()> {
        let (op, device) = (self.op, sums.device().clone());
        let (n, s) = (self.codes.n_atoms, self.codes.width());
        let width = layout.shape().elem_count() / n;
        let mut sums = view_mut::<T>(sums, layout, op)?;
        let operands =
            [&self.offsets, &self.entries, &self.codes.indices, &self.codes.values, &self.codes.count]
                .map(Operand::new);
        let [offsets, entries, indices, values, counts] = &operands;
        let (offsets, entries) = (offsets.view::<u32>(op)?, entries.view::<u32>(op)?);
        let (indices, values) = (indices.view::<u32>(op)?, values.view::<T>(op)?);
        let counts = counts.view::<u32>(op)?;
        let (n_32, s_32, width_32) = (count(op, n)?, count(op, s)?, count(op, width)?);
        let beta = T::from_f64(self.beta);
        let Some(signals) = self.signals else {
            let kernel = function(&device, "atom_statistics", &format!("codes_gram_{dtype}"))?;
            // As many warps as rows of sums fit beside each other.
            let row = n * size_of::<T>();
            let warps = (SHARED / row).clamp(1, 8);
            let mut launch = kernel.builder();
            launch.arg(&mut sums).arg(&beta).arg(&indices).arg(&values).arg(&counts);
            launch.arg(&offsets).arg(&entries).arg(&n_32).arg(&s_32);
            // SAFETY: (T*, T, const unsigned*, const T*, 3 × const unsigned*, 2 × unsigned) of the shapes that `codes_gram_`
            // checked; shared memory holds a row for each warp.
            unsafe { launch.launch(config(op, &kernel, n, WARP * warps, warps * row)?) }.w()?;
            return Ok(());
        };
        let signals = Operand::new(signals);
        let signals = signals.view::<T>(op)?;
        let kernel = function(&device, "atom_statistics", &format!("codes_signals_{dtype}"))?;
        let shared = (width + WARPS * COLUMNS) * size_of::<T>();
        let mut launch = kernel.builder();
        launch.arg(&mut sums).arg(&beta).arg(&signals).arg(&values).arg(&offsets).arg(&entries);
        launch.arg(&s_32).arg(&width_32);
        // SAFETY: (T*, T, 2 × const T*, 2 × const unsigned*, 2 × unsigned) of the shapes that `codes_signals_` checked.
        unsafe { launch.launch(config(op, &kernel, n, WARP * WARPS, shared)?) }.w()?;
        Ok(())
    }
}

impl Descend {
    pub(super) fn cuda<T: Number>(
        &self,
        dtype: &str,
        d: (&mut CudaStorage, &Layout),
        a: Stored,
        b: Stored,
    ) -> Result<()> {
        const OP: &str = "descend_atoms_";
        let Self { n, p, n_fixed } = *self;
        let device = d.0.device().clone();
        let mut d = view_mut::<T>(d.0, d.1, OP)?;
        let (a, b) = (view::<T>(a.0, a.1, OP)?, view::<T>(b.0, b.1, OP)?);
        let group = GROUP.min(n);
        // SAFETY: uninitialised, but `residuals` writes the rows of each group before `descend` reads them.
        let mut u = unsafe { device.alloc::<T>(group * p)? };
        let residuals = function(&device, "atom_statistics", &format!("residuals_{dtype}"))?;
        let near = (2 * (group + 1) * p + group * group) * size_of::<T>();
        let far = WARPS * 8 + p * size_of::<T>();
        let (name, shared_by_descend) =
            if near <= MAX_SHARED { ("descend_near", near) } else { ("descend", far) };
        let descend = function(&device, "atom_statistics", &format!("{name}_{dtype}"))?;
        let (n_32, p_32) = (count(OP, n)?, count(OP, p)?);
        for first in (n_fixed..n).step_by(GROUP) {
            let last = n.min(first + GROUP);
            let (first_32, last_32) = (count(OP, first)?, count(OP, last)?);
            let now = d.slice(..);
            let mut launch = residuals.builder();
            launch.arg(&mut u).arg(&a).arg(&b).arg(&now).arg(&first_32).arg(&n_32).arg(&p_32);
            let shared = WARPS * COLUMNS * size_of::<T>();
            // SAFETY: (T*, 3 × const T*, 3 × unsigned) of the shapes that `descend_atoms_` checked; `u` has a row for each block.
            unsafe { launch.launch(config(OP, &residuals, last - first, WARP * WARPS, shared)?) }.w()?;
            let mut launch = descend.builder();
            launch.arg(&mut d).arg(&mut u).arg(&a).arg(&first_32).arg(&last_32).arg(&n_32).arg(&p_32);
            launch.arg(&UNUSED);
            // SAFETY: (2 × T*, const T*, 4 × unsigned, double); one block, so that atoms follow one another.
            unsafe { launch.launch(config(OP, &descend, 1, WARP * WARPS, shared_by_descend)?) }.w()?;
        }
        Ok(())
    }
}
