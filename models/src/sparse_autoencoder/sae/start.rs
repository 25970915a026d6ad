//! Where training starts, and where dead latents start anew.
use super::train_config::Resampling;
use crate::check::batch_of;
use candle::{DType, Result, Tensor};
use chandlery_ops::Philox;

/// Iterations of [`geometric_median`] at most, and the share of the spread below which it has come
/// to rest.
const ITERATIONS: usize = 100;
const AT_REST: f64 = 1e-6;

/// The point of which the sum of distances to rows `x`, `[batch, n]`, is least: `[n]`, in f64.
///
/// By Weiszfeld's iteration from their mean, which weighs each row by the inverse of its distance.
///
/// # Errors
/// When `x` is no matrix of one row or more.
pub fn geometric_median(x: &Tensor) -> Result<Tensor> {
    let batch = batch_of("geometric_median", "x", x, x.dims().last().copied().unwrap_or(0))?;
    crate::check::at_least_one("geometric_median", "rows", batch)?;
    let x = x.to_dtype(DType::F64)?;
    let mut median = x.mean(0)?;
    for _ in 0..ITERATIONS {
        let distances = x.broadcast_sub(&median)?.sqr()?.sum(1)?.sqrt()?;
        let spread = distances.mean_all()?.to_scalar::<f64>()?;
        if spread == 0. {
            break;
        }
        // A row at the median weighs much, but not infinitely much.
        let weights = distances.maximum(1e-9 * spread)?.recip()?;
        let sum = weights.sum_all()?.to_scalar::<f64>()?;
        let next = (weights.unsqueeze(0)?.matmul(&x)?.squeeze(0)? / sum)?;
        let moved = (&next - &median)?.sqr()?.sum_all()?.to_scalar::<f64>()?.sqrt();
        median = next;
        if !moved.is_finite() || moved <= AT_REST * spread {
            break;
        }
    }
    Ok(median)
}

/// For each of `n` dead latents, a row of a minibatch: drawn with a probability in proportion to the
/// square of its squared error, `losses`.
pub(super) fn drawn_rows(losses: &[f64], n: usize, philox: Philox) -> Vec<usize> {
    let mut sum = 0.;
    let cumulative: Vec<f64> = losses
        .iter()
        .map(|loss| {
            sum += loss * loss;
            sum
        })
        .collect();
    let at = |i: usize| {
        let uniform = f64::from(philox.bits(i as u64)) / (f64::from(u32::MAX) + 1.);
        cumulative.partition_point(|&c| c <= uniform * sum).min(losses.len().saturating_sub(1))
    };
    (0..n).map(at).collect()
}

/// Whether dead latents start anew after so many steps.
pub(super) fn is_due(resampling: Option<Resampling>, steps: u64) -> bool {
    resampling.is_some_and(|of| steps > 0 && steps <= of.until && steps.is_multiple_of(of.every))
}
