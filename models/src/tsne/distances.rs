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
//! The bounds of products hold about any point in place of the mean, and for any s that keeps
//! squares within f32; of angles too, where g is half the square of x̂ again.
mod again;
mod bounds;
mod unlike;

use super::Metric;
use super::ranks::Tolerance;
use bounds::Bounds;
use candle::{DType, Device, Result, Tensor};
use rayon::prelude::*;
use std::sync::OnceLock;
pub(super) use unlike::Unlike;

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
    unlike: OnceLock<Unlike>,
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
        Ok(Self {
            metric,
            n,
            n_features,
            rows,
            host,
            angles,
            bounds: OnceLock::new(),
            unlike: OnceLock::new(),
        })
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

    /// The rows that differ, where comparing these alone saves much.
    pub(super) fn unlike_if_few(&self) -> Option<&Unlike> {
        let unlike = self.unlike();
        (10 * unlike.firsts.len() <= 9 * self.n).then_some(unlike)
    }

    /// Whether rows at distance 0 are equal: not those at an angle of 0, and not all sets.
    pub(super) fn equal_at_0(&self) -> bool {
        self.angles.is_empty() && self.metric != Metric::Jaccard
    }

    /// A number for each of `rows`, which equal ones share: the place of the first of them; none
    /// where a distance of 0 is that of an angle or of sets, not of equal rows.
    pub(super) fn equals(&self, rows: &[u32]) -> Option<Vec<u32>> {
        self.equal_at_0().then(|| self.firsts(rows))
    }
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
