//! Training a machine by contrastive divergence, in place and without a word to the host.
//!
//! ```text
//! positive   v₀ = data                     h₀ = p(h | v₀)            drawn: ĥ₀
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
use super::{CdConfig, HiddenUnit, Rbm, RbmConfig, VisibleUnit};
use crate::check::{at_least_one, range};
use candle::{DType, Device, Result, Tensor};
use chandlery_ops::{
    BiasStep, Draws, Factors, Philox, Precision, Replay, Sparsity, Unit, UnitPlanes, WeightStep, advance_,
    bernoulli, bias_step_, contrast_step_, gemm_, max_norm_rows_, scale_into_, set_scalars_, units_,
};

/// Planes of the visible states: `[v_k; v₀]`, so that one product takes both phases.
const V_NEG: usize = 0;
const V_POS: usize = 1;
/// Planes of the hidden states: `[−h_k; h₀; ĥ]`.
const H_NEG: usize = 0;
const H_POS: usize = 1;
const H_DRAWN: usize = 2;
/// Log-variances learn at this share of the rate (Cho et al. 2011 lower it too) and stay above this.
const VARIANCE_RATE: f64 = 0.1;
const MIN_LOG_VARIANCE: f64 = -9.21;
/// Weights above which they and their velocity (8 bytes a weight) do not stay in a GPU's cache.
const LARGE_WEIGHTS: usize = 5 << 20;

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
            None => Replay::new(&device, move || step.run()),
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
        let want = self.buffers.input.dims();
        if rows.dims() != want {
            candle::bail!("RbmTrainer::step: rows must have shape {want:?}, got {:?}", rows.dims())
        }
        scale_into_(&self.buffers.input, rows, self.input_scale)?;
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

    /// Sets the visible biases to the log-odds of `mean` (`[n_visible]`; Hinton 2010, section 8), or to `mean` itself
    /// for Gaussian units, before the first step. Without it the first epochs are spent on the mean image.
    ///
    /// Means are taken into `[0.01, 0.99]` first, so that a unit which is always off can still turn on.
    ///
    /// # Errors
    /// When `mean` has another shape.
    pub fn set_visible_mean(&mut self, mean: &Tensor) -> Result<()> {
        let bias = match self.rbm.config().visible {
            VisibleUnit::Bernoulli => {
                let p = mean.clamp(0.01, 0.99)?;
                (p.log()? - p.affine(-1., 1.)?.log()?)?
            }
            VisibleUnit::Gaussian | VisibleUnit::GaussianLearned => mean.clone(),
        };
        scale_into_(self.rbm.visible_bias(), &bias.contiguous()?, 1.)
    }

    /// The machine as trained so far. It shares memory with the trainer and changes with each step; [`Rbm::to`] copies.
    pub fn rbm(&self) -> &Rbm {
        &self.rbm
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
        self.buffers.refresh_shadow()
    }
}

/// A layer below the one that is trained, and where its hidden means go.
#[derive(Clone)]
struct LowerLayer {
    weight: Tensor,
    bias: Tensor,
    unit: Unit,
    /// Pre-activations, `[batch, n_hidden]`.
    pre: Tensor,
    /// The planes that receive the means, and which.
    planes: Tensor,
    plane: usize,
}

/// The state of learned variances: `[2, n_visible]`, log-variances and their velocity.
#[derive(Clone)]
struct Variance {
    state: Tensor,
    /// The visible states over their variance, `[2, batch, n_visible]`.
    scaled: Tensor,
}

/// All memory of a step, and the views of it that the step uses. Clones share it.
#[derive(Clone)]
struct Buffers {
    config: CdConfig,
    hidden_unit: Unit,
    visible_unit: Unit,
    philox: Philox,
    /// `[2, n_hidden, n_visible]`: weights, velocity.
    params: Tensor,
    /// `[4, n_hidden]` and `[4, n_visible]`, see [`bias_step_`].
    hidden_state: Tensor,
    visible_state: Tensor,
    /// Rate over batch, momentum, rate.
    scalars: Tensor,
    /// Blocks of random draws used so far.
    counter: Tensor,
    /// `[3, batch, n_hidden]` and `[2, batch, n_visible]`: states of both phases, and drawn hidden states.
    hidden: Tensor,
    visible: Tensor,
    hidden_pre: Tensor,
    visible_pre: Tensor,
    /// bf16 copy of the weights, for bf16 products.
    shadow: Option<Tensor>,
    variance: Option<Variance>,
    /// f16 copies of the states of both phases, for the gradient of large machines in TF32, see [`Rounded`].
    rounded: Option<Rounded>,
    lower: Vec<LowerLayer>,
    /// Where rows are loaded to, `[batch, n_input]`.
    input: Tensor,
}

impl Buffers {
    fn new(lower: &[Rbm], rbm: &Rbm, config: &CdConfig, philox: Philox) -> Result<Self> {
        let device = rbm.weight().device();
        let (batch, n_visible, n_hidden) = (config.batch, rbm.config().n_visible, rbm.config().n_hidden);
        let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F32, device);
        // What goes into a product is of the product's type.
        let dtype = match config.precision {
            Precision::Bf16 => DType::BF16,
            Precision::F32 | Precision::Tf32 => DType::F32,
        };
        let operand = |t: &Tensor| t.to_dtype(dtype)?.contiguous();
        let weight = rbm.weight().to_dtype(DType::F32)?;
        let state = |bias: &Tensor| {
            let bias = bias.to_dtype(DType::F32)?;
            let zero = bias.zeros_like()?;
            Tensor::stack(&[&bias, &zero, &zero, &zero], 0)
        };
        let hidden = Tensor::zeros((3, batch, n_hidden), dtype, device)?;
        let visible = Tensor::zeros((2, batch, n_visible), dtype, device)?;
        let mut counted = Philox { offset: 0, ..philox };
        if config.persistent {
            // Chains begin with fair coins.
            let coins = bernoulli(&zeros(&[batch, n_hidden])?.affine(0., 0.5)?, philox)?;
            scale_into_(&hidden.get(H_DRAWN)?, &coins, 1.)?;
            counted = counted.advanced(batch * n_hidden);
        }
        let mut layers = Vec::with_capacity(lower.len());
        let mut input = None;
        for (i, layer) in lower.iter().enumerate() {
            let n = layer.config().n_hidden;
            if layer.config().visible == VisibleUnit::GaussianLearned {
                candle::bail!(
                    "RbmTrainer: a layer with learned variances must be trained alone, got one below another"
                )
            }
            let top = i + 1 == lower.len();
            let planes = if top { visible.clone() } else { Tensor::zeros((1, batch, n), dtype, device)? };
            if i == 0 {
                input = Some(Tensor::zeros((batch, layer.config().n_visible), dtype, device)?);
            }
            layers.push(LowerLayer {
                weight: operand(layer.weight())?,
                bias: layer.bias().to_dtype(DType::F32)?.contiguous()?,
                unit: hidden_unit(layer.config().hidden),
                pre: zeros(&[batch, n])?,
                planes,
                plane: if top { V_POS } else { 0 },
            });
        }
        let variance = match rbm.log_variance() {
            Some(log_variance) if config.precision == Precision::Bf16 => candle::bail!(
                "CdConfig: precision must be f32 or tf32 for learned variances, got bf16 for {} of them",
                log_variance.elem_count()
            ),
            Some(log_variance) => Some(Variance {
                state: Tensor::stack(&[log_variance, &log_variance.zeros_like()?], 0)?,
                scaled: visible.zeros_like()?,
            }),
            None => None,
        };
        let buffers = Self {
            config: config.clone(),
            hidden_unit: hidden_unit(rbm.config().hidden),
            visible_unit: match rbm.config().visible {
                VisibleUnit::Bernoulli => Unit::Bernoulli,
                VisibleUnit::Gaussian | VisibleUnit::GaussianLearned => Unit::Gaussian,
            },
            philox,
            params: Tensor::stack(&[&weight, &weight.zeros_like()?], 0)?,
            hidden_state: state(rbm.bias())?,
            visible_state: state(rbm.visible_bias())?,
            scalars: zeros(&[3])?,
            counter: Tensor::new(&[counted.offset as i64], device)?,
            input: match input {
                Some(input) => input,
                None => visible.get(V_POS)?,
            },
            hidden,
            visible,
            hidden_pre: zeros(&[batch, n_hidden])?,
            visible_pre: zeros(&[batch, n_visible])?,
            shadow: (dtype == DType::BF16).then(|| weight.to_dtype(dtype)).transpose()?,
            variance,
            rounded: Rounded::new(rbm.config(), config, device)?,
            lower: layers,
        };
        Ok(buffers)
    }

    /// The machine whose parameters are these buffers.
    fn rbm(&self, like: &Rbm) -> Result<Rbm> {
        Rbm::from_tensors(
            like.config().clone(),
            self.params.get(0)?,
            self.hidden_state.get(0)?,
            self.visible_state.get(0)?,
            self.variance.as_ref().map(|v| v.state.get(0)).transpose()?,
        )
    }

    /// One step from the rows in `input`.
    fn run(&self) -> Result<()> {
        let precision = self.config.precision;
        let mut below = self.input.clone();
        for layer in &self.lower {
            gemm_(&layer.pre, &below, &layer.weight.t()?, Factors::OVERWRITE, precision)?;
            let out = UnitPlanes { mean: Some(layer.plane), mean_scale: 1., sample: None };
            units_(&layer.planes, &layer.pre, &layer.bias, layer.unit, out, Draws::Mode, None)?;
            below = layer.planes.get(layer.plane)?;
        }
        let mut draws = Philox { offset: self.philox.offset, ..self.philox };
        let variance = self.variance.as_ref().map(Variance::moments).transpose()?;
        let variance = variance.as_ref();

        self.scale_visible(V_POS, variance)?;
        let drawn = (!self.config.persistent).then_some(H_DRAWN);
        self.hidden_phase(
            V_POS,
            UnitPlanes { mean: Some(H_POS), mean_scale: 1., sample: drawn },
            &mut draws,
        )?;
        for j in 1..=self.config.k {
            let last = j == self.config.k;
            self.visible_phase(variance, &mut draws)?;
            let out = UnitPlanes {
                mean: last.then_some(H_NEG),
                mean_scale: -1.,
                sample: (!last || self.config.persistent).then_some(H_DRAWN),
            };
            self.hidden_phase(V_NEG, out, &mut draws)?;
        }
        self.update(variance)?;
        advance_(&self.counter, draws.offset.wrapping_sub(self.philox.offset) as i64)
    }

    /// Hidden units given plane `from` of the visible ones.
    fn hidden_phase(&self, from: usize, out: UnitPlanes, draws: &mut Philox) -> Result<()> {
        let visible = self.read_by_hidden().get(from)?;
        gemm_(&self.hidden_pre, &visible, &self.weight()?.t()?, Factors::OVERWRITE, self.config.precision)?;
        let place = match out.sample {
            Some(_) => Draws::Counter { philox: *draws, counter: &self.counter },
            None => Draws::Mode,
        };
        units_(
            &self.hidden,
            &self.hidden_pre,
            &self.hidden_state.get(0)?,
            self.hidden_unit,
            out,
            place,
            None,
        )?;
        if out.sample.is_some() {
            *draws = draws.advanced(self.hidden_pre.elem_count());
        }
        Ok(())
    }

    /// Visible units given the drawn hidden ones, to the negative plane.
    fn visible_phase(&self, variance: Option<&Moments>, draws: &mut Philox) -> Result<()> {
        let hidden = self.hidden.get(H_DRAWN)?;
        gemm_(&self.visible_pre, &hidden, &self.weight()?, Factors::OVERWRITE, self.config.precision)?;
        let drawn = self.config.sample_visible || self.config.persistent;
        let (out, place) = match drawn {
            true => (
                UnitPlanes { mean: None, mean_scale: 1., sample: Some(V_NEG) },
                Draws::Counter { philox: *draws, counter: &self.counter },
            ),
            false => (UnitPlanes { mean: Some(V_NEG), mean_scale: 1., sample: None }, Draws::Mode),
        };
        let stdev = variance.map(|m| &m.stdev);
        units_(
            &self.visible,
            &self.visible_pre,
            &self.visible_state.get(0)?,
            self.visible_unit,
            out,
            place,
            stdev,
        )?;
        if drawn {
            *draws = draws.advanced(self.visible_pre.elem_count());
        }
        self.scale_visible(V_NEG, variance)
    }

    /// Velocity, weights, biases and variances from the states of both phases.
    fn update(&self, variance: Option<&Moments>) -> Result<()> {
        let CdConfig { batch, precision, l1, l2, .. } = self.config;
        let both = |planes: &Tensor| planes.narrow(0, 0, 2)?.flatten(0, 1);
        let (hidden, visible) = (both(&self.hidden)?, both(self.read_by_hidden())?);
        if let (Some(moments), Some(v)) = (variance, &self.variance) {
            let gradient = (hidden.t()?.matmul(&visible)? / batch as f64)?;
            self.step_variance(v, moments, &gradient)?;
        }
        let (hidden, visible) = match &self.rounded {
            Some(rounded) => {
                scale_into_(&rounded.hidden, &hidden, 1.)?;
                scale_into_(&rounded.visible, &visible, 1.)?;
                (rounded.hidden.clone(), rounded.visible.clone())
            }
            None => (hidden, visible),
        };
        let step = WeightStep { l1: l1 as f32, l2: l2 as f32 };
        contrast_step_(
            &self.params,
            &hidden,
            &visible,
            &self.scalars,
            step,
            self.shadow.as_ref(),
            precision,
        )?;
        if let Some(max_norm) = self.config.max_norm {
            max_norm_rows_(&self.params.get(0)?, max_norm as f32)?;
            self.refresh_shadow()?;
        }
        let sparsity = self.config.sparsity.map(|s| Sparsity {
            target: s.target as f32,
            cost: s.cost as f32,
            decay: s.decay as f32,
        });
        let step = BiasStep { neg_is_negated: true, sparsity, gather_error: false, scale: None };
        bias_step_(&self.hidden_state, &self.hidden.narrow(0, 0, 2)?, &self.scalars, step)?;
        let scale = variance.map(|m| &m.inverse);
        let step = BiasStep { neg_is_negated: false, sparsity: None, gather_error: true, scale };
        bias_step_(&self.visible_state, &self.visible, &self.scalars, step)
    }

    /// The weights as products read them.
    fn weight(&self) -> Result<Tensor> {
        match &self.shadow {
            Some(shadow) => Ok(shadow.clone()),
            None => self.params.get(0),
        }
    }

    fn refresh_shadow(&self) -> Result<()> {
        match &self.shadow {
            Some(shadow) => scale_into_(shadow, &self.params.get(0)?, 1.),
            None => Ok(()),
        }
    }

    /// The visible states as hidden units and the gradient read them.
    fn read_by_hidden(&self) -> &Tensor {
        self.variance.as_ref().map_or(&self.visible, |v| &v.scaled)
    }

    fn scale_visible(&self, plane: usize, variance: Option<&Moments>) -> Result<()> {
        match (variance, &self.variance) {
            (Some(moments), Some(v)) => {
                let scaled = self.visible.get(plane)?.broadcast_mul(&moments.inverse)?;
                scale_into_(&v.scaled.get(plane)?, &scaled, 1.)
            }
            _ => Ok(()),
        }
    }

    /// One step of the log-variances `z`, with `gradient` the mean of `h₀ᵀ v₀/σ² − h_kᵀ v_k/σ²`:
    /// `∂ ln p/∂z = ½ e^−z (⟨(v₀ − b)²⟩ − ⟨(v_k − b)²⟩) − Σ_j W_j ∘ gradient_j`.
    fn step_variance(&self, variance: &Variance, moments: &Moments, gradient: &Tensor) -> Result<()> {
        let bias = self.visible_state.get(0)?;
        let spread = |plane: usize| self.visible.get(plane)?.broadcast_sub(&bias)?.sqr()?.mean(0);
        let own = ((spread(V_POS)? - spread(V_NEG)?)? * (&moments.inverse * 0.5)?)?;
        let shared = (self.params.get(0)? * gradient)?.sum(0)?;
        let scalars = self.scalars.to_vec1::<f32>()?;
        let (momentum, rate) = (f64::from(scalars[1]), f64::from(scalars[2]) * VARIANCE_RATE);
        let velocity = ((variance.state.get(1)? * momentum)? + ((own - shared)? * rate)?)?;
        let log_variance = (variance.state.get(0)? + &velocity)?.maximum(MIN_LOG_VARIANCE)?;
        scale_into_(&variance.state, &Tensor::stack(&[&log_variance, &velocity], 0)?, 1.)
    }
}

/// Both operands of the gradient, `[2 · batch, n]` f16.
///
/// f16 has the ten bits of mantissa that TF32 keeps, and half the bytes. Its range, 6e-5 to 65,504 at full accuracy, holds
/// probabilities and grey levels, so it stands in where all units are binary: smaller numbers err by at most 3e-8.
#[derive(Clone)]
struct Rounded {
    hidden: Tensor,
    visible: Tensor,
}

impl Rounded {
    /// Makes room where it pays: for TF32 products on a GPU, when the weights are too many for its cache.
    fn new(rbm: &RbmConfig, config: &CdConfig, device: &Device) -> Result<Option<Self>> {
        let binary = rbm.visible == VisibleUnit::Bernoulli && rbm.hidden == HiddenUnit::Bernoulli;
        let large = rbm.n_visible * rbm.n_hidden >= LARGE_WEIGHTS;
        if !(binary && large && config.precision == Precision::Tf32 && device.is_cuda()) {
            return Ok(None);
        }
        let room = |n: usize| Tensor::zeros((2 * config.batch, n), DType::F16, device);
        Ok(Some(Self { hidden: room(rbm.n_hidden)?, visible: room(rbm.n_visible)? }))
    }
}

/// What a step needs of the variances as they are at its beginning, `[n_visible]` each.
struct Moments {
    /// `1/σ²`
    inverse: Tensor,
    /// `σ`
    stdev: Tensor,
}

impl Variance {
    fn moments(&self) -> Result<Moments> {
        let log_variance = self.state.get(0)?;
        Ok(Moments { inverse: log_variance.neg()?.exp()?, stdev: (log_variance * 0.5)?.exp()? })
    }
}

fn hidden_unit(unit: HiddenUnit) -> Unit {
    match unit {
        HiddenUnit::Bernoulli => Unit::Bernoulli,
        HiddenUnit::Rectified => Unit::Rectified,
    }
}
