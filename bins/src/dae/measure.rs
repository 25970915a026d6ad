//! How far reconstructions are from the rows, from clean and from corrupted ones.
use super::streams;
use crate::progress::Progress;
use crate::ranks::Ranks;
use crate::readout::{self, Features, Readout, Rows};
use crate::rows::{Blocks, Reads};
use anyhow::Result;
use candle::{DType, Device, Tensor};
use chandlery::dae::StackedDae;
use chandlery::{Decode, Layered, Model, Philox};
use chandlery_datasets::Split;
use chandlery_ops::arrays::elementwise::{sqr, sqrt, sub};
use chandlery_ops::layers::{Corruption, corrupt};
use serde::{Deserialize, Serialize};

/// What an epoch came to: a line of `metrics.jsonl`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EpochReport {
    /// Counted from 1, the lowest.
    pub layer: usize,
    /// Counted from 1 in each layer.
    pub epoch: usize,
    /// Mean loss of a training row in the steps of the epoch: cross-entropy in nats, or half the
    /// squared error.
    pub loss: f64,
    /// Root mean square error of what came back of corrupted training rows in the steps of the
    /// epoch, per value that the layer reads.
    pub rmse: f64,
    /// The same of held-out rows after the epoch; none where no rows are held out.
    pub held_out_rmse: Option<f64>,
    /// Step size.
    pub learning_rate: f64,
    /// Training rows a second.
    pub rows_per_second: f64,
    /// Training time.
    pub seconds: f64,
}

/// Noise, and the seed of its draws.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Noise {
    pub corruption: Corruption,
    pub seed: u64,
}

impl Noise {
    /// Where the draws for the rows that a model is measured on begin.
    pub fn draws(&self) -> Philox {
        Philox::new(self.seed, streams::MEASURED)
    }
}

/// What the hidden units of the top layer are worth to a linear classifier.
pub fn readout(stack: &StackedDae, rows: &Rows<'_>, device: &Device) -> Result<Option<Readout>> {
    let n = stack.config().layers.last().map_or(0, |layer| layer.n_hidden);
    let layers = stack.layers().len();
    let of = |rows: &Tensor| stack.features(rows, layers);
    readout::measure(&Features { reads: Reads::from(stack.config()), of: &of, n, n_top: n }, rows, device)
}

/// Root mean square differences of values as the model reads them.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Errors {
    /// Between rows and what comes back of corrupted ones.
    pub rmse: f64,
    /// Between rows and what comes back of them.
    pub rmse_clean: f64,
    /// Between rows and corrupted ones: what a model has that changes nothing.
    pub rmse_of_noise: f64,
    /// Means over the rows of the squared distance, and of the distance, between a row and what
    /// comes back of the corrupted one: the losses that Kumar and Giaquinto print.
    pub squared_error: f64,
    pub distance: f64,
    /// Rows.
    pub n_samples: usize,
}

impl Errors {
    /// Over all rows of a split, a block at a time; ranks take blocks in turn, with the draws of
    /// one.
    pub fn of(
        ranks: &Ranks,
        stack: &StackedDae,
        split: &Split,
        noise: Noise,
        device: &Device,
    ) -> Result<Self> {
        let bar = Progress::rows(split.n_samples() as u64, 0);
        bar.label("evaluating".to_owned());
        let mut blocks = Blocks::of_rank(ranks, split, stack.config(), device)?;
        let (mut sums, mut n_values, mut distances) = ([0.; 3], 0, 0.);
        while let Some(rows) = blocks.next()? {
            bar.advance(rows.dim(0)? as u64);
            let x = stack.prepare(&rows)?.contiguous()?;
            // Blocks are of multiples of four values, but for the last.
            let draws = noise.draws().advanced(blocks.first() * x.dim(1)?);
            let corrupted = corrupt(&x, noise.corruption, draws)?;
            n_values += x.elem_count();
            let back = stack.reconstruct_prepared(&corrupted)?;
            distances +=
                sqrt(&sqr(&sub(&back, &x)?)?.to_dtype(DType::F64)?.sum(1)?)?.sum_all()?.to_scalar::<f64>()?;
            let back = [back, stack.reconstruct_prepared(&x)?, corrupted];
            for (sum, back) in sums.iter_mut().zip(&back) {
                *sum += squares(&sub(back, &x)?)?;
            }
        }
        let sums = ranks.sums(sums)?;
        let [n_values, distances] = ranks.sums([n_values as f64, distances])?;
        let [rmse, rmse_clean, rmse_of_noise] = sums.map(|sum| (sum / n_values).sqrt());
        let n_samples = split.n_samples();
        let (squared_error, distance) = (sums[0] / n_samples as f64, distances / n_samples as f64);
        Ok(Self { rmse, rmse_clean, rmse_of_noise, squared_error, distance, n_samples })
    }

    /// The errors in a line, of rows that are called `rows`.
    pub fn words(&self, rows: &str, corruption: Corruption) -> String {
        let Self { rmse, rmse_clean, rmse_of_noise, .. } = self;
        format!(
            "RMSE of {rows}: {rmse:.4} after reconstruction from rows with {corruption}, {rmse_of_noise:.4} before it; {rmse_clean:.4} \
             after reconstruction from clean rows"
        )
    }
}

fn squares(t: &Tensor) -> candle::Result<f64> {
    sqr(t)?.to_dtype(DType::F64)?.sum_all()?.to_scalar()
}
