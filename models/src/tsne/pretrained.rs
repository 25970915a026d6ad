//! An embedding in a folder: `config.json` and `model.safetensors`, here or on the Hugging Face hub.
use super::embedding::Known;
use super::{Embedding, TsneConfig};
use crate::pretrained::{self, ModelType};
use candle::{DType, Device, Error, Result};
use std::path::Path;

/// Names of the tensors.
const LAYOUT: &str = "layout";
const ROWS: &str = "rows";
const PREPARED_ROWS: &str = "prepared_rows";

impl Embedding {
    /// Loads an embedding from a folder that [`save_pretrained`](Self::save_pretrained) wrote, or by its id (`owner/name`) from the Hugging
    /// Face hub through its cache.
    ///
    /// # Errors
    /// When there is neither, a file is missing or does not fit the configuration, or it is another model; the message names the file.
    pub fn from_pretrained(folder_or_id: &str, device: &Device) -> Result<Self> {
        pretrained::load_stored(ModelType::Tsne, folder_or_id, device, |config: TsneConfig, mut tensors| {
            let layout = tensors.remove(LAYOUT).ok_or_else(|| Error::Msg(format!("{LAYOUT} is missing")))?;
            let prepared = tensors.remove(PREPARED_ROWS).map(Known::Prepared);
            let rows = tensors.remove(ROWS).map(Known::Raw).or(prepared);
            Self::of(config, layout.to_dtype(DType::F32)?, rows)
        })
    }

    /// Writes `config.json` and `model.safetensors` to a folder, which is made if need be. Each file appears whole.
    ///
    /// The tensors are `layout`, `[n, n_dims]`, and what [`transform`](Self::transform) needs: `rows`, the raw rows in their own type, or
    /// `prepared_rows`.
    ///
    /// # Errors
    /// When the folder is not writable.
    pub fn save_pretrained(&self, folder: &Path) -> Result<()> {
        let layout = (LAYOUT.to_owned(), self.layout.clone());
        let rows = self.rows.iter().map(|rows| match rows {
            Known::Raw(rows) => (ROWS.to_owned(), rows.clone()),
            Known::Prepared(rows) => (PREPARED_ROWS.to_owned(), rows.clone()),
        });
        let tensors = std::iter::once(layout).chain(rows);
        pretrained::save(ModelType::Tsne, folder, &self.config, &self.config.preparation, tensors)
    }
}
