//! Projected gradient as printed: a step along the gradient, then the projection of each atom.
//!
//! ```text
//! B ← P(B − G/L),   G = AB − S,   L = max_j Σ_k |A_jk|
//! ```
//!
//! `P` shortens rows to length 1. `L` is at least the largest eigenvalue of `A`, so that every
//! iteration lowers the objective `f`, and `f − min f ≤ L ‖B₀ − B*‖²/2k` after `k` of them. The
//! paper does not say how long its steps are; this length needs no search and no look at the
//! objective.
//!
//! Sources: Raina, Madhavan and Ng, "Large-scale deep unsupervised learning using graphics
//! processors", ICML 2009, section 6; Beck and Teboulle, "A fast iterative shrinkage-thresholding
//! algorithm for linear inverse problems", SIAM J. Imaging Sciences 2(1), 2009, theorem 3.1, for
//! the bound.
use super::spectral_gradient::diagonal;
use super::{Statistics, UNUSED, shortened};
use candle::Result;
use candle::Tensor;
use chandlery_ops::Precision;
use chandlery_ops::layers::{Factors, gemm_};

/// So many iterations from `basis`.
pub(super) fn descend(basis: &Tensor, statistics: &Statistics, iterations: usize) -> Result<Tensor> {
    let Statistics { gram, signals } = statistics;
    // 1/L where an atom is used, as a column; 0 elsewhere.
    let (weight, _) = diagonal(gram)?;
    let used = weight.gt(UNUSED)?.to_dtype(gram.dtype())?;
    let largest = gram.abs()?.sum_keepdim(1)?.max_keepdim(0)?.maximum(UNUSED)?;
    let steps = used.broadcast_div(&largest)?;
    let mut b = basis.copy()?;
    for _ in 0..iterations {
        let gradient = signals.copy()?;
        gemm_(&gradient, gram, &b, Factors::Host { alpha: 1., beta: -1. }, Precision::F32)?;
        b = shortened(&(&b - gradient.broadcast_mul(&steps)?)?)?.contiguous()?;
    }
    Ok(b)
}
