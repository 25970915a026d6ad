//! A lower bound on the log-likelihood of rows under a network of two RBMs.
//!
//! ```text
//! p(v, h) = p(v | h) e^−F(h) / Z                the lower RBM downwards; F and Z are those of the upper RBM
//! Q(h) = Π_j p(h_j | v)                         the lower RBM upwards
//! ln p(v) ≥ ⟨ln p(v | h) − F(h)⟩_Q + H(Q) − ln Z
//! ```
//!
//! The bound is below `ln p(v)` by the divergence of `Q` from the posterior `p(h | v)`. The mean
//! over `Q` is estimated from draws; `H(Q)` is computed exactly.
//!
//! Source: Salakhutdinov and Murray, "On the quantitative analysis of deep belief networks", ICML
//! 2008, section 4.
use super::Dbn;
use crate::check::{at_least_one, batch_of};
use crate::model::Model;
use crate::rbm::energy::softplus;
use crate::rbm::likelihood::Estimate;
use crate::rbm::{Rbm, VisibleUnit};
use candle::{D, DType, Result, Tensor};
use candle_nn::ops::sigmoid;
use chandlery_ops::Philox;
use chandlery_ops::core::bernoulli;
use serde::Serialize;

/// Rows whose hidden units are drawn at once.
const BLOCK: usize = 2048;

/// A lower bound on an average log-likelihood, in nats per row.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Bound {
    /// The bound, with the interval that follows from that of `ln Z`.
    pub estimate: Estimate,
    /// Standard error of the mean over `Q`, from the spread of its draws; not part of `estimate`.
    pub standard_error: f64,
}

impl Dbn {
    /// A lower bound on the average log-likelihood of rows under a network of two layers, from
    /// `n_draws` draws of the middle layer for each row. In f64.
    ///
    /// `v` is `[batch, n_visible]`, 0 and 1 for binary units; `log_z_top` is `ln Z` of the upper
    /// RBM.
    ///
    /// # Errors
    /// When the network does not have two layers or has rectified units, `v` has another shape or
    /// no row, or `n_draws` is below 2.
    pub fn log_likelihood_bound(
        &self,
        v: &Tensor,
        log_z_top: &Estimate,
        n_draws: usize,
        philox: Philox,
    ) -> Result<Bound> {
        let rows = self.bound_of_rows("Dbn::log_likelihood_bound", v, n_draws, philox)?;
        let (n, mut sum, mut variance) = (v.dim(0)?, 0., 0.);
        for (value, spread) in rows {
            variance += spread;
            sum += value.sum_all()?.to_scalar::<f64>()?;
        }
        let estimate = log_z_top.subtracted_from(sum / n as f64);
        Ok(Bound { estimate, standard_error: variance.sqrt() / n as f64 })
    }

    /// The lower bound on the log-likelihood of each raw row, in nats: `[batch, n_inputs]` to f64
    /// `[batch]`, given `ln Z` of the upper RBM.
    ///
    /// # Errors
    /// As [`log_likelihood_bound`](Self::log_likelihood_bound), and when `rows` have another type
    /// or device.
    pub fn score_samples(
        &self,
        rows: &Tensor,
        log_z_top: f64,
        n_draws: usize,
        philox: Philox,
    ) -> Result<Tensor> {
        let bounds = self.bound_of_rows("Dbn::score_samples", &self.prepare(rows)?, n_draws, philox)?;
        let values: Vec<Tensor> = bounds.into_iter().map(|(value, _)| value).collect();
        Tensor::cat(&values, 0)? - log_z_top
    }

    /// In blocks of rows: the bound of each row without `ln Z`, f64 `[block]`, and the variance of
    /// their sum by the spread of the draws.
    fn bound_of_rows(
        &self,
        op: &str,
        v: &Tensor,
        n_draws: usize,
        philox: Philox,
    ) -> Result<Vec<(Tensor, f64)>> {
        let [lower, upper] = self.layers() else {
            candle::bail!("{op}: the network must have 2 layers, got {}", self.layers().len())
        };
        for layer in [lower, upper] {
            layer.must_be_binary(op)?;
        }
        if n_draws < 2 {
            candle::bail!("{op}: n_draws must be at least 2, for a standard error, got {n_draws}")
        }
        let n = batch_of(op, "v", v, lower.config().n_visible)?;
        at_least_one(op, "rows", n)?;
        let (lower, upper) = (lower.to_dtype(DType::F64)?, upper.to_dtype(DType::F64)?);
        let mut at = philox;
        let block = |start: usize| {
            let v = v.narrow(0, start, BLOCK.min(n - start))?.to_dtype(DType::F64)?;
            let x = lower.hidden_input(&v)?;
            let q = sigmoid(&x)?;
            // The entropy of a unit with log-odds x: softplus(x) − x sigmoid(x).
            let entropy = (softplus(&x)? - (&x * &q)?)?.sum(D::Minus1)?;
            let mut draws = Vec::with_capacity(n_draws);
            for _ in 0..n_draws {
                let h = bernoulli(&q.to_dtype(DType::F32)?, at)?.to_dtype(DType::F64)?;
                at = at.advanced(h.elem_count());
                draws.push((log_conditional(&lower, &v, &h)? - upper.free_energy(&h)?)?);
            }
            let draws = Tensor::stack(&draws, 0)?;
            let mean = draws.mean_keepdim(0)?;
            // Of a row's mean: s²/n_draws.
            let spread = draws.broadcast_sub(&mean)?.sqr()?.sum_all()?.to_scalar::<f64>()?;
            Ok(((mean.squeeze(0)? + entropy)?, spread / ((n_draws - 1) * n_draws) as f64))
        };
        (0..n).step_by(BLOCK).map(block).collect()
    }
}

/// `ln p(v | h)` of each row, `[batch]`.
fn log_conditional(rbm: &Rbm, v: &Tensor, h: &Tensor) -> Result<Tensor> {
    let x = rbm.visible_input(h)?;
    if rbm.config().visible == VisibleUnit::Bernoulli {
        return ((v * &x)? - softplus(&x)?)?.sum(D::Minus1);
    }
    let log_variance = match rbm.log_variance() {
        Some(log_variance) => log_variance.clone(),
        None => rbm.visible_bias().zeros_like()?,
    };
    // −½ ((v − x)²/σ² + ln σ² + ln 2π)
    let squares = (v - x)?.sqr()?.broadcast_mul(&log_variance.neg()?.exp()?)?;
    let of_units =
        squares.broadcast_add(&log_variance)?.affine(-0.5, -0.5 * (2. * std::f64::consts::PI).ln())?;
    of_units.sum(D::Minus1)
}
