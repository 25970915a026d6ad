//! Which inputs the outputs of a layer see, and which of its weights they share.
use crate::conv_rbm::ConvGrid;
use crate::patch_rbm::PatchGrid;
use crate::rbm::{HiddenUnit, VisibleUnit};
use candle::{Device, Result, Tensor};
use chandlery_ops::Philox;
use chandlery_ops::arrays::elementwise::{add, relu, sigmoid};
use chandlery_ops::core::uniform;
use chandlery_ops::images::{PatchDirection, patch_product};
use serde::{Deserialize, Serialize};

/// Which inputs the outputs of a layer see, and which weights they share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Connections {
    /// Each output sees all inputs.
    #[default]
    Dense,
    /// Outputs see overlapping windows of the inputs, as hidden units of a
    /// [`patch_rbm`](crate::patch_rbm) do.
    Patches(PatchGrid),
    /// The way back: inputs are hidden units of patches, and an output sees those whose windows it
    /// lies in.
    FromPatches(PatchGrid),
    /// Outputs are maps of filters, as hidden units of a [`conv_rbm`](crate::conv_rbm) are. Pooled
    /// maps are sigmoid layers: an output is the probability that a unit of its block is on.
    Filters(ConvGrid),
    /// The way back: inputs are maps, whose entries add their filters where they lie. Each place of
    /// a pooled block has an equal share of the block's value.
    FromFilters(ConvGrid),
}

impl Connections {
    /// Whether it is [`Connections::Dense`].
    pub fn is_dense(&self) -> bool {
        *self == Self::Dense
    }
}

/// What a layer makes of `x = h Wᵀ + b`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Activation {
    /// `x`
    #[default]
    Identity,
    /// `1 / (1 + e⁻ˣ)`
    Sigmoid,
    /// `max(0, x)`
    Relu,
    /// `tanh x`
    Tanh,
}

impl From<Activation> for chandlery_ops::layers::Activation {
    fn from(activation: Activation) -> Self {
        match activation {
            Activation::Identity => Self::Identity,
            Activation::Sigmoid => Self::Sigmoid,
            Activation::Relu => Self::Relu,
            Activation::Tanh => Self::Tanh,
        }
    }
}

impl Activation {
    /// `f(x)`, elementwise and differentiable.
    pub(crate) fn of(self, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::Identity => Ok(x.clone()),
            Self::Sigmoid => sigmoid(x),
            Self::Relu => relu(x),
            Self::Tanh => x.tanh(),
        }
    }
}

/// The mean of a hidden unit as a function of its input.
impl From<HiddenUnit> for Activation {
    fn from(unit: HiddenUnit) -> Self {
        match unit {
            HiddenUnit::Bernoulli => Self::Sigmoid,
            HiddenUnit::Rectified => Self::Relu,
            HiddenUnit::Gaussian => Self::Identity,
        }
    }
}

/// The mean of a visible unit as a function of its input.
impl From<VisibleUnit> for Activation {
    fn from(unit: VisibleUnit) -> Self {
        if unit.is_gaussian() { Self::Identity } else { Self::Sigmoid }
    }
}

/// One layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerConfig {
    /// Values that it reads, at least 1.
    pub n_inputs: usize,
    /// Values that it makes, at least 1.
    pub n_outputs: usize,
    /// What it makes of them.
    pub activation: Activation,
    /// Which inputs an output sees. Default: all.
    #[serde(default, skip_serializing_if = "Connections::is_dense")]
    pub connections: Connections,
}

impl LayerConfig {
    /// Random weights of the [shape](Self::weight_shape) of the layer, f32: uniform in
    /// `±g √(6 / (n_inputs + n_outputs))`, with `g` 4 for sigmoid layers, √2 for rectified ones and
    /// 1 for others, so that signals neither fade nor grow on their way (Glorot and Bengio,
    /// "Understanding the difficulty of training deep feedforward neural networks", AISTATS 2010;
    /// He et al. 2015). Where not all see all, the sizes are the mean numbers of inputs of an
    /// output, and of outputs of an input.
    pub(crate) fn random_weight(&self, philox: Philox, device: &Device) -> Result<Tensor> {
        let limit = self.limit();
        uniform(self.weight_shape(), device, philox)?.affine(2. * limit, -limit)
    }

    /// The first `n` of these weights, on the CPU.
    pub(crate) fn first_weights(&self, n: usize, philox: Philox) -> Result<Tensor> {
        let limit = self.limit();
        uniform(n, &Device::Cpu, philox)?.affine(2. * limit, -limit)
    }

    /// The distribution of these weights, for a variable that candle draws.
    pub(crate) fn drawn(&self) -> candle_nn::Init {
        let limit = self.limit();
        candle_nn::Init::Uniform { lo: -limit, up: limit }
    }

    /// The largest magnitude of a random weight.
    fn limit(&self) -> f64 {
        let gain = match self.activation {
            Activation::Sigmoid => 4.,
            Activation::Relu => 2f64.sqrt(),
            Activation::Identity | Activation::Tanh => 1.,
        };
        let (read, made) = self.fans();
        gain * (6. / (read + made)).sqrt()
    }
}

impl LayerConfig {
    /// The shape of the weights: `[n_outputs, n_inputs]`,
    /// `[n_patches, hidden units of a patch, values of a window]`, or
    /// `[n_filters, values of a filter]`.
    pub fn weight_shape(&self) -> Vec<usize> {
        let of_patches = |grid: &PatchGrid, hidden: usize| {
            vec![grid.n_patches(), hidden / grid.n_patches(), grid.window_len()]
        };
        match &self.connections {
            Connections::Dense => vec![self.n_outputs, self.n_inputs],
            Connections::Patches(grid) => of_patches(grid, self.n_outputs),
            Connections::FromPatches(grid) => of_patches(grid, self.n_inputs),
            Connections::Filters(grid) | Connections::FromFilters(grid) => {
                vec![grid.n_filters, grid.shape().filter_len()]
            }
        }
    }

    /// Weights.
    pub fn n_weights(&self) -> usize {
        self.weight_shape().iter().product()
    }

    /// Biases: one for each output, or for each map, or, on the way back from maps, for each
    /// channel.
    pub fn n_biases(&self) -> usize {
        match &self.connections {
            Connections::Dense | Connections::Patches(_) | Connections::FromPatches(_) => self.n_outputs,
            Connections::Filters(grid) => grid.n_filters,
            Connections::FromFilters(grid) => grid.channels(),
        }
    }

    /// Mean number of inputs of an output, and of outputs of an input; of a pooled output the
    /// inputs of one of its units.
    pub(super) fn fans(&self) -> (f64, f64) {
        let (read, made) = (self.n_inputs as f64, self.n_outputs as f64);
        match &self.connections {
            Connections::Dense => (read, made),
            Connections::Patches(grid) => {
                let len = grid.window_len() as f64;
                (len, len * made / read)
            }
            Connections::FromPatches(grid) => {
                let len = grid.window_len() as f64;
                (len * read / made, len)
            }
            Connections::Filters(grid) => {
                let len = grid.shape().filter_len() as f64;
                (len, len * grid.n_units() as f64 / read)
            }
            Connections::FromFilters(grid) => {
                let len = grid.shape().filter_len() as f64;
                (len * grid.n_units() as f64 / made, len)
            }
        }
    }

    /// Refuses sizes that are not those of the grid, and what pooled units cannot be; `place` is
    /// where the layer lies: whether it is the lowest, and whether it is the topmost.
    pub(super) fn check_connections(&self, op: &str, i: usize, place: (bool, bool)) -> Result<()> {
        let (lowest, topmost) = place;
        let named = format!("{op}: layers[{i}]");
        let (planes, read, made) = match &self.connections {
            Connections::Dense => return Ok(()),
            Connections::Patches(grid) => {
                grid.validate(&named)?;
                (None, Some(grid.n_values()), None)
            }
            Connections::FromPatches(grid) => {
                grid.validate(&named)?;
                (None, None, Some(grid.n_values()))
            }
            Connections::Filters(grid) => {
                grid.validate(&named)?;
                (Some((grid.planes, lowest, "lowest")), Some(grid.n_values()), Some(grid.n_pooled()))
            }
            Connections::FromFilters(grid) => {
                grid.validate(&named)?;
                (Some((grid.planes, topmost, "topmost")), Some(grid.n_pooled()), Some(grid.n_values()))
            }
        };
        for (name, got, want) in [("n_inputs", self.n_inputs, read), ("n_outputs", self.n_outputs, made)] {
            if want.is_some_and(|want| want != got) {
                candle::bail!(
                    "{named}.{name} must be the {} of its grid, got {got}",
                    want.unwrap_or_default()
                )
            }
        }
        let hidden = match &self.connections {
            Connections::Patches(grid) => Some((grid.n_patches(), self.n_outputs, "n_outputs")),
            Connections::FromPatches(grid) => Some((grid.n_patches(), self.n_inputs, "n_inputs")),
            _ => None,
        };
        if let Some((n_patches, got, name)) = hidden
            && !got.is_multiple_of(n_patches)
        {
            candle::bail!("{named}.{name} must be a multiple of the {n_patches} patches, got {got}")
        }
        if let Some((planes, false, which)) = planes
            && planes > 1
        {
            candle::bail!("{named}: a grid with {planes} planes must be that of the {which} layer")
        }
        match &self.connections {
            Connections::Filters(grid) if grid.pool > 1 && self.activation != Activation::Sigmoid => {
                candle::bail!(
                    "{named}.activation must be sigmoid where maps are pooled, got {:?}",
                    self.activation
                )
            }
            _ => Ok(()),
        }
    }

    /// What the layer makes of `h`, `[batch, n_inputs]`: `[batch, n_outputs]`. Differentiable.
    pub(super) fn forward(&self, h: &Tensor, weight: &Tensor, bias: &Tensor) -> Result<Tensor> {
        let x = match &self.connections {
            Connections::Dense => add(&h.matmul(&weight.t()?)?, bias)?,
            Connections::Patches(grid) => add(&patch_product(h, weight, grid, PatchDirection::Up)?, bias)?,
            Connections::FromPatches(grid) => {
                add(&patch_product(h, weight, grid, PatchDirection::Down)?, bias)?
            }
            Connections::Filters(grid) => {
                let x = grid.maps_input(h, weight, bias)?;
                if grid.pool > 1 {
                    return grid.pooled_mean(&x);
                }
                x
            }
            Connections::FromFilters(grid) => grid.visible_input(&grid.spread(h)?, weight, bias)?,
        };
        self.activation.of(&x)
    }
}
