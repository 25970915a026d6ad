//! Uses of a network with labels: classification by free energy, and samples of its classes.
use crate::dbn::streams;
use crate::progress::Spinner;
use crate::ranks::Ranks;
use crate::reconstructions::drawable;
use crate::rows::{self, MeasuredOn};
use crate::run_folder::RunFolder;
use crate::session::Picture;
use crate::stages::{self, Stage};
use anyhow::{Context, Result};
use candle::Tensor;
use chandlery::labelled::LabelledDbn;
use chandlery::pictures::{Shades, mosaic, tile_zoom, write_png};
use chandlery::{Decode, Model, Philox};
use chandlery_datasets::Split;
use serde::Serialize;

/// Samples of each class in a picture, and Gibbs steps before they are taken in that of a run.
pub const SAMPLES: (usize, usize) = (10, 1000);

/// How good a network with labels is.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Evaluation {
    /// Which rows these are figures of.
    pub measured_on: MeasuredOn,
    /// Share of rows whose class of lowest free energy is the label.
    pub accuracy: f64,
    /// Mean over rows of the squared error of recognition up and generation down, summed over the
    /// inputs.
    pub reconstruction_error: f64,
    /// Rows measured on.
    pub n_rows: usize,
}

impl Evaluation {
    /// On all rows of a split, a block at a time; ranks take blocks in turn.
    pub fn of(ranks: &Ranks, dbn: &LabelledDbn, (split, measured_on): (&Split, MeasuredOn)) -> Result<Self> {
        let _spinner = Spinner::new("evaluating");
        let labels = split.labels_tensor(dbn.device())?.context("--data: rows must have labels, got none")?;
        let mut blocks = rows::Blocks::of_rank(ranks, split, dbn.config(), dbn.device())?;
        let (mut hits, mut error) = (0., 0.);
        while let Some(rows) = blocks.next()? {
            let n = rows.dim(0)?;
            hits += dbn.accuracy(&rows, &labels.narrow(0, blocks.first(), n)?)? * n as f64;
            error += dbn.reconstruction_error(&rows)? * n as f64;
        }
        let ([hits, error], n_rows) = (ranks.sums([hits, error])?, split.n_samples());
        Ok(Self {
            measured_on,
            accuracy: hits / n_rows as f64,
            reconstruction_error: error / n_rows as f64,
            n_rows,
        })
    }

    /// The results as a line of text.
    pub fn line(&self) -> String {
        format!(
            "lowest free energy on {} {}: {:.2} % right, reconstruction error {:.3}",
            self.n_rows,
            self.measured_on,
            100. * self.accuracy,
            self.reconstruction_error
        )
    }
}

/// Draws a line of samples of each class into a run folder; nothing when rows are no images that
/// can be drawn.
pub fn run_picture(dbn: &LabelledDbn, seed: u64, folder: &RunFolder) -> Result<Option<Picture>> {
    let _stage = stages::enter(Stage::Pictures);
    let _spinner = Spinner::new("drawing samples");
    let Some(shape) = drawable(dbn.config()) else {
        return Ok(None);
    };
    let (n, steps) = SAMPLES;
    let samples = dbn.sample(&each_class(dbn, n)?, steps, Philox::new(seed, streams::SAMPLES))?;
    let samples = dbn.config().preparation.inverse(&samples)?;
    write_png(
        &mosaic(&samples, shape, n, Shades::Unit, tile_zoom(shape))?,
        &folder.file("samples_by_class.png")?,
    )?;
    Ok(Some(Picture {
        file: "samples_by_class.png".to_owned(),
        caption: format!(
            "samples of the model, a line for each class: {steps} Gibbs steps in the top layer from random states with the label held"
        ),
    }))
}

/// `n` labels of each class, one class after the other.
pub fn each_class(dbn: &LabelledDbn, n: usize) -> Result<Tensor> {
    let labels = (0..dbn.config().n_classes as u32).flat_map(|class| std::iter::repeat_n(class, n));
    Ok(Tensor::from_iter(labels, dbn.device())?)
}
