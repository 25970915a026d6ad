//! Denoising autoencoders on top of each other, each learning from the hidden units of the one below.
//!
//! ```text
//! h⁰ = x                                       the prepared rows
//! hˡ = f(hˡ⁻¹ Wˡᵀ + bˡ) of autoencoder l       features, bottom up
//! ```
//!
//! | symbol | field | shape |
//! |---|---|---|
//! | `hˡ` | `features(rows, l)` | `[batch, n_hidden of layer l]` |
//! | autoencoder `l` | `layers()[l − 1]` | see [`Dae`] |
//!
//! [`Feedforward::from_stacked_dae`](crate::feedforward::Feedforward::from_stacked_dae) puts a classifier on top, to fine-tune the
//! whole.
//!
//! Source: Vincent, Larochelle, Lajoie, Bengio and Manzagol, "Stacked denoising autoencoders", JMLR 11, 2010, section 3.5.
//!
//! ```
//! use candle::{Device::Cpu, Module, Tensor};
//! use chandlery::Trainer;
//! use chandlery::dae::{DaeTrainConfig, StackedDae, StackedDaeConfig, StackedDaeTrainer};
//! use chandlery_ops::Philox;
//! # fn main() -> candle::Result<()> {
//! let rows = Tensor::new(&[[1f32, 0., 1., 0.], [0., 1., 0., 1.]], &Cpu)?;
//! let stack = StackedDae::init(StackedDaeConfig::new(&[4, 8, 3]), Philox::new(1, 0), &Cpu)?;
//! let training = DaeTrainConfig { batch: 2, ..DaeTrainConfig::default() };
//! let mut trainer = StackedDaeTrainer::new(&stack, vec![training.clone(), training], Philox::new(1, 1))?;
//! loop {
//!     for _ in 0..500 {
//!         trainer.step(&rows, None)?;
//!     }
//!     if !trainer.next_layer()? {
//!         break;
//!     }
//! }
//! let stack = trainer.model()?;
//! assert_eq!(stack.forward(&rows)?.dims(), [2, 3]);
//! // It has learned its two rows by heart.
//! let off = (stack.reconstruct(&rows)? - &rows)?.abs()?.flatten_all()?.max(0)?;
//! assert!(off.to_scalar::<f32>()? < 0.3);
//! # Ok(()) }
//! ```
mod train;

pub use train::StackedDaeTrainer;

use super::{Dae, DaeConfig};
use crate::feedforward::Activation;
use crate::layers;
use crate::prepare::{check_inputs, n_inputs, prepared};
use crate::pretrained::{self, ModelType};
use candle::{DType, Device, Module, Result, Tensor};
use candle_nn::VarBuilder;
use chandlery_datasets::{ImageShape, Preparation};
use chandlery_ops::Philox;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// What a [`StackedDae`] is, the content of `config.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StackedDaeConfig {
    /// The autoencoders, lowest first; each reads as many values as the one below has hidden units.
    pub layers: Vec<DaeConfig>,
    /// What is done to raw rows before the lowest reads them, in place of the preparations of `layers`. Default: floats as they are,
    /// bytes over 255.
    #[serde(default)]
    pub preparation: Preparation,
    /// How the values of a raw row make an image, so that it can be drawn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageShape>,
}

impl StackedDaeConfig {
    /// Tied sigmoid layers between these sizes, the input's first.
    pub fn new(sizes: &[usize]) -> Self {
        let layers = sizes.windows(2).map(|pair| DaeConfig::new(pair[0], pair[1])).collect();
        Self { layers, preparation: Preparation::default(), image: None }
    }

    /// # Errors
    /// When there is no layer, one is out of range, sizes do not fit on each other, outputs cannot reach what the layer below makes, the preparation gives rows of another width, or the
    /// image is not of the size of raw rows.
    pub fn validate(&self) -> Result<()> {
        const OP: &str = "StackedDaeConfig";
        let Some(first) = self.layers.first() else {
            candle::bail!("{OP}: layers must hold at least one autoencoder, got none")
        };
        self.layers.iter().try_for_each(DaeConfig::validate)?;
        for (i, (below, above)) in self.layers.iter().zip(&self.layers[1..]).enumerate() {
            if below.n_hidden != above.n_visible {
                candle::bail!(
                    "{OP}: layers[{}].n_visible must be layers[{i}].n_hidden = {}, got {}",
                    i + 1,
                    below.n_hidden,
                    above.n_visible
                )
            }
            if above.output == Activation::Sigmoid && below.hidden != Activation::Sigmoid {
                candle::bail!(
                    "{OP}: layers[{}].output must not be sigmoid, since layers[{i}].hidden is {:?}, whose values leave 0 to 1; use identity or \
                     tanh with the squared error",
                    i + 1,
                    below.hidden
                )
            }
        }
        check_inputs(OP, &self.preparation, first.n_visible, self.image).map(drop)
    }

    /// Values in a raw row; those that the lowest layer reads where the preparation does not fit.
    pub fn n_inputs(&self) -> usize {
        n_inputs(&self.preparation, self.layers.first().map_or(0, |layer| layer.n_visible))
    }
}

/// Denoising autoencoders on top of each other; see the [module](self) for the equations.
#[derive(Debug, Clone)]
pub struct StackedDae {
    config: StackedDaeConfig,
    layers: Vec<Dae>,
}

impl StackedDae {
    /// Loads `layers.0`, `layers.1`, … from under `vb`, each as [`Dae::new`] does.
    ///
    /// # Errors
    /// When `config` is out of range, or `vb` lacks a tensor or has another shape.
    pub fn new(config: StackedDaeConfig, vb: VarBuilder) -> Result<Self> {
        config.validate()?;
        let layers = layers::load(&config.layers, &vb)?;
        Ok(Self { config, layers })
    }

    /// A new stack with random weights, in f32; each layer draws after the one below.
    ///
    /// # Errors
    /// When `config` is out of range or the device is out of memory.
    pub fn init(config: StackedDaeConfig, philox: Philox, device: &Device) -> Result<Self> {
        config.validate()?;
        let layers = layers::random(&config.layers, philox, device)?;
        Ok(Self { config, layers })
    }

    /// A stack from its autoencoders, lowest first.
    ///
    /// # Errors
    /// When `config` is out of range or is not that of the autoencoders.
    pub fn from_layers(config: StackedDaeConfig, layers: Vec<Dae>) -> Result<Self> {
        config.validate()?;
        if !config.layers.iter().eq(layers.iter().map(Dae::config)) {
            candle::bail!(
                "StackedDae::from_layers: config.layers must be the configurations of the {} autoencoders",
                layers.len()
            )
        }
        Ok(Self { config, layers })
    }

    /// What the lowest layer reads of raw rows: `[batch, n_inputs]` to `[batch, n_visible]`.
    ///
    /// # Errors
    /// When `rows` have another shape or device than the preparation needs.
    pub fn prepare(&self, rows: &Tensor) -> Result<Tensor> {
        let dtype = self.layers.first().map_or(DType::F32, |layer| layer.weight().dtype());
        prepared("StackedDae", &self.config.preparation, rows, dtype)
    }

    /// The hidden units of layer `layer` (1 is the lowest) of raw rows, `[batch, n_inputs]` to `[batch, n_hidden]` of it; layer 0 is what
    /// the lowest reads.
    ///
    /// # Errors
    /// When `rows` have another shape or there is no such layer.
    pub fn features(&self, rows: &Tensor, layer: usize) -> Result<Tensor> {
        if layer > self.layers.len() {
            candle::bail!("StackedDae::features: layer must be 0 to {}, got {layer}", self.layers.len())
        }
        self.layers[..layer].iter().try_fold(self.prepare(rows)?, |h, dae| dae.encode(&h))
    }

    /// Raw rows up through all layers and down again, `[batch, n_visible]`, as the lowest layer reads rows.
    ///
    /// # Errors
    /// When `rows` are not `[batch, n_inputs]`.
    pub fn reconstruct(&self, rows: &Tensor) -> Result<Tensor> {
        self.reconstruct_prepared(&self.prepare(rows)?)
    }

    /// The same of rows as the lowest layer reads them, for instance corrupted ones: `[batch, n_visible]` to the same.
    ///
    /// # Errors
    /// When `x` is not `[batch, n_visible]`.
    pub fn reconstruct_prepared(&self, x: &Tensor) -> Result<Tensor> {
        let top = self.layers.iter().try_fold(x.clone(), |h, dae| dae.encode(&h))?;
        self.layers.iter().rev().try_fold(top, |h, dae| dae.decode(&h))
    }

    /// What the stack is.
    pub fn config(&self) -> &StackedDaeConfig {
        &self.config
    }

    /// The autoencoders, lowest first. None of them knows the stack's preparation, which stands in place of their own: give the lowest
    /// [prepared](Self::prepare) rows, by [`Dae::encode`], and not raw ones by `forward`.
    pub fn layers(&self) -> &[Dae] {
        &self.layers
    }

    /// Loads a stack from a folder that [`save_pretrained`](Self::save_pretrained) wrote, or by its id (`owner/name`) from the Hugging
    /// Face hub through its cache. Weights are f32.
    ///
    /// # Errors
    /// When there is neither, a file is missing or does not fit the configuration, or it is another model; the message names the file.
    pub fn from_pretrained(folder_or_id: &str, device: &Device) -> Result<Self> {
        Self::from_pretrained_as(folder_or_id, DType::F32, device)
    }

    /// [`from_pretrained`](Self::from_pretrained) with weights in the float type `dtype`, in which the model then computes: f64 weights stay
    /// f64.
    ///
    /// # Errors
    /// As [`from_pretrained`](Self::from_pretrained), and when `dtype` is no float type.
    pub fn from_pretrained_as(folder_or_id: &str, dtype: DType, device: &Device) -> Result<Self> {
        pretrained::load(ModelType::StackedDae, folder_or_id, dtype, device, Self::new)
    }

    /// Writes `config.json` and `model.safetensors` to a folder, which is made if need be. Each file appears whole.
    ///
    /// `layers.N.weight` and `layers.N.bias` are a [`candle_nn::Linear`] and a `torch.nn.Linear` as they stand.
    ///
    /// # Errors
    /// When the folder is not writable.
    pub fn save_pretrained(&self, folder: &Path) -> Result<()> {
        pretrained::save(
            ModelType::StackedDae,
            folder,
            &self.config,
            &self.config.preparation,
            layers::parameters(&self.layers),
        )
    }
}

/// The hidden units of the top layer of raw rows: differentiable, so a stack can be part of a larger network.
impl Module for StackedDae {
    fn forward(&self, rows: &Tensor) -> Result<Tensor> {
        self.features(rows, self.layers.len())
    }
}
