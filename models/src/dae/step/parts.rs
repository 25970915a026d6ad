//! Steps of the paper's network on a GPU whose tensor cores multiply numbers in two f16 parts, as
//! exact as f32, or in one, f16 as exact as TF32 or bf16: four kernels a step, and the noise of
//! several steps in one.
//!
//! With the deltas `LH` and errors `LN` of the paper, the update is one product over both planes of
//! each side:
//!
//! ```text
//! ΔW = ρ/B (LHᵀ x̃ + yᵀ LN) = ρ/B [LH; y]ᵀ [x̃; LN]
//! ```
//!
//! which is that of contrastive learning, [`cd_update_`]. Only the gradients of the biases
//! differ.
use super::{Parameters, VALUES, VELOCITY, blocks_of, flat_shape, is_the_papers, parameters};
use crate::dae::{DaeConfig, DaeTrainConfig};
use crate::padding::Width;
use crate::rbm::F16_WEIGHT_SCALE as WEIGHT_SCALE;
use candle::{DType, Device, Result, Tensor};
use chandlery_ops::arrays::{scale_into_, split_into_};
use chandlery_ops::core::{Draws, set_scalars_};
use chandlery_ops::layers::{
    BiasGradients, CdOperands, CdUpdate, Unit, UnitPlanes, WeightStep, cd_update_, cd_update_fuses,
    corrupt_minibatches_, deltas_of_product_, error_places, errors_of_product_, two_part_products_fuse,
    units_of_product_, warpgroups_multiply,
};
use chandlery_ops::{Philox, Precision};

/// Planes of the hidden states: `[LH; y]`, and of the visible ones: `[x̃; LN]` for each minibatch.
/// The second parts of both follow.
const DELTAS: usize = 0;
const UNITS: usize = 1;
const INPUT: usize = 0;
const ERRORS: usize = 1;
const PLANES: usize = 2;
/// Rows of numbers of one part are of so many: of 16 bytes.
const MULTIPLE: usize = 8;
/// Most minibatches, and values of them, whose noise is drawn at once: a launch for each would take
/// a good part of its step.
const MINIBATCHES_AT_ONCE: usize = 32;
const VALUES_AT_ONCE: usize = 2 << 20;

/// Parameters as [`cd_update_`] takes them, and the memory of a step.
#[derive(Clone)]
pub(super) struct Parts {
    config: DaeTrainConfig,
    philox: Philox,
    /// Visible units that have noise; others stay at 0.
    n_visible: usize,
    /// Minibatches that the memory has room for.
    pub(super) at_once: usize,
    /// Of the numbers that are multiplied.
    kind: Kind,
    /// `[2, n_hidden, n_visible]`: weights, velocity; or weights alone.
    weights: Tensor,
    /// `[n_hidden, n_visible]` bf16, where it is not behind the weights.
    velocity: Option<Tensor>,
    /// `[4, n_hidden]` and `[4, n_visible]`: biases, velocities, and two rows that are not used.
    hidden_state: Tensor,
    visible_state: Tensor,
    pub(super) values: Parameters,
    /// `[parts, n_hidden, n_visible]`: the weights times [`Kind::scale`].
    copy: Tensor,
    /// `[2 parts, batch, n_hidden]` and `[2 parts at_once, batch, n_visible]`.
    hidden: Tensor,
    visible: Tensor,
    /// `[batch, n_hidden]`: scratch memory of a product.
    pre: Tensor,
    /// Rate over batch, momentum, rate.
    scalars: Tensor,
}

/// What is multiplied: f16 numbers in two parts or in one, which has the digits of TF32, or bf16
/// numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    TwoParts,
    F16,
    Bf16,
}

impl Kind {
    /// Numbers of one part are for GPUs that multiply them by warpgroups.
    fn of(n_visible: usize, config: &DaeTrainConfig, device: &Device) -> Option<Self> {
        let one_part = warpgroups_multiply(device) && n_visible.is_multiple_of(MULTIPLE);
        let two_parts = two_part_products_fuse(device).then_some(Self::TwoParts);
        match config.precision {
            Precision::Bf16 => one_part.then_some(Self::Bf16),
            Precision::Tf32 if one_part => Some(Self::F16),
            Precision::F32 | Precision::Tf32 => two_parts,
        }
    }

    fn dtype(self) -> DType {
        match self {
            Self::TwoParts | Self::F16 => DType::F16,
            Self::Bf16 => DType::BF16,
        }
    }

    fn parts(self) -> usize {
        match self {
            Self::TwoParts => 2,
            Self::F16 | Self::Bf16 => 1,
        }
    }

    /// Factor on the copy of the weights: small f16 numbers lose digits.
    fn scale(self) -> f32 {
        match self {
            Self::TwoParts | Self::F16 => WEIGHT_SCALE,
            Self::Bf16 => 1.,
        }
    }

    /// How many planes further on second parts are, which `planes` first ones precede.
    fn low(self, planes: usize) -> Option<usize> {
        (self == Self::TwoParts).then_some(planes)
    }
}

/// What is multiplied where all products of this network, with units that stay at 0, are kernels on
/// such numbers.
pub(super) fn fits(of: &DaeConfig, config: &DaeTrainConfig, device: &Device) -> Option<Kind> {
    let (n_visible, n_hidden) = (Width::padded(of.n_visible).all, Width::eights(of.n_hidden).all);
    let fuses = cd_update_fuses(device, n_hidden, n_visible);
    Kind::of(n_visible, config, device).filter(|_| is_the_papers(of) && fuses)
}

/// Whether these kernels are faster than one op for many steps: on an H200 at 784-500, 19 µs a step
/// of 32 rows against 21; of 24 both take 18.
pub(super) fn faster(of: &DaeConfig, config: &DaeTrainConfig, device: &Device) -> bool {
    config.batch > 24 && warpgroups_multiply(device) && fits(of, config, device).is_some()
}

/// Minibatches that are best made at once.
pub(super) fn at_once(batch: usize, n_visible: usize) -> usize {
    (VALUES_AT_ONCE / batch.saturating_mul(n_visible).max(1)).clamp(1, MINIBATCHES_AT_ONCE)
}

impl Parts {
    /// `of` is the network as steps train it, of which the first `own_visible` units have noise.
    pub(super) fn new(
        of: &DaeConfig,
        own_visible: usize,
        config: &DaeTrainConfig,
        philox: Philox,
        (kind, at_once): (Kind, usize),
        device: &Device,
    ) -> Result<Self> {
        let (n_visible, n_hidden, batch) = (of.n_visible, of.n_hidden, config.batch);
        let zeros = |shape: &[usize], dtype| Tensor::zeros(shape, dtype, device);
        let (parts, dtype) = (kind.parts(), kind.dtype());
        let velocity = match kind {
            Kind::TwoParts | Kind::F16 => None,
            Kind::Bf16 => Some(zeros(&[n_hidden, n_visible], dtype)?),
        };
        let n_planes = if velocity.is_some() { 1 } else { 2 };
        let weights = zeros(&[n_planes, n_hidden, n_visible], DType::F32)?;
        let (hidden_state, visible_state) =
            (zeros(&[4, n_hidden], DType::F32)?, zeros(&[4, n_visible], DType::F32)?);
        let values = Parameters {
            weight: weights.get(0)?,
            decoder_weight: None,
            bias: hidden_state.get(0)?,
            visible_bias: visible_state.get(0)?,
        };
        Ok(Self {
            config: config.clone(),
            philox,
            n_visible: own_visible,
            at_once,
            kind,
            weights,
            velocity,
            hidden_state,
            visible_state,
            values,
            copy: zeros(&[parts, n_hidden, n_visible], dtype)?,
            hidden: zeros(&[parts * PLANES, batch, n_hidden], dtype)?,
            visible: zeros(&[parts * PLANES * at_once, batch, n_visible], dtype)?,
            pre: zeros(&[batch, n_hidden], DType::F32)?,
            scalars: zeros(&[3], DType::F32)?,
        })
    }

    /// The same for one minibatch of `config.batch` rows, on the same parameters.
    pub(super) fn of_fewer(&self, of: &DaeConfig, config: &DaeTrainConfig) -> Result<Self> {
        let device = self.weights.device();
        let own = Self::new(of, self.n_visible, config, self.philox, (self.kind, 1), device)?;
        Ok(Self {
            weights: self.weights.clone(),
            velocity: self.velocity.clone(),
            hidden_state: self.hidden_state.clone(),
            visible_state: self.visible_state.clone(),
            values: self.values.clone(),
            copy: self.copy.clone(),
            ..own
        })
    }

    /// Places of the sums of loss and squared error.
    pub(super) fn places(&self) -> Result<usize> {
        let (_, n_hidden, n_visible) = self.weights.dims3()?;
        error_places(self.weights.device(), self.config.batch, n_visible, n_hidden)
    }

    /// Makes the copy of the weights anew.
    pub(super) fn refresh(&self) -> Result<()> {
        let (weights, scale) = (self.weights.get(0)?, self.kind.scale());
        match self.kind {
            Kind::TwoParts => split_into_(&self.copy, &weights, scale),
            Kind::F16 | Kind::Bf16 => scale_into_(&self.copy.get(0)?, &weights, scale),
        }
    }

    pub(super) fn set_rates(&self, rate: f32, momentum: f32) -> Result<()> {
        set_scalars_(&self.scalars, &[rate / self.config.batch as f32, momentum, rate])
    }

    /// A step for each minibatch of `x`, at most [`at_once`](Self::at_once), and the counter goes
    /// on.
    pub(super) fn run(&self, x: &Tensor, gathered: &Tensor, counter: &Tensor) -> Result<()> {
        let (batch, n_visible) = (self.config.batch, x.dim(1)?);
        let x = x.reshape(((), batch, n_visible))?;
        self.corrupt(&x, counter)?;
        let blocks = blocks_of(batch, self.n_visible);
        for i in 0..x.dim(0)? {
            let x = x.get(i)?;
            self.hidden(i)?;
            self.reconstruct(i, &x, gathered)?;
            self.deltas(i)?;
            self.update(i, blocks, counter)?;
        }
        Ok(())
    }

    /// `x̃` of all minibatches: every step moves the counter on by its own draws.
    fn corrupt(&self, x: &Tensor, counter: &Tensor) -> Result<()> {
        let draws = Draws::Counter { philox: self.philox, counter };
        let (n, batch, n_visible) = x.dims3()?;
        let planes = self.visible.reshape((self.kind.parts(), self.at_once, PLANES, batch, n_visible))?;
        let inputs = planes.narrow(2, INPUT, 1)?.squeeze(2)?.narrow(1, 0, n)?;
        let (to, from) = (inputs.narrow(3, 0, self.n_visible)?, x.narrow(2, 0, self.n_visible)?);
        corrupt_minibatches_(&to, &from, self.config.corruption, draws)
    }

    /// `y = sigmoid(x̃ Wᵀ + b)` of a minibatch.
    fn hidden(&self, minibatch: usize) -> Result<()> {
        let out = UnitPlanes { mean: Some(UNITS), low: self.kind.low(PLANES), ..UnitPlanes::default() };
        units_of_product_(
            &self.hidden,
            &self.pre,
            &self.plane(&self.visible, PLANES * minibatch + INPUT)?,
            &self.copy.transpose(1, 2)?,
            1. / self.kind.scale(),
            &self.hidden_state.get(0)?,
            Unit::Bernoulli,
            out,
            Draws::Mode,
        )
    }

    /// `LN = x − sigmoid(y W + b')`
    fn reconstruct(&self, minibatch: usize, x: &Tensor, gathered: &Tensor) -> Result<()> {
        let scale = 1. / self.kind.scale();
        let (units, bias) = (self.plane(&self.hidden, UNITS)?, &self.values.visible_bias);
        let to = (PLANES * minibatch + ERRORS, self.kind.low(PLANES * self.at_once));
        errors_of_product_(&self.visible, to, &units, &self.copy, scale, bias, x, gathered)
    }

    /// `LH = y (1 − y) ∘ (LN Wᵀ)`
    fn deltas(&self, minibatch: usize) -> Result<()> {
        let errors = self.plane(&self.visible, PLANES * minibatch + ERRORS)?;
        let (planes, across) = ((DELTAS, UNITS, self.kind.low(PLANES)), self.copy.transpose(1, 2)?);
        deltas_of_product_(&self.hidden, planes, &errors, &across, 1. / self.kind.scale())
    }

    /// Both biases and the weights.
    fn update(&self, minibatch: usize, blocks: i64, counter: &Tensor) -> Result<()> {
        let both = |t: &Tensor, from: usize| self.parts(t)?.narrow(1, from, PLANES);
        let to = CdOperands {
            params: &self.weights,
            velocity: self.velocity.as_ref(),
            copy: Some(&self.copy),
            hidden_state: &self.hidden_state,
            visible_state: &self.visible_state,
            counter,
        };
        let step = CdUpdate {
            weights: WeightStep { l1: 0., l2: self.config.weight_decay as f32 },
            sparsity: None,
            visible_scale: None,
            copy_scale: self.kind.scale(),
            advance: blocks,
            precision: self.config.precision,
            biases: BiasGradients::Autoencoder,
            rounding: None,
        };
        let (hidden, visible) = (both(&self.hidden, 0)?, both(&self.visible, PLANES * minibatch)?);
        cd_update_(to, &hidden, &visible, &self.scalars, step)
    }

    /// Values and velocities as a flat buffer holds them.
    pub(super) fn flattened(&self, of: &DaeConfig) -> Result<Tensor> {
        let flat = Tensor::zeros(&flat_shape(of).0, DType::F32, self.weights.device())?;
        for (index, plane) in [VALUES, VELOCITY].into_iter().enumerate() {
            let to = parameters(of, &flat.get(plane)?)?;
            for (to, from) in to.tensors().into_iter().zip(self.tensors(index)?) {
                scale_into_(to, &from.to_dtype(DType::F32)?, 1.)?;
            }
        }
        Ok(flat)
    }

    /// Takes them from there.
    pub(super) fn unflatten(&self, of: &DaeConfig, flat: &Tensor) -> Result<()> {
        for (index, plane) in [VALUES, VELOCITY].into_iter().enumerate() {
            let from = parameters(of, &flat.get(plane)?)?;
            for (to, from) in self.tensors(index)?.iter().zip(from.tensors()) {
                scale_into_(to, from, 1.)?;
            }
        }
        Ok(())
    }

    /// Values (0) or velocities (1), in the order of [`Parameters::tensors`].
    fn tensors(&self, index: usize) -> Result<[Tensor; 3]> {
        let weights = match &self.velocity {
            Some(velocity) if index == 1 => velocity.clone(),
            _ => self.weights.get(index)?,
        };
        Ok([weights, self.hidden_state.get(index)?, self.visible_state.get(index)?])
    }

    /// `planes` as `[parts, planes of a part, batch, n]`.
    fn parts(&self, planes: &Tensor) -> Result<Tensor> {
        let (n_planes, batch, n) = planes.dims3()?;
        let parts = self.kind.parts();
        planes.reshape((parts, n_planes / parts, batch, n))
    }

    /// All parts of a plane, `[parts, batch, n]`.
    fn plane(&self, planes: &Tensor, index: usize) -> Result<Tensor> {
        self.parts(planes)?.narrow(1, index, 1)?.squeeze(1)
    }
}
