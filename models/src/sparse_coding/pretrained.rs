//! A basis in a folder: `config.json` and `model.safetensors`, here or on the Hugging Face hub.
use super::SparseCoding;
use crate::pretrained::{self, ModelType};
use candle::{DType, Device, Result};
use candle_nn::VarBuilder;
use std::path::Path;

/// The name of the tensor.
pub(super) const BASIS: &str = "basis";

impl SparseCoding {
    /// Loads a model from a folder that [`save_pretrained`](Self::save_pretrained) wrote, or by its id (`owner/name`) from the Hugging Face
    /// hub through its cache. The basis keeps the type that it is stored in.
    ///
    /// # Errors
    /// When there is neither, a file is missing or does not fit the configuration, or it is another model; the message names the file.
    pub fn from_pretrained(folder_or_id: &str, device: &Device) -> Result<Self> {
        pretrained::load_stored(ModelType::SparseCoding, folder_or_id, device, |config, tensors| {
            let dtype = tensors.get(BASIS).map_or(DType::F32, |t| t.dtype());
            Self::new(config, VarBuilder::from_tensors(tensors, dtype, device))
        })
    }

    /// Writes `config.json` and `model.safetensors` to a folder, which is made if need be. Each file appears whole.
    ///
    /// The one tensor is `basis`, `[n_atoms, n_features]`.
    ///
    /// # Errors
    /// When the folder is not writable.
    pub fn save_pretrained(&self, folder: &Path) -> Result<()> {
        let basis = [(BASIS.to_owned(), self.basis.clone())];
        pretrained::save(ModelType::SparseCoding, folder, &self.config, &self.config.preparation, basis)
    }
}
