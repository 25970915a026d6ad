//! The command line of `dae`.
use crate::args::converge::ConvergeArgs;
use crate::args::fine_tune::FineTuneArgs;
use crate::args::prepare::PrepareArgs;
use crate::args::used::{EncodeArgs, PictureArgs, UseArgs};
use crate::completions::CompletionsArgs;
use crate::options::{
    Common, DataArgs, LossArg, ModelArgs, above_zero, at_least_one, below_one, not_negative,
};
use crate::precision::precision;
use crate::ranks::RanksArgs;
use crate::session::{FeedArgs, SessionArgs};
use chandlery::dae::DaeTrainConfig;
use chandlery::feedforward::Activation;
use chandlery_ops::layers::Corruption;
use clap::{Args, Parser, Subcommand, ValueEnum};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Command lines of the program, at the end of its help.
const EXAMPLES: &str = "\
Examples:
  dae --out runs/AUTOENCODER   # 784-500 on the built-in digits
  dae evaluate runs/AUTOENCODER
  dae encode runs/AUTOENCODER --out features.npy
  dae denoise runs/AUTOENCODER IMAGE --out FOLDER";
/// The same of `train`.
const TRAIN: &str = "\
Examples:
  dae train --data mnist --hidden 1000,1000 --corruption masking:0.1,masking:0.25
  dae train --data DATA --prepare row-mean --corruption gaussian:0.5 --hidden-unit rectified
  dae train --resume runs/AUTOENCODER --epochs 10";
/// The same of `encode`.
const ENCODE: &str = "\
Examples:
  dae encode runs/AUTOENCODER --split test --out features.npy
  dae encode runs/AUTOENCODER --data DATA --layer 1 --out features.safetensors";
/// The same of `evaluate`.
const EVALUATE: &str = "\
Examples:
  dae evaluate runs/AUTOENCODER
  dae evaluate runs/AUTOENCODER --split train --corruption salt-and-pepper:0.5";
/// The same of `sample`.
const SAMPLE: &str = "\
Examples:
  dae sample runs/AUTOENCODER --split train --out views
  dae sample runs/AUTOENCODER --views 20 --corruption flip:0.1 --n 5";

/// Denoising autoencoders: train one, or a stack layer by layer, on corrupted rows; then use it for
/// features and to restore images.
///
/// Without a sub-command it trains: `dae --epochs 3` is `dae train --epochs 3`.
#[derive(Debug, Parser)]
#[command(name = "dae", version, args_conflicts_with_subcommands = true, after_help = EXAMPLES)]
pub struct Cli {
    /// What to do; default: `train`.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// The arguments of `train`.
    #[command(flatten)]
    pub train: TrainArgs,
}

/// The sub-commands of `dae`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Train a denoising autoencoder, or a stack of them layer by layer.
    #[command(after_help = TRAIN)]
    Train(Box<TrainArgs>),
    /// Fine-tune a trained model by backpropagation into a classifier or a deep autoencoder. Use
    /// the result with `dbn evaluate`, `dbn encode`, and `dbn predict` (a classifier) or
    /// `dbn reconstruct` (an autoencoder).
    FineTune(Box<FineTuneArgs>),
    /// Restore noisy image files of the size that the autoencoder reads.
    Denoise(DenoiseArgs),
    /// Write the features of a data set to a .npy, .csv or .safetensors file.
    #[command(after_help = ENCODE)]
    Encode(EncodeArgs),
    /// Print the errors of reconstructions from clean and from corrupted rows.
    #[command(after_help = EVALUATE)]
    Evaluate(EvaluateArgs),
    /// Draw rows, the same rows corrupted, and their reconstructions.
    Reconstruct(ReconstructArgs),
    /// Write artificial views of rows: each row is corrupted and reconstructed again and again.
    #[command(after_help = SAMPLE)]
    Sample(SampleArgs),
    /// Print completions of this program for a shell.
    Completions(CompletionsArgs),
}

/// Settings of `train`. The run folder keeps them, so that `--resume` needs nothing else.
#[derive(Debug, Clone, PartialEq, Args, Serialize, Deserialize)]
pub struct Settings {
    /// Number of hidden units. One number for each layer, lowest layer first; several make a stack.
    #[arg(long, value_name = "N,N,…", value_delimiter = ',', default_value = "500", value_parser = at_least_one)]
    pub hidden: Vec<usize>,
    /// Noise: salt-and-pepper:P sets a share P of the values to 0 or 1 at random, masking:P sets a
    /// share P to 0, flip:P turns a share P of the values x to 1 - x, gaussian:S adds noise of
    /// standard deviation S, none adds none. P is from 0 to 1. On the inputs of a layer, in
    /// training only: one for all layers, or one for each, lowest first; the inputs of the lowest
    /// layer are the prepared rows.
    #[arg(long, value_name = "NOISE,…", value_delimiter = ',', default_value = "salt-and-pepper:0.3", value_parser = noise)]
    pub corruption: Vec<String>,
    /// Give the decoder weights of its own, in place of the transposed weights of the encoder.
    #[arg(long)]
    pub untied: bool,
    /// Reconstruction loss. Default: cross-entropy for layers whose inputs lie between 0 and 1.
    /// Layers with other inputs always use squared-error; cross-entropy is an error if the prepared
    /// rows lie outside 0 to 1.
    #[arg(long, value_enum)]
    pub loss: Option<LossArg>,
    /// Units of the hidden layers.
    #[arg(long, value_enum, value_name = "UNIT", default_value_t)]
    pub hidden_unit: HiddenArg,
    /// Epochs per layer; the command line has them beside.
    #[arg(skip)]
    pub epochs: Option<usize>,
    /// Rows of a minibatch. The last one of an epoch takes what is left. Default: 8.
    #[arg(long, value_name = "ROWS", value_parser = at_least_one)]
    pub batch: Option<usize>,
    /// Learning rate, above 0. It is constant over the run. Default: 0.1 for a layer with sigmoid
    /// units and inputs between 0 and 1, else 0.001.
    #[arg(long, value_name = "RATE", value_parser = above_zero)]
    pub learning_rate: Option<f64>,
    /// Momentum, at least 0 and below 1.
    #[arg(long, value_name = "MOMENTUM", default_value_t = 0., value_parser = below_one)]
    pub momentum: f64,
    /// L2 decay of the weights, at least 0.
    #[arg(long, value_name = "DECAY", default_value_t = 0., value_parser = not_negative)]
    pub weight_decay: f64,
    /// When training ends before its last epoch.
    #[command(flatten)]
    #[serde(flatten)]
    pub converge: ConvergeArgs,
    /// How rows are prepared.
    #[command(flatten)]
    #[serde(flatten)]
    pub prepare: PrepareArgs,
    /// Precision of the matrix products; weights and sums are always f32.
    #[arg(long, value_name = "f32|tf32|bf16", default_value = "f32", value_parser = precision)]
    pub precision: String,
    /// Seed of every random draw: the same seed on the same device gives the same bits.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
}

/// Arguments of `dae train`.
#[derive(Debug, Args)]
pub struct TrainArgs {
    /// Where rows come from.
    #[command(flatten)]
    pub data: DataArgs,
    /// How the model is trained.
    #[command(flatten)]
    pub settings: Settings,
    /// Epochs: passes over the training rows. Default: 5 for each layer; for few rows as many as
    /// make 2500 steps. With --resume, a larger number extends the run, even a finished one: the
    /// layer in training and those above it get so many epochs.
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub epochs: Option<usize>,
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
        Settings { epochs: self.epochs, ..self.settings.clone() }
    }
}

impl Settings {
    /// Epochs per layer.
    pub fn n_epochs(&self) -> usize {
        self.epochs.unwrap_or(DaeTrainConfig::PLAN.epochs)
    }

    /// Rows per step.
    pub fn n_batch(&self) -> usize {
        self.batch.unwrap_or(DaeTrainConfig::PLAN.batch)
    }
}

/// Arguments of `dae denoise`.
#[derive(Debug, Args)]
pub struct DenoiseArgs {
    /// The autoencoder.
    #[command(flatten)]
    pub model: ModelArgs,
    /// Image files of the size that the autoencoder reads.
    #[arg(value_name = "IMAGE", required = true)]
    pub images: Vec<PathBuf>,
    /// Noise: salt-and-pepper:P sets a share P of the values to 0 or 1 at random, masking:P sets a
    /// share P to 0, flip:P turns a share P of the values x to 1 - x, gaussian:S adds noise of
    /// standard deviation S, none adds none. Treats the
    /// images as clean: they are corrupted first, and the errors before and after are reported.
    #[arg(long, value_name = "NOISE", value_parser = noise)]
    pub corruption: Option<String>,
    /// Seed of every random draw: the same seed on the same device gives the same bits.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// Folder to write the restored images to, each as a .png with the name of its original, and
    /// comparison.png: the originals, with --corruption the corrupted images below them, and the
    /// restored images at the bottom.
    #[arg(long, value_name = "FOLDER", default_value = "denoised")]
    pub out: PathBuf,
    /// Where and how it runs.
    #[command(flatten)]
    pub common: Common,
}

/// The rows that a saved model is measured on, and their noise.
#[derive(Debug, Args)]
pub struct NoisyRowsArgs {
    /// Model and rows.
    #[command(flatten)]
    pub used: UseArgs,
    /// Noise: salt-and-pepper:P sets a share P of the values to 0 or 1 at random, masking:P sets a
    /// share P to 0, flip:P turns a share P of the values x to 1 - x, gaussian:S adds noise of
    /// standard deviation S, none adds none. On the prepared
    /// rows. Default: that of the lowest layer in training if MODEL is the folder of a run, else
    /// salt-and-pepper:0.3.
    #[arg(long, value_name = "NOISE", value_parser = noise)]
    pub corruption: Option<String>,
    /// Seed of every random draw: the same seed on the same device gives the same bits. Default:
    /// the seed of the run, else 0.
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
}

/// Arguments of `dae evaluate`.
#[derive(Debug, Args)]
pub struct EvaluateArgs {
    /// Model, rows and noise.
    #[command(flatten)]
    pub of: NoisyRowsArgs,
    /// How many processes compute together.
    #[command(flatten)]
    pub ranks: RanksArgs,
}

/// Arguments of `dae reconstruct`.
#[derive(Debug, Args)]
pub struct ReconstructArgs {
    /// Model, rows and noise.
    #[command(flatten)]
    pub of: NoisyRowsArgs,
    /// What is drawn.
    #[command(flatten)]
    pub picture: PictureArgs,
}

/// Arguments of `dae sample`.
#[derive(Debug, Args)]
pub struct SampleArgs {
    /// Model, rows and noise.
    #[command(flatten)]
    pub of: NoisyRowsArgs,
    /// Number of views of each row. A view is the reconstruction of the corrupted view before it;
    /// the first begins at the row.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = at_least_one)]
    pub views: usize,
    /// Number of rows in the picture.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = at_least_one)]
    pub n: usize,
    /// Folder to write to: views.safetensors has the views of all rows as `features`, those of a
    /// row one after the other, and the label of each view as `labels`; views.png has the first
    /// rows, each with its views on its right.
    #[arg(long, value_name = "FOLDER", default_value = "views")]
    pub out: PathBuf,
}

/// Units of the hidden layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HiddenArg {
    /// Between 0 and 1.
    #[default]
    Sigmoid,
    /// Between -1 and 1.
    Tanh,
    /// The positive part of their input.
    Rectified,
    /// Their input as it is.
    Linear,
}

impl From<HiddenArg> for Activation {
    fn from(unit: HiddenArg) -> Self {
        match unit {
            HiddenArg::Sigmoid => Self::Sigmoid,
            HiddenArg::Tanh => Self::Tanh,
            HiddenArg::Rectified => Self::Relu,
            HiddenArg::Linear => Self::Identity,
        }
    }
}

/// A noise by name, as files keep it.
fn noise(text: &str) -> Result<String, String> {
    text.parse::<Corruption>().map(|corruption| corruption.to_string())
}

#[cfg(test)]
mod tests {
    use super::Cli;

    #[test]
    fn the_command_line_is_sound_and_every_flag_has_a_sentence() {
        crate::session::args::assert_sound::<Cli>();
    }
}
