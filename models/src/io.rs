//! Safetensors files.
use candle::{Device, Error, Result, Tensor};
use chandlery_datasets::whole::WholeFile;
use safetensors::SafeTensors;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
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
    let unwritten = |e: &dyn Display| Error::Msg(format!("{}: cannot write: {e}", path.display()));
    let mut bytes = safetensors::serialize(tensors, Some(notes)).map_err(|e| unwritten(&e))?;
    if let Some((length, rest)) = bytes.split_first_chunk_mut::<8>() {
        let header = rest.get_mut(..u64::from_le_bytes(*length) as usize).unwrap_or_default();
        sort_notes(header).map_err(|e| unwritten(&e))?;
    }
    Ok(bytes)
}

/// The text of a header.
#[derive(Serialize, Deserialize)]
struct Header {
    #[serde(rename = "__metadata__", default, skip_serializing_if = "Option::is_none")]
    notes: Option<BTreeMap<String, String>>,
    #[serde(flatten)]
    tensors: serde_json::Map<String, Value>,
}

/// Brings the notes in the text of a header into the order of their names. Those of a `HashMap`
/// come in another order each time, and what is equal should be equal files.
pub(crate) fn sort_notes(header: &mut [u8]) -> serde_json::Result<()> {
    let text = serde_json::to_vec(&serde_json::from_slice::<Header>(header)?)?;
    if let Some((to, rest)) = header.split_at_mut_checked(text.len()) {
        to.copy_from_slice(&text);
        rest.fill(b' ');
    }
    Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_contents_are_equal_files_and_read_back() -> Result<()> {
        let notes = || (0..12).map(|i| (format!("note {i} \"\u{e9}\u{1}"), format!("{i}\n"))).collect();
        let tensors = || -> Result<Vec<_>> {
            let of = |n: usize| Ok((format!("t{n}"), Tensor::arange(0u32, n as u32, &Device::Cpu)?));
            [7, 3].map(of).into_iter().collect()
        };
        let path = Path::new("of-a-test");
        let first = bytes_of(path, tensors()?, notes())?;
        for _ in 0..8 {
            assert!(bytes_of(path, tensors()?, notes())? == first);
        }
        let (_, read) = SafeTensors::read_metadata(&first).map_err(Error::wrap)?;
        assert_eq!(read.metadata().as_ref(), Some(&notes()));
        let back = candle::safetensors::load_buffer(&first, &Device::Cpu)?;
        assert_eq!(back["t7"].to_vec1::<u32>()?, [0, 1, 2, 3, 4, 5, 6]);
        assert_eq!(back["t3"].to_vec1::<u32>()?, [0, 1, 2]);
        Ok(())
    }
}
