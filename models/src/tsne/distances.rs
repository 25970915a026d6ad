//! Distances of rows as f64 has them, and bounds on them from products in f32.
//!
//! ```text
//! d(i, j)   of the Euclidean distance half the square, which has its order; of the others the distance itself
//! y_i       s (x_i − mean of all x), s a power of two that brings the largest entry near 1; for angles x_i (less its own mean) of length 1,
//!           and 0 where it has no length
//! x̂_i       y_i rounded to f32,  g_i = |x̂_i|² / 2;  for angles g_i = 1/2, which makes the distance from a row without length 1
//! |s² d(i, j) − (g_i + g_j − p_ij)| ≤ (γ + 8 u) (g_i + g_j) + m 2^-120      (s = 1 for angles)
//!           p_ij the product x̂_i·x̂_j in f32 of m features, added in any order: off by γ |x̂_i| |x̂_j| ≤ γ (g_i + g_j), γ = m u / (1 − m u),
//!           u = 2^-24; rounding moves each y by u of its length, which is (u L)(2 L) / 2 with L² = (|x̂_i| + |x̂_j|)² ≤ 4 (g_i + g_j)
//! |d(i, j) − p_ij| ≤ (γ + 8 u) p_ij + m 2^-120      Manhattan, Chebyshev, Hamming, Jaccard; p_ij the distance in f32
//! ```
//!
//! The last terms of both are what numbers too small for f32 may lose. Whether a row is nearer than
//! another is told by the bounds where they suffice, else from the differences of the rows in f64.
use super::Metric;
use super::ranks::{Query, Rank, Tolerance};
use candle::{DType, Device, Result, Tensor};
use chandlery_ops::Precision;
use chandlery_ops::arrays::gather_rows;
use chandlery_ops::layers::{Factors, gemm_};
use chandlery_ops::tsne::{Bound, RowsAboutMean, count_nearer, row_distances, rows_about_mean};
use rayon::prelude::*;
use std::collections::HashMap;
use std::sync::OnceLock;

/// Numbers in a block of products, about.
const BLOCK: usize = 16 << 20;
/// Rows of a block.
const ROWS: std::ops::RangeInclusive<usize> = 16..=256;
/// Rows in doubt of a query for which there is room at first.
const ROOM: usize = 256;
/// Features between two looks at a sum that may be beyond its limit.
const STRETCH: usize = 64;

/// Rows as they are compared.
pub(super) struct Distances {
    metric: Metric,
    n: usize,
    n_features: usize,
    rows: Tensor,
    /// The same on the host.
    host: Vec<f32>,
    /// For angles what is subtracted from each row and 1 over the length that is left, which is 0
    /// where there is none.
    angles: Vec<(f64, f64)>,
    bounds: OnceLock<Bounds>,
}

/// What bounds distances.
enum Bounds {
    Products { rows: Tensor, halves: Tensor, square_of_scale: f64 },
    Distances,
}

impl Distances {
    /// `rows` are f32 `[n, n_features]`. Copies them to the host.
    pub(super) fn new(rows: &Tensor, metric: Metric) -> Result<Self> {
        let (n, n_features) = rows.dims2()?;
        let rows = rows.to_dtype(DType::F32)?.contiguous()?;
        let host = rows.to_device(&Device::Cpu)?.flatten_all()?.to_vec1::<f32>()?;
        let angle = |row: &[f32]| {
            let mean = match metric {
                Metric::Correlation => row.iter().map(|&x| f64::from(x)).sum::<f64>() / row.len() as f64,
                _ => 0.,
            };
            let length = row.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>().sqrt();
            (mean, if length > 0. { 1. / length } else { 0. })
        };
        let is_angle = matches!(metric, Metric::Cosine | Metric::Correlation);
        let angles = match n_features {
            0 => vec![(0., 0.); n],
            d if is_angle => host.par_chunks(d).map(angle).collect(),
            _ => vec![],
        };
        Ok(Self { metric, n, n_features, rows, host, angles, bounds: OnceLock::new() })
    }

    fn row(&self, i: usize) -> &[f32] {
        &self.host[i * self.n_features..(i + 1) * self.n_features]
    }

    fn tolerance(&self) -> Tolerance {
        let is_angle = matches!(self.metric, Metric::Cosine | Metric::Correlation);
        Tolerance { absolute: if is_angle { 4. * f64::EPSILON } else { 0. } }
    }

    /// Whether rows at these distances count as equally far.
    pub(super) fn equal(&self, a: f64, b: f64) -> bool {
        self.tolerance().equal(a, b)
    }

    /// `d(i, j)`
    pub(super) fn exact(&self, i: usize, j: usize) -> f64 {
        self.up_to(i, j, f64::INFINITY)
    }

    /// `d(i, j)`, or something above `limit` where that is.
    pub(super) fn up_to(&self, i: usize, j: usize, limit: f64) -> f64 {
        let (a, b) = (self.row(i), self.row(j));
        match self.metric {
            Metric::Euclidean => 0.5 * added(a, b, 2. * limit, |x, y| (x - y) * (x - y)),
            Metric::Manhattan => added(a, b, limit, |x, y| (x - y).abs()),
            Metric::Chebyshev => {
                let apart = a.iter().zip(b).map(|(&x, &y)| (f64::from(x) - f64::from(y)).abs());
                apart.fold(0., f64::max)
            }
            Metric::Hamming => {
                let d = self.n_features.max(1) as f64;
                added(a, b, d * limit, |x, y| f64::from(u8::from(x != y))) / d
            }
            Metric::Jaccard => {
                let count =
                    |is_in: fn(f32, f32) -> bool| a.iter().zip(b).filter(|&(&x, &y)| is_in(x, y)).count();
                let in_one = count(|x, y| (x != 0.) != (y != 0.));
                in_one as f64 / count(|x, y| x != 0. || y != 0.).max(1) as f64
            }
            Metric::Cosine | Metric::Correlation => {
                let ((mean_a, inverse_a), (mean_b, inverse_b)) = (self.angles[i], self.angles[j]);
                if inverse_a == 0. || inverse_b == 0. {
                    return 1.;
                }
                let unit = |x: f64, y: f64| ((x - mean_a) * inverse_a - (y - mean_b) * inverse_b).powi(2);
                0.5 * added(a, b, 2. * limit, unit)
            }
        }
    }

    /// A number for each of `rows`, which equal ones share: the place of the first of them; none
    /// where a distance of 0 is that of an angle or of sets, not of equal rows.
    pub(super) fn equals(&self, rows: &[u32]) -> Option<Vec<u32>> {
        if !self.angles.is_empty() || self.metric == Metric::Jaccard {
            return None;
        }
        // -0 equals 0.
        let content = |&i: &u32| self.row(i as usize).iter().map(|x| (x + 0.).to_bits()).collect::<Vec<_>>();
        let contents: Vec<Vec<u32>> = rows.par_iter().map(content).collect();
        let mut first = HashMap::<&[u32], u32>::new();
        Some((0..).zip(&contents).map(|(place, content)| *first.entry(content).or_insert(place)).collect())
    }

    /// For each row of `own` the ranks of the rows that `of` gives for its place, as many for each,
    /// among all others.
    pub(super) fn ranks<'a>(
        &self,
        own: &[u32],
        of: impl Fn(usize) -> &'a [u32] + Sync,
    ) -> Result<Vec<Vec<Rank>>> {
        let bounds = match self.bounds.get() {
            Some(bounds) => bounds,
            None => {
                let bounds = self.bounds()?;
                self.bounds.get_or_init(|| bounds)
            }
        };
        let height = (BLOCK / self.n.max(1)).clamp(*ROWS.start(), *ROWS.end());
        let mut all = Vec::with_capacity(own.len());
        for (block, rows) in own.chunks(height).enumerate() {
            let values = self.block(bounds, rows)?;
            let query = |(at, &own): (usize, &u32)| {
                let far = |&j: &u32| self.exact(own as usize, j as usize);
                let each = of(block * height + at).iter().map(far).collect();
                Query::new(own as usize, each, self.tolerance())
            };
            let queries: Vec<Query> = rows.par_iter().enumerate().map(query).collect();
            let mut ranks = self.ranks_of(bounds, &values, &queries.iter().collect::<Vec<_>>(), ROOM)?;
            let others: Vec<u32> = (0..).zip(&ranks).filter(|(_, r)| r.is_none()).map(|(at, _)| at).collect();
            // All rows may be in doubt: few queries at a time.
            for some in others.chunks((BLOCK / self.n.max(1)).max(1)) {
                let again: Vec<&Query> = some.iter().map(|&at| &queries[at as usize]).collect();
                let found = self.ranks_of(bounds, &gather_rows(&values, some)?, &again, self.n)?;
                some.iter().zip(found).for_each(|(&at, found)| ranks[at as usize] = found);
            }
            all.extend(ranks.into_iter().flatten());
        }
        Ok(all)
    }

    /// The ranks of each query, from what bounds its distances from all, `[m, n]`; none where more
    /// than `room` rows are in doubt.
    fn ranks_of(
        &self,
        bounds: &Bounds,
        values: &Tensor,
        queries: &[&Query],
        room: usize,
    ) -> Result<Vec<Option<Vec<Rank>>>> {
        let (m, device) = (queries.len(), values.device());
        let own: Vec<u32> = queries.iter().map(|query| query.own as u32).collect();
        let edges: Vec<f64> =
            queries.iter().flat_map(|query| query.edges()).flat_map(|&(near, far)| [near, far]).collect();
        let edges = Tensor::from_vec(edges, (m, (), 2), device)?;
        let (halves, unit) = match bounds {
            Bounds::Products { halves, square_of_scale, .. } => (Some(halves), 1. / square_of_scale),
            Bounds::Distances => (None, 1.),
        };
        let lost = self.n_features as f64 * (-120f64).exp2();
        let bound = Bound { share: share(self.n_features), lost, unit };
        let counts = count_nearer(values, halves, &own, &edges, &bound, room)?;
        let between = counts.between.to_vec2::<u32>()?;
        let (doubtful, n_doubtful) = (counts.doubtful.to_vec2::<u32>()?, counts.n_doubtful.to_vec1::<u32>()?);
        let ranks = |at: usize| {
            let (query, doubtful) = (queries[at], doubtful[at].get(..n_doubtful[at] as usize)?);
            let far = |&j: &u32| (self.up_to(query.own, j as usize, query.farthest()), 1);
            Some(query.ranks(&between[at], doubtful.iter().map(far)))
        };
        Ok((0..m).into_par_iter().map(ranks).collect())
    }

    /// What bounds the distances of `rows` from all, `[m, n]`.
    fn block(&self, bounds: &Bounds, rows: &[u32]) -> Result<Tensor> {
        match bounds {
            Bounds::Distances => row_distances(&gather_rows(&self.rows, rows)?, &self.rows, self.metric),
            Bounds::Products { rows: all, .. } => {
                let out = Tensor::zeros((rows.len(), self.n), DType::F32, all.device())?;
                if self.n_features > 0 {
                    gemm_(&out, &gather_rows(all, rows)?, &all.t()?, Factors::OVERWRITE, Precision::F32)?;
                }
                Ok(out)
            }
        }
    }

    fn bounds(&self) -> Result<Bounds> {
        let d = self.n_features;
        let upload = |values| Tensor::from_vec(values, (self.n, d), self.rows.device());
        match self.metric {
            Metric::Manhattan | Metric::Chebyshev | Metric::Hamming | Metric::Jaccard => {
                Ok(Bounds::Distances)
            }
            Metric::Cosine | Metric::Correlation => {
                let mut units = self.host.clone();
                if d > 0 {
                    units.par_chunks_mut(d).zip(&self.angles).for_each(|(row, &(mean, inverse))| {
                        row.iter_mut().for_each(|x| *x = ((f64::from(*x) - mean) * inverse) as f32);
                    });
                }
                let halves = Tensor::full(0.5f64, self.n, self.rows.device())?;
                Ok(Bounds::Products { rows: upload(units)?, halves, square_of_scale: 1. })
            }
            Metric::Euclidean => {
                let RowsAboutMean { rows, halves, scale } = rows_about_mean(&self.rows)?;
                Ok(Bounds::Products { rows, halves, square_of_scale: scale * scale })
            }
        }
    }
}

/// γ + 8 u for so many features; more than any distance needs where γ bounds nothing.
fn share(n_features: usize) -> f64 {
    let unit = f64::from(f32::EPSILON) / 2.;
    let sum = (n_features + 1) as f64 * unit;
    if sum < 0.5 { sum / (1. - sum) + 8. * unit } else { 1e30 }
}

/// `Σ term(a, b)` of terms that are not negative, or a part of it that is above `limit`.
#[inline(always)]
fn added(a: &[f32], b: &[f32], limit: f64, term: impl Fn(f64, f64) -> f64) -> f64 {
    const LANES: usize = 8;
    let mut sums = [0f64; LANES];
    for (a, b) in a.chunks(STRETCH).zip(b.chunks(STRETCH)) {
        let ((a, rest_a), (b, rest_b)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
        for (a, b) in a.iter().zip(b) {
            for l in 0..LANES {
                sums[l] += term(f64::from(a[l]), f64::from(b[l]));
            }
        }
        for ((sum, &a), &b) in sums.iter_mut().zip(rest_a).zip(rest_b) {
            *sum += term(f64::from(a), f64::from(b));
        }
        if sums.iter().sum::<f64>() > limit {
            break;
        }
    }
    sums.iter().sum()
}
