//! One step of contrastive divergence: all its memory, and what it does with it.
//!
//! Everything is allocated in [`Buffers::new`]; [`Buffers::run`] is a fixed sequence of ops on that memory, so that it can be
//! recorded as a CUDA graph. For the equations see [`train`](super::train).
use super::{CdConfig, HiddenUnit, Rbm, RbmConfig, VisibleUnit};
use candle::{DType, Device, Result, Tensor};
use chandlery_ops::{
    BiasStep, CACHED_WEIGHTS, Draws, Factors, Philox, Precision, Sparsity, Unit, UnitPlanes, WeightStep,
    advance_, bernoulli, bias_step_, contrast_step_, gemm_, max_norm_rows_, scale_into_, units_,
};

/// Planes of the visible states: `[v_k; v₀]`, so that one product takes both phases.
const V_NEG: usize = 0;
const V_POS: usize = 1;
/// Planes of the hidden states: `[−h_k; h₀; ĥ]`.
const H_NEG: usize = 0;
const H_POS: usize = 1;
pub(super) const H_DRAWN: usize = 2;
/// Log-variances learn at this share of the rate (Cho et al. 2011 lower it too) and stay above this.
const VARIANCE_RATE: f64 = 0.1;
const MIN_LOG_VARIANCE: f64 = -9.21;

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
pub(super) struct Variance {
    pub(super) state: Tensor,
    /// The visible states over their variance, `[2, batch, n_visible]`.
    scaled: Tensor,
}

/// All memory of a step, and the views of it that the step uses. Clones share it.
#[derive(Clone)]
pub(super) struct Buffers {
    pub(super) config: CdConfig,
    pub(super) hidden_unit: Unit,
    pub(super) visible_unit: Unit,
    pub(super) philox: Philox,
    /// `[2, n_hidden, n_visible]`: weights, velocity.
    pub(super) params: Tensor,
    /// `[4, n_hidden]` and `[4, n_visible]`, see [`bias_step_`].
    pub(super) hidden_state: Tensor,
    pub(super) visible_state: Tensor,
    /// Rate over batch, momentum, rate.
    pub(super) scalars: Tensor,
    /// Blocks of random draws used so far.
    pub(super) counter: Tensor,
    /// `[3, batch, n_hidden]` and `[2, batch, n_visible]`: states of both phases, and drawn hidden states.
    pub(super) hidden: Tensor,
    pub(super) visible: Tensor,
    pub(super) hidden_pre: Tensor,
    pub(super) visible_pre: Tensor,
    /// bf16 copy of the weights, for bf16 products.
    pub(super) shadow: Option<Tensor>,
    pub(super) variance: Option<Variance>,
    /// f16 copies of the states of both phases, for the gradient of large machines in TF32, see [`Rounded`].
    rounded: Option<Rounded>,
    lower: Vec<LowerLayer>,
    /// Where rows are loaded to, `[batch, n_input]`.
    pub(super) input: Tensor,
}

impl Buffers {
    pub(super) fn new(lower: &[Rbm], rbm: &Rbm, config: &CdConfig, philox: Philox) -> Result<Self> {
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
    pub(super) fn rbm(&self, like: &Rbm) -> Result<Rbm> {
        Rbm::from_tensors(
            like.config().clone(),
            self.params.get(0)?,
            self.hidden_state.get(0)?,
            self.visible_state.get(0)?,
            self.variance.as_ref().map(|v| v.state.get(0)).transpose()?,
        )
    }

    /// One step from the rows in `input`.
    pub(super) fn run(&self) -> Result<()> {
        let precision = self.config.precision;
        let mut below = self.input.clone();
        for layer in &self.lower {
            gemm_(&layer.pre, &below, &layer.weight.t()?, Factors::OVERWRITE, precision)?;
            let out = UnitPlanes { mean: Some(layer.plane), mean_scale: 1., sample: None };
            units_(&layer.planes, &layer.pre, &layer.bias, layer.unit, out, Draws::Mode, None)?;
            below = layer.planes.get(layer.plane)?;
        }
        let mut draws = self.philox;
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

    pub(super) fn refresh_shadow(&self) -> Result<()> {
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
        let large = rbm.n_visible * rbm.n_hidden > CACHED_WEIGHTS;
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
