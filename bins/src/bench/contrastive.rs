//! What the benchmarks of contrastive divergence share: options, and the timing of a trainer on
//! rows that stream from host memory.
use super::common::TimingArgs;
use super::stream::{Stream, synthetic_rows};
use super::timing::{Seconds, time_of_one};
use crate::options::{at_least_one, below_one, not_negative};
use crate::precision::RbmPrecision;
use anyhow::Result;
use candle::Device;
use chandlery::Trainer;
use chandlery::rbm::{RbmTrainConfig, RbmTrainer};
use chandlery::schedule::Schedule;
use chandlery_datasets::{Feed, FeedConfig, Split};
use clap::Args;

/// Minibatches in host memory, at most; each chunk of rows is copied to the device while the
/// previous one is used.
const BATCHES: usize = 256;
/// Bytes of rows in host memory, about: more than a GPU caches.
const BYTES: usize = 256 << 20;
/// A timed run lasts at least this long, or this many steps.
pub(super) const RUN_SECONDS: f64 = 0.3;
pub(super) const MIN_STEPS: usize = 10;

/// Options of contrastive divergence.
#[derive(Debug, Args)]
pub(super) struct CdArgs {
    /// Rows of a minibatch.
    #[arg(long, value_name = "ROWS", default_value_t = 192, value_parser = at_least_one)]
    batch: usize,
    /// Gibbs steps of the model phase (CD-k).
    #[arg(long, value_name = "STEPS", default_value_t = 1, value_parser = at_least_one)]
    k: usize,
    /// Momentum, at least 0 and below 1. A step with momentum reads and writes a velocity of the
    /// weights' size.
    #[arg(long, value_name = "MOMENTUM", default_value_t = 0.9, value_parser = below_one)]
    momentum: f64,
    /// L2 decay of the weights, at least 0.
    #[arg(long, value_name = "DECAY", default_value_t = 2e-4, value_parser = not_negative)]
    weight_decay: f64,
}

impl CdArgs {
    /// Rows of a minibatch.
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// Gibbs steps of an update.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Whether steps have one Gibbs step, as in the paper and the floors.
    pub fn one_step(&self) -> bool {
        self.k == 1
    }

    /// Whether steps are those of the paper: CD-1 in minibatches of 192.
    pub fn of_paper(&self) -> bool {
        self.one_step() && self.batch == 192
    }

    /// How a machine is trained.
    pub fn config(&self, precision: RbmPrecision) -> RbmTrainConfig {
        RbmTrainConfig {
            batch: self.batch(),
            k: self.k,
            learning_rate: Schedule::constant(0.01),
            momentum: Schedule::constant(self.momentum),
            l2: self.weight_decay,
            precision: precision.products,
            weights: precision.weights,
            ..RbmTrainConfig::default()
        }
    }

    /// What is timed, in words.
    pub fn words(&self) -> String {
        format!("{}, byte rows streamed from host memory", self.words_of_step())
    }

    /// What a step is, in words.
    pub fn words_of_step(&self) -> String {
        format!(
            "CD-{} with momentum {} and L2 {}, minibatches of {}",
            self.k, self.momentum, self.weight_decay, self.batch
        )
    }

    /// Random rows of whole minibatches.
    pub fn rows(&self, n_visible: usize) -> Result<Split> {
        let bytes = self.batch().saturating_mul(n_visible);
        let batches = (BYTES / bytes.max(1)).clamp(MIN_STEPS, BATCHES);
        synthetic_rows(self.batch() * batches, n_visible)
    }

    /// Seconds for 1 million examples of `rows`, which stream.
    pub fn time(
        &self,
        trainer: &mut RbmTrainer,
        rows: &Split,
        device: &Device,
        common: &TimingArgs,
    ) -> Result<Seconds> {
        let config = FeedConfig { resident_bytes: None, ..FeedConfig::new(self.batch(), 0) };
        let mut feed = Feed::new(rows, device, config)?;
        self.time_from(&mut feed, trainer, device, (common.repeats, MIN_STEPS), || ())
    }

    /// Seconds for 1 million examples of a feed, by runs of at least `least` steps. `after` is
    /// called when the steps of a run are queued.
    pub fn time_from(
        &self,
        feed: &mut Feed,
        trainer: &mut RbmTrainer,
        device: &Device,
        (repeats, least): (u32, usize),
        mut after: impl FnMut(),
    ) -> Result<Seconds> {
        let mut stream = Stream::new(feed)?;
        let steps = |n| {
            stream.train(trainer, n)?;
            after();
            Ok(())
        };
        let step = time_of_one(device, repeats, (RUN_SECONDS, least), steps)?;
        let error = trainer.metrics()?.reconstruction_error;
        tracing::debug!(error, "timed");
        Ok(step.times(1e6 / self.batch() as f64))
    }
}
