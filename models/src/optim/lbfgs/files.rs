//! Runs in files.
use super::{Lbfgs, LbfgsConfig, State};
use crate::checkpoint::{self, Checkpoint};
use candle::{Device, Result, Tensor};
use chandlery_datasets::Preparation;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The name of a run in its files.
const NAME: &str = "lbfgs";

#[derive(Serialize, Deserialize)]
struct Notes<P> {
    config: LbfgsConfig,
    state: State,
    progress: P,
}

impl Lbfgs {
    /// Writes the run to one file, with `progress` of the caller. The file appears whole.
    ///
    /// # Errors
    /// When the file is not writable.
    pub fn save(&self, path: &Path, progress: &impl Serialize) -> Result<()> {
        let (tensors, state) = self.stored();
        let notes = Notes { config: self.config, state, progress };
        checkpoint::save(path, NAME, tensors, &notes, &Preparation::default())
    }

    /// Reads what [`save`](Self::save) wrote: the run, which goes on bit for bit on the device that
    /// wrote it, and the caller's progress.
    ///
    /// # Errors
    /// When the file is missing, cut short or of something else; the message names it.
    pub fn load<P: DeserializeOwned>(path: &Path, device: &Device) -> Result<(Self, P)> {
        let (checkpoint, notes) = Checkpoint::load::<Notes<P>>(path, NAME, device)?;
        let (x, rows) = (checkpoint.of_trainer("x")?, checkpoint.of_trainer("rows")?);
        let run = Self::restored(notes.config, &x, rows, notes.state).map_err(|e| checkpoint.refused(&e))?;
        Ok((run, notes.progress))
    }

    /// What a checkpoint holds of the run: its tensors, and the rest.
    pub(crate) fn stored(&self) -> ([(String, Tensor); 2], State) {
        let tensors = [("trainer.x", &self.x), ("trainer.rows", &self.rows)];
        (tensors.map(|(name, t)| (name.to_owned(), t.clone())), self.state.clone())
    }

    /// The run from what was stored.
    pub(crate) fn restored(config: LbfgsConfig, x: &Tensor, rows: Tensor, state: State) -> Result<Self> {
        // Before anything of the size that the history says is allocated.
        config.validate()?;
        let wanted = config.history.checked_mul(2).and_then(|rows| rows.checked_add(4));
        if rows.dims() != [wanted.unwrap_or(0), x.elem_count()] || rows.dtype() != x.dtype() {
            candle::bail!(
                "Lbfgs: rows must be as many as a history of {} has and of the type of x, got {:?} {:?}",
                config.history,
                rows.dims(),
                rows.dtype()
            )
        }
        let mut run = Self::new(x, config)?;
        let slots = config.slots();
        let placed = state.pairs.iter().all(|&(slot, step)| slot < slots && step.is_finite());
        let fits = state.products.len() == run.state.products.len() && state.pairs.len() <= config.history;
        if !(placed && fits && state.next < slots && state.gradient < 2) {
            candle::bail!("Lbfgs: the stored steps do not fit a history of {}", config.history)
        }
        (run.rows, run.state) = (rows, state);
        Ok(run)
    }
}
