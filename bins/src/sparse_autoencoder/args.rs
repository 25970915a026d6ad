//! The command line of `sparse-autoencoder`.
use super::latents::args::{LatentArgs, TopArgs};
use crate::args::converge::ConvergeArgs;
use crate::args::prepare::PrepareArgs;
use crate::completions::CompletionsArgs;
use crate::options::{above_zero, at_least_one, inside_zero_one, not_negative};
use crate::patch_rows::{EncodeArgs, InputArgs, ReconstructArgs, UseArgs};
use crate::precision::precision_or_f64;
use crate::ranks::RanksArgs;
use crate::self_taught::TaskArgs;
use crate::session::{FeedArgs, SessionArgs};
use anyhow::{Result, ensure};
use chandlery::Precision;
use chandlery::sparse_autoencoder::{
    CostConfig, Decoder, FullBatchOptimizer, SparseAutoencoderLbfgsTrainConfig, SparseAutoencoderTrainConfig,
    Start,
};
use clap::{Args, Parser, Subcommand, ValueEnum};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Command lines of the program, at the end of its help.
const EXAMPLES: &str = "\
Examples:
  sparse-autoencoder --out runs/FEATURES   # 25 features of 8x8 patches
  sparse-autoencoder evaluate runs/FEATURES
  sparse-autoencoder encode runs/FEATURES --data DATA --out features.npy
  sparse-autoencoder self-taught --labelled 10,100,1000 --seeds 5";
/// The same of `train`.
const TRAIN: &str = "\
Examples:
  sparse-autoencoder train --data mnist --hidden 196 --sparsity-target 0.1 --weight-decay 3e-3
  sparse-autoencoder train --data FOLDER --patch 10 --prepare row-mean,zca=0.1 --decoder linear
  sparse-autoencoder train --optimizer adam --epochs 50 --start gaussian
  sparse-autoencoder train --optimizer cg --start-from runs/FEATURES
  sparse-autoencoder train --data ACTIVATIONS.npy --kind top-k --latents 24576 --active 32
  sparse-autoencoder train --data SHARDS --kind top-k --mix 1000000 --epochs 1
  sparse-autoencoder train --resume runs/FEATURES --iterations 800";
/// The same of `encode`.
const ENCODE: &str = "\
Examples:
  sparse-autoencoder encode runs/FEATURES --out features.npy
  sparse-autoencoder encode runs/FEATURES --data mnist --split train --out features.npy";
/// The same of `evaluate`.
const EVALUATE: &str = "\
Examples:
  sparse-autoencoder evaluate runs/FEATURES
  sparse-autoencoder evaluate runs/FEATURES --split train --sparsity-target 0.1
  sparse-autoencoder evaluate runs/LATENTS --data ACTIVATIONS --picture densities.svg";
/// The same of `top`.
const TOP: &str = "\
Examples:
  sparse-autoencoder top runs/LATENTS --data ACTIVATIONS --texts TEXTS.txt
  sparse-autoencoder top runs/LATENTS --rows 64 --out top";

/// Sparse autoencoder: learn features that are rarely active, and use them to encode rows.
///
/// Without a sub-command it trains: `sparse-autoencoder --hidden 49` is
/// `sparse-autoencoder train --hidden 49`.
#[derive(Debug, Parser)]
#[command(name = "sparse-autoencoder", version, args_conflicts_with_subcommands = true, after_help = EXAMPLES)]
pub struct Cli {
    /// What to do; default: `train`.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// The arguments of `train`.
    #[command(flatten)]
    pub train: TrainArgs,
}

/// The sub-commands of `sparse-autoencoder`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Train on patches of images, or on rows: by L-BFGS over all of them, or by --optimizer.
    #[command(after_help = TRAIN)]
    Train(Box<TrainArgs>),
    /// Write the features of rows to a .npy, .csv or .safetensors file; of models of --kind sparse
    /// codes to a .safetensors or .npz file.
    #[command(after_help = ENCODE)]
    Encode(EncodeArgs),
    /// Print the terms of the cost and how often features are active; of models of --kind the
    /// fraction of variance unexplained, and how many latents are active.
    #[command(after_help = EVALUATE)]
    Evaluate(EvaluateArgs),
    /// Write the rows that excite each latent of a model of --kind most to a file, and a page that
    /// shows them in a browser.
    #[command(after_help = TOP)]
    Top(TopArgs),
    /// Print the squared error of reconstructed rows, and draw some of them with their originals.
    Reconstruct(ReconstructArgs),
    /// Compare learned features with raw pixels and with principal components: learn features from
    /// the digits 5 to 9 without labels, then train classifiers of the digits 0 to 4 on each.
    ///
    /// The default settings were chosen by the accuracy on the 500 test digits of classes 0 to 4 in
    /// mnist-sample, so the accuracy on these digits is slightly optimistic.
    SelfTaught(SelfTaughtArgs),
    /// Print completions of this program for a shell.
    Completions(CompletionsArgs),
}

/// What the outputs are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DecoderArg {
    /// Sigmoid units, for values between 0 and 1.
    #[default]
    Sigmoid,
    /// Linear units, for real values.
    Linear,
}

impl From<DecoderArg> for Decoder {
    fn from(decoder: DecoderArg) -> Self {
        match decoder {
            DecoderArg::Sigmoid => Self::Sigmoid,
            DecoderArg::Linear => Self::Linear,
        }
    }
}

/// How weights follow the gradient.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OptimizerArg {
    /// L-BFGS over all rows, which estimates the curvature of the cost.
    #[default]
    Lbfgs,
    /// Nonlinear conjugate gradient over all rows.
    Cg,
    /// Batch gradient descent over all rows.
    Gd,
    /// Adam by minibatches, which adapts the rate of each weight (Kingma and Ba 2015).
    Adam,
}

impl OptimizerArg {
    /// The one of the library that takes all rows; none for minibatches.
    pub fn of_all_rows(self) -> Option<FullBatchOptimizer> {
        match self {
            Self::Lbfgs => Some(FullBatchOptimizer::Lbfgs),
            Self::Cg => Some(FullBatchOptimizer::ConjugateGradient),
            Self::Gd => Some(FullBatchOptimizer::GradientDescent),
            Self::Adam => None,
        }
    }

    /// As people call it.
    pub fn words(self) -> &'static str {
        match self {
            Self::Lbfgs => "L-BFGS",
            Self::Cg => "conjugate gradient",
            Self::Gd => "gradient descent",
            Self::Adam => "Adam",
        }
    }
}

/// How the first weights are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StartArg {
    /// Uniform, up to the root of 6 / (visible + hidden units + 1).
    #[default]
    Uniform,
    /// Normal, of standard deviation 0.01 (Klaus and Welles 2014).
    Gaussian,
}

impl From<StartArg> for Start {
    fn from(start: StartArg) -> Self {
        match start {
            StartArg::Uniform => Self::Uniform,
            StartArg::Gaussian => Self::Gaussian,
        }
    }
}

/// Settings of `train`. The run folder keeps them, so that `--resume` needs nothing else.
#[derive(Debug, Clone, PartialEq, Args, Serialize, Deserialize)]
pub struct Settings {
    /// Number of hidden units. They are the features.
    #[arg(long, value_name = "N", default_value_t = 25, value_parser = at_least_one)]
    pub hidden: usize,
    /// Models with many latents of which few are active.
    #[command(flatten)]
    #[serde(flatten)]
    pub latents: LatentArgs,
    /// What the cost weighs, and how it is computed.
    #[command(flatten)]
    #[serde(flatten)]
    pub cost: CostArgs,
    /// Outputs of the decoder.
    #[arg(long, value_enum, default_value_t)]
    pub decoder: DecoderArg,
    /// How rows are prepared.
    #[command(flatten)]
    #[serde(flatten)]
    pub prepare: PrepareArgs,
    /// Optimizer. lbfgs, cg and gd take the gradient over all rows in every iteration; adam learns
    /// from minibatches, in epochs.
    #[arg(long, value_enum, default_value_t)]
    #[serde(default)]
    pub optimizer: OptimizerArg,
    /// Learning rate, above 0. Of gd: the fixed rate; default: each step is found by backtracking.
    /// Of adam; default: 0.003. Of --kind; default: 2e-4 over the root of latents / 16384. Not with
    /// lbfgs and cg, which search for the length of each step.
    #[arg(long, value_name = "RATE", value_parser = above_zero)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub learning_rate: Option<f64>,
    /// Rows of a minibatch. Of adam, default: 1000; of --kind, default: 4096.
    #[arg(long, value_name = "ROWS", value_parser = at_least_one)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<usize>,
    /// Start of training. The initial weights; biases are 0.
    #[arg(long, value_enum, default_value_t)]
    #[serde(default)]
    pub start: StartArg,
    /// What to start from. The initial weights, in place of --start; they also set the number of
    /// hidden units. The folder of a run (or any folder with config.json and model.safetensors),
    /// OWNER/NAME on the hub, or a .safetensors file with `weight` [hidden, visible] and
    /// `decoder_weight` [visible, hidden], and where biases are not 0 `bias` and `visible_bias`.
    #[arg(long, value_name = "MODEL", conflicts_with_all = ["start", "hidden"])]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_from: Option<String>,
    /// When training by minibatches ends before its last epoch.
    #[command(flatten)]
    #[serde(flatten)]
    pub converge: ConvergeArgs,
    /// Iterations over all rows, from the option `--iterations` of [`TrainArgs`].
    #[arg(skip = ITERATIONS)]
    pub iterations: usize,
    /// Epochs of minibatches, from the option `--epochs` of [`TrainArgs`].
    #[arg(skip = EPOCHS)]
    #[serde(default)]
    pub epochs: usize,
    /// Seed of every random draw: the same seed on the same device gives the same bits.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
}

/// Default numbers of iterations, and of epochs.
const ITERATIONS: usize = 400;
const EPOCHS: usize = 100;

impl Settings {
    /// How the library trains over all rows by this optimiser.
    pub fn fit(&self, optimizer: FullBatchOptimizer) -> SparseAutoencoderLbfgsTrainConfig {
        SparseAutoencoderLbfgsTrainConfig {
            optimizer,
            learning_rate: self.learning_rate,
            ..self.cost.fit(self.iterations)
        }
    }

    /// How it trains by minibatches.
    pub fn minibatches(&self) -> SparseAutoencoderTrainConfig {
        let usual = SparseAutoencoderTrainConfig::default();
        SparseAutoencoderTrainConfig {
            cost: self.cost.fit(1).cost,
            batch: self.batch.unwrap_or(usual.batch),
            learning_rate: self.learning_rate.map_or(usual.learning_rate.clone(), Into::into),
            ..usual
        }
    }

    /// Refuses options that contradict each other or would be ignored.
    ///
    /// # Errors
    /// When there are some; the message names them.
    pub fn check(&self) -> Result<()> {
        if self.latents.kind.is_some() {
            return self.check_latents();
        }
        let Self { optimizer, learning_rate, batch, .. } = self;
        let searches = matches!(optimizer, OptimizerArg::Lbfgs | OptimizerArg::Cg);
        ensure!(
            learning_rate.is_none() || !searches,
            "--learning-rate: {} searches for the length of each step; leave it out, or give --optimizer gd or adam",
            optimizer.words()
        );
        let minibatches = *optimizer == OptimizerArg::Adam;
        ensure!(
            batch.is_none() || minibatches,
            "--batch: {} takes all rows at once; leave it out, or give --optimizer adam",
            optimizer.words()
        );
        ensure!(
            self.converge.tolerance.is_none() || minibatches,
            "--tolerance: {} makes iterations over all rows, and ends where no step lowers the cost; leave it out, or give --optimizer adam",
            optimizer.words()
        );
        ensure!(
            !minibatches || !self.cost.fit(1).double,
            "--precision f64: minibatches are computed in f32; give --precision f32, or another --optimizer"
        );
        Ok(())
    }
}

impl Settings {
    /// Refuses what models of `--kind` do not have.
    fn check_latents(&self) -> Result<()> {
        let Self { latents, optimizer, start_from, cost, .. } = self;
        ensure!(
            *optimizer == OptimizerArg::default(),
            "--optimizer: --kind learns by Adam from minibatches; leave it out"
        );
        ensure!(start_from.is_none(), "--start-from: --kind draws its first weights; leave it out");
        ensure!(
            !cost.fit(1).double,
            "--precision f64: --kind computes products in f32, tf32 or bf16; give one of these"
        );
        latents.check()
    }
}

/// What the cost weighs, and how it is computed.
#[derive(Debug, Clone, PartialEq, Args, Serialize, Deserialize)]
pub struct CostArgs {
    /// L2 decay of the weights, at least 0. The cost adds DECAY / 2 x the sum of squared weights.
    #[arg(long, value_name = "DECAY", default_value_t = 1e-4, value_parser = not_negative)]
    pub weight_decay: f64,
    /// Weight of the sparsity penalty, at least 0. The cost adds WEIGHT x the divergence of each
    /// mean activation from its target.
    #[arg(long, value_name = "WEIGHT", default_value_t = 3., value_parser = not_negative)]
    pub sparsity_weight: f64,
    /// Target mean activation of each hidden unit, above 0 and below 1. 0.1 suits digits.
    #[arg(long, value_name = "ACTIVATION", default_value_t = 0.01, value_parser = inside_zero_one)]
    pub sparsity_target: f64,
    /// Number of past steps from which L-BFGS estimates the curvature of the cost.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = at_least_one)]
    pub history: usize,
    /// Precision of the matrix products; weights and sums are always f32, but f64 computes
    /// everything in f64.
    #[arg(long, value_name = "f32|tf32|bf16|f64", default_value = "f32", value_parser = precision_or_f64)]
    pub precision: String,
    /// Rows of a chunk; none where all rows stay on the device.
    #[arg(skip)]
    pub chunk: Option<usize>,
}

impl CostArgs {
    /// The same as the library takes it.
    pub fn fit(&self, iterations: usize) -> SparseAutoencoderLbfgsTrainConfig {
        // What is no precision of products is f64.
        let precision = self.precision.parse::<Precision>().ok();
        SparseAutoencoderLbfgsTrainConfig {
            cost: CostConfig {
                weight_decay: self.weight_decay,
                sparsity_weight: self.sparsity_weight,
                sparsity_target: self.sparsity_target,
                precision: precision.unwrap_or_default(),
            },
            iterations,
            history: self.history,
            chunk: self.chunk,
            double: precision.is_none(),
            ..SparseAutoencoderLbfgsTrainConfig::default()
        }
    }
}

/// Arguments of `sparse-autoencoder train`.
#[derive(Debug, Args)]
pub struct TrainArgs {
    /// Where rows come from.
    #[command(flatten)]
    pub input: InputArgs,
    /// How the model is trained.
    #[command(flatten)]
    pub settings: Settings,
    /// Iterations, which are no epochs: each computes the gradient from all rows at least once.
    /// Default: 400. Not with --optimizer adam and --kind, which have --epochs. With --resume, a larger number
    /// extends the run, even a finished one, to N iterations in all.
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub iterations: Option<usize>,
    /// Epochs: passes over the training rows. Of --optimizer adam, default: 100; of --kind, default:
    /// 10. With --resume, a larger number extends the run, even a finished one, to N epochs in all.
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub epochs: Option<usize>,
    /// How rows reach the device.
    #[command(flatten)]
    pub feed: FeedArgs,
    /// Where the run is saved, and how it is resumed.
    #[command(flatten)]
    pub session: SessionArgs,
}

/// Arguments of `sparse-autoencoder evaluate`.
#[derive(Debug, Args)]
pub struct EvaluateArgs {
    /// Model and rows.
    #[command(flatten)]
    pub of: UseArgs,
    /// What the cost weighs.
    #[command(flatten)]
    pub cost: CostArgs,
    /// How rows reach the device.
    #[command(flatten)]
    pub feed: FeedArgs,
    /// Rows that a transcoder gives back in place of those of --data: named as these are, a row for
    /// each of them in the same order. They are not prepared.
    #[arg(long, value_name = "DATA")]
    pub targets: Option<String>,
    /// Histogram of the densities of latents to write, an .svg file. Of models of --kind.
    #[arg(long, value_name = "FILE")]
    pub picture: Option<PathBuf>,
    /// How many processes compute together.
    #[command(flatten)]
    pub ranks: RanksArgs,
}

/// Arguments of `sparse-autoencoder self-taught`.
#[derive(Debug, Args)]
pub struct SelfTaughtArgs {
    /// Rows, labels, baselines and seeds.
    #[command(flatten)]
    pub task: TaskArgs,
    /// Number of hidden units. They are the features.
    #[arg(long, value_name = "N", default_value_t = 400, value_parser = at_least_one)]
    pub hidden: usize,
    /// L2 decay of the weights, at least 0. The cost adds DECAY / 2 x the sum of squared weights.
    #[arg(long, value_name = "DECAY", default_value_t = 3e-4, value_parser = not_negative)]
    pub weight_decay: f64,
    /// Weight of the sparsity penalty, at least 0. The cost adds WEIGHT x the divergence of each
    /// mean activation from its target.
    #[arg(long, value_name = "WEIGHT", default_value_t = 1., value_parser = not_negative)]
    pub sparsity_weight: f64,
    /// Target mean activation of each hidden unit, above 0 and below 1.
    #[arg(long, value_name = "ACTIVATION", default_value_t = 0.1, value_parser = inside_zero_one)]
    pub sparsity_target: f64,
    /// Iterations, which are no epochs: each computes the gradient from all rows at least once.
    #[arg(long, value_name = "N", default_value_t = 120, value_parser = at_least_one)]
    pub iterations: usize,
    /// Folder to write the model of the first seed and the picture of its features to; default:
    /// none is written.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn parse(flags: &[&str]) -> Result<Cli, clap::Error> {
        crate::session::args::parse(["sparse-autoencoder"].iter().chain(flags))
    }

    #[test]
    fn the_command_line_is_sound_and_every_flag_has_a_sentence() {
        crate::session::args::assert_sound::<Cli>();
    }

    #[test]
    fn the_defaults_are_those_of_the_tutorial() {
        let train = parse(&[]).unwrap().train;
        let fit = train.settings.fit(FullBatchOptimizer::Lbfgs);
        assert_eq!(fit, SparseAutoencoderLbfgsTrainConfig::default());
        assert_eq!(train.settings.minibatches(), SparseAutoencoderTrainConfig::default());
        assert_eq!(train.settings.optimizer.of_all_rows(), Some(FullBatchOptimizer::default()));
        assert_eq!(Start::from(train.settings.start), Start::default());
        assert_eq!((train.settings.hidden, train.settings.iterations), (25, 400));
        let text = serde_json::to_string(&train.settings).unwrap();
        assert_eq!(serde_json::from_str::<Settings>(&text).unwrap(), train.settings);
        // Runs from before there was a choice were made by L-BFGS from a uniform start.
        let mut before: serde_json::Value = serde_json::from_str(&text).unwrap();
        for name in ["optimizer", "start", "epochs"] {
            assert!(before.as_object_mut().unwrap().remove(name).is_some(), "{name}");
        }
        let read = serde_json::from_value::<Settings>(before).unwrap();
        assert_eq!(Settings { epochs: EPOCHS, ..read }, train.settings);
    }

    #[test]
    fn numbers_out_of_range_are_refused_with_the_range() {
        for (flags, text) in [
            (["--sparsity-target", "1"], "above 0 and below 1"),
            (["--sparsity-target", "0"], "above 0 and below 1"),
            (["--hidden", "0"], "must be a whole number of at least 1"),
            (["--iterations", "0"], "must be a whole number of at least 1"),
        ] {
            let err = parse(&flags).unwrap_err();
            assert!(err.to_string().contains(text), "{flags:?}: {err}");
            assert_eq!(err.exit_code(), 2);
        }
        let err = parse(&["--start-from", "runs/a", "--start", "gaussian"]).unwrap_err();
        assert!(err.to_string().contains("cannot be used with"), "{err}");
        for (flags, text) in [
            (["--optimizer", "cg", "--learning-rate", "1"], "--learning-rate: conjugate gradient searches"),
            (["--optimizer", "gd", "--batch", "9"], "--batch: gradient descent takes all rows at once"),
            (["--optimizer", "adam", "--precision", "f64"], "--precision f64: minibatches"),
        ] {
            let err = parse(&flags).unwrap().train.settings.check().unwrap_err();
            assert!(err.to_string().starts_with(text), "{flags:?}: {err}");
        }
        let err = parse(&["--resume", "runs/a", "--hidden", "9"]).unwrap_err();
        assert!(err.to_string().contains("cannot be used with"), "{err}");
        assert!(parse(&["--resume", "runs/a", "--iterations", "500"]).is_ok());
    }
}
