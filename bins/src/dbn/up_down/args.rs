//! The command line of `dbn up-down`.
use crate::args::converge::ConvergeArgs;
use crate::options::{RowsArgs, above_zero, at_least_one, below_one, not_negative, whole_number};
use crate::precision::precision;
use crate::session::{FeedArgs, SessionArgs};
use clap::Args;
use serde::{Deserialize, Serialize};

/// Epochs of the up-down algorithm when none are asked for.
const EPOCHS: usize = 60;

/// Settings of `up-down`. The run folder keeps them, so that `--resume` needs nothing else.
#[derive(Debug, Clone, PartialEq, Args, Serialize, Deserialize)]
pub struct UpDownSettings {
    /// Epochs of the up-down algorithm, from the option `--epochs` of [`UpDownArgs`].
    #[arg(skip = EPOCHS)]
    pub epochs: usize,
    /// Epochs before the up-down algorithm that train only the top layer, with the labels.
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = whole_number)]
    pub top_epochs: usize,
    /// Rows of a minibatch. It is also the number of persistent chains.
    #[arg(long, value_name = "ROWS", default_value_t = 100, value_parser = at_least_one)]
    pub batch: usize,
    /// Learning rate, above 0. Of the up-down algorithm; it falls to 0 over its epochs.
    #[arg(long, value_name = "RATE", default_value_t = 0.2, value_parser = above_zero)]
    pub learning_rate: f64,
    /// Initial learning rate of the top-layer epochs, which falls to 0 over them.
    #[arg(long, value_name = "RATE", default_value_t = 0.3, value_parser = above_zero)]
    pub top_learning_rate: f64,
    /// Factor on the learning rate of the label weights and biases. Each label unit is 1 in few
    /// rows, so its weights need a larger rate; Hinton, Osindero and Teh 2006 use 1.
    #[arg(long, value_name = "FACTOR", default_value_t = 10., value_parser = above_zero)]
    pub label_rate: f64,
    /// Momentum, at least 0 and below 1.
    #[arg(long, value_name = "MOMENTUM", default_value_t = 0., value_parser = below_one)]
    pub momentum: f64,
    /// Gibbs steps of the model phase (CD-k). In the top layer; with several numbers, each applies
    /// to an equal part of the up-down epochs, in order, and the first also to the top-layer
    /// epochs. Hinton, Osindero and Teh 2006 use 3,6,10 with --persistent=false.
    #[arg(long, value_name = "K,K,…", value_delimiter = ',', default_value = "2", value_parser = at_least_one)]
    pub k: Vec<usize>,
    /// Continue the Gibbs chains from step to step (persistent CD) instead of starting them at the
    /// data. With false, samples that start from random states may not look like the data. Default:
    /// true.
    #[arg(long, value_name = "true|false", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub persistent: Option<bool>,
    /// L2 decay of the weights, at least 0.
    #[arg(long, value_name = "DECAY", default_value_t = 0., value_parser = not_negative)]
    pub weight_decay: f64,
    /// When training ends before its last epoch.
    #[command(flatten)]
    #[serde(flatten)]
    pub converge: ConvergeArgs,
    /// Precision of the matrix products; weights and sums are always f32.
    #[arg(long, value_name = "f32|tf32", default_value = "f32", value_parser = single_precision)]
    pub precision: String,
    /// Seed of every random draw: the same seed on the same device gives the same bits.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
}

/// Arguments of `dbn up-down`.
#[derive(Debug, Args)]
pub struct UpDownArgs {
    /// Network of binary units: folder of a `dbn train` run (or any folder with config.json and
    /// model.safetensors), or OWNER/NAME on the Hugging Face hub. Required unless you give
    /// --resume.
    #[arg(value_name = "MODEL", required_unless_present = "resume")]
    pub model: Option<String>,
    /// Where rows and their labels come from.
    #[command(flatten)]
    pub data: RowsArgs,
    /// How the network is trained.
    #[command(flatten)]
    pub settings: UpDownSettings,
    /// Epochs: passes over the training rows. The up-down algorithm trains all weights in them; 0
    /// trains the top layer with the labels only. Default: 60. With --resume, a larger number
    /// extends the run, even a finished one, to N epochs in all, over which the learning rate falls
    /// to 0; each number of --k applies to an equal part of them.
    #[arg(long, value_name = "N", value_parser = whole_number)]
    pub epochs: Option<usize>,
    /// How rows reach the device.
    #[command(flatten)]
    pub feed: FeedArgs,
    /// Where the run is saved, and how it is resumed.
    #[command(flatten)]
    pub session: SessionArgs,
}

impl UpDownArgs {
    /// The settings of a new run.
    pub fn settings(&self) -> UpDownSettings {
        UpDownSettings { epochs: self.epochs.unwrap_or(EPOCHS), ..self.settings.clone() }
    }
}

/// Parses the name of a precision that the up-down algorithm supports.
fn single_precision(name: &str) -> Result<String, String> {
    match precision(name)?.as_str() {
        "bf16" => Err("must be f32 or tf32".to_owned()),
        name => Ok(name.to_owned()),
    }
}
