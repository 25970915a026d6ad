//! Which form of the kernel a job gets, by its size.
use crate::pursuit::job::Job;
use candle::Result;
use candle::cuda::cudarc::driver::LaunchConfig;
use candle::cuda::cudarc::driver::sys::CUdevice_attribute as Attribute;
use candle::cuda::{CudaDevice, WrapErr};

/// Atoms, steps, and warps that share a signal, that `pursuit_registers.cuh` was compiled for, cheapest first.
const IN_REGISTERS_F32: [(usize, usize, usize); 15] = [
    (128, 8, 1),
    (128, 16, 1),
    (128, 32, 1),
    (256, 8, 1),
    (256, 16, 1),
    (256, 24, 2),
    (256, 32, 2),
    (512, 8, 1),
    (512, 12, 1),
    (512, 16, 2),
    (512, 20, 4),
    (512, 32, 4),
    (1024, 8, 2),
    (1024, 12, 4),
    (1024, 16, 4),
];
const IN_REGISTERS_F64: [(usize, usize, usize); 3] = [(128, 8, 1), (128, 16, 1), (256, 8, 1)];

/// Most bytes of correlations at a time: at 131,072 signals of 512 atoms a launch is long enough to fill the device, and
/// larger ones were no faster.
const CHUNK_BYTES: usize = 256 << 20;

/// Most bytes of scratch of the global form; fewer blocks run where it is not enough.
const SCRATCH_BYTES: usize = 1 << 30;

/// Most bytes that the form by steps keeps at a time.
const STEPS_BYTES: usize = 2 << 30;
/// Fewest correlations of a step that pay for its launches, and most steps, that it is for.
const STEPS_CORRELATIONS: usize = 1 << 22;
const STEPS: usize = 512;

/// Where the directions `v` of a pursuit are kept.
#[derive(Debug, Clone, Copy)]
pub(super) enum Form {
    /// In the registers of the warps that have the signal, a copy of them in `bytes` of a block's shared memory.
    Registers { atoms: usize, steps: usize, team: usize, bytes: usize },
    /// In the shared memory of the block that has the signal, `bytes` of it.
    Shared { threads: usize, blocks: usize, bytes: usize },
    /// In global memory.
    Global { threads: usize, blocks: usize },
    /// Nowhere: all signals take a step together, and correlations are made anew from the residuals.
    Steps,
}

/// The form, and the sizes that follow from it.
#[derive(Debug)]
pub(super) struct Plan {
    pub form: Form,
    /// Whether rows of `G` are made in the kernel from the atoms: for signals with missing samples, each of which has a Gram
    /// matrix of its own, and for signals so few that they want fewer rows than `G` has.
    pub makes_rows: bool,
    /// Atoms with those of padding.
    pub width: usize,
    /// Features of an atom with those of padding, to whole packs of 16 bytes of numbers and of their f16 parts.
    pub line: usize,
    /// Signals at a time.
    pub chunk: usize,
    /// Numbers that a block of the shared and global forms keeps.
    pub memory_of_block: usize,
}

impl Plan {
    pub(super) fn new(job: &Job, device: &CudaDevice) -> Result<Self> {
        let &Job { m, n, p, s, .. } = job;
        let size = job.signals.dtype().size_in_bytes();
        let line = p.next_multiple_of(if size == 8 { 2 } else { 8 });
        let table: &[_] = if size == 8 { &IN_REGISTERS_F64 } else { &IN_REGISTERS_F32 };
        let fits = table.iter().find(|(atoms, steps, _)| n <= *atoms && s <= *steps);
        let makes_rows = job.mask.is_some() || (fits.is_none() && m * s < n);
        if let (Some(&(atoms, steps, team)), None, false) = (fits, &job.mask, job.nonnegative) {
            let signals = signals_of_block(team);
            let form = Form::Registers { atoms, steps, team, bytes: signals * (steps - 1) * atoms * size };
            let plan = Self { form, makes_rows, width: atoms, line, chunk: m, memory_of_block: 0 };
            return plan.in_chunks(device, size, s);
        }

        let width = n.next_multiple_of(128);
        let by_steps = size == 4 && job.rule == super::Rule::Omp && !job.nonnegative && !makes_rows;
        if by_steps && m * width >= STEPS_CORRELATIONS && s <= STEPS {
            let plan = Self { form: Form::Steps, makes_rows, width, line, chunk: m, memory_of_block: 0 };
            return plan.in_chunks(device, size, s);
        }
        let memory_of_block = memory_of_block(job, makes_rows, width, line);
        let context = device.cuda_stream().context().clone();
        let attribute = |which| context.attribute(which).map(|n| n as usize).w();
        let multiprocessors = multiprocessors(device)?;
        let in_block = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?;
        let in_all = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR)?;
        // A pack a thread, as far as a block goes.
        let threads = (width * size / 16).clamp(32, 256).next_multiple_of(32);
        let by_threads = 1536 / threads;
        // The device takes 1 KB of each block, and the kernel as much for itself.
        let bytes = memory_of_block * size;
        let form = if bytes + 2048 <= in_block {
            let blocks = (in_all / (bytes + 2048)).clamp(1, by_threads) * multiprocessors;
            Form::Shared { threads, blocks: blocks.min(m), bytes }
        } else {
            let room = SCRATCH_BYTES.min(free_bytes(device)? / 4);
            let blocks = (room / bytes).clamp(1, by_threads * multiprocessors);
            Form::Global { threads, blocks: blocks.min(m) }
        };
        Self { form, makes_rows, width, line, chunk: m, memory_of_block }.in_chunks(device, size, s)
    }

    fn in_chunks(mut self, device: &CudaDevice, size: usize, s: usize) -> Result<Self> {
        let (of_signal, most) = match self.form {
            Form::Steps => (bytes_of_steps(self.line, s), STEPS_BYTES),
            _ => (self.width * size, CHUNK_BYTES),
        };
        // The question costs more than a small job.
        if !self.makes_rows && self.chunk * of_signal > most / 4 {
            let room = most.min(free_bytes(device)? / 4);
            self.chunk = self.chunk.min((room / of_signal).max(128));
        }
        Ok(self)
    }

    /// Atoms that a lane holds in a row, which decides their order in it; 0 for the order of the dictionary.
    pub(super) fn slots(&self) -> usize {
        match self.form {
            Form::Registers { atoms, team, .. } => atoms / (32 * team),
            _ => 0,
        }
    }

    /// The kernel that has all of a pursuit, and its launch for `rows` signals; none where pursuits go by steps.
    pub(super) fn one_launch(&self, job: &Job, suffix: &str, rows: usize) -> Option<(String, LaunchConfig)> {
        let made = if self.makes_rows { "rows_" } else { "" };
        let (name, blocks, threads, bytes) = match self.form {
            Form::Registers { atoms, steps, team, bytes } => {
                let signals = signals_of_block(team);
                (format!("{atoms}_{steps}"), rows.div_ceil(signals), 32 * team * signals, bytes)
            }
            Form::Shared { threads, blocks, bytes } => (format!("{made}shared"), blocks, threads, bytes),
            Form::Global { threads, blocks } => (format!("{made}global"), blocks, threads, 0),
            Form::Steps => return None,
        };
        let config = LaunchConfig {
            grid_dim: (blocks as u32, 1, 1),
            block_dim: (threads as u32, 1, 1),
            shared_mem_bytes: bytes as u32,
        };
        Some((format!("{}_{suffix}_{name}", job.module()), config))
    }
}

/// Signals of a block of the register form: `SIGNALS` there.
fn signals_of_block(team: usize) -> usize {
    if team == 1 { 2 } else { 1 }
}

/// What the form by steps keeps of a signal: the residual, whole and in parts, directions, and a few numbers.
fn bytes_of_steps(line: usize, s: usize) -> usize {
    8 * line + 2 * s * (s + 1) + 32
}

/// The arrays that the head of `pursuit_blocks.cuh` lists, in numbers.
fn memory_of_block(job: &Job, makes_rows: bool, width: usize, line: usize) -> usize {
    let s = job.s;
    let ols = usize::from(job.rule == super::Rule::Ols);
    let made = usize::from(makes_rows);
    let nonnegative = usize::from(job.nonnegative);
    let numbers = s * width + (1 + ols + made) * width + 2 * made * line;
    // Triangle, what is kept of each step, the chosen atoms' products and their factor, the atoms.
    let small = s * s + 7 * s + nonnegative * 2 * s * s + s;
    (numbers + small).next_multiple_of(32)
}

fn free_bytes(device: &CudaDevice) -> Result<usize> {
    let stream = device.cuda_stream();
    stream.context().bind_to_thread().w()?;
    Ok(stream.context().mem_get_info().w()?.0)
}

pub(super) fn multiprocessors(device: &CudaDevice) -> Result<usize> {
    let stream = device.cuda_stream();
    let count = stream.context().attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT).w()?;
    Ok(count as usize)
}
