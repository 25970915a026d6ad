//! What a trainer needs to go on as if it had not stopped.
use super::train::Gathered;
use super::{BASIS, SparseCoding, SparseCodingConfig, SparseCodingTrainConfig, SparseCodingTrainer};
use crate::checkpoint::{self, Checkpoint};
use crate::dictionary::Statistics;
use crate::dictionary::statistics::Idle;
use candle::{Device, Result};
use chandlery_ops::{Group, Philox};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::Path;

/// The name of the trainer in its checkpoints.
const NAME: &str = "sparse-coding";

/// Beside the tensors `basis`, `gram` and `signals`.
#[derive(Serialize, Deserialize)]
struct Notes {
    model: SparseCodingConfig,
    training: SparseCodingTrainConfig,
    #[serde(with = "checkpoint::place")]
    philox: Philox,
    idle: Idle,
    batches: u64,
    gathered: Gathered,
    progress: Value,
}

impl SparseCodingTrainer {
    pub(super) fn store(&self, path: &Path, progress: &Value) -> Result<()> {
        let Statistics { gram, signals } = &self.statistics;
        let tensors = [(BASIS, &self.model.basis), ("gram", gram), ("signals", signals)];
        let tensors = tensors.map(|(name, t)| (name.to_owned(), t.clone()));
        let notes = Notes {
            model: self.model.config.clone(),
            training: self.config.clone(),
            philox: self.philox,
            idle: self.idle.clone(),
            batches: self.batches,
            gathered: self.gathered,
            progress: progress.clone(),
        };
        checkpoint::save(path, NAME, tensors, &notes, &notes.model.preparation)
    }

    pub(super) fn restored(path: &Path, device: &Device) -> Result<(Self, Value)> {
        let (stored, mut notes) = Checkpoint::load::<Notes>(path, NAME, device)?;
        stored.load_preparation(&mut notes.model.preparation, device)?;
        let sizes = [notes.model.n_atoms, notes.model.n_features];
        notes.training.validate().map_err(|e| stored.refused(&e))?;
        let model =
            SparseCoding::from_tensor(notes.model, stored.get(BASIS)?).map_err(|e| stored.refused(&e))?;
        let trainer = Self {
            config: notes.training,
            philox: notes.philox,
            group: Group::single(),
            model,
            statistics: Statistics::load(&stored, &notes.idle, sizes)?,
            idle: notes.idle,
            batches: notes.batches,
            gathered: notes.gathered,
        };
        Ok((trainer, notes.progress))
    }
}
