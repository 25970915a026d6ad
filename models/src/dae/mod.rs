//! Denoising autoencoder: learns features by giving back rows from corrupted ones.
//!
//! ```text
//! x̃ = corrupt(x)                                   noise, in training only
//! y = f(x̃ Wᵀ + b)                                  hidden units: the features
//! z = g(y V + b')                                  reconstruction; V = W where the weights are tied
//! J = 1/B Σ −x ln z − (1 − x) ln (1 − z)           cross-entropy, or 1/B Σ ½ ‖x − z‖²
//!
//! LN = x − z,   LH = y (1 − y) ∘ (LN Wᵀ)           sigmoid units, tied weights, cross-entropy
//! W += ρ/B (LHᵀ x̃ + yᵀ LN),  b += ρ/B Σ LH,  b' += ρ/B Σ LN
//! ```
//!
//! | symbol | field | shape |
//! |---|---|---|
//! | `x z` | `rows`, result of `reconstruct` | `[batch, n_visible]` |
//! | `y` | result of `encode` | `[batch, n_hidden]` |
//! | `W` | `weight` | `[n_hidden, n_visible]` |
//! | `b` | `bias` | `[n_hidden]` |
//! | `b'` | `visible_bias` | `[n_visible]` |
//! | `Vᵀ` | `decoder_weight`, untied weights only | `[n_visible, n_hidden]` |
//! | `f g` | `hidden`, `output` of [`DaeConfig`] | |
//!
//! The update is the gradient of `J`; [`reference`](mod@reference) is the paper's serial program,
//! and [`train`] runs it on minibatches. `weight` with `bias`, and `decoder_weight` with
//! `visible_bias`, are a [`candle_nn::Linear`] as they stand.
//!
//! Departures from Kumar and Giaquinto:
//!
//! | what they print | here |
//! |---|---|
//! | the loss is a distance (equation 1, sections 2.2 and 5.2), yet the update of Algorithms 1 and 2 lacks the `z (1 − z)` of its gradient | the update as printed, which is the gradient of the cross-entropy: that is `J`. [`ReconstructionLoss::SquaredError`](crate::feedforward::ReconstructionLoss) is half the squared distance with its own gradient, and [`ReconstructionError`] has all measures that they name |
//! | `RMSE = 1/M Σ (xᵢ − zᵢ)²`, without a root | `rmse` has the root and is a mean over values; `squared_error` is theirs |
//! | "salt and pepper": pixels that are on are turned off, and the other way round | [`Corruption::Flip`](chandlery_ops::layers::Corruption); the default is salt and pepper in the usual sense, which puts 0 or 1 in their place, on their 30 % |
//! | biases are `b'` (hidden) and `b` (visible) in Algorithm 1, and `b` and `b'` in Algorithm 2 | those of Algorithm 2 |
//! | `M`, which divides the update (2), is the number of all observations in equation 1 | the rows `B` of the minibatch, also of one that is not full |
//! | epochs until the loss converges, with no rule | [`Convergence`](crate::Convergence) |
//! | artificial views (section 2.3), with no algorithm | [`views()`]: the chain that corrupts and reconstructs again and again |
//! | first weights and biases are random, by no law that is said | weights are uniform, as wide as the number of units says; biases are 0 |
//! | six kernels of tiled products in f64 | many steps in one kernel, or four kernels on tensor cores, in f32 |
//!
//! Sources: Kumar and Giaquinto, "Parallelizing denoising autoencoders"; Vincent, Larochelle,
//! Lajoie, Bengio and Manzagol, "Stacked denoising autoencoders", JMLR 11, 2010.
//!
//! ```
//! use candle::{Device::Cpu, Tensor};
//! use chandlery::dae::{Dae, DaeConfig};
//! use chandlery::{Decode, Encode};
//! # fn main() -> candle::Result<()> {
//! // Three visible units, two hidden; all biases 0.
//! let weight = Tensor::new(&[[0f32, 0., 0.], [2., -1., 0.]], &Cpu)?;
//! let zeros = |n| Tensor::zeros(n, candle::DType::F32, &Cpu);
//! let dae = Dae::from_tensors(DaeConfig::new(3, 2), weight, zeros(2)?, zeros(3)?, None)?;
//! // 2·1 − 1·2 = 0: both hidden units are one half, and the second gives back (1, −½, 0) before the sigmoid.
//! let rows = Tensor::new(&[[1f32, 2., 5.]], &Cpu)?;
//! assert_eq!(dae.encode(&rows)?.to_vec2::<f32>()?, [[0.5, 0.5]]);
//! let z = dae.reconstruct(&rows)?.to_vec2::<f32>()?;
//! assert!((z[0][0] - 1. / (1. + (-1f32).exp())).abs() < 1e-6 && z[0][2] == 0.5);
//! # Ok(()) }
//! ```
mod config;
pub mod reference;
pub mod stacked;
mod step;
#[cfg(test)]
mod tests;
pub mod train;
pub mod views;

pub use config::{DaeConfig, DaeTrainConfig};
pub use stacked::{StackedDae, StackedDaeConfig, StackedDaeTrainer};
pub use train::{DaeTrainer, Metrics};
pub use views::views;

use crate::check::{batch_of, room_for, values_of};
use crate::model::{Decode, Encode, Model};
use crate::pretrained::ModelType;
use crate::rbm::softplus;
use candle::{DType, Device, Module, Result, Tensor};
use candle_nn::{Linear, VarBuilder};
use chandlery_ops::Philox;
use chandlery_ops::arrays::elementwise::{add, contiguous, mul, sqr, sqrt, sub};

/// A denoising autoencoder; see the [module](self) for the equations.
#[derive(Debug, Clone)]
pub struct Dae {
    config: DaeConfig,
    weight: Tensor,
    bias: Tensor,
    visible_bias: Tensor,
    decoder_weight: Option<Tensor>,
}

/// How far reconstructions are from what they should be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ReconstructionError {
    /// Square root of the mean over all values of `(x − z)²`.
    pub rmse: f64,
    /// Mean over rows of `‖x − z‖²`: the loss that Kumar and Giaquinto differentiate in section 2.2
    /// and report as RMSE in section 5.2.
    pub squared_error: f64,
    /// Mean over rows of `‖x − z‖₂`: their equation 1.
    pub distance: f64,
    /// Mean over rows of the cross-entropy in nats, summed over the values; of sigmoid outputs
    /// only.
    pub cross_entropy: Option<f64>,
}

impl Dae {
    /// A new autoencoder with biases 0, in f32. Weights are uniform, as wide as
    /// [`Feedforward::init`] makes them; a decoder of its own begins as the transpose of the
    /// encoder.
    ///
    /// [`Feedforward::init`]: crate::feedforward::Feedforward::init
    ///
    /// # Errors
    /// When `config` is out of range or the device is out of memory.
    pub fn init(config: DaeConfig, philox: Philox, device: &Device) -> Result<Self> {
        config.validate()?;
        let (n_visible, n_hidden) = (config.n_visible, config.n_hidden);
        let values = if config.tied { 6. } else { 12. } * n_visible as f64 * n_hidden as f64;
        room_for("Dae", &format!("{n_visible} visible and {n_hidden} hidden units"), values, device)?;
        let weight = config.encoder().random_weight(philox, device)?;
        let decoder_weight = if config.tied { None } else { Some(contiguous(&weight.t()?)?) };
        let zeros = |n: usize| Tensor::zeros(n, DType::F32, device);
        Ok(Self { weight, bias: zeros(n_hidden)?, visible_bias: zeros(n_visible)?, decoder_weight, config })
    }

    /// An autoencoder from its parameters; shapes as in the [module](self), one float type.
    ///
    /// # Errors
    /// When `config` is out of range, a shape differs, or `decoder_weight` is not given exactly
    /// when weights are not tied.
    pub fn from_tensors(
        config: DaeConfig,
        weight: Tensor,
        bias: Tensor,
        visible_bias: Tensor,
        decoder_weight: Option<Tensor>,
    ) -> Result<Self> {
        config.validate()?;
        let (n_visible, n_hidden) = (config.n_visible, config.n_hidden);
        let expect = |name: &str, t: &Tensor, want: &[usize]| match t.dims() == want {
            true => Ok(()),
            false => candle::bail!("Dae: {name} must have shape {want:?}, got {:?}", t.dims()),
        };
        expect("weight", &weight, &[n_hidden, n_visible])?;
        expect("bias", &bias, &[n_hidden])?;
        expect("visible_bias", &visible_bias, &[n_visible])?;
        match (&decoder_weight, config.tied) {
            (Some(decoder), false) => expect("decoder_weight", decoder, &[n_visible, n_hidden])?,
            (None, true) => {}
            (given, tied) => candle::bail!(
                "Dae: decoder_weight must be given exactly when weights are not tied, got {} with tied = {tied}",
                if given.is_some() { "one" } else { "none" }
            ),
        }
        Ok(Self { config, weight, bias, visible_bias, decoder_weight })
    }

    /// What goes into the outputs, `[batch, n_visible]`.
    fn output_input(&self, y: &Tensor) -> Result<Tensor> {
        let y = values_of("Dae", "y", y, self.config.n_hidden, self.weight.dtype())?;
        let product = match &self.decoder_weight {
            Some(decoder) => y.matmul(&decoder.t()?)?,
            None => y.matmul(&self.weight)?,
        };
        add(&product, &self.visible_bias)
    }

    /// How far what comes back of corrupted prepared rows is from the rows `x` without corruption,
    /// `[batch, n_visible]` each.
    ///
    /// # Errors
    /// When shapes differ or there are no rows.
    pub fn errors_prepared(&self, corrupted: &Tensor, x: &Tensor) -> Result<ReconstructionError> {
        const OP: &str = "Dae::errors_prepared";
        let batch = batch_of(OP, "x", x, self.config.n_visible)?;
        if batch == 0 || corrupted.dims() != x.dims() {
            candle::bail!(
                "{OP}: corrupted must have the shape of x and at least one row, got {:?} for {:?}",
                corrupted.dims(),
                x.dims()
            )
        }
        let x = &x.to_dtype(self.weight.dtype())?;
        let input = self.output_input(&self.encode_prepared(corrupted)?)?;
        let mean = |t: Tensor| t.to_dtype(DType::F64)?.mean_all()?.to_scalar::<f64>();
        let squares = sqr(&sub(&self.config.output.of(&input)?, x)?)?.to_dtype(DType::F64)?;
        let of_rows = squares.sum(1)?;
        let rmse = mean(squares)?.sqrt();
        let (squared_error, distance) = (mean(of_rows.clone())?, mean(sqrt(&of_rows)?)?);
        let cross_entropy = match self.config.output {
            crate::feedforward::Activation::Sigmoid => {
                Some(mean(sub(&softplus(&input)?, &mul(x, &input)?)?)? * self.config.n_visible as f64)
            }
            _ => None,
        };
        Ok(ReconstructionError { rmse, squared_error, distance, cross_entropy })
    }

    /// What the autoencoder is.
    pub fn config(&self) -> &DaeConfig {
        &self.config
    }

    /// The weights, `[n_hidden, n_visible]`: a row is what a hidden unit looks for.
    pub fn weight(&self) -> &Tensor {
        &self.weight
    }

    /// The hidden biases, `[n_hidden]`.
    pub fn bias(&self) -> &Tensor {
        &self.bias
    }

    /// The biases of the outputs, `[n_visible]`.
    pub fn visible_bias(&self) -> &Tensor {
        &self.visible_bias
    }

    /// The weights of the decoder, `[n_visible, n_hidden]`, where they are not tied.
    pub fn decoder_weight(&self) -> Option<&Tensor> {
        self.decoder_weight.as_ref()
    }

    /// The encoder as candle knows it, without its activation.
    pub fn encoder(&self) -> Linear {
        Linear::new(self.weight.clone(), Some(self.bias.clone()))
    }
}

impl Model for Dae {
    type Config = DaeConfig;
    const TYPE: ModelType = ModelType::Dae;

    /// `weight`, `bias`, `visible_bias` and, for untied weights, `decoder_weight`, which a new
    /// `VarMap` draws like `weight`.
    fn build(config: DaeConfig, vb: &VarBuilder) -> Result<Self> {
        let (n_visible, n_hidden, drawn) = (config.n_visible, config.n_hidden, config.encoder().drawn());
        let decoder_weight = match config.tied {
            true => None,
            false => Some(vb.get_with_hints((n_visible, n_hidden), "decoder_weight", drawn)?),
        };
        Ok(Self {
            weight: vb.get_with_hints((n_hidden, n_visible), "weight", drawn)?,
            bias: vb.get(n_hidden, "bias")?,
            visible_bias: vb.get(n_visible, "visible_bias")?,
            decoder_weight,
            config,
        })
    }

    fn init(config: DaeConfig, philox: Philox, device: &Device) -> Result<Self> {
        Self::init(config, philox, device)
    }

    fn config(&self) -> &DaeConfig {
        &self.config
    }

    fn parameter(&self) -> &Tensor {
        &self.weight
    }

    fn tensors(&self) -> Vec<(String, Tensor)> {
        let named = [("weight", &self.weight), ("bias", &self.bias), ("visible_bias", &self.visible_bias)];
        let all = named.into_iter().chain(self.decoder_weight.as_ref().map(|t| ("decoder_weight", t)));
        all.map(|(name, t)| (name.to_owned(), t.clone())).collect()
    }
}

/// `y`, the hidden units, `[batch, n_hidden]`.
impl Encode for Dae {
    type Codes = Tensor;

    fn encode_prepared(&self, x: &Tensor) -> Result<Tensor> {
        let x = values_of("Dae", "x", x, self.config.n_visible, self.weight.dtype())?;
        self.config.hidden.of(&add(&x.matmul(&self.weight.t()?)?, &self.bias)?)
    }
}

/// `z` of hidden units `y`. What noise the rows have does not come back.
impl Decode for Dae {
    fn decode(&self, y: &Tensor) -> Result<Tensor> {
        self.config.output.of(&self.output_input(y)?)
    }
}

/// The hidden units of raw rows, `[batch, n_inputs]`: differentiable, so an autoencoder can be a
/// layer of a larger network.
impl Module for Dae {
    fn forward(&self, rows: &Tensor) -> Result<Tensor> {
        self.encode(rows)
    }
}

impl crate::layers::Layer for Dae {
    const STACK_TYPE: ModelType = ModelType::StackedDae;

    fn n_weights(config: &DaeConfig) -> usize {
        config.n_visible * config.n_hidden
    }

    fn reading(config: &DaeConfig, preparation: &chandlery_datasets::Preparation) -> DaeConfig {
        let config = DaeConfig { preparation: preparation.clone(), ..config.clone() };
        let image = config.image.filter(|image| image.n_features() == config.n_inputs());
        DaeConfig { image, ..config }
    }
}
