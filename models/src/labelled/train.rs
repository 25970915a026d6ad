//! Training a network with labels, and the checkpoint that resumes it.
use super::step::{Buffers, Directed, POS};
use super::{LabelledDbn, LabelledDbnConfig, LabelledDbnTrainConfig};
use crate::check::{LabelsSeen, all_finite, at_least_one};
use crate::checkpoint::{self, Checkpoint};
use crate::model::Model;
use crate::prepare::to_load;
use crate::share::Share;
use crate::trainer::{MinibatchTrainer, Trainer, check_minibatch};
use crate::unit_range::UnitRange;
use candle::{DType, Device, Error, Result, Tensor};
use candle_nn::VarBuilder;
use chandlery_ops::arrays::{gather_rows_by, scale_into_};
use chandlery_ops::core::Replay;
use chandlery_ops::{Group, Philox};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::Path;

/// What was gathered on the device since the last report; squared errors are means over rows,
/// summed over units.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LabelledDbnMetrics {
    /// Steps since the last report.
    pub steps: u64,
    /// Of what generation predicts of a row from the drawn units above it; none where the layers
    /// below the top do not learn, or there are none.
    pub generation_error: Option<f64>,
    /// Of what recognition makes of a fantasy's lowest hidden layer; none as above.
    pub recognition_error: Option<f64>,
    /// Between what the RBM on top reads and where its chain ends. With persistent chains the two
    /// have nothing to do with each other; then it shows divergence only.
    pub top_error: f64,
    /// Share of rows whose label is another at the end of the chain.
    pub label_error: f64,
}

/// Trains a [`LabelledDbn`] by the up-down algorithm, a contrastive form of wake-sleep, without a
/// word to the host.
///
/// ```text
/// wake     ĥ⁰ = v,  ĥˡ ~ sigmoid(ĥˡ⁻¹ Rˡᵀ + rˡ)          pˡ⁻¹ = sigmoid(ĥˡ Gˡᵀ + gˡ)
/// top      x₀ = ĥᵐ,  y₀ = label,  k Gibbs steps to x_k, y_k; hidden means h₀ and h_k
/// sleep    sᵐ = x_k,  sˡ⁻¹ ~ sigmoid(sˡ Gˡᵀ + gˡ)         qˡ = sigmoid(sˡ⁻¹ Rˡᵀ + rˡ);  s⁰ by its mean
///
/// ΔGˡ = ε/B (ĥˡ⁻¹ − pˡ⁻¹)ᵀ ĥˡ                            generation learns what recognition found
/// ΔRˡ = ε/B (sˡ − qˡ)ᵀ sˡ⁻¹                              recognition learns what generation dreamt
/// ΔW  = ε/B (h₀ᵀ x₀ − h_kᵀ x_k),  ΔU = ε/B (h₀ᵀ y₀ − h_kᵀ y_k)
/// ```
///
/// and the biases alike; the labels' `ΔU` and `Δd` times `label_rate`; each `Δ` goes through a
/// velocity with momentum `μ` and decay `λ₂`. In [`Stage::Top`](super::Stage::Top) only the last
/// line learns, and `x₀` is the recognition mean.
///
/// Source: Hinton, Osindero and Teh 2006, section 5 and appendix B. Departures: statistics of the
/// RBM on top are of hidden means instead of draws, which have the same mean and less noise; chains
/// may persist.
///
/// A step is two loads and, on CUDA, one recorded graph; everything is allocated in
/// [`new`](Self::new).
pub struct LabelledDbnTrainer {
    model: LabelledDbnConfig,
    buffers: Buffers,
    replay: Replay,
    /// Of the rows.
    range: UnitRange,
    /// Gibbs steps that `replay` makes.
    k: usize,
    /// Rows with a one for each class, `[n_classes, n_classes]`.
    one_hot: Tensor,
    labels: LabelsSeen,
    /// For a minibatch that is not full, once there was one: launched step by step, since an epoch
    /// has one.
    partial: Option<(Buffers, Replay)>,
    /// The Gibbs chains of all ranks, where no step was made since they were gathered.
    chains: Option<Tensor>,
    /// Epochs that are done, whole ones and a part.
    epochs: f64,
    steps: u64,
    /// Steps and rows since the last report.
    gathered: u64,
    gathered_rows: u64,
}

/// What a checkpoint says beside its tensors.
#[derive(Serialize, Deserialize)]
struct Notes {
    model: LabelledDbnConfig,
    training: LabelledDbnTrainConfig,
    #[serde(with = "checkpoint::place")]
    philox: Philox,
    progress: Value,
}

impl LabelledDbnTrainer {
    /// Takes a copy of `dbn`. Steps take raw rows, which go through its preparation; `philox` is
    /// where the random draws begin, and its stream should be used for nothing else.
    ///
    /// # Errors
    /// When `config` is out of range, or memory is short.
    pub fn new(dbn: &LabelledDbn, config: LabelledDbnTrainConfig, philox: Philox) -> Result<Self> {
        config.validate()?;
        let mut model = dbn.config().clone();
        model.preparation = model.preparation.to_device(dbn.device()).map_err(Error::wrap)?;
        let buffers = Buffers::new(dbn, &config, philox)?;
        let k = config.k_at(0);
        let mut trainer = Self {
            model,
            replay: replay(&buffers, k, dbn.device()),
            range: UnitRange::new(
                "Bernoulli units",
                "a deep belief network with gaussian ones",
                dbn.device(),
            )?,
            k,
            one_hot: Tensor::eye(dbn.config().n_classes, DType::F32, dbn.device())?,
            labels: LabelsSeen::new(dbn.config().n_classes, dbn.device())?,
            buffers,
            partial: None,
            chains: None,
            epochs: 0.,
            steps: 0,
            gathered: 0,
            gathered_rows: 0,
        };
        trainer.begin_epoch(0)?;
        Ok(trainer)
    }

    /// Takes the learning rate, the momentum and the Gibbs steps of another configuration, from the
    /// next epoch on: training that is extended has other schedules.
    ///
    /// # Errors
    /// When `config` is out of range.
    pub fn set_schedules(&mut self, config: &LabelledDbnTrainConfig) -> Result<()> {
        config.validate()?;
        let own = &mut self.buffers.config;
        own.learning_rate = config.learning_rate.clone();
        own.momentum = config.momentum.clone();
        own.k = config.k.clone();
        Ok(())
    }

    /// How the network is trained.
    pub fn config(&self) -> &LabelledDbnTrainConfig {
        &self.buffers.config
    }

    /// What the network is.
    pub fn model_config(&self) -> &LabelledDbnConfig {
        &self.model
    }

    /// Everything that the next step depends on, by name; the tensors share memory with the
    /// trainer.
    fn state(&self) -> Result<Vec<(String, Tensor)>> {
        let (b, top) = (&self.buffers, &self.buffers.top);
        let mut state = vec![
            ("params".to_owned(), top.matrix.params()?),
            ("label_params".to_owned(), top.label_params.clone()),
            ("hidden_state".to_owned(), top.hidden_state.clone()),
            ("visible_state".to_owned(), top.visible_state.clone()),
            ("label_state".to_owned(), top.label_state.clone()),
            (CHAIN.to_owned(), b.chains()?),
            ("counter".to_owned(), b.counter.clone()),
        ];
        for (direction, layers) in [("recognition", &b.recognition), ("generative", &b.generative)] {
            for (l, layer) in layers.iter().enumerate() {
                state.push((format!("{direction}.{l}.params"), layer.matrix.params()?));
                state.push((format!("{direction}.{l}.state"), layer.state.clone()));
            }
        }
        Ok(state)
    }

    /// What was gathered since the last report, which stays as it is.
    fn measured(&self) -> Result<LabelledDbnMetrics> {
        self.range.check("LabelledDbnTrainer")?;
        let steps = self.gathered;
        let rows = self.gathered_rows as f64;
        let gathered = |state: &Tensor| -> Result<f64> {
            let sum = state.narrow(0, 2, 2)?.to_dtype(DType::F64)?.sum_all()?.to_scalar::<f64>()?;
            Ok(sum / rows)
        };
        let whole = !self.buffers.sleep.is_empty();
        let lowest = |layers: &[Directed]| -> Result<Option<f64>> {
            layers.first().filter(|_| whole).map(|layer| gathered(&layer.state)).transpose()
        };
        let metrics = LabelledDbnMetrics {
            steps,
            generation_error: lowest(&self.buffers.generative)?,
            recognition_error: lowest(&self.buffers.recognition)?,
            top_error: gathered(&self.buffers.top.visible_state)?,
            // Two labels that differ do so in two units.
            label_error: gathered(&self.buffers.top.label_state)? / 2.,
        };
        let errors = [
            ("generation", metrics.generation_error),
            ("recognition", metrics.recognition_error),
            ("top", Some(metrics.top_error)),
            ("label", Some(metrics.label_error)),
        ];
        for (name, error) in errors {
            if let Some(error) = error.filter(|error| !error.is_finite()) {
                candle::bail!(
                    "LabelledDbnTrainer: the {name} error became {error} between steps {} and {}; lower the learning rate, or \
                     scale the input",
                    self.steps - steps + 1,
                    self.steps
                )
            }
        }
        Ok(metrics)
    }

    /// Makes the step for a minibatch of `n` rows, fewer than are usual, unless there is one, and
    /// sets its rates.
    fn begin_partial(&mut self, n: usize) -> Result<()> {
        if self.partial.as_ref().is_none_or(|(buffers, _)| buffers.config.batch != n) {
            let buffers = self.buffers.of_fewer(&self.buffers.dbn(&self.model)?, n)?;
            let (step, k) = (buffers.clone(), self.k);
            let replay = Replay::unrecorded(buffers.counter.device(), move || step.run(k));
            self.partial = Some((buffers, replay));
        }
        match &self.partial {
            // Schedules may have changed since.
            Some((buffers, _)) => {
                buffers.rates.set(&LabelledDbnTrainConfig { batch: n, ..self.config().clone() }, self.epochs)
            }
            None => Ok(()),
        }
    }

    /// Begins the sums of the next report.
    fn forget(&mut self) -> Result<()> {
        let b = &self.buffers;
        let layers = b.generative.first().into_iter().chain(b.recognition.first()).map(|layer| &layer.state);
        for state in layers.chain([&b.top.visible_state, &b.top.label_state]) {
            let gathered = state.narrow(0, 2, 2)?;
            scale_into_(&gathered, &gathered.zeros_like()?, 1.)?;
        }
        (self.gathered, self.gathered_rows) = (0, 0);
        Ok(())
    }
}

/// The name of the trainer in its checkpoints.
const NAME: &str = "labelled-deep-belief-network";
/// Of its state, the Gibbs chains: the only part of it that ranks divide.
const CHAIN: &str = "chain";

impl Trainer for LabelledDbnTrainer {
    type Model = LabelledDbn;
    type Metrics = LabelledDbnMetrics;

    fn check(&mut self) -> Result<()> {
        self.labels.check("LabelledDbnTrainer::step")?;
        if self.gathered > 0 {
            self.measured()?;
        }
        all_finite("LabelledDbnTrainer", self.steps, self.state()?.iter().map(|(name, t)| (name.as_str(), t)))
    }

    fn metrics(&mut self) -> Result<LabelledDbnMetrics> {
        at_least_one("LabelledDbnTrainer::metrics", "steps since the last call", self.gathered as usize)?;
        self.labels.check("LabelledDbnTrainer::step")?;
        let metrics = self.measured()?;
        self.forget()?;
        Ok(metrics)
    }

    fn steps(&self) -> u64 {
        self.steps
    }

    /// Trains with the other ranks of a group: each infers, draws and dreams its own rows of every
    /// minibatch, [`Group::rows`], with its own of the persistent chains, and all make the step of
    /// the gradient of all rows, so that all have the same parameters to the bit. They are those of
    /// one rank up to the order of sums, draws included.
    ///
    /// All ranks begin with the state of rank 0, and make the same calls of
    /// [`step`](MinibatchTrainer::step), each with all rows and labels of the minibatch, of `check`
    /// and of `metrics`, which are of all rows. Cost: one all-reduce of 4 bytes a parameter each
    /// step, and for a minibatch that is not full two all-gathers of persistent chains.
    ///
    /// # Errors
    /// When the minibatch has too few rows to give each rank some, memory is short, or a rank is gone.
    fn in_group(mut self, group: &Group) -> Result<Self> {
        if group.is_single() {
            return Ok(self);
        }
        Share::check("LabelledDbnTrainer", group, "batch", self.config().batch)?;
        self.state()?.iter().try_for_each(|(_, t)| group.broadcast_(t, 0))?;
        self.buffers = self.buffers.in_group(&self.buffers.dbn(&self.model)?, group)?;
        self.replay = replay(&self.buffers, self.k, self.device());
        (self.partial, self.chains) = (None, None);
        self.range.in_group(group);
        self.buffers.rates.set(self.config(), self.epochs)?;
        Ok(self)
    }

    fn gather(&mut self) -> Result<()> {
        if !self.buffers.share.group().is_single() {
            self.chains = Some(self.buffers.chains_of_all()?);
        }
        Ok(())
    }

    fn model(&self) -> Result<LabelledDbn> {
        self.buffers.dbn(&self.model)?.to(DType::F32, self.device())
    }

    fn device(&self) -> &Device {
        self.buffers.counter.device()
    }

    fn save(&self, path: &Path, progress: &Value) -> Result<()> {
        let notes = Notes {
            model: self.model.clone(),
            training: self.config().clone(),
            philox: self.buffers.philox,
            progress: progress.clone(),
        };
        let network = self.buffers.dbn(&self.model)?.tensors().into_iter();
        let counts = [self.steps, self.gathered, self.gathered_rows].map(|n| n as i64);
        let counts = Tensor::new(&counts, &Device::Cpu)?;
        let mut state = self.state()?;
        if !self.buffers.share.group().is_single() {
            let Some(chains) = &self.chains else {
                candle::bail!("LabelledDbnTrainer::save: all ranks must call gather after the last step")
            };
            state.iter_mut().filter(|(name, _)| name == CHAIN).for_each(|(_, t)| *t = chains.clone());
        }
        let state = state.into_iter().chain([("counts".to_owned(), counts)]);
        let state = state.map(|(name, t)| (format!("trainer.{name}"), t));
        checkpoint::save(path, NAME, network.chain(state), &notes, &self.model.preparation)
    }
}

impl MinibatchTrainer for LabelledDbnTrainer {
    /// Gibbs steps follow a schedule too.
    fn follow(&mut self, epochs: f64) -> Result<()> {
        self.buffers.rates.set(self.config(), epochs)?;
        self.epochs = epochs;
        let k = self.config().k_at(epochs as usize);
        if k != self.k {
            // The recording of the old step waits for its last run before it goes.
            self.replay = replay(&self.buffers, k, self.buffers.counter.device());
            self.partial = None;
            self.k = k;
        }
        Ok(())
    }

    /// `rows` are raw, `[batch, n_inputs]`, or fewer, and labels are below `n_classes`. On a GPU
    /// the host does not look at labels: [`check`](Trainer::check) and
    /// [`metrics`](Trainer::metrics) report one that is out of range.
    fn step(&mut self, rows: &Tensor, labels: Option<&Tensor>) -> Result<()> {
        let Some(labels) = labels else {
            candle::bail!("LabelledDbnTrainer::step: rows must come with labels, got none")
        };
        let n = check_minibatch("LabelledDbnTrainer", rows, self.config().batch, self.model.n_inputs())?;
        if labels.dims() != [n] || labels.dtype() != DType::U32 {
            candle::bail!(
                "LabelledDbnTrainer::step: labels must be [{n}] u32, got {:?} {:?}",
                labels.dims(),
                labels.dtype()
            )
        }
        self.labels.see("LabelledDbnTrainer::step", labels)?;
        let full = n == self.config().batch;
        if !full {
            self.begin_partial(n)?;
        }
        let (buffers, replay) = match &mut self.partial {
            Some((buffers, replay)) if !full => (&*buffers, replay),
            _ => (&self.buffers, &mut self.replay),
        };
        if !buffers.share.rows().is_empty() {
            let (rows, labels) = (buffers.share.own(rows)?, buffers.share.own(labels)?);
            let classes = gather_rows_by(&self.one_hot, &labels.contiguous()?)?;
            let (rows, scale) = to_load("LabelledDbnTrainer", &self.model.preparation, &rows)?;
            self.range.see(&rows, scale)?;
            scale_into_(&buffers.wake[0].get(POS)?, &rows, scale)?;
            scale_into_(&buffers.top.labels.get(POS)?, &classes, 1.)?;
        }
        let persistent = buffers.config.persistent && !full;
        // As many of the persistent chains take a step as there are rows, the first.
        if persistent {
            self.buffers.lend_chains(buffers)?;
        }
        replay.run()?;
        if persistent {
            self.buffers.take_chains(buffers)?;
        }
        self.chains = None;
        self.steps += 1;
        self.gathered += 1;
        self.gathered_rows += n as u64;
        Ok(())
    }

    fn rows_group(&self) -> Group {
        self.buffers.share.group().clone()
    }

    fn load(path: &Path, device: &Device) -> Result<(Self, Value)> {
        let (checkpoint, mut notes) = Checkpoint::load::<Notes>(path, NAME, device)?;
        let vb = VarBuilder::from_tensors(checkpoint.tensors.clone(), DType::F32, device);
        checkpoint.load_preparation(&mut notes.model.preparation, device)?;
        let dbn = LabelledDbn::new(notes.model, vb).map_err(|e| checkpoint.refused(&e))?;
        let mut trainer =
            Self::new(&dbn, notes.training, notes.philox).map_err(|e| checkpoint.refused(&e))?;
        let state = trainer.state()?;
        let state = state.iter().map(|(name, t)| (name.as_str(), t));
        checkpoint::put_back("LabelledDbnTrainer", state, |name| checkpoint.of_trainer(name))
            .map_err(|e| checkpoint.refused(&e))?;
        [trainer.steps, trainer.gathered, trainer.gathered_rows] = checkpoint.counts()?;
        Ok((trainer, notes.progress))
    }
}

/// A step with `k` Gibbs steps, to be run many times.
fn replay(buffers: &Buffers, k: usize, device: &Device) -> Replay {
    let step = buffers.clone();
    Replay::new(device, move || step.run(k)).unshared()
}
