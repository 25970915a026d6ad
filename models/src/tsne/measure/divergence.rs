//! The Kullback-Leibler divergence of a layout.
use super::super::conditional::affinities_of;
use super::super::config::TsneConfig;
use super::super::line::for_ops;
use super::super::neighbours::{By, Found, search};
use super::super::unique::Unique;
use super::super::{Affinities, Neighbours};
use super::estimate::{Estimate, spaced};
use crate::{Group, Philox};
use candle::{DType, Device, Result, Tensor};
use chandlery_ops::arrays::elementwise::abs;
use chandlery_ops::arrays::gather_rows;
use chandlery_ops::tsne::{Repulsion, RepulsionMethod, layout_divergence, repulsion_at};
use rayon::prelude::*;

/// Coordinates up to which the squares of distances, and weights of pairs, fit f32.
const LARGEST: f32 = 1e15;
/// The least mean weight of a pair next to which what f32 loses of others does not count.
const LEAST_WEIGHT: f64 = 1e-20;
/// Points of a sample whose pairs are computed in f64 on the host.
const SAMPLE_IN_F64: usize = 1024;

/// What a search in rows gives: affinities, and the nearest rows of each row where all were
/// searched.
#[derive(Debug, Clone)]
pub struct Searched {
    /// Those that a run has.
    pub affinities: Affinities,
    /// Nearest first, for [`Measures`](crate::evaluation::layout::Measures).
    pub nearest: Option<Neighbours>,
    unique: Option<Unique>,
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
        let (config, group, rows) = (config.lowered(n), Group::single(), rows.contiguous()?);
        let unique = Unique::of_rows(&group, &config, &rows, rows.device())?;
        config.check_neighbours_of_points(n, unique.as_ref().map_or(n, Unique::n))?;
        let Found { neighbours, unit, .. } = match &unique {
            Some(unique) => unique.search(By::Ranks(&group), &config, philox, &rows)?,
            None => search(By::Ranks(&group), &config, philox, &rows)?,
        };
        let affinities = affinities_of(&config, &neighbours, unit, unique.as_ref())?;
        let is_exact = !config.is_approximate(n) && unique.is_none();
        Ok(Self { affinities, nearest: is_exact.then_some(neighbours), unique })
    }

    /// The divergence of a layout of the rows, f32 `[n, n_dims]`, with the sum over the pairs of
    /// `sample` evenly spaced rows with all others; over all pairs where it is `n` or more.
    ///
    /// Cost: `sample · n` pairs.
    ///
    /// # Errors
    /// When shapes or devices do not fit, equal rows that are one point have several places, or
    /// memory is short.
    pub fn kl_estimate(&self, layout: &Tensor, degrees_of_freedom: f32, sample: usize) -> Result<Estimate> {
        kl_of_rows(&self.affinities, self.unique.as_ref(), layout, degrees_of_freedom, sample)
    }
}

/// The Kullback-Leibler divergence in nats of a layout, f32 `[n, n_dims]`, from `rows`, prepared
/// f32 `[n, n_features]`: the affinities that a run with this configuration and place in the random
/// sequence has, and the sum over all pairs.
///
/// Cost: a search for neighbours, and `n²` pairs.
///
/// # Errors
/// When shapes or devices do not fit, the configuration is out of range, equal rows that are one
/// point have several places, or memory is short.
pub fn true_kl(rows: &Tensor, layout: &Tensor, config: &TsneConfig, philox: Philox) -> Result<f64> {
    let searched = Searched::new(rows, config, philox)?;
    Ok(searched.kl_estimate(layout, config.degrees_of_freedom, usize::MAX)?.value)
}

/// The divergence of a layout, f32 `[n, n_dims]`, from given affinities, with the sum over all
/// pairs and `α` degrees of freedom. It is at least 0: where rounding makes less of it, 0. Layouts
/// whose distances do not fit f32 are computed in f64 on the host.
///
/// Cost: `n²` pairs.
///
/// # Errors
/// When shapes or devices do not fit, or memory is short.
pub fn kl_of_affinities(affinities: &Affinities, layout: &Tensor, degrees_of_freedom: f32) -> Result<f64> {
    Ok(kl_estimate(affinities, layout, degrees_of_freedom, usize::MAX)?.value)
}

/// The same with the sum over the pairs of `sample` evenly spaced points with all others, times
/// `n / sample`; over all pairs where `sample` is `n` or more.
///
/// Cost: `sample · n` pairs.
///
/// # Errors
/// As [`kl_of_affinities`].
pub fn kl_estimate(
    affinities: &Affinities,
    layout: &Tensor,
    degrees_of_freedom: f32,
    sample: usize,
) -> Result<Estimate> {
    kl_of_rows(affinities, None, layout, degrees_of_freedom, sample)
}

/// The same of a layout of rows, of which equal ones may be one point of the affinities.
pub(in crate::tsne) fn kl_of_rows(
    affinities: &Affinities,
    unique: Option<&Unique>,
    layout: &Tensor,
    degrees_of_freedom: f32,
    sample: usize,
) -> Result<Estimate> {
    // A view may begin where kernels cannot load points.
    let rows = for_ops(layout)?;
    let points = unique.map_or_else(|| Ok(rows.clone()), |unique| unique.points_of(&rows))?;
    let of_pairs = unique.map_or(Ok(0.), |unique| unique.of_pairs(affinities))?;
    let n = rows.dim(0)?;
    if n == 0 || abs(&rows)?.max_all()?.to_scalar::<f32>()? <= LARGEST {
        let counts = unique.map(Unique::counts);
        let Estimate { value: weight, error } = match sample >= n {
            true => weight_of_all(&points, counts, degrees_of_freedom)?,
            false => weight_of_some(&rows, degrees_of_freedom, sample)?,
        };
        if weight >= LEAST_WEIGHT * (n as f64).powi(2) {
            let total = Tensor::new(&[weight], rows.device())?;
            let kl = layout_divergence(affinities, &points, &total, degrees_of_freedom)?;
            let share = if weight > 0. { error / weight } else { 0. };
            let value = at_least_0(kl.get(0)?.to_scalar::<f64>()? - of_pairs);
            return Ok(Estimate { value, error: share });
        }
    }
    let kl = kl_in_f64(affinities, (&points, &rows), degrees_of_freedom.into(), sample)?;
    Ok(Estimate { value: at_least_0(kl.value - of_pairs), ..kl })
}

/// `Σ_ij (1 + |y_i − y_j|² / α)^−α` over the pairs of different rows, of which each point has so
/// many.
fn weight_of_all(points: &Tensor, counts: Option<&Tensor>, degrees_of_freedom: f32) -> Result<Estimate> {
    let ((n, n_dims), device) = (points.dims2()?, points.device());
    let exact = Repulsion::new(RepulsionMethod::Exact, n, n_dims, degrees_of_freedom, device)?;
    let (forces, total) = (points.zeros_like()?, Tensor::zeros(1, DType::F64, device)?);
    exact.repulsion_of_(&forces, &total, points, counts)?;
    Ok(Estimate::exact(total.get(0)?.to_scalar()?))
}

/// The same from the pairs of `sample` rows with all others.
fn weight_of_some(layout: &Tensor, degrees_of_freedom: f32, sample: usize) -> Result<Estimate> {
    let n = layout.dim(0)?;
    let points = gather_rows(layout, &spaced(n, sample))?;
    let (_, totals) = repulsion_at(&points, layout, degrees_of_freedom)?;
    // A point's own weight is 1.
    let of_others = |&total: &f32| f64::from(total - 1.).max(0.) * n as f64;
    let totals: Vec<f64> = totals.to_vec1::<f32>()?.iter().map(of_others).collect();
    Ok(Estimate::of(&totals, n))
}

/// No divergence is negative; NaN stays.
pub(in crate::tsne) fn at_least_0(kl: f64) -> f64 {
    if kl < 0. { 0. } else { kl }
}

/// [`kl_of_rows`] by logarithms in f64, for layouts of any size: of points, and of the rows that
/// are at them.
fn kl_in_f64(
    affinities: &Affinities,
    (points, rows): (&Tensor, &Tensor),
    alpha: f64,
    sample: usize,
) -> Result<Estimate> {
    let in_f64 = |t: &Tensor| t.to_device(&Device::Cpu)?.to_dtype(DType::F64)?.to_vec2::<f64>();
    let (host, rows) = (in_f64(points)?, in_f64(rows)?);
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
    let sample = if sample < rows.len() { sample.min(SAMPLE_IN_F64) } else { sample };
    let of_point = |&i: &u32| {
        let i = i as usize;
        let others = rows[..i].iter().chain(&rows[i + 1..]);
        others.map(|b| (log_weight(&rows[i], b), 1.)).fold(none, join)
    };
    let sums: Vec<(f64, f64)> = spaced(rows.len(), sample).par_iter().map(of_point).collect();
    let largest = sums.iter().map(|of| of.0).fold(f64::NEG_INFINITY, f64::max);
    let unit = |&(at, sum): &(f64, f64)| if sum > 0. { sum * (at - largest).exp() } else { 0. };
    let total = Estimate::of(&sums.iter().map(unit).collect::<Vec<_>>(), rows.len());
    let log_total = largest + (total.value * rows.len() as f64).ln();
    let of_row = |(i, a): (usize, &Vec<f64>)| {
        let edges = (offsets[i] as usize..offsets[i + 1] as usize).filter(|&e| values[e] > 0.);
        let term = |e: usize| {
            let p = f64::from(values[e]);
            p * (p.ln() + log_total - log_weight(a, &host[columns[e] as usize]))
        };
        edges.map(term).sum::<f64>()
    };
    let value = host.iter().enumerate().map(of_row).sum();
    Ok(Estimate { value, error: if total.value > 0. { total.error / total.value } else { 0. } })
}
