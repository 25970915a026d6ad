//! What a trainer needs to go on as if it had not stopped.
use super::online::{Gathered, report};
use super::statistics::{Idle, Statistics};
use super::train::{Previous, Quality, code};
use super::{
    Dictionary, DictionaryConfig, DictionaryTrainConfig, DictionaryTrainer, Iteration, OnlineConfig,
    OnlineTrainer,
};
use crate::checkpoint::{self, Checkpoint, philox, words};
use candle::{Device, Result, Tensor};
use chandlery_ops::{AtomUses, SparseCodes};
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
    /// Missing in files from before it was written.
    #[serde(default = "none")]
    progress: Option<P>,
}

fn none<T>() -> Option<T> {
    None
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
    /// Missing where nothing was scaled yet.
    #[serde(default = "unscaled")]
    scale: Option<f64>,
    #[serde(default)]
    gathered: Gathered,
    /// This and the progress are missing in files from before they were written.
    #[serde(default)]
    training: Option<OnlineConfig>,
    #[serde(default = "none")]
    progress: Option<P>,
}

fn unscaled() -> Option<f64> {
    Some(1.)
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
            progress: Some(progress),
        };
        checkpoint::save(path, BATCH, tensors, &notes, &notes.config.preparation)
    }

    /// Reads what [`save_checkpoint`](Self::save_checkpoint) wrote, for a run with the same raw rows and configuration: the trainer as
    /// it was, and the caller's progress, which files of old versions lack. On the device that wrote it the run goes on bit for bit. The codes are found again, which takes one coding.
    ///
    /// # Errors
    /// When the file is missing, cut short, not a checkpoint of this trainer or of other signals; the message names it.
    pub fn load_checkpoint<P: DeserializeOwned>(
        path: &Path,
        rows: &Tensor,
        config: DictionaryTrainConfig,
    ) -> Result<(Self, Option<P>)> {
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
        let counts = match stored.tensors.contains_key("counts") {
            true => figures("counts")?,
            // Files had none before dictionaries were judged by them.
            false => {
                let best = code(&trainer.coder, &trainer.signals, &best.atoms, iteration)?;
                vec![trainer.last.mean_count, best.quality.mean_count]
            }
        };
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
            training: Some(self.config.clone()),
            progress: Some(progress),
        };
        checkpoint::save(path, ONLINE, tensors, &notes, &notes.config.preparation)
    }

    /// The trainer in a file, and the caller's progress.
    pub(super) fn load<P: DeserializeOwned>(path: &Path, device: &Device) -> Result<(Self, P)> {
        let (stored, mut notes) = Checkpoint::load::<OnlineNotes<P>>(path, ONLINE, device)?;
        let Some(training) = notes.training.take() else {
            return Err(stored.refused(
                &"an old version wrote it, without the configuration; read it with load_checkpoint_as",
            ));
        };
        // Progress without content is stored as null, which is read as none.
        let progress = match notes.progress.take() {
            Some(progress) => progress,
            None => serde_json::from_value(serde_json::Value::Null).map_err(|e| stored.refused(&e))?,
        };
        Ok((Self::from_notes(&stored, notes, training, device)?, progress))
    }

    fn from_notes<P>(
        stored: &Checkpoint<'_>,
        mut notes: OnlineNotes<P>,
        config: OnlineConfig,
        device: &Device,
    ) -> Result<Self> {
        stored.load_preparation(&mut notes.config.preparation, device)?;
        let (n, p) = (notes.config.n_atoms, notes.config.n_features);
        config.validate(n).map_err(|e| stored.refused(&e))?;
        let coder = notes.config.take_coder(config.coder.as_ref());
        let dictionary = Dictionary::from_tensor(notes.config, stored.get("dictionary")?)
            .map_err(|e| stored.refused(&e))?;
        let statistics = Statistics::load(stored, &notes.idle, [n, p])?;
        let report = report(n, &statistics.gram)?;
        Ok(Self {
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
        })
    }

    /// Reads a checkpoint of any version, to learn on as `config` says; the progress is none in files of versions that did not write it.
    ///
    /// # Errors
    /// When the file is missing, cut short or not a checkpoint of this trainer; the message names it.
    pub fn load_checkpoint_as<P: DeserializeOwned>(
        path: &Path,
        config: OnlineConfig,
        device: &Device,
    ) -> Result<(Self, Option<P>)> {
        let (stored, mut notes) = Checkpoint::load::<OnlineNotes<P>>(path, ONLINE, device)?;
        let progress = notes.progress.take();
        Ok((Self::from_notes(&stored, notes, config, device)?, progress))
    }
}
