//! What a network with labels is used for: classification by free energy, and samples of a class.
use super::sizes;
use crate::dbn::args::{EvaluateArgs, SampleArgs};
use crate::dbn::draw::{drawable, start_rows, zoom};
use crate::dbn::{rows, streams};
use crate::pictures::{Shades, mosaic, write_png};
use crate::progress::Spinner;
use crate::report::{Outcome, Report};
use crate::run_folder::RunFolder;
use crate::session::Picture;
use anyhow::{Context, Result, ensure};
use candle::{Device, Tensor};
use chandlery::Philox;
use chandlery::labelled::LabelledDbn;
use chandlery_datasets::Split;
use serde::Serialize;
use serde_json::json;

/// Samples of each class in a picture, and Gibbs steps before they are taken in that of a run.
const SAMPLES: (usize, usize) = (10, 1000);
/// Samples of one class in a picture.
const OF_ONE_CLASS: usize = 100;
/// Tiles in a line of one class.
const COLUMNS: usize = 10;

/// How good a network with labels is.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Evaluation {
    /// Share of rows whose class of lowest free energy is the label.
    pub accuracy: f64,
    /// Mean over rows of the squared error of recognition up and generation down, summed over the inputs.
    pub reconstruction_error: f64,
    /// Rows measured on.
    pub n_rows: usize,
}

impl Evaluation {
    /// On all rows of a split, a block at a time.
    pub fn of(dbn: &LabelledDbn, split: &Split) -> Result<Self> {
        let _spinner = Spinner::new("evaluating");
        let labels = split.labels_tensor(dbn.device())?.context("--data: rows must have labels, got none")?;
        let mut blocks = rows::Blocks::new(split, dbn.config(), dbn.device())?;
        let (mut hits, mut error, mut n_rows) = (0., 0., 0);
        while let Some(rows) = blocks.next()? {
            let n = rows.dim(0)?;
            hits += dbn.accuracy(&rows, &labels.narrow(0, n_rows, n)?)? * n as f64;
            error += dbn.reconstruction_error(&rows)? * n as f64;
            n_rows += n;
        }
        Ok(Self { accuracy: hits / n_rows as f64, reconstruction_error: error / n_rows as f64, n_rows })
    }

    /// The same for people.
    pub fn line(&self) -> String {
        format!(
            "lowest free energy on {} test rows: {:.2} % right, reconstruction error {:.3}",
            self.n_rows,
            100. * self.accuracy,
            self.reconstruction_error
        )
    }
}

/// Draws a line of samples of each class into a run folder; nothing when rows are no images that can be drawn.
pub fn run_picture(dbn: &LabelledDbn, seed: u64, folder: &RunFolder) -> Result<Option<Picture>> {
    let _spinner = Spinner::new("drawing samples");
    let Some(shape) = drawable(dbn.config()) else {
        return Ok(None);
    };
    let (n, steps) = SAMPLES;
    let samples = dbn.sample(&each_class(dbn, n)?, steps, Philox::new(seed, streams::SAMPLES))?;
    write_png(&mosaic(&samples, shape, n, Shades::Unit, zoom(shape))?, &folder.join("samples_by_class.png"))?;
    Ok(Some(Picture {
        file: "samples_by_class.png",
        caption: format!(
            "samples of the model, a line for each class: {steps} Gibbs steps in the top layer from random states with the label held"
        ),
    }))
}

/// `n` labels of each class, one class after the other.
fn each_class(dbn: &LabelledDbn, n: usize) -> Result<Tensor> {
    let labels = (0..dbn.config().n_classes as u32).flat_map(|class| std::iter::repeat_n(class, n));
    Ok(Tensor::from_iter(labels, dbn.device())?)
}

/// The command `sample` for a network with labels.
pub fn sample(args: &SampleArgs, dbn: &LabelledDbn, device: &Device) -> Result<Outcome> {
    let report = Report::new(args.common.json);
    let shape = args.image.or(drawable(dbn.config())).context(
        "this network's rows have no image shape that can be drawn; give one with --image HEIGHTxWIDTH",
    )?;
    let n_classes = dbn.config().n_classes;
    let (labels, columns) = match args.label {
        Some(label) => {
            ensure!(
                (label as usize) < n_classes,
                "--label: must be below the network's {n_classes} classes, got {label}"
            );
            (Tensor::full(label, args.n.unwrap_or(OF_ONE_CLASS), device)?, COLUMNS)
        }
        None => {
            let n = args.n.unwrap_or(SAMPLES.0);
            (each_class(dbn, n)?, n)
        }
    };
    let spinner = Spinner::new("sampling");
    let philox = Philox::new(args.seed, streams::SAMPLES);
    let n = labels.elem_count();
    let samples = match args.start.as_deref() {
        None => dbn.sample(&labels, args.steps, philox)?,
        Some(start) => {
            let split = start_rows(start, dbn.config().sizes[0], n)?;
            ensure!(
                split.n_samples() == n,
                "--start {start}: there must be {n} rows, one for each sample, got {}; lower --n",
                split.n_samples()
            );
            let rows = rows::all(&split, dbn.config(), device)?;
            dbn.sample_from(&rows, &labels, args.steps, philox)?
        }
    };
    write_png(&mosaic(&samples, shape, columns, Shades::Unit, zoom(shape))?, &args.out)?;
    drop(spinner);
    let of = args.label.map_or(format!("{n_classes} classes"), |label| format!("class {label}"));
    report.line(&format!("{n} samples of {of} in {}", args.out.display()))?;
    report.finish(&json!({
        "out": args.out,
        "n": n,
        "label": args.label,
        "steps": args.steps,
        "start": args.start,
        "seed": args.seed,
    }))?;
    Ok(Outcome::Done)
}

/// The command `evaluate` for a network with labels: on test rows, else on all.
pub fn evaluate(args: &EvaluateArgs, dbn: &LabelledDbn) -> Result<Outcome> {
    let report = Report::new(args.common.json);
    let dataset = args.data.open()?;
    let evaluation = Evaluation::of(dbn, dataset.test.as_ref().unwrap_or(&dataset.train))?;
    report.line(&evaluation.line())?;
    report.finish(&json!({
        "model": args.model.model,
        "data": dataset.name,
        "layers": sizes(dbn.config()),
        "accuracy": evaluation.accuracy,
        "evaluation": evaluation,
    }))?;
    Ok(Outcome::Done)
}
