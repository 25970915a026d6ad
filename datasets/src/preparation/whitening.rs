//! PCA and ZCA whitening.
//!
//! ```text
//! C = E diag(λ) Eᵀ                    covariance of the rows, λ_1 ≥ λ_2 ≥ …, e_j a row of `components`
//! s_j = 1 / √(λ_j + ε)
//! PCA: y = diag(s) Eᵀ (x - μ)         decorrelated, strongest direction first: [n_components]
//! ZCA: y = E diag(s) Eᵀ (x - μ)       turned back to where the pixels are: [n_features]
//! inverse: x = μ + E diag(1/s) y      (PCA)      x = μ + E diag(1/s) Eᵀ y      (ZCA)
//! ```
//!
//! | symbol | field        | shape                        |
//! |--------|--------------|------------------------------|
//! | `μ`    | `mean`       | `[n_features]`               |
//! | `Eᵀ`   | `components` | `[n_components, n_features]` |
//! | `λ`    | `variance`   | `[n_components]`             |
//! | `ε`    | `epsilon`    | a number                     |
//!
//! Source: Bell & Sejnowski, "The 'independent components' of natural scenes are edge filters",
//! Vision Research 37, 1997 (ZCA); Ng et al., UFLDL, "Whitening" (ε). Departures: the covariance
//! has divisor `n - 1`; a direction whose `λ + ε` is within the rounding noise of f32 rows gets
//! `s = 1/s = 0` (the pseudo-inverse), so that rank-deficient rows, such as patches without their
//! mean at `ε = 0`, make no infinities; the largest entry of each `e_j` is positive, so that signs
//! do not depend on the solver.
use super::applied::Applied;
use super::checks::{applied_rows, rows_of, stored_number};
use super::moments::Moments;
use super::pca::{Principal, check_components};
use crate::{Error, Result};
use candle::{DType, Device, Module, Tensor};
use chandlery_ops::arrays::elementwise::{add, sub};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// Which of the whitening matrices.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WhiteningKind {
    /// Decorrelated coordinates, those of most variance first.
    Pca,
    /// The whitening that changes the rows least: patches still look like patches.
    #[default]
    Zca,
}

/// How to whiten.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WhiteningConfig {
    /// Default ZCA, after which filters can be looked at as images.
    pub kind: WhiteningKind,
    /// Added to each variance, at least 0, in squared units of the rows: directions of less
    /// variance than this are damped. Default 1e-5, UFLDL's for rows within [-1, 1]; 0 gives
    /// covariance 1 exactly, and with it full-size noise.
    pub epsilon: f64,
    /// Directions kept, those of most variance, between 1 and `n_features`; default all.
    pub n_components: Option<usize>,
}

impl Default for WhiteningConfig {
    fn default() -> Self {
        Self { kind: WhiteningKind::default(), epsilon: 1e-5, n_components: None }
    }
}

/// A fitted whitening; the statistics are f64 on the CPU, rows are f32 or f64 on the device it was
/// fitted or loaded for.
#[derive(Debug, Clone)]
pub struct Whitening {
    fitted: Fitted,
    applied: Applied<Matrices>,
}

/// What was found, f64 on the CPU.
#[derive(Debug, Clone)]
struct Fitted {
    kind: WhiteningKind,
    epsilon: f64,
    principal: Principal,
}

/// The same in the form that rows meet: in their type, on their device.
#[derive(Debug, Clone)]
struct Matrices {
    mean: Tensor,
    /// `[n_features, n_outputs]`, so that `rows · forward` whitens.
    forward: Tensor,
    /// `[n_outputs, n_features]`.
    backward: Tensor,
}

impl Whitening {
    /// Fits to `rows`, `[n_samples, n_features]` f32, and stays on their device.
    ///
    /// Costs what [`Pca::fit`](super::Pca::fit) does.
    ///
    /// # Errors
    /// When `rows` has another shape or type, fewer than two rows, a NaN or an infinity; or
    /// `config` is out of range.
    pub fn fit(rows: &Tensor, config: &WhiteningConfig) -> Result<Self> {
        let (_, n_features) = rows_of("Whitening::fit", "rows", rows, None)?;
        config.validate(n_features)?;
        let principal = Principal::fit("Whitening::fit", rows, config.n_components)?;
        Self::of(principal, config)?.to_device(rows.device())
    }

    /// Fits to rows that were gathered in [`Moments`], for data that do not fit in memory; stays on
    /// their device.
    ///
    /// # Errors
    /// As [`Whitening::fit`].
    pub fn from_moments(moments: &Moments, config: &WhiteningConfig) -> Result<Self> {
        config.validate(moments.n_features())?;
        let principal = Principal::of(moments, config.n_components)?;
        Self::of(principal, config)?.to_device(moments.mean().device())
    }

    /// By directions that were found, for rows on the CPU.
    pub(super) fn of(principal: Principal, config: &WhiteningConfig) -> Result<Self> {
        Fitted { kind: config.kind, epsilon: config.epsilon, principal }.on(&Device::Cpu)
    }

    /// The same whitening for rows on `device`.
    ///
    /// # Errors
    /// When the device has no room.
    pub fn to_device(&self, device: &Device) -> Result<Self> {
        self.fitted.clone().on(device)
    }

    /// `y` of `rows`: `[n, n_features]` f32 or f64 to `[n, n_outputs]` of the same type.
    ///
    /// # Errors
    /// When `rows` has another shape, type or device.
    pub fn transform(&self, rows: &Tensor) -> Result<Tensor> {
        applied_rows("Whitening.transform", "rows", rows, Some(self.n_features()))?;
        let Matrices { mean, forward, .. } = self.applied_to(rows)?;
        Ok(sub(rows, mean)?.matmul(forward)?)
    }

    /// `x` of `whitened`: `[n, n_outputs]` f32 or f64 to `[n, n_features]` of the same type.
    ///
    /// Undoes [`Whitening::transform`] when all components were kept; else gives the nearest rows
    /// within those kept.
    ///
    /// # Errors
    /// When `whitened` has another shape, type or device.
    pub fn inverse(&self, whitened: &Tensor) -> Result<Tensor> {
        applied_rows("Whitening.inverse", "whitened", whitened, Some(self.n_outputs()))?;
        let Matrices { mean, backward, .. } = self.applied_to(whitened)?;
        Ok(add(&whitened.matmul(backward)?, mean)?)
    }

    /// `W` of `y = W (x - μ)`: `[n_outputs, n_features]`, f64 on the CPU; symmetric for ZCA.
    ///
    /// # Errors
    /// Only when memory is short.
    pub fn matrix(&self) -> Result<Tensor> {
        Ok(self.fitted.matrix()?)
    }

    /// `V` of `x = μ + V y`: `[n_features, n_outputs]`, f64 on the CPU; the pseudo-inverse of
    /// [`Whitening::matrix`].
    ///
    /// # Errors
    /// Only when memory is short.
    pub fn inverse_matrix(&self) -> Result<Tensor> {
        Ok(self.fitted.inverse_matrix()?)
    }

    /// Where rows are whitened.
    pub fn device(&self) -> &Device {
        self.applied.single().mean.device()
    }

    fn applied_to(&self, rows: &Tensor) -> Result<&Matrices> {
        self.applied.of(rows.dtype(), || Ok(self.fitted.matrices(DType::F64, self.device())?))
    }

    /// Which whitening this is.
    pub fn kind(&self) -> WhiteningKind {
        self.fitted.kind
    }

    /// `ε`.
    pub fn epsilon(&self) -> f64 {
        self.fitted.epsilon
    }

    /// Values in a row.
    pub fn n_features(&self) -> usize {
        self.fitted.principal.n_features()
    }

    /// Directions kept.
    pub fn n_components(&self) -> usize {
        self.fitted.principal.n_components()
    }

    /// Values in a whitened row: `n_components` for PCA, `n_features` for ZCA.
    pub fn n_outputs(&self) -> usize {
        match self.fitted.kind {
            WhiteningKind::Pca => self.n_components(),
            WhiteningKind::Zca => self.n_features(),
        }
    }

    /// `μ`, `[n_features]`, f64 on the CPU.
    pub fn mean(&self) -> &Tensor {
        &self.fitted.principal.mean
    }

    /// `Eᵀ`, orthonormal rows, `[n_components, n_features]`, f64 on the CPU.
    pub fn components(&self) -> &Tensor {
        &self.fitted.principal.components
    }

    /// `λ`, descending, `[n_components]`, f64 on the CPU.
    pub fn variance(&self) -> &Tensor {
        &self.fitted.principal.variance
    }

    /// What to save with a model, f64 on the CPU: `{prefix}.mean`, `.components`, `.variance`,
    /// `.total_variance` (`[1]`), `.epsilon` (`[1]`) and `.zca` (`[1]`, 1 for ZCA, 0 for PCA).
    ///
    /// # Errors
    /// Only when memory is short.
    pub fn tensors(&self, prefix: &str) -> Result<HashMap<String, Tensor>> {
        let number = |x: f64| Tensor::new(&[x], &Device::Cpu);
        let zca = f64::from(u8::from(self.fitted.kind == WhiteningKind::Zca));
        let own = [("epsilon", number(self.fitted.epsilon)?), ("zca", number(zca)?)];
        let named = self.fitted.principal.named()?.into_iter().chain(own);
        Ok(named.map(|(name, tensor)| (format!("{prefix}.{name}"), tensor)).collect())
    }

    /// Back from [`Whitening::tensors`], for rows on `device`; transforms to the same bits as the
    /// one that was saved.
    ///
    /// # Errors
    /// When a tensor is missing, or its shape, type or values are not those of a whitening.
    pub fn from_tensors(tensors: &HashMap<String, Tensor>, prefix: &str, device: &Device) -> Result<Self> {
        let principal = Principal::stored(tensors, prefix)?;
        let epsilon = stored_number(tensors, prefix, "epsilon")?;
        let kind = match stored_number(tensors, prefix, "zca")? {
            0. => WhiteningKind::Pca,
            _ => WhiteningKind::Zca,
        };
        let fitted = Fitted { kind, epsilon, principal };
        fitted.on(device)
    }
}

impl Fitted {
    fn on(self, device: &Device) -> Result<Whitening> {
        Ok(Whitening { applied: Applied::new(self.matrices(DType::F32, device)?), fitted: self })
    }

    fn matrices(&self, dtype: DType, device: &Device) -> candle::Result<Matrices> {
        let there = |t: &Tensor| t.to_dtype(dtype)?.to_device(device)?.contiguous();
        Ok(Matrices {
            mean: there(&self.principal.mean)?,
            forward: there(&self.matrix()?.t()?)?,
            backward: there(&self.inverse_matrix()?.t()?)?,
        })
    }

    fn matrix(&self) -> candle::Result<Tensor> {
        let scaled = self.principal.components.broadcast_mul(&self.scales(|s| 1. / s)?)?;
        match self.kind {
            WhiteningKind::Pca => Ok(scaled),
            WhiteningKind::Zca => self.principal.components.t()?.matmul(&scaled),
        }
    }

    fn inverse_matrix(&self) -> candle::Result<Tensor> {
        let scaled = self.principal.components.broadcast_mul(&self.scales(|s| s)?)?.t()?;
        match self.kind {
            WhiteningKind::Pca => Ok(scaled),
            WhiteningKind::Zca => scaled.matmul(&self.principal.components),
        }
    }

    /// `f(√(λ + ε))` as a column, 0 where `λ + ε` is noise.
    fn scales(&self, f: impl Fn(f64) -> f64) -> candle::Result<Tensor> {
        let variance = self.principal.variance.to_vec1::<f64>()?;
        let largest = variance.first().copied().unwrap_or(0.);
        let noise = noise_variance(largest, self.principal.n_features());
        let scale = |&v: &f64| match v + self.epsilon {
            v if v > noise => f(v.sqrt()),
            _ => 0.,
        };
        let scales: Vec<f64> = variance.iter().map(scale).collect();
        Tensor::from_vec(scales, (variance.len(), 1), &Device::Cpu)
    }
}

impl Module for Whitening {
    fn forward(&self, rows: &Tensor) -> candle::Result<Tensor> {
        self.transform(rows).map_err(candle::Error::wrap)
    }
}

impl WhiteningConfig {
    pub(super) fn validate(&self, n_features: usize) -> Result<()> {
        let &Self { kind: _, epsilon, n_components } = self;
        if !(epsilon.is_finite() && epsilon >= 0.) {
            return Err(Error::Argument(format!(
                "WhiteningConfig: epsilon must be a finite number of at least 0, got {epsilon}"
            )));
        }
        check_components("WhiteningConfig", n_components, n_features)
    }
}

/// The variance below which a direction holds only the rounding of f32 rows: each of `n_features`
/// values is known to a part in 2²³ of the largest.
fn noise_variance(largest: f64, n_features: usize) -> f64 {
    largest * n_features as f64 * f64::from(f32::EPSILON).powi(2)
}
