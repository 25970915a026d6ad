//! How good a layout is.
//!
//! | measure | what it says |
//! |---|---|
//! | [`true_kl`] | what t-SNE makes small, with the sum over all pairs; lower is better |
//! | [`trustworthiness`] | whether points that are near in the layout are near in the data; 1 is best |
//! | [`knn_recall`] | the share of a row's nearest rows that are its nearest points too |
//! | [`knn_label_accuracy`] | how often the nearest points vote for a point's own label |
//!
//! Rows are compared by a [`Metric`], points by the Euclidean distance.
//!
//! Venna and Kaski, "Neighborhood preservation in nonlinear projection methods", 2001.
use super::{Affinities, Metric};
use candle::{DType, Device, Result, Tensor};
use chandlery_ops::{
    Repulsion, RepulsionMethod, gather_rows_by, knn, layout_divergence, perplexity_search, row_distances,
    symmetrize,
};
use rayon::prelude::*;

/// Rows that are compared with all others at a time.
const BLOCK: usize = 256;

/// The Kullback-Leibler divergence in nats of a layout, f32 `[n, n_dims]`, from `rows`, prepared f32 `[n, n_features]`: affinities over
/// the `3 · perplexity` nearest neighbours by `metric`, and the sum over all pairs.
///
/// Cost: a search for neighbours, and `n²` pairs.
///
/// # Errors
/// When shapes or devices do not fit, `perplexity` is out of range, or memory is short.
pub fn true_kl(rows: &Tensor, layout: &Tensor, perplexity: f64, metric: Metric) -> Result<f64> {
    let n = rows.dim(0)?;
    let most = super::config::largest_perplexity(n);
    if !(1. ..=most).contains(&perplexity) {
        candle::bail!("true_kl: perplexity must be in 1..={most} for {n} rows, got {perplexity}")
    }
    let k = ((3. * perplexity).ceil() as usize).min(n - 1);
    let near = knn(rows, k, metric)?;
    let p = perplexity_search(&near.distances, &[perplexity.min(k as f64)])?;
    kl_of_affinities(&symmetrize(&near.indices, &p)?, layout, 1.)
}

/// The divergence of a layout, f32 `[n, n_dims]`, from given affinities, with the sum over all pairs and `α` degrees of freedom.
///
/// # Errors
/// When shapes or devices do not fit, or memory is short.
pub fn kl_of_affinities(affinities: &Affinities, layout: &Tensor, degrees_of_freedom: f32) -> Result<f64> {
    let (n, n_dims) = layout.dims2()?;
    let device = layout.device();
    let exact = Repulsion::new(RepulsionMethod::Exact, n, n_dims, degrees_of_freedom, device)?;
    let (forces, total) = (layout.zeros_like()?, Tensor::zeros(1, DType::F64, device)?);
    exact.repulsion_(&forces, &total, layout)?;
    layout_divergence(affinities, layout, &total, degrees_of_freedom)?.get(0)?.to_scalar()
}

/// Trustworthiness over the `k` nearest points of each of `sample` evenly spaced rows (all where it is `n` or more):
///
/// ```text
/// 1 − 2 / (m k (2n − 3k − 1)) Σ_i Σ_{j of the k nearest points of i} max(0, rank_i(j) − k)
/// ```
///
/// `rank_i(j)` is 1 for the nearest row of row `i` by `metric`. `rows` are f32 `[n, n_features]`, `layout` f32 `[n, n_dims]`, `m` the number of rows that are looked
/// at.
///
/// Cost: a search for neighbours in the layout, and `2 m n n_features` FLOP.
///
/// # Errors
/// When shapes do not fit, or `k` is not below `n / 2`.
pub fn trustworthiness(
    rows: &Tensor,
    layout: &Tensor,
    k: usize,
    sample: usize,
    metric: Metric,
) -> Result<f64> {
    let n = rows.dim(0)?;
    if layout.dim(0)? != n {
        candle::bail!("trustworthiness: layout must have {n} points, as many as rows, got {}", layout.dim(0)?)
    }
    if k == 0 || 2 * k >= n {
        candle::bail!("trustworthiness: k must be at least 1 and below n / 2 = {}, got {k}", n as f64 / 2.)
    }
    let near = knn(&layout.contiguous()?, k, Metric::Euclidean)?.indices;
    let m = sample.clamp(1, n);
    let picks: Vec<u32> = (0..m).map(|i| (i * n / m) as u32).collect();
    let compared = Compared::new(rows, metric)?;
    let mut excess = 0u64;
    for picks in picks.chunks(BLOCK) {
        let at = Tensor::new(picks, rows.device())?;
        let order = compared.order(&at)?.to_vec2::<f32>()?;
        let near = gather_rows_by(&near, &at)?.to_vec2::<u32>()?;
        let each = order.par_iter().zip(&near).zip(picks);
        excess += each.map(|((order, near), &own)| beyond(order, near, own, k)).sum::<u64>();
    }
    let (n, k, m) = (n as f64, k as f64, m as f64);
    Ok(1. - 2. * excess as f64 / (m * k * (2. * n - 3. * k - 1.)))
}

/// Rows as their distances are compared.
enum Compared {
    /// Rows of which `|x_j|² − 2 x_i·x_j` orders the others as their distances from row `i` do, and `|x_j|²`.
    ByProducts {
        rows: Tensor,
        squares: Tensor,
    },
    ByDistances {
        rows: Tensor,
        metric: Metric,
    },
}

impl Compared {
    fn new(rows: &Tensor, metric: Metric) -> Result<Self> {
        let centred = match metric {
            Metric::Euclidean => rows.broadcast_sub(&rows.mean_keepdim(0)?)?,
            Metric::Cosine => rows.clone(),
            Metric::Correlation => rows.broadcast_sub(&rows.mean_keepdim(1)?)?,
            Metric::Manhattan | Metric::Chebyshev => {
                return Ok(Self::ByDistances { rows: rows.contiguous()?, metric });
            }
        };
        let squares = centred.sqr()?.sum(1)?;
        if metric == Metric::Euclidean {
            return Ok(Self::ByProducts { rows: centred, squares });
        }
        // Rows of length 1; the products order them, and a row of zeros is at distance 1 as one at a right angle is.
        let lengths = (squares.sqrt()? + squares.eq(0f32)?.to_dtype(squares.dtype())?)?;
        let rows = centred.broadcast_div(&lengths.unsqueeze(1)?)?;
        Ok(Self::ByProducts { rows, squares: squares.zeros_like()? })
    }

    /// Numbers that are in the order of the distances of all rows from those at `at`, `[m, n]`.
    fn order(&self, at: &Tensor) -> Result<Tensor> {
        match self {
            Self::ByProducts { rows, squares } => {
                let products = gather_rows_by(rows, at)?.matmul(&rows.t()?)?;
                squares.broadcast_sub(&(products * 2.)?)
            }
            Self::ByDistances { rows, metric } => row_distances(&gather_rows_by(rows, at)?, rows, *metric),
        }
    }
}

/// `Σ_j max(0, rank(j) − k)` over the points `near` of row `own`.
fn beyond(order: &[f32], near: &[u32], own: u32, k: usize) -> u64 {
    let excess = |&j: &u32| {
        let limit = order[j as usize];
        let nearer = order.iter().filter(|&&d| d < limit).count();
        let counts_itself = usize::from(order[own as usize] < limit);
        (nearer - counts_itself + 1).saturating_sub(k) as u64
    };
    near.iter().map(excess).sum()
}

/// The share of the `k` nearest rows of each row, by `metric`, that are among its `k` nearest points, in `[0, 1]`.
///
/// # Errors
/// When shapes do not fit, or `k` is not below `n`.
pub fn knn_recall(rows: &Tensor, layout: &Tensor, k: usize, metric: Metric) -> Result<f64> {
    let of = |t: &Tensor, metric| knn(&t.contiguous()?, k, metric)?.indices.to_vec2::<u32>();
    let (rows, points) = (of(rows, metric)?, of(layout, Metric::Euclidean)?);
    if rows.len() != points.len() {
        candle::bail!("knn_recall: layout must have {} points, got {}", rows.len(), points.len())
    }
    let kept = rows.par_iter().zip(&points).map(|(a, b)| a.iter().filter(|j| b.contains(j)).count());
    Ok(kept.sum::<usize>() as f64 / (rows.len() * k) as f64)
}

/// How often the majority of a point's `k` nearest other points has its label, in `[0, 1]`; the lowest label wins a tie. `labels` are u32 `[n]`.
///
/// # Errors
/// When shapes do not fit, or `k` is not below `n`.
pub fn knn_label_accuracy(layout: &Tensor, labels: &Tensor, k: usize) -> Result<f64> {
    let labels = labels.to_device(&Device::Cpu)?.to_dtype(DType::U32)?.to_vec1::<u32>()?;
    let near = knn(&layout.contiguous()?, k, Metric::Euclidean)?.indices.to_vec2::<u32>()?;
    if labels.len() != near.len() {
        candle::bail!(
            "knn_label_accuracy: labels must be {}, one for each point, got {}",
            near.len(),
            labels.len()
        )
    }
    let right =
        |(near, own): (&Vec<u32>, &u32)| majority(near.iter().map(|&j| labels[j as usize])) == Some(*own);
    Ok(near.iter().zip(&labels).filter(|&pair| right(pair)).count() as f64 / labels.len() as f64)
}

/// The most frequent label, the lowest of several.
fn majority(labels: impl Iterator<Item = u32>) -> Option<u32> {
    let mut count = std::collections::BTreeMap::<u32, usize>::new();
    labels.for_each(|label| *count.entry(label).or_default() += 1);
    // The last of equals wins in `max_by_key`: labels descend.
    count.into_iter().rev().max_by_key(|&(_, count)| count).map(|(label, _)| label)
}
