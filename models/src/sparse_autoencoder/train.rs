//! Training by minibatches, where all rows at once are too many.
//!
//! A step is one evaluation of the [`Cost`] over a minibatch, whose own mean activation stands for
//! that of all rows, and a step of Adam or of gradient descent with momentum along its gradient.
//!
//! Sources: Kingma and Ba, "Adam: a method for stochastic optimization", ICLR 2015; the steps are
//! those of [`adam_step_`] and [`sgd_step_`].
use super::cost::target_range;
use super::{Cost, CostConfig, SparseAutoencoder, SparseAutoencoderConfig};
use crate::check::{all_finite, at_least_one};
use crate::checkpoint::{self, Checkpoint};
use crate::feedforward::Optimizer;
use crate::schedule::Schedule;
use crate::share::of_first;
use crate::trainer::{MinibatchTrainer, Trainer, check_minibatch};
use crate::unit_range::UnitRange;
use candle::{DType, Device, Result, Tensor};
use chandlery_ops::Group;
use chandlery_ops::core::{advance_, set_scalars_};
use chandlery_ops::layers::{AdamStep, SgdStep, adam_step_, sgd_step_};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::Path;

/// How a sparse autoencoder learns from minibatches.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SparseAutoencoderTrainConfig {
    /// What the cost weighs.
    pub cost: CostConfig,
    /// Rows of a minibatch, at least 1. Default 1000, so that the mean activation of a minibatch is
    /// worth a target of 0.01.
    pub batch: usize,
    /// Step size, at least 0. Default 0.003, Adam's; gradient descent wants some 100 times more.
    pub learning_rate: Schedule,
    /// Share of the last step that is kept, in [0, 1); of [`Optimizer::Sgd`] alone. Default 0.9.
    pub momentum: Schedule,
    /// How parameters follow their gradient. Default Adam.
    pub optimizer: Optimizer,
}

impl Default for SparseAutoencoderTrainConfig {
    fn default() -> Self {
        Self {
            cost: CostConfig::default(),
            batch: 1000,
            learning_rate: Schedule::constant(0.003),
            momentum: Schedule::constant(0.9),
            optimizer: Optimizer::default(),
        }
    }
}

impl SparseAutoencoderTrainConfig {
    /// # Errors
    /// When a field is out of its range; the message names it.
    pub fn validate(&self) -> Result<()> {
        const OP: &str = "SparseAutoencoderTrainConfig";
        self.cost.validate()?;
        at_least_one(OP, "batch", self.batch)?;
        self.learning_rate.validate(OP, "learning_rate", "at least 0", |x| x >= 0.)?;
        self.momentum.validate(OP, "momentum", "in [0, 1)", |x| (0. ..1.).contains(&x))
    }
}

/// What the steps since the last report measured.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Metrics {
    /// Steps since the last report.
    pub steps: u64,
    /// Mean cost of a minibatch.
    pub cost: f64,
}

/// Trains one [`SparseAutoencoder`] in f32; see the [module](self).
pub struct SparseAutoencoderTrainer {
    config: SparseAutoencoderTrainConfig,
    model: SparseAutoencoderConfig,
    /// `[planes, n]`: parameters, gradient, and what the optimiser remembers.
    params: Tensor,
    /// Of the rows, where they are the targets of sigmoid outputs.
    range: Option<UnitRange>,
    scalars: Tensor,
    /// Steps made, for the optimiser.
    counter: Tensor,
    /// The sum of the costs since the last report, f64.
    total: Tensor,
    steps: u64,
    reported: u64,
    /// Ranks that have rows of each minibatch.
    group: Group,
    /// That of whole minibatches, with rows of its own.
    cost: Option<Cost>,
}

/// The name of the trainer in its checkpoints.
const NAME: &str = "sparse-autoencoder";

#[derive(Serialize, Deserialize)]
struct Notes {
    model: SparseAutoencoderConfig,
    training: SparseAutoencoderTrainConfig,
    progress: Value,
}

impl SparseAutoencoderTrainer {
    /// Takes a copy of `model` and trains it on raw rows, which go through its preparation.
    ///
    /// # Errors
    /// When `config` is out of range or memory is short.
    pub fn new(model: &SparseAutoencoder, config: SparseAutoencoderTrainConfig) -> Result<Self> {
        config.validate()?;
        let device = model.weight().device();
        let planes = if config.optimizer == Optimizer::Adam { 4 } else { 3 };
        let params = Tensor::zeros((planes, model.config().n_parameters()), DType::F32, device)?;
        params.slice_set(&model.flat()?.to_dtype(DType::F32)?.unsqueeze(0)?, 0, 0)?;
        let mut trainer = Self {
            config,
            model: model.config().clone(),
            params,
            range: target_range(model.config(), device)?,
            scalars: Tensor::zeros(2, DType::F32, device)?,
            counter: Tensor::new(&[0i64], device)?,
            total: Tensor::zeros((), DType::F64, device)?,
            steps: 0,
            reported: 0,
            group: Group::single(),
            cost: None,
        };
        trainer.begin_epoch(0)?;
        Ok(trainer)
    }

    /// How the model is trained.
    pub fn config(&self) -> &SparseAutoencoderTrainConfig {
        &self.config
    }

    /// What the model is.
    pub fn model_config(&self) -> &SparseAutoencoderConfig {
        &self.model
    }

    /// The cost of raw rows that may be written over.
    fn cost_of(&self, rows: &Tensor) -> Result<Cost> {
        let (model, device) = (self.model.clone(), self.params.device());
        Cost::unchecked(model, self.config.cost, rows, &self.group, None, DType::F32, device)
    }

    /// The mean cost since the last report, of how many steps.
    fn since_report(&self) -> Result<(f64, u64)> {
        self.range.as_ref().map_or(Ok(()), |range| range.check("SparseAutoencoderTrainer"))?;
        let steps = self.steps - self.reported;
        let cost = self.total.to_scalar::<f64>()? / steps as f64;
        if steps > 0 && !cost.is_finite() {
            candle::bail!(
                "SparseAutoencoderTrainer: the cost became {cost} between steps {} and {}; lower the learning rate, or scale the input",
                self.reported + 1,
                self.steps
            )
        }
        Ok((cost, steps))
    }
}

impl Trainer for SparseAutoencoderTrainer {
    type Model = SparseAutoencoder;
    type Metrics = Metrics;

    fn check(&mut self) -> Result<()> {
        self.since_report()?;
        all_finite("SparseAutoencoderTrainer", self.steps, [("params", &self.params)])
    }

    fn metrics(&mut self) -> Result<Metrics> {
        let (cost, steps) = self.since_report()?;
        at_least_one("SparseAutoencoderTrainer::metrics", "steps since the last call", steps as usize)?;
        (self.total, self.reported) = (self.total.zeros_like()?, self.steps);
        Ok(Metrics { steps, cost })
    }

    fn steps(&self) -> u64 {
        self.steps
    }

    /// Trains with the other ranks of a group: each takes its own rows of every minibatch,
    /// [`Group::rows`], see [`Cost::in_group`] for what a step costs. All make the same steps, so that
    /// all have the same parameters to the bit: those of one rank up to the order of sums.
    ///
    /// All ranks make the same trainer or load the same checkpoint, begin with the parameters of rank
    /// 0, and make the same calls of [`step`](MinibatchTrainer::step), each with all rows of the
    /// minibatch.
    ///
    /// # Errors
    /// When memory is short or a rank is gone.
    fn in_group(mut self, group: &Group) -> Result<Self> {
        self.params = of_first(group, &self.params)?;
        self.range.iter_mut().for_each(|range| range.in_group(group));
        (self.group, self.cost) = (group.clone(), None);
        Ok(self)
    }

    fn model(&self) -> Result<SparseAutoencoder> {
        SparseAutoencoder::from_flat(self.model.clone(), &self.params.get(0)?.force_contiguous()?)
    }

    fn device(&self) -> &Device {
        self.params.device()
    }

    fn save(&self, path: &Path, progress: &Value) -> Result<()> {
        let counts = Tensor::new(&[self.steps as i64, self.reported as i64], &Device::Cpu)?;
        let state = [("params", &self.params), ("total", &self.total), ("counts", &counts)];
        let state = state.map(|(name, t)| (format!("trainer.{name}"), t.clone()));
        let (model, training) = (self.model.clone(), self.config.clone());
        let notes = Notes { model, training, progress: progress.clone() };
        checkpoint::save(path, NAME, state, &notes, &self.model.preparation)
    }
}

impl MinibatchTrainer for SparseAutoencoderTrainer {
    fn follow(&mut self, epochs: f64) -> Result<()> {
        let SparseAutoencoderTrainConfig { learning_rate, momentum, .. } = &self.config;
        let (rate, momentum) = (learning_rate.within(epochs), momentum.within(epochs));
        set_scalars_(&self.scalars, &[rate as f32, momentum as f32])
    }

    fn step(&mut self, rows: &Tensor, _: Option<&Tensor>) -> Result<()> {
        let batch = self.config.batch;
        let n = check_minibatch("SparseAutoencoderTrainer", rows, batch, self.model.n_inputs())?;
        let cost = match self.cost.take() {
            Some(mut cost) if n == batch => cost.put(rows).map(|()| cost),
            // A copy, which later minibatches are written over.
            None if n == batch => self.cost_of(&rows.force_contiguous()?),
            kept => {
                self.cost = kept;
                self.cost_of(rows)
            }
        }?;
        self.range.as_mut().map_or(Ok(()), |range| cost.see(range))?;
        let (value, gradient) = cost.evaluate(&self.params.get(0)?)?;
        if n == batch {
            self.cost = Some(cost);
        }
        self.params.slice_set(&gradient.unsqueeze(0)?, 0, 1)?;
        match self.config.optimizer {
            Optimizer::Adam => {
                adam_step_(&self.params, &self.scalars, &self.counter, AdamStep::default(), .., 0, None)?
            }
            Optimizer::Sgd => sgd_step_(&self.params, &self.scalars, SgdStep::default(), 0, None)?,
        }
        advance_(&self.counter, 1)?;
        self.total = (&self.total + value)?;
        self.steps += 1;
        Ok(())
    }

    fn rows_group(&self) -> Group {
        self.group.clone()
    }

    fn load(path: &Path, device: &Device) -> Result<(Self, Value)> {
        let (checkpoint, mut notes) = Checkpoint::load::<Notes>(path, NAME, device)?;
        checkpoint.load_preparation(&mut notes.model.preparation, device)?;
        let params = checkpoint.of_trainer("params")?;
        let total = checkpoint.of_trainer("total")?;
        let [steps, reported] = checkpoint.counts()?;
        let model = params
            .get(0)
            .and_then(|theta| SparseAutoencoder::from_flat(notes.model, &theta))
            .map_err(|e| checkpoint.refused(&e))?;
        let mut trainer = Self::new(&model, notes.training).map_err(|e| checkpoint.refused(&e))?;
        let fits = params.dims() == trainer.params.dims() && params.dtype() == DType::F32;
        if !fits || total.dtype() != DType::F64 || total.rank() != 0 {
            return Err(checkpoint.refused(&"params and total must be those of the trainer"));
        }
        trainer.counter = Tensor::new(&[steps as i64], device)?;
        (trainer.params, trainer.total) = (params, total);
        (trainer.steps, trainer.reported) = (steps, reported);
        Ok((trainer, notes.progress))
    }
}
