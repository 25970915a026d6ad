//! One update of contrastive learning: weights, velocity and biases of both sides, from the states
//! of both phases.
//!
//! ```text
//! G = hᵀ x                        both phases at once: h = [−h_neg; h_pos], x = [x_neg; x_pos]
//! V ← μ V + ε/B G − ε(λ₂ W + λ₁ sign W),  W ← W + V
//! biases as in bias_step_
//! ```
//!
//! The CPU composes the update from [`gemm_`], [`weight_step_`] and [`bias_step_`], the first two
//! in one pass for f32 states. On CUDA, with 16-bit states, it is one kernel that never stores the
//! gradient: at 2304×16000 it moves 590 MB instead of 860 MB, and a small RBM needs one launch
//! instead of six.
//!
//! States, and the copy of the weights that products read, may have two *parts*: a number is then
//! the sum of two f16 numbers, where the second holds the rounding error of the first. This keeps
//! 22 of f32's 24 bits at the speed of the tensor cores (Ootomo and Yokota, "Recovering single
//! precision accuracy from Tensor Cores while surpassing the FP32 theoretical peak performance",
//! 2022).
//!
//! Weights may be bf16 without an f32 master: then products read the weights themselves, and the
//! update moves 8 bytes per weight in place of 14. They are rounded stochastically, see
//! [`round_stochastic`](crate::layers::round_stochastic), and their velocity to nearest.
mod cpu;
#[cfg(feature = "cuda")]
pub(crate) mod cuda;
mod deep;
mod pingpong;
mod plan;
#[cfg(feature = "cuda")]
mod rounded;
mod shape;
mod small;
mod staying;

use crate::arrays::scale::scale_into_;
use crate::core::check::{expect, expect_layout};
use crate::core::philox::Philox;
use crate::core::scalars::advance_;
use crate::layers::bias_step::{BiasStep, Phases, Sparsity, bias_step_};
use crate::layers::gemm::{Factors, Precision, gemm_};
use crate::layers::rounding::rounded_step_on_cpu;
use crate::layers::weight_step::{WeightStep, weight_step_, weight_step_reference};
use candle::{DType, Device, Result, Tensor};

const OP: &str = "cd_update_";

/// The tensors that [`cd_update_`] changes. All are on one device, contiguous, and share no
/// memory.
#[derive(Clone, Copy)]
pub struct CdOperands<'a> {
    /// `[2, n_hidden, n_visible]` f32: weights and velocity; `[1, n_hidden, n_visible]`, weights
    /// only, if `velocity` is given. These are bf16 with [`CdUpdate::rounding`]. They are i16
    /// if they are the lower halves of weights whose upper halves are `copy`, see
    /// [`halves_into_`](crate::arrays::halves_into_), which moves 2 bytes per weight less; where
    /// [`cd_update_takes_halves`], with a `copy_scale` of 1.
    pub params: &'a Tensor,
    /// A bf16 velocity, `[n_hidden, n_visible]`, which moves 4 bytes per weight less; for bf16
    /// states where [`cd_update_fuses`], and for bf16 weights.
    pub velocity: Option<&'a Tensor>,
    /// `[parts, n_hidden, n_visible]` of the states' type: receives `copy_scale · W`, split into
    /// parts. None for bf16 weights.
    pub copy: Option<&'a Tensor>,
    /// `[4, n_hidden]` f32, see [`bias_step_`].
    pub hidden_state: &'a Tensor,
    /// `[4, n_visible]` f32: the squared error is added to the third and fourth row.
    pub visible_state: &'a Tensor,
    /// `[1]` i64: increases by [`CdUpdate::advance`].
    pub counter: &'a Tensor,
}

/// The launch of the kernel that has the last means of hidden units of patches, too, in place of
/// the one for their weights alone; see [`patch_last_step_`](crate::images::patch_last_step_).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LastStep {
    pub kernel: &'static str,
    pub blocks: usize,
    pub threads: u32,
    pub shared_bytes: usize,
    /// Rows of the boxes in which states are copied.
    pub box_rows: usize,
}

/// Options of [`cd_update_`].
#[derive(Clone, Copy)]
pub struct CdUpdate<'a> {
    /// Decay of the weights.
    pub weights: WeightStep,
    /// A target for the mean activation of the hidden units.
    pub sparsity: Option<Sparsity>,
    /// Factor on the gradient of the visible biases, `[n_visible]` f32; for f32 states.
    pub visible_scale: Option<&'a Tensor>,
    /// Factor on the copy of the weights: a power of two.
    pub copy_scale: f32,
    /// Blocks of random draws that the step has used.
    pub advance: i64,
    /// Precision of the product of f32 states; 16-bit states are multiplied as they are.
    pub precision: Precision,
    /// What the gradients of the biases are.
    pub biases: BiasGradients,
    /// For bf16 weights, and for them alone: where the draws begin by which they are rounded
    /// stochastically, see [`rounding_bits`](crate::layers::rounding_bits). `advance` must be at
    /// least 1, so that each step has draws of its own.
    pub rounding: Option<Philox>,
}

/// What the gradients of the biases are in [`cd_update_`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BiasGradients {
    /// Those of contrastive learning: sums over both planes of a side. The squared difference of
    /// the visible planes is gathered.
    #[default]
    BothPhases,
    /// Those of an autoencoder whose planes are deltas and units on the hidden side, input and
    /// errors on the visible side: the sum over the deltas, plane 0, and over the errors, plane 1.
    /// Nothing is gathered.
    Autoencoder,
}

/// Whether [`cd_update_`] is one fast kernel for 16-bit states: on CUDA, if both sizes are
/// multiples of four. For other sizes, and for views that begin between 8 bytes, it is one that
/// takes many times as long, without tensor cores.
pub fn cd_update_fuses(device: &Device, n_hidden: usize, n_visible: usize) -> bool {
    let counted = [n_hidden, n_visible].iter().all(|&n| i32::try_from(n).is_ok());
    device.is_cuda() && n_hidden.is_multiple_of(4) && n_visible.is_multiple_of(4) && counted
}

/// Whether [`cd_update_`] takes weights in halves, for bf16 states of `batch` rows and a bf16
/// velocity: those of large matrices, on GPUs of capability 9.0.
pub fn cd_update_takes_halves(device: &Device, [n_hidden, n_visible]: [usize; 2], batch: usize) -> bool {
    takes_halves(device, Sizes { parts: 1, batch, rows: n_hidden, cols: n_visible }, None)
}

/// Whether the update of one matrix, or of those of so many patches, takes weights in halves.
#[cfg_attr(not(feature = "cuda"), expect(unused_variables, reason = "only a GPU takes them"))]
pub(crate) fn takes_halves(device: &Device, sizes: Sizes, patches: Option<usize>) -> bool {
    #[cfg(feature = "cuda")]
    return cuda::takes_halves(device, sizes, patches);
    #[cfg(not(feature = "cuda"))]
    false
}

/// `V ← μ V + ε/B hᵀ x − ε(λ₂ W + λ₁ sign W)`, `W ← W + V`, the same for the biases, and increases
/// the counter.
///
/// `hidden` is `[parts, ≥ 2, batch, n_hidden]` and `visible` `[parts, ≥ 2, batch, n_visible]`, of
/// one type: plane 0 is the negative phase, plane 1 the positive; the hidden negative plane already
/// carries its minus sign. They are f32 or bf16 of one part, or, on CUDA and with a copy of the
/// weights, f16 of one or two parts. `scalars` is `[3]` f32: rate / batch, momentum, rate.
///
/// Cost: `4 · batch · n_hidden · n_visible` FLOP (three times that with two parts). One kernel
/// moves 16 bytes per weight (12 with a bf16 velocity) and 2 for each part of the copy, 12 for
/// weights in halves, or 8 for bf16 weights; separate ops move 24.
///
/// # Errors
/// When shapes, types or devices do not fit, or a decay is negative or NaN.
pub fn cd_update_(
    to: CdOperands<'_>,
    hidden: &Tensor,
    visible: &Tensor,
    scalars: &Tensor,
    step: CdUpdate<'_>,
) -> Result<()> {
    let sizes = Sizes::of(to, hidden, visible, scalars, step)?;
    if let Some(draws) = step.rounding {
        return rounded_step_(to, hidden, visible, scalars, step, draws, sizes);
    }
    #[cfg(feature = "cuda")]
    if cuda::fits(to, hidden, step, sizes)? {
        return cuda::run(OP, to, hidden, visible, scalars, step, sizes, None);
    }
    if sizes.parts != 1 || to.velocity.is_some() || hidden.dtype() == DType::F16 {
        candle::bail!(
            "{OP}: states of {} parts of {:?}{} must be on CUDA, with a copy of the weights, got {} on {:?}",
            sizes.parts,
            hidden.dtype(),
            if to.velocity.is_some() { " with a velocity of their own" } else { "" },
            if to.copy.is_some() { "a copy" } else { "none" },
            to.params.device().location()
        )
    }
    let both = |t: &Tensor| t.get(0)?.narrow(0, 0, 2);
    let (h, x) = (both(hidden)?, both(visible)?);
    if to.params.device().is_cpu() && h.dtype() == DType::F32 && step.precision != Precision::Bf16 {
        cpu::run(to.params, &h, &x, scalars, step.weights, sizes)?;
    } else {
        let (flat_h, flat_x) = (h.flatten(0, 1)?, x.flatten(0, 1)?);
        gemm_(&to.params.get(1)?, &flat_h.t()?, &flat_x, Factors::Tensor(scalars), step.precision)?;
        weight_step_(to.params, scalars, step.weights)?;
    }
    after_weights(to, &h, &x, scalars, step)
}

/// The update of bf16 weights.
fn rounded_step_(
    to: CdOperands<'_>,
    hidden: &Tensor,
    visible: &Tensor,
    scalars: &Tensor,
    step: CdUpdate<'_>,
    draws: Philox,
    sizes: Sizes,
) -> Result<()> {
    let fits = to.copy.is_none() && step.visible_scale.is_none();
    let Some(velocity) = to.velocity.filter(|_| fits && hidden.dtype() == DType::BF16 && step.advance >= 1)
    else {
        candle::bail!(
            "{OP}: bf16 weights must have a velocity of their own, bf16 states, no copy, no visible_scale and an advance of at least 1, got {:?} states, advance {}",
            hidden.dtype(),
            step.advance
        )
    };
    #[cfg(feature = "cuda")]
    if to.params.device().is_cuda() {
        return rounded::run(to, velocity, hidden, visible, scalars, step, draws, sizes);
    }
    let both = |t: &Tensor| t.get(0)?.narrow(0, 0, 2);
    let (h, x) = (both(hidden)?, both(visible)?);
    let gradient = Tensor::zeros((sizes.rows, sizes.cols), DType::F32, to.params.device())?;
    let (flat_h, flat_x) = (h.flatten(0, 1)?, x.flatten(0, 1)?);
    gemm_(&gradient, &flat_h.t()?, &flat_x, Factors::OVERWRITE, step.precision)?;
    let weight = to.params.get(0)?;
    rounded_step_on_cpu(OP, &weight, velocity, &gradient, scalars, to.counter, step.weights, draws)?;
    after_weights(to, &h, &x, scalars, step)
}

/// What follows the weights of an update in ops of their own: the copy of one part, the biases and
/// the counter. `h` and `x` are the planes of both phases, `[2, batch, _]`.
pub(crate) fn after_weights(
    to: CdOperands<'_>,
    h: &Tensor,
    x: &Tensor,
    scalars: &Tensor,
    step: CdUpdate<'_>,
) -> Result<()> {
    if let Some(copy) = to.copy {
        scale_into_(&copy.get(0)?, &to.params.get(0)?, step.copy_scale)?;
    }
    bias_step_(to.hidden_state, h, scalars, hidden_biases(step))?;
    bias_step_(to.visible_state, x, scalars, visible_biases(step))?;
    advance_(to.counter, step.advance)
}

fn hidden_biases(step: CdUpdate<'_>) -> BiasStep<'_> {
    let phases = match step.biases {
        BiasGradients::BothPhases => Phases::Sum,
        BiasGradients::Autoencoder => Phases::Negative,
    };
    BiasStep { phases, sparsity: step.sparsity, gather_error: false, scale: None, sums: None }
}

fn visible_biases(step: CdUpdate<'_>) -> BiasStep<'_> {
    let (phases, gather_error) = match step.biases {
        BiasGradients::BothPhases => (Phases::Difference, true),
        BiasGradients::Autoencoder => (Phases::Positive, false),
    };
    BiasStep { phases, sparsity: None, gather_error, scale: step.visible_scale, sums: None }
}

/// Weights and velocity after [`cd_update_`], `[2, n_hidden, n_visible]`, computed with
/// candle's own ops: `params` has the same shape; `h` `[depth, n_hidden]` and `x`
/// `[depth, n_visible]` hold both phases one below the other, in f32 or f64.
///
/// # Errors
/// When shapes do not fit.
pub fn cd_update_reference(
    params: &Tensor,
    h: &Tensor,
    x: &Tensor,
    scalars: &Tensor,
    step: WeightStep,
) -> Result<Tensor> {
    let [alpha, momentum, _] = scalars.to_vec1::<f32>()?[..] else {
        candle::bail!("cd_update_reference: scalars must have 3 entries")
    };
    let product = h.t()?.matmul(x)?.to_dtype(DType::F32)?;
    let velocity = ((params.get(1)? * f64::from(momentum))? + (product * f64::from(alpha))?)?;
    weight_step_reference(&Tensor::stack(&[&params.get(0)?, &velocity], 0)?, scalars, step)
}

/// The sizes of an update whose operands fit on each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sizes {
    pub parts: usize,
    pub batch: usize,
    pub rows: usize,
    pub cols: usize,
}

impl Sizes {
    fn of(
        to: CdOperands<'_>,
        hidden: &Tensor,
        visible: &Tensor,
        scalars: &Tensor,
        step: CdUpdate<'_>,
    ) -> Result<Self> {
        let planes = planes_of(to);
        let (rows, cols) = match *to.params.dims() {
            [n, rows, cols] if n == planes => (rows, cols),
            _ => candle::bail!(
                "{OP}: params must have shape [{planes}, n_hidden, n_visible], got {:?}",
                to.params.dims()
            ),
        };
        let (parts, batch) =
            check_update(OP, to, hidden, visible, scalars, step, &[rows, cols], [rows, cols])?;
        Ok(Self { parts, batch, rows, cols })
    }
}

/// Planes of the parameters: weights, and the velocity unless it is stored apart.
pub(crate) fn planes_of(to: CdOperands<'_>) -> usize {
    if to.velocity.is_some() { 1 } else { 2 }
}

/// Checks all that an update takes beside the shape of its parameters: `weight` is that of the
/// weights, one matrix or one for each patch. The parts of the states and the rows of a phase.
///
/// # Errors
/// When shapes or types do not fit, or a decay is negative or NaN.
#[expect(clippy::too_many_arguments, reason = "those of the op")]
pub(crate) fn check_update(
    op: &str,
    to: CdOperands<'_>,
    hidden: &Tensor,
    visible: &Tensor,
    scalars: &Tensor,
    step: CdUpdate<'_>,
    weight: &[usize],
    [n_hidden, n_visible]: [usize; 2],
) -> Result<(usize, usize)> {
    let weights = step.weights;
    let stored: &[DType] = match (step.rounding, to.velocity) {
        (Some(_), _) => &[DType::BF16],
        (None, Some(_)) => &[DType::F32, DType::I16],
        (None, None) => &[DType::F32],
    };
    expect_layout(op, "params", to.params, stored)?;
    let (parts, batch) = match *hidden.dims() {
        [parts @ (1 | 2), _, batch, _] => (parts, batch),
        _ => candle::bail!(
            "{op}: hidden must have shape [parts, ≥ 2, batch, {n_hidden}] with 1 or 2 parts, got {:?}",
            hidden.dims()
        ),
    };
    for (name, t, width) in [("hidden", hidden, n_hidden), ("visible", visible, n_visible)] {
        let fits = matches!(*t.dims(), [p, n, b, w] if (p, b, w) == (parts, batch, width) && n >= 2)
            && t.stride()[1..] == [batch * width, width, 1]
            && t.dtype() == hidden.dtype()
            && (parts == 1 || t.dtype() == DType::F16);
        if !fits {
            candle::bail!(
                "{op}: {name} must be {:?} of shape [{parts}, ≥ 2, {batch}, {width}] with contiguous parts, f16 if there are two, got {:?} {:?} with strides {:?}",
                hidden.dtype(),
                t.dtype(),
                t.dims(),
                t.stride()
            )
        }
    }
    let states = hidden.dtype();
    expect(op, "hidden_state", to.hidden_state, &[DType::F32], &[4, n_hidden])?;
    expect(op, "visible_state", to.visible_state, &[DType::F32], &[4, n_visible])?;
    expect(op, "counter", to.counter, &[DType::I64], &[1])?;
    expect(op, "scalars", scalars, &[DType::F32], &[3])?;
    if let Some(velocity) = to.velocity {
        expect(op, "velocity", velocity, &[DType::BF16], weight)?;
    }
    if let Some(copy) = to.copy {
        let dtype = if states == DType::F32 { copy.dtype() } else { states };
        expect(op, "copy", copy, &[dtype], &[&[parts], weight].concat())?;
    }
    if to.params.dtype() == DType::I16 && (to.copy.is_none() || step.copy_scale != 1.) {
        candle::bail!(
            "{op}: weights in halves must have a copy and a copy_scale of 1, got {}",
            step.copy_scale
        )
    }
    if !(weights.l1 >= 0. && weights.l2 >= 0.) {
        candle::bail!("{op}: l1 and l2 must be at least 0, got {} and {}", weights.l1, weights.l2)
    }
    Ok((parts, batch))
}
