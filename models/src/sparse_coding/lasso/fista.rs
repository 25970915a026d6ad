//! FISTA with restart: one product with the Gram matrix an iteration.
//!
//! ```text
//! a′ ← soft(y + (c − y G) / L, β / L)                    L ≥ the largest eigenvalue of G
//! θ′ = (1 + √(1 + 4θ²)) / 2,  y ← a′ + (θ − 1)/θ′ (a′ − a)
//! (y − a′)·(a′ − a) > 0: the signal goes on from θ = 1, y = a′
//! ```
//!
//! Sources: Beck and Teboulle, "A fast iterative shrinkage-thresholding algorithm for linear
//! inverse problems", SIAM J. Imaging Sciences 2(1), 2009; O'Donoghue and Candès, "Adaptive restart
//! for accelerated gradient schemes", Foundations of Computational Mathematics 15, 2015, for the
//! restart (their gradient scheme).
use super::part::Part;
use candle::{DType, Result, Tensor};
use chandlery_ops::Precision;
use chandlery_ops::layers::{Factors, gemm_};

/// Squarings of the Gram matrix for the bound: it is at most `n^(1/64)` times the eigenvalue.
const SQUARINGS: i32 = 5;
/// More than rounding takes from the bound in f32.
const MARGIN: f64 = 1.001;

/// The last point that was extrapolated to, and what extrapolates.
pub(super) struct Momentum {
    /// `y`, `[rows, n]`
    pub to: Tensor,
    /// `θ`, `[rows, 1]`
    pub theta: Tensor,
}

impl Momentum {
    pub(super) fn none(activations: &Tensor) -> Result<Self> {
        let rows = activations.dim(0)?;
        Ok(Self {
            to: activations.clone(),
            theta: Tensor::ones((rows, 1), activations.dtype(), activations.device())?,
        })
    }
}

/// `L`: from `λ(G)^64 = λ(G^64) ≤ ‖G^32‖_F²`. Waits for the device.
pub(super) fn lipschitz(gram: &Tensor) -> Result<f64> {
    let size = |g: &Tensor| g.to_dtype(DType::F64)?.sqr()?.sum_all()?.sqrt()?.to_scalar::<f64>();
    let (mut power, mut bound) = (gram.clone(), MARGIN);
    for k in 0..=SQUARINGS {
        if k > 0 {
            let square = power.zeros_like()?;
            gemm_(&square, &power, &power, Factors::OVERWRITE, Precision::F32)?;
            power = square;
        }
        let size = size(&power)?;
        if size == 0. {
            return Ok(1.);
        }
        bound *= size.powf(0.5f64.powi(k));
        power = (power / size)?;
    }
    Ok(bound)
}

/// So many iterations from `activations`; gives the new ones.
pub(super) fn iterate(
    part: &Part<'_>,
    (activations, correlations): (&Tensor, &Tensor),
    momentum: &mut Momentum,
    lipschitz: f64,
    iterations: usize,
) -> Result<Tensor> {
    let thresholds = (&part.penalties / lipschitz)?;
    let mut a = activations.clone();
    for _ in 0..iterations {
        let gradient = correlations.copy()?;
        let subtract = Factors::Host { alpha: -1., beta: 1. };
        gemm_(&gradient, &momentum.to, part.gram, subtract, Precision::F32)?;
        let z = (&momentum.to + gradient / lipschitz)?;
        let next = match part.lasso.nonnegative {
            true => z.broadcast_sub(&thresholds)?.maximum(0.)?,
            false => (z.abs()?.broadcast_sub(&thresholds)?.maximum(0.)? * z.sign()?)?,
        };
        let change = (&next - &a)?;
        let goes_on = ((&momentum.to - &next)? * &change)?.sum_keepdim(1)?.le(0.)?.to_dtype(a.dtype())?;
        let theta = &momentum.theta;
        let after = ((((theta.sqr()? * 4.)? + 1.)?.sqrt()? + 1.)? / 2.)?;
        let by = ((theta - 1.)? / &after)?.mul(&goes_on)?;
        // 1 where it starts again.
        momentum.theta = (((after - 1.)? * goes_on)? + 1.)?;
        momentum.to = (&next + change.broadcast_mul(&by)?)?;
        a = next;
    }
    Ok(a)
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle::Device::Cpu;

    #[test]
    fn the_bound_is_above_the_largest_eigenvalue_and_near_it() -> Result<()> {
        for (n, p) in [(1, 1), (5, 9), (60, 20)] {
            let x = chandlery_ops::core::normal((n, p), &Cpu, chandlery_ops::Philox::new(4, n as u64))?;
            let gram = x.matmul(&x.t()?)?;
            // By many more powers than the bound has.
            let mut v = Tensor::ones((n, 1), DType::F32, &Cpu)?;
            let mut eigenvalue = 0.;
            for _ in 0..2000 {
                let next = gram.matmul(&v)?;
                eigenvalue = next.sqr()?.sum_all()?.sqrt()?.to_scalar::<f32>()?.into();
                v = (next / eigenvalue)?;
            }
            let bound = lipschitz(&gram)? / eigenvalue;
            assert!((1.0..1.01 * (n as f64).powf(1. / 64.)).contains(&bound), "{n} × {p}: {bound}");
        }
        assert_eq!(lipschitz(&Tensor::zeros((3, 3), DType::F64, &Cpu)?)?, 1.);
        Ok(())
    }
}
