//! A model in a folder: `config.json` and `model.safetensors`, here or on the Hugging Face hub.
use crate::io::{load_tensors, save_tensors, write_whole};
use candle::{DType, Device, Error, Result, Tensor};
use candle_nn::VarBuilder;
use hf_hub::HFClientSync;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

const CONFIG: &str = "config.json";
const WEIGHTS: &str = "model.safetensors";

/// Reads the configuration from a folder, or by an id (`owner/name`) from the hub through its cache, and makes the model of
/// it and of the weights, in f32 on `device`.
///
/// # Errors
/// When there is neither, or a file is missing or does not fit; the message names it.
pub(crate) fn load<C: DeserializeOwned, M>(
    folder_or_id: &str,
    device: &Device,
    make: impl FnOnce(C, VarBuilder) -> Result<M>,
) -> Result<M> {
    load_stored(folder_or_id, device, |config, tensors| {
        make(config, VarBuilder::from_tensors(tensors, DType::F32, device))
    })
}

/// The same from the tensors in the types that they are stored in.
pub(crate) fn load_stored<C: DeserializeOwned, M>(
    folder_or_id: &str,
    device: &Device,
    make: impl FnOnce(C, HashMap<String, Tensor>) -> Result<M>,
) -> Result<M> {
    let parsed = config(folder_or_id)?;
    let weights = file(folder_or_id, WEIGHTS)?;
    let (tensors, _) = load_tensors(&weights, device)?;
    make(parsed, tensors).map_err(|e| Error::Msg(format!("{}: {e}", weights.display())))
}

/// Reads the configuration alone.
///
/// # Errors
/// When there is none or it cannot be read; the message names it.
pub(crate) fn config<C: DeserializeOwned>(folder_or_id: &str) -> Result<C> {
    let config = file(folder_or_id, CONFIG)?;
    let named = |e: &dyn std::fmt::Display| Error::Msg(format!("{}: cannot be read: {e}", config.display()));
    let text = std::fs::read_to_string(&config).map_err(|e| named(&e))?;
    serde_json::from_str(&text).map_err(|e| named(&e))
}

/// Writes both files to a folder, which is made if need be. Each file appears whole.
///
/// # Errors
/// When the folder is not writable.
pub(crate) fn save(
    folder: &Path,
    config: &impl Serialize,
    tensors: impl IntoIterator<Item = (String, Tensor)>,
) -> Result<()> {
    std::fs::create_dir_all(folder)
        .map_err(|e| Error::Msg(format!("{}: cannot be made: {e}", folder.display())))?;
    let notes = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    save_tensors(&folder.join(WEIGHTS), tensors, notes)?;
    write_whole(&folder.join(CONFIG), |file| {
        serde_json::to_writer_pretty(&mut *file, config).map_err(Error::wrap)?;
        file.write_all(b"\n").map_err(Error::wrap)
    })
}

/// The path of a model's file.
fn file(folder_or_id: &str, name: &str) -> Result<PathBuf> {
    let folder = Path::new(folder_or_id);
    if folder.is_dir() { Ok(folder.join(name)) } else { from_hub(folder_or_id, name) }
}

/// The path of a model's file in the hub's cache, downloaded if it is not there.
fn from_hub(id: &str, file: &str) -> Result<PathBuf> {
    let named = |why: &dyn std::fmt::Display| {
        Error::Msg(format!("{id}: neither a folder here nor a model with {file} that the hub gives: {why}"))
    };
    let Some((owner, name)) = id.split_once('/').filter(|(_, name)| !name.is_empty() && !name.contains('/'))
    else {
        return Err(named(&"an id has the form owner/name"));
    };
    let client = HFClientSync::new().map_err(|e| named(&e))?;
    let repository = client.model(owner, name);
    let download = repository.download_file().filename(file);
    match download.clone().local_files_only(true).send() {
        Err(hf_hub::HFError::LocalEntryNotFound { .. }) => download.send(),
        cached => cached,
    }
    .map_err(|e| named(&e))
}
