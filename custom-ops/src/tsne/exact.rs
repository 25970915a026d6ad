//! Distances of rows in f64.
//!
//! | metric | distance |
//! |---|---|
//! | Euclidean | half the square of it, which has its order |
//! | cosine, correlation | half the square of the difference of both rows at length 1, which is 1 − cos; 1 where a row has no length |
//! | Manhattan, Chebyshev, Hamming, Jaccard | itself |
//!
//! Differences lose nothing to cancellation, so that what is told apart here differs, but for the
//! rounding of sums.
use crate::core::check::{expect, matrix};
use crate::core::op::{Io, Kernel, new_tensor, not_recording, operands, same_device};
use crate::tsne::Metric;
use candle::{CpuStorage, DType, Result, Tensor};
use rayon::prelude::*;

const OP: &str = "exact_distances";
/// Features between two looks at a sum that may be beyond its limit.
const STRETCH: usize = 64;
/// Warps of a block, each for a distance or a row.
#[cfg(feature = "cuda")]
const WARPS: usize = 8;

/// What is subtracted from the entries of a row, and 1 over the length that is left, which is 0
/// where there is none.
pub type Angle = [f64; 2];

/// Rows on a device.
#[derive(Debug, Clone, Copy)]
pub struct ExactRows<'a> {
    /// f32 `[n, n_features]`, contiguous.
    pub rows: &'a Tensor,
    /// Those of [`row_angles`], f64 `[n, 2]`; for the cosine and the correlation.
    pub angles: Option<&'a Tensor>,
    /// How they are compared.
    pub metric: Metric,
}

impl ExactRows<'_> {
    /// `[n, n_features]`, if operands of `op` are such tensors.
    pub(super) fn checked(&self, op: &'static str) -> Result<(usize, usize)> {
        let (n, d) = matrix(op, "rows", "[n, n_features]", self.rows, &[DType::F32])?;
        match (self.metric.is_angle(), self.angles) {
            (true, Some(angles)) => {
                same_device(op, "angles", angles, self.rows.device())?;
                expect(op, "angles", angles, &[DType::F64], &[n, 2])?;
            }
            (false, None) => {}
            (is_angle, _) => {
                let what = if is_angle { "needs" } else { "has no" };
                candle::bail!("{op}: the {:?} distance {what} angles of rows", self.metric)
            }
        }
        Ok((n, d))
    }
}

/// Those of contiguous f32 rows, `[n, n_features]`, for the cosine or the correlation: f64 `[n, 2]`.
///
/// Cost: reads the rows once, for the correlation twice.
///
/// # Errors
/// When `rows` is not such a matrix, the metric is another, or a step is being recorded.
pub fn row_angles(rows: &Tensor, metric: Metric) -> Result<Tensor> {
    const OP: &str = "row_angles";
    let (n, d) = matrix(OP, "rows", "[n, n_features]", rows, &[DType::F32])?;
    if !metric.is_angle() {
        candle::bail!("{OP}: metric must be Cosine or Correlation, got {metric:?}")
    }
    if n == 0 || d == 0 {
        return Tensor::zeros((n, 2), DType::F64, rows.device());
    }
    let angles = new_tensor(OP, (n, 2), DType::F64, rows.device())?;
    let is_centred = metric == Metric::Correlation;
    operands(OP).write("angles", &angles).read("rows", rows).run(&RowAngles { n, d, is_centred })?;
    Ok(angles)
}

struct RowAngles {
    n: usize,
    d: usize,
    is_centred: bool,
}

impl Kernel for RowAngles {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let ([angles], [rows]) = io.parts()?;
        let (angles, rows) = (angles.elements::<f64>()?, rows.elements::<f32>()?);
        angles.par_chunks_mut(2).zip(rows.par_chunks(self.d)).for_each(|(angle, row)| {
            let sum: f64 = if self.is_centred { row.iter().map(|&x| f64::from(x)).sum() } else { 0. };
            let mean = sum / self.d as f64;
            let length = row.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>().sqrt();
            angle.copy_from_slice(&[mean, if length > 0. { 1. / length } else { 0. }]);
        });
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        let ([angles], [rows]) = io.parts()?;
        let (mut angles, rows) = (angles.elements::<f64>()?, rows.elements::<f32>()?);
        let launch = gpu.launch("row_angles", "ranks", "row_angles")?.write(&mut angles).read(&rows);
        let launch = launch.num(self.n).num(self.d).num(u32::from(self.is_centred));
        // SAFETY: (double2*, const float*, 2 × size_t, unsigned): angles are [n, 2], rows [n, d]; a
        // warp for each row.
        unsafe { launch.blocks(self.n.div_ceil(WARPS), 32 * WARPS as u32).go() }
    }
}

/// The distance of two rows, of which both angles are read where the metric needs them; or something
/// above `limit` where that is.
pub fn exact_distance(metric: Metric, a: (&[f32], Angle), b: (&[f32], Angle), limit: f64) -> f64 {
    let ((a, [mean_a, inverse_a]), (b, [mean_b, inverse_b])) = (a, b);
    match metric {
        Metric::Euclidean => 0.5 * added(a, b, 2. * limit, |x, y| (x - y) * (x - y)),
        Metric::Manhattan => added(a, b, limit, |x, y| (x - y).abs()),
        Metric::Chebyshev => {
            let apart = a.iter().zip(b).map(|(&x, &y)| (f64::from(x) - f64::from(y)).abs());
            apart.fold(0., f64::max)
        }
        Metric::Hamming => {
            let d = a.len().max(1) as f64;
            added(a, b, d * limit, |x, y| f64::from(u8::from(x != y))) / d
        }
        Metric::Jaccard => {
            let count = |is_in: fn(f32, f32) -> bool| a.iter().zip(b).filter(|&(&x, &y)| is_in(x, y)).count();
            let in_one = count(|x, y| (x != 0.) != (y != 0.));
            in_one as f64 / count(|x, y| x != 0. || y != 0.).max(1) as f64
        }
        Metric::Cosine | Metric::Correlation => {
            if inverse_a == 0. || inverse_b == 0. {
                return 1.;
            }
            let unit = |x: f64, y: f64| ((x - mean_a) * inverse_a - (y - mean_b) * inverse_b).powi(2);
            0.5 * added(a, b, 2. * limit, unit)
        }
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

/// The distances of each row of `own` from as many others, whose numbers stand one query after the
/// other in `others`: f64 `[own, others / own]`.
///
/// Cost: two rows are read for each distance.
///
/// # Errors
/// When an operand is not such a tensor, a number is no row, numbers do not divide, or a step is
/// being recorded.
pub fn exact_distances(of: ExactRows<'_>, own: &[u32], others: &[u32]) -> Result<Tensor> {
    let ((n, d), device) = (of.checked(OP)?, of.rows.device());
    not_recording(OP, device)?;
    let (m, k) = (own.len(), others.len() / own.len().max(1));
    if others.len() != m * k {
        candle::bail!("{OP}: others must be as many for each of {m} rows, got {} in all", others.len())
    }
    if let Some(row) = own.iter().chain(others).find(|&&row| row as usize >= n) {
        candle::bail!("{OP}: own and others must be rows below {n}, got {row}")
    }
    let distances = new_tensor(OP, (m, k), DType::F64, device)?;
    if m > 0 && k > 0 {
        let (own, others) =
            (Tensor::from_slice(own, m, device)?, Tensor::from_slice(others, (m, k), device)?);
        let io = operands(OP).write("distances", &distances).read("rows", of.rows);
        let io = io.maybe("angles", of.angles).read("own", &own).read("others", &others);
        io.run(&ExactDistances { k, d, metric: of.metric })?;
    }
    Ok(distances)
}

/// Rows of a tensor on the CPU, as ops compare them.
pub(super) struct Slices<'a> {
    pub rows: &'a [f32],
    pub angles: Option<&'a [f64]>,
    pub d: usize,
    pub metric: Metric,
}

impl Slices<'_> {
    /// The distance of rows `i` and `j`, or something above `limit` where that is.
    pub(super) fn up_to(&self, i: usize, j: usize, limit: f64) -> f64 {
        let row = |i: usize| &self.rows[i * self.d..][..self.d];
        let angle = |i: usize| self.angles.map_or([0., 0.], |angles| angles.as_chunks::<2>().0[i]);
        exact_distance(self.metric, (row(i), angle(i)), (row(j), angle(j)), limit)
    }
}

/// `EXACT_` of kernels/tsne/exact.cuh.
#[cfg(feature = "cuda")]
pub(super) fn kernel_metric(metric: Metric) -> u32 {
    match metric {
        Metric::Euclidean => 0,
        Metric::Manhattan => 1,
        Metric::Chebyshev => 2,
        Metric::Hamming => 3,
        Metric::Jaccard => 4,
        Metric::Cosine | Metric::Correlation => 5,
    }
}

struct ExactDistances {
    k: usize,
    d: usize,
    metric: Metric,
}

impl Kernel for ExactDistances {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let ([distances], [rows, angles, own, others]) = io.parts()?;
        let (distances, rows) = (distances.elements::<f64>()?, rows.elements::<f32>()?);
        let (angles, own, others) =
            (angles.maybe::<f64>()?, own.elements::<u32>()?, others.elements::<u32>()?);
        let of = Slices { rows, angles, d: self.d, metric: self.metric };
        let queries = distances.par_chunks_mut(self.k).zip(others.par_chunks(self.k)).zip(own);
        queries.for_each(|((to, others), &own)| {
            for (to, &other) in to.iter_mut().zip(others) {
                *to = of.up_to(own as usize, other as usize, f64::INFINITY);
            }
        });
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        let ([distances], [rows, angles, own, others]) = io.parts()?;
        let (mut distances, rows) = (distances.elements::<f64>()?, rows.elements::<f32>()?);
        let (angles, own, others) =
            (angles.maybe::<f64>()?, own.elements::<u32>()?, others.elements::<u32>()?);
        let n = others.len();
        let launch = gpu.launch(OP, "ranks", "exact_distances")?.write(&mut distances).read(&rows);
        let launch = launch.maybe(&angles).read(&own).read(&others).num(n).num(self.d);
        let launch = launch.count(self.k).num(kernel_metric(self.metric));
        // SAFETY: (double*, const float*, const double2* or null, 2 × const unsigned*, 2 × size_t,
        // 2 × unsigned): distances and others are [m, k], n in all, own is [m], rows [_, d], angles
        // [_, 2]; numbers of own and others are rows.
        unsafe { launch.blocks(n.div_ceil(WARPS), 32 * WARPS as u32).go() }
    }
}
