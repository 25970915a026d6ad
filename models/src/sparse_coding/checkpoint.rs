//! What a trainer needs to go on as if it had not stopped.
use super::train::Gathered;
use super::{BASIS, SparseCoding, SparseCodingConfig, SparseCodingTrainConfig, SparseCodingTrainer};
use crate::checkpoint::{self, Checkpoint, philox, words};
use crate::dictionary::Statistics;
use crate::dictionary::statistics::Idle;
use candle::{Device, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The name of the trainer in its checkpoints.
const NAME: &str = "sparse-coding";

/// Beside the tensors `basis`, `gram` and `signals`.
#[derive(Serialize, Deserialize)]
struct Notes<P> {
    model: SparseCodingConfig,
    training: SparseCodingTrainConfig,
    philox: [u64; 3],
    idle: Idle,
    batches: u64,
    gathered: Gathered,
    progress: P,
}

impl SparseCodingTrainer {
    pub(super) fn store(&self, path: &Path, progress: &impl Serialize) -> Result<()> {
        let Statistics { gram, signals } = &self.statistics;
        let tensors = [(BASIS, &self.model.basis), ("gram", gram), ("signals", signals)];
        let tensors = tensors.map(|(name, t)| (name.to_owned(), t.clone()));
        let notes = Notes {
            model: self.model.config.clone(),
            training: self.config.clone(),
            philox: words(self.philox),
            idle: self.idle.clone(),
            batches: self.batches,
            gathered: self.gathered,
            progress,
        };
        checkpoint::save(path, NAME, tensors, &notes, &notes.model.preparation)
    }

    pub(super) fn load<P: DeserializeOwned>(path: &Path, device: &Device) -> Result<(Self, P)> {
        let (stored, mut notes) = Checkpoint::load::<Notes<P>>(path, NAME, device)?;
        stored.load_preparation(&mut notes.model.preparation, device)?;
        let sizes = [notes.model.n_atoms, notes.model.n_features];
        notes.training.validate().map_err(|e| stored.refused(&e))?;
        let model =
            SparseCoding::from_tensor(notes.model, stored.get(BASIS)?).map_err(|e| stored.refused(&e))?;
        let trainer = Self {
            config: notes.training,
            philox: philox(notes.philox),
            model,
            statistics: Statistics::load(&stored, &notes.idle, sizes)?,
            idle: notes.idle,
            batches: notes.batches,
            gathered: notes.gathered,
        };
        Ok((trainer, notes.progress))
    }
}
