//! How a preparation is saved with a model: its steps in `config.json`, what was fitted as tensors.
//!
//! ```json
//! "preparation": {"byte_scale": 0.00392156862745098, "steps": [{"step": "row-mean"}, {"step": "pca", "n_features": 784, "n_components": 50}]}
//! ```
//! The numbers of step `i` are the tensors `preparation.i.mean`, `preparation.i.components` and so
//! on, f64.
use super::chain::Preparation;
use super::checks::stored;
use super::columns::{ColumnKind, Columns};
use super::normalize::TutorialRescale;
use super::notes::Notes;
use super::pca::Pca;
use super::step::{Mean, Step, StepConfig};
use super::whitening::Whitening;
use crate::{Error, Result};
use candle::{Device, Tensor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Cow;
use std::collections::HashMap;

#[derive(Serialize, Deserialize)]
struct Written {
    byte_scale: f64,
    steps: Vec<Notes>,
}

impl Serialize for Preparation {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let steps = self.steps.iter().map(|step| step.notes().into_owned()).collect();
        Written { byte_scale: self.byte_scale, steps }.serialize(serializer)
    }
}

/// Of the steps alone; [`Preparation::load`] adds what was fitted.
impl<'de> Deserialize<'de> for Preparation {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let refused = |e: Error| serde::de::Error::custom(e);
        let Written { byte_scale, steps } = Written::deserialize(deserializer)?;
        StepConfig::Scale(byte_scale).validate().map_err(refused)?;
        let steps = steps.into_iter().map(Step::from_notes).collect::<Result<_>>().map_err(refused)?;
        Ok(Self { byte_scale, steps })
    }
}

impl Preparation {
    /// What was fitted, to be saved with the model beside its configuration:
    /// `preparation.{step}.{name}`, f64.
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

    /// Names and shapes of the tensors that [`load`](Self::load) needs: none once all steps are
    /// fitted.
    pub fn missing(&self) -> Vec<(String, Vec<usize>)> {
        let of_step = |(i, step): (usize, &Step)| {
            let shapes = match step {
                Step::Unloaded(notes) => notes.shapes(),
                _ => Vec::new(),
            };
            shapes.into_iter().map(move |(name, shape)| (format!("preparation.{i}.{name}"), shape))
        };
        self.steps.iter().enumerate().flat_map(of_step).collect()
    }

    /// Adds what was fitted, of [`Preparation::tensors`], to the steps that a configuration named,
    /// for rows on `device`.
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

impl Notes {
    /// Names and shapes of what was fitted.
    fn shapes(&self) -> Vec<(&'static str, Vec<usize>)> {
        let principal = |n_features: usize, n_components: usize| {
            vec![
                ("mean", vec![n_features]),
                ("components", vec![n_components, n_features]),
                ("variance", vec![n_components]),
                ("total_variance", vec![1]),
            ]
        };
        match *self {
            Self::Center { n_features } => vec![("mean", vec![n_features])],
            Self::Standardise { n_features } | Self::MinMax { n_features } | Self::Robust { n_features } => {
                vec![("centre", vec![n_features]), ("spread", vec![n_features])]
            }
            Self::Pca { n_features, n_components } => principal(n_features, n_components),
            Self::Whiten { n_features, n_components, .. } => {
                let own = [("epsilon", vec![1]), ("zca", vec![1])];
                principal(n_features, n_components).into_iter().chain(own).collect()
            }
            Self::Scale { .. }
            | Self::Log1p
            | Self::RowSum { .. }
            | Self::RowMean
            | Self::Contrast { .. }
            | Self::Rescale { .. } => Vec::new(),
        }
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
