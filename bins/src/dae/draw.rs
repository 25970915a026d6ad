//! Pictures of a denoising autoencoder, and its learning curves.
use super::measure::{EpochReport, Noise};
use crate::reconstructions::{COLUMNS, RECONSTRUCTIONS, shades};
use crate::rows::{self, MeasuredOn};
use crate::run_folder::RunFolder;
use crate::session::Picture;
use crate::stages::{self, Stage};
use anyhow::Result;
use candle::{Device, Tensor};
use chandlery::dae::StackedDae;
use chandlery::filters::{largest_rows, patterns};
use chandlery::pictures::curves::{Curve, Panel};
use chandlery::pictures::{Shades, can_draw, lines_of, mosaic, tile_zoom, write_png};
use chandlery::{Decode, Model};
use chandlery_datasets::{ImageShape, Split};
use chandlery_ops::layers::{Corruption, corrupt};
use std::path::Path;

/// Lowest-layer filters in the picture of a run.
const FILTERS: usize = 100;

/// Draws filters and reconstructions of test rows into a run folder; nothing when rows are no
/// images that can be drawn.
pub fn run_pictures(
    stack: &StackedDae,
    (test, of): (&Split, MeasuredOn),
    noise: Noise,
    device: &Device,
    folder: &RunFolder,
) -> Result<Vec<Picture>> {
    let _stage = stages::enter(Stage::Pictures);
    let Some(shape) = stack.config().image.filter(can_draw) else {
        return Ok(Vec::new());
    };
    let Some(lowest) = stack.layers().first() else {
        return Ok(Vec::new());
    };
    let filters = patterns(&largest_rows(lowest.weight(), FILTERS)?, &stack.config().preparation)?;
    let n_filters = filters.dim(0)?;
    let filters = mosaic(&filters, shape, COLUMNS, Shades::Symmetric, tile_zoom(shape))?;
    write_png(&filters, &folder.file("filters.png")?)?;
    let path = folder.file("reconstructions.png")?;
    let n = reconstructions(stack, test, noise, RECONSTRUCTIONS, shape, device, &path)?;
    Ok(vec![
        Picture {
            file: "filters.png".to_owned(),
            caption: format!(
                "weights of the {n_filters} lowest-layer units with the largest norm; mid-grey is 0"
            ),
        },
        Picture {
            file: "reconstructions.png".to_owned(),
            caption: format!(
                "{}, below each line the same with {}, and below these what comes back of the corrupted ones",
                of.count(n),
                noise.corruption
            ),
        },
    ])
}

/// Draws the first `n` rows of a split, the same corrupted, and what comes back of these; returns
/// how many rows there are in it.
pub fn reconstructions(
    stack: &StackedDae,
    split: &Split,
    noise: Noise,
    n: usize,
    shape: ImageShape,
    device: &Device,
    path: &Path,
) -> Result<usize> {
    let raw = rows::all(&split.take(n)?, stack.config(), device)?;
    let n = raw.dim(0)?;
    Restored::of(stack, &raw, noise)?.draw(stack, noise.corruption, shape, path)?;
    // What does not fill a line is left out.
    Ok(n - n % COLUMNS.min(n))
}

/// Rows in the unit of raw float rows, `[n, n_inputs]` each.
pub struct Restored {
    /// As the model reads them: what a row lost when it was prepared cannot come back.
    pub original: Tensor,
    /// With noise.
    pub corrupted: Tensor,
    /// What comes back of the corrupted ones.
    pub restored: Tensor,
}

impl Restored {
    /// Of raw rows.
    pub fn of(stack: &StackedDae, raw: &Tensor, noise: Noise) -> Result<Self> {
        let preparation = &stack.config().preparation;
        let x = stack.prepare(raw)?.contiguous()?;
        let corrupted = corrupt(&x, noise.corruption, noise.draws())?;
        Ok(Self {
            restored: preparation.inverse(&stack.reconstruct_prepared(&corrupted)?)?,
            original: preparation.inverse(&x)?,
            corrupted: preparation.inverse(&corrupted)?,
        })
    }

    /// Draws the originals, below them what became of them where there was noise, and at the bottom
    /// what came back.
    pub fn draw(
        &self,
        stack: &StackedDae,
        corruption: Corruption,
        shape: ImageShape,
        path: &Path,
    ) -> Result<()> {
        let noisy = (corruption != Corruption::None).then_some(&self.corrupted);
        let parts: Vec<&Tensor> = [&self.original].into_iter().chain(noisy).chain([&self.restored]).collect();
        let picture = lines_of(&parts, shape, COLUMNS, shades(&stack.config().into()), tile_zoom(shape))?;
        Ok(write_png(&picture, path)?)
    }
}

/// Loss and error of each layer by epoch.
pub fn learning_curves(reports: &[EpochReport], n_layers: usize) -> [Panel; 2] {
    let curve = |layer: usize, name: &str, y: &dyn Fn(&EpochReport) -> Option<f64>| {
        let own = reports.iter().filter(|report| report.layer == layer);
        let points = own.filter_map(|report| Some((report.epoch as f64, y(report)?)));
        Curve::new(format!("layer {layer}, {name}"), points)
    };
    let losses = (1..=n_layers).map(|layer| curve(layer, "training", &|r| Some(r.loss))).collect();
    let errors =
        |layer| [curve(layer, "training", &|r| Some(r.rmse)), curve(layer, "held-out", &|r| r.held_out_rmse)];
    let errors = (1..=n_layers).flat_map(errors).collect();
    let of_input = "reconstruction of a layer's input, with noise";
    [
        Panel::new("loss in training, with noise", "epoch", "loss per row", losses),
        Panel::new(of_input, "epoch", "RMSE per value", errors),
    ]
}
