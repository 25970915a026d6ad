//! The quality of a network: the accuracy of a linear classifier on its features, and reconstruction error and free energies on
//! new rows.
use super::streams;
use crate::data::MeasuredOn;
use crate::progress::Spinner;
use crate::report::figure;
use crate::rows;
use anyhow::Result;
use candle::{Device, Tensor};
use chandlery::Philox;
use chandlery::dbn::Dbn;
use chandlery::softmax::{FitConfig, Softmax};
use chandlery_datasets::Split;
use chandlery_datasets::count;
use serde::Serialize;

/// Rows that the classifier learns from, at most.
const READOUT_ROWS: usize = 60_000;
/// Rows that free energies and likelihoods are measured on, at most.
const ENERGY_ROWS: usize = 10_000;

/// Values of a matrix that is made of them, at most: 1 GiB.
const VALUES: usize = 1 << 28;

/// The first rows of a split, as many as are worth measuring and fit the memory when each makes `width` values.
pub fn some(split: &Split, rows: usize, width: usize) -> Result<Split> {
    Ok(split.take(rows.min(VALUES / width.max(1)).max(1))?)
}

/// Rows to evaluate on.
pub struct Rows<'a> {
    /// Those that the classifier learns from.
    pub train: &'a Split,
    /// Those that everything is measured on.
    pub test: &'a Split,
    /// Which those are.
    pub measured_on: MeasuredOn,
    /// Classes of the labels, 0 without.
    pub n_classes: usize,
}

/// Accuracy of a linear classifier on features and on the rows themselves.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Readout {
    /// Share of test rows classified rightly from the hidden means of all layers side by side.
    pub accuracy_features: f64,
    /// The same from the top layer alone.
    pub accuracy_top: f64,
    /// The same from the rows as they are.
    pub accuracy_pixels: f64,
    /// Hidden means of all layers.
    pub n_features: usize,
    /// Values in a row.
    pub n_pixels: usize,
    /// Rows learnt from.
    pub n_train: usize,
    /// Rows classified.
    pub n_test: usize,
}

/// The results of an evaluation.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Evaluation {
    /// Which rows these are figures of.
    pub measured_on: MeasuredOn,
    /// None where there are no labels.
    pub readout: Option<Readout>,
    /// Mean over test rows of the squared error of the reconstruction, summed over the inputs.
    pub reconstruction_error: f64,
    /// Mean free energy of test rows minus that of training rows in the lowest layer, in nats.
    pub free_energy_gap: f64,
    /// Pseudo-log-likelihood of test rows in the lowest layer, in nats per row; none for real-valued inputs.
    pub pseudo_likelihood: Option<f64>,
}

impl Evaluation {
    /// Measures everything that the rows allow.
    pub fn of(dbn: &Dbn, rows: &Rows<'_>, seed: u64, device: &Device) -> Result<Self> {
        let _spinner = Spinner::new("evaluating");
        let (lowest, config) = (&dbn.layers()[0], dbn.config());
        let widest = config.layers.iter().map(|layer| layer.n_hidden).fold(config.n_inputs(), usize::max);
        let read = |split: &Split| rows::all(&some(split, ENERGY_ROWS, widest)?, config, device);
        let (train, test) = (read(rows.train)?, read(rows.test)?);
        let (train_below, test_below) = (dbn.prepare(&train)?, dbn.prepare(&test)?);
        let flips = Philox::new(seed, streams::FLIPS);
        let binary = !lowest.config().visible.is_gaussian();
        // A classifier is not asked about the rows that it learned from.
        let others = rows.measured_on != MeasuredOn::Training;
        Ok(Self {
            measured_on: rows.measured_on,
            readout: if others { Readout::of(dbn, rows, seed, device)? } else { None },
            reconstruction_error: dbn.reconstruction_error(&test)?,
            free_energy_gap: lowest.free_energy_gap(&train_below, &test_below)?,
            pseudo_likelihood: if binary {
                Some(lowest.pseudo_likelihood(&test_below, flips)?)
            } else {
                None
            },
        })
    }

    /// The results as lines of text.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if let Some(readout) = &self.readout {
            lines.push(format!(
                "linear classifier on {}: {:.2} % on features ({}), {:.2} % on raw inputs ({})",
                self.measured_on.count_with_warning(readout.n_test),
                100. * readout.accuracy_features,
                count(readout.n_features, "hidden mean"),
                100. * readout.accuracy_pixels,
                readout.n_pixels
            ));
        }
        let likelihood =
            self.pseudo_likelihood.map_or(String::new(), |l| format!(", pseudo-likelihood {l:.1} nats"));
        lines.push(format!(
            "{}: reconstruction error {} (squared, summed over the inputs), free-energy gap {:.2} nats{likelihood}",
            self.measured_on,
            figure(self.reconstruction_error, 3),
            self.free_energy_gap
        ));
        lines
    }
}

impl Readout {
    /// None without labels, or with one class.
    fn of(dbn: &Dbn, rows: &Rows<'_>, seed: u64, device: &Device) -> Result<Option<Self>> {
        let n_features: usize = dbn.config().layers.iter().map(|layer| layer.n_hidden).sum();
        let width = n_features.max(rows.train.n_features());
        let (train, test) = (some(rows.train, READOUT_ROWS, width)?, some(rows.test, READOUT_ROWS, width)?);
        let labels = (train.labels_tensor(device)?, test.labels_tensor(device)?);
        let (Some(train_labels), Some(test_labels)) = labels else {
            return Ok(None);
        };
        if rows.n_classes < 2 {
            return Ok(None);
        }
        let accuracy = |x: &Tensor, test: &Tensor| -> Result<f64> {
            let order = Philox::new(seed, streams::READOUT);
            let (softmax, _) = Softmax::fit(x, &train_labels, rows.n_classes, &fit_config(&train), order)?;
            Ok(softmax.accuracy(test, &test_labels)?)
        };
        let features =
            |split: &Split| rows::through(split, dbn.config(), device, |rows| dbn.all_features(rows));
        let (train_features, test_features) = (features(&train)?, features(&test)?);
        let n_top = dbn.config().layers.last().map_or(0, |layer| layer.n_hidden);
        let top = |x: &Tensor| x.narrow(1, n_features - n_top, n_top)?.contiguous();
        let pixels = |split: &Split| rows::through(split, dbn.config(), device, |rows| dbn.prepare(rows));
        Ok(Some(Self {
            accuracy_features: accuracy(&train_features, &test_features)?,
            accuracy_top: accuracy(&top(&train_features)?, &top(&test_features)?)?,
            accuracy_pixels: accuracy(&pixels(&train)?, &pixels(&test)?)?,
            n_features,
            n_pixels: train.n_features(),
            n_train: train.n_samples(),
            n_test: test.n_samples(),
        }))
    }
}

/// The classifier is fitted alike to features and to raw inputs.
fn fit_config(train: &Split) -> FitConfig {
    FitConfig { batch: (train.n_samples() / 200).clamp(50, 200), ..FitConfig::default() }
}
