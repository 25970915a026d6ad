//! Pictures of a network.
use super::filters::Filters;
use super::streams;
use crate::data::MeasuredOn;
use crate::pictures::{Shades, can_draw, mosaic, originals_over_reconstructions, tile_zoom, write_png};
use crate::progress::Spinner;
use crate::rows::{self, Reads};
use crate::run_folder::RunFolder;
use crate::session::Picture;
use anyhow::Result;
use candle::{Device, Tensor};
use chandlery::dbn::Dbn;
use chandlery::{Decode, Philox};
use chandlery_datasets::count;
use chandlery_datasets::{ImageShape, Split};
use std::path::Path;

/// First-layer filters in the picture of a run.
const FILTERS: usize = 100;
/// Rows in the picture of reconstructions.
pub const RECONSTRUCTIONS: usize = 40;
/// Samples in the picture of a run, and Gibbs steps before they are taken: from test rows, since chains from random states
/// mix too slowly to show every kind of row.
pub const SAMPLES: (usize, usize) = (100, 100);
/// Tiles in a line.
pub const COLUMNS: usize = 10;

/// Draws filters, reconstructions of test rows and samples into a run folder; nothing when rows are no images that
/// can be drawn.
pub fn run_pictures(
    dbn: &Dbn,
    (test, of): (&Split, MeasuredOn),
    seed: u64,
    folder: &RunFolder,
) -> Result<Vec<Picture>> {
    let _spinner = Spinner::new("drawing pictures");
    let Some(shape) = drawable(dbn.config()) else {
        return Ok(Vec::new());
    };
    let mut pictures = Vec::new();
    for layer in 0..dbn.layers().len() {
        let Filters { rows: filters, tile, caption } = Filters::of(dbn, layer, shape, FILTERS)?;
        let filters = mosaic(&filters, tile, COLUMNS, Shades::Symmetric, tile_zoom(tile))?;
        let file = match layer {
            0 => "filters.png".to_owned(),
            layer => format!("filters-{}.png", layer + 1),
        };
        write_png(&filters, &folder.file(&file)?)?;
        pictures.push(Picture { file, caption });
    }
    let path = folder.file("reconstructions.png")?;
    let reads = Reads::from(dbn.config());
    let device = dbn.layers()[0].weight().device();
    let n_rows = draw_reconstructions(dbn, &reads, test, shape, RECONSTRUCTIONS, device, &path)?;
    let (n, steps) = SAMPLES;
    let start = test.take(n)?;
    let n = start.n_samples();
    draw_samples(dbn, shape, n, steps, Some(&start), seed, &folder.file("samples.png")?)?;
    pictures.extend([
        Picture {
            file: "reconstructions.png".to_owned(),
            caption: format!(
                "{}, with their reconstructions from the top layer below each line",
                of.count(n_rows)
            ),
        },
        Picture {
            file: "samples.png".to_owned(),
            caption: format!(
                "{} of the model, {} in the top layer from the features of {}",
                count(n, "sample"),
                count(steps, "Gibbs step"),
                of.rows()
            ),
        },
    ]);
    Ok(pictures)
}

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

/// Draws `n` samples, by chains that begin at the features of `start` or at random states.
pub fn draw_samples(
    dbn: &Dbn,
    shape: ImageShape,
    n: usize,
    steps: usize,
    start: Option<&Split>,
    seed: u64,
    path: &Path,
) -> Result<()> {
    let philox = Philox::new(seed, streams::SAMPLES);
    let samples = match start {
        Some(split) => {
            let rows = rows::all(split, dbn.config(), dbn.layers()[0].weight().device())?;
            dbn.sample_from(&rows, steps, philox)?
        }
        None => dbn.sample(n, steps, philox)?,
    };
    let samples = dbn.config().preparation.inverse(&samples)?;
    let picture = mosaic(&samples, shape, COLUMNS, shades(&dbn.config().into()), tile_zoom(shape))?;
    write_png(&picture, path)
}

/// The image shape that a network remembers, if a picture can be made of it.
pub fn drawable(network: impl Into<Reads>) -> Option<ImageShape> {
    network.into().image.filter(can_draw)
}

/// Probabilities are shades as they stand; real values are stretched.
fn shades(reads: &Reads) -> Shades {
    if reads.gaussian { Shades::MinMax } else { Shades::Unit }
}
