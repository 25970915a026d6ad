//! Safetensors files.
use candle::{Device, Error, Result, Tensor};
use chandlery_datasets::whole::WholeFile;
use safetensors::SafeTensors;
use std::collections::HashMap;
use std::fmt::Display;
use std::io::Write;
use std::path::Path;

/// Writes named tensors as one safetensors file, with notes in its header. The file appears whole.
///
/// # Errors
/// When the file is not writable or the format does not support a tensor's type; the message names
/// the file.
pub fn save_tensors(
    path: &Path,
    tensors: impl IntoIterator<Item = (String, Tensor)>,
    notes: HashMap<String, String>,
) -> Result<()> {
    written(path, &bytes_of(path, tensors, notes)?)?.finish().map_err(Error::from)
}

/// The bytes of the file that [`save_tensors`] writes.
pub(crate) fn bytes_of(
    path: &Path,
    tensors: impl IntoIterator<Item = (String, Tensor)>,
    notes: HashMap<String, String>,
) -> Result<Vec<u8>> {
    let tensors: Vec<(String, Tensor)> =
        tensors.into_iter().map(|(name, t)| Ok((name, t.contiguous()?))).collect::<Result<_>>()?;
    safetensors::serialize(tensors, Some(notes))
        .map_err(|e| Error::Msg(format!("{}: cannot write: {e}", path.display())))
}

/// A file with these bytes, which does not have its name yet.
pub(crate) fn written(path: &Path, bytes: &[u8]) -> Result<WholeFile> {
    let mut file = WholeFile::create(path)?;
    file.write_all(bytes)?;
    Ok(file)
}

/// Loads the tensors of a safetensors file onto `device`, and the notes of its header.
///
/// # Errors
/// When the file is missing, cut short or not of this format; the message names it.
pub fn load_tensors(
    path: &Path,
    device: &Device,
) -> Result<(HashMap<String, Tensor>, HashMap<String, String>)> {
    tensors_of(path, &read(path)?, device)
}

/// The bytes of a file.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|e| unread(path, &e))
}

/// What [`load_tensors`] makes of the bytes of a file.
pub(crate) fn tensors_of(
    path: &Path,
    bytes: &[u8],
    device: &Device,
) -> Result<(HashMap<String, Tensor>, HashMap<String, String>)> {
    let (_, header) = SafeTensors::read_metadata(bytes).map_err(|e| unread(path, &e))?;
    let tensors = candle::safetensors::load_buffer(bytes, device).map_err(|e| unread(path, &e))?;
    Ok((tensors, header.metadata().clone().unwrap_or_default()))
}

/// The error of a file that is not of this format.
pub(crate) fn unread(path: &Path, why: &dyn Display) -> Error {
    Error::Msg(format!("{}: cannot be read: {why}", path.display()))
}
