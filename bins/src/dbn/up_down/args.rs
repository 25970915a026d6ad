//! The command line of `dbn up-down`.
use crate::dbn::args::precision;
use crate::options::{RowsArgs, above_zero, at_least_one, below_one, not_negative};
use crate::session::SessionArgs;
use clap::Args;
use serde::{Deserialize, Serialize};

/// What `up-down` makes; kept in the run folder, so that `--resume` needs nothing else.
#[derive(Debug, Clone, PartialEq, Args, Serialize, Deserialize)]
pub struct UpDownSettings {
    /// Epochs of the up-down algorithm, all weights learning; 0 leaves it at the labels.
    #[arg(long, value_name = "N", default_value_t = 60)]
    pub epochs: usize,
    /// Epochs before them in which the top layer alone learns, with the labels.
    #[arg(long, value_name = "N", default_value_t = 30)]
    pub top_epochs: usize,
    /// Rows a step, and the number of persistent chains.
    #[arg(long, value_name = "ROWS", default_value_t = 100, value_parser = at_least_one)]
    pub batch: usize,
    /// First step size of the up-down algorithm, which falls to 0 over its epochs.
    #[arg(long, value_name = "RATE", default_value_t = 0.2, value_parser = above_zero)]
    pub learning_rate: f64,
    /// First step size of the epochs before, which falls to 0 over them.
    #[arg(long, value_name = "RATE", default_value_t = 0.3, value_parser = above_zero)]
    pub top_learning_rate: f64,
    /// What the step of the labels' weights is multiplied by: a label is on in few of the rows.
    #[arg(long, value_name = "FACTOR", default_value_t = 10., value_parser = above_zero)]
    pub label_rate: f64,
    /// Share of the last step that the next one keeps, 0 to below 1.
    #[arg(long, value_name = "SHARE", default_value_t = 0., value_parser = below_one)]
    pub momentum: f64,
    /// Gibbs steps in the top layer; of several numbers each holds for an equal part of the up-down epochs, the first also
    /// before them. With --persistent=false the paper's are 3,6,10.
    #[arg(long, value_name = "K,K,…", value_delimiter = ',', default_value = "2", value_parser = at_least_one)]
    pub k: Vec<usize>,
    /// Keep the chains of the top layer from step to step (persistent CD) instead of starting them at the data, after which
    /// chains from random states may end in rows unlike any of the data.
    #[arg(long, value_name = "true|false", num_args = 0..=1, require_equals = true, default_value_t = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub persistent: bool,
    /// Decay of the weights' squares, at least 0.
    #[arg(long, value_name = "DECAY", default_value_t = 0., value_parser = not_negative)]
    pub l2: f64,
    /// Arithmetic of matrix products; weights and sums are f32 in both.
    #[arg(long, value_name = "f32|tf32", default_value = "f32", value_parser = single_precision)]
    pub precision: String,
    /// Seed of every random draw: the same seed on the same device gives the same bits.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
}

/// Arguments of `dbn up-down`.
#[derive(Debug, Args)]
pub struct UpDownArgs {
    /// Folder of a run of `dbn train` with binary units (or any with config.json and model.safetensors), or OWNER/NAME on
    /// the Hugging Face hub.
    #[arg(value_name = "MODEL", required_unless_present = "resume")]
    pub model: Option<String>,
    /// Where rows and their labels come from.
    #[command(flatten)]
    pub data: RowsArgs,
    /// What is made of them.
    #[command(flatten)]
    pub settings: UpDownSettings,
    /// Where it goes, and how it is resumed.
    #[command(flatten)]
    pub session: SessionArgs,
}

/// The name of a precision that the up-down algorithm knows.
fn single_precision(name: &str) -> Result<String, String> {
    match precision(name)?.as_str() {
        "bf16" => Err("must be f32 or tf32".to_owned()),
        name => Ok(name.to_owned()),
    }
}
