//! Runs in files.
use super::Descent;
use crate::checkpoint::{self, Checkpoint};
use crate::optim::method::Method;
use crate::optim::state::State;
use candle::{Device, Result, Tensor};
use chandlery_datasets::Preparation;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The name of a run in its files.
const NAME: &str = "descent";

#[derive(Serialize, Deserialize)]
struct Notes<P> {
    method: Method,
    state: State,
    progress: P,
}

impl Descent {
    /// Writes the run to one file, with `progress` of the caller. The file appears whole.
    ///
    /// # Errors
    /// When the file is not writable.
    pub fn save(&self, path: &Path, progress: &impl Serialize) -> Result<()> {
        let (tensors, state) = self.stored();
        let notes = Notes { method: self.method, state, progress };
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
        let run = Self::restored(notes.method, &x, rows, notes.state).map_err(|e| checkpoint.refused(&e))?;
        Ok((run, notes.progress))
    }

    /// What a checkpoint holds of the run: its tensors, and the rest.
    pub(crate) fn stored(&self) -> ([(String, Tensor); 2], State) {
        let tensors = [("trainer.x", &self.x), ("trainer.rows", &self.rows)];
        (tensors.map(|(name, t)| (name.to_owned(), t.clone())), self.state.clone())
    }

    /// The run from what was stored.
    pub(crate) fn restored(method: Method, x: &Tensor, rows: Tensor, state: State) -> Result<Self> {
        // Before anything of the size that the history says is allocated.
        method.validate()?;
        let (name, slots, history) = (method.name(), method.slots(), method.history());
        let wanted = slots.checked_mul(2).and_then(|rows| rows.checked_add(2));
        if rows.dims() != [wanted.unwrap_or(0), x.elem_count()] || rows.dtype() != x.dtype() {
            candle::bail!(
                "{name}: rows must be as many as a history of {history} has and of the type of x, got {:?} {:?}",
                rows.dims(),
                rows.dtype()
            )
        }
        let mut run = Self::new(x, method)?;
        let placed = state.pairs.iter().all(|&(slot, step)| slot < slots && step.is_finite());
        let fits = state.products.len() == run.state.products.len() && state.pairs.len() <= history;
        if !(placed && fits && state.next < slots && state.gradient < 2) {
            candle::bail!("{name}: the stored steps do not fit a history of {history}")
        }
        (run.rows, run.state) = (rows, state);
        Ok(run)
    }
}
