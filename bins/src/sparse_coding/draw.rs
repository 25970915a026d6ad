//! Pictures of a basis.
use crate::dictionary::draw::{atoms, can_draw};
use crate::session::Picture;
use anyhow::Result;
use chandlery::sparse_coding::SparseCoding;
use std::path::Path;

/// The name of the picture of the basis.
pub const BASIS: &str = "basis.png";

/// Draws the atoms, those with the largest energy (sum of squared activations) first.
pub fn basis(model: &SparseCoding, energy: &[f64], folder: &Path) -> Result<Option<Picture>> {
    let config = model.config();
    let Some(tile) = config.image.filter(|tile| can_draw(tile) && tile.n_features() == config.n_features)
    else {
        return Ok(None);
    };
    let n = atoms(model.basis(), energy, tile, &folder.join(BASIS))?;
    let caption = format!(
        "the {n} atoms with the largest energy (sum of squared activations), the largest at the top left; mid-grey is 0"
    );
    Ok(Some(Picture { file: BASIS, caption }))
}
