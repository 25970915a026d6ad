//! An RBM in a folder: `config.json` and `model.safetensors`, here or on the Hugging Face hub.
use super::Rbm;
use crate::pretrained::{self, ModelType};
use candle::{DType, Device, Result};
use std::path::Path;

impl Rbm {
    /// Loads an RBM from a folder that [`save_pretrained`](Self::save_pretrained) wrote, or by its id (`owner/name`) from the
    /// Hugging Face hub through its cache. Weights are f32.
    ///
    /// # Errors
    /// When there is neither, a file is missing or does not fit the configuration, or it is another model; the message names the file.
    pub fn from_pretrained(folder_or_id: &str, device: &Device) -> Result<Self> {
        Self::from_pretrained_as(folder_or_id, DType::F32, device)
    }

    /// [`from_pretrained`](Self::from_pretrained) with weights in the float type `dtype`, in which the model then computes: f64 weights stay
    /// f64.
    ///
    /// # Errors
    /// As [`from_pretrained`](Self::from_pretrained), and when `dtype` is no float type.
    pub fn from_pretrained_as(folder_or_id: &str, dtype: DType, device: &Device) -> Result<Self> {
        pretrained::load(ModelType::Rbm, folder_or_id, dtype, device, Self::new)
    }

    /// Writes `config.json` and `model.safetensors` to a folder, which is made if need be. Each file appears whole.
    ///
    /// `weight` and `bias` are a [`candle_nn::Linear`] and a `torch.nn.Linear` as they stand; beside them are `visible_bias` and, for
    /// learned deviations, `log_variance`.
    ///
    /// # Errors
    /// When the folder is not writable.
    pub fn save_pretrained(&self, folder: &Path) -> Result<()> {
        let tensors = self.tensors().into_iter().map(|(name, t)| (name.to_owned(), t.clone()));
        pretrained::save(ModelType::Rbm, folder, self.config(), &self.config().preparation, tensors)
    }
}
