//! The command line of `dae`.
use crate::completions::CompletionsArgs;
use crate::dbn::fine_tune::args::FineTuneArgs;
use crate::options::{
    Common, DataArgs, LossArg, ModelArgs, RowsArgs, above_zero, at_least_one, below_one, not_negative,
    precision,
};
use crate::rows::SplitArg;
use crate::session::{FeedArgs, SessionArgs};
use chandlery::feedforward::Activation;
use chandlery_datasets::preparation::StepConfig;
use chandlery_ops::Corruption;
use clap::{Args, Parser, Subcommand, ValueEnum};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Denoising autoencoders: train one, or a stack layer by layer, on corrupted rows; then use it for features and to restore images.
///
/// Without a sub-command it trains: `dae --epochs 3` is `dae train --epochs 3`.
#[derive(Debug, Parser)]
#[command(name = "dae", version, args_conflicts_with_subcommands = true)]
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
    Train(Box<TrainArgs>),
    /// Fine-tune a trained model by backpropagation into a classifier or a deep autoencoder, which `dbn` uses: `dbn predict`.
    FineTune(Box<FineTuneArgs>),
    /// Restore noisy image files of the size that the autoencoder reads.
    Denoise(DenoiseArgs),
    /// Write the features of a data set to a .npy, .csv or .safetensors file.
    Encode(EncodeArgs),
    /// Print the errors of reconstructions from clean and from corrupted rows.
    Evaluate(EvaluateArgs),
    /// Draw rows, the same rows corrupted, and their reconstructions.
    Reconstruct(ReconstructArgs),
    /// Print completions of this program for a shell.
    Completions(CompletionsArgs),
}

/// Epochs per layer when none are asked for.
const EPOCHS: usize = 5;

/// Settings of `train`. The run folder keeps them, so that `--resume` needs nothing else.
#[derive(Debug, Clone, PartialEq, Args, Serialize, Deserialize)]
pub struct Settings {
    /// Number of hidden units of each layer, lowest layer first; several make a stack.
    #[arg(long, value_name = "N,N,…", value_delimiter = ',', default_value = "500", value_parser = at_least_one)]
    pub hidden: Vec<usize>,
    /// Noise on what a layer reads, in training only: salt-and-pepper:SHARE, masking:SHARE, gaussian:DEVIATION or none; one for all
    /// layers, or one for each, lowest layer first.
    #[arg(long, value_name = "NOISE,…", value_delimiter = ',', default_value = "salt-and-pepper:0.3", value_parser = noise)]
    pub corruption: Vec<String>,
    /// Give the decoder weights of its own, in place of the transposed weights of the encoder.
    #[arg(long)]
    #[serde(default)]
    pub untied: bool,
    /// What reconstructions are compared by; default: cross-entropy for a layer whose inputs lie between 0 and 1, squared-error for
    /// others, which can have no other.
    #[arg(long, value_enum)]
    pub loss: Option<LossArg>,
    /// Units of the hidden layers.
    #[arg(long, value_enum, value_name = "UNIT", default_value_t)]
    pub hidden_unit: HiddenArg,
    /// Epochs per layer; the command line has them beside.
    #[arg(skip = EPOCHS)]
    pub epochs: usize,
    /// Rows per step; an epoch skips the rows that do not fill a last step.
    #[arg(long, value_name = "ROWS", default_value_t = 8, value_parser = at_least_one)]
    pub batch: usize,
    /// Learning rate, the step along the mean gradient of a minibatch; default: 0.1, or 0.001 for a layer that does not have sigmoid
    /// units and inputs between 0 and 1.
    #[arg(long, value_name = "RATE", value_parser = above_zero)]
    pub learning_rate: Option<f64>,
    /// Momentum, at least 0 and below 1.
    #[arg(long, value_name = "SHARE", default_value_t = 0., value_parser = below_one)]
    pub momentum: f64,
    /// L2 decay of the weights, at least 0.
    #[arg(long, value_name = "DECAY", default_value_t = 0., value_parser = not_negative)]
    pub weight_decay: f64,
    /// What is done to rows before the lowest layer reads them, in this order, fitted to the training rows and saved with the model:
    /// scale=F, unit-variance, center, row-mean, contrast, rescale, pca=N, whiten or zca; default: nothing.
    #[arg(long, value_name = "STEP,...", value_delimiter = ',')]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub prepare: Vec<StepConfig>,
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
    /// Epochs per layer; default: 5.
    /// With --resume, a larger number extends the run, even a finished one: the layer in training and those above it get so many epochs.
    #[arg(id = "more_epochs", long = "epochs", value_name = "N", value_parser = at_least_one)]
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
        Settings { epochs: self.epochs.unwrap_or(EPOCHS), ..self.settings.clone() }
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
    /// Corrupt the images first, to see what the autoencoder makes of known noise: salt-and-pepper:SHARE, masking:SHARE or
    /// gaussian:DEVIATION.
    #[arg(long, value_name = "NOISE", value_parser = noise)]
    pub corruption: Option<String>,
    /// Seed of --corruption.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// Folder to write the restored images to, each as a .png with the name of its original, and comparison.png: the originals, with
    /// --corruption the corrupted images below them, and the restored images at the bottom.
    #[arg(long, value_name = "FOLDER", default_value = "denoised")]
    pub out: PathBuf,
    /// Where and how it runs.
    #[command(flatten)]
    pub common: Common,
}

/// Arguments of `dae encode`.
#[derive(Debug, Args)]
pub struct EncodeArgs {
    /// The autoencoder.
    #[command(flatten)]
    pub model: ModelArgs,
    /// Where rows come from.
    #[command(flatten)]
    pub data: RowsArgs,
    /// Which rows to encode.
    #[arg(long, value_enum, default_value_t = SplitArg::Train)]
    pub split: SplitArg,
    /// Layer whose features are written; 1 is the lowest. Default: the top layer.
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub layer: Option<usize>,
    /// File to write, .npy, .csv or .safetensors; the last two also hold the labels. - writes CSV to standard output.
    #[arg(long, value_name = "FILE", default_value = "features.safetensors")]
    pub out: PathBuf,
    /// Where and how it runs.
    #[command(flatten)]
    pub common: Common,
}

/// The rows that a saved model is measured on, and their noise.
#[derive(Debug, Args)]
pub struct NoisyRowsArgs {
    /// The autoencoder.
    #[command(flatten)]
    pub model: ModelArgs,
    /// Where rows come from.
    #[command(flatten)]
    pub data: RowsArgs,
    /// Which rows; default: the test rows if there are any, else the training rows.
    #[arg(long, value_enum)]
    pub split: Option<SplitArg>,
    /// Noise on the rows: salt-and-pepper:SHARE, masking:SHARE, gaussian:DEVIATION or none; default: that of the lowest layer in
    /// training where MODEL is the folder of a run, else salt-and-pepper:0.3.
    #[arg(long, value_name = "NOISE", value_parser = noise)]
    pub corruption: Option<String>,
    /// Seed of the noise; default: the seed of the run, else 0.
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Where and how it runs.
    #[command(flatten)]
    pub common: Common,
}

/// Arguments of `dae evaluate`.
#[derive(Debug, Args)]
pub struct EvaluateArgs {
    /// Model, rows and noise.
    #[command(flatten)]
    pub of: NoisyRowsArgs,
}

/// Arguments of `dae reconstruct`.
#[derive(Debug, Args)]
pub struct ReconstructArgs {
    /// Model, rows and noise.
    #[command(flatten)]
    pub of: NoisyRowsArgs,
    /// Number of rows in the picture.
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = at_least_one)]
    pub n: usize,
    /// Picture to write: below each line of originals the corrupted rows, and below these their reconstructions.
    #[arg(long, value_name = "FILE", default_value = "reconstructions.png")]
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
