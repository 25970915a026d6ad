//! Steps of the paper's network on a GPU whose tensor cores multiply numbers in two f16 parts, as exact as f32: five kernels.
//!
//! With the deltas `LH` and errors `LN` of the paper, the update is one product over both planes of each side:
//!
//! ```text
//! ΔW = ρ/B (LHᵀ x̃ + yᵀ LN) = ρ/B [LH; y]ᵀ [x̃; LN]
//! ```
//!
//! which is that of contrastive learning, [`contrast_step_`]. Only the gradients of the biases differ.
use super::{Parameters, VALUES, VELOCITY, blocks, flat_shape, is_the_papers, parameters};
use crate::dae::{DaeConfig, DaeTrainConfig};
use crate::rbm::F16_WEIGHT_SCALE as WEIGHT_SCALE;
use candle::{DType, Device, Result, Tensor};
use chandlery_ops::{
    BiasGradients, Contrast, ContrastStep, Draws, Philox, Precision, Unit, UnitPlanes, WeightStep,
    contrast_step_, contrast_step_fuses, corrupt_, deltas_of_product_, error_places, errors_of_product_,
    scale_into_, set_scalars_, split_into_, two_part_products_fuse, units_of_product_,
};

/// Planes of the hidden states: `[LH; y]`, and of the visible ones: `[x̃; LN]`. The second parts of both follow.
const DELTAS: usize = 0;
const UNITS: usize = 1;
const INPUT: usize = 0;
const ERRORS: usize = 1;
const PLANES: usize = 2;

/// Parameters as [`contrast_step_`] takes them, and the memory of a step.
#[derive(Clone)]
pub(super) struct Parts {
    config: DaeTrainConfig,
    philox: Philox,
    /// `[2, n_hidden, n_visible]`: weights, velocity.
    weights: Tensor,
    /// `[4, n_hidden]` and `[4, n_visible]`: biases, velocities, and two rows that are not used.
    hidden_state: Tensor,
    visible_state: Tensor,
    pub(super) values: Parameters,
    /// `[2, n_hidden, n_visible]` f16: the weights times [`WEIGHT_SCALE`].
    copy: Tensor,
    /// `[4, batch, n_hidden]` and `[4, batch, n_visible]` f16.
    hidden: Tensor,
    visible: Tensor,
    /// `[batch, n_hidden]`: scratch memory of a product.
    pre: Tensor,
    /// Rate over batch, momentum, rate.
    scalars: Tensor,
}

/// Whether all products of this network are kernels on numbers in two parts.
pub(super) fn fits(of: &DaeConfig, config: &DaeTrainConfig, device: &Device) -> bool {
    is_the_papers(of)
        && config.precision != Precision::Bf16
        && contrast_step_fuses(device, of.n_hidden, of.n_visible)
        && two_part_products_fuse(device)
}

impl Parts {
    pub(super) fn new(
        of: &DaeConfig,
        config: &DaeTrainConfig,
        philox: Philox,
        device: &Device,
    ) -> Result<Self> {
        let (n_visible, n_hidden, batch) = (of.n_visible, of.n_hidden, config.batch);
        let zeros = |shape: &[usize], dtype| Tensor::zeros(shape, dtype, device);
        let weights = zeros(&[2, n_hidden, n_visible], DType::F32)?;
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
            weights,
            hidden_state,
            visible_state,
            values,
            copy: zeros(&[2, n_hidden, n_visible], DType::F16)?,
            hidden: zeros(&[2 * PLANES, batch, n_hidden], DType::F16)?,
            visible: zeros(&[2 * PLANES, batch, n_visible], DType::F16)?,
            pre: zeros(&[batch, n_hidden], DType::F32)?,
            scalars: zeros(&[3], DType::F32)?,
        })
    }

    /// Places of the sums of loss and squared error.
    pub(super) fn places(&self) -> Result<usize> {
        let (n_hidden, n_visible) = self.values.weight.dims2()?;
        error_places(self.weights.device(), self.config.batch, n_visible, n_hidden)
    }

    /// Makes the copy of the weights anew.
    pub(super) fn refresh(&self) -> Result<()> {
        split_into_(&self.copy, &self.values.weight, WEIGHT_SCALE)
    }

    pub(super) fn set_rates(&self, rate: f32, momentum: f32) -> Result<()> {
        set_scalars_(&self.scalars, &[rate / self.config.batch as f32, momentum, rate])
    }

    /// One step from `x`, and the counter goes on.
    pub(super) fn run(&self, x: &Tensor, gathered: &Tensor, counter: &Tensor) -> Result<()> {
        self.corrupt(x, counter)?;
        self.hidden()?;
        self.reconstruct(x, gathered)?;
        self.deltas()?;
        self.update(blocks(x), counter)
    }

    /// `x̃`
    fn corrupt(&self, x: &Tensor, counter: &Tensor) -> Result<()> {
        let draws = Draws::Counter { philox: self.philox, counter };
        corrupt_(&plane(&self.visible, INPUT)?, x, self.config.corruption, draws, 0)
    }

    /// `y = sigmoid(x̃ Wᵀ + b)`
    fn hidden(&self) -> Result<()> {
        let out = UnitPlanes { mean: Some(UNITS), low: Some(PLANES), ..UnitPlanes::default() };
        units_of_product_(
            &self.hidden,
            &self.pre,
            &plane(&self.visible, INPUT)?,
            &self.copy.transpose(1, 2)?,
            1. / WEIGHT_SCALE,
            &self.values.bias,
            Unit::Bernoulli,
            out,
            Draws::Mode,
        )
    }

    /// `LN = x − sigmoid(y W + b')`
    fn reconstruct(&self, x: &Tensor, gathered: &Tensor) -> Result<()> {
        let scale = 1. / WEIGHT_SCALE;
        let (units, bias) = (plane(&self.hidden, UNITS)?, &self.values.visible_bias);
        errors_of_product_(&self.visible, (ERRORS, PLANES), &units, &self.copy, scale, bias, x, gathered)
    }

    /// `LH = y (1 − y) ∘ (LN Wᵀ)`
    fn deltas(&self) -> Result<()> {
        let (errors, across) = (plane(&self.visible, ERRORS)?, self.copy.transpose(1, 2)?);
        deltas_of_product_(&self.hidden, (DELTAS, UNITS, PLANES), &errors, &across, 1. / WEIGHT_SCALE)
    }

    /// Both biases and the weights.
    fn update(&self, blocks: i64, counter: &Tensor) -> Result<()> {
        let both = |t: &Tensor| {
            let (_, batch, n) = t.dims3()?;
            t.reshape((2, PLANES, batch, n))
        };
        let to = Contrast {
            params: &self.weights,
            velocity: None,
            copy: Some(&self.copy),
            hidden_state: &self.hidden_state,
            visible_state: &self.visible_state,
            counter,
        };
        let step = ContrastStep {
            weights: WeightStep { l1: 0., l2: self.config.weight_decay as f32 },
            sparsity: None,
            visible_scale: None,
            copy_scale: WEIGHT_SCALE,
            advance: blocks,
            precision: self.config.precision,
            biases: BiasGradients::Autoencoder,
        };
        contrast_step_(to, &both(&self.hidden)?, &both(&self.visible)?, &self.scalars, step)
    }

    /// Values and velocities as a flat buffer holds them.
    pub(super) fn flattened(&self, of: &DaeConfig) -> Result<Tensor> {
        let flat = Tensor::zeros(&flat_shape(of).0, DType::F32, self.weights.device())?;
        for (index, plane) in [VALUES, VELOCITY].into_iter().enumerate() {
            let to = parameters(of, &flat.get(plane)?)?;
            for (to, from) in to.tensors().into_iter().zip(self.tensors(index)?) {
                scale_into_(to, &from, 1.)?;
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
        Ok([self.weights.get(index)?, self.hidden_state.get(index)?, self.visible_state.get(index)?])
    }
}

/// Both parts of a plane, `[2, batch, n]`.
fn plane(planes: &Tensor, index: usize) -> Result<Tensor> {
    let (_, batch, n) = planes.dims3()?;
    planes.reshape((2, PLANES, batch, n))?.narrow(1, index, 1)?.squeeze(1)
}
