//! What a denoising autoencoder is, and how it is trained.
use crate::check::{at_least_one, range};
use crate::feedforward::{Activation, Connections, LayerConfig, ReconstructionLoss};
use crate::layers::StackedConfig;
use crate::prepare::{check_inputs, n_inputs};
use crate::rbm::precision_name;
use crate::schedule::{Plan, Schedule};
use candle::{Error, Result};
use chandlery_datasets::{ImageShape, Preparation};
use chandlery_ops::Precision;
use chandlery_ops::layers::Corruption;
use serde::{Deserialize, Serialize};

/// What a [`Dae`](super::Dae) is, the content of `config.json`; nothing here changes while it
/// trains.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DaeConfig {
    /// Values that it reads and gives back, at least 1.
    pub n_visible: usize,
    /// Hidden units, at least 1.
    pub n_hidden: usize,
    /// Whether the decoder has the transposed weights of the encoder. Default `true`: half the
    /// weights, and units that cannot learn the identity with small weights below and large ones
    /// above.
    #[serde(default = "yes")]
    pub tied: bool,
    /// What the hidden units make of their input. Default sigmoid.
    #[serde(default = "sigmoid")]
    pub hidden: Activation,
    /// What the outputs make of theirs. Default sigmoid, for rows in `[0, 1]`; identity for
    /// real-valued rows.
    #[serde(default = "sigmoid")]
    pub output: Activation,
    /// What reconstructions are held against; cross-entropy is for sigmoid outputs. Default
    /// cross-entropy.
    #[serde(default = "cross_entropy")]
    pub loss: ReconstructionLoss,
    /// What is done to raw rows before they are corrupted and read. Default: floats as they are,
    /// bytes over 255. In a stack the stack's stands in its place.
    #[serde(default, skip_serializing_if = "Preparation::is_default")]
    pub preparation: Preparation,
    /// How the values of a raw row make an image, so that it can be drawn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageShape>,
}

crate::model::model_config!(DaeConfig, |config: &DaeConfig| config.n_visible);

fn yes() -> bool {
    true
}

fn sigmoid() -> Activation {
    Activation::Sigmoid
}

fn cross_entropy() -> ReconstructionLoss {
    ReconstructionLoss::CrossEntropy
}

impl DaeConfig {
    /// Sizes have no default; everything else does.
    pub fn new(n_visible: usize, n_hidden: usize) -> Self {
        Self {
            n_visible,
            n_hidden,
            tied: yes(),
            hidden: sigmoid(),
            output: sigmoid(),
            loss: cross_entropy(),
            preparation: Preparation::default(),
            image: None,
        }
    }

    /// # Errors
    /// When a size is 0, the loss does not fit the outputs, the preparation gives rows of another
    /// width, or the image is not of the size of raw rows.
    pub fn validate(&self) -> Result<()> {
        const OP: &str = "DaeConfig";
        at_least_one(OP, "n_visible", self.n_visible)?;
        at_least_one(OP, "n_hidden", self.n_hidden)?;
        if self.loss == ReconstructionLoss::CrossEntropy && self.output != Activation::Sigmoid {
            candle::bail!(
                "{OP}: loss must be squared-error unless outputs are sigmoid, got cross-entropy and {:?}",
                self.output
            )
        }
        check_inputs(OP, &self.preparation, self.n_visible, self.image).map(drop)
    }

    /// The encoder as a layer of a network.
    pub(super) fn encoder(&self) -> LayerConfig {
        LayerConfig {
            n_inputs: self.n_visible,
            n_outputs: self.n_hidden,
            activation: self.hidden,
            connections: Connections::Dense,
        }
    }

    /// Values in a raw row; `n_visible` where the preparation does not fit.
    pub fn n_inputs(&self) -> usize {
        n_inputs(&self.preparation, self.n_visible)
    }
}

impl StackedConfig for DaeConfig {
    const STACK: &'static str = "StackedDaeConfig";
    const LAYER: &'static str = "autoencoder";

    fn of_sizes(n_visible: usize, n_hidden: usize) -> Self {
        Self::new(n_visible, n_hidden)
    }

    fn n_made(&self) -> usize {
        self.n_hidden
    }

    /// Sigmoid outputs reach only what sigmoid units below make.
    fn check_above(&self, below: &Self, i: usize) -> Result<()> {
        if self.output == Activation::Sigmoid && below.hidden != Activation::Sigmoid {
            candle::bail!(
                "StackedDaeConfig: layers[{}].output must not be sigmoid, since layers[{i}].hidden is {:?}, whose values leave 0 to 1; use \
                 identity or tanh with the squared error",
                i + 1,
                below.hidden
            )
        }
        Ok(())
    }
}

/// How a denoising autoencoder is trained.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DaeTrainConfig {
    /// Rows of a minibatch, at least 1. Default 8, the fastest of the paper.
    pub batch: usize,
    /// Step along the mean gradient of a minibatch, at least 0. Default 0.1, the paper's.
    pub learning_rate: Schedule,
    /// Share of the last step that is kept, in [0, 1). Default 0, as in the paper.
    pub momentum: Schedule,
    /// L2 decay of the weights (not the biases), at least 0. Default 0.
    pub weight_decay: f64,
    /// The noise. Default: 30 % salt and pepper, the paper's.
    #[serde(with = "as_text")]
    pub corruption: Corruption,
    /// Of the matrix products. On GPUs of capability 9.0 those in TF32 are of f16 numbers, which
    /// have as many digits, if the rows are of at least 64 values or of a multiple of 8.
    #[serde(with = "precision_name")]
    pub precision: Precision,
}

impl Default for DaeTrainConfig {
    fn default() -> Self {
        Self {
            batch: 8,
            learning_rate: Schedule::constant(0.1),
            momentum: Schedule::constant(0.),
            weight_decay: 0.,
            corruption: Corruption::SaltAndPepper(0.3),
            precision: Precision::F32,
        }
    }
}

impl DaeTrainConfig {
    /// Minibatches and epochs of a layer; [`for_rows`](Plan::for_rows) fits them to few rows.
    pub const PLAN: Plan = Plan { batch: 8, epochs: 5, least_steps: 2500 };

    /// # Errors
    /// When a field is out of its range; the message names it.
    pub fn validate(&self) -> Result<()> {
        const OP: &str = "DaeTrainConfig";
        at_least_one(OP, "batch", self.batch)?;
        self.learning_rate.validate(OP, "learning_rate", "at least 0", |x| x >= 0.)?;
        self.momentum.validate(OP, "momentum", "in [0, 1)", |x| (0. ..1.).contains(&x))?;
        range(OP, "weight_decay", self.weight_decay, "at least 0", |x| x >= 0.)?;
        self.corruption.validate().map_err(|e| Error::Msg(format!("{OP}: {e}")))
    }
}

/// A setting as the text that command lines take.
mod as_text {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};
    use std::fmt::Display;
    use std::str::FromStr;

    pub fn serialize<T: Display, S: Serializer>(value: &T, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(value)
    }

    pub fn deserialize<'de, T: FromStr<Err = String>, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}
