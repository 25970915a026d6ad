//! Training a network by backpropagation, in place and without a word to the host.
//!
//! ```text
//! forward    hˡ = m ∘ f(hˡ⁻¹ Wˡᵀ + bˡ)                    m: dropout, of what layer l + 1 reads
//! top        δᴸ = ∂J/∂xᴸ                                  J: cross-entropy of labels or grey levels, or squared error
//! backward   δˡ⁻¹ = m ∘ (δˡ Wˡ) ∘ f'                      ∂J/∂Wˡ = δˡᵀ hˡ⁻¹,  ∂J/∂bˡ = Σ_rows δˡ
//! update     Adam, or gradient descent with momentum; then rows of hidden W longer than max_norm are scaled back
//! ```
//!
//! | symbol | field of [`FeedforwardTrainConfig`] |
//! |---|---|
//! | `m` | `dropout` |
//! | `J` | `loss`, for autoencoders |
//! | rates | `learning_rate`, `momentum`: schedules over epochs; `optimizer`, `weight_decay`, `max_norm` |
//!
//! Sources: Rumelhart, Hinton and Williams, "Learning representations by back-propagating errors",
//! Nature 323, 1986; Srivastava et al., "Dropout", JMLR 15, 2014.
//!
//! A step is a load and then, on CUDA, one recorded graph: three products a layer (two for the
//! lowest), one pass for each activation either way, one for the loss, one for each bias, and one
//! for all parameters, which lie in one flat buffer with their gradients. By Adam in bf16 the weights of
//! the lowest layers are stepped where their gradient is summed, where these are wide and ranks do not
//! sum it first ([`adam_step_of_product_`](chandlery_ops::layers::adam_step_of_product_)). Everything is
//! allocated in [`FeedforwardTrainer::new`]. Between dense layers, 64 units or more have up to 7 beside them, which
//! stay at 0, as kernels are fastest on lines of eights; draws of dropout are numbered with them. Cost: `6 · batch` FLOP a weight, and for filters as often as
//! they have places.
use super::step::Buffers;
use super::{Activation, Feedforward, FeedforwardConfig, FeedforwardTrainConfig, Task};
use crate::check::{LabelsSeen, all_finite, at_least_one, other_place};
use crate::checkpoint::{self, Checkpoint};
use crate::early_stopping::{Best, EarlyStopping};
use crate::losses::{LossSums, SinceReport};
use crate::model::Decode;
use crate::model::Model;
use crate::prepare::to_load;
use crate::share::Share;
use crate::trainer::{Epochs, Event, MinibatchTrainer, Trainer, check_minibatch};
use crate::unit_range::UnitRange;
use candle::{DType, Device, Error, Result, Tensor};
use candle_nn::VarBuilder;
use chandlery_datasets::{Feed, FeedConfig, Minibatch, Split};
use chandlery_ops::core::{Replay, set_scalars_};
use chandlery_ops::{Group, Philox};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::ops::ControlFlow;
use std::path::Path;

/// What was gathered on the device since the last report, over training rows with dropout as it
/// was.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Metrics {
    /// Steps since the last report.
    pub steps: u64,
    /// Mean loss of a row, in nats or half squared error.
    pub loss: f64,
    /// Share of rows whose most probable class was not the label, of a classifier.
    pub error: Option<f64>,
    /// Mean over rows of the squared error summed over the inputs, of an autoencoder.
    pub squared_error: Option<f64>,
}

/// Trains one [`Feedforward`]; see the [module](self) for the equations.
///
/// Owns what a resume needs beside the parameters: what the optimiser remembers, and the places in
/// its steps and in the random sequence.
pub struct FeedforwardTrainer {
    config: FeedforwardTrainConfig,
    stopping: EarlyStopping<Feedforward>,
    buffers: Buffers,
    replay: Replay,
    /// Whether steps are recorded.
    record: bool,
    /// For a minibatch that is not full, once there was one: launched step by step, since an epoch
    /// has one.
    partial: Option<(Buffers, Replay)>,
    /// Of the rows, where they are the targets of sigmoid outputs.
    range: Option<UnitRange>,
    philox: Philox,
    steps: u64,
    losses: LossSums,
    /// Of a classifier.
    labels: Option<LabelsSeen>,
}

/// What a checkpoint says beside its tensors.
#[derive(Serialize, Deserialize)]
struct Notes {
    network: FeedforwardConfig,
    training: FeedforwardTrainConfig,
    stopping: EarlyStopping<Feedforward>,
    #[serde(with = "checkpoint::place")]
    philox: Philox,
    progress: Value,
}

impl FeedforwardTrainer {
    /// Takes a copy of `network` and trains it on raw rows, which go through the network's
    /// preparation.
    ///
    /// `philox` is where the draws of dropout begin; its stream should be used for nothing else.
    ///
    /// # Errors
    /// When `config` is out of range or does not fit the network, `philox` is where the weights
    /// were drawn and there is dropout, or memory is short.
    pub fn new(network: &Feedforward, config: FeedforwardTrainConfig, philox: Philox) -> Result<Self> {
        Self::with(network, config, philox, true)
    }

    /// The same; without `record` each step is launched afresh, which tests compare with.
    pub(super) fn with(
        network: &Feedforward,
        config: FeedforwardTrainConfig,
        philox: Philox,
        record: bool,
    ) -> Result<Self> {
        network.config().validate()?;
        config.validate(network.config())?;
        let draws = config.dropout.iter().any(|&share| share > 0.);
        if let (true, Some(layer), Some((weight, _))) =
            (draws, network.config().layers.first(), network.layers().first())
        {
            other_place("FeedforwardTrainer", philox, weight, |n| layer.first_weights(n, philox))?;
        }
        let mut own = network.config().clone();
        own.preparation = own.preparation.to_device(network.device()).map_err(Error::wrap)?;
        let buffers = Buffers::new(network, own, &config, philox)?;
        let (device, replay) = (network.device(), replay(network.device(), &buffers, record));
        let stopping = EarlyStopping::new(usize::MAX);
        let losses = LossSums::new(&buffers.gathered);
        let own = network.config();
        let top = own.layers.last();
        let targets = matches!(own.task, Task::Autoencode { .. })
            && top.is_some_and(|top| top.activation == Activation::Sigmoid);
        let range =
            targets.then(|| UnitRange::new("sigmoid outputs", "identity outputs", device)).transpose()?;
        let n_classes = top.map_or(0, |top| top.n_outputs);
        let labels = buffers.labels.as_ref().map(|_| LabelsSeen::new(n_classes, device)).transpose()?;
        let mut trainer = Self {
            config,
            stopping,
            buffers,
            replay,
            record,
            partial: None,
            range,
            philox,
            steps: 0,
            losses,
            labels,
        };
        trainer.begin_epoch(0)?;
        Ok(trainer)
    }

    fn since_report(&self) -> Result<SinceReport> {
        const ADVICE: &str = "lower the learning rate, or scale the input";
        self.range.as_ref().map_or(Ok(()), |range| range.check("FeedforwardTrainer"))?;
        self.labels.as_ref().map_or(Ok(()), |labels| labels.check("FeedforwardTrainer::step"))?;
        self.losses.since_report("FeedforwardTrainer", self.steps, ADVICE)
    }

    /// What the network is.
    pub fn model_config(&self) -> &FeedforwardConfig {
        self.buffers.own()
    }

    /// The network as it is until the next step, to measure it: without the copy that
    /// [`model`](Trainer::model) makes, but for layers that steps train with more units.
    ///
    /// # Errors
    /// When memory is short.
    pub fn network(&self) -> Result<Feedforward> {
        self.buffers.network()
    }

    /// Trains until the error of `held_out` rows was no better for `patience` epochs in a row, or
    /// all `epochs` are made; returns the network of the best epoch. The error is the share of
    /// wrong classes of a classifier, which needs labels, and the mean squared error of a row of an
    /// autoencoder.
    ///
    /// A trainer that was [loaded](MinibatchTrainer::load) goes on with the best epoch that it had.
    ///
    /// ```
    /// # use candle::{Device::Cpu, Tensor};
    /// # use chandlery::datasets::{Feed, FeedConfig, Split};
    /// # use chandlery::feedforward::{FeedforwardTrainConfig, Feedforward, FeedforwardConfig, FeedforwardTrainer};
    /// # use chandlery::Philox;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let split = |n: u32| -> Result<Split, Box<dyn std::error::Error>> {
    /// #     let rows = Split::from_tensors(&chandlery_ops::core::uniform((n as usize, 6), &Cpu, Philox::new(0, 2))?, None)?;
    /// #     Ok(Split { labels: Some((0..n).map(|i| i % 3).collect::<Vec<_>>().into()), ..rows })
    /// # };
    /// # let (rows, held_out) = (split(60)?, split(30)?);
    /// let network = Feedforward::init(FeedforwardConfig::classifier(&[6, 5, 3]), Philox::new(3, 0), &Cpu)?;
    /// let mut feed = Feed::new(&rows, &Cpu, FeedConfig::new(20, 7))?;
    /// let mut trainer = FeedforwardTrainer::new(&network, FeedforwardTrainConfig::default(), Philox::new(3, 1))?;
    /// let best = trainer.fit_until(&mut feed, 100, &held_out, 10)?;
    /// println!("{} % of held-out rows are wrong after epoch {}", 100. * best.figure, best.epoch + 1);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`fit`](MinibatchTrainer::fit), when held-out rows cannot be read or do not fit the
    /// network, and when no error was a number.
    pub fn fit_until(
        &mut self,
        feed: &mut Feed,
        epochs: impl Into<Epochs>,
        held_out: &Split,
        patience: usize,
    ) -> Result<Best<Feedforward>> {
        /// Held-out rows at a time.
        const ROWS: usize = 1024;
        self.stopping.set_patience(patience);
        let held_out = Feed::new(held_out, self.device(), FeedConfig::in_order(ROWS));
        let mut held_out = held_out.map_err(Error::wrap)?;
        self.fit_with(feed, epochs, |event| {
            let Event::Epoch { epoch, trainer, .. } = event else { return Ok(ControlFlow::Continue(())) };
            let error = trainer.error_of(&mut held_out)?;
            Ok(if trainer.observe(epoch, error)? {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            })
        })?;
        self.stopping.clone().into_best()
    }

    /// The share of rows of a wrong class, or the mean squared error of a row.
    fn error_of(&self, feed: &mut Feed) -> Result<f64> {
        let (mut sum, network) = (0., self.network()?);
        feed.start_epoch(0, 0).map_err(Error::wrap)?;
        while let Some(Minibatch { rows, labels }) = feed.next().map_err(Error::wrap)? {
            sum += match (network.config().task, labels) {
                (Task::Classify, Some(labels)) => network.errors(&rows, &labels)? as f64,
                (Task::Classify, None) => {
                    candle::bail!("FeedforwardTrainer::fit_until: held_out must have labels, got none")
                }
                _ => network.reconstruction_error(&rows)? * rows.dim(0)? as f64,
            };
        }
        Ok(sum / feed.n_rows() as f64)
    }

    /// Keeps the network of the best epoch, and says when `patience` epochs have passed without a
    /// better one; see [`observe`](Self::observe).
    pub fn stop_early(mut self, patience: usize) -> Self {
        self.stopping = EarlyStopping::new(patience);
        self
    }

    /// Notes a figure of an epoch that should fall, such as the error of held-out rows; `true`
    /// means that training should stop.
    ///
    /// # Errors
    /// When memory is short.
    pub fn observe(&mut self, epoch: usize, figure: f64) -> Result<bool> {
        let Self { stopping, buffers, .. } = self;
        stopping.observe(epoch, figure, || buffers.network()?.to(DType::F32, buffers.device()))
    }

    /// The best epoch so far.
    pub fn stopping(&self) -> &EarlyStopping<Feedforward> {
        &self.stopping
    }

    /// Takes the learning rate and the momentum of another configuration, from the next epoch on:
    /// training that is extended has other schedules.
    ///
    /// # Errors
    /// When `config` is out of range or does not fit the network.
    pub fn set_schedules(&mut self, config: &FeedforwardTrainConfig) -> Result<()> {
        config.validate(self.model_config())?;
        self.config.learning_rate = config.learning_rate.clone();
        self.config.momentum = config.momentum.clone();
        Ok(())
    }

    /// How the network is trained.
    pub fn config(&self) -> &FeedforwardTrainConfig {
        &self.config
    }

    #[cfg(test)]
    pub(super) fn buffers(&self) -> &Buffers {
        &self.buffers
    }

    /// Puts back the state of a trainer of the same sizes and configuration that has made no step
    /// yet.
    fn restore(&mut self, stored: &Checkpoint<'_>) -> Result<()> {
        let (b, params) = (&self.buffers, self.buffers.params()?);
        let state = [("params", &params), ("steps", &b.steps), ("counter", &b.counter)];
        checkpoint::put_back("FeedforwardTrainer", state, |name| stored.of_trainer(name))?;
        b.take(&params)?;
        self.steps = self.losses.restore(stored)?;
        Ok(())
    }
}

/// The steps of buffers, recorded or each launched afresh.
fn replay(device: &Device, buffers: &Buffers, record: bool) -> Replay {
    let step = buffers.clone();
    let run = move || step.run();
    if record { Replay::new(device, run).unshared() } else { Replay::unrecorded(device, run) }
}

/// The name of the trainer in its checkpoints.
const NAME: &str = "feedforward";

impl Trainer for FeedforwardTrainer {
    type Model = Feedforward;
    type Metrics = Metrics;

    fn check(&mut self) -> Result<()> {
        self.since_report()?;
        all_finite("FeedforwardTrainer", self.steps, [("params", &self.buffers.all_params)])
    }

    fn metrics(&mut self) -> Result<Metrics> {
        let since = self.since_report()?;
        at_least_one("FeedforwardTrainer::metrics", "steps since the last call", since.steps as usize)?;
        self.losses.report(&since);
        let classify = self.model_config().task == Task::Classify;
        Ok(Metrics {
            steps: since.steps,
            loss: since.loss,
            error: classify.then_some(1. - since.second),
            squared_error: (!classify).then_some(since.second),
        })
    }

    fn steps(&self) -> u64 {
        self.steps
    }

    /// Trains with the other ranks of a group: each computes the gradient of its own rows of every
    /// minibatch, [`Group::rows`], and all make the step of their sum, so that all have the same
    /// parameters to the bit. They are those of one rank up to the order of sums, dropout included.
    ///
    /// [`step`](MinibatchTrainer::step) takes all rows of the minibatch on every rank, and `metrics` are of
    /// all rows. Cost: an all-reduce of 4 bytes a parameter each step.
    ///
    /// # Errors
    /// When the minibatch has too few rows to give each rank some, memory is short, or a rank is gone.
    fn in_group(mut self, group: &Group) -> Result<Self> {
        Share::check("FeedforwardTrainer", group, "batch", self.config.batch)?;
        self.buffers = self.buffers.in_group(self.philox, group)?;
        self.replay = replay(self.device(), &self.buffers, self.record);
        self.partial = None;
        self.losses.in_group(group, &self.buffers.gathered)?;
        self.range.iter_mut().for_each(|range| range.in_group(group));
        let b = &self.buffers;
        [&b.all_params, &b.steps, &b.counter].into_iter().try_for_each(|state| group.broadcast_(state, 0))?;
        b.refresh()?;
        Ok(self)
    }

    fn gather(&mut self) -> Result<()> {
        self.losses.gather()
    }

    fn model(&self) -> Result<Feedforward> {
        self.network()?.to(DType::F32, self.device())
    }

    fn device(&self) -> &Device {
        self.buffers.device()
    }

    /// The best network so far is stored too.
    fn save(&self, path: &Path, progress: &Value) -> Result<()> {
        let b = &self.buffers;
        let state = [("params", b.params()?), ("steps", b.steps.clone()), ("counter", b.counter.clone())];
        let state = state.into_iter().chain(self.losses.stored(self.steps)?);
        let state = state.map(|(name, t)| (format!("trainer.{name}"), t));
        let model = self.network()?.tensors();
        let best = self.stopping.best().map(|best| best.tensors()).unwrap_or_default();
        let best = best.into_iter().map(|(name, t)| (format!("best.{name}"), t));
        let notes = Notes {
            network: self.model_config().clone(),
            training: self.config.clone(),
            stopping: self.stopping.clone(),
            philox: self.philox,
            progress: progress.clone(),
        };
        let tensors = model.into_iter().chain(state).chain(best);
        checkpoint::save(path, NAME, tensors, &notes, &notes.network.preparation)
    }
}

impl MinibatchTrainer for FeedforwardTrainer {
    fn follow(&mut self, epochs: f64) -> Result<()> {
        let FeedforwardTrainConfig { learning_rate, momentum, .. } = &self.config;
        let (rate, momentum) = (learning_rate.within(epochs), momentum.within(epochs));
        set_scalars_(&self.buffers.scalars, &[rate as f32, momentum as f32])
    }

    /// `rows` are raw, `[config.batch, n_inputs]`, or fewer. On a GPU the host does not look at
    /// labels: [`check`](Trainer::check) and [`metrics`](Trainer::metrics) report one that is no
    /// class.
    fn step(&mut self, rows: &Tensor, labels: Option<&Tensor>) -> Result<()> {
        let n =
            check_minibatch("FeedforwardTrainer", rows, self.config.batch, self.model_config().n_inputs())?;
        let full = n == self.config.batch;
        if !full && self.partial.as_ref().is_none_or(|(buffers, _)| buffers.batch() != n) {
            let buffers = self.buffers.of_fewer(self.philox, n)?;
            let replay = replay(self.device(), &buffers, false);
            self.partial = Some((buffers, replay));
        }
        let (buffers, replay) = match &mut self.partial {
            Some((buffers, replay)) if !full => (&*buffers, replay),
            _ => (&self.buffers, &mut self.replay),
        };
        let labels = buffers.own_labels(labels)?;
        if let (Some(seen), Some(labels)) = (&self.labels, &labels) {
            seen.see("FeedforwardTrainer::step", labels)?;
        }
        let share = buffers.share();
        if !share.rows().is_empty() {
            let rows = share.own(rows)?;
            let (rows, scale) = to_load("FeedforwardTrainer", &buffers.own().preparation, &rows)?;
            self.range.as_mut().map_or(Ok(()), |range| range.see(&rows, scale))?;
            buffers.load(&rows, scale)?;
        }
        replay.run()?;
        if !full {
            self.losses.take_from(&buffers.gathered)?;
        }
        self.losses.count(n);
        self.steps += 1;
        Ok(())
    }

    fn rows_group(&self) -> Group {
        self.buffers.share().group().clone()
    }

    fn load(path: &Path, device: &Device) -> Result<(Self, Value)> {
        let (checkpoint, mut notes) = Checkpoint::load::<Notes>(path, NAME, device)?;
        let vb = VarBuilder::from_tensors(checkpoint.tensors.clone(), DType::F32, device);
        checkpoint.load_preparation(&mut notes.network.preparation, device)?;
        let network =
            Feedforward::new(notes.network.clone(), vb.clone()).map_err(|e| checkpoint.refused(&e))?;
        let mut stopping = notes.stopping;
        if stopping.best_epoch().is_some() {
            stopping.set_best(
                Feedforward::new(notes.network, vb.pp("best")).map_err(|e| checkpoint.refused(&e))?,
            );
        }
        let mut trainer =
            Self::new(&network, notes.training, notes.philox).map_err(|e| checkpoint.refused(&e))?;
        trainer.restore(&checkpoint).map_err(|e| checkpoint.refused(&e))?;
        trainer.stopping = stopping;
        Ok((trainer, notes.progress))
    }
}
