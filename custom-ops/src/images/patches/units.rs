//! Units of a product with the weights of patches.
use super::grid::PatchGrid;
use super::product::patch_product_;
use super::sizes::PatchDirection;
use crate::core::draw::Draws;
use crate::layers::units::{Unit, UnitPlanes, units_};
use candle::{Result, Tensor};

/// Writes means and samples of the units with pre-activations `scale · x W` to planes of `planes`,
/// up or down.
///
/// `x`, `weight` and `direction` are those of [`patch_product_`], the other arguments those of
/// [`units_`]; `planes` are of the type of `x`, and where `weight` has two parts, `out.low` must be
/// given. `pre`, `[batch, n']` f32, is scratch memory.
///
/// On CUDA this is one kernel on the tensor cores for 16-bit numbers where
/// [`patch_steps_fuse`](super::patch_steps_fuse) (and `std` is none); otherwise the product and the
/// units follow each other.
///
/// # Errors
/// When shapes, types or devices do not fit.
#[expect(clippy::too_many_arguments, reason = "a product and the units of it")]
pub fn units_of_patches_(
    planes: &Tensor,
    pre: &Tensor,
    x: &Tensor,
    weight: &Tensor,
    grid: &PatchGrid,
    direction: PatchDirection,
    scale: f32,
    bias: &Tensor,
    unit: Unit,
    out: UnitPlanes,
    draws: Draws<'_>,
    std: Option<&Tensor>,
) -> Result<()> {
    #[cfg(feature = "cuda")]
    if std.is_none() && x.device().is_cuda() {
        let sizes = super::product::sizes_of("units_of_patches_", x, weight, grid, direction)?;
        let fused =
            super::cuda::Units::fits(planes, x, weight, bias, sizes, direction, scale, unit, out, draws)?;
        if let Some(fused) = fused {
            return fused.run(planes, x, weight, bias);
        }
    }
    patch_product_(pre, x, weight, grid, direction, scale)?;
    units_(planes, pre, bias, unit, out, draws, std)
}
