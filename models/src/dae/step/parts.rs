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
//!
//! | precision | numbers | storage of weights and velocity |
//! |---|---|---|
//! | f32, and TF32 where warpgroups do not multiply | f16 in two parts | [`Storage::F32`] |
//! | TF32 | f16 | [`Storage::F32`] |
//! | bf16 | bf16 | [`Storage::Bf16Velocity`] |
//! | bf16, of large matrices: where [`cd_update_takes_halves`] | bf16 | [`Storage::Halves`] |
//!
//! For the bytes of each see [`masters`](crate::masters).
use super::{Parameters, VALUES, VELOCITY, blocks_of, flat_shape, is_the_papers, parameters};
use crate::dae::{DaeConfig, DaeTrainConfig};
use crate::masters::{Format, Masters, Storage};
use crate::padding::Width;
use candle::{DType, Device, Result, Tensor};
use chandlery_ops::arrays::scale_into_;
use chandlery_ops::core::{Draws, set_scalars_};
use chandlery_ops::layers::{
    BiasGradients, CdUpdate, Unit, UnitPlanes, WeightStep, cd_update_, cd_update_fuses,
    cd_update_takes_halves, corrupt_minibatches_, deltas_of_product_, error_places, errors_of_product_,
    two_part_products_fuse, units_of_product_, warpgroups_multiply,
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
    /// `[n_hidden, n_visible]`
    masters: Masters,
    /// `[4, n_hidden]` and `[4, n_visible]`: biases, velocities, and two rows that are not used.
    hidden_state: Tensor,
    visible_state: Tensor,
    /// `[2 parts, batch, n_hidden]` and `[2 parts at_once, batch, n_visible]`.
    hidden: Tensor,
    visible: Tensor,
    /// `[batch, n_hidden]`: scratch memory of a product.
    pre: Tensor,
    /// Rate over batch, momentum, rate.
    scalars: Tensor,
}

/// What is multiplied where all products of this network, with units that stay at 0, are kernels on
/// such numbers: f16 numbers in two parts or in one, which has the digits of TF32, or bf16 numbers.
pub(super) fn fits(of: &DaeConfig, config: &DaeTrainConfig, device: &Device) -> Option<Format> {
    let (n_visible, n_hidden) = (Width::padded(of.n_visible).all, Width::aligned(of.n_hidden).all);
    let fuses = cd_update_fuses(device, n_hidden, n_visible);
    format_of(n_visible, config, device).filter(|_| is_the_papers(of) && fuses)
}

/// Numbers of one part are for GPUs that multiply them by warpgroups.
fn format_of(n_visible: usize, config: &DaeTrainConfig, device: &Device) -> Option<Format> {
    let one_part = warpgroups_multiply(device) && n_visible.is_multiple_of(MULTIPLE);
    let two_parts = two_part_products_fuse(device).then_some(Format::F16Pair);
    match config.precision {
        Precision::Bf16 => one_part.then_some(Format::Bf16),
        Precision::Tf32 if one_part => Some(Format::F16),
        Precision::F32 | Precision::Tf32 => two_parts,
    }
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
        (format, at_once): (Format, usize),
        device: &Device,
    ) -> Result<Self> {
        let (n_visible, n_hidden, batch) = (of.n_visible, of.n_hidden, config.batch);
        let storage = match format {
            Format::Bf16 if cd_update_takes_halves(device, [n_hidden, n_visible], batch) => Storage::Halves,
            Format::Bf16 => Storage::Bf16Velocity,
            Format::F32 | Format::F16 | Format::F16Pair => Storage::F32,
        };
        let states = |n: usize| Tensor::zeros((4, n), DType::F32, device);
        let [hidden, visible, pre, scalars] = memory(of, batch, (format, at_once), device)?;
        Ok(Self {
            config: config.clone(),
            philox,
            n_visible: own_visible,
            at_once,
            masters: Masters::zeros(&[n_hidden, n_visible], storage, format, device)?,
            hidden_state: states(n_hidden)?,
            visible_state: states(n_visible)?,
            hidden,
            visible,
            pre,
            scalars,
        })
    }

    /// The same for one minibatch of `config.batch` rows, fewer than these have, on the same
    /// parameters.
    pub(super) fn of_fewer(&self, of: &DaeConfig, config: &DaeTrainConfig) -> Result<Self> {
        let (format, device) = (self.masters.format, self.pre.device());
        let [hidden, visible, pre, scalars] = memory(of, config.batch, (format, 1), device)?;
        Ok(Self { config: config.clone(), at_once: 1, hidden, visible, pre, scalars, ..self.clone() })
    }

    /// Places of the sums of loss and squared error.
    pub(super) fn places(&self) -> Result<usize> {
        let (n_visible, n_hidden) = (self.visible.dim(2)?, self.hidden.dim(2)?);
        error_places(self.pre.device(), self.config.batch, n_visible, n_hidden)
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
        let planes =
            self.visible.reshape((self.masters.format.parts(), self.at_once, PLANES, batch, n_visible))?;
        let inputs = planes.narrow(2, INPUT, 1)?.squeeze(2)?.narrow(1, 0, n)?;
        let (to, from) = (inputs.narrow(3, 0, self.n_visible)?, x.narrow(2, 0, self.n_visible)?);
        corrupt_minibatches_(&to, &from, self.config.corruption, draws)
    }

    /// `y = sigmoid(x̃ Wᵀ + b)` of a minibatch.
    fn hidden(&self, minibatch: usize) -> Result<()> {
        let format = self.masters.format;
        let out = UnitPlanes { mean: Some(UNITS), low: format.low(PLANES), ..UnitPlanes::default() };
        units_of_product_(
            &self.hidden,
            &self.pre,
            &self.plane(&self.visible, PLANES * minibatch + INPUT)?,
            &self.masters.operand()?.transpose(1, 2)?,
            format.product_scale(),
            &self.hidden_state.get(0)?,
            Unit::Bernoulli,
            out,
            Draws::Mode,
        )
    }

    /// `LN = x − sigmoid(y W + b')`
    fn reconstruct(&self, minibatch: usize, x: &Tensor, gathered: &Tensor) -> Result<()> {
        let format = self.masters.format;
        let (units, bias) = (self.plane(&self.hidden, UNITS)?, self.visible_state.get(0)?);
        let to = (PLANES * minibatch + ERRORS, format.low(PLANES * self.at_once));
        let (weights, scale) = (self.masters.operand()?, format.product_scale());
        errors_of_product_(&self.visible, to, &units, &weights, scale, &bias, x, gathered)
    }

    /// `LH = y (1 − y) ∘ (LN Wᵀ)`
    fn deltas(&self, minibatch: usize) -> Result<()> {
        let errors = self.plane(&self.visible, PLANES * minibatch + ERRORS)?;
        let (format, across) = (self.masters.format, self.masters.operand()?.transpose(1, 2)?);
        let planes = (DELTAS, UNITS, format.low(PLANES));
        deltas_of_product_(&self.hidden, planes, &errors, &across, format.product_scale())
    }

    /// Both biases and the weights.
    fn update(&self, minibatch: usize, blocks: i64, counter: &Tensor) -> Result<()> {
        let both = |t: &Tensor, from: usize| self.parts(t)?.narrow(1, from, PLANES);
        let to = self.masters.operands(&self.hidden_state, &self.visible_state, counter);
        let step = CdUpdate {
            weights: WeightStep { l1: 0., l2: self.config.weight_decay as f32 },
            sparsity: None,
            visible_scale: None,
            copy_scale: self.masters.format.weight_scale(),
            advance: blocks,
            precision: self.config.precision,
            biases: BiasGradients::Autoencoder,
            rounding: None,
        };
        let (hidden, visible) = (both(&self.hidden, 0)?, both(&self.visible, PLANES * minibatch)?);
        cd_update_(to, &hidden, &visible, &self.scalars, step)
    }

    /// The values. They share memory with these, but for weights in halves.
    pub(super) fn values(&self) -> Result<Parameters> {
        self.parameters(0, self.masters.weight()?)
    }

    /// Takes over what [`values`](Self::values) gave, after changes.
    pub(super) fn set_values(&self, values: &Parameters) -> Result<()> {
        self.masters.set_weight(&values.weight)
    }

    /// The velocities, which share memory with these; that of the weights may be bf16.
    fn velocities(&self) -> Result<Parameters> {
        self.parameters(1, self.masters.velocity()?)
    }

    /// A plane of the biases of both sides, beside `weight`.
    fn parameters(&self, plane: usize, weight: Tensor) -> Result<Parameters> {
        let (bias, visible_bias) = (self.hidden_state.get(plane)?, self.visible_state.get(plane)?);
        Ok(Parameters { weight, decoder_weight: None, bias, visible_bias })
    }

    /// Values and velocities as a flat buffer holds them.
    pub(super) fn flattened(&self, of: &DaeConfig) -> Result<Tensor> {
        let flat = Tensor::zeros(&flat_shape(of).0, DType::F32, self.pre.device())?;
        for (plane, own) in [(VALUES, self.values()?), (VELOCITY, self.velocities()?)] {
            for (to, from) in parameters(of, &flat.get(plane)?)?.tensors().into_iter().zip(own.tensors()) {
                scale_into_(to, &from.to_dtype(DType::F32)?, 1.)?;
            }
        }
        Ok(flat)
    }

    /// Takes them from there.
    pub(super) fn unflatten(&self, of: &DaeConfig, flat: &Tensor) -> Result<()> {
        let (values, velocities) = (self.values()?, self.velocities()?);
        for (plane, own) in [(VALUES, &values), (VELOCITY, &velocities)] {
            for (to, from) in own.tensors().into_iter().zip(parameters(of, &flat.get(plane)?)?.tensors()) {
                scale_into_(to, from, 1.)?;
            }
        }
        self.set_values(&values)
    }

    /// `planes` as `[parts, planes of a part, batch, n]`.
    fn parts(&self, planes: &Tensor) -> Result<Tensor> {
        let (n_planes, batch, n) = planes.dims3()?;
        let parts = self.masters.format.parts();
        planes.reshape((parts, n_planes / parts, batch, n))
    }

    /// All parts of a plane, `[parts, batch, n]`.
    fn plane(&self, planes: &Tensor, index: usize) -> Result<Tensor> {
        self.parts(planes)?.narrow(1, index, 1)?.squeeze(1)
    }
}

/// The memory of steps on minibatches of `batch` rows, `at_once` of them: see the fields `hidden`,
/// `visible`, `pre` and `scalars` of [`Parts`].
fn memory(
    of: &DaeConfig,
    batch: usize,
    (format, at_once): (Format, usize),
    device: &Device,
) -> Result<[Tensor; 4]> {
    let (planes, dtype) = (format.parts() * PLANES, format.dtype());
    Ok([
        Tensor::zeros((planes, batch, of.n_hidden), dtype, device)?,
        Tensor::zeros((planes * at_once, batch, of.n_visible), dtype, device)?,
        Tensor::zeros((batch, of.n_hidden), DType::F32, device)?,
        Tensor::zeros(3, DType::F32, device)?,
    ])
}
