//! Training a machine by contrastive divergence, in place and without a word to the host.
//!
//! ```text
//! positive   v₀ = data, or drawn from it   h₀ = p(h | v₀)            drawn: ĥ₀
//! negative   v_j = p(v | ĥ_{j−1})          ĥ_j ~ p(h | v_j)          j = 1 … k;  h_k = p(h | v_k)
//!            PCD: ĥ₀ is where the last step's chain stopped, and v_j is drawn
//! gradient   G = (h₀ᵀ v₀ − h_kᵀ v_k)/B     one product of [h₀; −h_k] and [v₀; v_k]
//! velocity   V ← μ V + ε G − ε(λ₂ W + λ₁ sign W)
//! weights    W ← W + V;  rows longer than max_norm are scaled back
//! biases     the same without decay; hidden ones also follow κ(ρ − q)
//! ```
//!
//! | symbol | field of [`CdConfig`] |
//! |---|---|
//! | `ε`, `μ` | `learning_rate`, `momentum`: schedules over epochs |
//! | drawn from data | `binarize` |
//! | `k`, PCD | `k`, `persistent` |
//! | `λ₁ λ₂` | `l1`, `l2` |
//! | `ρ κ` | `sparsity.target`, `sparsity.cost`; `q` is the running mean activation |
//!
//! Sources: Hinton 2002 (CD); Tieleman, "Training restricted Boltzmann machines using approximations to the likelihood
//! gradient", ICML 2008 (PCD); Lee, Ekanadham and Ng 2007 (sparsity). Learned variances (Cho et al. 2011) take a tenth
//! of the rate and stay above 1e-4.
//!
//! A step is a load and then, on CUDA, one recorded graph: two products for each Gibbs step, one for the positive phase, one for the
//! gradient of both phases, and one pass for each of units, weights and biases. Everything is allocated in
//! [`RbmTrainer::new`]. Cost: `(2 + 4k) + 4` products' worth of `n_visible · n_hidden · batch` FLOP.
use super::step::{Buffers, H_DRAWN};
use super::{CdConfig, Rbm};
use crate::check::{at_least_one, range};
use candle::{DType, Device, Result, Tensor};
use chandlery_ops::{Philox, Replay, advance_, scale_into_, set_scalars_};

/// What was gathered on the device since the last report.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Metrics {
    /// Steps since the last report.
    pub steps: u64,
    /// Mean over rows of `Σ_i (v₀ − v_k)²`, the squared error of the (last) reconstruction, summed over visible units.
    /// With persistent chains `v_k` has nothing to do with `v₀`: then it shows divergence only, and
    /// [`Rbm::reconstruction_error`] measures.
    pub reconstruction_error: f64,
}

/// Trains one [`Rbm`]; see the [module](self) for the equations.
///
/// Owns what a resume needs beside the parameters: velocities, persistent chains, the place in the random
/// sequence and the running means.
pub struct RbmTrainer {
    config: CdConfig,
    /// Shares its memory with `buffers`.
    rbm: Rbm,
    buffers: Buffers,
    replay: Replay,
    lower: Vec<Rbm>,
    input_scale: f32,
    steps: u64,
    gathered: u64,
}

impl RbmTrainer {
    /// Takes a copy of `rbm` and trains it on rows of its own `n_visible` entries.
    ///
    /// Rows are multiplied by `input_scale`: 1/255 for bytes that stand for `[0, 1]`, else 1. `philox` is where
    /// the random draws begin; its stream should be used for nothing else.
    ///
    /// # Errors
    /// When `config` or `input_scale` is out of range, or memory is short.
    pub fn new(rbm: &Rbm, config: CdConfig, input_scale: f64, philox: Philox) -> Result<Self> {
        Self::above(&[], rbm, config, input_scale, philox)
    }

    /// The same for a machine on top of others: rows are those that the lowest of `lower` reads, and the hidden means
    /// of each are recomputed on the way up, so no activation is ever stored.
    ///
    /// # Errors
    /// As [`new`](Self::new), and when the sizes of the layers do not fit on each other.
    pub fn above(
        lower: &[Rbm],
        rbm: &Rbm,
        config: CdConfig,
        input_scale: f64,
        philox: Philox,
    ) -> Result<Self> {
        config.validate()?;
        range("RbmTrainer", "input_scale", input_scale, "a finite number above 0", |x| x > 0.)?;
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
        let buffers = Buffers::new(lower, rbm, &config, philox)?;
        let rbm = buffers.rbm(rbm)?;
        let step = buffers.clone();
        let device = rbm.weight().device().clone();
        let replay = match step.variance {
            None => Replay::new(&device, move || step.run()).unshared(),
            // Learned variances are rare and small: their update is written with candle's ops, which allocate.
            Some(_) => Replay::unrecorded(&device, move || step.run()),
        };
        let lower = lower.to_vec();
        let mut trainer = Self {
            config,
            rbm,
            buffers,
            replay,
            lower,
            input_scale: input_scale as f32,
            steps: 0,
            gathered: 0,
        };
        trainer.begin_epoch(0)?;
        Ok(trainer)
    }

    /// Sets the learning rate and the momentum to those of `epoch`, counted from 0.
    ///
    /// # Errors
    /// When the device fails.
    pub fn begin_epoch(&mut self, epoch: usize) -> Result<()> {
        let rate = self.config.learning_rate.at(epoch) as f32;
        let momentum = self.config.momentum.at(epoch) as f32;
        set_scalars_(&self.buffers.scalars, &[rate / self.config.batch as f32, momentum, rate])
    }

    /// One update from a minibatch: `[config.batch, n_input]`, u8 or f32, contiguous, on the trainer's device.
    ///
    /// Queues the step on a GPU and returns; nothing is allocated, copied or waited for.
    ///
    /// # Errors
    /// When `rows` has another shape, type or device.
    pub fn step(&mut self, rows: &Tensor) -> Result<()> {
        let want = self.buffers.rows_shape();
        if rows.dims() != want {
            candle::bail!("RbmTrainer::step: rows must have shape {want:?}, got {:?}", rows.dims())
        }
        self.buffers.load(rows, self.input_scale)?;
        self.replay.run()?;
        self.steps += 1;
        self.gathered += 1;
        Ok(())
    }

    /// What was gathered since the last call. Waits for the device.
    ///
    /// # Errors
    /// When no step was made since, or the reconstruction error is no longer finite: training has diverged.
    pub fn metrics(&mut self) -> Result<Metrics> {
        at_least_one("RbmTrainer::metrics", "steps since the last call", self.gathered as usize)?;
        let gathered = self.buffers.visible_state.narrow(0, 2, 2)?;
        let sum = gathered.to_dtype(DType::F64)?.sum_all()?.to_scalar::<f64>()?;
        scale_into_(&gathered, &gathered.zeros_like()?, 1.)?;
        let steps = std::mem::take(&mut self.gathered);
        let reconstruction_error = sum / (steps as f64 * self.config.batch as f64);
        if !reconstruction_error.is_finite() {
            candle::bail!(
                "RbmTrainer: the reconstruction error became {reconstruction_error} between steps {} and {}; \
                 lower the learning rate, or scale the input",
                self.steps - steps + 1,
                self.steps
            )
        }
        Ok(Metrics { steps, reconstruction_error })
    }

    /// Sets the visible biases to [`Rbm::base_rate_bias`] of `mean` (`[n_visible]`) before the first step. Without it the
    /// first epochs are spent on the mean image.
    ///
    /// # Errors
    /// When `mean` has another shape.
    pub fn set_visible_mean(&mut self, mean: &Tensor) -> Result<()> {
        let bias = self.rbm.base_rate_bias(mean)?;
        scale_into_(self.rbm.visible_bias(), &bias.contiguous()?, 1.)
    }

    /// A copy of the machine as trained so far.
    ///
    /// # Errors
    /// When memory is short.
    pub fn model(&self) -> Result<Rbm> {
        self.rbm.to(DType::F32, self.rbm.weight().device())
    }

    /// How the machine is trained.
    pub fn config(&self) -> &CdConfig {
        &self.config
    }

    /// The machines below, lowest first.
    pub fn lower(&self) -> &[Rbm] {
        &self.lower
    }

    /// Steps made since the beginning.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Everything that the next step depends on, by name; the tensors share memory with the trainer.
    pub fn state(&self) -> Result<Vec<(&'static str, Tensor)>> {
        let b = &self.buffers;
        let counts = Tensor::new(&[self.steps as i64, self.gathered as i64], &Device::Cpu)?;
        let mut state = vec![
            ("params", b.params.clone()),
            ("hidden_state", b.hidden_state.clone()),
            ("visible_state", b.visible_state.clone()),
            ("chain", b.hidden.get(H_DRAWN)?),
            ("counter", b.counter.clone()),
            ("counts", counts),
        ];
        state.extend(b.variance.as_ref().map(|v| ("variance", v.state.clone())));
        state.extend(b.velocity.as_ref().map(|v| ("velocity", v.clone())));
        Ok(state)
    }

    /// Puts back what [`state`](Self::state) gave, for a trainer made with the same sizes and configuration.
    ///
    /// # Errors
    /// When a tensor is missing or has another shape.
    pub fn restore(&mut self, find: impl Fn(&str) -> Result<Tensor>) -> Result<()> {
        for (name, to) in self.state()? {
            let from = find(name)?;
            if from.dims() != to.dims() {
                candle::bail!(
                    "RbmTrainer::restore: {name} must have shape {:?}, got {:?}",
                    to.dims(),
                    from.dims()
                )
            }
            match name {
                "counts" => {
                    let counts = from.to_vec1::<i64>()?;
                    (self.steps, self.gathered) = (counts[0] as u64, counts[1] as u64);
                }
                "counter" => {
                    let value = |t: &Tensor| Ok::<_, candle::Error>(t.to_vec1::<i64>()?[0]);
                    advance_(&to, value(&from)?.wrapping_sub(value(&to)?))?;
                }
                _ => scale_into_(&to, &from.to_dtype(DType::F32)?.to_device(to.device())?.contiguous()?, 1.)?,
            }
        }
        self.buffers.refresh_copy()
    }
}
