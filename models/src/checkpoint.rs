//! What the checkpoints of all trainers share: one safetensors file, with the trainer's notes in its header.
use crate::io::{load_tensors, save_tensors};
use candle::{DType, Device, Error, Result, Tensor};
use chandlery_datasets::Preparation;
use chandlery_ops::{Philox, advance_, scale_into_};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::HashMap;
use std::fmt::Display;
use std::path::Path;

/// The entry of the header that holds the notes of the trainer.
const NOTES: &str = "chandlery";
/// The entry that names the trainer; files from before it was written have none.
const TRAINER: &str = "trainer";
/// The entry with the version of the form of the file.
const FORMAT: &str = "trainer_format";
const CURRENT: u32 = 2;

/// Writes a checkpoint of the trainer of this name, with what was fitted of the preparation that is part of `notes`; the file appears
/// whole.
pub(crate) fn save(
    path: &Path,
    trainer: &str,
    tensors: impl IntoIterator<Item = (String, Tensor)>,
    notes: &impl Serialize,
    preparation: &Preparation,
) -> Result<()> {
    let notes = serde_json::to_string(notes).map_err(Error::wrap)?;
    let header = [(NOTES, notes), (TRAINER, trainer.to_owned()), (FORMAT, CURRENT.to_string())];
    let tensors = tensors.into_iter().chain(preparation.tensors().map_err(Error::wrap)?);
    save_tensors(path, tensors, header.into_iter().map(|(name, text)| (name.to_owned(), text)).collect())
}

/// The tensors of a checkpoint that was read.
pub struct Checkpoint<'a> {
    path: &'a Path,
    pub(crate) tensors: HashMap<String, Tensor>,
}

impl<'a> Checkpoint<'a> {
    /// Reads a file of the trainer of this name, and the trainer's notes.
    pub(crate) fn load<N: DeserializeOwned>(
        path: &'a Path,
        trainer: &str,
        device: &Device,
    ) -> Result<(Self, N)> {
        let (tensors, header) = load_tensors(path, device)?;
        let checkpoint = Self { path, tensors };
        if let Some(of) = header.get(TRAINER).filter(|of| *of != trainer) {
            return Err(checkpoint.refused(&format!("it is of the trainer `{of}`, wanted `{trainer}`")));
        }
        let format = header.get(FORMAT).map_or(Ok(CURRENT), |format| format.parse::<u32>());
        if format.as_ref().map_or(true, |&format| format > CURRENT) {
            return Err(checkpoint.refused(&format!(
                "its format is {}, and this version reads formats up to {CURRENT}: a newer version wrote it",
                header.get(FORMAT).map_or("", String::as_str)
            )));
        }
        let notes =
            header.get(NOTES).ok_or_else(|| checkpoint.refused(&"its header has no notes of a trainer"))?;
        let notes = serde_json::from_str(notes).map_err(|e| checkpoint.refused(&e))?;
        Ok((checkpoint, notes))
    }

    /// Adds what was fitted to a preparation that the notes named.
    pub(crate) fn load_preparation(&self, preparation: &mut Preparation, device: &Device) -> Result<()> {
        preparation.load(&self.tensors, device).map_err(|e| self.refused(&e))
    }

    /// The error of a file that is not a checkpoint; it names the file.
    pub(crate) fn refused(&self, why: &dyn Display) -> Error {
        Error::Msg(format!("{}: not a checkpoint: {why}", self.path.display()))
    }

    /// The tensor `name`.
    pub(crate) fn get(&self, name: &str) -> Result<Tensor> {
        self.tensors.get(name).cloned().ok_or_else(|| self.refused(&format!("{name} is missing")))
    }

    /// Counts that the trainer stored, such as steps made and those since the last report.
    pub(crate) fn counts<const N: usize>(&self) -> Result<[u64; N]> {
        let counts = self.of_trainer("counts")?.to_vec1::<i64>()?;
        match <[i64; N]>::try_from(counts) {
            Ok(counts) => Ok(counts.map(|n| n as u64)),
            Err(counts) => {
                Err(self.refused(&format!("trainer.counts must be {N} numbers, got {}", counts.len())))
            }
        }
    }

    /// What the trainer stored under `name`, beside a model.
    pub(crate) fn of_trainer(&self, name: &str) -> Result<Tensor> {
        self.get(&format!("trainer.{name}"))
    }
}

/// Puts back tensors of a trainer's state: those named in `state`, from what `find` gives for the names.
///
/// # Errors
/// When a tensor is missing or has another shape.
pub(crate) fn put_back<'a>(
    trainer: &str,
    state: impl IntoIterator<Item = (&'a str, &'a Tensor)>,
    find: impl Fn(&str) -> Result<Tensor>,
) -> Result<()> {
    for (name, to) in state {
        let from = find(name)?;
        if from.dims() != to.dims() {
            candle::bail!("{trainer}: {name} must have shape {:?}, got {:?}", to.dims(), from.dims())
        }
        match to.dtype() {
            DType::I64 => {
                let value = |t: &Tensor| Ok::<_, Error>(t.to_vec1::<i64>()?[0]);
                advance_(to, value(&from)?.wrapping_sub(value(to)?))?;
            }
            _ => scale_into_(to, &from.to_dtype(DType::F32)?.to_device(to.device())?.contiguous()?, 1.)?,
        }
    }
    Ok(())
}

/// A place in the random sequence as notes hold it.
pub(crate) fn words(philox: Philox) -> [u64; 3] {
    [philox.seed, philox.stream, philox.offset]
}

/// The place that [`words`] wrote.
pub(crate) fn philox([seed, stream, offset]: [u64; 3]) -> Philox {
    Philox { seed, stream, offset }
}
