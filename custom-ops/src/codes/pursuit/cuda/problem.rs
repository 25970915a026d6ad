//! The arguments of a pursuit kernel, and the memory of its intermediate results.
use crate::codes::pursuit::plan::{Form, Plan};
use crate::core::cuda::{Part, ScratchLayout};
use candle::cuda::cudarc::driver::DeviceRepr;
use half::f16;

/// `Problem<T>` of `kernels/codes/pursuit.cuh`, field for field; addresses are of device memory, 0
/// for an array that is not there.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct Problem {
    pub signals: u64,
    pub norms: u64,
    pub correlations: u64,
    pub gram: u64,
    pub transposed: u64,
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

/// `Steps` of `kernels/codes/pursuit_steps.cu`, field for field; addresses are of device memory.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct Steps {
    pub signals: u64,
    pub unit: u64,
    pub unit_halves: u64,
    pub gram: u64,
    pub inverse_norms: u64,
    pub targets: u64,
    pub residuals: u64,
    pub halves: u64,
    pub states: u64,
    pub triangles: u64,
    pub best: u64,
    pub lists: u64,
    pub left: u64,
    pub indices: u64,
    pub values: u64,
    pub counts: u64,
    pub refused: u64,
    pub target: f64,
    pub m: usize,
    pub p: u32,
    pub line: u32,
    pub width: u32,
    pub s: u32,
    pub target_kind: u32,
    pub step: u32,
}

// SAFETY: plain numbers in C's layout, every byte of it set.
unsafe impl DeviceRepr for Steps {}

/// `TargetKind` of `kernels/codes/pursuit.cuh`.
#[derive(Debug, Clone, Copy)]
#[repr(u32)]
pub(super) enum TargetKind {
    None = 0,
    Absolute = 1,
    Relative = 2,
    Each = 3,
}

/// The intermediate results of a call, in one allocation; parts that a form does not need are
/// empty.
#[derive(Debug)]
pub(super) struct Workspace<T> {
    /// `1 / ‖d‖`, `[n]`
    pub inverse_norms: Part<T>,
    /// `D̂`: `[width, line]`, or `[p, width]` where rows of `G` are made in the kernel
    pub unit: Part<T>,
    /// `D̂` in two parts, `[2, width, line]`; for f32
    pub unit_halves: Part<f16>,
    /// `‖y‖`, `[chunk]`
    pub norms: Part<T>,
    /// Powers of two, `[chunk]`; for f32
    pub scales: Part<f32>,
    /// `[width, width]`
    pub gram: Part<T>,
    /// `[chunk, width]`
    pub correlations: Part<T>,
    /// `[blocks, memory_of_block]`, for the global form
    pub memory: Part<T>,
    pub steps: StepsParts,
}

/// What the form by steps keeps, as [`Steps`] names it.
#[derive(Debug)]
pub(super) struct StepsParts {
    /// `[chunk, line]`
    pub residuals: Part<f32>,
    /// `[2, chunk, line]`
    pub halves: Part<f16>,
    /// `[chunk]`
    pub states: Part<[f32; 4]>,
    /// `[chunk, s (s + 1) / 2]`
    pub triangles: Part<f32>,
    /// `[chunk]`
    pub best: Part<u64>,
    /// `[2, chunk]`
    pub lists: Part<u32>,
    /// `[s + 1]`
    pub left: Part<u32>,
}

impl<T> Workspace<T> {
    /// Adds the parts to `layout`.
    pub(super) fn new(plan: &Plan, s: usize, layout: &mut ScratchLayout) -> Self {
        let of = |is_needed: bool, entries: usize| if is_needed { entries } else { 0 };
        let by_steps = matches!(plan.form, Form::Steps(_));
        let (products, halves) = (!plan.makes_rows, !plan.makes_rows && size_of::<T>() == 4);
        let memory = match plan.form {
            Form::Global { blocks, .. } => blocks * plan.memory_of_block,
            _ => 0,
        };
        let &Plan { width, line, chunk, .. } = plan;
        let of_steps = |entries: usize| of(by_steps, chunk * entries);
        Self {
            inverse_norms: layout.part(width),
            unit: layout.part(width * line),
            unit_halves: layout.part(of(halves, 2 * width * line)),
            norms: layout.part(of(products && !by_steps, chunk)),
            scales: layout.part(of(halves && !by_steps, chunk)),
            gram: layout.part(of(products, width * width)),
            correlations: layout.part(of(products && !by_steps, chunk * width)),
            memory: layout.part(memory),
            steps: StepsParts {
                residuals: layout.part(of_steps(line)),
                halves: layout.part(of_steps(2 * line)),
                states: layout.part(of_steps(1)),
                triangles: layout.part(of_steps(s * (s + 1) / 2)),
                best: layout.part(of_steps(1)),
                lists: layout.part(of_steps(2)),
                left: layout.part(of(by_steps, s + 1)),
            },
        }
    }
}
