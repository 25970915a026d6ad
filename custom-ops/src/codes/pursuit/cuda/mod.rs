//! The pursuits on CUDA: two products, then one kernel that runs the whole pursuit of every signal.
//!
//! | launch | kernel | |
//! |---|---|---|
//! | 1 | `correlations.cu` `lengths` | `D̂` and `1 / ‖d‖`, in the order in which a warp reads them; `‖y‖`, and a power of two for f16 |
//! | 2 | `correlations.cu` `correlations` | `α⁰ = Y D̂ᵀ` and `G = D̂ D̂ᵀ`, one launch for both |
//! | 3 | `bomp.cu`, `ols.cu` | the pursuits |
//!
//! If the signals do not fit at once ([`Plan::chunk`]), the launches repeat for each chunk. Launch
//! 2 is skipped if the pursuit kernel computes the rows of `G`. If there are many signals for OMP
//! in f32, and their directions fit neither into a multiprocessor nor into those of a cluster, all
//! signals advance step by step, with two launches per step (`pursuit_steps.cu`). Kernels report
//! numbers that are not finite in host memory (`Flags`), which needs no copy and one wait for the
//! device at the end. The codes are allocated while the first two kernels run.
mod codes;
mod problem;
mod products;
mod steps;

pub(super) use codes::{add_rows, to_dense};

use super::SparseCodes;
use super::job::{Job, Target};
use super::plan::{Form, Plan, Sizes, Way};
use crate::core::cuda::{Gpu, Launch, Part, ScratchLayout, free_memory};
use crate::core::op::{Io, Kernel, operands};
use candle::cuda::CudaDType;
use candle::{CpuStorage, CudaStorage, DType, Result, Tensor};
use problem::{Problem, TargetKind, Workspace};

/// What the flags that a kernel sets say, in their order: `Refused` of `kernels/codes/pursuit.cuh`.
const MUST: [&str; 3] = [
    "signals must be finite, got NaN, infinity, or a norm that overflows",
    "dictionary must be finite, got NaN, infinity, or a norm that overflows",
    "error targets must be finite numbers of at least 0, got others",
];

/// The codes of a job whose operands are on the GPU.
pub(super) fn run(job: &Job, gpu: &Gpu, io: Io<'_, CudaStorage>) -> Result<SparseCodes> {
    if job.m == 0 || job.p == 0 {
        return nothing(job);
    }
    for_float!(job.signals.dtype(), |T| run_as::<T>(job, gpu, io))
}

/// No signals, or signals without samples.
fn nothing(job: &Job) -> Result<SparseCodes> {
    let (dtype, device) = (job.signals.dtype(), job.signals.device());
    Ok(SparseCodes {
        indices: Tensor::zeros((job.m, job.s), DType::U32, device)?,
        values: Tensor::zeros((job.m, job.s), dtype, device)?,
        count: Tensor::zeros(job.m, DType::U32, device)?,
        n_atoms: job.n,
    })
}

/// Codes of which no entry is set.
///
/// # Safety
/// Every entry must be written.
unsafe fn unset(job: &Job) -> Result<SparseCodes> {
    let (dtype, device) = (job.signals.dtype(), job.signals.device());
    // SAFETY: the caller writes them.
    unsafe {
        Ok(SparseCodes {
            indices: Tensor::empty((job.m, job.s), DType::U32, device)?,
            values: Tensor::empty((job.m, job.s), dtype, device)?,
            count: Tensor::empty(job.m, DType::U32, device)?,
            n_atoms: job.n,
        })
    }
}

fn run_as<T: CudaDType>(job: &Job, gpu: &Gpu, io: Io<'_, CudaStorage>) -> Result<SparseCodes> {
    let op = job.op;
    gpu.not_recording(op)?;
    let ([], [signals, dictionary, mask, targets]) = io.parts()?;
    let (signals, dictionary) = (signals.elements::<T>()?, dictionary.elements::<T>()?);
    let (mask, targets) = (mask.maybe::<u8>()?, targets.maybe::<T>()?);
    let plan = Plan::new(Sizes::of(job), gpu.limits(), || Ok(free_memory(gpu.context())? as usize))?;
    let plan = plan.at_most(job.chunk);
    let mut layout = ScratchLayout::default();
    let space = Workspace::<T>::new(&plan, job.s, &mut layout);
    let mut scratch = layout.alloc(op, gpu)?;
    let flags = gpu.flags()?;
    let codes;
    {
        // Logged as read or written when all is queued.
        let mut memory = scratch.all();
        let memory = gpu.to_write(&mut memory);
        let (signals, dictionary) = (gpu.to_read(&signals), gpu.to_read(&dictionary));
        let mask = mask.as_ref().map(|mask| gpu.to_read(mask));
        let targets = targets.as_ref().map(|targets| gpu.to_read(targets));
        let call = Call {
            job,
            gpu,
            plan: &plan,
            space: &space,
            memory: memory.at,
            refused: flags.address(),
            signals: signals.at,
            dictionary: dictionary.at,
            mask: mask.as_ref().map(|mask| mask.at),
            targets: targets.as_ref().map(|targets| targets.at),
            target: match &job.target {
                Target::None => (TargetKind::None, 0.),
                Target::Absolute(epsilon) => (TargetKind::Absolute, *epsilon),
                Target::Relative(epsilon) => (TargetKind::Relative, *epsilon),
                Target::PerSignal(_) => (TargetKind::Each, 0.),
            },
        };
        // The device has work from here on, while the host makes room for the codes.
        call.prepare(0)?;
        // SAFETY: `call` writes the code of every signal.
        codes = unsafe { unset(job) }?;
        let io = operands(op).write("indices", &codes.indices).write("values", &codes.values);
        io.write("count", &codes.count).run(&call)?;
    }
    // In the order of the stream: when the kernels are done with it.
    drop(scratch);
    for (flag, must) in flags.wait()?.into_iter().zip(MUST) {
        if flag != 0 {
            candle::bail!(
                "{op}: {must}; look for them with candle's ops or on the CPU, where the message names the row"
            )
        }
    }
    Ok(codes)
}

/// A pursuit under way: what is asked, and addresses of what it reads and keeps, which `run_as`
/// logs.
struct Call<'a, T> {
    job: &'a Job,
    gpu: &'a Gpu,
    plan: &'a Plan,
    space: &'a Workspace<T>,
    /// Where the parts of `space` are.
    memory: u64,
    refused: u64,
    signals: u64,
    dictionary: u64,
    mask: Option<u64>,
    targets: Option<u64>,
    target: (TargetKind, f64),
}

/// The addresses of the codes of a chunk's signals.
struct Codes {
    indices: u64,
    values: u64,
    counts: u64,
}

impl<T: CudaDType> Kernel for Call<'_, T> {
    fn cpu(&self, _: Io<'_, CpuStorage>) -> Result<()> {
        candle::bail!("{}: this kernel runs on a GPU", self.job.op)
    }

    fn cuda(&self, gpu: &Gpu, io: Io<'_, CudaStorage>) -> Result<()> {
        let ([indices, values, counts], []) = io.parts()?;
        let (mut indices, mut values) = (indices.elements::<u32>()?, values.elements::<T>()?);
        let mut counts = counts.elements::<u32>()?;
        let (indices, values) = (gpu.to_write(&mut indices), gpu.to_write(&mut values));
        let counts = gpu.to_write(&mut counts);
        let &Job { m, s, .. } = self.job;
        for first in (0..m).step_by(self.plan.chunk) {
            if first > 0 {
                self.prepare(first)?;
            }
            let rows = self.rows(first);
            let codes = Codes {
                indices: entry::<u32>(indices.at, first * s),
                values: entry::<T>(values.at, first * s),
                counts: entry::<u32>(counts.at, first),
            };
            match self.plan.way(Sizes::of(self.job), rows) {
                Way::BySteps(kernels) => self.take_steps(kernels, first, rows, &codes)?,
                Way::AtOnce { kernel, blocks, threads, bytes, cluster } => {
                    let problem = self.problem(first, rows, &codes)?;
                    let launch = gpu.launch(self.job.op, self.job.rule.file(), &kernel)?.num(problem);
                    // SAFETY: the kernel takes a Problem<T>; its arrays were sized by the plan, for
                    // `rows` signals from `first` on, and their addresses are held until all is
                    // queued.
                    unsafe {
                        launch.blocks(blocks, threads as u32).clusters_of(cluster as u32).shared(bytes).go()
                    }?;
                }
            }
        }
        Ok(())
    }
}

impl<T: CudaDType> Call<'_, T> {
    /// Signals of the chunk from `first` on.
    fn rows(&self, first: usize) -> usize {
        self.plan.chunk.min(self.job.m - first)
    }

    /// What the pursuits of the chunk from `first` on start from.
    fn prepare(&self, first: usize) -> Result<()> {
        let begins = first == 0;
        let atoms = if begins { self.plan.width } else { 0 };
        match self.plan.form {
            _ if self.plan.makes_rows && begins => self.lengths(atoms, first, 0),
            Form::Steps(_) if begins => {
                self.lengths(atoms, first, 0)?;
                self.correlations(first, 0, true)
            }
            // The pursuits start from the signals themselves.
            Form::Steps(_) => Ok(()),
            _ if self.plan.makes_rows => Ok(()),
            _ => {
                let rows = self.rows(first);
                self.lengths(atoms, first, rows)?;
                self.correlations(first, rows, begins)
            }
        }
    }

    fn problem(&self, first: usize, rows: usize, codes: &Codes) -> Result<Problem> {
        let Self { job, plan, space, .. } = self;
        let made = plan.makes_rows;
        let product = |part: Part<T>| if made { 0 } else { self.at(part) };
        Ok(Problem {
            signals: self.signals_from(first),
            norms: product(space.norms),
            correlations: product(space.correlations),
            gram: product(space.gram),
            transposed: if made { self.at(space.unit) } else { 0 },
            inverse_norms: self.at(space.inverse_norms),
            targets: self.targets_from(first),
            mask: self.mask.map_or(0, |mask| entry::<u8>(mask, first * job.p)),
            indices: codes.indices,
            values: codes.values,
            counts: codes.counts,
            refused: self.refused,
            memory: self.at(space.memory),
            target: self.target.1,
            m: rows,
            memory_of_block: plan.memory_of_block,
            p: self.count(job.p)?,
            width: self.count(plan.width)?,
            s: self.count(job.s)?,
            target_kind: self.target.0 as u32,
            nonnegative: job.nonnegative.into(),
            unused: 0,
        })
    }

    fn at<P>(&self, part: Part<P>) -> u64 {
        part.address(self.memory)
    }

    fn signals_from(&self, first: usize) -> u64 {
        entry::<T>(self.signals, first * self.job.p)
    }

    /// Those of [`Target::PerSignal`], else null.
    fn targets_from(&self, first: usize) -> u64 {
        self.targets.map_or(0, |targets| entry::<T>(targets, first))
    }

    /// A size that a kernel takes as `unsigned`.
    fn count(&self, n: usize) -> Result<u32> {
        crate::core::cuda::count(self.job.op, n)
    }
}

/// The address of entry `i` of an array.
fn entry<T>(array: u64, i: usize) -> u64 {
    array + (i * size_of::<T>()) as u64
}

/// How the kernels of this type of numbers end.
fn suffix<T>() -> &'static str {
    if size_of::<T>() == 8 { "f64" } else { "f32" }
}

/// One warp for each of `n` rows, in blocks of 8.
fn warps(launch: Launch<'_>, n: usize) -> Launch<'_> {
    launch.blocks(n.div_ceil(8), 256)
}
