//! Arguments of the sub-commands of `dbn` that share this module.
use super::likelihood::LikelihoodArgs;
use crate::args::converge::ConvergeArgs;
use crate::args::prepare::PrepareArgs;
use crate::args::used::{PictureArgs, UseArgs};
use crate::layer_arg::LayerArg;
use crate::options::{
    Common, DataArgs, ModelArgs, RowsArgs, above_zero, at_least_one, below_one, image_shape, inside_zero_one,
    not_negative,
};
use crate::precision::rbm_precision;
use crate::ranks::RanksArgs;
use crate::session::args::RESUMES_WITH_DIVIDE;
use crate::session::{FeedArgs, SessionArgs};
use chandlery::rbm::{Division, HiddenUnit, RbmTrainConfig, VisibleUnit};
use chandlery_datasets::ImageShape;
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The long help of `--layers`.
const LAYERS: &str = "\
Layers, lowest first. In place of --hidden. Examples for 28x28 images: patch:8/4x16,patch:3/1x24,dense:50 and \
conv:9x24/pool2,conv:5x40/pool2,dense:50.

dense:N, or N: N hidden units, each connected to the whole layer below.
patch:WINDOW/STRIDExHIDDEN: windows of WINDOW x WINDOW pixels, one every STRIDE pixels. Each window has HIDDEN hidden units with weights of \
their own. The last windows must end at the border of the image.
conv:SIZExFILTERS[/strideN][/same][/poolN]: FILTERS shared filters of SIZE x SIZE pixels, at every pixel or with /strideN one every N pixels \
(on a CPU; the last ones must end at the border of the image). With stride 1 the feature maps are SIZE - 1 pixels smaller than the image, or as \
large with /same. /poolN pools blocks of N x N.

Above a patch or conv layer, sizes count positions of that layer. A patch or conv layer cannot follow a dense layer.";

/// Settings of `train`. The run folder keeps them, so that `--resume` needs nothing else.
#[derive(Debug, Clone, PartialEq, Args, Serialize, Deserialize)]
pub struct Settings {
    /// Number of hidden units. One number for each layer, lowest layer first.
    #[arg(long, value_name = "N,N,…", value_delimiter = ',', default_value = "500,500", value_parser = at_least_one)]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hidden: Vec<usize>,
    /// Layers, lowest first. In place of --hidden, such as patch:8/4x16,patch:3/1x24,dense:50 for
    /// 28x28 images.
    #[arg(long, value_name = "LAYER,…", value_delimiter = ',', conflicts_with = "hidden", long_help = LAYERS)]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub layers: Vec<LayerArg>,
    /// Epochs per layer, from the option `--epochs` of [`TrainArgs`].
    #[arg(skip)]
    pub epochs: Option<usize>,
    /// What ranks divide, from the option `--divide` of [`TrainArgs`].
    #[arg(skip)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub divide: Option<Divide>,
    /// Rows of a minibatch. It is also the number of persistent chains. Default: 100; for fewer
    /// than 4000 rows a fortieth of them, at least 10.
    #[arg(long, value_name = "ROWS", value_parser = at_least_one)]
    pub batch: Option<usize>,
    /// Learning rate, above 0. It falls linearly to --final-learning-rate over a layer's epochs;
    /// one for all layers, or one for each, lowest first. Default: 0.1, or 0.001 if the layer has
    /// Gaussian or rectified units; convolutional layers use ten times these rates. A table of at
    /// most 100 columns for which --prepare standardise was chosen: 0.01.
    #[arg(long, value_name = "RATE,…", value_delimiter = ',', value_parser = above_zero)]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub learning_rate: Vec<f64>,
    /// Learning rate at the end of a layer's epochs, at least 0.
    #[arg(long, value_name = "RATE", default_value_t = 0., value_parser = not_negative)]
    pub final_learning_rate: f64,
    /// Momentum, at least 0 and below 1. If it is above 0.5, the first fifth of a layer's epochs
    /// uses 0.5. Default: 0 with --persistent, else 0.9.
    #[arg(long, value_name = "MOMENTUM", value_parser = below_one)]
    pub momentum: Option<f64>,
    /// Gibbs steps of the model phase (CD-k).
    #[arg(long, value_name = "STEPS", default_value_t = 1, value_parser = at_least_one)]
    pub k: usize,
    /// Continue the Gibbs chains from step to step (persistent CD) instead of starting them at the
    /// data. Slower, but samples from random states look like the data more often than with CD.
    /// Default: true for layers of binary units, false for convolutional layers, for layers with
    /// Gaussian or rectified units, and for fewer than 4000 rows.
    #[arg(long, value_name = "true|false", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub persistent: Option<bool>,
    /// Draw the visible units at the end of the model phase, too, instead of taking their means:
    /// sampled reconstructions, as Raina, Madhavan and Ng have them. Persistent chains always draw
    /// them.
    #[arg(long)]
    #[serde(default)]
    pub sample_visible: bool,
    /// L1 decay of the weights, at least 0.
    #[arg(long, value_name = "DECAY", default_value_t = 0., value_parser = not_negative)]
    pub l1: f64,
    /// L2 decay of the weights, at least 0.
    #[arg(long, value_name = "DECAY", default_value_t = 2e-4, value_parser = not_negative)]
    pub weight_decay: f64,
    /// Largest Euclidean norm of a hidden unit's weights; default: no limit.
    #[arg(long, value_name = "NORM", value_parser = above_zero)]
    pub max_norm: Option<f64>,
    /// Target mean activation of each hidden unit, above 0 and below 1. Needs --sparsity-weight.
    #[arg(long, value_name = "ACTIVATION", requires = "sparsity_weight", value_parser = inside_zero_one)]
    pub sparsity_target: Option<f64>,
    /// Weight of the sparsity penalty, at least 0. Each step adds WEIGHT x (ACTIVATION - running
    /// mean activation) to the gradient of the hidden biases. Needs --sparsity-target.
    #[arg(long, value_name = "WEIGHT", requires = "sparsity_target", value_parser = not_negative)]
    pub sparsity_weight: Option<f64>,
    /// Visible units of the lowest layer: bernoulli for rows in [0, 1], gaussian for real values.
    /// Default: bernoulli, or gaussian as said at --prepare.
    #[arg(long, value_enum)]
    pub visible: Option<Visible>,
    /// When training ends before its last epoch.
    #[command(flatten)]
    #[serde(flatten)]
    pub converge: ConvergeArgs,
    /// How rows are prepared.
    #[command(flatten)]
    #[serde(flatten)]
    pub prepare: PrepareArgs,
    /// Units of the hidden layers.
    #[arg(long, value_enum, default_value_t = Hidden::Bernoulli)]
    pub hidden_unit: Hidden,
    /// In every step, draw each value of a row anew as 0 or 1, with the value as the probability of
    /// 1; rows must lie in [0, 1]. `evaluate --log-likelihood` draws rows in the same way.
    #[arg(long)]
    pub binarize: bool,
    /// Units of the top layer, which is the code of an autoencoder; default: --hidden-unit.
    #[arg(long, value_enum, value_name = "UNIT")]
    pub code_unit: Option<Hidden>,
    /// Precision of the matrix products; sums are always f32, and weights too, but for
    /// bf16-stochastic: it trains bf16 weights, rounded stochastically in each update, and halves
    /// the memory of weights and their velocity. It is for dense layers whose sizes are multiples
    /// of 4.
    #[arg(long, value_name = "f32|tf32|bf16|bf16-stochastic", default_value = "f32", value_parser = rbm_precision)]
    pub precision: String,
    /// Seed of every random draw: the same seed on the same device gives the same bits.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
}

impl Settings {
    /// Epochs per layer.
    pub fn n_epochs(&self) -> usize {
        self.epochs.unwrap_or(RbmTrainConfig::PLAN.epochs)
    }

    /// Rows per step.
    pub fn n_batch(&self) -> usize {
        self.batch.unwrap_or(RbmTrainConfig::PLAN.batch)
    }

    /// Visible units of the lowest layer.
    pub fn visible_units(&self) -> VisibleUnit {
        self.visible.unwrap_or(Visible::Bernoulli).into()
    }

    /// Whether a hidden layer has units that are not binary.
    pub fn has_real_hidden(&self) -> bool {
        let real = |unit: Hidden| unit != Hidden::Bernoulli;
        real(self.hidden_unit) || self.code_unit.is_some_and(real)
    }

    /// The layers, lowest first, whichever option named them.
    pub fn all_layers(&self) -> Vec<LayerArg> {
        match self.layers.is_empty() {
            true => self.hidden.iter().copied().map(LayerArg::Dense).collect(),
            false => self.layers.clone(),
        }
    }
}

/// Arguments of `dbn train`.
#[derive(Debug, Args)]
pub struct TrainArgs {
    /// Where rows come from.
    #[command(flatten)]
    pub data: DataArgs,
    /// How the network is trained.
    #[command(flatten)]
    pub settings: Settings,
    /// Epochs: passes over the training rows. Default: 60 for each layer; for few rows as many as
    /// make 2400 steps. With --resume, a larger number extends the run: the layer in training and
    /// all layers above it train for N epochs in all, over which the learning rate falls. Finished
    /// lower layers stay as they are. In a finished run, only the top layer trains on.
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub epochs: Option<usize>,
    /// What several GPUs divide. Default: units. rows is for large minibatches: what GPUs exchange
    /// does not grow with --batch; use it with --precision tf32 or bf16, since f32 does not use
    /// tensor cores then. With --resume, what GPUs divide from here on.
    #[arg(id = RESUMES_WITH_DIVIDE, long = "divide", value_enum, value_name = "DIVIDE")]
    pub divide: Option<Divide>,
    /// How rows reach the device.
    #[command(flatten)]
    pub feed: FeedArgs,
    /// Where the run is saved, and how it is resumed.
    #[command(flatten)]
    pub session: SessionArgs,
}

impl TrainArgs {
    /// The settings of a new run.
    pub fn settings(&self) -> Settings {
        let mut settings = Settings { epochs: self.epochs, divide: self.divide, ..self.settings.clone() };
        if !settings.layers.is_empty() {
            // What stands there is the default.
            settings.hidden.clear();
        }
        settings
    }
}

/// Arguments of `dbn reconstruct`.
#[derive(Debug, Args)]
pub struct ReconstructArgs {
    /// Model and rows.
    #[command(flatten)]
    pub of: UseArgs,
    /// What is drawn.
    #[command(flatten)]
    pub picture: PictureArgs,
    /// How many processes compute together.
    #[command(flatten)]
    pub ranks: RanksArgs,
}

/// Arguments of `dbn predict`.
#[derive(Debug, Args)]
pub struct PredictArgs {
    /// The classifier or network with labels, and rows.
    #[command(flatten)]
    pub of: UseArgs,
    /// File to write: .csv has a line for each row with its class and the probability of each
    /// class, .safetensors the arrays `probabilities` and `classes`. - writes CSV to standard
    /// output.
    #[arg(long, value_name = "FILE", default_value = "predictions.csv")]
    pub out: PathBuf,
    /// How many processes compute together.
    #[command(flatten)]
    pub ranks: RanksArgs,
}

/// Arguments of `dbn sample`.
#[derive(Debug, Args)]
pub struct SampleArgs {
    /// The network.
    #[command(flatten)]
    pub model: ModelArgs,
    /// Number of rows in the picture. Of a network with labels so many samples per class; default:
    /// 100, or 10 per class if all classes are drawn.
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub n: Option<usize>,
    /// Class to sample, for a network with labels (`dbn up-down`); default: all classes, one line
    /// each.
    #[arg(long, value_name = "CLASS")]
    pub label: Option<u32>,
    /// Gibbs steps in the top layer for each sample.
    #[arg(long, value_name = "STEPS", default_value_t = 1000, value_parser = at_least_one)]
    pub steps: usize,
    /// What to start from. A data set, named as for --data of `train`, whose rows start the Gibbs
    /// chains (its test rows if it has any). Recommended: from random states, the default, a
    /// network trained on MNIST draws mostly images of one digit.
    #[arg(long, value_name = "DATA")]
    pub start_from: Option<String>,
    /// Seed of every random draw: the same seed on the same device gives the same bits.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// Shape of an image, HEIGHTxWIDTH or HEIGHTxWIDTHxCHANNELS; default: the shape of the training
    /// data.
    #[arg(long, value_name = "SHAPE", value_parser = image_shape)]
    pub image: Option<ImageShape>,
    /// Picture to write.
    #[arg(long, value_name = "FILE", default_value = "samples.png")]
    pub out: PathBuf,
    /// Where and how it runs.
    #[command(flatten)]
    pub common: Common,
}

/// Arguments of `dbn evaluate`.
#[derive(Debug, Args)]
pub struct EvaluateArgs {
    /// The network.
    #[command(flatten)]
    pub model: ModelArgs,
    /// Where rows come from.
    #[command(flatten)]
    pub data: RowsArgs,
    /// Seed of every random draw: the same seed on the same device gives the same bits.
    /// Default: the seed of the run, else 0.
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// How the log-likelihood is measured.
    #[command(flatten)]
    pub likelihood: LikelihoodArgs,
    /// How many processes compute together.
    #[command(flatten)]
    pub ranks: RanksArgs,
    /// Where and how it runs.
    #[command(flatten)]
    pub common: Common,
}

/// Visible units of the lowest layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Visible {
    /// Binary; rows in [0, 1] are the probabilities of 1.
    Bernoulli,
    /// Real-valued with standard deviation 1; rows are divided by their overall standard deviation.
    Gaussian,
    /// Real-valued, with a learned standard deviation for each unit; for a network of one layer.
    GaussianLearned,
}

impl From<Visible> for VisibleUnit {
    fn from(visible: Visible) -> Self {
        match visible {
            Visible::Bernoulli => Self::Bernoulli,
            Visible::Gaussian => Self::Gaussian,
            Visible::GaussianLearned => Self::GaussianLearned,
        }
    }
}

/// What ranks divide.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Divide {
    /// Hidden units, lines of windows, or maps; each rank has all rows.
    Units,
    /// The rows of each minibatch; each rank has all weights.
    Rows,
}

impl From<Divide> for Division {
    fn from(divide: Divide) -> Self {
        match divide {
            Divide::Units => Self::Units,
            Divide::Rows => Self::Rows,
        }
    }
}

/// Units of the hidden layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Hidden {
    /// Binary.
    Bernoulli,
    /// Noisy rectified linear (Nair and Hinton 2010).
    Rectified,
    /// Real-valued with standard deviation 1.
    Gaussian,
}

impl From<Hidden> for HiddenUnit {
    fn from(hidden: Hidden) -> Self {
        match hidden {
            Hidden::Bernoulli => Self::Bernoulli,
            Hidden::Rectified => Self::Rectified,
            Hidden::Gaussian => Self::Gaussian,
        }
    }
}
