//! Training a denoising autoencoder on minibatches, in place and without a word to the host.
//!
//! ```text
//! corrupt        x̃ = corrupt(x)                                      fresh noise in each step
//! hidden         y = f(x̃ Wᵀ + b)
//! reconstruct    z = g(y V + b'),   −LN/B = ∂J/∂(y V + b')           LN = x − z for sigmoid outputs and cross-entropy
//! visible_bias   ∂J/∂b' = −Σ LN/B
//! hidden_bias    −LH/B = f'(y) ∘ (−LN/B Vᵀ),   ∂J/∂b = −Σ LH/B       f'(y) = y (1 − y) for sigmoid units
//! weights        ∂J/∂W = −(LHᵀ x̃ + yᵀ LN)/B                          tied; else LHᵀ x̃ for W and yᵀ LN for V
//! update         v ← μ v − ρ (∂J/∂θ + λ θ),   θ ← θ + v              λ for weights only
//! ```
//!
//! | symbol | field of [`DaeTrainConfig`] |
//! |---|---|
//! | corrupt | `corruption`; step `t` takes the draws from block `offset + t ⌈batch · n_visible / 4⌉` on, see [`corrupt`](chandlery_ops::layers::corrupt()) |
//! | `ρ μ` | `learning_rate`, `momentum`: schedules over epochs |
//! | `λ` | `weight_decay` |
//!
//! The six modules are those of Kumar and Giaquinto; [`reference`](super::reference) has them as a
//! serial program, which this one follows to rounding from the same draws. Departures: `update` is
//! a part of modules 4 to 6 in the paper, which has no momentum and no decay; it launches six
//! kernels a minibatch, where this trainer launches one for many, or four. Cost: `10 · batch` FLOP
//! a weight (five products), `8 · batch` for a weight of an untied network.
//!
//! Many steps of a small network with the paper's units and update are one op,
//! [`denoising_steps_`](chandlery_ops::layers::denoising_steps_). Other steps are a load and then,
//! on CUDA, one recorded graph, of several steps where they share a launch; everything is allocated
//! in [`DaeTrainer::new`]. Their layers of 64 units or more have up to 7 units beside their own, which
//! stay at 0: kernels are fastest on lines of eights.
use super::step::Buffers;
use super::{Dae, DaeTrainConfig};
use crate::check::{all_finite, at_least_one, other_place};
use crate::checkpoint::{self, Checkpoint};
use crate::feedforward::Activation;
use crate::layers::TrainerParts;
use crate::losses::{LossSums, SinceReport};
use crate::model::{Encode, Model};
use crate::prepare::{check_inputs, prepared, to_load};
use crate::replays::Replays;
use crate::share::Share;
use crate::trainer::{MinibatchTrainer, Trainer, check_minibatch, one_by_one};
use crate::unit_range::UnitRange;
use candle::{DType, Device, Error, Result, Tensor};
use chandlery_datasets::Preparation;
use chandlery_ops::{Group, Philox};
use serde::Serialize;
use serde_json::Value;
use std::path::Path;

/// What was gathered on the device since the last report: reconstructions from corrupted rows
/// against the rows.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Metrics {
    /// Steps since the last report.
    pub steps: u64,
    /// Mean loss of a row: the cross-entropy in nats, or half the squared error, summed over its
    /// values.
    pub loss: f64,
    /// Square root of the mean over all values of `(x − z)²`.
    pub rmse: f64,
}

/// Trains one [`Dae`]; see the [module](self) for the equations.
///
/// Owns what a resume needs beside the parameters: velocities and the place in the random sequence.
pub struct DaeTrainer {
    config: DaeTrainConfig,
    buffers: Buffers,
    replays: Replays,
    /// For a minibatch that is not full, once there was one: launched step by step, since an epoch
    /// has one.
    partial: Option<(Buffers, Replays)>,
    /// Of the rows, where they are the targets of sigmoid outputs.
    range: Option<UnitRange>,
    lower: Vec<Dae>,
    preparation: Preparation,
    /// Values in a raw row.
    n_inputs: usize,
    philox: Philox,
    /// Rate and momentum of the epoch under way.
    rates: (f32, f32),
    steps: u64,
    losses: LossSums,
}

/// The name of the trainer in its checkpoints.
const NAME: &str = "denoising-autoencoder";

impl DaeTrainer {
    /// Takes a copy of `dae` and trains it on raw rows, which go through the
    /// [preparation](super::DaeConfig::preparation) of its configuration.
    ///
    /// `philox` is where the noise begins; its stream should be used for nothing else.
    ///
    /// # Errors
    /// When `config` is out of range, `philox` is where the weights were drawn, or memory is short.
    pub fn new(dae: &Dae, config: DaeTrainConfig, philox: Philox) -> Result<Self> {
        Self::above(&[], dae, &dae.config().preparation, config, philox)
    }

    /// The same for an autoencoder on top of others: raw rows go through `preparation` to the
    /// lowest of `lower`; the hidden units of each, without noise, are recomputed on the way up,
    /// and noise is added to what the top one reads.
    ///
    /// # Errors
    /// As [`new`](Self::new), and when the sizes of the layers do not fit on each other.
    pub fn above(
        lower: &[Dae],
        dae: &Dae,
        preparation: &Preparation,
        config: DaeTrainConfig,
        philox: Philox,
    ) -> Result<Self> {
        config.validate()?;
        let layer = dae.config().encoder();
        other_place("DaeTrainer", philox, dae.weight(), |n| layer.first_weights(n, philox))?;
        let lowest = lower.first().unwrap_or(dae);
        let n_inputs = check_inputs("DaeTrainer", preparation, lowest.config().n_visible, None)?;
        let preparation = preparation.to_device(dae.weight().device()).map_err(Error::wrap)?;
        let sizes = lower.iter().chain([dae]).map(Dae::config);
        for (below, above) in sizes.clone().zip(sizes.skip(1)) {
            if below.n_hidden != above.n_visible {
                candle::bail!(
                    "DaeTrainer: a layer must read as many values as the one below has hidden units, got {} above {}",
                    above.n_visible,
                    below.n_hidden
                )
            }
        }
        let buffers = Buffers::new(lower, dae, &config, philox)?;
        let device = dae.weight().device().clone();
        let replays = replays(&buffers, &device);
        let losses = LossSums::new(&buffers.gathered);
        let targets = lower.is_empty() && dae.config().output == Activation::Sigmoid;
        let range = targets
            .then(|| UnitRange::new("sigmoid outputs", "identity outputs with the squared error", &device))
            .transpose()?;
        let lower = lower.to_vec();
        let mut trainer = Self {
            config,
            buffers,
            replays,
            partial: None,
            range,
            lower,
            preparation,
            n_inputs,
            philox,
            rates: (0., 0.),
            steps: 0,
            losses,
        };
        trainer.begin_epoch(0)?;
        Ok(trainer)
    }

    /// Takes the schedules of learning rate and momentum from `config`, from the next
    /// [`begin_epoch`](MinibatchTrainer::begin_epoch) on; everything else stays as it was.
    ///
    /// # Errors
    /// When `config` is out of range, or has a momentum for a trainer that began without and whose
    /// steps are one op, which has no velocities.
    pub fn set_schedules(&mut self, config: &DaeTrainConfig) -> Result<()> {
        config.validate()?;
        if self.buffers.in_one_op() && config.momentum != self.config.momentum {
            candle::bail!(
                "DaeTrainer::set_schedules: momentum must stay {:?}, with which this trainer began without velocities, got {:?}; begin a new trainer from \
                 its model",
                self.config.momentum,
                config.momentum
            )
        }
        self.config.learning_rate = config.learning_rate.clone();
        self.config.momentum = config.momentum.clone();
        Ok(())
    }

    /// How the autoencoder is trained.
    pub fn config(&self) -> &DaeTrainConfig {
        &self.config
    }

    /// The autoencoders below, lowest first.
    pub fn lower(&self) -> &[Dae] {
        &self.lower
    }

    #[cfg(test)]
    pub(super) fn buffers(&self) -> &Buffers {
        &self.buffers
    }

    /// Steps by recordings of several.
    fn recorded_steps_of(&mut self, rows: &Tensor, labels: Option<&Tensor>, n: usize) -> Result<()> {
        let batch = self.config.batch;
        let apart = n > 1 && !self.buffers.share().group().is_single();
        if n == 0 || apart || rows.dims() != [n * batch, self.n_inputs] {
            return one_by_one(self, rows, labels, n);
        }
        let Self { replays, preparation, buffers, range, .. } = self;
        let rows = if n == 1 { buffers.share().own(rows)? } else { rows.clone() };
        replays.run("DaeTrainer", n, &rows, preparation, |first, rows, scale| {
            range.as_mut().map_or(Ok(()), |range| range.see(rows, scale))?;
            buffers.load(first, rows, scale)
        })?;
        self.steps += n as u64;
        self.losses.count(n * batch);
        Ok(())
    }

    /// A step on fewer rows than a minibatch has.
    fn partial_step(&mut self, rows: &Tensor) -> Result<()> {
        let n = rows.dim(0)?;
        if self.partial.as_ref().is_none_or(|(buffers, _)| buffers.batch() != n) {
            let buffers = self.buffers.of_fewer(&DaeTrainConfig { batch: n, ..self.config.clone() })?;
            let step = buffers.clone();
            let replays = Replays::unrecorded(rows.device(), move |n| step.run(n));
            self.partial = Some((buffers, replays));
        }
        let Some((buffers, replays)) = &mut self.partial else { return Ok(()) };
        buffers.set_rates(self.rates.0, self.rates.1)?;
        match buffers.in_one_op() {
            true => {
                let (x, scale) = to_read(&self.lower, &self.preparation, rows, n, self.range.as_mut())?;
                buffers.run_in_one_op(&x, scale, self.rates.0)?;
            }
            false => {
                let own = buffers.share().own(rows)?;
                replays.run("DaeTrainer", 1, &own, &self.preparation, |first, rows, scale| {
                    self.range.as_mut().map_or(Ok(()), |range| range.see(rows, scale))?;
                    buffers.load(first, rows, scale)
                })?;
            }
        }
        self.losses.take_from(&buffers.gathered)?;
        self.losses.count(n);
        self.steps += 1;
        Ok(())
    }

    fn since_report(&self) -> Result<SinceReport> {
        self.range.as_ref().map_or(Ok(()), |range| range.check("DaeTrainer"))?;
        self.losses.since_report("DaeTrainer", self.steps, "lower the learning rate, or scale the input")
    }

    /// The state as a checkpoint holds it, of this trainer and of those that train by it.
    pub(crate) fn stored_state(&self) -> Result<Vec<(String, Tensor)>> {
        let b = &self.buffers;
        let state = [("params", b.params()?), ("counter", b.counter.clone())];
        let state = state.into_iter().chain(self.losses.stored(self.steps)?);
        Ok(state.map(|(name, t)| (format!("trainer.{name}"), t)).collect())
    }

    /// Puts back what [`stored_state`](Self::stored_state) gave, for a trainer made with the same
    /// sizes and configuration.
    ///
    /// # Errors
    /// When a tensor is missing or has another shape.
    pub(crate) fn restore(&mut self, stored: &Checkpoint<'_>) -> Result<()> {
        let params = self.buffers.params()?;
        let state = [("params", &params), ("counter", &self.buffers.counter)];
        checkpoint::put_back("DaeTrainer", state, |name| stored.of_trainer(name))?;
        self.buffers.take(&params)?;
        self.steps = self.losses.restore(stored)?;
        Ok(())
    }
}

/// The steps of buffers.
fn replays(buffers: &Buffers, device: &Device) -> Replays {
    let steps = buffers.clone();
    Replays::new(device, buffers.at_once(), move |n| steps.run(n))
}

/// What the autoencoder in training reads of raw rows, minibatches of `batch`, and a factor on it.
fn to_read(
    lower: &[Dae],
    preparation: &Preparation,
    rows: &Tensor,
    batch: usize,
    range: Option<&mut UnitRange>,
) -> Result<(Tensor, f32)> {
    if lower.is_empty() {
        let (x, scale) = to_load("DaeTrainer", preparation, rows)?;
        range.map_or(Ok(()), |range| range.see(&x, scale))?;
        return Ok((x, scale));
    }
    // A minibatch at a time: sums over many rows at once may be of other bits, and where many steps
    // begin and end is free.
    let x = prepared("DaeTrainer", preparation, rows, DType::F32)?;
    let up = |x: Tensor| lower.iter().try_fold(x, |x, layer| layer.encode_prepared(&x));
    let minibatch = |start: usize| up(x.narrow(0, start, batch)?.contiguous()?);
    let made = (0..x.dim(0)?).step_by(batch).map(minibatch).collect::<Result<Vec<_>>>()?;
    Ok((Tensor::cat(&made, 0)?.contiguous()?, 1.))
}

impl Trainer for DaeTrainer {
    type Model = Dae;
    type Metrics = Metrics;

    fn check(&mut self) -> Result<()> {
        self.since_report()?;
        all_finite("DaeTrainer", self.steps, [("params", &self.buffers.params()?)])
    }

    fn metrics(&mut self) -> Result<Metrics> {
        let since = self.since_report()?;
        at_least_one("DaeTrainer::metrics", "steps since the last call", since.steps as usize)?;
        self.losses.report(&since);
        let rmse = (since.second / self.buffers.config().n_visible as f64).sqrt();
        Ok(Metrics { steps: since.steps, loss: since.loss, rmse })
    }

    fn steps(&self) -> u64 {
        self.steps
    }

    /// Trains with the other ranks of a group: each computes the gradient of its own rows of every
    /// minibatch, [`Group::rows`], and all make the step of their sum, so that all have the same
    /// parameters to the bit. They are those of one rank up to the order of sums, noise included, where
    /// its products are f32 as well.
    ///
    /// All ranks begin with the parameters of rank 0, and make the same calls of
    /// [`step`](MinibatchTrainer::step), each with all rows of the minibatch, of `check`, of `metrics`
    /// and of `save`, which are of all rows. Steps are of the form with an op for each module, one at a
    /// time. Cost: an all-reduce of 4 bytes a parameter each step.
    ///
    /// # Errors
    /// When the minibatch has too few rows to give each rank some, memory is short, or a rank is gone.
    fn in_group(mut self, group: &Group) -> Result<Self> {
        if group.is_single() {
            return Ok(self);
        }
        Share::check("DaeTrainer", group, "batch", self.config.batch)?;
        self.buffers = self.buffers.in_group(&self.lower, &self.config, self.philox, group)?;
        self.replays = replays(&self.buffers, self.device());
        self.partial = None;
        self.losses.in_group(group, &self.buffers.gathered)?;
        self.range.iter_mut().for_each(|range| range.in_group(group));
        self.buffers.set_rates(self.rates.0, self.rates.1)?;
        Ok(self)
    }

    fn gather(&mut self) -> Result<()> {
        self.losses.gather()
    }

    fn model(&self) -> Result<Dae> {
        self.buffers.dae()?.to(DType::F32, self.device())
    }

    fn device(&self) -> &Device {
        self.buffers.counter.device()
    }

    fn save(&self, path: &Path, progress: &Value) -> Result<()> {
        let parts = TrainerParts {
            layers: self.lower.iter().cloned().chain([self.buffers.dae()?]).collect(),
            training: self.config.clone(),
            preparation: self.preparation.clone(),
            philox: self.philox,
        };
        parts.save(path, NAME, self.stored_state()?, progress)
    }
}

impl MinibatchTrainer for DaeTrainer {
    fn follow(&mut self, epochs: f64) -> Result<()> {
        let DaeTrainConfig { learning_rate, momentum, .. } = &self.config;
        let (rate, momentum) = (learning_rate.within(epochs), momentum.within(epochs));
        self.rates = (rate as f32, momentum as f32);
        self.buffers.set_rates(rate as f32, momentum as f32)
    }

    /// `rows` are raw, `[config.batch, n_inputs]`, or fewer.
    fn step(&mut self, rows: &Tensor, _labels: Option<&Tensor>) -> Result<()> {
        match check_minibatch("DaeTrainer", rows, self.config.batch, self.n_inputs)? == self.config.batch {
            true => self.steps_of(rows, None, 1),
            false => self.partial_step(rows),
        }
    }

    /// One op for all steps where the network is small enough for it
    /// ([`denoising_steps_fit`](chandlery_ops::layers::denoising_steps_fit)).
    fn steps_of(&mut self, rows: &Tensor, labels: Option<&Tensor>, n: usize) -> Result<()> {
        let batch = self.config.batch;
        if !self.buffers.in_one_op() || rows.dims() != [n * batch, self.n_inputs] {
            return self.recorded_steps_of(rows, labels, n);
        }
        let (x, scale) = to_read(&self.lower, &self.preparation, rows, batch, self.range.as_mut())?;
        self.buffers.run_in_one_op(&x, scale, self.rates.0)?;
        self.steps += n as u64;
        self.losses.count(n * batch);
        Ok(())
    }

    fn steps_at_once(&self) -> usize {
        /// Rows that the device gets at a time: some milliseconds of work, after which the host may
        /// look at its clock.
        const ROWS: usize = 4096;
        if self.buffers.in_one_op() { (ROWS / self.config.batch).max(1) } else { self.buffers.at_once() }
    }

    fn rows_group(&self) -> Group {
        self.buffers.share().group().clone()
    }

    fn load(path: &Path, device: &Device) -> Result<(Self, Value)> {
        let (parts, stored, progress) = TrainerParts::load(path, NAME, device)?;
        let TrainerParts { layers, training, preparation, philox } = parts;
        let Some((dae, lower)) = layers.split_last() else { return Err(stored.refused(&"it has no layers")) };
        let mut trainer =
            Self::above(lower, dae, &preparation, training, philox).map_err(|e| stored.refused(&e))?;
        trainer.restore(&stored).map_err(|e| stored.refused(&e))?;
        Ok((trainer, progress))
    }
}
