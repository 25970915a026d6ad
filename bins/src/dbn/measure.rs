//! The quality of a network: the accuracy of a linear classifier on its features, and
//! reconstruction error and free energies on new rows.
use super::streams;
use crate::progress::Spinner;
use crate::ranks::Ranks;
use crate::readout::{self, Features, Readout, Rows, some};
use crate::report::figure;
use crate::rows::{self, Blocks, MeasuredOn, Reads};
use anyhow::Result;
use candle::Device;
use chandlery::dbn::Dbn;
use chandlery::{Decode, Layered, Model, Philox};
use chandlery_datasets::Split;
use serde::Serialize;

/// Rows that free energies and pseudo-likelihoods are measured on, at most.
const ENERGY_ROWS: usize = 10_000;

/// The results of an evaluation.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Evaluation {
    /// Which rows these are figures of.
    pub measured_on: MeasuredOn,
    /// None where there are no labels.
    pub readout: Option<Readout>,
    /// Rows measured.
    pub n_test: usize,
    /// Mean over all of them of the squared error of the reconstruction, summed over the inputs.
    pub reconstruction_error: f64,
    /// Mean free energy of test rows minus that of training rows in the lowest layer, in nats; none
    /// without training rows.
    pub free_energy_gap: Option<f64>,
    /// Pseudo-log-likelihood of test rows in the lowest layer, in nats per row; none for
    /// real-valued inputs.
    pub pseudo_likelihood: Option<f64>,
}

/// Mean over rows of the squared error of their reconstruction, summed over the inputs; ranks take
/// blocks in turn.
pub fn reconstruction_error(ranks: &Ranks, dbn: &Dbn, split: &Split, device: &Device) -> Result<f64> {
    let mut sum = 0.;
    let mut blocks = Blocks::of_rank(ranks, split, dbn.config(), device)?;
    while let Some(block) = blocks.next()? {
        sum += dbn.reconstruction_error(&block)? * block.dim(0)? as f64;
    }
    let [sum] = ranks.sums([sum])?;
    Ok(sum / split.n_samples() as f64)
}

impl Evaluation {
    /// Measures everything that the rows allow, beside their [`reconstruction_error`].
    pub fn of(
        dbn: &Dbn,
        rows: &Rows<'_>,
        reconstruction_error: f64,
        seed: u64,
        device: &Device,
    ) -> Result<Self> {
        let (lowest, config) = (&dbn.layers()[0], dbn.config());
        let widest = config.layers.iter().map(|layer| layer.n_hidden).fold(config.n_inputs(), usize::max);
        let read = |split: &Split| rows::all(&some(split, ENERGY_ROWS, widest)?, config, device);
        let test = read(rows.test)?;
        let test_below = dbn.prepare(&test)?;
        let gap = |train: &Split| -> Result<f64> {
            Ok(lowest.free_energy_gap(&dbn.prepare(&read(train)?)?, &test_below)?)
        };
        let flips = Philox::new(seed, streams::FLIPS);
        let binary = !lowest.config().visible.is_gaussian();
        let readout = readout(dbn, rows, device)?;
        let _spinner = Spinner::new("evaluating");
        Ok(Self {
            measured_on: rows.measured_on,
            readout,
            n_test: rows.test.n_samples(),
            reconstruction_error,
            free_energy_gap: rows.train.map(gap).transpose()?,
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
            lines.push(readout::words(readout, self.measured_on, "hidden mean"));
        }
        let likelihood =
            self.pseudo_likelihood.map_or(String::new(), |l| format!(", pseudo-likelihood {l:.1} nats"));
        let gap =
            self.free_energy_gap.map_or(String::new(), |gap| format!(", free-energy gap {gap:.2} nats"));
        lines.push(format!(
            "{}: reconstruction error {} (squared, summed over the inputs){gap}{likelihood}",
            match self.measured_on {
                MeasuredOn::All => self.measured_on.count(self.n_test),
                other => other.to_string(),
            },
            figure(self.reconstruction_error, 3),
        ));
        lines
    }
}

/// The hidden means of all layers side by side.
fn readout(dbn: &Dbn, rows: &Rows<'_>, device: &Device) -> Result<Option<Readout>> {
    let layers = &dbn.config().layers;
    let features = Features {
        reads: Reads::from(dbn.config()),
        of: &|rows| dbn.all_features(rows),
        n: layers.iter().map(|layer| layer.n_hidden).sum(),
        n_top: layers.last().map_or(0, |layer| layer.n_hidden),
    };
    readout::measure(&features, rows, device)
}
