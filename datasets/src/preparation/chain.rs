//! Steps in a row.
use super::step::{Step, StepConfig};
use crate::{Error, Result, RowType};
use candle::{DType, Device, Tensor};

/// What is done to raw rows before a model reads them; see the [module](super).
///
/// The default leaves floats as they are and multiplies bytes by 1/255.
#[derive(Debug, Clone)]
pub struct Preparation {
    pub(super) byte_scale: f64,
    pub(super) steps: Vec<Step>,
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

    /// What bytes are multiplied by before the first step: 1/255, or 1 where they count as 0 to
    /// 255.
    pub fn byte_scale(&self) -> f64 {
        self.byte_scale
    }

    /// Whether it is the default: no steps, and bytes multiplied by 1/255.
    pub fn is_default(&self) -> bool {
        self.steps.is_empty() && self.byte_scale == RowType::U8.scale()
    }

    /// What the model reads of raw `rows`: `[n, n_inputs]` of u8, f16, bf16, f32 or f64 to
    /// `[n, n_outputs]` of the same float type, f32 for bytes.
    ///
    /// # Errors
    /// As [`apply_as`](Self::apply_as).
    pub fn apply(&self, rows: &Tensor) -> Result<Tensor> {
        self.apply_from(0, rows)
    }

    /// The same in the float type `dtype`, that of a model. It is computed in f64 where that or the
    /// rows are f64, else in f32.
    ///
    /// Differentiable for float rows where no value is clipped. Fitted numbers are taken to the
    /// device of the rows where they are not there; [`to_device`](Self::to_device) does it once.
    ///
    /// # Errors
    /// When `rows` have another shape, type or device than the steps need, a value has no logarithm
    /// where one is taken, or `dtype` is no float type; the message counts rows from the first of
    /// `rows`.
    pub fn apply_as(&self, rows: &Tensor, dtype: DType) -> Result<Tensor> {
        self.apply_at(0, rows, dtype)
    }

    /// [`apply`](Self::apply) for rows of a larger whole, of which `first_row` is the first:
    /// messages count rows from the beginning of that.
    ///
    /// # Errors
    /// As [`apply_as`](Self::apply_as).
    pub fn apply_from(&self, first_row: usize, rows: &Tensor) -> Result<Tensor> {
        self.apply_at(first_row, rows, if rows.dtype() == DType::U8 { DType::F32 } else { rows.dtype() })
    }

    pub(super) fn apply_at(&self, first_row: usize, rows: &Tensor, dtype: DType) -> Result<Tensor> {
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

    /// Raw float rows of what a model reads, as far as that is known: `[n, n_outputs]` to
    /// `[n, n_inputs]`.
    ///
    /// What each row lost of its own (its mean, its contrast, what was clipped, directions that
    /// were dropped) stays lost. Of the type of `prepared`; computed in f64 for that type, else in
    /// f32.
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

    /// The same without its last step, where that subtracts from each row its own mean; none for
    /// others.
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
