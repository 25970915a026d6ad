//! Where the parameters of a network lie in a flat buffer, without and with units that stay at 0.
use super::{FeedforwardConfig, LayerConfig, Task};
use crate::flat::{self, Places};
use crate::padding::{Width, copy_common_};
use candle::{Result, Tensor};

/// Where a layer's parameters lie in the flat buffer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub weight: usize,
    pub bias: usize,
}

/// Where each layer's parameters lie, the entries of all weights, and those of everything.
pub(super) fn places(layers: &[LayerConfig]) -> (Vec<Place>, usize, usize) {
    let mut at = Places::default();
    let weights: Vec<usize> = layers.iter().map(|layer| at.take(layer.n_weights())).collect();
    let n_weights = at.len();
    let place = |(layer, weight): (&LayerConfig, usize)| Place { weight, bias: at.take(layer.n_biases()) };
    let places = layers.iter().zip(weights).map(place).collect();
    (places, n_weights, at.len())
}

/// The layers with units that stay at 0 on both sides of what lies between dense ones: rows too, and
/// reconstructions, but not classes.
pub(super) fn with_units(network: &FeedforwardConfig) -> Vec<LayerConfig> {
    let is_dense = |layer: Option<&LayerConfig>| layer.is_some_and(|layer| layer.connections.is_dense());
    let (layers, classifies) = (&network.layers, network.task == Task::Classify);
    let (lowest, top) = (is_dense(layers.first()), is_dense(layers.last()));
    // Reconstructions are held against rows of their width.
    let (rows, outputs) = (lowest && (top || classifies), lowest && top && !classifies);
    let width = |n: usize, may: bool| if may { Width::padded(n).all } else { n };
    let between = |i: usize| is_dense(layers.get(i)) && is_dense(layers.get(i + 1));
    let of = |(i, layer): (usize, &LayerConfig)| LayerConfig {
        n_inputs: width(layer.n_inputs, if i == 0 { rows } else { between(i - 1) }),
        n_outputs: width(layer.n_outputs, if i + 1 == layers.len() { outputs } else { between(i) }),
        ..*layer
    };
    layers.iter().enumerate().map(of).collect()
}

/// Copies what belongs to the units that both networks have, between flat buffers of theirs.
pub(super) fn copy_params_(
    (to_of, to): (&[LayerConfig], &Tensor),
    (from_of, from): (&[LayerConfig], &Tensor),
) -> Result<()> {
    let ((to_places, ..), (from_places, ..)) = (places(to_of), places(from_of));
    for plane in 0..to.dim(0)? {
        let (to, from) = (to.get(plane)?, from.get(plane)?);
        let layers = to_of.iter().zip(&to_places).zip(from_of.iter().zip(&from_places));
        for ((to_layer, to_place), (from_layer, from_place)) in layers {
            let weight =
                |t: &Tensor, of: &LayerConfig, at: &Place| flat::view(t, at.weight, &of.weight_shape());
            let bias = |t: &Tensor, of: &LayerConfig, at: &Place| flat::view(t, at.bias, &[of.n_biases()]);
            copy_common_(&weight(&to, to_layer, to_place)?, &weight(&from, from_layer, from_place)?)?;
            copy_common_(&bias(&to, to_layer, to_place)?, &bias(&from, from_layer, from_place)?)?;
        }
    }
    Ok(())
}
