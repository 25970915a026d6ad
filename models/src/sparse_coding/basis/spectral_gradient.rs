//! Spectral projected gradient: the longest steps that pay.
//!
//! ```text
//! G = AB − S,   D = P(B − α G/diag A) − B,   B ← B + t D,   G ← G + t AD
//! t = −⟨G, D⟩/⟨D, AD⟩, at most 1                    the minimum along D; all of it is allowed, because the constraint is convex
//! α = ⟨D, D diag A⟩/⟨D, AD⟩ for the next iteration  in [1/n, 10⁶]; 1 for the first
//! ```
//!
//! `P` shortens rows to length 1. Each row of the gradient is divided by its `A_jj`, so that atoms
//! that are used rarely move as fast as others; the projection of rows stays what it is. Every
//! iteration lowers the objective and costs one product.
//!
//! Source of `α`: Birgin, Martínez and Raydan, "Nonmonotone spectral projected gradient methods on
//! convex sets", SIAM J. Optimization 10(4), 2000; the line search here is exact and monotone.
use super::{Statistics, UNUSED, shortened};
use candle::{DType, Result, Tensor};
use chandlery_ops::Precision;
use chandlery_ops::layers::{Factors, gemm_};

/// The largest `α`: flat directions of the objective end at the constraint.
const LONGEST: f64 = 1e6;

/// So many iterations from `basis`.
pub(super) fn descend(basis: &Tensor, statistics: &Statistics, iterations: usize) -> Result<Tensor> {
    let Statistics { gram, signals } = statistics;
    let n = gram.dim(0)?;
    let (weight, inverse) = diagonal(gram)?;
    let (mut b, mut g, change) = (basis.copy()?, signals.copy()?, signals.zeros_like()?);
    gemm_(&g, gram, &b, Factors::Host { alpha: 1., beta: -1. }, Precision::F32)?;
    let mut alpha = Tensor::ones((1, 1), gram.dtype(), gram.device())?;
    for _ in 0..iterations {
        let to = shortened(&(&b - g.broadcast_mul(&inverse)?.broadcast_mul(&alpha)?)?)?;
        let d = (to - &b)?.contiguous()?;
        gemm_(&change, gram, &d, Factors::OVERWRITE, Precision::F32)?;
        let curvature = (total(&d, &change)? + f64::from(f32::MIN_POSITIVE))?;
        let t = (total(&g, &d)?.neg()? / &curvature)?.clamp(0., 1.)?;
        b = (b + d.broadcast_mul(&t)?)?;
        g = (g + change.broadcast_mul(&t)?)?;
        let squares = total(&d.broadcast_mul(&weight)?, &d)?;
        alpha = (squares / curvature)?.clamp(1. / n as f64, LONGEST)?;
    }
    // Sums of rows of length 1 may be longer by rounding.
    shortened(&b)
}

/// `diag A` as a column, and its inverse with 0 for unused atoms.
pub(super) fn diagonal(gram: &Tensor) -> Result<(Tensor, Tensor)> {
    let n = gram.dim(0)?;
    // Row and column, not one place, which passes 2^32 from 65,536 atoms on.
    let diagonal = gram.gather(&Tensor::arange(0, n as u32, gram.device())?.unsqueeze(1)?, 1)?;
    let used = diagonal.gt(UNUSED)?.to_dtype(gram.dtype())?;
    let inverse = (&used / (&diagonal + (1. - &used)?)?)?;
    Ok((diagonal, inverse))
}

/// `⟨x, y⟩` as `[1, 1]`, summed row by row.
fn total(x: &Tensor, y: &Tensor) -> Result<Tensor> {
    let rows = (x * y)?.sum_keepdim(1)?.to_dtype(DType::F64)?;
    rows.sum_keepdim(0)?.to_dtype(x.dtype())
}
