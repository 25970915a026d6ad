//! The end of a step of contrastive divergence for a layer of patches: the last means of its hidden
//! units, and the update from them.
use super::grid::PatchGrid;
use super::sizes::PatchDirection;
use super::step::{check, update};
use super::units::units_of_patches_;
use crate::core::draw::Draws;
use crate::layers::cd_update::{CdOperands, CdUpdate};
use crate::layers::units::{Unit, UnitPlanes};
use candle::{Result, Tensor};

const OP: &str = "patch_last_step_";

/// `h₋ ← −p(h | v₋)` for the states of the negative phase, plane 0 of `hidden` and of `visible`, and
/// then [`patch_cd_update_`](super::patch_cd_update_): what ends a step of contrastive
/// divergence whose last hidden units are not drawn.
///
/// Arguments and shapes are those of `patch_cd_update_`; `unit` is the kind of the hidden units.
/// The means are of `to.copy` divided by `step.copy_scale`, or of the weights where there is no
/// copy, and of the biases in `to.hidden_state`. `pre`, `[batch, n_patches · hidden]` f32, is
/// scratch memory, and what plane 0 of `hidden` holds afterwards is not specified.
///
/// On GPUs of capability 9.0 one kernel does both for Bernoulli units and weights in halves, where
/// the hidden units of a patch are a multiple of 128 or 192, there are 129 to 192 rows, and tiles
/// of 128 or 192 units leave at most a tenth of the multiprocessors idle. It does not store the
/// means.
///
/// Cost: that of `patch_cd_update_` and `2 · batch · n_patches · hidden · window_len` FLOP.
///
/// # Errors
/// When shapes, types or devices do not fit, or a decay is negative or NaN.
#[expect(clippy::too_many_arguments, reason = "those of the update, and of the means")]
pub fn patch_last_step_(
    to: CdOperands<'_>,
    hidden: &Tensor,
    pre: &Tensor,
    visible: &Tensor,
    grid: &PatchGrid,
    unit: Unit,
    scalars: &Tensor,
    step: CdUpdate<'_>,
) -> Result<()> {
    let (sizes, parts) = check(OP, to, hidden, visible, grid, scalars, step)?;
    #[cfg(feature = "cuda")]
    if super::cuda::step_fits(to, hidden, visible, step, &sizes, parts)?
        && let Some(form) = super::cuda::last_step(to, &sizes, unit)?
    {
        return super::cuda::step(to, hidden, visible, scalars, step, sizes, parts, Some(form));
    }
    if !hidden.is_contiguous() {
        candle::bail!("{OP}: hidden must be contiguous, got strides {:?}", hidden.stride())
    }
    let (weight, scale) = match to.copy {
        Some(copy) => (copy.clone(), 1. / step.copy_scale),
        None => (to.params.narrow(0, 0, 1)?, 1.),
    };
    let (planes, negative) = (hidden.flatten(0, 1)?, visible.narrow(1, 0, 1)?.squeeze(1)?);
    let low = (parts == 2).then_some(hidden.dim(1)?);
    let (out, bias) =
        (UnitPlanes { mean: Some(0), mean_scale: -1., sample: None, low }, to.hidden_state.get(0)?);
    let (up, drawn) = (PatchDirection::Up, Draws::Mode);
    units_of_patches_(&planes, pre, &negative, &weight, grid, up, scale, &bias, unit, out, drawn, None)?;
    update(to, hidden, visible, scalars, step, sizes, parts)
}
