//! Models of layers on top of each other, each reading what the one below makes:
//! [`Dbn`](crate::dbn::Dbn) and [`StackedDae`](crate::dae::StackedDae).
pub use crate::layers::StackedConfig;
use crate::layers::{self, Layer, reading};
use crate::model::{Decode, Encode, FLOATS, Layered, Model, ModelConfig};
use crate::prepare::check_inputs;
use crate::pretrained::ModelType;
use candle::{DType, Device, Module, Result, Tensor};
use candle_nn::VarBuilder;
use chandlery_datasets::{ImageShape, Preparation};
use chandlery_ops::Philox;
use serde::{Deserialize, Serialize};

/// What a [`LayerStack`] is, the content of `config.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StackConfig<C> {
    /// The layers, lowest first; each reads as many values as the one below has hidden units.
    pub layers: Vec<C>,
    /// What is done to raw rows before the lowest layer reads them, in place of the preparations of
    /// `layers`. Default: floats as they are, bytes over 255.
    #[serde(default)]
    pub preparation: Preparation,
    /// How the values of a raw row make an image, so that it can be drawn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageShape>,
}

impl<C: StackedConfig> StackConfig<C> {
    /// Layers of defaults between these sizes, the input's first.
    pub fn new(sizes: &[usize]) -> Self {
        let layers = sizes.windows(2).map(|pair| C::of_sizes(pair[0], pair[1])).collect();
        Self { layers, preparation: Preparation::default(), image: None }
    }

    /// # Errors
    /// When there is no layer, one is out of range, sizes do not fit on each other, a layer cannot
    /// read what the one below makes, the preparation gives rows of another width, or the image is
    /// not of the size of raw rows.
    pub fn validate(&self) -> Result<()> {
        let op = C::STACK;
        let Some(first) = self.layers.first() else {
            candle::bail!("{op}: layers must hold at least one {}, got none", C::LAYER)
        };
        self.layers.iter().try_for_each(C::validate)?;
        for (i, (below, above)) in self.layers.iter().zip(&self.layers[1..]).enumerate() {
            if below.n_made() != above.n_read() {
                candle::bail!(
                    "{op}: layers[{}].n_visible must be layers[{i}].n_hidden = {}, got {}",
                    i + 1,
                    below.n_made(),
                    above.n_read()
                )
            }
            above.check_above(below, i)?;
        }
        check_inputs(op, &self.preparation, first.n_read(), self.image).map(drop)
    }

    /// Values in a raw row; those that the lowest layer reads where the preparation does not fit.
    pub fn n_inputs(&self) -> usize {
        ModelConfig::n_inputs(self)
    }
}

impl<C: StackedConfig> ModelConfig for StackConfig<C> {
    fn preparation(&self) -> &Preparation {
        &self.preparation
    }

    fn preparation_mut(&mut self) -> &mut Preparation {
        &mut self.preparation
    }

    fn n_read(&self) -> usize {
        self.layers.first().map_or(0, C::n_read)
    }

    fn validate(&self) -> Result<()> {
        Self::validate(self)
    }
}

/// Layers on top of each other, each reading what the one below makes.
#[derive(Debug, Clone)]
pub struct LayerStack<L: Layer> {
    config: StackConfig<L::Config>,
    layers: Vec<L>,
}

impl<L: Layer> LayerStack<L> {
    /// A new stack with random weights, in f32; each layer draws after the one below.
    ///
    /// # Errors
    /// When `config` is out of range or the device is out of memory.
    pub fn init(config: StackConfig<L::Config>, philox: Philox, device: &Device) -> Result<Self> {
        config.validate()?;
        let layers = layers::random(&config.layers, philox, device)?;
        Self::of(config, layers)
    }

    /// A stack from its layers, lowest first, whose preparations are not looked at.
    ///
    /// # Errors
    /// When `config` is out of range or is not that of the layers.
    pub fn from_layers(config: StackConfig<L::Config>, layers: Vec<L>) -> Result<Self> {
        config.validate()?;
        let none = Preparation::default();
        let bare = |config: &L::Config| L::reading(config, &none);
        if !config.layers.iter().map(bare).eq(layers.iter().map(|layer| bare(layer.config()))) {
            candle::bail!(
                "{}::from_layers: config.layers must be the configurations of the {} layers",
                L::STACK_TYPE.rust_name(),
                layers.len()
            )
        }
        Self::of(config, layers)
    }

    /// The lowest layer prepares raw rows as the stack does, and the others read what those below
    /// make.
    fn of(config: StackConfig<L::Config>, layers: Vec<L>) -> Result<Self> {
        let none = Preparation::default();
        let of_layer = |(i, layer): (usize, &L)| match if i == 0 { &config.preparation } else { &none } {
            own if own == layer.preparation() => Ok(layer.clone()),
            own => reading(layer, own),
        };
        let layers = layers.iter().enumerate().map(of_layer).collect::<Result<_>>()?;
        Ok(Self { config, layers })
    }

    /// What the stack is.
    pub fn config(&self) -> &StackConfig<L::Config> {
        &self.config
    }

    /// The layers, lowest first. The lowest has the stack's preparation as its own.
    pub fn layers(&self) -> &[L] {
        &self.layers
    }
}

impl<L: Layer> Model for LayerStack<L> {
    type Config = StackConfig<L::Config>;
    const TYPE: ModelType = L::STACK_TYPE;

    /// Those of the layer that can have the fewest.
    fn dtypes(config: &Self::Config) -> &'static [DType] {
        config.layers.iter().map(L::dtypes).min_by_key(|dtypes| dtypes.len()).unwrap_or(&FLOATS)
    }

    fn build(config: Self::Config, vb: &VarBuilder) -> Result<Self> {
        let layers = layers::load(&config.layers, vb)?;
        Self::of(config, layers)
    }

    fn init(config: Self::Config, philox: Philox, device: &Device) -> Result<Self> {
        Self::init(config, philox, device)
    }

    fn config(&self) -> &Self::Config {
        &self.config
    }

    fn parameter(&self) -> &Tensor {
        // A stack has a layer: every constructor validates its configuration.
        self.layers[0].parameter()
    }

    fn tensors(&self) -> Vec<(String, Tensor)> {
        layers::parameters(&self.layers).collect()
    }
}

impl<L: Layer> Encode for LayerStack<L> {
    type Codes = Tensor;

    fn encode_prepared(&self, x: &Tensor) -> Result<Tensor> {
        self.layers.iter().try_fold(x.clone(), |h, layer| layer.encode_prepared(&h))
    }
}

impl<L: Layer> Decode for LayerStack<L> {
    fn decode(&self, h: &Tensor) -> Result<Tensor> {
        self.layers.iter().rev().try_fold(h.clone(), |h, layer| layer.decode(&h))
    }
}

impl<L: Layer> Layered for LayerStack<L> {
    fn n_layers(&self) -> usize {
        self.layers.len()
    }

    fn layer_forward(&self, layer: usize, h: &Tensor) -> Result<Tensor> {
        match self.layers.get(layer) {
            Some(layer) => layer.encode_prepared(h),
            None => candle::bail!("{}: there is no layer {layer}", L::STACK_TYPE.rust_name()),
        }
    }
}

/// The hidden units of the top layer of raw rows: differentiable, so a stack can be part of a
/// larger network.
impl<L: Layer> Module for LayerStack<L> {
    fn forward(&self, rows: &Tensor) -> Result<Tensor> {
        self.encode(rows)
    }
}
