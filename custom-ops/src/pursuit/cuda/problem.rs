//! What a pursuit kernel is told, and where its intermediate results lie.
use super::plan::{Form, Plan};
use candle::cuda::cudarc::driver::DeviceRepr;

/// `Problem<T>` of `kernels/pursuit.cuh`, field for field; addresses are of device memory, 0 for an array that is not there.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct Problem {
    pub signals: u64,
    pub norms: u64,
    pub correlations: u64,
    pub gram: u64,
    pub turned: u64,
    pub inverse_norms: u64,
    pub targets: u64,
    pub mask: u64,
    pub indices: u64,
    pub values: u64,
    pub counts: u64,
    pub refused: u64,
    pub memory: u64,
    pub target: f64,
    pub m: usize,
    pub memory_of_block: usize,
    pub p: u32,
    pub width: u32,
    pub s: u32,
    pub target_kind: u32,
    pub nonnegative: u32,
    /// The size of both is a multiple of 8.
    pub unused: u32,
}

// SAFETY: plain numbers in C's layout, every byte of it set.
unsafe impl DeviceRepr for Problem {}

/// `TargetKind` of `kernels/pursuit.cuh`.
#[derive(Debug, Clone, Copy)]
#[repr(u32)]
pub(super) enum TargetKind {
    None = 0,
    Absolute = 1,
    Relative = 2,
    Each = 3,
}

/// One allocation for all intermediate results: where each begins, in bytes, and the bytes of all.
#[derive(Debug)]
pub(super) struct Workspace {
    /// Three u32, `Refused`: a signal, an atom, a target that is not what it must be.
    pub flags: usize,
    /// `[n]`
    pub inverse_norms: usize,
    /// `D̂`: `[width, line]`, or `[p, width]` where rows of `G` are made in the kernel
    pub unit: usize,
    /// `D̂` in two parts, f16 `[2, width, line]`; for f32
    pub unit_halves: usize,
    /// `‖y‖`, `[chunk]`
    pub norms: usize,
    /// Powers of two, f32 `[chunk]`; for f32
    pub scales: usize,
    /// `[width, width]`
    pub gram: usize,
    /// `[chunk, width]`
    pub correlations: usize,
    /// `[blocks, memory_of_block]`, for the global form
    pub scratch: usize,
    /// Those of the form by steps, as `Steps` names them.
    pub residuals: usize,
    pub halves: usize,
    pub states: usize,
    pub triangles: usize,
    pub best: usize,
    pub lists: usize,
    pub bytes: usize,
}

impl Workspace {
    /// `size` is that of a number.
    pub(super) fn new(plan: &Plan, s: usize, size: usize) -> Self {
        let mut bytes = 0;
        let mut part = |entries: usize, size: usize| {
            let at = bytes;
            bytes += (entries * size).next_multiple_of(256);
            at
        };
        let by_steps = matches!(plan.form, Form::Steps);
        let products = |n: usize| if plan.makes_rows { 0 } else { n };
        let halves = |n: usize| if size == 8 { 0 } else { products(n) };
        let of_signals = |n: usize| if by_steps { 0 } else { n };
        let of_steps = |n: usize| if by_steps { n * plan.chunk } else { 0 };
        let (width, line) = (plan.width, plan.line);
        Self {
            flags: part(3, 4),
            inverse_norms: part(width, size),
            unit: part(width * line, size),
            unit_halves: part(halves(2 * width * line), 2),
            norms: part(of_signals(products(plan.chunk)), size),
            scales: part(of_signals(halves(plan.chunk)), 4),
            gram: part(products(width * width), size),
            correlations: part(of_signals(products(plan.chunk * width)), size),
            scratch: match plan.form {
                Form::Global { blocks, .. } => part(blocks * plan.memory_of_block, size),
                _ => part(0, size),
            },
            residuals: part(of_steps(line), 4),
            halves: part(of_steps(2 * line), 2),
            states: part(of_steps(4), 4),
            triangles: part(of_steps(s * (s + 1) / 2), 4),
            best: part(of_steps(1), 8),
            lists: part(of_steps(2), 4),
            bytes,
        }
    }
}
