//! Training over all rows at once: by L-BFGS, by conjugate gradient or by batch gradient descent.
//!
//! An iteration is a step along a direction of a [`Descent`], of L-BFGS most often one evaluation
//! of the [`Cost`] over all rows, of conjugate gradient some two, and of gradient descent one with
//! a fixed rate. A run can be looked at after each iteration, ended, written to a checkpoint and
//! taken up again bit for bit.
//!
//! Sources: Ng, "Sparse autoencoder", CS294A lecture notes, 2011, and Klaus and Welles, 2014, who
//! train by L-BFGS for 400 iterations; the latter name the other two.
//!
//! ```
//! use candle::Device::Cpu;
//! use chandlery::sparse_autoencoder::*;
//! use chandlery::{FullBatchTrainer, Philox};
//! use std::ops::ControlFlow;
//! # fn main() -> candle::Result<()> {
//! let rows = chandlery_ops::core::uniform((50, 6), &Cpu, Philox::new(1, 0))?;
//! let model = SparseAutoencoder::init(SparseAutoencoderConfig::new(6, 4), Philox::new(1, 1), &Cpu)?;
//! let fit = SparseAutoencoderLbfgsTrainConfig { iterations: 20, ..SparseAutoencoderLbfgsTrainConfig::default() };
//! let mut run = SparseAutoencoderLbfgsTrainer::new(&model, fit, &rows)?;
//! let before = run.parts()?.cost;
//! run.fit_with(|_, iteration| Ok(if iteration.value < 1. { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }))?;
//! assert!(run.parts()?.cost < before);
//! # Ok(()) }
//! ```
use super::{Cost, CostConfig, CostParts, SparseAutoencoder, SparseAutoencoderConfig};
use crate::check::{at_least_one, range};
use crate::checkpoint::{self, Checkpoint};
use crate::optim::{
    ConjugateGradientConfig, Descent, GradientDescentConfig, Iteration, LbfgsConfig, Method, Outcome,
};
use crate::trainer::{FullBatchTrainer, Trainer};
use candle::{DType, Device, Error, Result, Tensor};
use chandlery_ops::{Group, Philox};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::Path;

/// How parameters follow the gradient of the cost over all rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FullBatchOptimizer {
    /// L-BFGS, see [`lbfgs`](crate::optim::lbfgs).
    #[default]
    Lbfgs,
    /// Nonlinear conjugate gradient, see [`cg`](crate::optim::cg).
    #[serde(rename = "cg")]
    ConjugateGradient,
    /// Batch gradient descent, see [`gd`](crate::optim::gd).
    #[serde(rename = "gd")]
    GradientDescent,
}

/// How a sparse autoencoder is trained over all rows at once.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SparseAutoencoderLbfgsTrainConfig {
    /// What the cost weighs.
    pub cost: CostConfig,
    /// Iterations, at least 1. Default 400.
    pub iterations: usize,
    /// How parameters follow the gradient. Default L-BFGS.
    pub optimizer: FullBatchOptimizer,
    /// Steps that L-BFGS keeps, at least 1. Default 20.
    pub history: usize,
    /// The fixed rate of gradient descent, above 0. Default none: each step is found by
    /// backtracking. The others have steps of their own.
    pub learning_rate: Option<f64>,
    /// The run ends when the norm of the gradient is at most this; at least 0. Default 0.
    pub gradient_tolerance: f64,
    /// Rows at a time on the device, at least 1; all by default. For rows that do not fit there.
    pub chunk: Option<usize>,
    /// Whether all numbers are f64 in place of f32. Default `false`.
    pub double: bool,
}

impl Default for SparseAutoencoderLbfgsTrainConfig {
    fn default() -> Self {
        Self {
            cost: CostConfig::default(),
            iterations: 400,
            optimizer: FullBatchOptimizer::default(),
            history: 20,
            learning_rate: None,
            gradient_tolerance: 0.,
            chunk: None,
            double: false,
        }
    }
}

impl SparseAutoencoderLbfgsTrainConfig {
    /// # Errors
    /// When a field is out of its range; the message names it.
    pub fn validate(&self) -> Result<()> {
        const OP: &str = "SparseAutoencoderLbfgsTrainConfig";
        self.cost.validate()?;
        at_least_one(OP, "iterations", self.iterations)?;
        at_least_one(OP, "history", self.history)?;
        at_least_one(OP, "chunk", self.chunk.unwrap_or(1))?;
        let rate = self.learning_rate.unwrap_or(1.);
        range(OP, "learning_rate", rate, "above 0", |x| x > 0.)?;
        range(OP, "gradient_tolerance", self.gradient_tolerance, "at least 0", |x| x >= 0.)
    }

    fn method(&self) -> Method {
        let Self { iterations, history, learning_rate: rate, gradient_tolerance, .. } = *self;
        match self.optimizer {
            FullBatchOptimizer::Lbfgs => {
                LbfgsConfig { history, iterations, gradient_tolerance, ..LbfgsConfig::default() }.into()
            }
            FullBatchOptimizer::ConjugateGradient => ConjugateGradientConfig {
                iterations,
                gradient_tolerance,
                ..ConjugateGradientConfig::default()
            }
            .into(),
            FullBatchOptimizer::GradientDescent => GradientDescentConfig {
                iterations,
                gradient_tolerance,
                rate,
                ..GradientDescentConfig::default()
            }
            .into(),
        }
    }

    fn dtype(&self) -> DType {
        if self.double { DType::F64 } else { DType::F32 }
    }
}

/// A training run over given rows; see the [module](self).
pub struct SparseAutoencoderLbfgsTrainer {
    config: SparseAutoencoderLbfgsTrainConfig,
    cost: Cost,
    descent: Descent,
    last: Option<Iteration>,
    outcome: Option<Outcome>,
}

/// The name of a run in its checkpoints.
const NAME: &str = "sparse-autoencoder-lbfgs";

#[derive(Serialize, Deserialize)]
struct Notes {
    model: SparseAutoencoderConfig,
    fit: SparseAutoencoderLbfgsTrainConfig,
    state: crate::optim::State,
    last: Option<Iteration>,
    n_samples: usize,
    progress: Value,
}

impl SparseAutoencoderLbfgsTrainer {
    /// A run from `model`, on its device, over raw `rows`, `[m, n_inputs]`, which go through the
    /// model's preparation.
    ///
    /// # Errors
    /// When `config` is out of range, rows do not fit the model, or memory is short.
    pub fn new(
        model: &SparseAutoencoder,
        config: SparseAutoencoderLbfgsTrainConfig,
        rows: &Tensor,
    ) -> Result<Self> {
        config.validate()?;
        let device = model.weight().device();
        let theta = model.flat()?.to_dtype(config.dtype())?;
        let of_model = model.config().clone();
        let cost = Cost::new(of_model, config.cost, rows, config.chunk, config.dtype(), device)?;
        let descent = Descent::new(&theta, config.method())?;
        Ok(Self { config, cost, descent, last: None, outcome: None })
    }

    /// The terms of the cost as it is. Waits for the device.
    ///
    /// # Errors
    /// When memory is short.
    pub fn parts(&self) -> Result<CostParts> {
        self.cost.parts(self.descent.x())
    }

    /// The run of the optimiser.
    pub fn descent(&self) -> &Descent {
        &self.descent
    }

    /// How the model is trained.
    pub fn config(&self) -> &SparseAutoencoderLbfgsTrainConfig {
        &self.config
    }

    /// Why there are no more iterations to make; none while there are.
    pub fn outcome(&self) -> Option<Outcome> {
        self.outcome
    }
}

impl SparseAutoencoder {
    /// Learns an autoencoder from raw `rows`, `[m, n_inputs]`, on their device; the first weights
    /// are drawn at `philox`.
    ///
    /// ```
    /// # use candle::Device::Cpu;
    /// # use chandlery::Philox;
    /// # use chandlery::sparse_autoencoder::{SparseAutoencoder, SparseAutoencoderConfig, SparseAutoencoderLbfgsTrainConfig};
    /// # fn main() -> candle::Result<()> {
    /// let rows = chandlery_ops::core::uniform((50, 6), &Cpu, Philox::new(1, 0))?;
    /// let (config, fit) = (SparseAutoencoderConfig::new(6, 4), SparseAutoencoderLbfgsTrainConfig::default());
    /// let model = SparseAutoencoder::fit(config, &rows, fit, Philox::new(1, 1))?;
    /// # assert_eq!(model.config().n_hidden, 4);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// When a configuration is out of range, rows do not fit it, the cost becomes NaN or infinite,
    /// or memory is short.
    pub fn fit(
        config: SparseAutoencoderConfig,
        rows: &Tensor,
        fit: SparseAutoencoderLbfgsTrainConfig,
        philox: Philox,
    ) -> Result<Self> {
        let first = Self::init(config, philox, rows.device())?;
        let mut run = SparseAutoencoderLbfgsTrainer::new(&first, fit, rows)?;
        FullBatchTrainer::fit(&mut run)?;
        run.model()
    }
}

impl Trainer for SparseAutoencoderLbfgsTrainer {
    type Model = SparseAutoencoder;
    type Metrics = Iteration;

    /// Iterations made.
    fn steps(&self) -> u64 {
        self.descent.iterations() as u64
    }

    /// Those of the last iteration.
    fn metrics(&mut self) -> Result<Iteration> {
        self.last.ok_or_else(|| {
            Error::msg("SparseAutoencoderLbfgsTrainer::metrics: iterations must be at least 1, got 0")
        })
    }

    /// Trains with the other ranks of a group, each on its own rows, [`Group::rows`], see
    /// [`Cost::in_group`] for what an evaluation costs. All make the same steps, so that all have the
    /// same parameters to the bit: those of one rank up to the order of sums, as far as a line search
    /// decides alike.
    ///
    /// All ranks make the same trainer or load the same checkpoint, each with all rows, and make the
    /// same calls of [`step`](FullBatchTrainer::step) and of [`parts`](Self::parts).
    ///
    /// # Errors
    /// When the trainer is in a group already, memory is short, or a rank is gone.
    fn in_group(mut self, group: &Group) -> Result<Self> {
        self.cost = self.cost.in_group(group)?;
        self.descent.begin_as_first(group)?;
        Ok(self)
    }

    /// In f32.
    fn model(&self) -> Result<SparseAutoencoder> {
        let theta = self.descent.x().to_dtype(DType::F32)?.copy()?;
        SparseAutoencoder::from_flat(self.cost.model_config().clone(), &theta)
    }

    fn device(&self) -> &Device {
        self.descent.x().device()
    }

    fn save(&self, path: &Path, progress: &Value) -> Result<()> {
        let (tensors, state) = self.descent.stored();
        let notes = Notes {
            model: self.cost.model_config().clone(),
            fit: self.config,
            state,
            last: self.last,
            n_samples: self.cost.n_samples(),
            progress: progress.clone(),
        };
        checkpoint::save(path, NAME, tensors, &notes, &notes.model.preparation)
    }
}

impl FullBatchTrainer for SparseAutoencoderLbfgsTrainer {
    /// One iteration of the optimiser; where there is none,
    /// [`outcome`](Self::outcome) says why.
    ///
    /// Fails when the cost becomes NaN or infinite: the message names the evaluation and the
    /// iteration, and the model stays at the last iteration that was finite.
    fn step(&mut self) -> Result<Option<Iteration>> {
        let Self { descent, cost, .. } = self;
        match descent.step(&mut |theta| cost.evaluate(theta))? {
            Ok(iteration) => {
                (self.last, self.outcome) = (Some(iteration), None);
                Ok(self.last)
            }
            Err(Outcome::NonFinite { evaluation }) => candle::bail!(
                "SparseAutoencoderLbfgsTrainer: the cost became NaN or infinite at evaluation {evaluation}, in iteration {}; check the \
                 rows for NaN, and their range: sigmoid outputs want values in [0, 1]{}",
                self.descent.iterations() + 1,
                if self.config.learning_rate.is_some() { "; a lower learning rate may help" } else { "" }
            ),
            Err(outcome) => {
                self.outcome = Some(outcome);
                Ok(None)
            }
        }
    }

    fn set_iterations(&mut self, iterations: usize) -> Result<()> {
        at_least_one("SparseAutoencoderLbfgsTrainer", "iterations", iterations)?;
        self.config.iterations = iterations;
        self.descent.set_iterations(iterations);
        Ok(())
    }

    /// Refuses rows that are not as many.
    fn load(path: &Path, rows: &Tensor, device: &Device) -> Result<(Self, Value)> {
        let (checkpoint, mut notes) = Checkpoint::load::<Notes>(path, NAME, device)?;
        let refused = |e: Error| checkpoint.refused(&e);
        checkpoint.load_preparation(&mut notes.model.preparation, device)?;
        if rows.dims().first() != Some(&notes.n_samples) {
            candle::bail!(
                "{}: the run is over {} rows, got {:?}; give the rows that it began with",
                path.display(),
                notes.n_samples,
                rows.dims()
            )
        }
        let fit = notes.fit;
        fit.validate().map_err(refused)?;
        let (x, kept) = (checkpoint.of_trainer("x")?, checkpoint.of_trainer("rows")?);
        let cost = Cost::new(notes.model, fit.cost, rows, fit.chunk, fit.dtype(), device).map_err(refused)?;
        let descent = Descent::restored(fit.method(), &x, kept, notes.state).map_err(refused)?;
        super::pass::views(cost.model_config(), descent.x()).map_err(refused)?;
        Ok((Self { config: fit, cost, descent, last: notes.last, outcome: None }, notes.progress))
    }
}
