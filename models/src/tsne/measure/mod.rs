//! How good a layout is.
//!
//! | measure | what it says |
//! |---|---|
//! | [`true_kl`] | what t-SNE makes small, with the sum over all pairs; lower is better |
//! | [`trustworthiness`] | whether points that are near in the layout are near in the data; 1 is best |
//! | [`knn_recall`] | the share of a row's nearest rows that are its nearest points too |
//! | [`knn_label_accuracy`] | how often the nearest points vote for a point's own label |
//!
//! Rows are compared by [`TrueDistances`], points by the Euclidean distance. What is taken from some
//! of the rows is an [`Estimate`] with its error.
//!
//! Venna and Kaski, "Neighborhood preservation in nonlinear projection methods", 2001.
mod compared;
mod divergence;
mod estimate;
mod truth;

pub(crate) use compared::{Compared, NearestPoints};
pub use divergence::{Searched, kl_estimate, kl_of_affinities, true_kl};
pub(super) use divergence::{at_least_0, kl_of_rows};
pub use estimate::Estimate;
pub use truth::TrueDistances;

use candle::{DType, Device, Result, Tensor};

/// Trustworthiness over the `k` nearest points of each of `sample` evenly spaced rows (all where it
/// is `n` or more):
///
/// ```text
/// 1 − 2 / (m k (2n − 3k − 1)) Σ_i Σ_{j of the k nearest points of i} max(0, rank_i(j) − k)
/// ```
///
/// `rank_i(j)` is 1 for the nearest row of row `i`, and the mean of the ranks where several are as
/// far. `layout` is f32 `[n, n_dims]`, `m` the number of rows that are looked at. Ranks are those of
/// distances in f64, whatever the scale of the rows.
///
/// Cost: `m n` distances of points, `2 m n n_features` FLOP, and a distance in f64 for each pair
/// that f32 leaves in doubt, which are few. Where rows are far from all others, in tight groups, or there
/// many times, products are made once more, and take another copy of the rows. A matrix is read
/// twice.
///
/// # Errors
/// When shapes do not fit, a distance makes no sense, or `k` is not below `n / 2`.
pub fn trustworthiness(of: TrueDistances<'_>, layout: &Tensor, k: usize, sample: usize) -> Result<f64> {
    let n = of.n()?;
    if k == 0 || 2 * k >= n {
        candle::bail!("trustworthiness: k must be at least 1 and below n / 2 = {}, got {k}", n as f64 / 2.)
    }
    Ok(Compared::new("trustworthiness", of, layout, k, sample)?.trustworthiness(k, sample)?.value)
}

/// The share of the `k` nearest rows of each row that are among its `k` nearest points, in
/// `[0, 1]`. Of rows that are equally far each counts by how likely it is among the nearest if a
/// draw decides between them.
///
/// # Errors
/// When shapes do not fit, a distance makes no sense, or `k` is not below `n`.
pub fn knn_recall(of: TrueDistances<'_>, layout: &Tensor, k: usize) -> Result<f64> {
    Ok(Compared::new("knn_recall", of, layout, k, usize::MAX)?.knn_recall(k, None)?.value)
}

/// How often the majority of a point's `k` nearest other points has its label, in `[0, 1]`; the
/// lowest label wins a tie. `labels` are u32 `[n]`.
///
/// # Errors
/// When shapes do not fit, or `k` is not below `n`.
pub fn knn_label_accuracy(layout: &Tensor, labels: &Tensor, k: usize) -> Result<f64> {
    let labels = labels.to_device(&Device::Cpu)?.to_dtype(DType::U32)?.to_vec1::<u32>()?;
    Ok(NearestPoints::of(layout, k, usize::MAX)?.label_accuracy(&labels, k)?.value)
}
