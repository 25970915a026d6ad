//! Which form of the kernel a job gets, by its size.
use crate::pursuit::job::Job;
use candle::Result;
use candle::cuda::cudarc::driver::LaunchConfig;
use candle::cuda::cudarc::driver::sys::CUdevice_attribute as Attribute;
use candle::cuda::{CudaDevice, WrapErr};

/// `(atoms, steps)` that `pursuit_registers.cuh` was compiled for, smallest first.
const IN_REGISTERS_F32: [(usize, usize); 7] =
    [(128, 8), (128, 16), (128, 32), (256, 8), (256, 16), (512, 8), (512, 12)];
const IN_REGISTERS_F64: [(usize, usize); 3] = [(128, 8), (128, 16), (256, 8)];

/// Warps, each with a signal, of a block of the register form: `WARPS` there.
const WARPS: usize = 2;

/// Most bytes of correlations at a time: at 131,072 signals of 512 atoms a launch is long enough to fill the device, and
/// larger ones were no faster.
const CHUNK_BYTES: usize = 256 << 20;

/// Most bytes of scratch of the global form; fewer blocks run where it is not enough.
const SCRATCH_BYTES: usize = 1 << 30;

/// Where the directions `v` of a pursuit are kept.
#[derive(Debug, Clone, Copy)]
pub(super) enum Form {
    /// In the registers of the warp that has the signal.
    Registers { atoms: usize, steps: usize },
    /// In the shared memory of the block that has the signal, `bytes` of it.
    Shared { threads: usize, blocks: usize, bytes: usize },
    /// In global memory.
    Global { threads: usize, blocks: usize },
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
        let fits = table.iter().find(|(atoms, steps)| n <= *atoms && s <= *steps);
        let makes_rows = job.mask.is_some() || (fits.is_none() && m * s < n);
        if let (Some(&(atoms, steps)), None, false) = (fits, &job.mask, job.nonnegative) {
            let form = Form::Registers { atoms, steps };
            let plan = Self { form, makes_rows, width: atoms, line, chunk: m, memory_of_block: 0 };
            return plan.in_chunks(device, size);
        }

        let width = n.next_multiple_of(128);
        let memory_of_block = memory_of_block(job, makes_rows, width, line);
        let context = device.cuda_stream().context().clone();
        let attribute = |which| context.attribute(which).map(|n| n as usize).w();
        let multiprocessors = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
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
        Self { form, makes_rows, width, line, chunk: m, memory_of_block }.in_chunks(device, size)
    }

    fn in_chunks(mut self, device: &CudaDevice, size: usize) -> Result<Self> {
        let of_signal = self.width * size;
        // The question costs more than a small job.
        if !self.makes_rows && self.chunk * of_signal > CHUNK_BYTES / 4 {
            let room = CHUNK_BYTES.min(free_bytes(device)? / 4);
            self.chunk = self.chunk.min((room / of_signal).max(128));
        }
        Ok(self)
    }

    /// Atoms that a lane holds in a row, which decides their order in it; 0 for the order of the dictionary.
    pub(super) fn slots(&self) -> usize {
        match self.form {
            Form::Registers { atoms, .. } => atoms / 32,
            _ => 0,
        }
    }

    pub(super) fn kernel(&self, job: &Job, suffix: &str) -> String {
        let module = job.module();
        let made = if self.makes_rows { "rows_" } else { "" };
        match self.form {
            Form::Registers { atoms, steps } => format!("{module}_{suffix}_{atoms}_{steps}"),
            Form::Shared { .. } => format!("{module}_{suffix}_{made}shared"),
            Form::Global { .. } => format!("{module}_{suffix}_{made}global"),
        }
    }

    /// The launch for `rows` signals.
    pub(super) fn launch(&self, rows: usize) -> LaunchConfig {
        let (blocks, threads, bytes) = match self.form {
            Form::Registers { .. } => (rows.div_ceil(WARPS), 32 * WARPS, 0),
            Form::Shared { threads, blocks, bytes } => (blocks, threads, bytes),
            Form::Global { threads, blocks } => (blocks, threads, 0),
        };
        LaunchConfig {
            grid_dim: (blocks as u32, 1, 1),
            block_dim: (threads as u32, 1, 1),
            shared_mem_bytes: bytes as u32,
        }
    }
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
