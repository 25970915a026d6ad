//! Layouts in one dimension.
//!
//! The ops lay points out in a plane or in space. A line is a plane whose second coordinate is 0
//! for all points: forces along it are sums of products with a difference of 0, with sums over all
//! pairs and with the cells of a tree, whose centres have the coordinate 0 too. So it stays 0,
//! exactly.
use candle::{Result, Tensor};
use chandlery_ops::arrays::elementwise::contiguous;

/// Dimensions of the points that ops take for a layout of `n_dims`.
pub(super) fn dims_of_ops(n_dims: usize) -> usize {
    n_dims.max(2)
}

/// A layout, f32 `[n, n_dims]`, as ops take it: contiguous, with a second coordinate of 0 where it
/// has one dimension.
pub(super) fn for_ops(layout: &Tensor) -> Result<Tensor> {
    match layout.dim(1)? {
        1 => contiguous(&Tensor::cat(&[layout, &layout.zeros_like()?], 1)?),
        _ => layout.force_contiguous(),
    }
}

/// Points as ops have them as a layout of `n_dims`.
pub(super) fn from_ops(points: Tensor, n_dims: usize) -> Result<Tensor> {
    if points.dim(1)? == n_dims { Ok(points) } else { contiguous(&points.narrow(1, 0, n_dims)?) }
}
