//! Units of a product with the weights of patches.
use super::grid::PatchGrid;
use super::product::{patch_product_, sizes_of};
use super::sizes::{PatchDirection, sum_type};
use crate::core::check::expect;
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
        let sizes = sizes_of("units_of_patches_", x, weight, grid, direction)?;
        let fused =
            super::cuda::Units::fits(planes, x, weight, bias, sizes, direction, scale, unit, out, draws)?;
        if let Some(fused) = fused {
            return fused.run(planes, x, weight, Some(bias));
        }
    }
    patch_product_(pre, x, weight, grid, direction, scale)?;
    units_(planes, pre, bias, unit, out, draws, std)
}

/// `pre ← scale · x W`, up or down: what [`units_of_patches_`] makes units of, for ranks that have
/// parts of the sums. Arguments as there; `pre` is `[batch, n']`, f64 for f64 operands and f32
/// otherwise.
///
/// On CUDA this is the kernel of `units_of_patches_`, where that is one; otherwise
/// [`patch_product_`].
///
/// # Errors
/// When shapes, types or devices do not fit.
pub fn sums_of_patches_(
    pre: &Tensor,
    x: &Tensor,
    weight: &Tensor,
    grid: &PatchGrid,
    direction: PatchDirection,
    scale: f32,
) -> Result<()> {
    const OP: &str = "sums_of_patches_";
    let sizes = sizes_of(OP, x, weight, grid, direction)?;
    expect(OP, "pre", pre, &[sum_type(x.dtype())], &[sizes.batch, sizes.ends(direction).1])?;
    #[cfg(feature = "cuda")]
    if let Some(sums) = super::cuda::Units::of_sums(pre, x, weight, sizes, direction, scale)? {
        return sums.run(pre, x, weight, None);
    }
    patch_product_(pre, x, weight, grid, direction, scale)
}
