//! Atomic file writes, and safetensors files.
use candle::{Device, Error, Result, Tensor};
use safetensors::SafeTensors;
use std::collections::HashMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

/// Writes to a temporary file and renames it to `path`, so that a reader never sees an incomplete file.
///
/// # Errors
/// When the folder is not writable; the message names the file.
pub fn write_whole(path: &Path, write: impl FnOnce(&mut dyn Write) -> Result<()>) -> Result<()> {
    let named = |e: std::io::Error| Error::Msg(format!("{}: cannot be written: {e}", path.display()));
    let mut beside = path.as_os_str().to_owned();
    beside.push(".part");
    let beside = Path::new(&beside);
    let mut file = BufWriter::new(File::create(beside).map_err(named)?);
    write(&mut file)?;
    let file = file.into_inner().map_err(|e| named(e.into_error()))?;
    file.sync_all().map_err(named)?;
    std::fs::rename(beside, path).map_err(named)
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
    let tensors: Vec<(String, Tensor)> =
        tensors.into_iter().map(|(name, t)| Ok((name, t.contiguous()?))).collect::<Result<_>>()?;
    let bytes = safetensors::serialize(tensors, Some(notes))
        .map_err(|e| Error::Msg(format!("{}: cannot be written: {e}", path.display())))?;
    write_whole(path, |file| file.write_all(&bytes).map_err(Error::wrap))
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
