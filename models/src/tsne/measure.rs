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
use super::config::TsneConfig;
use super::distances::{Distances, Rank};
use super::neighbours::{affinities_of, in_unit, near, search, unit_of};
use super::{Affinities, Metric, Neighbours};
use crate::Philox;
use candle::{DType, Device, Result, Tensor};
use chandlery_ops::arrays::elementwise::abs;
use chandlery_ops::tsne::{Repulsion, RepulsionMethod, knn, layout_divergence};
use rayon::prelude::*;

/// Coordinates up to which the squares of distances, and weights of pairs, fit f32.
const LARGEST: f32 = 1e15;
/// The least mean weight of a pair next to which what f32 loses of others does not count.
const LEAST_WEIGHT: f64 = 1e-20;

/// What a search in rows gives: affinities, and the nearest rows of each row where all were
/// searched.
#[derive(Debug, Clone)]
pub struct Searched {
    /// Those that a run has.
    pub affinities: Affinities,
    /// Nearest first, for [`Measures`](crate::evaluation::layout::Measures).
    pub nearest: Option<Neighbours>,
}

impl Searched {
    /// Of `rows`, prepared f32 `[n, n_features]`, with the configuration of a run and its place in
    /// the random sequence.
    ///
    /// # Errors
    /// When shapes do not fit, the configuration is out of range, or memory is short.
    pub fn new(rows: &Tensor, config: &TsneConfig, philox: Philox) -> Result<Self> {
        config.validate()?;
        let n = rows.dim(0)?;
        let config = config.lowered(n);
        config.check_neighbours(n)?;
        let (neighbours, _) = search(&config, philox, &rows.contiguous()?)?;
        let affinities = affinities_of(&config, &neighbours)?;
        Ok(Self { affinities, nearest: (!config.is_approximate(n)).then_some(neighbours) })
    }
}

/// The Kullback-Leibler divergence in nats of a layout, f32 `[n, n_dims]`, from `rows`, prepared
/// f32 `[n, n_features]`: the affinities that a run with this configuration and place in the random
/// sequence has, and the sum over all pairs.
///
/// Cost: a search for neighbours, and `n²` pairs.
///
/// # Errors
/// When shapes or devices do not fit, the configuration is out of range, or memory is short.
pub fn true_kl(rows: &Tensor, layout: &Tensor, config: &TsneConfig, philox: Philox) -> Result<f64> {
    let searched = Searched::new(rows, config, philox)?;
    kl_of_affinities(&searched.affinities, layout, config.degrees_of_freedom)
}

/// The divergence of a layout, f32 `[n, n_dims]`, from given affinities, with the sum over all
/// pairs and `α` degrees of freedom. It is at least 0: where rounding makes less of it, 0. Layouts
/// whose distances do not fit f32 are computed in f64 on the host.
///
/// # Errors
/// When shapes or devices do not fit, or memory is short.
pub fn kl_of_affinities(affinities: &Affinities, layout: &Tensor, degrees_of_freedom: f32) -> Result<f64> {
    // A view may begin where kernels cannot load points.
    let layout = layout.force_contiguous()?;
    let (n, n_dims) = layout.dims2()?;
    let device = layout.device();
    if n == 0 || abs(&layout)?.max_all()?.to_scalar::<f32>()? <= LARGEST {
        let exact = Repulsion::new(RepulsionMethod::Exact, n, n_dims, degrees_of_freedom, device)?;
        let (forces, total) = (layout.zeros_like()?, Tensor::zeros(1, DType::F64, device)?);
        exact.repulsion_(&forces, &total, &layout)?;
        let weight = total.get(0)?.to_scalar::<f64>()?;
        if weight >= LEAST_WEIGHT * (n as f64).powi(2) {
            let kl = layout_divergence(affinities, &layout, &total, degrees_of_freedom)?;
            return Ok(at_least_0(kl.get(0)?.to_scalar()?));
        }
    }
    Ok(at_least_0(kl_in_f64(affinities, &layout, degrees_of_freedom.into())?))
}

/// No divergence is negative; NaN stays.
pub(super) fn at_least_0(kl: f64) -> f64 {
    if kl < 0. { 0. } else { kl }
}

/// The same by logarithms in f64, for layouts of any size.
fn kl_in_f64(affinities: &Affinities, layout: &Tensor, alpha: f64) -> Result<f64> {
    let host = layout.to_device(&Device::Cpu)?.to_dtype(DType::F64)?.to_vec2::<f64>()?;
    let u32s = |t: &Tensor| t.to_device(&Device::Cpu)?.to_vec1::<u32>();
    let (offsets, columns) = (u32s(&affinities.offsets)?, u32s(&affinities.columns)?);
    let values = affinities.values.to_device(&Device::Cpu)?.to_vec1::<f32>()?;
    if offsets.len() != host.len() + 1 || columns.iter().any(|&j| j as usize >= host.len()) {
        candle::bail!("kl_of_affinities: layout must have {} points, got {}", affinities.n(), host.len())
    }
    let log_weight = |a: &[f64], b: &[f64]| {
        let square: f64 = a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum();
        -alpha * (square / alpha).ln_1p()
    };
    // The largest of some logarithms, and the sum of all weights in units of that.
    let join = |(a, sum_a): (f64, f64), (b, sum_b): (f64, f64)| match a >= b {
        true if sum_b > 0. => (a, sum_a + sum_b * (b - a).exp()),
        true => (a, sum_a),
        false => (b, sum_b + if sum_a > 0. { sum_a * (a - b).exp() } else { 0. }),
    };
    let none = (f64::NEG_INFINITY, 0.);
    let rows = host.par_iter().enumerate();
    let pairs = rows.map(|(i, a)| host[i + 1..].iter().map(|b| (log_weight(a, b), 1.)).fold(none, join));
    let (largest, sum) = pairs.collect::<Vec<_>>().into_iter().fold(none, join);
    let log_total = largest + (2. * sum).ln();
    let of_row = |(i, a): (usize, &Vec<f64>)| {
        let edges = (offsets[i] as usize..offsets[i + 1] as usize).filter(|&e| values[e] > 0.);
        let term = |e: usize| {
            let p = f64::from(values[e]);
            p * (p.ln() + log_total - log_weight(a, &host[columns[e] as usize]))
        };
        edges.map(term).sum::<f64>()
    };
    Ok(host.iter().enumerate().map(of_row).sum())
}

/// Trustworthiness over the `k` nearest points of each of `sample` evenly spaced rows (all where it
/// is `n` or more):
///
/// ```text
/// 1 − 2 / (m k (2n − 3k − 1)) Σ_i Σ_{j of the k nearest points of i} max(0, rank_i(j) − k)
/// ```
///
/// `rank_i(j)` is 1 for the nearest row of row `i` by `metric`, and the mean of the ranks where
/// several are as far. `rows` are f32 `[n, n_features]`, `layout` f32 `[n, n_dims]`, `m` the number
/// of rows that are looked at. Ranks are those of distances in f64, whatever the scale of the rows.
///
/// Cost: a search for neighbours in the layout, `2 m n n_features` FLOP, and a distance in f64 for
/// each pair that f32 leaves in doubt: few, but for rows in groups that are much tighter than they
/// are apart.
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
    if k == 0 || 2 * k >= n {
        candle::bail!("trustworthiness: k must be at least 1 and below n / 2 = {}, got {k}", n as f64 / 2.)
    }
    Compared::new("trustworthiness", rows, layout, k, metric)?.trustworthiness(k, sample)
}

/// The nearest points of each point of a layout.
pub(crate) struct NearestPoints {
    k: usize,
    indices: Vec<u32>,
}

impl NearestPoints {
    /// The `k` nearest of each of a layout, f32 `[n, n_dims]`.
    pub(crate) fn of(layout: &Tensor, k: usize) -> Result<Self> {
        let layout = in_unit(&layout.contiguous()?, unit_of(layout, Metric::Euclidean)?)?;
        let indices = knn(&layout, k, Metric::Euclidean)?.indices.flatten_all()?.to_vec1()?;
        Ok(Self { k, indices })
    }

    fn n(&self) -> usize {
        self.indices.len() / self.k
    }

    /// The `k` nearest of point `i`, of which there are so many at least.
    fn first(&self, i: usize, k: usize) -> &[u32] {
        &self.indices[i * self.k..][..k]
    }

    /// See [`knn_label_accuracy`].
    pub(crate) fn label_accuracy(&self, labels: &[u32], k: usize) -> Result<f64> {
        let n = self.n();
        if labels.len() != n {
            candle::bail!("knn_label_accuracy: labels must be {n}, one for each point, got {}", labels.len())
        }
        let is_right = |&(i, own): &(usize, &u32)| {
            majority(self.first(i, k).iter().map(|&j| labels[j as usize])) == Some(*own)
        };
        Ok(labels.par_iter().enumerate().filter(is_right).count() as f64 / n as f64)
    }
}

/// Rows whose distances are compared with what is near in their layout.
pub(crate) struct Compared<'a> {
    rows: &'a Tensor,
    metric: Metric,
    points: NearestPoints,
    distances: Distances,
}

impl<'a> Compared<'a> {
    /// `rows` are f32 `[n, n_features]`, and a layout f32 `[n, n_dims]`, of which up to `k` nearest
    /// points are looked at. `op` asks.
    pub(crate) fn new(op: &str, rows: &'a Tensor, layout: &Tensor, k: usize, metric: Metric) -> Result<Self> {
        let (n, n_points) = (rows.dim(0)?, layout.dim(0)?);
        if n_points != n {
            candle::bail!("{op}: layout must have {n} points, as many as rows, got {n_points}")
        }
        let points = NearestPoints::of(layout, k)?;
        Ok(Self { rows, metric, points, distances: Distances::new(rows, metric)? })
    }

    /// What is near in the layout.
    pub(crate) fn points(&self) -> &NearestPoints {
        &self.points
    }

    /// See [`trustworthiness`].
    pub(crate) fn trustworthiness(&self, k: usize, sample: usize) -> Result<f64> {
        let n = self.points.n();
        let m = sample.clamp(1, n);
        let picks: Vec<u32> = (0..m).map(|i| (i * n / m) as u32).collect();
        let ranks = self.distances.ranks(&picks, |at| self.points.first(picks[at] as usize, k))?;
        let excess: f64 = ranks.iter().flatten().map(|rank| (rank.mean() - k as f64).max(0.)).sum();
        let (n, k, m) = (n as f64, k as f64, m as f64);
        Ok(1. - 2. * excess / (m * k * (2. * n - 3. * k - 1.)))
    }

    /// See [`knn_recall`]. `nearest` are the nearest rows of each row, as an exact search found
    /// them; without them, or with too few, there is another search.
    pub(crate) fn knn_recall(&self, k: usize, nearest: Option<&Neighbours>) -> Result<f64> {
        let (n, distances) = (self.points.n(), &self.distances);
        // One more, which tells whether the last is as far as others.
        let more = if k + 1 < n { k + 1 } else { k };
        let found = match nearest {
            Some(nearest) if nearest.indices.dim(1)? >= more => nearest.first(more)?,
            _ => {
                let unit = unit_of(self.rows, self.metric)?;
                knn(&in_unit(&self.rows.contiguous()?, unit)?, more, self.metric)?
            }
        };
        let nearest = found.indices.flatten_all()?.to_vec1::<u32>()?;
        if nearest.len() != n * more || nearest.iter().any(|&j| j as usize >= n) {
            candle::bail!("knn_recall: nearest must be rows below {n}, for each of {n}")
        }
        let of = |i: usize| (&nearest[i * more..][..more], self.points.first(i, k));
        let in_doubt: Vec<u32> = match more == k {
            true => vec![],
            false => {
                let last = found.distances.narrow(1, k - 1, 2)?.to_vec2::<f32>()?;
                (0..).zip(&last).filter(|(_, last)| near(last, self.metric)).map(|(i, _)| i).collect()
            }
        };
        let is_tied = |&i: &u32| {
            let (nearest, _) = of(i as usize);
            let far = |at: usize| distances.exact(i as usize, nearest[at] as usize);
            distances.equal(far(k - 1), far(k))
        };
        let tied: Vec<u32> = in_doubt.into_par_iter().filter(is_tied).collect();
        // Of rows that more than `k` others equal, those are the nearest, each as likely.
        let at_zero = |&i: &u32| distances.exact(i as usize, of(i as usize).0[k] as usize) == 0.;
        let (equal, mut others): (Vec<u32>, Vec<u32>) = tied.iter().copied().partition(at_zero);
        let mut kept = 0.;
        match distances.equals(&equal) {
            Some(firsts) => {
                let mut counts = vec![0u64; equal.len()];
                firsts.iter().for_each(|&first| counts[first as usize] += 1);
                let as_far = firsts.iter().map(|&first| counts[first as usize] - 1);
                let kept_of = |(&i, as_far): (&u32, u64)| {
                    let is_equal = |&&j: &&u32| distances.exact(i as usize, j as usize) == 0.;
                    let rank = Rank { nearer: 0, as_far };
                    of(i as usize).1.iter().filter(is_equal).count() as f64 * rank.among(k)
                };
                kept += equal.iter().zip(as_far).map(kept_of).sum::<f64>();
            }
            None => others.clone_from(&tied),
        }
        if !others.is_empty() {
            let ranks = distances.ranks(&others, |at| of(others[at] as usize).1)?;
            kept += ranks.iter().flatten().map(|rank| rank.among(k)).sum::<f64>();
        }
        let plain = (0..n).into_par_iter().filter(|&i| tied.binary_search(&(i as u32)).is_err());
        let of_plain = plain.map(|i| {
            let (nearest, points) = of(i);
            points.iter().filter(|&j| nearest[..k].contains(j)).count()
        });
        kept += of_plain.sum::<usize>() as f64;
        Ok(kept / (n * k) as f64)
    }
}

/// The share of the `k` nearest rows of each row, by `metric`, that are among its `k` nearest
/// points, in `[0, 1]`. Of rows that are equally far each counts by how likely it is among the
/// nearest if a draw decides between them.
///
/// # Errors
/// When shapes do not fit, or `k` is not below `n`.
pub fn knn_recall(rows: &Tensor, layout: &Tensor, k: usize, metric: Metric) -> Result<f64> {
    Compared::new("knn_recall", rows, layout, k, metric)?.knn_recall(k, None)
}

/// How often the majority of a point's `k` nearest other points has its label, in `[0, 1]`; the
/// lowest label wins a tie. `labels` are u32 `[n]`.
///
/// # Errors
/// When shapes do not fit, or `k` is not below `n`.
pub fn knn_label_accuracy(layout: &Tensor, labels: &Tensor, k: usize) -> Result<f64> {
    let labels = labels.to_device(&Device::Cpu)?.to_dtype(DType::U32)?.to_vec1::<u32>()?;
    NearestPoints::of(layout, k)?.label_accuracy(&labels, k)
}

/// The most frequent label, the lowest of several.
fn majority(labels: impl Iterator<Item = u32>) -> Option<u32> {
    let mut labels: Vec<u32> = labels.collect();
    labels.sort_unstable();
    // The last of equals wins in `max_by_key`: labels descend.
    labels.chunk_by(|a, b| a == b).rev().max_by_key(|same| same.len()).map(|same| same[0])
}
