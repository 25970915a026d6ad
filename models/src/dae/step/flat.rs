//! Steps on f32 parameters in one flat buffer, by an op for each module or by one op for many
//! steps.
use super::{GRADIENT, Parameters, VALUES, blocks_of, flat_shape, is_the_papers, parameters};
use crate::dae::{DaeConfig, DaeTrainConfig};
use crate::feedforward::ReconstructionLoss;
use crate::schedule::Schedule;
use crate::share::Share;
use candle::{DType, Device, Result, Tensor};
use chandlery_ops::arrays::{column_sums_, scale_into_};
use chandlery_ops::core::{Draws, advance_, set_scalars_};
use chandlery_ops::layers::{
    Activation, DENOISING_FIGURES, DenoisingParams, DenoisingSteps, Factors, OutputLoss, SgdStep, corrupt_,
    denoising_steps_, denoising_steps_fit, gemm_, layer_backward_, layer_forward_, output_loss_, sgd_step_,
};
use chandlery_ops::{Philox, Precision};

/// Parameters, gradient and velocity in one buffer, and the memory of a step.
#[derive(Clone)]
pub(super) struct Flat {
    config: DaeTrainConfig,
    share: Share,
    hidden_activation: Activation,
    loss: OutputLoss,
    philox: Philox,
    /// Visible units that have noise; others stay at 0.
    n_visible: usize,
    /// `[3, n]`: values, gradient, velocity. Weights come first, biases after them.
    pub(super) params: Tensor,
    /// Entries of all weights.
    n_weights: usize,
    pub(super) values: Parameters,
    gradient: Parameters,
    /// `x̃`, `[batch, n_visible]`.
    pub(super) corrupted: Tensor,
    /// `y`, `[batch, n_hidden]`.
    hidden: Tensor,
    /// The inputs of the outputs, and then `∂J/∂` of them: `−LN/B`, `[batch, n_visible]`.
    output: Tensor,
    /// `∂J/∂` the inputs of the hidden units: `−LH/B`, `[batch, n_hidden]`.
    hidden_delta: Tensor,
    /// Rate, momentum.
    scalars: Tensor,
    pub(super) in_one_op: bool,
}

/// Whether many steps of this network are one op: the paper's units, loss and update, with
/// minibatches that are small.
pub(super) fn fits_one_op(of: &DaeConfig, config: &DaeTrainConfig, device: &Device) -> Result<bool> {
    let plain =
        is_the_papers(of) && config.momentum == Schedule::constant(0.) && config.precision != Precision::Bf16;
    Ok(plain && denoising_steps_fit(device, of.n_visible, of.n_hidden, config.batch)?)
}

/// What steps on minibatches of any number of rows have in common; see [`Flat`].
pub(super) struct FlatShared {
    params: Tensor,
    scalars: Tensor,
}

impl FlatShared {
    /// These parameters.
    pub(super) fn with(params: Tensor) -> Result<Self> {
        let scalars = Tensor::zeros(2, DType::F32, params.device())?;
        Ok(Self { params, scalars })
    }

    pub(super) fn new(of: &DaeConfig, device: &Device) -> Result<Self> {
        let (shape, _) = flat_shape(of);
        Self::with(Tensor::zeros(&shape, DType::F32, device)?)
    }
}

impl Flat {
    /// The same for a share of minibatches of `config.batch` rows, on the same parameters.
    pub(super) fn of_fewer(&self, of: &DaeConfig, config: &DaeTrainConfig, share: Share) -> Result<Self> {
        // One op has noise on all visible units.
        let may = share.group().is_single() && self.n_visible == of.n_visible;
        let in_one_op = may && fits_one_op(of, config, self.params.device())?;
        let shared = FlatShared { params: self.params.clone(), scalars: self.scalars.clone() };
        Self::new(of, self.n_visible, config, self.philox, in_one_op, share, shared)
    }

    /// `of` is the network as steps train it, of which the first `n_visible` units have noise.
    pub(super) fn new(
        of: &DaeConfig,
        n_visible: usize,
        config: &DaeTrainConfig,
        philox: Philox,
        in_one_op: bool,
        share: Share,
        shared: FlatShared,
    ) -> Result<Self> {
        let FlatShared { params, scalars } = shared;
        let (device, (_, n_weights)) = (params.device(), flat_shape(of));
        let zeros = |n: usize| Tensor::zeros((share.rows().len(), n), DType::F32, device);
        Ok(Self {
            config: config.clone(),
            hidden_activation: of.hidden.into(),
            loss: match of.loss {
                ReconstructionLoss::CrossEntropy => OutputLoss::CrossEntropy,
                ReconstructionLoss::SquaredError => OutputLoss::SquaredError(of.output.into()),
            },
            philox,
            n_visible,
            n_weights,
            values: parameters(of, &params.get(VALUES)?)?,
            gradient: parameters(of, &params.get(GRADIENT)?)?,
            params: params.clone(),
            corrupted: zeros(of.n_visible)?,
            hidden: zeros(of.n_hidden)?,
            output: zeros(of.n_visible)?,
            hidden_delta: zeros(of.n_hidden)?,
            scalars: scalars.clone(),
            in_one_op,
            share,
        })
    }

    /// Places of the sums of loss and squared error, see [`output_loss_`] and [`denoising_steps_`].
    pub(super) fn places(&self) -> usize {
        if self.in_one_op { DENOISING_FIGURES } else { self.share.rows().len() }
    }

    pub(super) fn set_rates(&self, rate: f32, momentum: f32) -> Result<()> {
        set_scalars_(&self.scalars, &[rate, momentum])
    }

    /// One step from `x`; the counter is left to the caller.
    pub(super) fn run(&self, x: &Tensor, gathered: &Tensor, counter: &Tensor) -> Result<()> {
        if self.share.rows().is_empty() {
            let gradient = self.params.get(GRADIENT)?;
            scale_into_(&gradient, &gradient.zeros_like()?, 1.)?;
        } else {
            let draws = Draws::Counter { philox: self.philox, counter };
            let first = self.share.rows().start * self.n_visible;
            let (to, from) = (self.corrupted.narrow(1, 0, self.n_visible)?, x.narrow(1, 0, self.n_visible)?);
            corrupt_(&to, &from, self.config.corruption, draws, first)?;
            self.hidden()?;
            self.reconstruct(x, gathered)?;
            self.visible_bias()?;
            self.hidden_bias()?;
            self.weights()?;
        }
        self.share.group().all_reduce_(&self.params.get(GRADIENT)?)?;
        let decay = SgdStep { weight_decay: self.config.weight_decay as f32 };
        sgd_step_(&self.params, &self.scalars, decay, self.n_weights, None)
    }

    /// See [`Buffers::run_in_one_op`](super::Buffers::run_in_one_op).
    pub(super) fn run_in_one_op(
        &self,
        x: &Tensor,
        scale: f32,
        learning_rate: f32,
        gathered: &Tensor,
        counter: &Tensor,
    ) -> Result<()> {
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
        let draws = Draws::Counter { philox: self.philox, counter };
        denoising_steps_(params, x, gathered, steps, draws)?;
        let minibatches = (x.dim(0)? / self.config.batch) as i64;
        advance_(counter, minibatches * blocks_of(self.config.batch, weight.1))
    }

    /// `y = f(x̃ Wᵀ + b)`
    fn hidden(&self) -> Result<()> {
        let Parameters { weight, bias, .. } = &self.values;
        gemm_(&self.hidden, &self.corrupted, &weight.t()?, Factors::OVERWRITE, self.config.precision)?;
        layer_forward_(&self.hidden, Some(bias), self.hidden_activation, None)
    }

    /// `z = g(y V + b')`, and in its place `−LN/B`.
    fn reconstruct(&self, x: &Tensor, gathered: &Tensor) -> Result<()> {
        gemm_(&self.output, &self.hidden, &self.decoder()?, Factors::OVERWRITE, self.config.precision)?;
        output_loss_(&self.output, &self.values.visible_bias, x, self.loss, self.share.of(), gathered)
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

/// `c ← a b + c`
const ADD: Factors<'static> = Factors::Host { alpha: 1., beta: 1. };
