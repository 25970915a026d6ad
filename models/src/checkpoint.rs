//! What the checkpoints of all trainers share: one safetensors file, with the trainer's notes in its header.
use crate::io::{load_tensors, save_tensors};
use candle::{Device, Error, Result, Tensor};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::HashMap;
use std::fmt::Display;
use std::path::Path;

/// The note of the header that holds those of the trainer.
const NOTES: &str = "chandlery";

/// Writes a checkpoint; the file appears whole.
pub(crate) fn save(
    path: &Path,
    tensors: impl IntoIterator<Item = (String, Tensor)>,
    notes: &impl Serialize,
) -> Result<()> {
    let notes = serde_json::to_string(notes).map_err(Error::wrap)?;
    save_tensors(path, tensors, HashMap::from([(NOTES.to_owned(), notes)]))
}

/// The tensors of a checkpoint that was read.
pub(crate) struct Checkpoint<'a> {
    path: &'a Path,
    pub tensors: HashMap<String, Tensor>,
}

impl<'a> Checkpoint<'a> {
    /// Reads a file and its trainer's notes.
    pub(crate) fn load<N: DeserializeOwned>(path: &'a Path, device: &Device) -> Result<(Self, N)> {
        let (tensors, header) = load_tensors(path, device)?;
        let checkpoint = Self { path, tensors };
        let notes =
            header.get(NOTES).ok_or_else(|| checkpoint.refused(&"its header has no notes of a trainer"))?;
        let notes = serde_json::from_str(notes).map_err(|e| checkpoint.refused(&e))?;
        Ok((checkpoint, notes))
    }

    /// The error of a file that is not a checkpoint; it names the file.
    pub(crate) fn refused(&self, why: &dyn Display) -> Error {
        Error::Msg(format!("{}: not a checkpoint: {why}", self.path.display()))
    }

    /// The tensor `name`.
    pub(crate) fn get(&self, name: &str) -> Result<Tensor> {
        self.tensors.get(name).cloned().ok_or_else(|| self.refused(&format!("{name} is missing")))
    }

    /// What the trainer stored under `name`, beside a model.
    pub(crate) fn of_trainer(&self, name: &str) -> Result<Tensor> {
        self.get(&format!("trainer.{name}"))
    }
}
