//! What a trainer needs to go on as if it had not stopped.
use super::coded::Quality;
use super::online::{Gathered, report};
use super::statistics::{Idle, Statistics};
use super::train::{OfAll, Previous};
use super::{
    Dictionary, DictionaryConfig, DictionaryTrainConfig, DictionaryTrainer, Iteration,
    OnlineDictionaryTrainConfig, OnlineDictionaryTrainer, SparseCoder,
};
use crate::checkpoint::{self, Checkpoint};
use crate::model::Model;
use candle::{Device, Result, Tensor};
use chandlery_ops::codes::{AtomUses, ErrorTarget, SparseCodes};
use chandlery_ops::{Group, Philox};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::Path;

/// Beside the tensors `dictionary`, `best`, `figures` and `counts` (f64, which text would round)
/// and, for NSGK, the codes of the iteration before.
#[derive(Serialize, Deserialize)]
struct TrainNotes {
    config: DictionaryConfig,
    training: DictionaryTrainConfig,
    #[serde(with = "checkpoint::place")]
    philox: Philox,
    iteration: usize,
    used: usize,
    replaced: usize,
    progress: Value,
}

/// The names of the trainers in their checkpoints.
const BATCH: &str = "dictionary";
const ONLINE: &str = "online-dictionary";
/// The tensor of the error targets of single signals.
const TARGETS: &str = "targets";

/// Beside the tensors `dictionary`, `gram` and `signals`.
#[derive(Serialize, Deserialize)]
struct OnlineNotes {
    config: DictionaryConfig,
    #[serde(with = "checkpoint::place")]
    philox: Philox,
    idle: Idle,
    batches: usize,
    scale: Option<f64>,
    gathered: Gathered,
    training: OnlineDictionaryTrainConfig,
    progress: Value,
}

impl DictionaryTrainer {
    pub(super) fn store(&self, path: &Path, progress: &Value) -> Result<()> {
        let Iteration { iteration, rmse, mean_count, used, replaced, coherence } = self.last;
        let best = self.best_quality;
        let mut tensors = vec![
            ("dictionary".to_owned(), self.current.atoms.clone()),
            ("best".to_owned(), self.best.atoms.clone()),
            ("figures".to_owned(), Tensor::new(&[rmse, coherence, best.rmse], &Device::Cpu)?),
            ("counts".to_owned(), Tensor::new(&[mean_count, best.mean_count], &Device::Cpu)?),
        ];
        let OfAll { previous, targets } = match &self.of_all {
            Some(of_all) => of_all.clone(),
            None => self.gathered()?,
        };
        if let Some(SparseCodes { indices, values, count, .. }) = previous {
            for (name, t) in [("indices", indices), ("values", values), ("count", count)] {
                tensors.push((format!("previous.{name}"), t));
            }
        }
        tensors.extend(targets.map(|targets| (TARGETS.to_owned(), targets)));
        let notes = TrainNotes {
            config: self.current.config.clone(),
            training: self.config.clone(),
            philox: self.philox,
            iteration,
            used,
            replaced,
            progress: progress.clone(),
        };
        checkpoint::save(path, BATCH, tensors, &notes, &notes.config.preparation)
    }

    pub(super) fn restored(path: &Path, rows: &Tensor, device: &Device) -> Result<(Self, Value)> {
        let (stored, mut notes) = Checkpoint::load::<TrainNotes>(path, BATCH, device)?;
        stored.load_preparation(&mut notes.config.preparation, device)?;
        let rows = rows.to_device(device)?;
        let targets = stored.tensors.get(TARGETS).cloned();
        let own = notes.config.coder();
        notes.training.coder = targets.map(|t| SparseCoder { error: Some(ErrorTarget::PerSignal(t)), ..own });
        let n_atoms = notes.config.n_atoms;
        let dictionary = Dictionary::from_tensor(notes.config.clone(), stored.get("dictionary")?)?;
        let best = Dictionary::from_tensor(notes.config, stored.get("best")?)?;
        let figures = |name: &str| stored.get(name)?.to_vec1::<f64>();
        let figures_read = figures("figures")?;
        let &[rmse, coherence, best_rmse] = &figures_read[..] else {
            return Err(stored.refused(&format!("figures must be three, got {}", figures_read.len())));
        };
        let TrainNotes { iteration, used, replaced, progress, training, philox, .. } = notes;
        let mut last = Iteration { iteration, rmse, mean_count: 0., used, replaced, coherence };
        let signals = dictionary.prepare(&rows)?;
        let mut trainer = Self::resume(dictionary, &signals, training, philox, last)?;
        let counts = figures("counts")?;
        let &[mean_count, best_mean_count] = &counts[..] else {
            return Err(stored.refused(&format!("counts must be two, got {}", counts.len())));
        };
        last.mean_count = mean_count;
        if trainer.last != last {
            return Err(stored.refused(&format!(
                "these signals and this configuration give an RMSE of {}, those of the checkpoint gave {rmse}",
                trainer.last.rmse
            )));
        }
        trainer.best = Dictionary { config: trainer.current.config.clone(), atoms: best.atoms };
        trainer.best_quality = Quality { rmse: best_rmse, mean_count: best_mean_count };
        if stored.tensors.contains_key("previous.values") {
            let get = |name: &str| stored.get(&format!("previous.{name}"));
            let codes = SparseCodes {
                indices: get("indices")?,
                values: get("values")?,
                count: get("count")?,
                n_atoms,
            };
            trainer.previous = Some(Previous { uses: AtomUses::of(&codes)?, codes });
        }
        Ok((trainer, progress))
    }
}

impl OnlineDictionaryTrainer {
    pub(super) fn store(&self, path: &Path, progress: &Value) -> Result<()> {
        let tensors = [
            ("dictionary", &self.dictionary.atoms),
            ("gram", self.statistics.gram()),
            ("signals", self.statistics.signals()),
        ];
        let tensors = tensors.map(|(name, t)| (name.to_owned(), t.clone()));
        let notes = OnlineNotes {
            config: self.dictionary.config.clone(),
            philox: self.philox,
            idle: self.idle.clone(),
            batches: self.batches,
            scale: self.scale,
            gathered: self.gathered,
            training: self.config.clone(),
            progress: progress.clone(),
        };
        checkpoint::save(path, ONLINE, tensors, &notes, &notes.config.preparation)
    }

    pub(super) fn restored(path: &Path, device: &Device) -> Result<(Self, Value)> {
        let (stored, mut notes) = Checkpoint::load::<OnlineNotes>(path, ONLINE, device)?;
        stored.load_preparation(&mut notes.config.preparation, device)?;
        let (n, p) = (notes.config.n_atoms, notes.config.n_features);
        notes.training.validate(n).map_err(|e| stored.refused(&e))?;
        let coder = notes.config.coder();
        let dictionary = Dictionary::from_tensor(notes.config, stored.get("dictionary")?)
            .map_err(|e| stored.refused(&e))?;
        let statistics = Statistics::load(&stored, &notes.idle, [n, p])?;
        let report = report(n, &statistics.gram)?;
        let trainer = Self {
            config: notes.training,
            coder,
            philox: notes.philox,
            group: Group::single(),
            dictionary,
            statistics,
            idle: notes.idle,
            batches: notes.batches,
            scale: notes.scale,
            report,
            gathered: notes.gathered,
        };
        Ok((trainer, notes.progress))
    }
}
