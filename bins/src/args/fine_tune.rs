//! The command line of `fine-tune`.
use crate::args::converge::ConvergeArgs;
use crate::options::{LossArg, RowsArgs, above_zero, at_least_one, below_one, not_negative};
use crate::precision::precision;
use crate::session::{FeedArgs, SessionArgs};
use chandlery::feedforward::Optimizer;
use clap::{ArgGroup, Args, ValueEnum};
use serde::{Deserialize, Serialize};

/// Settings of `fine-tune`. The run folder keeps them, so that `--resume` needs nothing else.
#[derive(Debug, Clone, PartialEq, Args, Serialize, Deserialize)]
pub struct FineTuneSettings {
    /// Train a classifier: logits on top of the network, trained on labels.
    #[arg(long, conflicts_with = "autoencode")]
    pub classify: bool,
    /// Train a deep autoencoder: an encoder up to the top layer (the code) and a decoder back down.
    #[arg(long)]
    pub autoencode: bool,
    /// Start from random weights in the network's shape, to compare with the pre-trained network.
    #[arg(long)]
    pub from_scratch: bool,
    /// Number of labelled training rows to learn from, balanced over the classes. They are drawn
    /// with --seed. Default: all rows.
    #[arg(long = "labelled", value_name = "ROWS", value_parser = at_least_one, conflicts_with = "autoencode")]
    pub labels: Option<usize>,
    /// Passes over the training rows, from the option `--epochs` of [`FineTuneArgs`].
    #[arg(skip)]
    pub epochs: Option<usize>,
    /// Rows of a minibatch. The last one of an epoch takes what is left. Default: 100; for fewer
    /// than 4000 rows a fortieth of them, at least 10.
    #[arg(long, value_name = "ROWS", value_parser = at_least_one)]
    pub batch: Option<usize>,
    /// Learning rate, above 0. It falls to 0 over the epochs. Default: 0.001 for adam, 0.1 for sgd.
    #[arg(long, value_name = "RATE", value_parser = above_zero)]
    pub learning_rate: Option<f64>,
    /// Optimizer. adam, or sgd (gradient descent with momentum).
    #[arg(long, value_enum, default_value_t = OptimizerArg::Adam)]
    pub optimizer: OptimizerArg,
    /// Momentum, at least 0 and below 1. Of sgd alone.
    #[arg(long, value_name = "MOMENTUM", default_value_t = 0.9, value_parser = below_one)]
    pub momentum: f64,
    /// Dropout probability of hidden units; default: 0.5 for a classifier, 0 for an autoencoder.
    /// The code units of an autoencoder are never dropped.
    #[arg(long, value_name = "PROBABILITY", value_parser = below_one)]
    pub dropout: Option<f64>,
    /// Dropout probability of inputs; default: 0.2 for a classifier of at least 10 inputs, else 0.
    #[arg(long, value_name = "PROBABILITY", value_parser = below_one)]
    pub input_dropout: Option<f64>,
    /// L2 decay of the weights, at least 0. With adam it is decoupled from the gradient (AdamW).
    #[arg(long, value_name = "DECAY", default_value_t = 0., value_parser = not_negative)]
    pub weight_decay: f64,
    /// Largest Euclidean norm of a hidden unit's weights; default: no limit.
    #[arg(long, value_name = "NORM", value_parser = above_zero)]
    pub max_norm: Option<f64>,
    /// Reconstruction loss. Of an autoencoder; default: cross-entropy for rows in [0, 1],
    /// squared-error for real values.
    #[arg(long, value_enum, conflicts_with = "classify")]
    pub loss: Option<LossArg>,
    /// Stop when the training loss has converged: when it improved by less than this share of the
    /// lowest so far in each of --patience epochs in a row. At least 0; 0.001 is a tenth of a per
    /// cent. The last weights are kept. Default: the training loss ends nothing.
    #[arg(long, value_name = "SHARE", value_parser = not_negative)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tolerance: Option<f64>,
    /// Stop after this many epochs in a row without an improvement. With --tolerance, of the
    /// training loss; default: 3. Without, of the error on the held-out rows, and the weights of
    /// the best epoch are kept: a twentieth of the training rows is held out, at most 1000; with
    /// --labelled, a fifth of those rows. Default: run all epochs and keep the last weights.
    #[arg(long, value_name = "EPOCHS", value_parser = at_least_one)]
    pub patience: Option<usize>,
    /// Precision of the matrix products; weights and sums are always f32.
    #[arg(long, value_name = "f32|tf32|bf16", default_value = "f32", value_parser = precision)]
    pub precision: String,
    /// Seed of every random draw: the same seed on the same device gives the same bits.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
}

impl FineTuneSettings {
    /// When the training loss ends the training.
    pub fn converge(&self) -> ConvergeArgs {
        ConvergeArgs { tolerance: self.tolerance, patience: self.patience }
    }

    /// Epochs without a lower error on the held-out rows after which training ends; none where the
    /// training loss ends it.
    pub fn held_out_patience(&self) -> Option<usize> {
        if self.tolerance.is_none() { self.patience } else { None }
    }
}

/// Arguments of `fine-tune`.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("what").required(true).multiple(true).args(["classify", "autoencode", "resume"])))]
pub struct FineTuneArgs {
    /// Network to fine-tune: folder of a `train` run, or OWNER/NAME on the Hugging Face hub.
    /// Required unless you give --resume.
    #[arg(value_name = "MODEL", required_unless_present = "resume")]
    pub model: Option<String>,
    /// Where rows come from.
    #[command(flatten)]
    pub data: RowsArgs,
    /// How the network is trained.
    #[command(flatten)]
    pub settings: FineTuneSettings,
    /// Epochs: passes over the training rows. Default: 100 for a classifier, 200 for an
    /// autoencoder; for few rows as many as make 2000 steps. With --resume, a larger number extends
    /// the run, even a finished one, to N epochs in all, over which the learning rate falls to 0. A
    /// run that --patience or --tolerance ended cannot be extended.
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub epochs: Option<usize>,
    /// How rows reach the device.
    #[command(flatten)]
    pub feed: FeedArgs,
    /// Where the run is saved, and how it is resumed.
    #[command(flatten)]
    pub session: SessionArgs,
}

/// Optimizer of fine-tuning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OptimizerArg {
    /// Adam, which adapts the rate of each weight (Kingma and Ba 2015).
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
