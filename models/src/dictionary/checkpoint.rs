//! What a trainer needs to go on as if it had not stopped.
use super::online::{Gathered, report};
use super::statistics::{Idle, Statistics};
use super::train::{Previous, Quality};
use super::{
    Dictionary, DictionaryConfig, DictionaryTrainConfig, DictionaryTrainer, Iteration, OnlineConfig,
    OnlineTrainer,
};
use crate::checkpoint::{self, Checkpoint, philox, words};
use crate::model::Model;
use candle::{Device, Result, Tensor};
use chandlery_ops::codes::{AtomUses, SparseCodes};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Beside the tensors `dictionary`, `best`, `figures` and `counts` (f64, which text would round) and, for NSGK, the codes of the iteration before.
#[derive(Serialize, Deserialize)]
struct TrainNotes<P> {
    config: DictionaryConfig,
    philox: [u64; 3],
    iteration: usize,
    used: usize,
    replaced: usize,
    progress: P,
}

/// The names of the trainers in their checkpoints.
const BATCH: &str = "dictionary";
const ONLINE: &str = "online-dictionary";

/// Beside the tensors `dictionary`, `gram` and `signals`.
#[derive(Serialize, Deserialize)]
struct OnlineNotes<P> {
    config: DictionaryConfig,
    philox: [u64; 3],
    idle: Idle,
    batches: usize,
    scale: Option<f64>,
    gathered: Gathered,
    training: OnlineConfig,
    progress: P,
}

impl DictionaryTrainer {
    /// Writes everything that the rest of a run depends on to one file, with `progress`, but for the signals and the configuration, which
    /// whoever resumes has. The file appears whole.
    ///
    /// # Errors
    /// When the file is not writable.
    pub fn save_checkpoint(&self, path: &Path, progress: &impl Serialize) -> Result<()> {
        let Iteration { iteration, rmse, mean_count, used, replaced, coherence } = self.last;
        let best = self.best_quality;
        let mut tensors = vec![
            ("dictionary".to_owned(), self.current.atoms.clone()),
            ("best".to_owned(), self.best.atoms.clone()),
            ("figures".to_owned(), Tensor::new(&[rmse, coherence, best.rmse], &Device::Cpu)?),
            ("counts".to_owned(), Tensor::new(&[mean_count, best.mean_count], &Device::Cpu)?),
        ];
        if let Some(Previous { codes, .. }) = &self.previous {
            let SparseCodes { indices, values, count, .. } = codes;
            for (name, t) in [("indices", indices), ("values", values), ("count", count)] {
                tensors.push((format!("previous.{name}"), t.clone()));
            }
        }
        let notes = TrainNotes {
            config: self.current.config.clone(),
            philox: words(self.philox),
            iteration,
            used,
            replaced,
            progress,
        };
        checkpoint::save(path, BATCH, tensors, &notes, &notes.config.preparation)
    }

    /// Reads what [`save_checkpoint`](Self::save_checkpoint) wrote, for a run with the same raw rows and configuration: the trainer as
    /// it was, and the caller's progress. On the device that wrote it the run goes on bit for bit. The codes are found again, which takes one
    /// coding.
    ///
    /// # Errors
    /// When the file is missing, cut short, not a checkpoint of this trainer or of other signals; the message names it.
    pub fn load_checkpoint<P: DeserializeOwned>(
        path: &Path,
        rows: &Tensor,
        config: DictionaryTrainConfig,
    ) -> Result<(Self, P)> {
        let (stored, mut notes) = Checkpoint::load::<TrainNotes<P>>(path, BATCH, rows.device())?;
        stored.load_preparation(&mut notes.config.preparation, rows.device())?;
        let n_atoms = notes.config.n_atoms;
        let dictionary = Dictionary::from_tensor(notes.config.clone(), stored.get("dictionary")?)?;
        let best = Dictionary::from_tensor(notes.config, stored.get("best")?)?;
        let figures = |name: &str| stored.get(name)?.to_vec1::<f64>();
        let figures_read = figures("figures")?;
        let &[rmse, coherence, best_rmse] = &figures_read[..] else {
            return Err(stored.refused(&format!("figures must be three, got {}", figures_read.len())));
        };
        let TrainNotes { iteration, used, replaced, progress, .. } = notes;
        let mut last = Iteration { iteration, rmse, mean_count: 0., used, replaced, coherence };
        let signals = dictionary.prepare(rows)?;
        let mut trainer = Self::resume(dictionary, &signals, config, philox(notes.philox), last)?;
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

impl OnlineTrainer {
    pub(super) fn store(&self, path: &Path, progress: &impl Serialize) -> Result<()> {
        let tensors = [
            ("dictionary", &self.dictionary.atoms),
            ("gram", self.statistics.gram()),
            ("signals", self.statistics.signals()),
        ];
        let tensors = tensors.map(|(name, t)| (name.to_owned(), t.clone()));
        let notes = OnlineNotes {
            config: self.dictionary.config.clone(),
            philox: words(self.philox),
            idle: self.idle.clone(),
            batches: self.batches,
            scale: self.scale,
            gathered: self.gathered,
            training: self.config.clone(),
            progress,
        };
        checkpoint::save(path, ONLINE, tensors, &notes, &notes.config.preparation)
    }

    /// The trainer in a file, and the caller's progress.
    pub(super) fn load<P: DeserializeOwned>(path: &Path, device: &Device) -> Result<(Self, P)> {
        let (stored, notes) = Checkpoint::load::<OnlineNotes<P>>(path, ONLINE, device)?;
        let training = notes.training.clone();
        Self::from_notes(&stored, notes, training, device)
    }

    fn from_notes<P>(
        stored: &Checkpoint<'_>,
        mut notes: OnlineNotes<P>,
        config: OnlineConfig,
        device: &Device,
    ) -> Result<(Self, P)> {
        stored.load_preparation(&mut notes.config.preparation, device)?;
        let (n, p) = (notes.config.n_atoms, notes.config.n_features);
        config.validate(n).map_err(|e| stored.refused(&e))?;
        let coder = notes.config.take_coder(config.coder.as_ref());
        let dictionary = Dictionary::from_tensor(notes.config, stored.get("dictionary")?)
            .map_err(|e| stored.refused(&e))?;
        let statistics = Statistics::load(stored, &notes.idle, [n, p])?;
        let report = report(n, &statistics.gram)?;
        let trainer = Self {
            config,
            coder,
            philox: philox(notes.philox),
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

    /// Reads a checkpoint, to learn on as `config` says.
    ///
    /// # Errors
    /// When the file is missing, cut short or not a checkpoint of this trainer; the message names it.
    pub fn load_checkpoint_as<P: DeserializeOwned>(
        path: &Path,
        config: OnlineConfig,
        device: &Device,
    ) -> Result<(Self, P)> {
        let (stored, notes) = Checkpoint::load::<OnlineNotes<P>>(path, ONLINE, device)?;
        Self::from_notes(&stored, notes, config, device)
    }
}
