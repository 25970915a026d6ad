//! Training an RBM by contrastive divergence, in place and without a word to the host.
//!
//! ```text
//! positive   v₀ = data, or drawn from it   h₀ = p(h | v₀)            drawn: ĥ₀
//! negative   v_j ~ p(v | ĥ_{j−1})          ĥ_j ~ p(h | v_j)          j = 1 … k − 1, a Gibbs chain
//!            v_k = p(v | ĥ_{k−1})          h_k = p(h | v_k)          drawn where `sample_visible`
//!            PCD: ĥ₀ is where the last step's chain stopped, and v_k is drawn
//! gradient   G = (h₀ᵀ v₀ − h_kᵀ v_k)/B     one product of [h₀; −h_k] and [v₀; v_k]
//! velocity   V ← μ V + ε G − ε(λ₂ W + λ₁ sign W)
//! weights    W ← W + V;  rows longer than max_norm are scaled back;  bf16 ones are rounded stochastically
//! biases     the same without decay; hidden ones also follow κ(ρ − q)
//! ```
//!
//! | symbol | field of [`RbmTrainConfig`] |
//! |---|---|
//! | `ε`, `μ` | `learning_rate`, `momentum`: schedules over epochs |
//! | drawn from data | `binarize` |
//! | `k`, PCD | `k`, `persistent` |
//! | `v_k` drawn | `sample_visible` |
//! | `λ₁ λ₂` | `l1`, `l2` |
//! | `ρ κ` | `sparsity.target`, `sparsity.cost`; `q` is the running mean activation |
//!
//! Of shared filters ([`conv_rbm`](crate::conv_rbm)) every gradient is the mean over their places,
//! too.
//!
//! Sources: Hinton 2002 (CD); Tieleman, "Training restricted Boltzmann machines using
//! approximations to the likelihood gradient", ICML 2008 (PCD); Lee, Ekanadham and Ng 2007
//! (sparsity). Learned variances (Cho et al. 2011) take a tenth of the rate and stay above 1e-4.
//!
//! A step is a load and then, on CUDA, one recorded graph, of several steps where they can be
//! loaded together: two products for each Gibbs step, one for the positive phase, one for the
//! gradient of both phases, and one pass for each of units, weights and biases. Dense layers of 64
//! units or more train with up to 7 more that stay at 0, so that lines are multiples of 8; models and
//! checkpoints do not hold them. Everything is allocated in [`RbmTrainer::new`]. Cost:
//! `(2 + 4k) + 4` products' worth of `n_visible · n_hidden · batch` FLOP.
mod ranks;
mod state;

use super::padding::Padding;
use super::step::{Buffers, HiddenShare};
use super::{Division, Rbm, RbmConfig, RbmTrainConfig, VisibleUnit};
use crate::check::{all_finite, at_least_one, other_place};
use crate::layers::TrainerParts;
use crate::model::Model;
use crate::patch_rbm::Cells;
use crate::prepare::check_inputs;
use crate::replays::Replays;
use crate::share::Share;
use crate::trainer::{MinibatchTrainer, Trainer, check_minibatch, one_by_one};
use crate::unit_range::UnitRange;
use candle::{DType, Device, Error, Result, Tensor};
use chandlery_datasets::Preparation;
use chandlery_ops::arrays::scale_into_;
use chandlery_ops::core::normal;
use chandlery_ops::{Group, Philox};
use serde::Serialize;
use serde_json::Value;
use std::path::Path;

/// What was gathered on the device since the last report.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Metrics {
    /// Steps since the last report.
    pub steps: u64,
    /// Mean over rows of `Σ_i (v₀ − v_k)²`, the squared error of the (last) reconstruction, summed
    /// over visible units. With persistent chains `v_k` has nothing to do with `v₀`: then it shows
    /// divergence only, and [`Decode::reconstruction_error`](crate::Decode::reconstruction_error)
    /// measures.
    pub reconstruction_error: f64,
}

/// Trains one [`Rbm`]; see the [module](self) for the equations.
///
/// Owns what a resume needs beside the parameters: velocities, persistent chains, the place in the
/// random sequence and the running means.
pub struct RbmTrainer {
    config: RbmTrainConfig,
    /// Of the RBM in training, and as steps train it: with the units of `padding`.
    given: RbmConfig,
    own: RbmConfig,
    /// Units beside those of the RBMs, which stay at 0.
    padding: Option<Padding>,
    /// The order of its visible units in `buffers`, where it has patches that are trained in this
    /// order.
    cells: Option<Cells>,
    buffers: Buffers,
    replays: Replays,
    /// Where there are several ranks: the state of all of them, as it was gathered last.
    gathered_state: Option<Vec<(&'static str, Tensor)>>,
    /// For a minibatch that is not full, once there was one.
    partial: Option<Partial>,
    /// Of the rows, where the lowest visible units are Bernoulli and want rows from 0 to 1.
    range: Option<UnitRange>,
    lower: Vec<Rbm>,
    preparation: Preparation,
    /// Values in a raw row.
    n_inputs: usize,
    /// Rate and momentum of the epoch under way.
    rates: (f32, f32),
    steps: u64,
    /// Steps and rows since the last report.
    gathered: u64,
    gathered_rows: u64,
}

/// Steps on fewer rows than a minibatch has, launched one by one: an epoch has one.
struct Partial {
    buffers: Buffers,
    replays: Replays,
}

/// The step on a full minibatch, recorded.
fn replays_of(buffers: &Buffers, device: &Device) -> Replays {
    let step = buffers.clone();
    match step.variance {
        None if !step.share.makes_tensors() => Replays::new(device, buffers.at_once, move |n| step.run(n)),
        // Learned variances are rare and small: their update is written with candle's ops, which
        // allocate. So are bands of several planes.
        _ => Replays::unrecorded(device, move |n| step.run(n)),
    }
}

/// The name of the trainer in its checkpoints.
const NAME: &str = "rbm";

impl RbmTrainer {
    /// Takes a copy of `rbm` and trains it on raw rows, which go through the
    /// [preparation](crate::rbm::RbmConfig::preparation) of its configuration.
    ///
    /// `philox` is where the random draws begin; its stream should be used for nothing else.
    ///
    /// # Errors
    /// When `config` is out of range, `philox` is where the weights were drawn, or memory is short.
    pub fn new(rbm: &Rbm, config: RbmTrainConfig, philox: Philox) -> Result<Self> {
        Self::above(&[], rbm, &rbm.config().preparation, config, philox)
    }

    /// The same for an RBM on top of others: raw rows go through `preparation` to the lowest of
    /// `lower`, and the hidden means of each are recomputed on the way up.
    ///
    /// # Errors
    /// As [`new`](Self::new), and when the sizes of the layers do not fit on each other.
    pub fn above(
        lower: &[Rbm],
        rbm: &Rbm,
        preparation: &Preparation,
        config: RbmTrainConfig,
        philox: Philox,
    ) -> Result<Self> {
        config.validate_for(rbm.config())?;
        other_place("RbmTrainer", philox, rbm.weight(), |n| {
            normal(n, &Device::Cpu, philox)? * rbm.config().weight_stdev
        })?;
        let lowest = lower.first().unwrap_or(rbm);
        let n_inputs = check_inputs("RbmTrainer", preparation, lowest.config().n_visible, None)?;
        let preparation = preparation.to_device(rbm.weight().device()).map_err(Error::wrap)?;
        let sizes = lower.iter().chain([rbm]).map(Rbm::config);
        for (below, above) in sizes.clone().zip(sizes.skip(1)) {
            if below.n_hidden != above.n_visible {
                candle::bail!(
                    "RbmTrainer: a layer must have as many visible units as the one below has hidden, got {} above {}",
                    above.n_visible,
                    below.n_hidden
                )
            }
        }
        let lowest_cells = lowest.config().patch_grid().as_ref().and_then(Cells::of);
        let cells = lowest_cells.filter(|_| lower.is_empty());
        let (below, own) = match &lowest_cells {
            Some(cells) if lower.is_empty() => (vec![], cells.rbm(rbm)?),
            Some(cells) => {
                let mut below = lower.to_vec();
                below[0] = cells.rbm(lowest)?;
                (below, rbm.clone())
            }
            None => (lower.to_vec(), rbm.clone()),
        };
        let padding = Padding::of(&below, &own, &config);
        let (below, own) = match &padding {
            Some(padding) => (padding.lower(&below)?, padding.rbm(below.len(), &own)?),
            None => (below, own),
        };
        let share = HiddenShare::whole(own.config());
        let rows = Share::new(&Group::single(), config.batch);
        let buffers = Buffers::new(&below, &own, lowest_cells, &config, philox, share, rows)?;
        let device = rbm.weight().device();
        let replays = replays_of(&buffers, device);
        let bernoulli = lowest.config().visible == VisibleUnit::Bernoulli;
        let range = (bernoulli && !config.any_range)
            .then(|| UnitRange::new("Bernoulli visible units", "gaussian ones", device))
            .transpose()?;
        let (lower, own) = (lower.to_vec(), own.config().clone());
        let mut trainer = Self {
            config,
            given: rbm.config().clone(),
            own,
            padding,
            cells,
            buffers,
            replays,
            gathered_state: None,
            partial: None,
            range,
            lower,
            preparation,
            n_inputs,
            rates: (0., 0.),
            steps: 0,
            gathered: 0,
            gathered_rows: 0,
        };
        trainer.begin_epoch(0)?;
        Ok(trainer)
    }

    /// Sets the visible biases to [`Rbm::base_rate_bias`] of `mean` (`[n_visible]`) before the
    /// first step. Without it the first epochs are spent on the mean image.
    ///
    /// # Errors
    /// When `mean` has another shape.
    pub fn set_visible_mean(&mut self, mean: &Tensor) -> Result<()> {
        let bias = self.given.base_rate_bias(mean)?;
        let bias = self.cells.map_or(Ok(bias.clone()), |cells| cells.rows(&bias))?;
        let bias = self.padding.as_ref().map_or(Ok(bias.clone()), |padding| padding.visible_biases(&bias))?;
        let bias = self.buffers.share.visible(&bias)?;
        scale_into_(&self.buffers.visible_state.get(0)?, &bias.contiguous()?, 1.)
    }

    /// Takes the schedules of learning rate and momentum from `config`, from the next
    /// [`begin_epoch`](MinibatchTrainer::begin_epoch) on; everything else stays as it was.
    ///
    /// # Errors
    /// When `config` is out of range.
    pub fn set_schedules(&mut self, config: &RbmTrainConfig) -> Result<()> {
        config.validate()?;
        self.config.learning_rate = config.learning_rate.clone();
        self.config.momentum = config.momentum.clone();
        Ok(())
    }

    /// How the RBM is trained.
    pub fn config(&self) -> &RbmTrainConfig {
        &self.config
    }

    /// The RBMs below, lowest first.
    pub fn lower(&self) -> &[Rbm] {
        &self.lower
    }

    /// A copy of the hidden units, `[batch, n_hidden]` 0 and 1, where the persistent chains are; of a
    /// training without such chains what was drawn last.
    ///
    /// # Errors
    /// When memory is short.
    pub fn chains(&self) -> Result<Tensor> {
        let chains = self.buffers.chains()?;
        self.padding.as_ref().map_or(Ok(chains.clone()), |padding| padding.hidden_back(&chains))?.copy()
    }

    /// The RBM in training with its visible units in their own order.
    fn rbm(&self) -> Result<Rbm> {
        if !self.buffers.share.group.is_single() {
            return self.gathered_rbm();
        }
        self.as_given(&self.buffers.rbm(&self.own)?)
    }

    /// The RBM that steps train, with the units that it was given with, in their order.
    fn as_given(&self, rbm: &Rbm) -> Result<Rbm> {
        match (&self.cells, &self.padding) {
            (Some(cells), _) => cells.rbm_back(rbm),
            (None, Some(padding)) => padding.rbm_back(rbm, &self.given),
            (None, None) => Ok(rbm.clone()),
        }
    }

    /// A step on fewer rows than a minibatch has. Of persistent chains as many take it as there are
    /// rows, the first.
    fn partial_step(&mut self, rows: &Tensor) -> Result<()> {
        let n = rows.dim(0)?;
        if self.partial.as_ref().is_none_or(|partial| partial.buffers.config.batch != n) {
            let buffers = self.buffers.of_fewer(
                &self.buffers.share.below(self.below()?)?,
                &self.buffers.rbm(&self.own)?,
                n,
            )?;
            let step = buffers.clone();
            let replays = Replays::unrecorded(rows.device(), move |n| step.run(n));
            self.partial = Some(Partial { buffers, replays });
        }
        let Some(Partial { buffers, replays }) = &mut self.partial else { return Ok(()) };
        buffers.set_rates(self.rates.0, self.rates.1)?;
        let chains = (self.buffers.chains()?, buffers.chains()?);
        let shares = (&self.buffers.divided.share, &buffers.divided.share);
        if self.config.persistent {
            shares.0.lend(&chains.0, shares.1, &chains.1)?;
        }
        let (range, own) = (&mut self.range, shares.1.own(rows)?);
        replays.run("RbmTrainer", 1, &own, &self.preparation, |first, rows, scale| {
            range.as_mut().map_or(Ok(()), |range| range.see(rows, scale))?;
            buffers.load(first, rows, scale)
        })?;
        if self.config.persistent {
            shares.0.take_back(&chains.0, shares.1, &chains.1)?;
        }
        Ok(())
    }

    /// The error summed over the steps since the last report, of rows that the visible units can
    /// take.
    fn gathered_error(&self) -> Result<f64> {
        self.range.as_ref().map_or(Ok(()), |range| range.check("RbmTrainer"))?;
        let sum = self.buffers.share.sum_of_visible(&self.buffers.visible_state.narrow(0, 2, 2)?)?;
        if !sum.is_finite() {
            candle::bail!(
                "RbmTrainer: the reconstruction error became {sum} between steps {} and {}; \
                 lower the learning rate, or scale the input",
                self.steps - self.gathered + 1,
                self.steps
            )
        }
        Ok(sum)
    }
}

impl Trainer for RbmTrainer {
    type Model = Rbm;
    type Metrics = Metrics;

    fn check(&mut self) -> Result<()> {
        self.gathered_error()?;
        all_finite("RbmTrainer", self.steps, self.own_state()?.iter().map(|(name, t)| (*name, t)))
    }

    /// Each rank has some of the hidden units: it computes their states from the whole minibatch, and
    /// updates their weights. Of the visible units the pre-activations are summed over ranks, `4 batch
    /// n_visible` bytes for each of the `k` steps of a chain, and nothing else is exchanged.
    ///
    /// Of patches, each rank has lines of windows, and of the visible units and of the layers below what
    /// these windows see. Only pre-activations of visible units that windows of several ranks cover are
    /// summed: `4 batch (window - stride) width depth` bytes for each of two ranks next to each other.
    ///
    /// Of a convolution, each rank has some of the maps, which are pooled each by itself.
    ///
    /// With [`Division::Rows`] each rank has all weights and some rows of every minibatch,
    /// [`Group::rows`], with their persistent chains. All make the step of the gradient of all
    /// rows, one all-reduce of 4 bytes a parameter, and a minibatch that is not full takes two
    /// all-gathers of persistent chains besides. States are then f32, or bf16 in that precision.
    ///
    /// # Errors
    /// Also when there are fewer than 4 hidden units or maps a rank or their number is no multiple
    /// of 4, and of patches when there are fewer lines of windows than ranks; for patches above
    /// others than patches. Of divided rows, when a minibatch has too few to give each rank some.
    /// Learned variances and bf16 weights without f32 ones train on one rank.
    fn in_group(self, group: &Group) -> Result<Self> {
        match self.config.division {
            _ if group.is_single() => Ok(self),
            Division::Units => self.sharing(group),
            Division::Rows => self.dividing_rows(group),
        }
    }

    fn gather(&mut self) -> Result<()> {
        self.gathered_state = self.gathered()?;
        Ok(())
    }

    fn metrics(&mut self) -> Result<Metrics> {
        at_least_one("RbmTrainer::metrics", "steps since the last call", self.gathered as usize)?;
        let sum = self.gathered_error()?;
        let gathered = self.buffers.visible_state.narrow(0, 2, 2)?;
        scale_into_(&gathered, &gathered.zeros_like()?, 1.)?;
        let steps = std::mem::take(&mut self.gathered);
        let rows = std::mem::take(&mut self.gathered_rows);
        Ok(Metrics { steps, reconstruction_error: sum / rows as f64 })
    }

    fn steps(&self) -> u64 {
        self.steps
    }

    fn model(&self) -> Result<Rbm> {
        self.rbm()?.to(DType::F32, self.device())
    }

    fn device(&self) -> &Device {
        self.buffers.scalars.device()
    }

    fn save(&self, path: &Path, progress: &Value) -> Result<()> {
        let parts = TrainerParts {
            layers: self.lower.iter().cloned().chain([self.rbm()?]).collect(),
            training: self.config.clone(),
            preparation: self.preparation.clone(),
            philox: self.buffers.philox,
        };
        parts.save(path, NAME, self.stored_state()?, progress)
    }
}

impl MinibatchTrainer for RbmTrainer {
    fn follow(&mut self, epochs: f64) -> Result<()> {
        let RbmTrainConfig { learning_rate, momentum, .. } = &self.config;
        let (rate, momentum) = (learning_rate.within(epochs), momentum.within(epochs));
        self.rates = (rate as f32, momentum as f32);
        self.buffers.set_rates(self.rates.0, self.rates.1)
    }

    /// `rows` are raw, `[config.batch, n_inputs]`, or fewer. Where the preparation only scales and
    /// the minibatch is full, nothing is allocated, copied or waited for.
    fn step(&mut self, rows: &Tensor, _labels: Option<&Tensor>) -> Result<()> {
        let n = check_minibatch("RbmTrainer", rows, self.config.batch, self.n_inputs)?;
        self.gathered_state = None;
        if n == self.config.batch {
            return self.steps_of(rows, None, 1);
        }
        self.partial_step(rows)?;
        self.steps += 1;
        self.gathered += 1;
        self.gathered_rows += n as u64;
        Ok(())
    }

    fn steps_of(&mut self, rows: &Tensor, labels: Option<&Tensor>, n: usize) -> Result<()> {
        let batch = self.config.batch;
        if n == 0 || rows.dims() != [n * batch, self.n_inputs] {
            return one_by_one(self, rows, labels, n);
        }
        if n > 1 && !self.buffers.divided.share.group().is_single() {
            return one_by_one(self, rows, labels, n);
        }
        self.gathered_state = None;
        let Self { replays, preparation, buffers, range, .. } = self;
        let rows = if n == 1 { buffers.divided.share.own(rows)? } else { rows.clone() };
        replays.run("RbmTrainer", n, &rows, preparation, |first, rows, scale| {
            range.as_mut().map_or(Ok(()), |range| range.see(rows, scale))?;
            buffers.load(first, rows, scale)
        })?;
        self.steps += n as u64;
        self.gathered += n as u64;
        self.gathered_rows += (n * batch) as u64;
        Ok(())
    }

    fn steps_at_once(&self) -> usize {
        self.buffers.at_once
    }

    fn rows_group(&self) -> Group {
        self.buffers.divided.share.group().clone()
    }

    fn load(path: &Path, device: &Device) -> Result<(Self, Value)> {
        let (parts, stored, progress) = TrainerParts::load(path, NAME, device)?;
        let TrainerParts { layers, training, preparation, philox } = parts;
        let Some((rbm, lower)) = layers.split_last() else { return Err(stored.refused(&"it has no layers")) };
        let mut trainer =
            Self::above(lower, rbm, &preparation, training, philox).map_err(|e| stored.refused(&e))?;
        trainer.restore(&stored).map_err(|e| stored.refused(&e))?;
        Ok((trainer, progress))
    }
}
