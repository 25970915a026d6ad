//! One step on a minibatch: its memory and its sequence of ops.
//!
//! Everything is allocated in [`Buffers::new`]; [`Buffers::run`] is a fixed sequence of ops on that memory, so that it can be
//! recorded as a CUDA graph. For the equations see [`train`](super::train).
use super::{Dae, DaeConfig, DaeTrainConfig};
use crate::feedforward::{self, ReconstructionLoss};
use crate::schedule::Schedule;
use candle::{DType, Device, Result, Tensor};
use chandlery_ops::{
    Activation, DENOISING_FIGURES, DenoisingParams, DenoisingSteps, Draws, Factors, OutputLoss, Philox,
    Precision, SgdStep, advance_, column_sums_, corrupt_, denoising_steps_, denoising_steps_fit, gemm_,
    layer_backward_, layer_forward_, output_loss_, scale_into_, sgd_step_,
};

/// Every tensor within the flat buffer begins at a multiple of so many entries: 256 bytes, what products like best.
const ALIGNMENT: usize = 64;
/// Planes of the flat buffer; the third is the velocity.
const VALUES: usize = 0;
const GRADIENT: usize = 1;
const PLANES: usize = 3;

/// An autoencoder below the one that is trained, and what its hidden units are.
#[derive(Clone)]
struct LowerLayer {
    weight: Tensor,
    bias: Tensor,
    activation: Activation,
    /// `[batch, n_hidden]`
    hidden: Tensor,
}

/// The parameters of one kind: values, or gradients.
#[derive(Clone)]
pub(super) struct Parameters {
    pub(super) weight: Tensor,
    pub(super) decoder_weight: Option<Tensor>,
    pub(super) bias: Tensor,
    pub(super) visible_bias: Tensor,
}

/// All memory of a step, and the views of it that the step uses. Clones share it.
#[derive(Clone)]
pub(super) struct Buffers {
    config: DaeTrainConfig,
    hidden_activation: Activation,
    loss: OutputLoss,
    philox: Philox,
    /// `[3, n]`: values, gradient, velocity. Weights come first, biases after them.
    pub(super) params: Tensor,
    /// Entries of all weights.
    n_weights: usize,
    values: Parameters,
    pub(super) gradient: Parameters,
    lower: Vec<LowerLayer>,
    /// Where prepared rows are loaded to: what the lowest autoencoder reads, `[batch, n_visible]` of it.
    pub(super) input: Tensor,
    /// `x̃`, `[batch, n_visible]`.
    corrupted: Tensor,
    /// `y`, `[batch, n_hidden]`.
    hidden: Tensor,
    /// The inputs of the outputs, and then `∂J/∂` of them: `−LN/B`, `[batch, n_visible]`.
    output: Tensor,
    /// `∂J/∂` the inputs of the hidden units: `−LH/B`, `[batch, n_hidden]`.
    hidden_delta: Tensor,
    /// `[2, n]` f64: sums of the loss and of the squared error, in as many parts as the op has places for, see [`output_loss_`] and
    /// [`denoising_steps_`].
    pub(super) gathered: Tensor,
    /// Rate, momentum.
    pub(super) scalars: Tensor,
    /// Blocks of random draws used so far.
    pub(super) counter: Tensor,
    in_one_op: bool,
}

impl Buffers {
    pub(super) fn new(lower: &[Dae], dae: &Dae, config: &DaeTrainConfig, philox: Philox) -> Result<Self> {
        let (of, device, batch) = (dae.config(), dae.weight().device(), config.batch);
        let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F32, device);
        let copied = |t: &Tensor| t.to_dtype(DType::F32)?.contiguous();
        let in_one_op = fits_one_op(of, config, device)?;
        let (params, n_weights) = flat(of, device)?;
        let values = parameters(of, &params.get(VALUES)?)?;
        for (to, from) in values.tensors().into_iter().zip(dae.tensors()) {
            scale_into_(to, &copied(from.1)?, 1.)?;
        }
        let mut layers = Vec::with_capacity(lower.len());
        for layer in lower {
            layers.push(LowerLayer {
                weight: copied(layer.weight())?.copy()?,
                bias: copied(layer.bias())?.copy()?,
                activation: layer.config().hidden.into(),
                hidden: zeros(&[batch, layer.config().n_hidden])?,
            });
        }
        Ok(Self {
            config: config.clone(),
            hidden_activation: of.hidden.into(),
            loss: match of.loss {
                ReconstructionLoss::CrossEntropy => OutputLoss::CrossEntropy,
                ReconstructionLoss::SquaredError => OutputLoss::SquaredError(of.output.into()),
            },
            philox,
            n_weights,
            gradient: parameters(of, &params.get(GRADIENT)?)?,
            values,
            params,
            input: zeros(&[batch, lower.first().unwrap_or(dae).config().n_visible])?,
            lower: layers,
            corrupted: zeros(&[batch, of.n_visible])?,
            hidden: zeros(&[batch, of.n_hidden])?,
            output: zeros(&[batch, of.n_visible])?,
            hidden_delta: zeros(&[batch, of.n_hidden])?,
            gathered: Tensor::zeros(
                (2, if in_one_op { DENOISING_FIGURES } else { batch }),
                DType::F64,
                device,
            )?,
            scalars: zeros(&[2])?,
            counter: Tensor::new(&[0i64], device)?,
            in_one_op,
        })
    }

    /// The autoencoder whose parameters are these buffers.
    pub(super) fn dae(&self, config: DaeConfig) -> Result<Dae> {
        let Parameters { weight, decoder_weight, bias, visible_bias } = self.values.clone();
        Dae::from_tensors(config, weight, bias, visible_bias, decoder_weight)
    }

    /// One step from the rows in `input`: the six modules of the paper, and the update.
    pub(super) fn run(&self) -> Result<()> {
        let x = self.rows()?;
        let draws = Draws::Counter { philox: self.philox, counter: &self.counter };
        corrupt_(&self.corrupted, &x, self.config.corruption, draws, 0)?;
        self.hidden()?;
        self.reconstruct(&x)?;
        self.visible_bias()?;
        self.hidden_bias()?;
        self.weights()?;
        let decay = SgdStep { weight_decay: self.config.weight_decay as f32 };
        sgd_step_(&self.params, &self.scalars, decay, self.n_weights)?;
        advance_(&self.counter, x.elem_count().div_ceil(4) as i64)
    }

    /// A step for each minibatch of `x`, prepared rows times `scale`, without momentum: no gradient and no velocity is stored.
    pub(super) fn run_in_one_op(&self, x: &Tensor, scale: f32, learning_rate: f32) -> Result<()> {
        let (params, weight) = (self.params.get(VALUES)?, self.values.weight.dims2()?);
        let at = |t: &Tensor| t.layout().start_offset() - self.params.layout().start_offset();
        let params = DenoisingParams {
            values: &params,
            n_hidden: weight.0,
            n_visible: weight.1,
            bias_at: at(&self.values.bias),
            visible_bias_at: at(&self.values.visible_bias),
        };
        let steps = DenoisingSteps {
            batch: self.config.batch,
            learning_rate,
            weight_decay: self.config.weight_decay as f32,
            scale,
            corruption: self.config.corruption,
        };
        let draws = Draws::Counter { philox: self.philox, counter: &self.counter };
        denoising_steps_(params, x, &self.gathered, steps, draws)?;
        let blocks = (self.config.batch * weight.1).div_ceil(4);
        advance_(&self.counter, (x.dim(0)? / self.config.batch * blocks) as i64)
    }

    /// Whether many steps are one op.
    pub(super) fn in_one_op(&self) -> bool {
        self.in_one_op
    }

    /// `x`: the loaded rows, or what the autoencoders below make of them.
    fn rows(&self) -> Result<Tensor> {
        let mut x = &self.input;
        for LowerLayer { weight, bias, activation, hidden } in &self.lower {
            gemm_(hidden, x, &weight.t()?, Factors::OVERWRITE, self.config.precision)?;
            layer_forward_(hidden, Some(bias), *activation, None)?;
            x = hidden;
        }
        Ok(x.clone())
    }

    /// `y = f(x̃ Wᵀ + b)`
    fn hidden(&self) -> Result<()> {
        let Parameters { weight, bias, .. } = &self.values;
        gemm_(&self.hidden, &self.corrupted, &weight.t()?, Factors::OVERWRITE, self.config.precision)?;
        layer_forward_(&self.hidden, Some(bias), self.hidden_activation, None)
    }

    /// `z = g(y V + b')`, and in its place `−LN/B`.
    fn reconstruct(&self, x: &Tensor) -> Result<()> {
        gemm_(&self.output, &self.hidden, &self.decoder()?, Factors::OVERWRITE, self.config.precision)?;
        output_loss_(&self.output, &self.values.visible_bias, x, self.loss, &self.gathered)
    }

    /// `V`, `[n_hidden, n_visible]`.
    fn decoder(&self) -> Result<Tensor> {
        match &self.values.decoder_weight {
            Some(decoder) => decoder.t(),
            None => Ok(self.values.weight.clone()),
        }
    }

    fn visible_bias(&self) -> Result<()> {
        column_sums_(&self.gradient.visible_bias, &self.output)
    }

    /// `−LH/B = f'(y) ∘ (−LN/B Vᵀ)`
    fn hidden_bias(&self) -> Result<()> {
        let across = self.decoder()?.t()?;
        gemm_(&self.hidden_delta, &self.output, &across, Factors::OVERWRITE, self.config.precision)?;
        layer_backward_(&self.hidden_delta, &self.hidden, self.hidden_activation, None)?;
        column_sums_(&self.gradient.bias, &self.hidden_delta)
    }

    /// `−(LHᵀ x̃ + yᵀ LN)/B`, or each term by itself.
    fn weights(&self) -> Result<()> {
        let Parameters { weight, decoder_weight, .. } = &self.gradient;
        let precision = self.config.precision;
        gemm_(weight, &self.hidden_delta.t()?, &self.corrupted, Factors::OVERWRITE, precision)?;
        match decoder_weight {
            Some(decoder) => gemm_(decoder, &self.output.t()?, &self.hidden, Factors::OVERWRITE, precision),
            None => gemm_(weight, &self.hidden.t()?, &self.output, ADD, precision),
        }
    }
}

/// Whether many steps of this network are one op: the paper's units, loss and update, with minibatches that are small.
fn fits_one_op(of: &DaeConfig, config: &DaeTrainConfig, device: &Device) -> Result<bool> {
    let sigmoid = feedforward::Activation::Sigmoid;
    let plain = of.tied
        && (of.hidden, of.output) == (sigmoid, sigmoid)
        && of.loss == ReconstructionLoss::CrossEntropy
        && config.momentum == Schedule::constant(0.)
        && config.precision != Precision::Bf16;
    Ok(plain && denoising_steps_fit(device, of.n_visible, of.n_hidden, config.batch)?)
}

/// `c ← a b + c`
const ADD: Factors<'static> = Factors::Host { alpha: 1., beta: 1. };

impl Parameters {
    /// In the order of [`Dae::tensors`].
    fn tensors(&self) -> Vec<&Tensor> {
        [&self.weight, &self.bias, &self.visible_bias].into_iter().chain(&self.decoder_weight).collect()
    }
}

/// A flat buffer of zeros for all parameters, and the entries of the weights, which come first.
fn flat(of: &DaeConfig, device: &Device) -> Result<(Tensor, usize)> {
    let of_weights = (of.n_visible * of.n_hidden).next_multiple_of(ALIGNMENT);
    let n_weights = if of.tied { of_weights } else { 2 * of_weights };
    let n = n_weights + of.n_hidden.next_multiple_of(ALIGNMENT) + of.n_visible.next_multiple_of(ALIGNMENT);
    Ok((Tensor::zeros((PLANES, n), DType::F32, device)?, n_weights))
}

/// The parts of one plane of [`flat`].
fn parameters(of: &DaeConfig, plane: &Tensor) -> Result<Parameters> {
    let (n_visible, n_hidden) = (of.n_visible, of.n_hidden);
    let mut at = 0;
    let mut take = |shape: &[usize]| {
        let n = shape.iter().product::<usize>();
        let part = plane.narrow(0, at, n)?.reshape(shape);
        at += n.next_multiple_of(ALIGNMENT);
        part
    };
    Ok(Parameters {
        weight: take(&[n_hidden, n_visible])?,
        decoder_weight: if of.tied { None } else { Some(take(&[n_visible, n_hidden])?) },
        bias: take(&[n_hidden])?,
        visible_bias: take(&[n_visible])?,
    })
}
