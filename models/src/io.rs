//! Atomic file writes, and safetensors files.
use candle::{Device, Error, Result, Tensor};
use safetensors::SafeTensors;
use std::collections::HashMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

/// Writes to a temporary file and renames it to `path`, so that a reader never sees an incomplete file.
///
/// # Errors
/// When the folder is not writable; the message names the file.
pub fn write_whole(path: &Path, write: impl FnOnce(&mut dyn Write) -> Result<()>) -> Result<()> {
    Beside::write(path, write)?.appear()
}

/// A file that was written whole beside its name, and does not appear there yet.
pub(crate) struct Beside {
    path: PathBuf,
    beside: PathBuf,
}

impl Beside {
    /// Writes it.
    pub(crate) fn write(path: &Path, write: impl FnOnce(&mut dyn Write) -> Result<()>) -> Result<Self> {
        let mut beside = path.as_os_str().to_owned();
        beside.push(".part");
        let file = Self { path: path.to_owned(), beside: beside.into() };
        let mut to = BufWriter::new(File::create(&file.beside).map_err(|e| file.named(&e))?);
        write(&mut to)?;
        let to = to.into_inner().map_err(|e| file.named(e.error()))?;
        to.sync_all().map_err(|e| file.named(&e))?;
        Ok(file)
    }

    /// Writes named tensors, see [`save_tensors`].
    pub(crate) fn write_tensors(
        path: &Path,
        tensors: impl IntoIterator<Item = (String, Tensor)>,
        notes: HashMap<String, String>,
    ) -> Result<Self> {
        let tensors: Vec<(String, Tensor)> =
            tensors.into_iter().map(|(name, t)| Ok((name, t.contiguous()?))).collect::<Result<_>>()?;
        let bytes = safetensors::serialize(tensors, Some(notes))
            .map_err(|e| Error::Msg(format!("{}: cannot be written: {e}", path.display())))?;
        Self::write(path, |file| file.write_all(&bytes).map_err(Error::wrap))
    }

    /// Gives it its name.
    pub(crate) fn appear(self) -> Result<()> {
        std::fs::rename(&self.beside, &self.path).map_err(|e| self.named(&e))
    }

    fn named(&self, e: &std::io::Error) -> Error {
        Error::Msg(format!("{}: cannot be written: {e}", self.path.display()))
    }
}

/// Writes named tensors as one safetensors file, with notes in its header.
///
/// # Errors
/// When the file is not writable or the format does not support a tensor's type.
pub fn save_tensors(
    path: &Path,
    tensors: impl IntoIterator<Item = (String, Tensor)>,
    notes: HashMap<String, String>,
) -> Result<()> {
    Beside::write_tensors(path, tensors, notes)?.appear()
}

/// Loads the tensors of a safetensors file onto `device`, and the notes of its header.
///
/// # Errors
/// When the file is missing, cut short or not of this format; the message names it.
pub fn load_tensors(
    path: &Path,
    device: &Device,
) -> Result<(HashMap<String, Tensor>, HashMap<String, String>)> {
    let named = |e: &dyn std::fmt::Display| Error::Msg(format!("{}: cannot be read: {e}", path.display()));
    let bytes = std::fs::read(path).map_err(|e| named(&e))?;
    let (_, header) = SafeTensors::read_metadata(&bytes).map_err(|e| named(&e))?;
    let tensors = candle::safetensors::load_buffer(&bytes, device).map_err(|e| named(&e))?;
    Ok((tensors, header.metadata().clone().unwrap_or_default()))
}
