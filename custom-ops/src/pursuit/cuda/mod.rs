//! The pursuits on CUDA: two products, then every signal's whole pursuit in one kernel.
//!
//! | launch | kernel | |
//! |---|---|---|
//! | 1 | `correlations.cu` `unit_atoms` | `D̂` and `1 / ‖d‖`, in the order in which a warp reads them |
//! | 2 | `correlations.cu` `correlations` | `α⁰ = Y D̂ᵀ` and `G = D̂ D̂ᵀ`, one launch for both |
//! | 3 | `bomp.cu`, `ols.cu` | the pursuits |
//!
//! More signals than fit ([`Plan::chunk`]) repeat 2 and 3. At the end four bytes come back that say whether a number was
//! not finite: the only wait for the device.
mod codes;
mod plan;
mod problem;

pub(super) use codes::{reconstruct, to_dense};

use super::SparseCodes;
use super::job::{Job, Rule, Target};
use crate::cuda::{Operand, function, own};
use candle::cuda::cudarc::driver::sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
use candle::cuda::cudarc::driver::{CudaSlice, DevicePtr, DevicePtrMut, DeviceRepr, LaunchConfig, PushKernelArg};
use candle::cuda::{CudaDType, CudaDevice, WrapErr};
use candle::{DType, Device, Result, Tensor};
use plan::{Form, Plan};
use problem::{Problem, TargetKind, Workspace};

/// The codes of a job whose tensors are on `device`.
pub(super) fn run(job: &Job, device: &CudaDevice) -> Result<SparseCodes> {
    if job.m == 0 || job.p == 0 {
        return nothing(job, device);
    }
    match job.signals.dtype() {
        DType::F64 => run_as::<f64>(job, device),
        _ => run_as::<f32>(job, device),
    }
}

/// No signals, or signals without samples.
fn nothing(job: &Job, device: &CudaDevice) -> Result<SparseCodes> {
    let device = Device::Cuda(device.clone());
    Ok(SparseCodes {
        indices: Tensor::zeros((job.m, job.s), DType::U32, &device)?,
        values: Tensor::zeros((job.m, job.s), job.signals.dtype(), &device)?,
        count: Tensor::zeros(job.m, DType::U32, &device)?,
        n_atoms: job.n,
    })
}

fn run_as<T: CudaDType + DeviceRepr>(job: &Job, device: &CudaDevice) -> Result<SparseCodes> {
    let &Job { op, m, n, p, s, .. } = job;
    crate::cuda::keep_freed_memory(device)?;
    let plan = Plan::new(job, device)?;
    let space = Workspace::new(&plan, size_of::<T>());
    // SAFETY: left unset; the kernels write each part before one reads it, and the flags are set to 0 below.
    let mut memory: CudaSlice<u8> = unsafe { device.alloc(space.bytes) }?;
    // SAFETY: left unset; the pursuits write every entry.
    let (mut indices, mut values, mut count) =
        unsafe { (device.alloc::<u32>(m * s)?, device.alloc::<T>(m * s)?, device.alloc::<u32>(m)?) };
    let stream = device.cuda_stream();
    stream.memset_zeros(&mut memory.slice_mut(space.flags..space.flags + 8)).w()?;
    {
        let (signals, dictionary) = (Operand::new(&job.signals), Operand::new(&job.dictionary));
        let (signals, dictionary) = (signals.view::<T>(op)?, dictionary.view::<T>(op)?);
        let mask = job.mask.as_ref().map(Operand::new);
        let mask = mask.as_ref().map(|mask| mask.view::<u8>(op)).transpose()?;
        let each = match &job.target {
            Target::PerSignal(targets) => Some(Operand::new(targets)),
            _ => None,
        };
        let each = each.as_ref().map(|targets| targets.view::<T>(op)).transpose()?;
        let (target_kind, target) = match &job.target {
            Target::None => (TargetKind::None, 0.),
            Target::Absolute(epsilon) => (TargetKind::Absolute, *epsilon),
            Target::Relative(epsilon) => (TargetKind::Relative, *epsilon),
            Target::PerSignal(_) => (TargetKind::Each, 0.),
        };
        // Addresses, each with what tells the stream of its use when it is dropped.
        let (signals, _signals) = signals.device_ptr(&stream);
        let (dictionary, _dictionary) = dictionary.device_ptr(&stream);
        let mask = mask.as_ref().map(|mask| mask.device_ptr(&stream));
        let each = each.as_ref().map(|targets| targets.device_ptr(&stream));
        let (memory, _memory) = memory.device_ptr_mut(&stream);
        let (indices, _indices) = indices.device_ptr_mut(&stream);
        let (values, _values) = values.device_ptr_mut(&stream);
        let (count, _count) = count.device_ptr_mut(&stream);
        let address = |offset: usize| memory + offset as u64;
        let (unit, inverse_norms) = (address(space.unit), address(space.inverse_norms));
        let (correlations, gram) = (address(space.correlations), address(space.gram));
        let (flags, scratch) = (address(space.flags), address(space.scratch));

        let suffix = if size_of::<T>() == 8 { "f64" } else { "f32" };
        let u32_of = |n: usize| crate::cuda::count(op, n);
        let (n32, p32, width, slots) = (u32_of(n)?, u32_of(p)?, u32_of(plan.width)?, u32_of(plan.slots())?);
        let made = plan.makes_rows;
        let (row_stride, feature_stride) = if made { (1, plan.width) } else { (plan.line, 1) };
        {
            let features = u32_of(if made { p } else { plan.line })?;
            let function = function(device, "correlations", &format!("unit_atoms_{suffix}"))?;
            let mut launch = function.builder();
            let refused = flags + 4;
            launch.arg(&dictionary).arg(&unit).arg(&inverse_norms).arg(&refused).arg(&n32).arg(&p32);
            launch.arg(&features).arg(&width).arg(&slots).arg(&row_stride).arg(&feature_stride);
            let config = LaunchConfig {
                grid_dim: (width.div_ceil(8), 1, 1),
                block_dim: (256, 1, 1),
                shared_mem_bytes: 0,
            };
            // SAFETY: (const T*, T*, T*, unsigned*, unsigned × 5, size_t × 2): the dictionary holds n p numbers,
            // the workspace `width` rows or columns of `features`, n norms and two flags (Workspace::new).
            unsafe { launch.launch(config) }.w()?;
        }
        let chosen = function(device, job.module(), &plan.kernel(job, suffix))?;
        if let Form::Shared { bytes, .. } = plan.form {
            chosen.set_attribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, bytes as i32)?;
        }
        for first in (0..m).step_by(plan.chunk) {
            let rows = plan.chunk.min(m - first);
            let at = |base: u64, entries: usize, size: usize| base + (first * entries * size) as u64;
            let signals = at(signals, p, size_of::<T>());
            if !made {
                let gram_too = first == 0;
                launch_products::<T>(device, &plan, (signals, rows), unit, correlations, gram, gram_too, p)?;
            }
            let problem = Problem {
                signals,
                correlations: if made { 0 } else { correlations },
                gram: if made { 0 } else { gram },
                turned: if made { unit } else { 0 },
                inverse_norms,
                targets: each.as_ref().map_or(0, |each| at(each.0, 1, size_of::<T>())),
                mask: mask.as_ref().map_or(0, |mask| at(mask.0, p, 1)),
                indices: at(indices, s, 4),
                values: at(values, s, size_of::<T>()),
                counts: at(count, 1, 4),
                refused: flags,
                memory: scratch,
                target,
                m: rows,
                memory_of_block: plan.memory_of_block,
                p: p32,
                width,
                s: u32_of(s)?,
                target_kind: target_kind as u32,
                nonnegative: job.nonnegative.into(),
                unused: 0,
            };
            let mut launch = chosen.builder();
            launch.arg(&problem);
            // SAFETY: the kernel takes a Problem<T>; its arrays were sized by the plan, for `rows` signals from `first`
            // on, and stay borrowed until all is queued.
            unsafe { launch.launch(plan.launch(rows)) }.w()?;
        }
    }
    let flags = device.clone_dtoh(&memory.slice(space.flags..space.flags + 8))?;
    for (flag, what) in flags.chunks(4).zip(["signals", "dictionary"]) {
        if flag != [0; 4] {
            candle::bail!(
                "{op}: {what} must be finite, got NaN, infinity, or a norm that overflows; look for them with \
                 candle's ops or on the CPU, where the message names the row"
            )
        }
    }
    let like = &job.signals;
    Ok(SparseCodes {
        indices: own(device, indices, (m, s), like)?,
        values: own(device, values, (m, s), like)?,
        count: own(device, count, m, like)?,
        n_atoms: n,
    })
}

/// `α⁰` of `rows` signals and, with `gram_too`, `G`.
#[allow(clippy::too_many_arguments)]
fn launch_products<T>(
    device: &CudaDevice,
    plan: &Plan,
    (signals, rows): (u64, usize),
    unit: u64,
    correlations: u64,
    gram: u64,
    gram_too: bool,
    p: usize,
) -> Result<()> {
    const OP: &str = "bomp";
    let double = size_of::<T>() == 8;
    // TILE, and the shared bytes of the tiles in flight, of correlations.cu.
    let (tile, shared, kernel) =
        if double { (64, 0, "correlations_f64") } else { (128, 2 * 2 * 128 * 36 * 4, "correlations_f32") };
    let function = function(device, "correlations", kernel)?;
    if shared > 0 {
        function.set_attribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared)?;
    }
    let packs = i32::from(!double && p.is_multiple_of(4) && signals.is_multiple_of(16));
    let (width, p, line) =
        (crate::cuda::count(OP, plan.width)?, crate::cuda::count(OP, p)?, crate::cuda::count(OP, plan.line)?);
    let signal_tiles = crate::cuda::count(OP, rows.div_ceil(tile))?;
    let atom_tiles = width.div_ceil(tile as u32);
    let mut launch = function.builder();
    launch.arg(&signals).arg(&unit).arg(&correlations).arg(&gram).arg(&rows).arg(&p).arg(&line).arg(&width);
    launch.arg(&signal_tiles).arg(&packs);
    let config = LaunchConfig {
        grid_dim: (atom_tiles, signal_tiles + if gram_too { atom_tiles } else { 0 }, 1),
        block_dim: (256, 1, 1),
        shared_mem_bytes: shared as u32,
    };
    // SAFETY: (const T* × 2, T* × 2, size_t, unsigned × 4, int): `rows` signals of p numbers, `width` atoms of `line`, and
    // room for rows × width and width × width results (Workspace::new); every access is bounded by these sizes.
    unsafe { launch.launch(config) }.w()?;
    Ok(())
}

impl Job {
    /// The kernel file of the rule.
    fn module(&self) -> &'static str {
        match self.rule {
            Rule::Omp => "bomp",
            Rule::Ols => "ols",
        }
    }
}
