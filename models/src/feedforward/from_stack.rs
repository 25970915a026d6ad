//! Conversion of a stack of layers that were trained one by one to a network that can be fine-tuned as a whole.
use super::{Activation, Feedforward, FeedforwardConfig, LayerConfig, Task};
use crate::dae::StackedDae;
use crate::dbn::Dbn;
use crate::rbm::{Rbm, VisibleUnit};
use candle::{Result, Tensor};
use chandlery_datasets::{ImageShape, Preparation};

/// The way up through a stack: what a network on top of it is made of.
struct Encoder {
    /// Weights, `[n_outputs, n_inputs]`, and biases, lowest first.
    layers: Vec<(Tensor, Tensor)>,
    activations: Vec<Activation>,
    visible: VisibleUnit,
    preparation: Preparation,
    image: Option<ImageShape>,
}

impl Feedforward {
    /// A classifier: the hidden means of every layer of `dbn`, with `n_classes` logits on top.
    ///
    /// Logit weights start at zero, so that the first steps change them and not the features below.
    ///
    /// # Errors
    /// When there are fewer than 2 classes or the device is out of memory.
    pub fn from_dbn(dbn: &Dbn, n_classes: usize) -> Result<Self> {
        Encoder::of_dbn(dbn)?.classifier(n_classes)
    }

    /// A classifier: the hidden units of every layer of `stack`, with `n_classes` logits on top, whose weights start at zero.
    ///
    /// # Errors
    /// When there are fewer than 2 classes or the device is out of memory.
    pub fn from_stacked_dae(stack: &StackedDae, n_classes: usize) -> Result<Self> {
        Encoder::of_stacked_dae(stack).classifier(n_classes)
    }

    /// An autoencoder: the layers of `stack` up to its top layer, which is the code, and their decoders in reverse order.
    ///
    /// It reconstructs as [`StackedDae::reconstruct`] does until the first training step, which unties weights that were tied.
    ///
    /// # Errors
    /// When the device is out of memory.
    pub fn unroll_stacked_dae(stack: &StackedDae) -> Result<Self> {
        let task = Task::Autoencode { encoder_layers: stack.layers().len() };
        let down = stack.layers().iter().rev().map(|dae| {
            let weight = match dae.decoder_weight() {
                Some(decoder) => decoder.clone(),
                None => dae.weight().t()?.contiguous()?,
            };
            Ok((weight, dae.visible_bias().clone(), dae.config().output))
        });
        Encoder::of_stacked_dae(stack).with(down.collect::<Result<Vec<_>>>()?, task)
    }

    /// An autoencoder: the layers of `dbn` up to its top layer, which is the code, followed by their transposes in reverse order.
    ///
    /// It reconstructs as [`Dbn::reconstruct`] does until the first training step unties the weights.
    ///
    /// # Errors
    /// When the device is out of memory.
    pub fn unroll(dbn: &Dbn) -> Result<Self> {
        let encoder = Encoder::of_dbn(dbn)?;
        let task = Task::Autoencode { encoder_layers: encoder.layers.len() };
        // Going down, a layer's units are those of the layer below: hidden ones of an RBM, or the input's.
        let hidden = dbn.config().layers.iter().rev().skip(1).map(|layer| layer.hidden.into());
        let units = hidden.chain(dbn.config().layers.first().map(|layer| layer.visible.into()));
        let down = dbn
            .layers()
            .iter()
            .rev()
            .zip(units)
            .map(|(rbm, unit)| Ok((rbm.weight().t()?.contiguous()?, rbm.visible_bias().clone(), unit)));
        encoder.with(down.collect::<Result<Vec<_>>>()?, task)
    }
}

impl Encoder {
    fn of_dbn(dbn: &Dbn) -> Result<Self> {
        let layer = |rbm: &Rbm| {
            rbm.must_be_dense("Feedforward::from_dbn")?;
            // Hidden units read v/σ²: learned deviations go into the weights.
            let weight = match rbm.log_variance() {
                Some(log_variance) => rbm.weight().broadcast_mul(&log_variance.neg()?.exp()?)?,
                None => rbm.weight().clone(),
            };
            Ok((weight, rbm.bias().clone()))
        };
        let config = dbn.config();
        Ok(Self {
            layers: dbn.layers().iter().map(layer).collect::<Result<_>>()?,
            activations: config.layers.iter().map(|layer| layer.hidden.into()).collect(),
            visible: match config.layers.first().is_some_and(|layer| layer.visible.is_gaussian()) {
                true => VisibleUnit::Gaussian,
                false => VisibleUnit::Bernoulli,
            },
            preparation: config.preparation.clone(),
            image: config.image,
        })
    }

    fn of_stacked_dae(stack: &StackedDae) -> Self {
        let config = stack.config();
        Self {
            layers: stack.layers().iter().map(|dae| (dae.weight().clone(), dae.bias().clone())).collect(),
            activations: config.layers.iter().map(|layer| layer.hidden).collect(),
            visible: match config.layers.first().is_some_and(|layer| layer.output == Activation::Sigmoid) {
                true => VisibleUnit::Bernoulli,
                false => VisibleUnit::Gaussian,
            },
            preparation: config.preparation.clone(),
            image: config.image,
        }
    }

    /// A network with `n_classes` logits on top.
    fn classifier(self, n_classes: usize) -> Result<Feedforward> {
        let Some((top, _)) = self.layers.last() else {
            candle::bail!("Feedforward: a stack must have at least one layer, got none")
        };
        let zeros = |shape: &[usize]| Tensor::zeros(shape, top.dtype(), top.device());
        let logits = (zeros(&[n_classes, top.dim(0)?])?, zeros(&[n_classes])?, Activation::Identity);
        self.with(vec![logits], Task::Classify)
    }

    /// A network with more layers on top: weight, bias and activation of each.
    fn with(self, above: Vec<(Tensor, Tensor, Activation)>, task: Task) -> Result<Feedforward> {
        let (mut layers, mut activations) = (self.layers, self.activations);
        for (weight, bias, activation) in above {
            layers.push((weight, bias));
            activations.push(activation);
        }
        let layer = |((weight, _), activation): (&(Tensor, Tensor), Activation)| LayerConfig {
            n_inputs: weight.dims()[1],
            n_outputs: weight.dims()[0],
            activation,
        };
        let config = FeedforwardConfig {
            task,
            layers: layers.iter().zip(activations).map(layer).collect(),
            visible: self.visible,
            preparation: self.preparation,
            image: self.image,
        };
        Feedforward::from_tensors(config, layers)
    }
}
