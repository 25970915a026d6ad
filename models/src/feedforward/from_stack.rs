//! Conversion of a stack of layers that were trained one by one to a network that can be fine-tuned
//! as a whole.
use super::{Activation, Connections, Feedforward, FeedforwardConfig, LayerConfig, Task};
use crate::dae::{Dae, StackedDae};
use crate::dbn::Dbn;
use crate::patch_rbm::PatchGrid;
use crate::rbm::{Rbm, RbmConfig, RbmConnections, VisibleUnit};
use candle::{Result, Tensor};
use chandlery_datasets::{ImageShape, Preparation};

/// The way up through a stack: what a network on top of it is made of.
struct Encoder {
    /// Layers with their weights and biases, lowest first.
    layers: Vec<Layer>,
    visible: VisibleUnit,
    preparation: Preparation,
    image: Option<ImageShape>,
}

/// A layer with its weight and its bias.
type Layer = (LayerConfig, Tensor, Tensor);

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

    /// A classifier: the hidden units of every layer of `stack`, with `n_classes` logits on top,
    /// whose weights start at zero.
    ///
    /// # Errors
    /// When there are fewer than 2 classes or the device is out of memory.
    pub fn from_stacked_dae(stack: &StackedDae, n_classes: usize) -> Result<Self> {
        Encoder::of_stacked_dae(stack)?.classifier(n_classes)
    }

    /// An autoencoder: the layers of `stack` up to its top layer, which is the code, and their
    /// decoders in reverse order.
    ///
    /// It reconstructs as the [`reconstruct`](crate::Decode::reconstruct) of `stack` does until the
    /// first training step, which unties weights that were tied.
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
            dense(weight, dae.visible_bias().clone(), dae.config().output)
        });
        Encoder::of_stacked_dae(stack)?.with(down.collect::<Result<Vec<_>>>()?, task)
    }

    /// An autoencoder: the layers of `dbn` up to its top layer, which is the code, followed by
    /// their transposes in reverse order.
    ///
    /// It reconstructs as the [`reconstruct`](crate::Decode::reconstruct) of `dbn` does until the
    /// first training step unties the weights. Pooled units of a convolution give downwards an
    /// equal share to each unit of their block, as there.
    ///
    /// # Errors
    /// When the device is out of memory.
    pub fn unroll(dbn: &Dbn) -> Result<Self> {
        let encoder = Encoder::of_dbn(dbn)?;
        let task = Task::Autoencode { encoder_layers: encoder.layers.len() };
        // Going down, a layer's units are those of the layer below: hidden ones of an RBM, or the
        // input's.
        let hidden = dbn.config().layers.iter().rev().skip(1).map(|layer| layer.hidden.into());
        let units = hidden.chain(dbn.config().layers.first().map(|layer| layer.visible.into()));
        let down = dbn.layers().iter().rev().zip(units).map(|(rbm, unit)| down(rbm, unit));
        encoder.with(down.collect::<Result<Vec<_>>>()?, task)
    }
}

/// A layer in which all outputs see all inputs.
fn dense(weight: Tensor, bias: Tensor, activation: Activation) -> Result<Layer> {
    let (n_outputs, n_inputs) = weight.dims2()?;
    Ok((LayerConfig { n_inputs, n_outputs, activation, connections: Connections::Dense }, weight, bias))
}

/// The layer from the visible units of an RBM to its hidden ones.
fn up(rbm: &Rbm) -> Result<Layer> {
    let config = rbm.config();
    let connections = match config.connections {
        RbmConnections::Patches(grid) => Connections::Patches(grid),
        RbmConnections::Filters(grid) => Connections::Filters(grid),
        RbmConnections::Dense => Connections::Dense,
    };
    let weight = match rbm.log_variance() {
        // Hidden units read v/σ²: learned deviations go into the weights.
        Some(log_variance) => {
            rbm.weight().broadcast_mul(&of_windows(&log_variance.neg()?.exp()?, config)?)?
        }
        None => rbm.weight().clone(),
    };
    let layer = LayerConfig {
        n_inputs: config.n_visible,
        n_outputs: config.n_hidden,
        activation: config.hidden.into(),
        connections,
    };
    Ok((layer, weight, rbm.bias().clone()))
}

/// The layer from its hidden units to its visible ones, of which `activation` is the mean.
fn down(rbm: &Rbm, activation: Activation) -> Result<Layer> {
    let config = rbm.config();
    let (connections, weight) = match config.connections {
        RbmConnections::Patches(grid) => (Connections::FromPatches(grid), rbm.weight().clone()),
        RbmConnections::Filters(grid) => (Connections::FromFilters(grid), rbm.weight().clone()),
        RbmConnections::Dense => {
            return dense(rbm.weight().t()?.contiguous()?, rbm.visible_bias().clone(), activation);
        }
    };
    let layer =
        LayerConfig { n_inputs: config.n_hidden, n_outputs: config.n_visible, activation, connections };
    Ok((layer, weight, rbm.visible_bias().clone()))
}

/// Numbers of visible units, `[n_visible]`, as the weights of an RBM meet them: in windows,
/// `[n_patches, 1, window_len]`, if it has patches.
fn of_windows(t: &Tensor, config: &RbmConfig) -> Result<Tensor> {
    let Some(grid) = config.patch_grid() else { return Ok(t.clone()) };
    let (n_patches, window_len) = (grid.n_patches(), grid.window_len());
    let place = |grid: &PatchGrid, i: usize| grid.place(i / window_len, i % window_len) as u32;
    let places: Vec<u32> = (0..n_patches * window_len).map(|i| place(&grid, i)).collect();
    let places = Tensor::from_vec(places, n_patches * window_len, t.device())?;
    t.index_select(&places, 0)?.reshape((n_patches, 1, window_len))
}

impl Encoder {
    fn of_dbn(dbn: &Dbn) -> Result<Self> {
        let config = dbn.config();
        Ok(Self {
            layers: dbn.layers().iter().map(up).collect::<Result<_>>()?,
            visible: match config.layers.first().is_some_and(|layer| layer.visible.is_gaussian()) {
                true => VisibleUnit::Gaussian,
                false => VisibleUnit::Bernoulli,
            },
            preparation: config.preparation.clone(),
            image: config.image,
        })
    }

    fn of_stacked_dae(stack: &StackedDae) -> Result<Self> {
        let config = stack.config();
        let up = |dae: &Dae| dense(dae.weight().clone(), dae.bias().clone(), dae.config().hidden);
        Ok(Self {
            layers: stack.layers().iter().map(up).collect::<Result<_>>()?,
            visible: match config.layers.first().is_some_and(|layer| layer.output == Activation::Sigmoid) {
                true => VisibleUnit::Bernoulli,
                false => VisibleUnit::Gaussian,
            },
            preparation: config.preparation.clone(),
            image: config.image,
        })
    }

    /// A network with `n_classes` logits on top.
    fn classifier(self, n_classes: usize) -> Result<Feedforward> {
        let Some((top, weight, _)) = self.layers.last() else {
            candle::bail!("Feedforward: a stack must have at least one layer, got none")
        };
        let zeros = |shape: &[usize]| Tensor::zeros(shape, weight.dtype(), weight.device());
        let logits = dense(zeros(&[n_classes, top.n_outputs])?, zeros(&[n_classes])?, Activation::Identity)?;
        self.with(vec![logits], Task::Classify)
    }

    /// A network with more layers on top.
    fn with(self, above: Vec<Layer>, task: Task) -> Result<Feedforward> {
        let (layers, tensors): (Vec<_>, Vec<_>) = (self.layers.into_iter().chain(above))
            .map(|(layer, weight, bias)| (layer, (weight, bias)))
            .unzip();
        let Self { visible, preparation, image, .. } = self;
        let config = FeedforwardConfig { task, layers, visible, preparation, image, class_names: None };
        Feedforward::from_tensors(config, tensors)
    }
}
