//! The pursuits on CUDA: two products, then every signal's whole pursuit in one kernel.
//!
//! | launch | kernel | |
//! |---|---|---|
//! | 1 | `correlations.cu` `unit_atoms` | `D̂` and `1 / ‖d‖`, in the order in which a warp reads them |
//! | 2 | `correlations.cu` `signal_scales` | `‖y‖`, and a power of two for f16 |
//! | 3 | `correlations.cu` `correlations` | `α⁰ = Y D̂ᵀ` and `G = D̂ D̂ᵀ`, one launch for both |
//! | 4 | `bomp.cu`, `ols.cu` | the pursuits |
//!
//! More signals than fit ([`Plan::chunk`]) repeat 2 to 4; where rows of `G` are made in the kernel, 2 and 3 fall away. Many signals whose
//! directions no multiprocessor holds are pursued step by step instead, two launches a step (`pursuit_steps.cu`). At the
//! end twelve bytes come back that say whether a number was not finite: the only wait for the device.
mod codes;
mod plan;
mod problem;
mod products;
mod steps;

pub(super) use codes::{reconstruct, to_dense};

use super::SparseCodes;
use super::job::{Job, Rule, Target};
use crate::cuda::{Operand, function, own};
use candle::cuda::cudarc::driver::{CudaSlice, DevicePtr, DevicePtrMut, DeviceRepr, PushKernelArg};
use candle::cuda::{CudaDType, CudaDevice, WrapErr};
use candle::{DType, Device, Result, Tensor};
use plan::Plan;
use problem::{Problem, TargetKind, Workspace};
use products::{Products, suffix};
use steps::Steps;

/// Of the flags that say what was refused.
const FLAG_BYTES: usize = 3 * 4;

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
    let space = Workspace::new(&plan, s, size_of::<T>());
    // SAFETY: left unset; the kernels write each part before one reads it, and the flags are set to 0 below.
    let mut memory: CudaSlice<u8> = unsafe { device.alloc(space.bytes) }?;
    // SAFETY: left unset; the pursuits write every entry.
    let (mut indices, mut values, mut count) =
        unsafe { (device.alloc::<u32>(m * s)?, device.alloc::<T>(m * s)?, device.alloc::<u32>(m)?) };
    let stream = device.cuda_stream();
    stream.memset_zeros(&mut memory.slice_mut(space.flags..space.flags + FLAG_BYTES)).w()?;
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
        let (flags, inverse_norms, unit) =
            (address(space.flags), address(space.inverse_norms), address(space.unit));
        let products = Products { device, plan: &plan, space: &space, memory, op, n, p };
        products.unit_atoms::<T>(dictionary)?;
        let (suffix, made) = (suffix::<T>(), plan.makes_rows);
        let u32_of = |n: usize| crate::cuda::count(op, n);
        for first in (0..m).step_by(plan.chunk) {
            let rows = plan.chunk.min(m - first);
            let at = |base: u64, entries: usize, size: usize| base + (first * entries * size) as u64;
            let signals = at(signals, p, size_of::<T>());
            let targets = each.as_ref().map_or(0, |each| at(each.0, 1, size_of::<T>()));
            let (indices, values) = (at(indices, s, 4), at(values, s, size_of::<T>()));
            let counts = at(count, 1, 4);
            let (p, width, s) = (u32_of(p)?, u32_of(plan.width)?, u32_of(s)?);
            let target_kind = target_kind as u32;
            let Some((kernel, config)) = plan.one_launch(job, suffix, rows) else {
                if first == 0 {
                    products.correlations::<T>(signals, 0, true)?;
                }
                let steps = Steps {
                    signals,
                    unit,
                    unit_halves: address(space.unit_halves),
                    gram: address(space.gram),
                    inverse_norms,
                    targets,
                    residuals: address(space.residuals),
                    halves: address(space.halves),
                    states: address(space.states),
                    triangles: address(space.triangles),
                    best: address(space.best),
                    lists: address(space.lists),
                    left: 0,
                    indices,
                    values,
                    counts,
                    refused: flags,
                    target,
                    m: rows,
                    p,
                    line: u32_of(plan.line)?,
                    width,
                    s,
                    target_kind,
                    step: 0,
                };
                steps::run(op, device, &plan, steps)?;
                continue;
            };
            if !made {
                products.signal_scales::<T>(signals, rows)?;
                products.correlations::<T>(signals, rows, first == 0)?;
            }
            let product = |at: usize| if made { 0 } else { address(at) };
            let problem = Problem {
                signals,
                norms: product(space.norms),
                correlations: product(space.correlations),
                gram: product(space.gram),
                turned: if made { unit } else { 0 },
                inverse_norms,
                targets,
                mask: mask.as_ref().map_or(0, |mask| at(mask.0, job.p, 1)),
                indices,
                values,
                counts,
                refused: flags,
                memory: address(space.scratch),
                target,
                m: rows,
                memory_of_block: plan.memory_of_block,
                p,
                width,
                s,
                target_kind,
                nonnegative: job.nonnegative.into(),
                unused: 0,
            };
            let chosen = function(device, job.module(), &kernel)?;
            chosen.share(op, config.shared_mem_bytes as usize)?;
            let mut launch = chosen.builder();
            launch.arg(&problem);
            // SAFETY: the kernel takes a Problem<T>; its arrays were sized by the plan, for `rows` signals from `first`
            // on, and stay borrowed until all is queued.
            unsafe { launch.launch(config) }.w()?;
        }
    }
    let flags = device.clone_dtoh(&memory.slice(space.flags..space.flags + FLAG_BYTES))?;
    let must = [
        "signals must be finite, got NaN, infinity, or a norm that overflows",
        "dictionary must be finite, got NaN, infinity, or a norm that overflows",
        "error targets must be finite numbers of at least 0, got others",
    ];
    for (flag, must) in flags.chunks(4).zip(must) {
        if flag != [0; 4] {
            candle::bail!(
                "{op}: {must}; look for them with candle's ops or on the CPU, where the message names the row"
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

impl Job {
    /// The kernel file of the rule.
    fn module(&self) -> &'static str {
        match self.rule {
            Rule::Omp => "bomp",
            Rule::Ols => "ols",
        }
    }
}
