//! A network with labels in a folder: `config.json` and `model.safetensors`, here or on the Hugging Face hub.
use super::LabelledDbn;
use crate::pretrained;
use candle::{Device, Result};
use std::path::Path;

impl LabelledDbn {
    /// Loads a network from a folder that [`save`](Self::save) wrote, or by its id (`owner/name`) from the Hugging Face hub
    /// through its cache. Weights are f32.
    ///
    /// # Errors
    /// When there is neither, or a file is missing or does not fit the configuration; the message names it.
    pub fn from_pretrained(folder_or_id: &str, device: &Device) -> Result<Self> {
        pretrained::load(folder_or_id, device, Self::new)
    }

    /// Whether the model in a folder or on the hub has label units, by its `config.json`.
    ///
    /// # Errors
    /// When there is no such file or it cannot be read; the message names it.
    pub fn is_pretrained(folder_or_id: &str) -> Result<bool> {
        let config: serde_json::Value = pretrained::config(folder_or_id)?;
        Ok(config.get("n_classes").is_some() && config.get("sizes").is_some())
    }

    /// Writes `config.json` and `model.safetensors` to a folder, which is made if need be. Each file appears whole.
    ///
    /// `recognition.N.weight` and `recognition.N.bias`, and those of `generative.N`, are a [`candle_nn::Linear`] and a
    /// `torch.nn.Linear` as they stand, upwards and downwards.
    ///
    /// # Errors
    /// When the folder is not writable.
    pub fn save(&self, folder: &Path) -> Result<()> {
        pretrained::save(folder, self.config(), self.tensors())
    }
}
