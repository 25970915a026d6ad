//! A dictionary in a folder: `config.json` and `model.safetensors`, here or on the Hugging Face hub.
use super::Dictionary;
use crate::pretrained::{self, ModelType};
use candle::{DType, Device, Result};
use candle_nn::VarBuilder;
use std::path::Path;

/// The name of the tensor.
const DICTIONARY: &str = "dictionary";

impl Dictionary {
    /// Loads a dictionary from a folder that [`save_pretrained`](Self::save_pretrained) wrote, or by its id (`owner/name`) from the
    /// Hugging Face hub through its cache. Atoms keep the type that they are stored in.
    ///
    /// # Errors
    /// When there is neither, a file is missing or does not fit the configuration, or it is another model; the message names the file.
    pub fn from_pretrained(folder_or_id: &str, device: &Device) -> Result<Self> {
        pretrained::load_stored(ModelType::Dictionary, folder_or_id, device, |config, tensors| {
            let dtype = tensors.get(DICTIONARY).map_or(DType::F32, |t| t.dtype());
            Dictionary::new(config, VarBuilder::from_tensors(tensors, dtype, device))
        })
    }

    /// Writes `config.json` and `model.safetensors` to a folder, which is made if need be. Each file appears whole.
    ///
    /// The one tensor is `dictionary`, `[n_atoms, n_features]`.
    ///
    /// # Errors
    /// When the folder is not writable.
    pub fn save_pretrained(&self, folder: &Path) -> Result<()> {
        let atoms = [(DICTIONARY.to_owned(), self.atoms.clone())];
        pretrained::save(ModelType::Dictionary, folder, &self.config, &self.config.preparation, atoms)
    }
}
