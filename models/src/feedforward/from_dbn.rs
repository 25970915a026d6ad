//! Conversion of a stack of RBMs to a network that can be fine-tuned as a whole.
use super::{Activation, Feedforward, FeedforwardConfig, LayerConfig, Task};
use crate::dbn::Dbn;
use crate::rbm::{Rbm, VisibleUnit};
use candle::{Result, Tensor};

impl Feedforward {
    /// A classifier: the hidden means of every layer of `dbn`, with `n_classes` logits on top.
    ///
    /// Logit weights start at zero, so that the first steps change them and not the features below.
    ///
    /// # Errors
    /// When there are fewer than 2 classes or the device is out of memory.
    pub fn from_dbn(dbn: &Dbn, n_classes: usize) -> Result<Self> {
        let mut layers = encoder(dbn)?;
        let (top, _) = &layers[layers.len() - 1];
        let zeros = |shape: &[usize]| Tensor::zeros(shape, top.dtype(), top.device());
        let logits = (zeros(&[n_classes, top.dim(0)?])?, zeros(&[n_classes])?);
        layers.push(logits);
        let config = config(dbn, Task::Classify, &layers, [Activation::Identity]);
        Self::from_tensors(config, layers)
    }

    /// An autoencoder: the layers of `dbn` up to its top layer, which is the code, followed by their transposes in reverse order.
    ///
    /// It reconstructs as [`Dbn::reconstruct`] does until the first training step unties the weights.
    ///
    /// # Errors
    /// When the device is out of memory.
    pub fn unroll(dbn: &Dbn) -> Result<Self> {
        let mut layers = encoder(dbn)?;
        let task = Task::Autoencode { encoder_layers: layers.len() };
        for rbm in dbn.layers().iter().rev() {
            layers.push((rbm.weight().t()?.contiguous()?, rbm.visible_bias().clone()));
        }
        // Going down, a layer's units are those of the layer below: hidden ones of an RBM, or the input's.
        let hidden = dbn.config().layers.iter().rev().skip(1).map(|layer| layer.hidden.into());
        let down = hidden.chain(dbn.config().layers.first().map(|layer| layer.visible.into()));
        let config = config(dbn, task, &layers, down);
        Self::from_tensors(config, layers)
    }
}

/// Weights and biases on the way up.
fn encoder(dbn: &Dbn) -> Result<Vec<(Tensor, Tensor)>> {
    let layer = |rbm: &Rbm| {
        // Hidden units read v/σ²: learned deviations go into the weights.
        let weight = match rbm.log_variance() {
            Some(log_variance) => rbm.weight().broadcast_mul(&log_variance.neg()?.exp()?)?,
            None => rbm.weight().clone(),
        };
        Ok((weight, rbm.bias().clone()))
    };
    dbn.layers().iter().map(layer).collect()
}

fn config(
    dbn: &Dbn,
    task: Task,
    layers: &[(Tensor, Tensor)],
    above: impl IntoIterator<Item = Activation>,
) -> FeedforwardConfig {
    let up = dbn.config().layers.iter().map(|layer| layer.hidden.into());
    let layer = |((weight, _), activation): (&(Tensor, Tensor), Activation)| LayerConfig {
        n_inputs: weight.dims()[1],
        n_outputs: weight.dims()[0],
        activation,
    };
    FeedforwardConfig {
        task,
        layers: layers.iter().zip(up.chain(above)).map(layer).collect(),
        visible: match dbn.config().layers.first().is_some_and(|layer| layer.visible.is_gaussian()) {
            true => VisibleUnit::Gaussian,
            false => VisibleUnit::Bernoulli,
        },
        preparation: dbn.config().preparation.clone(),
        image: dbn.config().image,
    }
}
