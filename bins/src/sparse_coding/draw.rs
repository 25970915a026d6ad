//! Pictures of a basis.
use crate::dictionary::draw::{atoms, can_draw};
use crate::run_folder::RunFolder;
use crate::session::Picture;
use anyhow::Result;
use candle::{DType, Device};
use chandlery::Encode;
use chandlery::sparse_coding::SparseCoding;
use chandlery_datasets::Split;

/// The name of the picture of the basis.
pub const BASIS: &str = "basis.png";

/// Rows that are enough to tell which atoms do most of the work.
const SOME: usize = 1024;

/// Draws the atoms, those with the largest energy (sum of squared activations of some rows of `split`) first.
pub fn basis(
    model: &SparseCoding,
    split: &Split,
    device: &Device,
    folder: &RunFolder,
) -> Result<Option<Picture>> {
    let config = model.config();
    let Some(tile) = config.image.filter(|tile| can_draw(tile) && tile.n_features() == config.n_features)
    else {
        return Ok(None);
    };
    let activations = model.encode(&split.take(SOME)?.raw(device)?)?;
    let energy = activations.sqr()?.sum(0)?.to_dtype(DType::F64)?.to_vec1::<f64>()?;
    let n = atoms(model.basis(), &energy, tile, &folder.file(BASIS)?)?;
    let caption = format!(
        "the {n} atoms with the largest energy (sum of squared activations), the largest at the top left; mid-grey is 0"
    );
    Ok(Some(Picture { file: BASIS.to_owned(), caption }))
}
