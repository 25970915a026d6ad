//! One step: what it is before it is fitted, and after.
use super::applied::Applied;
use super::checks::applied_rows;
use super::columns::{Columns, log1p};
use super::normalize::{
    CONTRAST_REGULARISER, TutorialRescale, by_blocks, contrast_normalized, of_row_sum, without_row_mean,
};
use super::notes::Notes;
use super::pca::Pca;
use super::whitening::{Whitening, WhiteningConfig, WhiteningKind};
use crate::{Error, Result};
use candle::{DType, Device, Tensor};
use chandlery_ops::arrays::elementwise::{add, sub};
use serde::{Deserialize, Serialize};
use std::str::FromStr;

/// The total of `row-sum` where none is given, by custom in counts of genes.
const TOTAL: f64 = 1e4;

/// A step of a [`Preparation`](super::Preparation), before it is fitted; equations in the
/// [module](super).
///
/// As text, which files hold too, it is one of the names that its [`FromStr`] reads.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum StepConfig {
    /// Multiplies by a finite number above 0.
    Scale(f64),
    /// Divides by the standard deviation over all rows and features, each about its feature's mean,
    /// so that features keep their proportions.
    UnitVariance,
    /// Multiplies by one factor, so that the mean length of a row is the root of its number of
    /// features: by custom for activations of neural networks.
    MeanNorm,
    /// Subtracts the mean of each feature.
    Center,
    /// Subtracts from each feature its mean and divides by its standard deviation (divisor `n`); a
    /// constant feature becomes 0.
    Standardise,
    /// Maps each feature onto [0, 1] by its least and largest value; values outside are clipped,
    /// and a constant feature becomes 0.
    MinMax,
    /// Subtracts from each feature its median and divides by the distance of its quartiles, which
    /// outliers do not move; where the quartiles are equal it only subtracts.
    Robust,
    /// `ln(1 + x)`, for counts and amounts that span decades; values must be above -1.
    Log1p,
    /// Multiplies each row so that its magnitudes sum to a total: counts of rows of different
    /// depth. A row of zeros stays.
    RowSum {
        /// Finite, above 0.
        total: f64,
    },
    /// Subtracts from each row its own mean: brightness goes.
    RowMean,
    /// Subtracts from each row its own mean and divides by its own standard deviation: brightness
    /// and contrast go.
    Contrast {
        /// Added to the variance, above 0; [`CONTRAST_REGULARISER`] for rows in [0, 1].
        regulariser: f64,
    },
    /// Subtracts from each row its own mean, clips at three standard deviations and maps onto [0.1,
    /// 0.9], for sigmoid units.
    Rescale,
    /// Coordinates along the directions of most variance.
    Pca {
        /// Directions kept, at least 1.
        n_components: usize,
    },
    /// Decorrelates the features and gives each the variance 1.
    Whiten(WhiteningConfig),
}

impl StepConfig {
    /// # Errors
    /// When a number is out of its range.
    pub(super) fn validate(&self) -> Result<()> {
        let above_0 = |name: &str, x: f64| match x.is_finite() && x > 0. {
            true => Ok(()),
            false => {
                Err(Error::Argument(format!("Preparation: {name} must be a finite number above 0, got {x}")))
            }
        };
        match *self {
            Self::Scale(factor) => above_0("a scale", factor),
            Self::RowSum { total } => above_0("the total of row-sum", total),
            Self::Contrast { regulariser } => above_0("the regulariser of contrast", regulariser),
            _ => Ok(()),
        }
    }
}

/// As command lines name them: `scale=F`, `unit-variance`, `mean-norm`, `center`, `standardise`, `minmax`,
/// `robust`, `log1p`, `row-sum[=TOTAL]`, `row-mean`, `contrast[=C]`, `rescale`, `pca=N`,
/// `whiten[=N]`, `zca[=EPSILON]`.
impl FromStr for StepConfig {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let (name, value) = text.split_once('=').map_or((text, None), |(name, value)| (name, Some(value)));
        let number = |default: Option<f64>| match (value, default) {
            (Some(value), _) => value.parse::<f64>().map_err(|e| format!("{name}={value}: {e}")),
            (None, Some(default)) => Ok(default),
            (None, None) => Err(format!("{name}: give a number, as in {name}=2")),
        };
        let count = || match value {
            Some(value) => value.parse::<usize>().map(Some).map_err(|e| format!("{name}={value}: {e}")),
            None => Ok(None),
        };
        let plain = |step: Self| match value {
            None => Ok(step),
            Some(value) => Err(format!("{name} takes no number, got {value}")),
        };
        let whitening = WhiteningConfig::default();
        let step = match name {
            "scale" => Self::Scale(number(None)?),
            "unit-variance" => plain(Self::UnitVariance)?,
            "mean-norm" => plain(Self::MeanNorm)?,
            "center" => plain(Self::Center)?,
            "standardise" | "standardize" => plain(Self::Standardise)?,
            "minmax" => plain(Self::MinMax)?,
            "robust" => plain(Self::Robust)?,
            "log1p" => plain(Self::Log1p)?,
            "row-sum" => Self::RowSum { total: number(Some(TOTAL))? },
            "row-mean" => plain(Self::RowMean)?,
            "contrast" => Self::Contrast { regulariser: number(Some(CONTRAST_REGULARISER))? },
            "rescale" => plain(Self::Rescale)?,
            "pca" => Self::Pca {
                n_components: count()?.ok_or("pca: give the number of components, as in pca=50")?,
            },
            "whiten" => Self::Whiten(WhiteningConfig {
                kind: WhiteningKind::Pca,
                n_components: count()?,
                ..whitening
            }),
            "zca" => Self::Whiten(WhiteningConfig { epsilon: number(Some(whitening.epsilon))?, ..whitening }),
            _ => {
                return Err(format!(
                    "{name}: no such step; give standardise, minmax, robust, log1p, scale=F, unit-variance, mean-norm, center, row-sum, row-mean, contrast, rescale, pca=N, whiten or zca"
                ));
            }
        };
        step.validate().map_err(|e| e.to_string())?;
        Ok(step)
    }
}

impl TryFrom<String> for StepConfig {
    type Error = String;

    fn try_from(text: String) -> std::result::Result<Self, String> {
        text.parse()
    }
}

impl From<StepConfig> for String {
    fn from(step: StepConfig) -> Self {
        step.to_string()
    }
}

/// The same text as [`FromStr`] reads.
impl std::fmt::Display for StepConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Scale(factor) => write!(f, "scale={factor}"),
            Self::UnitVariance => f.write_str("unit-variance"),
            Self::MeanNorm => f.write_str("mean-norm"),
            Self::Center => f.write_str("center"),
            Self::Standardise => f.write_str("standardise"),
            Self::MinMax => f.write_str("minmax"),
            Self::Robust => f.write_str("robust"),
            Self::Log1p => f.write_str("log1p"),
            Self::RowSum { total } => write!(f, "row-sum={total}"),
            Self::RowMean => f.write_str("row-mean"),
            Self::Contrast { regulariser } => write!(f, "contrast={regulariser}"),
            Self::Rescale => f.write_str("rescale"),
            Self::Pca { n_components } => write!(f, "pca={n_components}"),
            Self::Whiten(WhiteningConfig { kind: WhiteningKind::Pca, n_components: Some(n), .. }) => {
                write!(f, "whiten={n}")
            }
            Self::Whiten(WhiteningConfig { kind: WhiteningKind::Pca, .. }) => f.write_str("whiten"),
            Self::Whiten(WhiteningConfig { epsilon, .. }) => write!(f, "zca={epsilon}"),
        }
    }
}

/// A fitted step.
#[derive(Debug, Clone)]
pub(super) enum Step {
    Scale(f64),
    Center(Mean),
    Columns(Columns),
    Log1p,
    RowSum {
        total: f64,
    },
    RowMean,
    Contrast {
        regulariser: f64,
    },
    Rescale(TutorialRescale),
    Pca(Pca),
    Whiten(Whitening),
    /// Read from a configuration, without its fitted numbers.
    Unloaded(Notes),
}

/// The mean of each feature.
#[derive(Debug, Clone)]
pub(super) struct Mean {
    /// `[n_features]`, f64 on the CPU.
    pub fitted: Tensor,
    /// The same where rows are.
    applied: Applied<Tensor>,
}

impl Mean {
    pub(super) fn new(fitted: Tensor, device: &Device) -> Result<Self> {
        let applied = Applied::new(fitted.to_dtype(DType::F32)?.to_device(device)?);
        Ok(Self { fitted, applied })
    }

    /// In the type of `rows`, on the device of the others.
    fn of(&self, rows: &Tensor) -> Result<&Tensor> {
        let device = self.applied.single().device();
        self.applied.of(rows.dtype(), || Ok(self.fitted.to_device(device)?))
    }
}

/// Alike in kind and in every fitted number.
impl PartialEq for Step {
    fn eq(&self, other: &Self) -> bool {
        let numbers = |step: &Self| -> Option<Vec<(String, Vec<f64>)>> {
            let mut named: Vec<_> = step.tensors("").ok()?.into_iter().collect();
            named.sort_by(|a, b| a.0.cmp(&b.0));
            let values = |(name, t): (String, Tensor)| Some((name, t.flatten_all().ok()?.to_vec1().ok()?));
            named.into_iter().map(values).collect()
        };
        self.notes() == other.notes() && numbers(self) == numbers(other)
    }
}

impl Step {
    /// Of rows in f32 or f64, and gives the same; they belong to a larger whole, of which
    /// `first_row` is the first.
    pub(super) fn apply(&self, first_row: usize, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::Scale(factor) => Ok(x.affine(*factor, 0.)?),
            Self::RowSum { total } => of_row_sum(x, *total),
            Self::RowMean => without_row_mean(x),
            Self::Log1p => Ok(log1p(first_row, &x.to_dtype(DType::F64)?)?.to_dtype(x.dtype())?),
            Self::Columns(columns) => {
                check_width(x, columns.n_features())?;
                let there = self.on(x.device())?;
                match there.as_ref().unwrap_or(self) {
                    Self::Columns(columns) => by_blocks(x, |rows| columns.apply(&rows.to_dtype(DType::F64)?)),
                    step => Err(step.unloaded()),
                }
            }
            Self::Contrast { regulariser } => contrast_normalized(x, *regulariser),
            _ => {
                let there = self.on(x.device())?;
                match there.as_ref().unwrap_or(self) {
                    Self::Center(mean) => center(x, mean),
                    Self::Rescale(rescale) => rescale.transform(x),
                    Self::Pca(pca) => pca.transform(x),
                    Self::Whiten(whitening) => whitening.transform(x),
                    step => Err(step.unloaded()),
                }
            }
        }
    }

    pub(super) fn inverse(&self, y: &Tensor) -> Result<Tensor> {
        match self {
            Self::Scale(factor) => Ok(y.affine(1. / factor, 0.)?),
            Self::RowSum { .. } | Self::RowMean | Self::Contrast { .. } => Ok(y.clone()),
            Self::Log1p => Ok((y.to_dtype(DType::F64)?.exp()? - 1.)?.to_dtype(y.dtype())?),
            Self::Columns(columns) => {
                check_width(y, columns.n_features())?;
                let there = self.on(y.device())?;
                match there.as_ref().unwrap_or(self) {
                    Self::Columns(columns) => {
                        by_blocks(y, |rows| columns.inverse(&rows.to_dtype(DType::F64)?))
                    }
                    step => Err(step.unloaded()),
                }
            }
            _ => {
                let there = self.on(y.device())?;
                match there.as_ref().unwrap_or(self) {
                    Self::Center(mean) => Ok(add(y, mean.of(y)?)?),
                    Self::Rescale(rescale) => rescale.inverse(y),
                    Self::Pca(pca) => pca.inverse(y),
                    Self::Whiten(whitening) => whitening.inverse(y),
                    step => Err(step.unloaded()),
                }
            }
        }
    }

    /// The step with its numbers on `device`, where they are not there.
    fn on(&self, device: &Device) -> Result<Option<Self>> {
        let at = match self {
            Self::Center(mean) => mean.applied.single().device(),
            Self::Columns(columns) => columns.device(),
            Self::Pca(pca) => pca.device(),
            Self::Whiten(whitening) => whitening.device(),
            _ => return Ok(None),
        };
        if at.same_device(device) { Ok(None) } else { self.to_device(device).map(Some) }
    }

    pub(super) fn to_device(&self, device: &Device) -> Result<Self> {
        Ok(match self {
            Self::Center(mean) => Self::Center(Mean::new(mean.fitted.clone(), device)?),
            Self::Columns(columns) => Self::Columns(columns.to_device(device)?),
            Self::Pca(pca) => Self::Pca(pca.to_device(device)?),
            Self::Whiten(whitening) => Self::Whiten(whitening.to_device(device)?),
            step => step.clone(),
        })
    }

    /// Values in a row before and after, where the step fixes them.
    pub(super) fn widths(&self) -> Option<(usize, usize)> {
        match *self.notes() {
            Notes::Scale { .. }
            | Notes::RowSum { .. }
            | Notes::RowMean
            | Notes::Contrast { .. }
            | Notes::Rescale { .. }
            | Notes::Log1p => None,
            Notes::Center { n_features }
            | Notes::Standardise { n_features }
            | Notes::MinMax { n_features }
            | Notes::Robust { n_features } => Some((n_features, n_features)),
            Notes::Pca { n_features, n_components } => Some((n_features, n_components)),
            Notes::Whiten { kind: WhiteningKind::Pca, n_features, n_components, .. } => {
                Some((n_features, n_components))
            }
            Notes::Whiten { n_features, .. } => Some((n_features, n_features)),
        }
    }

    pub(super) fn words(&self) -> String {
        match *self.notes() {
            Notes::Scale { factor } => format!("multiplied by {factor}"),
            Notes::Center { .. } => "the mean of each feature subtracted".to_owned(),
            Notes::Standardise { .. } => "each feature brought to mean 0 and standard deviation 1".to_owned(),
            Notes::MinMax { .. } => "each feature mapped onto [0, 1] and clipped".to_owned(),
            Notes::Robust { .. } => {
                "the median of each feature subtracted, divided by the distance of its quartiles".to_owned()
            }
            Notes::Log1p => "the logarithm of 1 plus the value taken".to_owned(),
            Notes::RowSum { total } => format!("each row multiplied to a sum of {total}"),
            Notes::RowMean => "the mean of each row subtracted".to_owned(),
            Notes::Contrast { .. } => "the mean of each row subtracted and its contrast divided out".to_owned(),
            Notes::Rescale { .. } => {
                "the mean of each row subtracted, clipped at three standard deviations, mapped onto [0.1, 0.9]"
                    .to_owned()
            }
            Notes::Pca { n_components, .. } => format!("the first {n_components} principal components"),
            Notes::Whiten { kind, epsilon, n_components, .. } => {
                let kind = if kind == WhiteningKind::Pca { "PCA" } else { "ZCA" };
                format!("{kind}-whitened with {n_components} components and epsilon {epsilon}")
            }
        }
    }

    fn unloaded(&self) -> Error {
        Error::Argument(format!(
            "Preparation: the fitted numbers of a step ({}) are not loaded; load the model with from_pretrained",
            self.words()
        ))
    }
}

/// Refuses rows that are not `[n, n_features]`, of any float type.
fn check_width(x: &Tensor, n_features: usize) -> Result<()> {
    match *x.dims() {
        [_, width] if width == n_features => Ok(()),
        ref dims => Err(Error::Argument(format!(
            "Preparation: rows must have shape [n_samples, {n_features}], got {dims:?}"
        ))),
    }
}

fn center(x: &Tensor, mean: &Mean) -> Result<Tensor> {
    applied_rows("Preparation", "rows", x, Some(mean.fitted.elem_count()))?;
    Ok(sub(x, mean.of(x)?)?)
}
