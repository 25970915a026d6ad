//! Pictures of a network, and the commands `reconstruct` and `sample`.
use super::args::{ReconstructArgs, SampleArgs, SplitArg};
use super::encode::split_of;
use super::rows::{self, Reads};
use super::saved::Saved;
use super::{streams, up_down};
use crate::pictures::{Shades, largest_rows, mosaic, originals_over_reconstructions, write_png};
use crate::progress::Spinner;
use crate::report::{Outcome, Report};
use crate::run_folder::{RunFolder, check_writable};
use crate::session::Picture;
use anyhow::{Context, Result, ensure};
use candle::{Device, Module, Tensor};
use chandlery::Philox;
use chandlery::dbn::Dbn;
use chandlery::feedforward::Feedforward;
use chandlery::labelled::LabelledDbn;
use chandlery_datasets::{DataOptions, ImageShape, Split};
use serde_json::json;
use std::path::Path;

/// First-layer filters in the picture of a run.
const FILTERS: usize = 100;
/// Rows in the picture of reconstructions.
pub const RECONSTRUCTIONS: usize = 40;
/// Samples in the picture of a run, and Gibbs steps before they are taken: from test rows, since chains from random states
/// mix too slowly to show every kind of row.
const SAMPLES: (usize, usize) = (100, 100);
/// Tiles in a line.
pub const COLUMNS: usize = 10;
/// Pixels that a picture's tile should be wide, about.
const TILE_PIXELS: usize = 56;

/// Draws filters, reconstructions of test rows and samples into a run folder; nothing when rows are no images that
/// can be drawn.
pub fn run_pictures(dbn: &Dbn, test: &Split, seed: u64, folder: &RunFolder) -> Result<Vec<Picture>> {
    let _spinner = Spinner::new("drawing pictures");
    let Some(shape) = drawable(dbn.config()) else {
        return Ok(Vec::new());
    };
    let weight = dbn.layers()[0].weight();
    let filters = largest_rows(weight, FILTERS)?;
    let n_filters = filters.dim(0)?;
    let filters = mosaic(&filters, shape, COLUMNS, Shades::Symmetric, zoom(shape))?;
    write_png(&filters, &folder.join("filters.png"))?;
    let path = folder.join("reconstructions.png");
    let reads = Reads::from(dbn.config());
    let n_rows = draw_reconstructions(dbn, reads, test, shape, RECONSTRUCTIONS, weight.device(), &path)?;
    let (n, steps) = SAMPLES;
    let start = test.take(n)?;
    let n = start.n_samples();
    draw_samples(dbn, shape, n, steps, Some(&start), seed, &folder.join("samples.png"))?;
    Ok(vec![
        Picture {
            file: "filters.png",
            caption: format!(
                "weights of the {n_filters} lowest-layer units with the largest norm, mid-grey is 0"
            ),
        },
        Picture {
            file: "reconstructions.png",
            caption: format!("{n_rows} test rows, and below each line what comes back from the top layer"),
        },
        Picture {
            file: "samples.png",
            caption: format!(
                "{n} samples of the model, {steps} Gibbs steps in the top layer from the features of test rows"
            ),
        },
    ])
}

/// The command `reconstruct`.
pub fn reconstruct(args: &ReconstructArgs) -> Result<Outcome> {
    let report = Report::new(args.common.json);
    check_writable(&args.out).context("--out")?;
    let device = args.common.device.open()?;
    let saved = Saved::load(&args.model.model, &device)?;
    let network: &dyn GivesBack = match &saved {
        Saved::Plain(dbn) => dbn,
        Saved::Labelled(dbn) => dbn,
        Saved::Autoencoder(network) => network,
        Saved::Classifier(_) => return Err(saved.refused(&args.model.model, "reconstruct")),
    };
    let reads = saved.reads();
    let dataset = args.data.open()?;
    let image = dataset.image;
    let split = match (args.split, dataset.test.is_some()) {
        (Some(split), _) => split,
        (None, true) => SplitArg::Test,
        (None, false) => SplitArg::Train,
    };
    let split = split_of(dataset, split)?;
    let mut blocks = rows::Blocks::new(&split, reads, &device)?;
    let mut sum = 0.;
    while let Some(rows) = blocks.next()? {
        sum += network.error(&rows)? * rows.dim(0)? as f64;
    }
    let error = sum / split.n_samples() as f64;
    report.line(&format!(
        "mean squared error of {} rows: {error:.4} summed over {} inputs, {:.6} an input",
        split.n_samples(),
        split.n_features(),
        error / split.n_features() as f64
    ))?;
    let shape = image.filter(can_draw).or(drawable(reads));
    if let Some(shape) = shape {
        draw_reconstructions(network, reads, &split, shape, args.n, &device, &args.out)?;
        report.line(&format!("{}", args.out.display()))?;
    }
    report.finish(&json!({
        "out": shape.map(|_| &args.out),
        "n_samples": split.n_samples(),
        "squared_error": error,
        "squared_error_per_input": error / split.n_features() as f64,
    }))?;
    Ok(Outcome::Done)
}

/// The command `sample`.
pub fn sample(args: &SampleArgs) -> Result<Outcome> {
    check_writable(&args.out).context("--out")?;
    let device = args.common.device.open()?;
    match Saved::load(&args.model.model, &device)? {
        Saved::Plain(dbn) => sample_plain(args, &dbn),
        Saved::Labelled(dbn) => up_down::apply::sample(args, &dbn, &device),
        other => Err(other.refused(&args.model.model, "sample")),
    }
}

/// Of a network without labels.
fn sample_plain(args: &SampleArgs, dbn: &Dbn) -> Result<Outcome> {
    let report = Report::new(args.common.json);
    ensure!(
        args.label.is_none(),
        "--label: {0} has no label units; make a network that has with `dbn up-down {0}`",
        args.model.model
    );
    let shape = args.image.or(drawable(dbn.config())).context(
        "this network's rows have no image shape that can be drawn; give one with --image HEIGHTxWIDTH",
    )?;
    let spinner = Spinner::new("sampling");
    let (n, inputs) = (args.n.unwrap_or(SAMPLES.0), dbn.config().layers[0].n_visible);
    let start = args.start.as_deref().map(|start| start_rows(start, inputs, n)).transpose()?;
    let n = start.as_ref().map_or(n, Split::n_samples);
    draw_samples(dbn, shape, n, args.steps, start.as_ref(), args.seed, &args.out)?;
    drop(spinner);
    report.line(&format!("{n} samples in {}", args.out.display()))?;
    report.finish(&json!({
        "out": args.out,
        "n": n,
        "steps": args.steps,
        "start": args.start,
        "seed": args.seed,
    }))?;
    Ok(Outcome::Done)
}

/// A network that gives back what it reads.
trait GivesBack {
    /// What comes back of rows as it reads them, of the same shape.
    fn back(&self, rows: &Tensor) -> candle::Result<Tensor>;

    /// Mean over rows of the squared error of that, summed over the inputs.
    fn error(&self, rows: &Tensor) -> candle::Result<f64>;
}

impl GivesBack for Dbn {
    fn back(&self, rows: &Tensor) -> candle::Result<Tensor> {
        self.reconstruct(rows)
    }

    fn error(&self, rows: &Tensor) -> candle::Result<f64> {
        self.reconstruction_error(rows)
    }
}

impl GivesBack for LabelledDbn {
    fn back(&self, rows: &Tensor) -> candle::Result<Tensor> {
        self.reconstruct(rows)
    }

    fn error(&self, rows: &Tensor) -> candle::Result<f64> {
        self.reconstruction_error(rows)
    }
}

/// An autoencoder.
impl GivesBack for Feedforward {
    fn back(&self, rows: &Tensor) -> candle::Result<Tensor> {
        self.forward(rows)
    }

    fn error(&self, rows: &Tensor) -> candle::Result<f64> {
        self.squared_error(rows)
    }
}

/// Draws rows over their reconstructions and returns how many.
fn draw_reconstructions(
    network: &dyn GivesBack,
    reads: Reads,
    split: &Split,
    shape: ImageShape,
    n: usize,
    device: &Device,
    path: &Path,
) -> Result<usize> {
    let split = split.take(n)?;
    let x = rows::all(&split, reads, device)?;
    let back = network.back(&x)?;
    let picture = originals_over_reconstructions(&x, &back, shape, COLUMNS, shades(reads), zoom(shape))?;
    write_png(&picture, path)?;
    Ok(split.n_samples())
}

/// Up to `n` rows of a data set, of its test split where it has one, to begin chains at.
pub fn start_rows(data: &str, want: usize, n: usize) -> Result<Split> {
    let dataset =
        chandlery_datasets::open(data, &DataOptions::default()).with_context(|| format!("--start {data}"))?;
    ensure!(
        dataset.n_features() == want,
        "--start {data}: rows must have the network's {want} inputs, got {}",
        dataset.n_features()
    );
    let split = dataset.test.unwrap_or(dataset.train);
    Ok(split.take(n)?)
}

/// Draws `n` samples, by chains that begin at the features of `start` or at random states.
fn draw_samples(
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
    let picture = mosaic(&samples, shape, COLUMNS, shades(dbn.config()), zoom(shape))?;
    write_png(&picture, path)
}

/// The image shape that a network remembers, if a picture can be made of it.
pub fn drawable(network: impl Into<Reads>) -> Option<ImageShape> {
    let [height, width, channels] = network.into().image?;
    Some(ImageShape { height, width, channels }).filter(can_draw)
}

pub fn can_draw(shape: &ImageShape) -> bool {
    matches!(shape.channels, 1 | 3)
}

/// Probabilities are shades as they stand; real values are stretched.
fn shades(network: impl Into<Reads>) -> Shades {
    if network.into().scale.is_some() { Shades::MinMax } else { Shades::Unit }
}

pub fn zoom(shape: ImageShape) -> usize {
    (TILE_PIXELS / shape.width.max(1)).max(1)
}
