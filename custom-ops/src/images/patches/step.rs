//! One update of contrastive learning for a layer of patches.
use super::cpu::{self, Parts};
use super::gradient::patch_gradient_;
use super::grid::PatchGrid;
use super::sizes::{STEP as OP, Sizes, patch_steps_fuse};
use crate::core::op::{Io, Kernel, operands};
use crate::layers::cd_update::{
    self, CdOperands, CdUpdate, after_weights, check_update, planes_of, takes_halves,
};
use crate::layers::gemm::{Factors, Precision};
use crate::layers::weight_step::{WeightStep, weight_step_};
use candle::{CpuStorage, DType, Device, Result, Tensor};

/// Whether [`patch_cd_update_`] takes weights in halves, for bf16 states of `batch` rows and a
/// bf16 velocity: where [`patch_steps_fuse`], on GPUs of capability 9.0, if there are many weights
/// and products can read a window as one box.
pub fn patch_step_takes_halves(device: &Device, grid: &PatchGrid, hidden: usize, batch: usize) -> bool {
    let of_patch = cd_update::Sizes { parts: 1, batch, rows: hidden, cols: grid.window_len() };
    patch_steps_fuse(device, grid, hidden)
        && grid.has_boxed_windows()
        && takes_halves(device, of_patch, Some(grid.n_patches()))
}

/// [`cd_update_`](crate::layers::cd_update_) for a layer of patches:
/// `V_p ← μ V_p + ε/B h_pᵀ v_p − ε(λ₂ W_p + λ₁ sign W_p)`, `W_p ← W_p + V_p` for every patch, the
/// same for the biases, and increases the counter.
///
/// Shapes are those of `cd_update_`, except that `to.params` is
/// `[2, n_patches, hidden, window_len]` (`[1, ..]` with a velocity apart), `to.velocity`
/// `[n_patches, hidden, window_len]` and `to.copy` `[parts, n_patches, hidden, window_len]`;
/// `hidden` is `[parts, ≥ 2, batch, n_patches · hidden]`, `visible`
/// `[parts, ≥ 2, batch, n_values]`.
///
/// Cost: `4 · batch · n_patches · hidden · window_len` FLOP (three times that with two parts);
/// every weight is written once.
///
/// # Errors
/// When shapes, types or devices do not fit, or a decay is negative or NaN.
pub fn patch_cd_update_(
    to: CdOperands<'_>,
    hidden: &Tensor,
    visible: &Tensor,
    grid: &PatchGrid,
    scalars: &Tensor,
    step: CdUpdate<'_>,
) -> Result<()> {
    let (sizes, parts) = check(OP, to, hidden, visible, grid, scalars, step)?;
    update(to, hidden, visible, scalars, step, sizes, parts)
}

/// The sizes of an update and the parts of its states, once the operands are checked.
pub(super) fn check(
    op: &str,
    to: CdOperands<'_>,
    hidden: &Tensor,
    visible: &Tensor,
    grid: &PatchGrid,
    scalars: &Tensor,
    step: CdUpdate<'_>,
) -> Result<(Sizes, usize)> {
    grid.validate(op)?;
    if step.rounding.is_some() {
        candle::bail!("{op}: rounding must be none: weights of patches have f32 masters")
    }
    let (n_patches, len, planes) = (grid.n_patches(), grid.window_len(), planes_of(to));
    let per_patch = match *to.params.dims() {
        [n, p, hidden, l] if (n, p, l) == (planes, n_patches, len) && hidden > 0 => hidden,
        _ => candle::bail!(
            "{op}: params must have shape [{planes}, {n_patches}, hidden, {len}], got {:?}",
            to.params.dims()
        ),
    };
    let units = [n_patches * per_patch, grid.n_values()];
    let weight = [n_patches, per_patch, len];
    let (parts, batch) = check_update(op, to, hidden, visible, scalars, step, &weight, units)?;
    Ok((Sizes { grid: *grid, hidden: per_patch, batch }, parts))
}

/// The update of checked operands.
pub(super) fn update(
    to: CdOperands<'_>,
    hidden: &Tensor,
    visible: &Tensor,
    scalars: &Tensor,
    step: CdUpdate<'_>,
    sizes: Sizes,
    parts: usize,
) -> Result<()> {
    #[cfg(feature = "cuda")]
    if super::cuda::step_fits(to, hidden, visible, step, &sizes, parts)? {
        return super::cuda::step(to, hidden, visible, scalars, step, sizes, parts, None);
    }
    if to.velocity.is_some() || parts == 2 {
        candle::bail!(
            "{OP}: numbers in two parts, and a velocity of its own for bf16 states, are for GPUs where patch_steps_fuse, got {parts} parts of {:?} on {:?}",
            hidden.dtype(),
            to.params.device().location()
        )
    }
    let planes = |t: &Tensor| t.get(0)?.narrow(0, 0, 2);
    let (of_hidden, of_visible) = (planes(hidden)?, planes(visible)?);
    let both = |t: &Tensor| t.flatten(0, 1)?.unsqueeze(0);
    let (h, x) = (both(&of_hidden)?, both(&of_visible)?);
    let plain = h.dtype() == DType::F32 && step.precision != Precision::Bf16;
    if to.params.device().is_cpu() && plain {
        let io = operands(OP).write("params", to.params).read("hidden", &h).read("visible", &x);
        let twice = Sizes { batch: 2 * sizes.batch, ..sizes };
        io.read("scalars", scalars).run(&OnCpu { weights: step.weights, sizes: twice })?;
    } else {
        patch_gradient_(&to.params.get(1)?, &h, &x, &sizes.grid, Factors::Tensor(scalars))?;
        weight_step_(to.params, scalars, step.weights)?;
    }
    after_weights(to, &of_hidden, &of_visible, scalars, step)
}

/// The gradient and the update of the weights in one pass over the patches, for f32 states.
struct OnCpu {
    weights: WeightStep,
    /// With the rows of both phases.
    sizes: Sizes,
}

impl Kernel for OnCpu {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let ([params], [h, x, scalars]) = io.parts()?;
        let (h, x) = (Parts::<f32>::of(&h)?, Parts::of(&x)?);
        let &[alpha, beta, rate] = scalars.elements::<f32>()? else {
            candle::bail!("{OP}: scalars must have 3 entries")
        };
        let n = self.sizes.n_weights();
        let (w, v) = params.elements::<f32>()?.split_at_mut(n);
        cpu::step(w, v, h, x, &self.sizes, (alpha, beta), |w, v| self.weights.apply(rate, w, v));
        Ok(())
    }
}
