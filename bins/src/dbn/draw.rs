//! Pictures of a network.
use super::streams;
use crate::progress::Spinner;
use crate::reconstructions::{COLUMNS, RECONSTRUCTIONS, draw_reconstructions, drawable, shades};
use crate::rows::{self, MeasuredOn, Reads};
use crate::run_folder::RunFolder;
use crate::session::Picture;
use crate::stages::{self, Stage};
use anyhow::Result;
use chandlery::Philox;
use chandlery::dbn::Dbn;
use chandlery::filters::Filters;
use chandlery::pictures::{Shades, mosaic, tile_zoom, write_png};
use chandlery::rbm::{Rbm, RbmConnections};
use chandlery_datasets::count;
use chandlery_datasets::{ImageShape, Split};
use std::path::Path;

/// First-layer filters in the picture of a run.
const FILTERS: usize = 100;
/// Samples in the picture of a run, and Gibbs steps before they are taken: from test rows, since
/// chains from random states mix too slowly to show every kind of row.
pub const SAMPLES: (usize, usize) = (100, 100);

/// Draws filters, reconstructions of test rows and samples into a run folder; nothing when rows are
/// no images that can be drawn.
pub fn run_pictures(
    dbn: &Dbn,
    (test, of): (&Split, MeasuredOn),
    seed: u64,
    folder: &RunFolder,
) -> Result<Vec<Picture>> {
    let _stage = stages::enter(Stage::Pictures);
    let _spinner = Spinner::new("drawing pictures");
    let Some(shape) = drawable(dbn.config()) else {
        return Ok(Vec::new());
    };
    let mut pictures = Vec::new();
    for layer in 0..dbn.layers().len() {
        let Filters { rows: filters, tile, windows } = Filters::of(dbn, layer, shape, FILTERS)?;
        let caption = caption(&dbn.layers()[layer], layer, filters.dim(0)?, windows.then_some(tile));
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

/// What the picture of `n` units of a layer shows; `tile` is the part of the image that each sees.
fn caption(rbm: &Rbm, layer: usize, n: usize, tile: Option<ImageShape>) -> String {
    let what = match layer {
        0 => "weights".to_owned(),
        layer => format!("patterns in the pixels, through the layers below, of layer {}:", layer + 1),
    };
    let of = match layer {
        0 => "of the lowest layer, ",
        _ => "",
    };
    let units = match &rbm.config().connections {
        RbmConnections::Patches(grid) => format!(
            "{} {of}those with the largest norm of {} spread over the image",
            count(n, "unit"),
            count(n.min(grid.n_patches()), "patch")
        ),
        RbmConnections::Filters(grid) => {
            format!("{} {of}those with the largest norm of {}", count(n, "filter"), grid.n_filters)
        }
        RbmConnections::Dense if layer == 0 => format!("the {n} lowest-layer units with the largest norm"),
        RbmConnections::Dense => format!("the {} with the largest norm", count(n, "unit")),
    };
    let of_units = if layer == 0 { " of" } else { "" };
    let seen = match tile {
        Some(tile) => format!("; each sees a window of {}x{}", tile.height, tile.width),
        None => String::new(),
    };
    format!("{what}{of_units} {units}{seen}; mid-grey is 0")
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
    Ok(write_png(&picture, path)?)
}
