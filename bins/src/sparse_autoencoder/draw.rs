//! Pictures of a sparse autoencoder.
use crate::pictures::{Shades, can_draw, mosaic, tile_zoom, write_png};
use crate::run_folder::RunFolder;
use crate::session::Picture;
use anyhow::Result;
use chandlery::sparse_autoencoder::SparseAutoencoder;
use chandlery_datasets::ImageShape;

/// Features beyond these are left out: the picture stays one that can be looked at.
const MOST: usize = 400;
/// The name of the picture of features.
pub const FILTERS: &str = "filters.png";

/// The shape of what the model reads, where it is an image that can be drawn.
pub fn shape_of(model: &SparseAutoencoder) -> Option<ImageShape> {
    let config = model.config();
    config.image.filter(|shape| can_draw(shape) && shape.n_features() == config.n_visible)
}

/// Draws the input of norm 1 that activates each feature most.
pub fn filters(model: &SparseAutoencoder, folder: &RunFolder) -> Result<Option<Picture>> {
    let Some(shape) = shape_of(model) else { return Ok(None) };
    let inputs = model.maximal_inputs()?;
    let n = inputs.dim(0)?.min(MOST);
    let columns = (n as f64).sqrt().ceil() as usize;
    let picture = mosaic(&inputs.narrow(0, 0, n)?, shape, columns, Shades::Symmetric, tile_zoom(shape))?;
    write_png(&picture, &folder.file(FILTERS)?)?;
    let caption = format!("the inputs of norm 1 that activate {n} features most; mid-grey is 0");
    Ok(Some(Picture { file: FILTERS.to_owned(), caption }))
}
