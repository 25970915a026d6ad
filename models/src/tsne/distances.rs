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
use chandlery_ops::tsne::exact::Angle;
use chandlery_ops::tsne::{ExactRows, exact_distance, exact_distances, row_angles};
use std::sync::OnceLock;
pub(super) use unlike::Unlike;

/// Rows as they are compared.
pub(super) struct Distances {
    metric: Metric,
    n: usize,
    n_features: usize,
    rows: Tensor,
    /// The angles of the rows, `[n, 2]`, for metrics that need them.
    angles: Option<Tensor>,
    /// Made where it is needed: a copy from a GPU takes long.
    host: OnceLock<HostRows>,
    bounds: OnceLock<Bounds>,
    unlike: OnceLock<Unlike>,
}

/// The same rows in host memory.
pub(super) struct HostRows {
    metric: Metric,
    n_features: usize,
    rows: Vec<f32>,
    /// Empty where the metric needs none.
    angles: Vec<Angle>,
}

impl HostRows {
    fn new(of: &Distances) -> Result<Self> {
        let numbers = |t: &Tensor| t.to_device(&Device::Cpu)?.flatten_all();
        let angles = match &of.angles {
            Some(angles) => numbers(angles)?.to_vec1::<f64>()?.as_chunks::<2>().0.to_vec(),
            None => vec![],
        };
        let rows = numbers(&of.rows)?.to_vec1()?;
        Ok(Self { metric: of.metric, n_features: of.n_features, rows, angles })
    }

    fn row(&self, i: usize) -> &[f32] {
        &self.rows[i * self.n_features..(i + 1) * self.n_features]
    }

    /// What row `i` is seen less, and times.
    fn angle(&self, i: usize) -> Angle {
        self.angles.get(i).copied().unwrap_or([0., 1.])
    }

    /// `d(i, j)`
    pub(super) fn exact(&self, i: usize, j: usize) -> f64 {
        self.up_to(i, j, f64::INFINITY)
    }

    /// `d(i, j)`, or something above `limit` where that is.
    pub(super) fn up_to(&self, i: usize, j: usize, limit: f64) -> f64 {
        let of = |i: usize| (self.row(i), self.angle(i));
        exact_distance(self.metric, of(i), of(j), limit)
    }
}

impl Distances {
    /// `rows` are f32 `[n, n_features]`.
    pub(super) fn new(rows: &Tensor, metric: Metric) -> Result<Self> {
        let (n, n_features) = rows.dims2()?;
        let rows = rows.to_dtype(DType::F32)?.contiguous()?;
        let angles = metric.is_angle().then(|| row_angles(&rows, metric)).transpose()?;
        let (host, bounds, unlike) = (OnceLock::new(), OnceLock::new(), OnceLock::new());
        Ok(Self { metric, n, n_features, rows, angles, host, bounds, unlike })
    }

    /// The rows in host memory.
    pub(super) fn host(&self) -> Result<&HostRows> {
        match self.host.get() {
            Some(host) => Ok(host),
            None => {
                let host = HostRows::new(self)?;
                Ok(self.host.get_or_init(|| host))
            }
        }
    }

    /// The same where they are.
    fn exact_rows(&self) -> ExactRows<'_> {
        ExactRows { rows: &self.rows, angles: self.angles.as_ref(), metric: self.metric }
    }

    /// The distances of each row of `own` from as many others, of which those of a row follow each
    /// other.
    pub(super) fn of_pairs(&self, own: &[u32], others: &[u32]) -> Result<Vec<f64>> {
        exact_distances(self.exact_rows(), own, others)?.flatten_all()?.to_vec1()
    }

    fn tolerance(&self) -> Tolerance {
        Tolerance { absolute: if self.metric.is_angle() { 4. * f64::EPSILON } else { 0. } }
    }

    /// Whether rows at these distances count as equally far.
    pub(super) fn equal(&self, a: f64, b: f64) -> bool {
        self.tolerance().equal(a, b)
    }

    /// The rows that differ, where comparing these alone saves much.
    pub(super) fn unlike_if_few(&self) -> Result<Option<&Unlike>> {
        let unlike = self.unlike()?;
        Ok((10 * unlike.firsts.len() <= 9 * self.n).then_some(unlike))
    }

    /// Whether rows at distance 0 are equal: not those at an angle of 0, and not all sets.
    pub(super) fn equal_at_0(&self) -> bool {
        !self.metric.is_angle() && self.metric != Metric::Jaccard
    }

    /// A number for each of `rows`, which equal ones share: the place of the first of them; none
    /// where a distance of 0 is that of an angle or of sets, not of equal rows.
    pub(super) fn equals(&self, rows: &[u32]) -> Result<Option<Vec<u32>>> {
        self.equal_at_0().then(|| Ok(self.host()?.firsts(rows))).transpose()
    }
}
