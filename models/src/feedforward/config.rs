//! What a network is, and how it is trained.
use super::{Activation, Connections, LayerConfig};
use crate::check::{at_least_one, check_names, range};
use crate::prepare::{check_inputs, n_inputs};
use crate::rbm::{VisibleUnit, precision_name};
use crate::schedule::{Plan, Schedule};
use candle::Result;
use chandlery_datasets::{ImageShape, KnownClasses, Preparation};
use chandlery_ops::Precision;
use serde::{Deserialize, Serialize};

/// What a network is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Task {
    /// Telling classes apart: the outputs are logits.
    Classify,
    /// Giving back what it reads, by way of a code.
    Autoencode {
        /// Layers up to the code, at least 1; the others decode.
        encoder_layers: usize,
    },
}

/// What a [`Feedforward`](super::Feedforward) is, the content of `config.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FeedforwardConfig {
    /// What it is for.
    pub task: Task,
    /// The layers, lowest first; each reads as many values as the one below makes.
    pub layers: Vec<LayerConfig>,
    /// What the inputs hold. Default Bernoulli: numbers in `[0, 1]`.
    #[serde(default)]
    pub visible: VisibleUnit,
    /// What is done to raw rows before the lowest layer reads them. Default: floats as they are,
    /// bytes over 255.
    #[serde(default)]
    pub preparation: Preparation,
    /// How the values of a raw row make an image, so that it can be drawn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageShape>,
    /// Names of the classes that a classifier tells apart, in the order of its outputs; none where
    /// they go by their numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class_names: Option<Vec<String>>,
}

crate::model::model_config!(FeedforwardConfig, |config: &FeedforwardConfig| config
    .layers
    .first()
    .map_or(0, |layer| layer.n_inputs));

impl FeedforwardConfig {
    /// The classes that a classifier tells apart; none of an autoencoder.
    pub fn classes(&self) -> Option<KnownClasses<'_>> {
        let n = self.layers.last().filter(|_| self.task == Task::Classify)?.n_outputs;
        Some(KnownClasses { names: self.class_names.as_deref(), n })
    }

    /// A classifier of sigmoid units between layers of these sizes, the input's first and the
    /// classes last.
    pub fn classifier(sizes: &[usize]) -> Self {
        let mut layers = layers(sizes, Activation::Sigmoid);
        if let Some(last) = layers.last_mut() {
            last.activation = Activation::Identity;
        }
        let visible = VisibleUnit::default();
        Self {
            task: Task::Classify,
            layers,
            visible,
            preparation: Preparation::default(),
            image: None,
            class_names: None,
        }
    }

    /// An autoencoder of sigmoid units: layers of these sizes, the input's first and the code last,
    /// and the same back down. The code is linear.
    pub fn autoencoder(sizes: &[usize]) -> Self {
        let mut encoder = layers(sizes, Activation::Sigmoid);
        let back: Vec<usize> = sizes.iter().rev().copied().collect();
        let encoder_layers = encoder.len();
        if let Some(code) = encoder.last_mut() {
            code.activation = Activation::Identity;
        }
        encoder.extend(layers(&back, Activation::Sigmoid));
        let visible = VisibleUnit::default();
        Self {
            task: Task::Autoencode { encoder_layers },
            layers: encoder,
            visible,
            preparation: Preparation::default(),
            image: None,
            class_names: None,
        }
    }

    /// # Errors
    /// When there is no layer, sizes do not fit on each other or on the grid of a layer, a size is
    /// 0, the outputs are not fit for the task, the preparation gives rows of another width, the
    /// image is not of the size of raw rows, or there are not as many names as classes.
    pub fn validate(&self) -> Result<()> {
        const OP: &str = "FeedforwardConfig";
        let (Some(first), Some(last)) = (self.layers.first(), self.layers.last()) else {
            candle::bail!("{OP}: layers must hold at least one layer, got none")
        };
        for (i, layer) in self.layers.iter().enumerate() {
            at_least_one(OP, &format!("layers[{i}].n_inputs"), layer.n_inputs)?;
            at_least_one(OP, &format!("layers[{i}].n_outputs"), layer.n_outputs)?;
        }
        for (i, (below, above)) in self.layers.iter().zip(&self.layers[1..]).enumerate() {
            if below.n_outputs != above.n_inputs {
                candle::bail!(
                    "{OP}: layers[{}].n_inputs must be layers[{i}].n_outputs = {}, got {}",
                    i + 1,
                    below.n_outputs,
                    above.n_inputs
                )
            }
        }
        for (i, layer) in self.layers.iter().enumerate() {
            layer.check_connections(OP, i, (i == 0, i + 1 == self.layers.len()))?;
        }
        self.check_order_of_pixels(first, last)?;
        match self.task {
            Task::Classify if !last.connections.is_dense() => {
                candle::bail!(
                    "{OP}: logits must see all values of the layer below, got {:?}",
                    last.connections
                )
            }
            Task::Classify if last.n_outputs < 2 || last.activation != Activation::Identity => candle::bail!(
                "{OP}: a classifier must end in at least 2 logits (identity), got {} of {:?}",
                last.n_outputs,
                last.activation
            ),
            Task::Autoencode { encoder_layers } if !(1..self.layers.len()).contains(&encoder_layers) => {
                candle::bail!(
                    "{OP}: encoder_layers must be 1 to {}, so that something decodes, got {encoder_layers}",
                    self.layers.len() - 1
                )
            }
            Task::Autoencode { .. } if last.n_outputs != first.n_inputs => candle::bail!(
                "{OP}: an autoencoder must give back its {} inputs, got {} outputs",
                first.n_inputs,
                last.n_outputs
            ),
            _ => {}
        }
        check_names(OP, self.class_names.as_deref(), last.n_outputs)?;
        check_inputs(OP, &self.preparation, first.n_inputs, self.image).map(drop)
    }

    /// Filters take the channels of a pixel together: an autoencoder must begin and end with them,
    /// or do neither, where there are several.
    fn check_order_of_pixels(&self, first: &LayerConfig, last: &LayerConfig) -> Result<()> {
        const OP: &str = "FeedforwardConfig";
        let read = match &first.connections {
            Connections::Filters(grid) if grid.planes > 1 => Some([grid.planes, grid.height, grid.width]),
            _ => None,
        };
        let made = match &last.connections {
            Connections::FromFilters(grid) if grid.planes > 1 => Some([grid.planes, grid.height, grid.width]),
            Connections::Filters(grid) if grid.pool > 1 => {
                candle::bail!(
                    "{OP}: maps of the topmost layer must not be pooled, got blocks of {p}x{p}",
                    p = grid.pool
                )
            }
            _ => None,
        };
        match self.task {
            Task::Autoencode { .. } if read != made => candle::bail!(
                "{OP}: an autoencoder of images with several channels must have filters lowest and topmost or neither, got images of \
                 {read:?} lowest and {made:?} topmost, as planes, height and width"
            ),
            _ => Ok(()),
        }
    }

    /// Values in a raw row; those that the lowest layer reads where the preparation does not fit.
    pub fn n_inputs(&self) -> usize {
        n_inputs(&self.preparation, self.layers.first().map_or(0, |layer| layer.n_inputs))
    }

    /// Layers up to the code, or up to the logits.
    pub fn encoder_layers(&self) -> usize {
        match self.task {
            Task::Classify => self.layers.len(),
            Task::Autoencode { encoder_layers } => encoder_layers,
        }
    }
}

fn layers(sizes: &[usize], activation: Activation) -> Vec<LayerConfig> {
    let layer = |pair: &[usize]| LayerConfig {
        n_inputs: pair[0],
        n_outputs: pair[1],
        activation,
        connections: Connections::Dense,
    };
    sizes.windows(2).map(layer).collect()
}

/// How parameters follow their gradient.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Optimizer {
    /// Each parameter with a rate of its own (Kingma and Ba 2015), with their decays of .9 and
    /// .999.
    #[default]
    Adam,
    /// Gradient descent with momentum.
    Sgd,
}

/// What the reconstructions of an autoencoder are held against.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReconstructionLoss {
    /// Half the squared error.
    #[default]
    SquaredError,
    /// The cross-entropy of grey levels, for sigmoid outputs; its gradient does not fade where an
    /// output is far off.
    CrossEntropy,
}

/// How a network is trained: backpropagation and its surroundings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct FeedforwardTrainConfig {
    /// Rows of a minibatch, at least 1. Default 100.
    pub batch: usize,
    /// Step size, at least 0. Default 0.001, Adam's; gradient descent wants some 100 times more.
    pub learning_rate: Schedule,
    /// Share of the last step that is kept, in [0, 1); of [`Optimizer::Sgd`] alone. Default 0.9.
    pub momentum: Schedule,
    /// How parameters follow their gradient. Default Adam.
    pub optimizer: Optimizer,
    /// Decay of the weights (not the biases), at least 0: an L2 penalty for gradient descent, apart
    /// from the gradient for Adam (Loshchilov and Hutter 2019). Default 0.
    pub weight_decay: f64,
    /// Share of the values that each layer reads which are left out of a step, in [0, 1), lowest
    /// layer first; empty for none, the default. Usual: 0.2 of the input, 0.5 of hidden layers
    /// (Srivastava et al. 2014).
    pub dropout: Vec<f64>,
    /// Largest Euclidean norm of a hidden unit's incoming weights; none by default. Usual with
    /// dropout: 3 to 4. Not for networks with hidden layers of [`Connections::FromPatches`] or
    /// [`Connections::FromFilters`].
    pub max_norm: Option<f64>,
    /// What the reconstructions of an autoencoder are held against; a classifier has the
    /// cross-entropy of its labels. Default squared error.
    pub loss: ReconstructionLoss,
    /// Of the matrix products of dense layers. Those of patches and filters are as exact as f32
    /// products are. In bf16 on CUDA, networks of dense layers that read at least 64 values, or
    /// multiples of 8, keep outputs, derivatives and a copy of the weights in bf16; weights, gradient
    /// and what the optimiser remembers stay f32.
    #[serde(with = "precision_name")]
    pub precision: Precision,
}

impl Default for FeedforwardTrainConfig {
    fn default() -> Self {
        Self {
            batch: 100,
            learning_rate: Schedule::constant(0.001),
            momentum: Schedule::constant(0.9),
            optimizer: Optimizer::default(),
            weight_decay: 0.,
            dropout: Vec::new(),
            max_norm: None,
            loss: ReconstructionLoss::default(),
            precision: Precision::F32,
        }
    }
}

impl FeedforwardTrainConfig {
    /// Minibatches and epochs of a classifier; [`for_rows`](Plan::for_rows) fits them to few rows.
    pub const PLAN: Plan = Plan { batch: 100, epochs: 100, least_steps: 2000 };

    /// # Errors
    /// When a field is out of its range or does not fit the network; the message names it.
    pub fn validate(&self, network: &FeedforwardConfig) -> Result<()> {
        const OP: &str = "FeedforwardTrainConfig";
        at_least_one(OP, "batch", self.batch)?;
        self.learning_rate.validate(OP, "learning_rate", "at least 0", |x| x >= 0.)?;
        self.momentum.validate(OP, "momentum", "in [0, 1)", |x| (0. ..1.).contains(&x))?;
        range(OP, "weight_decay", self.weight_decay, "at least 0", |x| x >= 0.)?;
        if !self.dropout.is_empty() && self.dropout.len() != network.layers.len() {
            candle::bail!(
                "{OP}: dropout must have one entry for each of {} layers, or none, got {}",
                network.layers.len(),
                self.dropout.len()
            )
        }
        for (i, &rate) in self.dropout.iter().enumerate() {
            range(OP, &format!("dropout[{i}]"), rate, "in [0, 1)", |x| (0. ..1.).contains(&x))?;
        }
        if let Some(max_norm) = self.max_norm {
            range(OP, "max_norm", max_norm, "above 0", |x| x > 0.)?;
            let [hidden @ .., _] = &network.layers[..] else { return Ok(()) };
            let back = |layer: &LayerConfig| {
                matches!(layer.connections, Connections::FromPatches(_) | Connections::FromFilters(_))
            };
            if let Some(i) = hidden.iter().position(back) {
                candle::bail!(
                    "{OP}: max_norm must be none where hidden units see patches or maps backwards, as those of layers[{i}] do, got {max_norm}"
                )
            }
        }
        let outputs = network.layers.last().map(|layer| layer.activation);
        if matches!(network.task, Task::Autoencode { .. })
            && self.loss == ReconstructionLoss::CrossEntropy
            && outputs != Some(Activation::Sigmoid)
        {
            candle::bail!("{OP}: loss must be squared-error unless outputs are sigmoid, got cross-entropy")
        }
        Ok(())
    }
}
