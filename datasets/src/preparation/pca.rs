//! Principal component analysis.
//!
//! ```text
//! C = E diag(λ) Eᵀ      covariance of the rows, λ_1 ≥ λ_2 ≥ …, e_j a row of `components`
//! y = Eᵀ (x - μ)        coordinates along the directions of most variance: [n_components]
//! x ≈ μ + E y           the nearest row within these directions
//! ```
//!
//! | symbol | method       | shape                        |
//! |--------|--------------|------------------------------|
//! | `μ`    | `mean`       | `[n_features]`               |
//! | `Eᵀ`   | `components` | `[n_components, n_features]` |
//! | `λ`    | `variance`   | `[n_components]`             |
//!
//! The covariance has divisor `n - 1`, and the largest entry of each `e_j` is positive, so that
//! signs do not depend on the solver. With unit variance in each direction it is
//! [`Whitening`](super::Whitening).
//!
//! Source: Jolliffe, "Principal component analysis", 2nd edition, Springer 2002.
//!
//! ```
//! use candle::{Device::Cpu, Tensor};
//! use chandlery_datasets::preparation::Pca;
//! # fn main() -> chandlery_datasets::Result<()> {
//! // Points near the line (1, 2).
//! let rows = Tensor::new(&[[0f32, 0.], [1., 2.], [2., 4.], [3., 6.1]], &Cpu)?;
//! let pca = Pca::fit(&rows, Some(1))?;
//! assert_eq!(pca.transform(&rows)?.dims(), [4, 1]);
//! assert!(pca.explained()? > 0.999);
//! # Ok(()) }
//! ```
use super::applied::Applied;
use super::checks::{applied_rows, stored, stored_number};
use super::krylov::{self, symmetric_eigen};
use super::moments::Moments;
use crate::{Error, Result};
use candle::{DType, Device, Module, Tensor};
use chandlery_ops::arrays::elementwise::{add, sub};
use std::collections::HashMap;

/// Residuals of directions that are found by products with the covariance, in largest variances.
const TOLERANCE: f64 = 1e-9;
/// The same of those that are found by products with rows that are held.
const HELD_TOLERANCE: f64 = 1e-7;
/// The same of those that are found by passes over the rows.
pub(super) const PASSES_TOLERANCE: f64 = 1e-5;

/// Features whose covariance is made, whatever the rows are; of more, directions are found by
/// products with the rows.
const MOST_SQUARE: usize = 4096;
/// The same where the rows can be held.
const MOST_SQUARE_HELD: usize = 1024;
/// Values of a block of rows.
const BLOCK_VALUES: usize = 8 << 20;
/// Values of rows that are held as f64, 1 GiB.
const MOST_HELD: usize = 1 << 27;

/// Whether the `k` directions of most variance are found faster by products with the rows than by
/// their covariance.
pub(super) fn by_rows(n_samples: usize, n_features: usize, k: usize) -> bool {
    let are_held = n_samples.saturating_mul(n_features) <= MOST_HELD;
    krylov::is_faster(n_features, k) && n_features > if are_held { MOST_SQUARE_HELD } else { MOST_SQUARE }
}

/// Directions of most variance; f64 on the CPU.
#[derive(Debug, Clone)]
pub(super) struct Principal {
    pub mean: Tensor,
    pub components: Tensor,
    pub variance: Tensor,
    /// `Σ λ` over all directions, kept or not.
    pub total: f64,
}

impl Principal {
    /// The `n_components` directions of most variance, or all.
    pub(super) fn of(moments: &Moments, n_components: Option<usize>) -> Result<Self> {
        let n_features = moments.n_features();
        check_components("Pca", n_components, n_features)?;
        let covariance = moments.covariance()?.to_device(&Device::Cpu)?;
        if !covariance.sum_all()?.to_scalar::<f64>()?.is_finite() {
            return Err(Error::Argument(
                "Pca: the covariance of the rows must be finite; scale the rows down".to_owned(),
            ));
        }
        let k = n_components.unwrap_or(n_features);
        let mean = moments.mean().to_device(&Device::Cpu)?;
        if krylov::is_faster(n_features, k) {
            let diagonal = covariance.flatten_all()?.to_vec1::<f64>()?.into_iter().step_by(n_features + 1);
            let total = diagonal.sum();
            let found = krylov::leading(n_features, k, TOLERANCE, |rows| Ok(rows.matmul(&covariance)?))?;
            return Self::found(mean, found.0, found.1.flatten_all()?.to_vec1()?, total);
        }
        let values = covariance.flatten_all()?.to_vec1::<f64>()?;
        let total = values.iter().step_by(n_features + 1).sum();
        let (mut variance, mut components) = symmetric_eigen(n_features, values)?;
        variance.truncate(k);
        components.truncate(k * n_features);
        Self::found(mean, variance, components, total)
    }

    /// The `n_components` directions of most variance of `rows`, `[n_samples, n_features]` f32 or
    /// f64, or all; `at` asks.
    pub(super) fn fit(at: &str, rows: &Tensor, n_components: Option<usize>) -> Result<Self> {
        let (n_samples, n_features) = applied_rows(at, "rows", rows, None)?;
        check_components("Pca", n_components, n_features)?;
        let k = n_components.unwrap_or(n_features);
        if !by_rows(n_samples, n_features, k) {
            let mut moments = Moments::new(n_features, rows.device())?;
            moments.add(rows)?;
            return Self::of(&moments, n_components);
        }
        let block = (BLOCK_VALUES / n_features).max(1);
        Self::of_rows(n_features, k, rows.device(), |f| {
            let firsts = (0..n_samples).step_by(block);
            firsts
                .map(|first| rows.narrow(0, first, block.min(n_samples - first)))
                .try_for_each(|rows| f(&rows?))
        })
    }

    /// The `k` directions of most variance by products with rows, f32 `[_, d]` on `device`, of which
    /// each call of `each` gives all, block by block: three times where they fit in 1 GiB of f64,
    /// else once for each product.
    pub(super) fn of_rows(
        d: usize,
        k: usize,
        device: &Device,
        each: impl Fn(&mut dyn FnMut(&Tensor) -> Result<()>) -> Result<()>,
    ) -> Result<Self> {
        // Sums over rows, and the mean in each row, are products with ones, which use all cores.
        let ones = |rows: &Tensor| Tensor::ones((1, rows.dim(0)?), DType::F64, device);
        let (mut n, mut sum) = (0, Tensor::zeros((1, d), DType::F64, device)?);
        each(&mut |rows| {
            n += rows.dim(0)?;
            sum = add(&sum, &ones(rows)?.matmul(&rows.to_dtype(DType::F64)?)?)?;
            Ok(())
        })?;
        if n < 2 {
            return Err(Error::Argument(format!("Pca: a covariance needs at least 2 rows, got {n}")));
        }
        let mean = (sum / n as f64)?;
        let centred = |rows: &Tensor| sub(&rows.to_dtype(DType::F64)?, &ones(rows)?.t()?.matmul(&mean)?);
        let are_held = n.saturating_mul(d) <= MOST_HELD;
        let (mut held, mut total) = (Vec::new(), 0.);
        each(&mut |rows| {
            let rows = centred(rows)?;
            let flat = rows.flatten_all()?;
            total +=
                flat.unsqueeze(0)?.matmul(&flat.unsqueeze(1)?)?.flatten_all()?.get(0)?.to_scalar::<f64>()?;
            held.extend(are_held.then_some(rows));
            Ok(())
        })?;
        if !total.is_finite() {
            return Err(Error::Argument("Pca: rows must be finite; replace or drop other values".to_owned()));
        }
        let of_one = 1. / (n - 1) as f64;
        let tolerance = if are_held { HELD_TOLERANCE } else { PASSES_TOLERANCE };
        let (variance, directions) = krylov::leading(d, k, tolerance, |v| {
            let v = v.to_device(device)?;
            let mut product = v.zeros_like()?;
            let mut accumulate = |rows: &Tensor| -> Result<()> {
                product = add(&product, &v.matmul(&rows.t()?)?.matmul(rows)?)?;
                Ok(())
            };
            match are_held {
                true => held.iter().try_for_each(accumulate)?,
                false => each(&mut |rows| accumulate(&centred(rows)?))?,
            }
            Ok((product * of_one)?.to_device(&Device::Cpu)?)
        })?;
        let mean = mean.squeeze(0)?.to_device(&Device::Cpu)?;
        Self::found(mean, variance, directions.flatten_all()?.to_vec1()?, total * of_one)
    }

    /// Of variances, and directions of any sign, one after the other.
    pub(super) fn found(
        mean: Tensor,
        mut variance: Vec<f64>,
        mut components: Vec<f64>,
        total: f64,
    ) -> Result<Self> {
        let n_features = mean.elem_count();
        for direction in components.chunks_exact_mut(n_features) {
            let largest = direction.iter().fold(0f64, |most, &e| if e.abs() > most.abs() { e } else { most });
            direction.iter_mut().for_each(|e| *e *= largest.signum());
        }
        // Rounding may leave a variance of zero slightly below it.
        variance.iter_mut().for_each(|v| *v = v.max(0.));
        let k = variance.len();
        let components = Tensor::from_vec(components, (k, n_features), &Device::Cpu)?;
        Ok(Self { mean, components, variance: Tensor::from_vec(variance, k, &Device::Cpu)?, total })
    }

    pub(super) fn n_features(&self) -> usize {
        self.mean.elem_count()
    }

    /// Mean and components, where and as rows are.
    fn there(&self, dtype: DType, device: &Device) -> candle::Result<[Tensor; 2]> {
        let there = |t: &Tensor| t.to_dtype(dtype)?.to_device(device)?.contiguous();
        Ok([there(&self.mean)?, there(&self.components)?])
    }

    pub(super) fn n_components(&self) -> usize {
        self.variance.elem_count()
    }

    pub(super) fn named(&self) -> candle::Result<[(&'static str, Tensor); 4]> {
        Ok([
            ("mean", self.mean.clone()),
            ("components", self.components.clone()),
            ("variance", self.variance.clone()),
            ("total_variance", Tensor::new(&[self.total], &Device::Cpu)?),
        ])
    }

    pub(super) fn stored(tensors: &HashMap<String, Tensor>, prefix: &str) -> Result<Self> {
        let mean = stored(tensors, prefix, "mean", &[None])?;
        let components = stored(tensors, prefix, "components", &[None, Some(mean.elem_count())])?;
        let variance = stored(tensors, prefix, "variance", &[Some(components.dim(0)?)])?;
        let total = stored_number(tensors, prefix, "total_variance")?;
        Ok(Self { mean, components, variance, total })
    }
}

/// Refuses a number of components that is 0 or above the number of features.
pub(super) fn check_components(at: &str, n_components: Option<usize>, n_features: usize) -> Result<()> {
    match n_components {
        Some(n) if n == 0 || n > n_features => Err(Error::Argument(format!(
            "{at}: n_components must be between 1 and n_features = {n_features}, got {n}"
        ))),
        _ => Ok(()),
    }
}

/// Fitted principal components; the statistics are f64 on the CPU, rows are f32 or f64 on the
/// device it was fitted or loaded for.
#[derive(Debug, Clone)]
pub struct Pca {
    principal: Principal,
    /// `μ`, `[n_features]`, and `Eᵀ`, `[n_components, n_features]`, on the device.
    applied: Applied<[Tensor; 2]>,
}

impl Pca {
    /// Fits to `rows`, `[n_samples, n_features]` f32 or f64, and stays on their device; keeps the
    /// `n_components` directions of most variance, or all.
    ///
    /// `n_samples·n_features²` multiplications for the covariance, and some `10·n_features³` for
    /// its eigenvectors, or `500·n_features²` where few are kept. Few directions of more than 1,024
    /// features (4,096 where the rows take more than 1 GiB of f64) cost some hundred multiplications
    /// a value.
    ///
    /// # Errors
    /// When `rows` has another shape or type, fewer than two rows, a NaN or an infinity, or fewer
    /// than `n_components` features.
    pub fn fit(rows: &Tensor, n_components: Option<usize>) -> Result<Self> {
        Self::on(Principal::fit("Pca::fit", rows, n_components)?, rows.device())
    }

    /// Fits to rows that were gathered in [`Moments`], for data that do not fit in memory; stays on
    /// their device.
    ///
    /// # Errors
    /// As [`Pca::fit`].
    pub fn from_moments(moments: &Moments, n_components: Option<usize>) -> Result<Self> {
        Self::on(Principal::of(moments, n_components)?, moments.mean().device())
    }

    pub(super) fn on(principal: Principal, device: &Device) -> Result<Self> {
        Ok(Self { applied: Applied::new(principal.there(DType::F32, device)?), principal })
    }

    /// `μ` and `Eᵀ` in the type of `rows`.
    fn applied_to(&self, rows: &Tensor) -> Result<&[Tensor; 2]> {
        self.applied.of(rows.dtype(), || Ok(self.principal.there(DType::F64, self.device())?))
    }

    /// The same for rows on `device`.
    ///
    /// # Errors
    /// When the device has no room.
    pub fn to_device(&self, device: &Device) -> Result<Self> {
        Self::on(self.principal.clone(), device)
    }

    /// `y` of `rows`: `[n, n_features]` f32 or f64 to `[n, n_components]` of the same type.
    ///
    /// # Errors
    /// When `rows` has another shape, type or device.
    pub fn transform(&self, rows: &Tensor) -> Result<Tensor> {
        applied_rows("Pca.transform", "rows", rows, Some(self.n_features()))?;
        let [mean, components] = self.applied_to(rows)?;
        Ok(sub(rows, mean)?.matmul(&components.t()?)?)
    }

    /// `μ + E y` of `coordinates`: `[n, n_components]` f32 or f64 to `[n, n_features]` of the same
    /// type.
    ///
    /// # Errors
    /// When `coordinates` has another shape, type or device.
    pub fn inverse(&self, coordinates: &Tensor) -> Result<Tensor> {
        applied_rows("Pca.inverse", "coordinates", coordinates, Some(self.n_components()))?;
        let [mean, components] = self.applied_to(coordinates)?;
        Ok(add(&coordinates.matmul(components)?, mean)?)
    }

    /// The share of the variance that lies in the directions kept, in `[0, 1]`; 1 for rows that do
    /// not vary.
    ///
    /// # Errors
    /// Only when memory is short.
    pub fn explained(&self) -> Result<f64> {
        let kept: f64 = self.principal.variance.sum_all()?.to_scalar()?;
        Ok(if self.principal.total > 0. { (kept / self.principal.total).min(1.) } else { 1. })
    }

    /// Where rows are transformed.
    pub fn device(&self) -> &Device {
        self.applied.single()[0].device()
    }

    /// Values in a row.
    pub fn n_features(&self) -> usize {
        self.principal.n_features()
    }

    /// Directions kept.
    pub fn n_components(&self) -> usize {
        self.principal.n_components()
    }

    /// `μ`, `[n_features]`, f64 on the CPU.
    pub fn mean(&self) -> &Tensor {
        &self.principal.mean
    }

    /// `Eᵀ`, orthonormal rows, `[n_components, n_features]`, f64 on the CPU.
    pub fn components(&self) -> &Tensor {
        &self.principal.components
    }

    /// `λ`, descending, in squared units of the rows, `[n_components]`, f64 on the CPU.
    pub fn variance(&self) -> &Tensor {
        &self.principal.variance
    }

    /// What to save with a model, f64 on the CPU: `{prefix}.mean`, `.components`, `.variance` and
    /// `.total_variance` (`[1]`).
    ///
    /// # Errors
    /// Only when memory is short.
    pub fn tensors(&self, prefix: &str) -> Result<HashMap<String, Tensor>> {
        let named = self.principal.named()?.into_iter();
        Ok(named.map(|(name, tensor)| (format!("{prefix}.{name}"), tensor)).collect())
    }

    /// Back from [`Pca::tensors`], for rows on `device`; transforms to the same bits as the one
    /// that was saved.
    ///
    /// # Errors
    /// When a tensor is missing, or its shape, type or values are not those of principal
    /// components.
    pub fn from_tensors(tensors: &HashMap<String, Tensor>, prefix: &str, device: &Device) -> Result<Self> {
        Self::on(Principal::stored(tensors, prefix)?, device)
    }
}

impl Module for Pca {
    fn forward(&self, rows: &Tensor) -> candle::Result<Tensor> {
        self.transform(rows).map_err(candle::Error::wrap)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use chandlery_ops::Philox;
    use chandlery_ops::core::normal;

    /// Rows far from 0 whose values lie near `rank` directions, each weaker than the one before.
    fn rows(n: usize, d: usize, rank: usize) -> Tensor {
        let draw =
            |shape: (usize, usize), stream| normal(shape, &Device::Cpu, Philox::new(3, stream)).unwrap();
        let scales =
            Tensor::new((1..=rank).map(|i| 9. / i as f32).collect::<Vec<_>>(), &Device::Cpu).unwrap();
        let along = draw((n, rank), 0).broadcast_mul(&scales).unwrap();
        let near = along.matmul(&draw((rank, d), 1)).unwrap();
        ((near + (draw((n, d), 2) * 0.5).unwrap()).unwrap() + 1000.).unwrap()
    }

    #[test]
    fn products_with_rows_find_the_directions_of_the_covariance() {
        let (n, d, k) = (200, 1100, 8);
        let x = rows(n, d, 12);
        assert!(
            by_rows(n, d, k) && !by_rows(n, 1000, k) && !by_rows(200_000, 1100, k) && by_rows(n, 5000, k)
        );
        let mut moments = Moments::new(d, &Device::Cpu).unwrap();
        moments.add(&x).unwrap();
        let want = Principal::of(&moments, Some(k)).unwrap();
        let got = Pca::fit(&x, Some(k)).unwrap().principal;
        let off = |a: &Tensor, b: &Tensor| {
            let largest = |t: &Tensor| t.abs().unwrap().max_all().unwrap().to_scalar::<f64>().unwrap();
            largest(&(a - b).unwrap()) / largest(b)
        };
        assert!(off(&got.mean, &want.mean) < 1e-12);
        assert!(off(&got.variance, &want.variance) < 1e-9);
        // Each direction of one is, to 1e-4, among those of the other.
        let overlap = got.components.matmul(&want.components.t().unwrap()).unwrap();
        let lost = overlap.sqr().unwrap().sum(1).unwrap().to_vec1::<f64>().unwrap();
        assert!(lost.iter().all(|kept| (1. - kept).abs() < 1e-8), "{lost:?}");
        assert!((got.total / want.total - 1.).abs() < 1e-9);
    }
}
