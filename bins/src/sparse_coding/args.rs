//! The command line of `sparse-coding`.
use super::choices::{BasisArg, SolverArg};
use crate::args::converge::ConvergeArgs;
use crate::args::prepare::PrepareArgs;
use crate::args::restore::{DenoiseArgs, InpaintArgs};
use crate::completions::CompletionsArgs;
use crate::options::{above_zero, at_least_one, not_negative};
use crate::patch_rows::{self, InputArgs, ReconstructArgs, UseArgs};
use crate::ranks::RanksArgs;
use crate::self_taught::TaskArgs;
use crate::session::{FeedArgs, SessionArgs};
use chandlery::sparse_coding::SparseCodingTrainConfig;
use chandlery::sparse_coding::basis::BasisUpdate;
use clap::{Args, Parser, Subcommand};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Command lines of the program, at the end of its help.
const EXAMPLES: &str = "\
Examples:
  sparse-coding --out runs/BASIS   # 256 atoms of 12x12 patches
  sparse-coding evaluate runs/BASIS
  sparse-coding encode runs/BASIS --data DATA --out activations.npy
  sparse-coding denoise IMAGE --sigma 25 --add-noise
  sparse-coding inpaint IMAGE --missing 0.5";
/// The same of `train`.
const TRAIN: &str = "\
Examples:
  sparse-coding train --data mnist-sample --atoms 300 --penalty 0.3 --nonnegative
  sparse-coding train --data FOLDER --patch 16 --atoms 512
  sparse-coding train --resume runs/BASIS --epochs 20";
/// The same of `encode`.
const ENCODE: &str = "\
Examples:
  sparse-coding encode runs/BASIS --out activations.npy
  sparse-coding encode runs/BASIS --data mnist --split train --out activations.npy
  sparse-coding encode runs/BASIS --penalty 0.2 --out denser.npy";
/// The same of `evaluate`.
const EVALUATE: &str = "\
Examples:
  sparse-coding evaluate runs/BASIS
  sparse-coding evaluate runs/BASIS --split train";

/// Sparse coding: learn a basis such that few atoms represent each row, with weights found by an l1
/// penalty (lasso), and use it to encode rows.
///
/// Without a sub-command it trains: `sparse-coding --atoms 100` is
/// `sparse-coding train --atoms 100`.
#[derive(Debug, Parser)]
#[command(name = "sparse-coding", version, args_conflicts_with_subcommands = true, after_help = EXAMPLES)]
pub struct Cli {
    /// What to do; default: `train`.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// The arguments of `train`.
    #[command(flatten)]
    pub train: TrainArgs,
}

/// The sub-commands of `sparse-coding`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Learn a basis for patches of images, or for rows, in minibatches.
    #[command(after_help = TRAIN)]
    Train(Box<TrainArgs>),
    /// Write the activations of rows to a .npy, .csv or .safetensors file.
    #[command(after_help = ENCODE)]
    Encode(EncodeArgs),
    /// Print the objective, the error and the sparsity of the activations of rows.
    #[command(after_help = EVALUATE)]
    Evaluate(EvaluateArgs),
    /// Print the squared error of reconstructed rows, and draw some of them with their originals.
    Reconstruct(ReconstructArgs),
    /// Remove noise from an image. As `dictionary-learning denoise`, but the codes that make the
    /// result are lasso solutions (l1 penalty), not pursuits.
    Denoise(Box<DenoisingArgs>),
    /// Fill in missing pixels of an image. As `dictionary-learning inpaint`, but the codes that
    /// make the result are lasso solutions (l1 penalty) over the known pixels of each patch, not
    /// pursuits.
    Inpaint(Box<InpaintingArgs>),
    /// Compare activations with raw pixels and with principal components: learn a basis from the
    /// digits 5 to 9 without labels, then train classifiers of the digits 0 to 4 on each.
    SelfTaught(SelfTaughtArgs),
    /// Print completions of this program for a shell.
    Completions(CompletionsArgs),
}

/// How activations are found and the basis is learned from them; of `train` and `self-taught`.
#[derive(Debug, Clone, PartialEq, Args, Serialize, Deserialize)]
pub struct LearnArgs {
    /// Algorithm that solves the lasso of a row. The model keeps it and encodes with it.
    #[arg(long, value_enum, default_value_t)]
    #[serde(default)]
    pub solver: SolverArg,
    /// Stop solving the lasso of a row when its relative duality gap is at most GAP, above 0. The
    /// solver parallel-coordinates has a stop of its own.
    #[arg(long, value_name = "GAP", default_value_t = 1e-4, value_parser = above_zero)]
    pub gap: f64,
    /// Update of the basis, given the activations.
    #[arg(long, value_enum, default_value_t)]
    pub basis: BasisArg,
    /// Sweeps of the update over the atoms per minibatch. With --basis lagrange-dual it takes as
    /// many iterations as it needs.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = at_least_one)]
    pub sweeps: usize,
    /// How fast old minibatches lose weight, at least 0: after t minibatches, about the last t/RATE
    /// determine the atoms; with 0 all minibatches weigh the same.
    #[arg(long, value_name = "RATE", default_value_t = 5., value_parser = not_negative)]
    pub forgetting: f64,
    /// Rows of a minibatch.
    #[arg(long, value_name = "ROWS", default_value_t = 500, value_parser = at_least_one)]
    pub batch: usize,
}

impl LearnArgs {
    /// The same as the library takes it.
    pub fn config(&self) -> SparseCodingTrainConfig {
        SparseCodingTrainConfig {
            basis: BasisUpdate { method: self.basis.into(), iterations: self.sweeps },
            forgetting: self.forgetting,
            ..SparseCodingTrainConfig::default()
        }
    }
}

/// Default number of passes over the rows.
const EPOCHS: usize = 10;

/// Settings of `train`. The run folder keeps them, so that `--resume` needs nothing else.
#[derive(Debug, Clone, PartialEq, Args, Serialize, Deserialize)]
pub struct Settings {
    /// Number of atoms.
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = at_least_one)]
    pub atoms: usize,
    /// l1 penalty (lambda of the lasso), at least 0. In the unit of the prepared rows. Larger
    /// values give fewer nonzero activations.
    #[arg(long, value_name = "PENALTY", default_value_t = 0.5, value_parser = not_negative)]
    pub penalty: f64,
    /// Allow only coefficients of at least 0. Default: false; true in self-taught.
    #[arg(long, value_name = "true|false", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub nonnegative: Option<bool>,
    /// How activations are found and the basis is learned from them.
    #[command(flatten)]
    #[serde(flatten)]
    pub learn: LearnArgs,
    /// When training ends before its last epoch.
    #[command(flatten)]
    #[serde(flatten)]
    pub converge: ConvergeArgs,
    /// How rows are prepared.
    #[command(flatten)]
    #[serde(flatten)]
    pub prepare: PrepareArgs,
    /// Passes over the rows.
    #[arg(skip = EPOCHS)]
    pub epochs: usize,
    /// Seed of every random draw: the same seed on the same device gives the same bits.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
}

/// Arguments of `sparse-coding train`.
#[derive(Debug, Args)]
pub struct TrainArgs {
    /// Where rows come from.
    #[command(flatten)]
    pub input: InputArgs,
    /// How the basis is learned.
    #[command(flatten)]
    pub settings: Settings,
    /// Epochs: passes over the training rows. Default: 10. With --resume, a larger number extends
    /// the run, even a finished one, to N epochs in all.
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub epochs: Option<usize>,
    /// How rows reach the device.
    #[command(flatten)]
    pub feed: FeedArgs,
    /// Where the run is saved, and how it is resumed.
    #[command(flatten)]
    pub session: SessionArgs,
}

/// Arguments of `sparse-coding encode`.
#[derive(Debug, Args)]
pub struct EncodeArgs {
    /// Model, rows and the file.
    #[command(flatten)]
    pub with: patch_rows::EncodeArgs,
    /// l1 penalty (lambda of the lasso), at least 0. In the unit of the prepared rows. Default:
    /// that of the training.
    #[arg(long, value_name = "PENALTY", value_parser = not_negative)]
    pub penalty: Option<f64>,
}

/// Arguments of `sparse-coding evaluate`.
#[derive(Debug, Args)]
pub struct EvaluateArgs {
    /// Model and rows.
    #[command(flatten)]
    pub of: UseArgs,
    /// How many processes compute together.
    #[command(flatten)]
    pub ranks: RanksArgs,
}

/// Arguments of `sparse-coding denoise`.
#[derive(Debug, Args)]
pub struct DenoisingArgs {
    /// Image, noise and dictionary. A dictionary that is learned from the image is learned by
    /// pursuits.
    #[command(flatten)]
    pub of: DenoiseArgs,
    /// l1 penalty (lambda of the lasso), at least 0. In units of --sigma; for photographs, use 1.5
    /// to 2.5.
    #[arg(long, value_name = "PENALTY", default_value_t = 2., value_parser = not_negative)]
    pub penalty: f64,
}

/// Arguments of `sparse-coding inpaint`.
#[derive(Debug, Args)]
pub struct InpaintingArgs {
    /// Image, missing pixels and dictionary. A dictionary that is learned from the image is learned
    /// by pursuits.
    #[command(flatten)]
    pub of: InpaintArgs,
    /// l1 penalty (lambda of the lasso), at least 0. In units of --error, or of 1.15 times --sigma
    /// where that is larger.
    #[arg(long, value_name = "PENALTY", default_value_t = 1., value_parser = not_negative)]
    pub penalty: f64,
}

/// Arguments of `sparse-coding self-taught`.
#[derive(Debug, Args)]
pub struct SelfTaughtArgs {
    /// Rows, labels, baselines and seeds.
    #[command(flatten)]
    pub task: TaskArgs,
    /// Number of atoms.
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = at_least_one)]
    pub atoms: usize,
    /// l1 penalty (lambda of the lasso), at least 0. In the unit of the prepared rows. Larger
    /// values give fewer nonzero activations.
    #[arg(long, value_name = "PENALTY", default_value_t = 0.2, value_parser = not_negative)]
    pub penalty: f64,
    /// Allow only coefficients of at least 0. Default: false; true in self-taught.
    #[arg(long, value_name = "true|false", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub nonnegative: Option<bool>,
    /// How activations are found and the basis is learned from them.
    #[command(flatten)]
    pub learn: LearnArgs,
    /// Epochs: passes over the training rows. These have no labels.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = at_least_one)]
    pub epochs: usize,
    /// Folder to write the model of the first seed and the picture of its basis to; default: none
    /// is written.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn parse(flags: &[&str]) -> Result<Cli, clap::Error> {
        crate::session::args::parse(["sparse-coding"].iter().chain(flags))
    }

    #[test]
    fn the_command_line_is_sound_and_every_flag_has_a_sentence() {
        crate::session::args::assert_sound::<Cli>();
    }

    #[test]
    fn the_defaults_are_those_of_the_library_and_settings_come_back_from_json() {
        let train = parse(&[]).unwrap().train;
        assert_eq!(train.settings.learn.config(), SparseCodingTrainConfig::default());
        assert_eq!(train.settings.epochs, EPOCHS);
        let text = serde_json::to_string(&train.settings).unwrap();
        assert_eq!(serde_json::from_str::<Settings>(&text).unwrap(), train.settings);
    }

    #[test]
    fn numbers_out_of_range_are_refused_with_the_range() {
        for (flags, text) in [
            (["--penalty", "-1"], "must be a number of at least 0"),
            (["--gap", "0"], "must be a number above 0"),
            (["--atoms", "0"], "must be a whole number of at least 1"),
            (
                ["--basis", "newton"],
                "possible values: projected-gradient, spectral-gradient, blocks, lagrange-dual",
            ),
            (["--solver", "newton"], "possible values: active-set, cyclic, fista, parallel-coordinates"),
        ] {
            let flags = [format!("{}={}", flags[0], flags[1])];
            let err = parse(&[&flags[0]]).unwrap_err();
            assert!(err.to_string().contains(text), "{flags:?}: {err}");
            assert_eq!(err.exit_code(), 2);
        }
        let nonnegative = |flags: &[&str]| parse(flags).unwrap().train.settings.nonnegative;
        assert_eq!(
            [nonnegative(&[]), nonnegative(&["--nonnegative"]), nonnegative(&["--nonnegative=false"])],
            [None, Some(true), Some(false)]
        );
        let err = parse(&["--resume", "runs/a", "--penalty", "9"]).unwrap_err();
        assert!(err.to_string().contains("cannot be used with"), "{err}");
        assert!(parse(&["--resume", "runs/a", "--epochs", "50"]).is_ok());
    }
}
