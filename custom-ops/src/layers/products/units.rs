//! Units of a product: `units(scale · a b + bias)`.
//!
//! For numbers in two parts on CUDA this is one kernel, as exact as f32 products: it adds partial
//! sums outside the tensor cores, where [`gemm_parts_`](crate::layers::gemm_parts_) splits the
//! product into many. On capability 9.0 it is one for numbers in one part too. In other cases the
//! op is that product followed by [`units_`].
use crate::core::draw::Draws;
use crate::layers::gemm::gemm_parts_;
use crate::layers::units::{Unit, UnitPlanes, units_};
use candle::{DType, Result, Tensor};

/// Writes means and samples of the units with pre-activations `scale · a b` to planes of `planes`.
///
/// `a` is `[parts, m, k]` and `b` `[parts, k, n]` as for [`gemm_parts_`], `planes`
/// `[n_planes, m, n]` of their type, and the other arguments are those of [`units_`]; with two
/// parts in `b`, `out.low` must be given. `pre`, `[m, n]` f32, is scratch memory. On CUDA, sums
/// have a different order from those of [`gemm_parts_`].
///
/// # Errors
/// When shapes, types or devices do not fit.
#[expect(clippy::too_many_arguments, reason = "a product and the units of it")]
pub fn units_of_product_(
    planes: &Tensor,
    pre: &Tensor,
    a: &Tensor,
    b: &Tensor,
    scale: f32,
    bias: &Tensor,
    unit: Unit,
    out: UnitPlanes,
    draws: Draws<'_>,
) -> Result<()> {
    #[cfg(feature = "cuda")]
    if let Some(fused) = super::units_cuda::Units::fits(planes, a, b, scale, bias, unit, out, draws)? {
        return fused.run(planes, a, b, bias);
    }
    gemm_parts_(pre, a, b, scale)?;
    units_(planes, pre, bias, unit, out, draws, None)
}

/// The same computed with candle's own ops, in f64 up to the units: `(mean, sample)`, f32. Tests
/// compare [`units_of_product_`] with it.
///
/// # Errors
/// When shapes do not fit.
pub fn units_of_product_reference(
    a: &Tensor,
    b: &Tensor,
    scale: f32,
    bias: &Tensor,
    unit: Unit,
    philox: Option<crate::core::Philox>,
) -> Result<(Tensor, Tensor)> {
    let whole = |t: &Tensor| t.to_dtype(DType::F64)?.sum(0);
    let pre = (whole(a)?.matmul(&whole(b)?)? * f64::from(scale))?.to_dtype(DType::F32)?;
    crate::layers::units_reference(&pre, bias, unit, philox, None)
}
