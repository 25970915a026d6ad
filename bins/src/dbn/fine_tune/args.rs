//! The command line of `dbn fine-tune`.
use crate::options::{RowsArgs, above_zero, at_least_one, below_one, not_negative};
use crate::session::SessionArgs;
use chandlery::feedforward::{Optimizer, ReconstructionLoss};
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

/// What `fine-tune` makes; kept in the run folder, so that `--resume` needs nothing else.
#[derive(Debug, Clone, PartialEq, Args, Serialize, Deserialize)]
pub struct FineTuneSettings {
    /// Make a classifier: logits on top of the network, trained on labels.
    #[arg(long, conflicts_with = "autoencode", required_unless_present_any = ["autoencode", "resume"])]
    pub classify: bool,
    /// Make a deep autoencoder: the network up to its top layer, the code, and back down again.
    #[arg(long)]
    pub autoencode: bool,
    /// Begin at random weights instead of the network's: the same shape without pre-training, to compare with.
    #[arg(long)]
    pub from_scratch: bool,
    /// Learn from so many labelled rows, a seeded choice with as many of each class.
    #[arg(long, value_name = "ROWS", value_parser = at_least_one, conflicts_with = "autoencode")]
    pub labels: Option<usize>,
    /// Passes over the training rows; default: 100 for a classifier, 200 for an autoencoder.
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub epochs: Option<usize>,
    /// Rows a step; those that fill none are left out of the epoch.
    #[arg(long, value_name = "ROWS", default_value_t = 100, value_parser = at_least_one)]
    pub batch: usize,
    /// First step size, which falls to 0 over the epochs; default: 0.001 for adam, 0.1 for sgd.
    #[arg(long, value_name = "RATE", value_parser = above_zero)]
    pub learning_rate: Option<f64>,
    /// How weights follow their gradient: adam, or gradient descent with momentum.
    #[arg(long, value_enum, default_value_t = OptimizerArg::Adam)]
    pub optimizer: OptimizerArg,
    /// Share of the last step that the next one keeps, for sgd.
    #[arg(long, value_name = "SHARE", default_value_t = 0.9, value_parser = below_one)]
    pub momentum: f64,
    /// Share of each hidden layer's units left out of a step at random; default: 0.5 for a classifier, 0 for an autoencoder,
    /// whose code always stays whole.
    #[arg(long, value_name = "SHARE", value_parser = below_one)]
    pub dropout: Option<f64>,
    /// Share of the inputs left out of a step at random; default: 0.2 for a classifier, 0 for an autoencoder.
    #[arg(long, value_name = "SHARE", value_parser = below_one)]
    pub input_dropout: Option<f64>,
    /// Decay of the weights, at least 0.
    #[arg(long, value_name = "DECAY", default_value_t = 0., value_parser = not_negative)]
    pub weight_decay: f64,
    /// Largest Euclidean norm of a hidden unit's weights; no limit when left out.
    #[arg(long, value_name = "NORM", value_parser = above_zero)]
    pub max_norm: Option<f64>,
    /// What an autoencoder's reconstructions are held against; default: cross-entropy for rows in [0, 1], squared-error for
    /// real values.
    #[arg(long, value_enum, conflicts_with = "classify")]
    pub loss: Option<LossArg>,
    /// Stop after so many epochs without a lower error of held-out rows, and keep the best epoch's weights; default: all
    /// epochs, and the last one's.
    #[arg(long, value_name = "EPOCHS", value_parser = at_least_one)]
    pub patience: Option<usize>,
    /// Arithmetic of matrix products; weights and sums are f32 in each.
    #[arg(long, value_name = "f32|tf32|bf16", default_value = "f32", value_parser = super::super::args::precision)]
    pub precision: String,
    /// Seed of every random draw: the same seed on the same device gives the same bits.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
}

/// Arguments of `dbn fine-tune`.
#[derive(Debug, Args)]
pub struct FineTuneArgs {
    /// The network to begin with: folder of a `dbn train` run, or OWNER/NAME on the Hugging Face hub.
    #[arg(value_name = "MODEL", required_unless_present = "resume")]
    pub model: Option<String>,
    /// Where rows come from.
    #[command(flatten)]
    pub data: RowsArgs,
    /// What is made of them.
    #[command(flatten)]
    pub settings: FineTuneSettings,
    /// Where it goes, and how it is resumed.
    #[command(flatten)]
    pub session: SessionArgs,
}

/// How weights follow their gradient.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OptimizerArg {
    /// Each weight with a rate of its own (Kingma and Ba 2015).
    Adam,
    /// Gradient descent with momentum.
    Sgd,
}

impl From<OptimizerArg> for Optimizer {
    fn from(optimizer: OptimizerArg) -> Self {
        match optimizer {
            OptimizerArg::Adam => Self::Adam,
            OptimizerArg::Sgd => Self::Sgd,
        }
    }
}

/// What reconstructions are held against.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LossArg {
    /// Half the squared distance.
    SquaredError,
    /// The cross-entropy of grey levels.
    CrossEntropy,
}

impl From<LossArg> for ReconstructionLoss {
    fn from(loss: LossArg) -> Self {
        match loss {
            LossArg::SquaredError => Self::SquaredError,
            LossArg::CrossEntropy => Self::CrossEntropy,
        }
    }
}
