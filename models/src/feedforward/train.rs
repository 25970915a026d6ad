//! Training a network by backpropagation, in place and without a word to the host.
//!
//! ```text
//! forward    hˡ = m ∘ f(hˡ⁻¹ Wˡᵀ + bˡ)                    m: dropout, of what layer l + 1 reads
//! top        δᴸ = ∂J/∂xᴸ                                  J: cross-entropy of labels or grey levels, or squared error
//! backward   δˡ⁻¹ = m ∘ (δˡ Wˡ) ∘ f'                      ∂J/∂Wˡ = δˡᵀ hˡ⁻¹,  ∂J/∂bˡ = Σ_rows δˡ
//! update     Adam, or gradient descent with momentum; then rows of hidden W longer than max_norm are scaled back
//! ```
//!
//! | symbol | field of [`BackpropConfig`] |
//! |---|---|
//! | `m` | `dropout` |
//! | `J` | `loss`, for autoencoders |
//! | rates | `learning_rate`, `momentum`: schedules over epochs; `optimizer`, `weight_decay`, `max_norm` |
//!
//! Sources: Rumelhart, Hinton and Williams, "Learning representations by back-propagating errors", Nature 323, 1986;
//! Srivastava et al., "Dropout", JMLR 15, 2014.
//!
//! A step is a load and then, on CUDA, one recorded graph: three products a layer (two for the lowest), one pass for
//! each activation either way, one for the loss, one for each bias, and one for all parameters, which lie in one flat buffer with
//! their gradients. Everything is allocated in [`FeedforwardTrainer::new`]. Cost: `6 · batch` FLOP a weight.
use super::step::Buffers;
use super::{BackpropConfig, EarlyStopping, Feedforward, FeedforwardConfig, Task};
use crate::check::{all_finite, at_least_one};
use crate::checkpoint::{self, Checkpoint};
use crate::prepare::to_load;
use crate::trainer::Trainer;
use candle::{DType, Device, Error, Result, Tensor};
use candle_nn::VarBuilder;
use chandlery_ops::{Philox, Replay, advance_, scale_into_, set_scalars_};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// What was gathered on the device since the last report, over training rows with dropout as it was.
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
/// Owns what a resume needs beside the parameters: what the optimiser remembers, and the places in its steps and
/// in the random sequence.
pub struct FeedforwardTrainer {
    config: BackpropConfig,
    /// Shares its memory with `buffers`.
    model: Feedforward,
    stopping: EarlyStopping,
    buffers: Buffers,
    replay: Replay,
    philox: Philox,
    steps: u64,
    /// What had been gathered, and after how many steps, at the last report.
    reported: ([f64; 2], u64),
}

/// What a checkpoint says beside its tensors.
#[derive(Serialize, Deserialize)]
struct Notes<P> {
    network: FeedforwardConfig,
    training: BackpropConfig,
    stopping: EarlyStopping,
    seed: u64,
    stream: u64,
    offset: u64,
    progress: P,
}

impl FeedforwardTrainer {
    /// Takes a copy of `network` and trains it on raw rows, which go through the network's preparation.
    ///
    /// `philox` is where the draws of dropout begin; its stream should be used for nothing else.
    ///
    /// # Errors
    /// When `config` is out of range or does not fit the network, or memory is short.
    pub fn new(network: &Feedforward, config: BackpropConfig, philox: Philox) -> Result<Self> {
        Self::with(network, config, philox, true)
    }

    /// The same; without `record` each step is launched afresh, which tests compare with.
    pub(super) fn with(
        network: &Feedforward,
        config: BackpropConfig,
        philox: Philox,
        record: bool,
    ) -> Result<Self> {
        network.config().validate()?;
        config.validate(network.config())?;
        let buffers = Buffers::new(network, &config, philox)?;
        let mut of_model = network.config().clone();
        of_model.preparation = of_model.preparation.to_device(network.device()).map_err(Error::wrap)?;
        let model = buffers.network(of_model)?;
        let step = buffers.clone();
        let run = move || step.run();
        let device = network.device();
        let replay =
            if record { Replay::new(device, run).unshared() } else { Replay::unrecorded(device, run) };
        let stopping = EarlyStopping::new(usize::MAX);
        let mut trainer =
            Self { config, model, stopping, buffers, replay, philox, steps: 0, reported: ([0.; 2], 0) };
        trainer.begin_epoch(0)?;
        Ok(trainer)
    }

    /// Mean loss and second figure of the rows since the last report, and how many steps they are of.
    fn since_report(&self, total: [f64; 2]) -> Result<([f64; 2], u64)> {
        let (before, from) = self.reported;
        let steps = self.steps - from;
        let rows = steps as f64 * self.config.batch as f64;
        let [loss, second] = [0, 1].map(|i| (total[i] - before[i]) / rows);
        if steps > 0 && !loss.is_finite() {
            candle::bail!(
                "FeedforwardTrainer: the loss became {loss} between steps {} and {}; lower the learning rate, scale the \
                 input, or see that every label is below the number of classes",
                from + 1,
                self.steps
            )
        }
        Ok(([loss, second], steps))
    }

    fn gathered(&self) -> Result<[f64; 2]> {
        let sums = self.buffers.gathered.sum(1)?.to_vec1::<f64>()?;
        Ok([sums[0], sums[1]])
    }

    /// What the network is.
    pub fn model_config(&self) -> &FeedforwardConfig {
        self.model.config()
    }

    /// Keeps the network of the best epoch, and says when `patience` epochs have passed without a better one; see
    /// [`observe`](Self::observe).
    pub fn stop_early(mut self, patience: usize) -> Self {
        self.stopping = EarlyStopping::new(patience);
        self
    }

    /// Notes a figure of an epoch that should fall, such as the error of held-out rows; `true` means that training should stop.
    ///
    /// # Errors
    /// When memory is short.
    pub fn observe(&mut self, epoch: usize, figure: f64) -> Result<bool> {
        self.stopping.observe(epoch, figure, &self.model)
    }

    /// The best epoch so far.
    pub fn stopping(&self) -> &EarlyStopping {
        &self.stopping
    }

    /// Takes the learning rate and the momentum of another configuration, from the next epoch on: training that is extended has other
    /// schedules.
    ///
    /// # Errors
    /// When `config` is out of range or does not fit the network.
    pub fn set_schedules(&mut self, config: &BackpropConfig) -> Result<()> {
        config.validate(self.model.config())?;
        self.config.learning_rate = config.learning_rate.clone();
        self.config.momentum = config.momentum.clone();
        Ok(())
    }

    /// How the network is trained.
    pub fn config(&self) -> &BackpropConfig {
        &self.config
    }

    #[cfg(test)]
    pub(super) fn buffers(&self) -> &Buffers {
        &self.buffers
    }

    /// Puts back the state of a trainer of the same sizes and configuration that has made no step yet.
    fn restore(&mut self, find: impl Fn(&str) -> Result<Tensor>) -> Result<()> {
        let b = &self.buffers;
        let params = find("params")?;
        if params.dims() != b.params.dims() {
            candle::bail!("params must have shape {:?}, got {:?}", b.params.dims(), params.dims())
        }
        scale_into_(&b.params, &params.contiguous()?, 1.)?;
        for (name, to) in [("steps", &b.steps), ("counter", &b.counter)] {
            let from = find(name)?.to_vec1::<i64>()?;
            advance_(to, from.first().copied().unwrap_or(0))?;
        }
        let (gathered, counts) = (find("gathered")?.to_vec1::<f64>()?, find("counts")?.to_vec1::<i64>()?);
        let (&[loss, second], &[steps, reported]) = (&gathered[..], &counts[..]) else {
            candle::bail!(
                "gathered and counts must have 2 entries, got {} and {}",
                gathered.len(),
                counts.len()
            )
        };
        // The device has gathered nothing yet: what was open counts as not yet reported.
        self.steps = steps as u64;
        self.reported = ([-loss, -second], reported as u64);
        Ok(())
    }
}

/// The name of the trainer in its checkpoints.
const NAME: &str = "feedforward";

impl Trainer for FeedforwardTrainer {
    type Model = Feedforward;
    type Metrics = Metrics;

    fn begin_epoch(&mut self, epoch: usize) -> Result<()> {
        let (rate, momentum) = (self.config.learning_rate.at(epoch), self.config.momentum.at(epoch));
        set_scalars_(&self.buffers.scalars, &[rate as f32, momentum as f32])
    }

    /// `rows` are raw, `[config.batch, n_inputs]`; a label that is not a class makes the loss NaN, which [`check`](Trainer::check) and
    /// [`metrics`](Trainer::metrics) report.
    fn step(&mut self, rows: &Tensor, labels: Option<&Tensor>) -> Result<()> {
        const OP: &str = "FeedforwardTrainer::step";
        let want = [self.config.batch, self.model.config().n_inputs()];
        if rows.dims() != want {
            candle::bail!("{OP}: rows must have shape {want:?}, got {:?}", rows.dims())
        }
        if let Some(to) = &self.buffers.labels {
            match labels {
                Some(labels) if labels.dims() == to.dims() && labels.dtype() == DType::U32 => {
                    to.slice_set(labels, 0, 0)?;
                }
                Some(labels) => candle::bail!(
                    "{OP}: labels must be u32 of shape {:?}, got {:?} {:?}",
                    to.dims(),
                    labels.dtype(),
                    labels.dims()
                ),
                None => candle::bail!("{OP}: a classifier must be given labels, got none"),
            }
        }
        let (rows, scale) = to_load(&self.model.config().preparation, rows)?;
        scale_into_(&self.buffers.rows, &rows, scale)?;
        self.replay.run()?;
        self.steps += 1;
        Ok(())
    }

    fn check(&mut self) -> Result<()> {
        self.since_report(self.gathered()?)?;
        all_finite("FeedforwardTrainer", self.steps, [("params", &self.buffers.params)])
    }

    fn metrics(&mut self) -> Result<Metrics> {
        let total = self.gathered()?;
        let ([loss, second], steps) = self.since_report(total)?;
        at_least_one("FeedforwardTrainer::metrics", "steps since the last call", steps as usize)?;
        self.reported = (total, self.steps);
        let classify = self.model.config().task == Task::Classify;
        Ok(Metrics {
            steps,
            loss,
            error: classify.then_some(1. - second),
            squared_error: (!classify).then_some(second),
        })
    }

    fn steps(&self) -> u64 {
        self.steps
    }

    fn model(&self) -> Result<Feedforward> {
        self.model.to(DType::F32, self.device())
    }

    fn device(&self) -> &Device {
        self.model.device()
    }

    /// The best network so far is stored too.
    fn save_checkpoint(&self, path: &Path, progress: &impl Serialize) -> Result<()> {
        let b = &self.buffers;
        let gathered = self.gathered()?;
        let open = [0, 1].map(|i| gathered[i] - self.reported.0[i]);
        let counts = [self.steps as i64, self.reported.1 as i64];
        let state = [
            ("params", b.params.clone()),
            ("steps", b.steps.clone()),
            ("counter", b.counter.clone()),
            ("gathered", Tensor::new(&open, &Device::Cpu)?),
            ("counts", Tensor::new(&counts, &Device::Cpu)?),
        ];
        let state = state.into_iter().map(|(name, t)| (format!("trainer.{name}"), t));
        let model = self.model.tensors();
        let best = self.stopping.best().map(|best| best.tensors()).unwrap_or_default();
        let best = best.into_iter().map(|(name, t)| (format!("best.{name}"), t));
        let Philox { seed, stream, offset } = self.philox;
        let notes = Notes {
            network: self.model.config().clone(),
            training: self.config.clone(),
            stopping: self.stopping.clone(),
            seed,
            stream,
            offset,
            progress,
        };
        let tensors = model.into_iter().chain(state).chain(best);
        checkpoint::save(path, NAME, tensors, &notes, &notes.network.preparation)
    }

    fn load_checkpoint<P: DeserializeOwned>(path: &Path, device: &Device) -> Result<(Self, P)> {
        let (checkpoint, mut notes) = Checkpoint::load::<Notes<P>>(path, NAME, device)?;
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
        let philox = Philox { seed: notes.seed, stream: notes.stream, offset: notes.offset };
        let mut trainer = Self::new(&network, notes.training, philox).map_err(|e| checkpoint.refused(&e))?;
        trainer.restore(|name| checkpoint.of_trainer(name)).map_err(|e| checkpoint.refused(&e))?;
        trainer.stopping = stopping;
        Ok((trainer, notes.progress))
    }
}
