//! Which inputs the outputs of a layer see, and which of its weights they share.
use super::{Activation, LayerConfig};
use crate::conv_rbm::ConvGrid;
use crate::patch_rbm::PatchGrid;
use candle::{Result, Tensor};
use chandlery_ops::images::{PatchDirection, patch_product};
use serde::{Deserialize, Serialize};

/// Which inputs the outputs of a layer see, and which weights they share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Connections {
    /// Each output sees all inputs.
    #[default]
    Dense,
    /// Outputs see overlapping windows of the inputs, as hidden units of a [`patch_rbm`](crate::patch_rbm) do.
    Patches(PatchGrid),
    /// The way back: inputs are hidden units of patches, and an output sees those whose windows it lies in.
    FromPatches(PatchGrid),
    /// Outputs are maps of filters, as hidden units of a [`conv_rbm`](crate::conv_rbm) are. Pooled maps are sigmoid layers: an output is
    /// the probability that a unit of its block is on.
    Filters(ConvGrid),
    /// The way back: inputs are maps, whose entries add their filters where they lie. Each place of a pooled block has an equal share of
    /// the block's value.
    FromFilters(ConvGrid),
}

impl Connections {
    /// Whether it is [`Connections::Dense`].
    pub fn is_dense(&self) -> bool {
        *self == Self::Dense
    }
}

impl LayerConfig {
    /// The shape of the weights: `[n_outputs, n_inputs]`, `[n_patches, hidden units of a patch, values of a window]`, or
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

    /// Biases: one for each output, or for each map, or, on the way back from maps, for each channel.
    pub fn n_biases(&self) -> usize {
        match &self.connections {
            Connections::Dense | Connections::Patches(_) | Connections::FromPatches(_) => self.n_outputs,
            Connections::Filters(grid) => grid.n_filters,
            Connections::FromFilters(grid) => grid.channels(),
        }
    }

    /// Mean number of inputs of an output, and of outputs of an input; of a pooled output the inputs of one of its units.
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

    /// Refuses sizes that are not those of the grid, and what pooled units cannot be; `place` is where the layer lies: whether it is the
    /// lowest, and whether it is the topmost.
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
            Connections::Dense => h.matmul(&weight.t()?)?.broadcast_add(bias)?,
            Connections::Patches(grid) => {
                patch_product(h, weight, grid, PatchDirection::Up)?.broadcast_add(bias)?
            }
            Connections::FromPatches(grid) => {
                patch_product(h, weight, grid, PatchDirection::Down)?.broadcast_add(bias)?
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
