//! Checkpoints of all trainers: one safetensors file, with the trainer's notes and a checksum in
//! its header.
//!
//! The entry `crc32` of the header is the CRC-32 of the whole file, in eight hexadecimal digits,
//! with `00000000` in their place. A file of which a bit has changed is refused.
use crate::io::{bytes_of, read, tensors_of, unread, written};
use crate::pieces::{self, InPieces, Streamed};
use candle::{DType, Device, Error, Result, Tensor};
use chandlery_datasets::Preparation;
use chandlery_ops::arrays::scale_into_;
use chandlery_ops::core::advance_;
use flate2::Crc;
use safetensors::SafeTensors;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::HashMap;
use std::fmt::Display;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;

/// The entry of the header that holds the notes of the trainer.
const NOTES: &str = "chandlery";
/// The entry that names the trainer.
const TRAINER: &str = "trainer";
/// The entry with the version of the form of the file.
const FORMAT: &str = "trainer_format";
const CURRENT: u32 = 2;
/// The entry with the checksum, and what stands there while it is taken.
const CHECKSUM: &str = "crc32";
const NO_CHECKSUM: &str = "00000000";

/// Writes a checkpoint of the trainer of this name, with what was fitted of the preparation that is
/// part of `notes`; the file appears whole.
pub(crate) fn save(
    path: &Path,
    trainer: &str,
    tensors: impl IntoIterator<Item = (String, Tensor)>,
    notes: &impl Serialize,
    preparation: &Preparation,
) -> Result<()> {
    let header = entries(trainer, notes)?;
    let tensors = tensors.into_iter().chain(preparation.tensors().map_err(Error::wrap)?);
    let mut bytes = bytes_of(path, tensors, header)?;
    let Some(place) = place_of(&bytes, NO_CHECKSUM) else {
        candle::bail!("{}: cannot write: its header has no place for a checksum", path.display())
    };
    let sum = format!("{:08x}", begun(&bytes, place).sum());
    if let Some(digits) = bytes.get_mut(place..place + NO_CHECKSUM.len()) {
        digits.copy_from_slice(sum.as_bytes());
    }
    Ok(written(path, &bytes)?.finish()?)
}

/// The same a piece at a time; the tensors are [in order](pieces::in_order).
pub(crate) fn save_in_pieces(
    path: &Path,
    trainer: &str,
    tensors: &[Streamed<'_>],
    notes: &impl Serialize,
) -> Result<()> {
    let (mut file, header, sum) = pieces::written(path, tensors, entries(trainer, notes)?)?;
    let Some(place) = place_of(&header, NO_CHECKSUM) else {
        candle::bail!("{}: cannot write: its header has no place for a checksum", path.display())
    };
    file.seek(SeekFrom::Start(place as u64))?;
    file.write_all(format!("{:08x}", sum.sum()).as_bytes())?;
    Ok(file.finish()?)
}

/// The entries of a header.
fn entries(trainer: &str, notes: &impl Serialize) -> Result<HashMap<String, String>> {
    let notes = serde_json::to_string(notes).map_err(Error::wrap)?;
    let entries = [
        (NOTES, notes),
        (TRAINER, trainer.to_owned()),
        (FORMAT, CURRENT.to_string()),
        (CHECKSUM, NO_CHECKSUM.to_owned()),
    ];
    Ok(entries.into_iter().map(|(name, text)| (name.to_owned(), text)).collect())
}

/// Refuses a checkpoint that is not as it was written. Reads it in pieces.
///
/// # Errors
/// When the file is missing, cut short, damaged or of something else; the message names it.
pub fn verify(path: &Path) -> Result<()> {
    /// Bytes of a piece.
    const PIECE: usize = 1 << 20;
    let opened = InPieces::open(path)?.notes();
    let mut file = File::open(path).map_err(|e| unread(path, &e))?;
    let header = pieces::header(path, &mut file)?;
    let Some(want) = opened.get(CHECKSUM) else { return Err(no_checksum(path)) };
    let Some(place) = place_of(&header, want) else { return Err(no_checksum(path)) };
    let mut sum = begun(&header, place);
    let mut piece = vec![0; PIECE];
    loop {
        match file.read(&mut piece).map_err(|e| unread(path, &e))? {
            0 => break,
            n => sum.update(piece.get(..n).unwrap_or_default()),
        }
    }
    compared(path, want, &sum)
}

fn no_checksum(path: &Path) -> Error {
    Error::Msg(format!("{}: not a checkpoint: its header has no checksum", path.display()))
}

fn compared(path: &Path, want: &str, sum: &Crc) -> Result<()> {
    let got = format!("{:08x}", sum.sum());
    if got != want {
        candle::bail!("{}: damaged: its checksum must be {want}, got {got}", path.display())
    }
    Ok(())
}

/// As [`verify`], for the bytes of the file.
fn check(path: &Path, bytes: &[u8]) -> Result<()> {
    let (_, header) = SafeTensors::read_metadata(bytes).map_err(|e| unread(path, &e))?;
    let sum = header.metadata().as_ref().and_then(|entries| entries.get(CHECKSUM));
    let place = sum.and_then(|sum| place_of(bytes, sum));
    let (Some(sum), Some(place)) = (sum, place) else { return Err(no_checksum(path)) };
    compared(path, sum, &begun(bytes, place))
}

/// Where the digits `sum` of the entry with the checksum begin. Within other entries quotation
/// marks have a backslash before them.
fn place_of(bytes: &[u8], sum: &str) -> Option<usize> {
    let entry = format!("\"{CHECKSUM}\":\"{sum}\"");
    let found = bytes.windows(entry.len()).position(|window| window == entry.as_bytes())?;
    (sum.len() == NO_CHECKSUM.len()).then_some(found + entry.len() - 1 - sum.len())
}

/// The CRC-32 of bytes, without the digits of a checksum at `place`; others may follow.
fn begun(bytes: &[u8], place: usize) -> Crc {
    let mut sum = Crc::new();
    sum.update(bytes.get(..place).unwrap_or_default());
    sum.update(NO_CHECKSUM.as_bytes());
    sum.update(bytes.get(place + NO_CHECKSUM.len()..).unwrap_or_default());
    sum
}

/// The tensors of a checkpoint that was read.
pub struct Checkpoint<'a> {
    path: &'a Path,
    pub(crate) tensors: HashMap<String, Tensor>,
}

impl Checkpoint<'static> {
    /// One that is in no file.
    pub(crate) fn of(tensors: Vec<(String, Tensor)>) -> Self {
        Self { path: Path::new(""), tensors: tensors.into_iter().collect() }
    }
}

impl<'a> Checkpoint<'a> {
    /// Reads a file of the trainer of this name, and the trainer's notes.
    pub(crate) fn load<N: DeserializeOwned>(
        path: &'a Path,
        trainer: &str,
        device: &Device,
    ) -> Result<(Self, N)> {
        let bytes = read(path)?;
        check(path, &bytes)?;
        let (tensors, header) = tensors_of(path, &bytes, device)?;
        let checkpoint = Self { path, tensors };
        let notes = checkpoint.notes(&header, trainer)?;
        Ok((checkpoint, notes))
    }

    /// The tensors of a file that is read in pieces but for those of these names, and the notes of
    /// the trainer. Does not look whether the file is damaged.
    pub(crate) fn of_pieces<N: DeserializeOwned>(
        path: &'a Path,
        file: &InPieces,
        trainer: &str,
        names: &[&str],
        device: &Device,
    ) -> Result<(Self, N)> {
        let checkpoint = Self { path, tensors: file.all_but(names, device)? };
        let notes = checkpoint.notes(&file.notes(), trainer)?;
        Ok((checkpoint, notes))
    }

    /// The notes of a header, if it is of the trainer of this name.
    fn notes<N: DeserializeOwned>(&self, header: &HashMap<String, String>, trainer: &str) -> Result<N> {
        let checkpoint = self;
        let entry = |name: &str| header.get(name).map_or("", String::as_str);
        let (of, format) = (entry(TRAINER), entry(FORMAT));
        if of != trainer {
            return Err(checkpoint.refused(&format!("it is of the trainer `{of}`, wanted `{trainer}`")));
        }
        if format != CURRENT.to_string() {
            return Err(checkpoint.refused(&format!(
                "its format is {format}, and this version reads format {CURRENT}: another version wrote it"
            )));
        }
        let notes =
            header.get(NOTES).ok_or_else(|| checkpoint.refused(&"its header has no notes of a trainer"))?;
        serde_json::from_str(notes).map_err(|e| checkpoint.refused(&e))
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

/// Puts back tensors of a trainer's state: those named in `state`, from what `find` gives for the
/// names.
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

/// A place in the random sequence as notes hold it: seed, stream and offset.
pub(crate) mod place {
    use chandlery_ops::Philox;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<S: Serializer>(philox: &Philox, to: S) -> Result<S::Ok, S::Error> {
        [philox.seed, philox.stream, philox.offset].serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Philox, D::Error> {
        <[u64; 3]>::deserialize(from).map(|[seed, stream, offset]| Philox { seed, stream, offset })
    }
}
