//! Feed-forward network: layers on top of each other, made from a deep belief network and
//! fine-tuned as a whole.
//!
//! ```text
//! h⁰ = x,   hˡ = f_l(hˡ⁻¹ Wˡᵀ + bˡ)                 forward
//! classifier    p(y | x) = softmax(hᴸ)              the layers of the network below, and logits on top
//! autoencoder   code = h^E,  reconstruction = hᴸ    the layers up, and their transposes down again
//! ```
//!
//! | symbol | field | shape |
//! |---|---|---|
//! | `x` | argument | `[batch, n_inputs]` |
//! | `Wˡ` | `layers.{l−1}.weight` | `[n_outputs, n_inputs]` of layer `l` |
//! | `bˡ` | `layers.{l−1}.bias` | `[n_outputs]` |
//! | `E` | `encoder_layers` of [`Task::Autoencode`] | |
//!
//! Layers may see windows of an image, or be maps of filters: then [`Connections`] say which
//! entries of `Wˡ` are 0 and which are the same, and the other ones are stored as an RBM stores
//! them.
//!
//! Pre-training puts the weights near a good solution, backpropagation finds it:
//! [`Feedforward::from_dbn`] adds logits to a stack of RBMs, [`Feedforward::unroll`] turns it into
//! an encoder and a decoder, whose weights are tied at the start and free after it.
//! [`FeedforwardTrainer`] does the rest.
//!
//! Sources: Hinton and Salakhutdinov, "Reducing the dimensionality of data with neural networks",
//! Science 313, 2006; Hinton, Osindero and Teh, "A fast learning algorithm for deep belief nets",
//! Neural Computation 18, 2006.
//!
//! ```
//! use candle::{Device::Cpu, Module, Tensor};
//! use chandlery::{Decode, Encode, MinibatchTrainer, Trainer};
//! use chandlery::dbn::{Dbn, DbnConfig};
//! use chandlery::feedforward::{FeedforwardTrainConfig, Feedforward, FeedforwardTrainer};
//! use chandlery_ops::Philox;
//! # fn main() -> candle::Result<()> {
//! let dbn = Dbn::init(DbnConfig::new(&[4, 8, 2]), Philox::new(1, 0), &Cpu)?;
//! let autoencoder = Feedforward::unroll(&dbn)?; // 4-8-2-8-4
//! let rows = Tensor::new(&[[1f32, 0., 1., 0.], [0., 1., 0., 1.]], &Cpu)?;
//! // Before any step it does what the network it was made from does.
//! let difference = (autoencoder.forward(&rows)? - dbn.reconstruct(&rows)?)?.abs()?.sum_all()?;
//! assert!(difference.to_scalar::<f32>()? < 1e-6);
//! let training = FeedforwardTrainConfig { batch: 2, learning_rate: 0.02.into(), ..FeedforwardTrainConfig::default() };
//! let mut trainer = FeedforwardTrainer::new(&autoencoder, training, Philox::new(1, 1))?;
//! for _ in 0..300 {
//!     trainer.step(&rows, None)?;
//! }
//! assert!(trainer.model()?.reconstruction_error(&rows)? < 0.01);
//! assert_eq!(trainer.model()?.encode(&rows)?.dims(), [2, 2]);
//! # Ok(()) }
//! ```
mod config;
mod connections;
mod from_stack;
mod layer_step;
mod places;
mod step;
#[cfg(test)]
mod tests;
pub mod train;

pub use config::{FeedforwardConfig, FeedforwardTrainConfig, Optimizer, ReconstructionLoss, Task};
pub use connections::{Activation, Connections, LayerConfig};
pub use train::{FeedforwardTrainer, Metrics};

use crate::check::{room_for, values_of};
use crate::model::{Decode, Encode, FLOATS, Layered, Model, WIDE};
use crate::pretrained::ModelType;
use candle::{D, DType, Device, Module, Result, Tensor};
use candle_nn::{Linear, VarBuilder};
use chandlery_ops::Philox;

/// A stack of layers; see the [module](self) for the equations.
#[derive(Debug, Clone)]
pub struct Feedforward {
    config: FeedforwardConfig,
    /// Weight and bias of each layer, lowest first.
    layers: Vec<(Tensor, Tensor)>,
}

impl Feedforward {
    /// A network from its weights, of the [shapes](LayerConfig::weight_shape) of the configuration,
    /// and biases, lowest layer first.
    ///
    /// # Errors
    /// When `config` is out of range or a shape differs.
    pub fn from_tensors(config: FeedforwardConfig, layers: Vec<(Tensor, Tensor)>) -> Result<Self> {
        config.validate()?;
        let fits = |(layer, (weight, bias)): (&LayerConfig, &(Tensor, Tensor))| {
            weight.dims() == layer.weight_shape() && bias.dims() == [layer.n_biases()]
        };
        if layers.len() != config.layers.len() || !config.layers.iter().zip(&layers).all(fits) {
            let got: Vec<_> = layers.iter().map(|(weight, bias)| (weight.dims(), bias.dims())).collect();
            candle::bail!("Feedforward: layers must have the shapes of {:?}, got {got:?}", config.layers)
        }
        Ok(Self { config, layers })
    }

    /// A new network with random weights, biases 0, in f32: what pre-training is compared with.
    ///
    /// Weights are uniform in `±g √(6 / (n_inputs + n_outputs))`, with `g` 4 for sigmoid layers, √2
    /// for rectified ones and 1 for others, so that signals neither fade nor grow on their way
    /// (Glorot and Bengio, "Understanding the difficulty of training deep feedforward neural
    /// networks", AISTATS 2010; He et al. 2015). Of patches and filters the sizes are the mean
    /// numbers of inputs that an output sees, and of outputs that see an input.
    ///
    /// # Errors
    /// When `config` is out of range or the device is out of memory.
    pub fn init(config: FeedforwardConfig, philox: Philox, device: &Device) -> Result<Self> {
        config.validate()?;
        let weights = |layer: &LayerConfig| layer.weight_shape().iter().map(|&n| n as f64).product::<f64>();
        // Weights, their gradients and two moments, twice over for what is copied.
        let values = 8. * config.layers.iter().map(weights).sum::<f64>();
        room_for("Feedforward", &format!("{} layers of these sizes", config.layers.len()), values, device)?;
        let mut at = philox;
        let layer = |layer: &LayerConfig| {
            let weight = layer.random_weight(at, device)?;
            at = at.advanced(layer.n_weights());
            Ok((weight, Tensor::zeros(layer.n_biases(), DType::F32, device)?))
        };
        let layers = config.layers.iter().map(layer).collect::<Result<_>>()?;
        Ok(Self { config, layers })
    }

    fn through(&self, x: &Tensor, layers: std::ops::Range<usize>) -> Result<Tensor> {
        let mut parts = self.layers[layers.clone()].iter().zip(&self.config.layers[layers]);
        parts.try_fold(x.clone(), |h, ((weight, bias), config)| config.forward(&h, weight, bias))
    }

    /// The most probable class of each raw row, `[batch]` u32; of equals the lowest.
    ///
    /// # Errors
    /// When `rows` are not `[batch, n_inputs]`.
    pub fn predict(&self, rows: &Tensor) -> Result<Tensor> {
        self.forward(rows)?.argmax(D::Minus1)
    }

    /// Raw rows whose most probable class is not the label; `labels` is `[batch]` u32.
    ///
    /// # Errors
    /// When shapes do not fit.
    pub fn errors(&self, rows: &Tensor, labels: &Tensor) -> Result<usize> {
        let wrong = self.predict(rows)?.ne(labels)?.to_dtype(DType::U32)?.sum_all()?;
        Ok(wrong.to_scalar::<u32>()? as usize)
    }

    /// The layers as candle knows them, lowest first; their activations are in the configuration.
    ///
    /// # Errors
    /// When a layer has patches or filters.
    pub fn linears(&self) -> Result<Vec<Linear>> {
        let linear = |(i, (weight, bias)): (usize, &(Tensor, Tensor))| match self.config.layers[i].connections
        {
            Connections::Dense => Ok(Linear::new(weight.clone(), Some(bias.clone()))),
            other => candle::bail!("Feedforward::linears: layers[{i}] must be dense, got {other:?}"),
        };
        self.layers.iter().enumerate().map(linear).collect()
    }

    /// What the network is.
    pub fn config(&self) -> &FeedforwardConfig {
        &self.config
    }

    /// Weight, of the [shape](LayerConfig::weight_shape) of the configuration, and bias of each
    /// layer, lowest first.
    pub fn layers(&self) -> &[(Tensor, Tensor)] {
        &self.layers
    }
}

impl Model for Feedforward {
    type Config = FeedforwardConfig;
    const TYPE: ModelType = ModelType::Feedforward;

    fn dtypes(config: &FeedforwardConfig) -> &'static [DType] {
        if config.layers.iter().all(|layer| layer.connections.is_dense()) { &FLOATS } else { &WIDE }
    }

    /// `layers.N.weight` and `layers.N.bias` for each layer.
    fn build(config: FeedforwardConfig, vb: &VarBuilder) -> Result<Self> {
        let layer = |(i, layer): (usize, &LayerConfig)| {
            let vb = vb.pp("layers").pp(i);
            let weight = vb.get_with_hints(layer.weight_shape(), "weight", layer.drawn())?;
            Ok((weight, vb.get(layer.n_biases(), "bias")?))
        };
        let layers = config.layers.iter().enumerate().map(layer).collect::<Result<_>>()?;
        Ok(Self { config, layers })
    }

    fn init(config: FeedforwardConfig, philox: Philox, device: &Device) -> Result<Self> {
        Self::init(config, philox, device)
    }

    fn config(&self) -> &FeedforwardConfig {
        &self.config
    }

    fn parameter(&self) -> &Tensor {
        // A network has a layer: every constructor validates its configuration.
        &self.layers[0].0
    }

    fn tensors(&self) -> Vec<(String, Tensor)> {
        let layer = |(i, (weight, bias)): (usize, &(Tensor, Tensor))| {
            [(format!("layers.{i}.weight"), weight.clone()), (format!("layers.{i}.bias"), bias.clone())]
        };
        self.layers.iter().enumerate().flat_map(layer).collect()
    }
}

/// The code: what the last encoder layer makes, or for a classifier its logits.
impl Encode for Feedforward {
    type Codes = Tensor;

    fn encode_prepared(&self, x: &Tensor) -> Result<Tensor> {
        let x = values_of("Feedforward", "x", x, self.config.layers[0].n_inputs, self.dtype())?;
        self.through(&x, 0..self.config.encoder_layers())
    }
}

/// Of an autoencoder; a classifier refuses.
impl Decode for Feedforward {
    fn decode(&self, code: &Tensor) -> Result<Tensor> {
        let Task::Autoencode { encoder_layers } = self.config.task else {
            candle::bail!("Feedforward::decode: the network must be an autoencoder, got a classifier")
        };
        let n = self.config.layers[encoder_layers].n_inputs;
        let code = values_of("Feedforward::decode", "code", code, n, self.dtype())?;
        self.through(&code, encoder_layers..self.layers.len())
    }
}

impl Layered for Feedforward {
    fn n_layers(&self) -> usize {
        self.layers.len()
    }

    fn layer_forward(&self, layer: usize, h: &Tensor) -> Result<Tensor> {
        if layer >= self.layers.len() {
            candle::bail!("Feedforward: there is no layer {layer}")
        }
        self.through(h, layer..layer + 1)
    }
}

/// What the last layer makes of raw rows, logits or a reconstruction: differentiable, so a network
/// can be part of a larger one.
impl Module for Feedforward {
    fn forward(&self, rows: &Tensor) -> Result<Tensor> {
        self.features(rows, self.layers.len())
    }
}
