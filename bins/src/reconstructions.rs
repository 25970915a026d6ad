//! Rows over what networks give back of them.
use crate::rows::{self, Reads};
use crate::stages::{self, Stage};
use anyhow::Result;
use candle::{Device, Tensor};
use chandlery::Decode;
use chandlery::pictures::{Shades, can_draw, originals_over_reconstructions, tile_zoom, write_png};
use chandlery_datasets::{ImageShape, Split};
use std::path::Path;

/// Rows in the picture of reconstructions.
pub const RECONSTRUCTIONS: usize = 40;
/// Tiles in a line.
pub const COLUMNS: usize = 10;

/// A network that gives back what it reads.
pub trait GivesBack {
    /// [`Decode::reconstruct`].
    fn back(&self, rows: &Tensor) -> candle::Result<Tensor>;

    /// [`Decode::reconstruction_error`].
    fn error(&self, rows: &Tensor) -> candle::Result<f64>;
}

impl<M: Decode> GivesBack for M {
    fn back(&self, rows: &Tensor) -> candle::Result<Tensor> {
        self.reconstruct(rows)
    }

    fn error(&self, rows: &Tensor) -> candle::Result<f64> {
        self.reconstruction_error(rows)
    }
}

/// Draws rows over their reconstructions and returns how many.
pub fn draw_reconstructions(
    network: &dyn GivesBack,
    reads: &Reads,
    split: &Split,
    shape: ImageShape,
    n: usize,
    device: &Device,
    path: &Path,
) -> Result<usize> {
    let _stage = stages::enter(Stage::Pictures);
    let split = split.take(n)?;
    let raw = rows::all(&split, reads.clone(), device)?;
    let preparation = &reads.preparation;
    // Both as the network sees them: what a row lost when it was prepared cannot come back.
    let seen = preparation.inverse(&preparation.apply(&raw)?)?;
    let back = network.back(&raw)?;
    let picture =
        originals_over_reconstructions(&seen, &back, shape, COLUMNS, shades(reads), tile_zoom(shape))?;
    write_png(&picture, path)?;
    Ok(split.n_samples())
}

/// The image shape that a network remembers, if a picture can be made of it.
pub fn drawable(network: impl Into<Reads>) -> Option<ImageShape> {
    network.into().image.filter(can_draw)
}

/// Probabilities are shades as they stand; real values are stretched.
pub fn shades(reads: &Reads) -> Shades {
    if reads.gaussian { Shades::MinMax } else { Shades::Unit }
}
