//! How a preparation is saved with a model: its steps in `config.json`, what was fitted as tensors.
//!
//! ```json
//! "preparation": {"byte_scale": 0.00392156862745098, "steps": [{"step": "row-mean"}, {"step": "pca", "n_features": 784, "n_components": 50}]}
//! ```
//! The numbers of step `i` are the tensors `preparation.i.mean`, `preparation.i.components` and so on, f64.
use super::chain::Preparation;
use super::checks::stored;
use super::columns::{ColumnKind, Columns};
use super::normalize::TutorialRescale;
use super::notes::Notes;
use super::pca::Pca;
use super::step::{Mean, Step, StepConfig};
use super::whitening::Whitening;
use crate::{Error, Result, RowType};
use candle::{Device, Tensor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Cow;
use std::collections::HashMap;

#[derive(Serialize, Deserialize)]
struct Written {
    byte_scale: f64,
    steps: Vec<Notes>,
}

/// The forms that configurations of all versions have.
#[derive(Deserialize)]
#[serde(untagged)]
enum Read {
    Written(Written),
    /// What stored values were multiplied by.
    InputScale(f64),
    /// Whether rows lost their means.
    RemoveMean(bool),
}

impl Serialize for Preparation {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let steps = self.steps.iter().map(|step| step.notes().into_owned()).collect();
        Written { byte_scale: self.byte_scale, steps }.serialize(serializer)
    }
}

/// Of the steps alone; [`Preparation::load`] adds what was fitted. In place of it stands in old files the number that stored values
/// were multiplied by, bytes or not, or whether each row loses its mean.
impl<'de> Deserialize<'de> for Preparation {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let refused = |e: Error| serde::de::Error::custom(e);
        match Read::deserialize(deserializer)? {
            // Floats as they are, or bytes that stand for 0 to 1.
            Read::InputScale(factor) if factor == 1. || factor == RowType::U8.scale() => Ok(Self::default()),
            Read::InputScale(factor) => Ok(Self::scale(factor).map_err(refused)?.of_byte_levels()),
            Read::RemoveMean(remove) => {
                let steps = if remove { vec![Step::RowMean] } else { Vec::new() };
                Ok(Self { steps, ..Self::default() }.of_byte_levels())
            }
            Read::Written(Written { byte_scale, steps }) => {
                StepConfig::Scale(byte_scale).validate().map_err(refused)?;
                let steps =
                    steps.into_iter().map(Step::from_notes).collect::<Result<_>>().map_err(refused)?;
                Ok(Self { byte_scale, steps })
            }
        }
    }
}

impl Preparation {
    /// What was fitted, to be saved with the model beside its configuration: `preparation.{step}.{name}`, f64.
    ///
    /// # Errors
    /// Only when memory is short.
    pub fn tensors(&self) -> Result<HashMap<String, Tensor>> {
        let mut tensors = HashMap::new();
        for (i, step) in self.steps.iter().enumerate() {
            tensors.extend(step.tensors(&format!("preparation.{i}"))?);
        }
        Ok(tensors)
    }

    /// Adds what was fitted, of [`Preparation::tensors`], to the steps that a configuration named, for rows on `device`.
    ///
    /// # Errors
    /// When a tensor is missing, or is not one of the step.
    pub fn load(&mut self, tensors: &HashMap<String, Tensor>, device: &Device) -> Result<()> {
        for (i, step) in self.steps.iter_mut().enumerate() {
            if let Step::Unloaded(notes) = step {
                *step = Step::load(notes, tensors, &format!("preparation.{i}"), device)?;
            }
        }
        Ok(())
    }
}

impl Step {
    /// What a configuration says of it.
    pub(super) fn notes(&self) -> Cow<'_, Notes> {
        Cow::Owned(match self {
            Self::Scale(factor) => Notes::Scale { factor: *factor },
            Self::Center(mean) => Notes::Center { n_features: mean.fitted.elem_count() },
            Self::Columns(columns) => {
                let n_features = columns.n_features();
                match columns.kind() {
                    ColumnKind::Standardise => Notes::Standardise { n_features },
                    ColumnKind::MinMax => Notes::MinMax { n_features },
                    ColumnKind::Robust => Notes::Robust { n_features },
                }
            }
            Self::Log1p => Notes::Log1p,
            Self::RowSum { total } => Notes::RowSum { total: *total },
            Self::RowMean => Notes::RowMean,
            Self::Contrast { regulariser } => Notes::Contrast { regulariser: *regulariser },
            Self::Rescale(rescale) => Notes::Rescale { deviation: rescale.deviation() },
            Self::Pca(pca) => Notes::Pca { n_features: pca.n_features(), n_components: pca.n_components() },
            Self::Whiten(whitening) => Notes::Whiten {
                kind: whitening.kind(),
                epsilon: whitening.epsilon(),
                n_features: whitening.n_features(),
                n_components: whitening.n_components(),
            },
            Self::Unloaded(notes) => return Cow::Borrowed(notes),
        })
    }

    pub(super) fn tensors(&self, prefix: &str) -> Result<HashMap<String, Tensor>> {
        match self {
            Self::Center(mean) => Ok(HashMap::from([(format!("{prefix}.mean"), mean.fitted.clone())])),
            Self::Columns(columns) => Ok(columns.tensors(prefix)),
            Self::Pca(pca) => pca.tensors(prefix),
            Self::Whiten(whitening) => whitening.tensors(prefix),
            _ => Ok(HashMap::new()),
        }
    }

    fn from_notes(notes: Notes) -> Result<Self> {
        let step = match notes {
            Notes::Scale { factor } => Self::Scale(factor),
            Notes::Log1p => Self::Log1p,
            Notes::RowSum { total } => Self::RowSum { total },
            Notes::RowMean => Self::RowMean,
            Notes::Contrast { regulariser } => Self::Contrast { regulariser },
            Notes::Rescale { deviation } => Self::Rescale(TutorialRescale::new(deviation)?),
            notes => Self::Unloaded(notes),
        };
        match step {
            Self::Scale(factor) => StepConfig::Scale(factor).validate()?,
            Self::RowSum { total } => StepConfig::RowSum { total }.validate()?,
            Self::Contrast { regulariser } => StepConfig::Contrast { regulariser }.validate()?,
            _ => {}
        }
        Ok(step)
    }

    fn load(notes: &Notes, tensors: &HashMap<String, Tensor>, prefix: &str, device: &Device) -> Result<Self> {
        let step = match notes {
            Notes::Center { n_features } => {
                Self::Center(Mean::new(stored(tensors, prefix, "mean", &[Some(*n_features)])?, device)?)
            }
            Notes::Standardise { n_features }
            | Notes::MinMax { n_features }
            | Notes::Robust { n_features } => {
                let kind = match notes {
                    Notes::MinMax { .. } => ColumnKind::MinMax,
                    Notes::Robust { .. } => ColumnKind::Robust,
                    _ => ColumnKind::Standardise,
                };
                Self::Columns(Columns::load(kind, *n_features, tensors, prefix, device)?)
            }
            Notes::Pca { .. } => Self::Pca(Pca::from_tensors(tensors, prefix, device)?),
            Notes::Whiten { .. } => Self::Whiten(Whitening::from_tensors(tensors, prefix, device)?),
            notes => Self::from_notes(notes.clone())?,
        };
        if *step.notes() != *notes {
            return Err(Error::format(
                prefix,
                format!("the tensors are those of {:?}, the configuration says {notes:?}", step.notes()),
                "load both files of one model, unchanged",
            ));
        }
        Ok(step)
    }
}
