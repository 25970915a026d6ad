//! Sparse autoencoder: features that are rarely active, and from which the input can be given back.
//!
//! ```text
//! a = sigmoid(x Wᵀ + b)                                    features
//! h = f(a W'ᵀ + c)                                         reconstruction; f is sigmoid or the identity
//! ρ̂ = 1/m Σ_rows a                                         mean activation of each feature
//! KL(ρ‖ρ̂) = ρ ln ρ/ρ̂ + (1 − ρ) ln (1 − ρ)/(1 − ρ̂)
//! J = 1/m Σ_rows ½ ‖h − x‖² + λ/2 (Σ W² + Σ W'²) + β Σ_features KL(ρ‖ρ̂)
//! ```
//!
//! | symbol | field | shape |
//! |---|---|---|
//! | `x` | argument, prepared | `[batch, n_visible]` |
//! | `W` | `weight` | `[n_hidden, n_visible]` |
//! | `b` | `bias` | `[n_hidden]` |
//! | `W'` | `decoder_weight` | `[n_visible, n_hidden]` |
//! | `c` | `visible_bias` | `[n_visible]` |
//! | `λ β ρ` | [`CostConfig`] | |
//!
//! The gradient of `J` is in [`cost`], the training over all rows in [`fit`], and the
//! training by minibatches in [`train`]. [`serial`] is the same cost in plain loops.
//!
//! [`sae`] has those of today, with many latents of which few are active.
//!
//! Sources: Ng, "Sparse autoencoder", CS294A lecture notes, 2011; Klaus and Welles, "Optimizing
//! propagation and sparsity enforcement for a fully connected scalable feedforward sparse
//! autoencoder", Boston University, 2014, whose passes over the rows these are: the mean activation
//! first, then forward and back.
//!
//! Departures from Klaus and Welles:
//!
//! - Equation 5 as printed lacks the half of the squared error that equation 6 is the gradient of; `J`
//!   has it, as in Ng's notes.
//! - Equations 10 and 11 sum gradients over the rows; here they are means, as those of `J` are.
//! - A row at a time is all that their programs compute; here all rows of a chunk are one matrix, so
//!   that a pass is five matrix products. The features of the first pass are kept for the second where
//!   they fit, which saves a sixth of the arithmetic.
//! - Their GPU program has a block for each row of `W` and, in another form, all of `W` in each block.
//!   Neither is here: a block for each row reads a weight from memory for every two FLOP, and a block
//!   has no room for a `W` of more than a few hundred units. `bench paper klaus` gives the numbers.
//! - The first weights are uniform, Ng's, unless [`Start::Gaussian`] is chosen, which is theirs.
//! - They call the L-BFGS of another program; here it is [`optim`](crate::optim), as are conjugate
//!   gradient and batch gradient descent, which they name and do not run.
//! - An activation that rounds to 0 or 1 has a finite cost here, see [`cost`].
//!
//! ```
//! use candle::{Device::Cpu, Tensor};
//! use chandlery::sparse_autoencoder::{SparseAutoencoder, SparseAutoencoderConfig};
//! use chandlery::{Decode, Encode};
//! # fn main() -> candle::Result<()> {
//! let zeros = |n: usize| Tensor::zeros(n, candle::DType::F32, &Cpu);
//! // Two values, one feature: the difference of the values.
//! let weight = Tensor::new(&[[1f32, -1.]], &Cpu)?;
//! let decoder = Tensor::new(&[[2f32], [-2.]], &Cpu)?;
//! let config = SparseAutoencoderConfig::new(2, 1);
//! let model = SparseAutoencoder::from_tensors(config, weight, zeros(1)?, decoder, zeros(2)?)?;
//! let rows = Tensor::new(&[[0.5f32, 0.5]], &Cpu)?;
//! assert_eq!(model.encode(&rows)?.to_vec2::<f32>()?, [[0.5]]); // sigmoid(0)
//! let back = model.reconstruct(&rows)?.to_vec2::<f32>()?; // sigmoid(1) and sigmoid(−1)
//! assert!((back[0][0] - 0.731_059).abs() < 1e-6 && (back[0][1] - 0.268_941).abs() < 1e-6);
//! # Ok(()) }
//! ```
mod config;
pub mod cost;
pub mod fit;
mod lines;
mod pass;
mod rounded_pass;
mod rows;
pub mod sae;
pub mod serial;
pub mod train;

pub use config::{CostConfig, Decoder, START_STDEV, SparseAutoencoderConfig, Start};
pub use cost::{Cost, CostParts};
pub use fit::{FullBatchOptimizer, SparseAutoencoderLbfgsTrainConfig, SparseAutoencoderLbfgsTrainer};
pub use train::{Metrics, SparseAutoencoderTrainConfig, SparseAutoencoderTrainer};

use crate::check::{room_for, values_of};
use crate::model::{Decode, Encode, Model};
use crate::pretrained::ModelType;
use candle::{DType, Device, Module, Result, Tensor};
use candle_nn::{Init, VarBuilder};
use chandlery_ops::Philox;
use chandlery_ops::arrays::elementwise::{add, at_least, contiguous, div, sigmoid, sqr, sqrt};
use chandlery_ops::core::{normal, uniform};

/// A sparse autoencoder; see the [module](self) for the equations.
#[derive(Debug, Clone)]
pub struct SparseAutoencoder {
    config: SparseAutoencoderConfig,
    weight: Tensor,
    bias: Tensor,
    decoder_weight: Tensor,
    visible_bias: Tensor,
}

impl SparseAutoencoder {
    /// A new autoencoder in f32: weights as `config.start` says, biases 0.
    ///
    /// # Errors
    /// When `config` is out of range or the device is out of memory.
    pub fn init(config: SparseAutoencoderConfig, philox: Philox, device: &Device) -> Result<Self> {
        config.validate()?;
        let (n_visible, n_hidden) = (config.n_visible, config.n_hidden);
        // Parameters, gradients, and the history of L-BFGS.
        let values = 60. * n_visible as f64 * n_hidden as f64;
        let what = format!("{n_visible} visible and {n_hidden} hidden units");
        room_for("SparseAutoencoder", &what, values, device)?;
        let limit = config.limit();
        let weights = |shape: (usize, usize), at| match config.start {
            Start::Uniform => uniform(shape, device, at)?.affine(2. * limit, -limit),
            Start::Gaussian => normal(shape, device, at)? * START_STDEV,
        };
        Ok(Self {
            weight: weights((n_hidden, n_visible), philox)?,
            bias: Tensor::zeros(n_hidden, DType::F32, device)?,
            decoder_weight: weights((n_visible, n_hidden), philox.advanced(config.n_weights()))?,
            visible_bias: Tensor::zeros(n_visible, DType::F32, device)?,
            config,
        })
    }

    /// An autoencoder from its parameters; shapes as in the [module](self), one float type.
    ///
    /// # Errors
    /// When `config` is out of range or a shape differs.
    pub fn from_tensors(
        config: SparseAutoencoderConfig,
        weight: Tensor,
        bias: Tensor,
        decoder_weight: Tensor,
        visible_bias: Tensor,
    ) -> Result<Self> {
        config.validate()?;
        let (v, h) = (config.n_visible, config.n_hidden);
        let named = [
            ("weight", &weight, vec![h, v]),
            ("bias", &bias, vec![h]),
            ("decoder_weight", &decoder_weight, vec![v, h]),
            ("visible_bias", &visible_bias, vec![v]),
        ];
        if let Some((name, t, want)) = named.iter().find(|(_, t, want)| t.dims() != &want[..]) {
            candle::bail!("SparseAutoencoder: {name} must have shape {want:?}, got {:?}", t.dims())
        }
        Ok(Self { config, weight, bias, decoder_weight, visible_bias })
    }

    /// The autoencoder whose parameters are one vector, in the order of [`flat`](Self::flat);
    /// shares its memory.
    ///
    /// # Errors
    /// When `config` is out of range or `theta` has another length.
    pub fn from_flat(config: SparseAutoencoderConfig, theta: &Tensor) -> Result<Self> {
        let [weight, decoder_weight, bias, visible_bias] = pass::views(&config, theta)?;
        Self::from_tensors(config, weight, bias, decoder_weight, visible_bias)
    }

    /// All parameters as one vector, `[weight, decoder_weight, bias, visible_bias]`, each row by
    /// row; a copy.
    ///
    /// # Errors
    /// When memory is short.
    pub fn flat(&self) -> Result<Tensor> {
        let parts = [&self.weight, &self.decoder_weight, &self.bias, &self.visible_bias];
        let parts = parts.into_iter().map(|t| contiguous(t)?.flatten_all()).collect::<Result<Vec<_>>>()?;
        Tensor::cat(&parts, 0)
    }

    /// The inputs of norm 1 that activate each feature most, `[n_hidden, n_visible]`: the rows of
    /// `weight` over their norms.
    ///
    /// # Errors
    /// When the device is out of memory.
    pub fn maximal_inputs(&self) -> Result<Tensor> {
        let norms = sqrt(&sqr(&self.weight)?.sum_keepdim(1)?)?;
        div(&self.weight, &at_least(&norms, f32::MIN_POSITIVE.into())?)
    }

    /// What the autoencoder is.
    pub fn config(&self) -> &SparseAutoencoderConfig {
        &self.config
    }

    /// The weights of the features, `[n_hidden, n_visible]`.
    pub fn weight(&self) -> &Tensor {
        &self.weight
    }
}

impl Model for SparseAutoencoder {
    type Config = SparseAutoencoderConfig;
    const TYPE: ModelType = ModelType::SparseAutoencoder;

    /// `weight`, `bias`, `decoder_weight` and `visible_bias`.
    fn build(config: SparseAutoencoderConfig, vb: &VarBuilder) -> Result<Self> {
        let (n_visible, n_hidden, limit) = (config.n_visible, config.n_hidden, config.limit());
        let drawn = match config.start {
            Start::Uniform => Init::Uniform { lo: -limit, up: limit },
            Start::Gaussian => Init::Randn { mean: 0., stdev: START_STDEV },
        };
        Ok(Self {
            weight: vb.get_with_hints((n_hidden, n_visible), "weight", drawn)?,
            bias: vb.get(n_hidden, "bias")?,
            decoder_weight: vb.get_with_hints((n_visible, n_hidden), "decoder_weight", drawn)?,
            visible_bias: vb.get(n_visible, "visible_bias")?,
            config,
        })
    }

    fn init(config: SparseAutoencoderConfig, philox: Philox, device: &Device) -> Result<Self> {
        Self::init(config, philox, device)
    }

    fn config(&self) -> &SparseAutoencoderConfig {
        &self.config
    }

    fn parameter(&self) -> &Tensor {
        &self.weight
    }

    fn tensors(&self) -> Vec<(String, Tensor)> {
        let named = [
            ("weight", &self.weight),
            ("bias", &self.bias),
            ("decoder_weight", &self.decoder_weight),
            ("visible_bias", &self.visible_bias),
        ];
        named.map(|(name, t)| (name.to_owned(), t.clone())).into()
    }
}

/// Features, `[batch, n_hidden]`, in (0, 1).
impl Encode for SparseAutoencoder {
    type Codes = Tensor;

    fn encode_prepared(&self, x: &Tensor) -> Result<Tensor> {
        let x = values_of("SparseAutoencoder", "x", x, self.config.n_visible, self.weight.dtype())?;
        sigmoid(&add(&x.matmul(&self.weight.t()?)?, &self.bias)?)
    }
}

impl Decode for SparseAutoencoder {
    fn decode(&self, features: &Tensor) -> Result<Tensor> {
        let features =
            values_of("SparseAutoencoder", "features", features, self.config.n_hidden, self.weight.dtype())?;
        let z = add(&features.matmul(&self.decoder_weight.t()?)?, &self.visible_bias)?;
        match self.config.decoder {
            Decoder::Sigmoid => sigmoid(&z),
            Decoder::Linear => Ok(z),
        }
    }
}

/// The features of raw rows, `[batch, n_inputs]` to `[batch, n_hidden]`: differentiable, so that it
/// can be a layer of a network.
impl Module for SparseAutoencoder {
    fn forward(&self, rows: &Tensor) -> Result<Tensor> {
        self.encode(rows)
    }
}
