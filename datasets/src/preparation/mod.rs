//! What is done to raw rows before a model reads them.
//!
//! A [`Preparation`] is fitted once to the training rows and saved with the model, so that raw rows go in at inference as in training:
//!
//! ```text
//! raw rows, u8 or float ──× 1/255 (bytes)──▶ step 1 ──▶ step 2 ──▶ … ──▶ what the model reads
//! ```
//!
//! | step                                      | what it does                                   | fitted | source                       |
//! |-------------------------------------------|------------------------------------------------|--------|------------------------------|
//! | [`Scale`](StepConfig::Scale)              | `c x`                                          | no     |                              |
//! | [`UnitVariance`](StepConfig::UnitVariance) | `x / σ`, one `σ` for all features             | yes    |                              |
//! | [`Center`](StepConfig::Center)            | `x - μ`, the mean of each feature              | yes    |                              |
//! | [`Standardise`](StepConfig::Standardise)  | each column to mean 0 and deviation 1          | yes    |                              |
//! | [`MinMax`](StepConfig::MinMax)            | each column onto [0, 1]                        | yes    |                              |
//! | [`Robust`](StepConfig::Robust)            | each column by its median and quartiles        | yes    |                              |
//! | [`Log1p`](StepConfig::Log1p)              | `ln(1 + x)`                                    | no     |                              |
//! | [`RowSum`](StepConfig::RowSum)            | `T x / Σ abs(x)`, each row its own sum         | no     | Luecken & Theis 2019         |
//! | [`RowMean`](StepConfig::RowMean)          | `x - mean(x)`, each row its own mean           | no     | Ng et al., UFLDL             |
//! | [`Contrast`](StepConfig::Contrast)        | `(x - mean(x)) / √(var(x) + c)`                | no     | Coates & Ng 2012, section 2  |
//! | [`Rescale`](StepConfig::Rescale)          | row mean removed, ±3σ clipped, onto [0.1, 0.9] | yes    | Ng, CS294A 2011; UFLDL       |
//! | [`Pca`](StepConfig::Pca)                  | coordinates along the directions of most variance | yes | Jolliffe 2002                |
//! | [`Whiten`](StepConfig::Whiten)            | PCA or ZCA: unit covariance                    | yes    | Bell & Sejnowski 1997; UFLDL |
//!
//! Each step is also there alone: [`Pca`], [`Whitening`], [`TutorialRescale`], [`remove_mean`], [`normalize_contrast`].
//!
//! ```
//! use candle::Device::Cpu;
//! use chandlery_datasets::preparation::{Preparation, StepConfig, WhiteningConfig};
//! use chandlery_datasets::{Split, embedded};
//! # fn main() -> chandlery_datasets::Result<()> {
//! let digits = embedded::mnist_sample()?.train.take(500)?;
//! let preparation = Preparation::fit(&digits, &[StepConfig::RowMean, StepConfig::Pca { n_components: 20 }], 1)?;
//! let rows = digits.raw(&Cpu)?; // bytes
//! assert_eq!(preparation.apply(&rows)?.dims(), [500, 20]);
//! # Ok(()) }
//! ```
mod applied;
mod columns;
mod fit;
mod krylov;
mod moments;
mod normalize;
mod pca;
mod sparse;
mod statistics;
mod step;
mod stored;
mod whitening;

pub use moments::Moments;
pub use normalize::{CONTRAST_REGULARISER, TutorialRescale, normalize_contrast, remove_mean};
pub use pca::Pca;
pub use statistics::RowStatistics;
pub use step::StepConfig;
pub use whitening::{Whitening, WhiteningConfig, WhiteningKind};

use crate::{Error, Result, RowType};
use candle::{DType, Device, Tensor};
use std::collections::HashMap;
use step::Step;

/// What is done to raw rows before a model reads them; see the [module](self).
///
/// The default leaves floats as they are and multiplies bytes by 1/255.
#[derive(Debug, Clone)]
pub struct Preparation {
    byte_scale: f64,
    steps: Vec<Step>,
}

impl Default for Preparation {
    fn default() -> Self {
        Self { byte_scale: RowType::U8.scale(), steps: Vec::new() }
    }
}

/// Alike when they do the same to every row.
impl PartialEq for Preparation {
    fn eq(&self, other: &Self) -> bool {
        self.byte_scale == other.byte_scale && self.steps == other.steps
    }
}

impl Preparation {
    /// Multiplies rows by `factor`, after bytes were multiplied by 1/255.
    ///
    /// # Errors
    /// When `factor` is not a finite number above 0.
    pub fn scale(factor: f64) -> Result<Self> {
        Self::of(&[StepConfig::Scale(factor)])
    }

    /// Takes bytes as the numbers 0 to 255: multiplies them by 1 in place of 1/255.
    #[must_use]
    pub fn of_byte_levels(self) -> Self {
        Self { byte_scale: 1., ..self }
    }

    /// What bytes are multiplied by before the first step: 1/255, or 1 where they count as 0 to 255.
    pub fn byte_scale(&self) -> f64 {
        self.byte_scale
    }

    /// Whether it is the default: no steps, and bytes multiplied by 1/255.
    pub fn is_default(&self) -> bool {
        self.steps.is_empty() && self.byte_scale == RowType::U8.scale()
    }

    /// What the model reads of raw `rows`: `[n, n_inputs]` of u8, f16, bf16, f32 or f64 to `[n, n_outputs]` of the same float type, f32 for
    /// bytes.
    ///
    /// # Errors
    /// As [`apply_as`](Self::apply_as).
    pub fn apply(&self, rows: &Tensor) -> Result<Tensor> {
        self.apply_from(0, rows)
    }

    /// The same in the float type `dtype`, that of a model. It is computed in f64 where that or the rows are f64, else in f32.
    ///
    /// Differentiable for float rows where no value is clipped. Fitted numbers are taken to the device of the rows where they are
    /// not there; [`to_device`](Self::to_device) does it once.
    ///
    /// # Errors
    /// When `rows` have another shape, type or device than the steps need, a value has no logarithm where one is taken, or `dtype` is no float
    /// type; the message counts rows from the first of `rows`.
    pub fn apply_as(&self, rows: &Tensor, dtype: DType) -> Result<Tensor> {
        self.apply_at(0, rows, dtype)
    }

    /// [`apply`](Self::apply) for rows of a larger whole, of which `first_row` is the first: messages count rows from the beginning of that.
    ///
    /// # Errors
    /// As [`apply_as`](Self::apply_as).
    pub fn apply_from(&self, first_row: usize, rows: &Tensor) -> Result<Tensor> {
        self.apply_at(first_row, rows, if rows.dtype() == DType::U8 { DType::F32 } else { rows.dtype() })
    }

    fn apply_at(&self, first_row: usize, rows: &Tensor, dtype: DType) -> Result<Tensor> {
        let (from, floats) = (rows.dtype(), [DType::F16, DType::BF16, DType::F32, DType::F64]);
        if !floats.contains(&dtype) || !floats.contains(&from) && from != DType::U8 {
            return Err(Error::Argument(format!(
                "Preparation: rows must be u8, f16, bf16, f32 or f64, to be read as one of the last four, got {from:?} to be read as {dtype:?}; \
                 convert them first"
            )));
        }
        let wide = if [from, dtype].contains(&DType::F64) { DType::F64 } else { DType::F32 };
        let mut factor = if from == DType::U8 { self.byte_scale } else { 1. };
        let mut x = rows.to_dtype(wide)?;
        for step in &self.steps {
            match step {
                // Factors in a row are one in f64: 255 and 1/255 are nothing.
                Step::Scale(c) => factor *= c,
                step => x = step.apply(first_row, &scaled(x, std::mem::replace(&mut factor, 1.))?)?,
            }
        }
        Ok(scaled(x, factor)?.to_dtype(dtype)?)
    }

    /// The one number that raw rows of this type are multiplied by; none when more is done to them.
    pub fn as_scale(&self, dtype: DType) -> Option<f64> {
        let bytes = if dtype == DType::U8 { self.byte_scale } else { 1. };
        self.steps.iter().try_fold(bytes, |factor, step| match step {
            Step::Scale(c) => Some(factor * c),
            _ => None,
        })
    }

    /// Raw float rows of what a model reads, as far as that is known: `[n, n_outputs]` to `[n, n_inputs]`.
    ///
    /// What each row lost of its own (its mean, its contrast, what was clipped, directions that were dropped) stays lost. Of the type of
    /// `prepared`; computed in f64 for that type, else in f32.
    ///
    /// # Errors
    /// When `prepared` have another shape, type or device.
    pub fn inverse(&self, prepared: &Tensor) -> Result<Tensor> {
        let wide = if prepared.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
        let raw = self.steps.iter().rev().try_fold(prepared.to_dtype(wide)?, |x, step| step.inverse(&x))?;
        Ok(raw.to_dtype(prepared.dtype())?)
    }

    /// Values in a raw row, for a model that reads `n_outputs`.
    ///
    /// # Errors
    /// When the steps give rows of another width.
    pub fn n_inputs(&self, n_outputs: usize) -> Result<usize> {
        self.steps.iter().rev().try_fold(n_outputs, |after, step| match step.widths() {
            None => Ok(after),
            Some((before, got)) if got == after => Ok(before),
            Some((_, got)) => Err(Error::Argument(format!(
                "Preparation: {} gives rows of {got} values, where {after} are needed",
                step.words()
            ))),
        })
    }

    /// Values that a model reads of a raw row of `n_inputs`.
    ///
    /// # Errors
    /// When a step is for rows of another width.
    pub fn n_outputs(&self, n_inputs: usize) -> Result<usize> {
        self.steps.iter().try_fold(n_inputs, |before, step| match step.widths() {
            None => Ok(before),
            Some((want, after)) if want == before => Ok(after),
            Some((want, _)) => Err(Error::Argument(format!(
                "Preparation: {} is for rows of {want} values, got {before}",
                step.words()
            ))),
        })
    }

    /// The same with its fitted numbers on `device`.
    ///
    /// # Errors
    /// When the device has no room.
    pub fn to_device(&self, device: &Device) -> Result<Self> {
        let steps = self.steps.iter().map(|step| step.to_device(device));
        Ok(Self { steps: steps.collect::<Result<_>>()?, ..*self })
    }

    /// Whether every value has an image: without logarithms.
    pub fn takes_all_values(&self) -> bool {
        !self.steps.iter().any(|step| matches!(step, Step::Log1p))
    }

    /// The same without its last step, where that subtracts from each row its own mean; none for others.
    pub fn without_last_row_mean(&self) -> Option<Self> {
        match self.steps.split_last() {
            Some((Step::RowMean, before)) => Some(Self { steps: before.to_vec(), ..*self }),
            _ => None,
        }
    }

    /// The steps in words, in order; empty for the default.
    pub fn words(&self) -> Vec<String> {
        self.steps.iter().map(Step::words).collect()
    }
}

fn scaled(x: Tensor, factor: f64) -> Result<Tensor> {
    Ok(if factor == 1. { x } else { x.affine(factor, 0.)? })
}

/// The check of rows that a step is fitted to: `name` must be `[n, n_features]` of f32, returned as `(n, n_features)`.
fn rows_of(at: &str, name: &str, rows: &Tensor, n_features: Option<usize>) -> Result<(usize, usize)> {
    checked_rows(at, name, rows, n_features, &[DType::F32])
}

/// The check of rows that a step is applied to: `name` must be `[n, n_features]` of f32 or f64.
fn applied_rows(at: &str, name: &str, rows: &Tensor, n_features: Option<usize>) -> Result<()> {
    checked_rows(at, name, rows, n_features, &[DType::F32, DType::F64]).map(drop)
}

fn checked_rows(
    at: &str,
    name: &str,
    rows: &Tensor,
    n_features: Option<usize>,
    dtypes: &[DType],
) -> Result<(usize, usize)> {
    let fits = match *rows.dims() {
        [n, f] if f > 0 && n_features.is_none_or(|want| want == f) => Some((n, f)),
        _ => None,
    };
    match fits {
        Some(dims) if dtypes.contains(&rows.dtype()) => Ok(dims),
        _ => {
            let width = n_features.map_or_else(|| "n_features".to_owned(), |f| f.to_string());
            let names = dtypes.iter().map(|dtype| dtype.as_str()).collect::<Vec<_>>().join(" or ");
            Err(Error::Argument(format!(
                "{at}: {name} must be {names} of shape [n_samples, {width}], got {:?} of shape {:?}",
                rows.dtype(),
                rows.dims()
            )))
        }
    }
}

/// The stored tensor `{prefix}.{name}`: f64, finite, of `dims` where they are given; on the CPU.
fn stored(
    tensors: &HashMap<String, Tensor>,
    prefix: &str,
    name: &str,
    dims: &[Option<usize>],
) -> Result<Tensor> {
    let full = format!("{prefix}.{name}");
    let Some(tensor) = tensors.get(&full) else {
        return Err(Error::missing(prefix, "tensor", &full, tensors.keys()));
    };
    let fits = tensor.rank() == dims.len()
        && tensor.elem_count() > 0
        && tensor.dims().iter().zip(dims).all(|(&got, want)| want.is_none_or(|want| want == got));
    let refused = |what: String| Error::format(&full, what, "load what `tensors` gave, unchanged");
    if !fits || tensor.dtype() != DType::F64 {
        let want: Vec<_> =
            dims.iter().map(|d| d.map_or_else(|| "any".to_owned(), |d| d.to_string())).collect();
        return Err(refused(format!(
            "must be F64 of shape [{}], got {:?} of shape {:?}",
            want.join(", "),
            tensor.dtype(),
            tensor.dims()
        )));
    }
    let tensor = tensor.to_device(&Device::Cpu)?;
    match tensor.flatten_all()?.to_vec1::<f64>()?.iter().find(|v| !v.is_finite()) {
        Some(value) => Err(refused(format!("must be finite, holds {value}"))),
        None => Ok(tensor),
    }
}

/// The stored number `{prefix}.{name}`, at least 0.
fn stored_number(tensors: &HashMap<String, Tensor>, prefix: &str, name: &str) -> Result<f64> {
    let values = stored(tensors, prefix, name, &[Some(1)])?.to_vec1::<f64>()?;
    match values.first() {
        Some(&value) if value >= 0. => Ok(value),
        _ => Err(Error::format(
            format!("{prefix}.{name}"),
            format!("must be at least 0, got {values:?}"),
            "load what `tensors` gave, unchanged",
        )),
    }
}
