//! The command line of `dictionary-learning`.
use super::choices::{ReplaceArg, SparseFormat, StartArg};
use super::classify::ClassifyArgs;
use crate::args::converge::ConvergeArgs;
use crate::args::prepare::PrepareArgs;
use crate::args::restore::{DenoiseArgs, InpaintArgs};
use crate::choices::{Method, Rule};
use crate::completions::CompletionsArgs;
use crate::options::{Common, ReadArgs, above_zero, at_least_one, at_most_one, not_negative, whole_number};
use crate::patch_rows::InputArgs;
use crate::ranks::RanksArgs;
use crate::rows::SplitArg;
use crate::session::SessionArgs;
use clap::{Args, Parser, Subcommand};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Command lines of the program, at the end of its help.
const EXAMPLES: &str = "\
Examples:
  dictionary-learning --out runs/DICTIONARY   # 256 atoms of 8x8 patches
  dictionary-learning encode runs/DICTIONARY --data IMAGE --out codes.safetensors
  dictionary-learning decode runs/DICTIONARY codes.safetensors
  dictionary-learning denoise IMAGE --sigma 25 --add-noise";
/// The same of `train`.
const TRAIN: &str = "\
Examples:
  dictionary-learning train --data FOLDER --patch 12 --atoms 512 --nonzero 8
  dictionary-learning train --data mnist-sample --atoms 300 --pursuit ols --rule ksvd
  dictionary-learning train --online --epochs 4
  dictionary-learning train --resume runs/DICTIONARY --epochs 100";
/// The same of `encode`.
const ENCODE: &str = "\
Examples:
  dictionary-learning encode runs/DICTIONARY --data IMAGE --out codes.safetensors
  dictionary-learning encode runs/DICTIONARY --data mnist --split train --nonzero 5 --out codes.npz
  dictionary-learning encode runs/DICTIONARY --data mnist --out codes.npz --sparse-format csr";

/// The same of `classify`.
const CLASSIFY: &str = "\
Examples:
  dictionary-learning classify
  dictionary-learning classify --data FOLDER --atoms 100 --nonzero 8
  dictionary-learning classify --by readout --atoms 256";

/// Dictionary learning: train atoms such that a few of them, chosen by a greedy pursuit, represent
/// each row; the weights are its sparse code. Then use them to encode rows and to denoise and
/// inpaint images.
///
/// Without a sub-command it trains: `dictionary-learning --epochs 10` is
/// `dictionary-learning train --epochs 10`.
#[derive(Debug, Parser)]
#[command(name = "dictionary-learning", version, args_conflicts_with_subcommands = true, after_help = EXAMPLES)]
pub struct Cli {
    /// What to do; default: `train`.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// The arguments of `train`.
    #[command(flatten)]
    pub train: TrainArgs,
}

/// The sub-commands of `dictionary-learning`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Train a dictionary on patches of images, or on rows.
    #[command(after_help = TRAIN)]
    Train(Box<TrainArgs>),
    /// Write the sparse codes of a data set to a .npz or .safetensors file.
    #[command(after_help = ENCODE)]
    Encode(EncodeArgs),
    /// Write the images or rows that sparse codes represent.
    Decode(DecodeArgs),
    /// Remove noise from an image with a dictionary that is learned from the image itself or given.
    Denoise(DenoiseArgs),
    /// Fill in the missing pixels of an image.
    Inpaint(InpaintArgs),
    /// Tell the classes of labelled rows apart, by a dictionary for each class or by codes.
    #[command(after_help = CLASSIFY)]
    Classify(ClassifyArgs),
    /// Print completions of this program for a shell.
    Completions(CompletionsArgs),
}

/// Default number of passes over the rows.
const EPOCHS: usize = 50;

/// Settings of `train`. The run folder keeps them, so that `--resume` needs nothing else.
#[derive(Debug, Clone, PartialEq, Args, Serialize, Deserialize)]
pub struct Settings {
    /// Number of atoms.
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = at_least_one)]
    pub atoms: usize,
    /// Largest number of atoms in a code.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = at_least_one)]
    pub nonzero: usize,
    /// Root mean square error at which a code stops growing, in the unit of the rows (grey levels
    /// for images). Training then keeps the dictionary whose codes need the fewest atoms. Default:
    /// codes have --nonzero atoms.
    #[arg(long, value_name = "RMS", value_parser = above_zero)]
    pub error: Option<f64>,
    /// Pursuit that chooses a code's atoms. Default: omp, or ols with --online, which learns faster
    /// with it.
    #[arg(long, value_enum)]
    pub pursuit: Option<Method>,
    /// Rows that are coded at a time; fewer need less memory and give the same codes. Default: as
    /// many as memory has room for.
    #[arg(long, value_name = "ROWS", value_parser = at_least_one)]
    pub chunk_rows: Option<usize>,
    /// Allow only coefficients of at least 0. Default: false; true in self-taught.
    #[arg(long, value_name = "true|false", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub nonnegative: Option<bool>,
    /// Keep the numbers of every atom at least 0: with --nonnegative, a nonnegative matrix
    /// factorisation with sparse codes. New atoms have numbers below 0 set to 0 and are scaled to
    /// norm 1. Needs --rule sgk or nsgk, or --online. Rows keep their means.
    #[arg(long)]
    pub nonnegative_atoms: bool,
    /// Rule that updates the atoms. Default: ak-svd, or sgk with --nonnegative-atoms. Not with
    /// --online, which has its own.
    #[arg(long, value_enum, conflicts_with = "online")]
    pub rule: Option<Rule>,
    /// Atoms updated together from one error matrix, 1 to --atoms; default: all, or 1 with
    /// --nonnegative-atoms. Not with --rule mod or --online.
    #[arg(long, value_name = "N", value_parser = at_least_one, conflicts_with = "online")]
    pub group: Option<usize>,
    /// Passes over the rows, from the option `--epochs` of [`TrainArgs`].
    #[arg(skip = EPOCHS)]
    pub epochs: usize,
    /// Learn online, from minibatches instead of all rows at once. Online learning (Mairal et al. 2010) needs fewer epochs.
    #[arg(long)]
    pub online: bool,
    /// Rows of a minibatch. Needs --online.
    #[arg(long, value_name = "ROWS", default_value_t = 512, value_parser = at_least_one, requires = "online")]
    pub batch: usize,
    /// How fast old minibatches lose weight, at least 0: after t minibatches, about the last t/RATE
    /// determine the atoms; with 0 all minibatches weigh the same. Needs --online; default: 20.
    #[arg(long, value_name = "RATE", value_parser = not_negative, requires = "online")]
    pub forgetting: Option<f64>,
    /// Sweeps of the update over the atoms per minibatch. Needs --online; default: 1.
    #[arg(long, value_name = "N", value_parser = at_least_one, requires = "online")]
    pub sweeps: Option<usize>,
    /// Start of training. The initial dictionary: rows drawn at random, or for patches the
    /// overcomplete cosine transform.
    #[arg(long, value_enum, default_value_t = StartArg::Random)]
    pub start: StartArg,
    /// What to start from. The initial dictionary, in place of --start; it also sets the number of
    /// atoms. The folder of a run (or any folder with config.json and model.safetensors),
    /// OWNER/NAME on the hub, or a .npy, .csv or .safetensors file with one atom per row (the
    /// tensor `dictionary`, or the only matrix).
    #[arg(long, value_name = "MODEL", conflicts_with_all = ["start", "atoms"])]
    pub start_from: Option<String>,
    /// Make the first atom constant and keep it fixed, to represent the mean of a row; rows keep
    /// their means.
    #[arg(long)]
    pub fixed_dc: bool,
    /// What replaces an atom that too few rows use (see --min-uses, --max-idle) or that nearly
    /// equals another (see --max-coherence).
    #[arg(long, value_enum, default_value_t = ReplaceArg::WorstRepresented)]
    pub replace: ReplaceArg,
    /// Replace an atom that fewer rows than this use; default: 4. Not with --online, which has
    /// --max-idle.
    #[arg(long, value_name = "ROWS", conflicts_with = "online", value_parser = whole_number)]
    pub min_uses: Option<usize>,
    /// With --online, replace an atom that went unused for this many consecutive rows; default:
    /// 10,000.
    #[arg(long, value_name = "ROWS", value_parser = at_least_one, requires = "online")]
    pub max_idle: Option<usize>,
    /// Largest absolute cosine of the angle between two atoms, above 0 and at most 1. If it is
    /// larger, the second atom is replaced; never with --replace none. Default: 0.99; 1 sets no
    /// limit.
    #[arg(long, value_name = "COSINE", value_parser = at_most_one)]
    pub max_coherence: Option<f64>,
    /// Weight of a penalty on coherent atoms, in squared units of the rows, at least 0; not with
    /// --rule mod or --online.
    #[arg(long, value_name = "WEIGHT", default_value_t = 0., value_parser = not_negative, conflicts_with = "online")]
    pub coherence_penalty: f64,
    /// When training ends before its last epoch.
    #[command(flatten)]
    #[serde(flatten)]
    pub converge: ConvergeArgs,
    /// How rows are prepared.
    #[command(flatten)]
    #[serde(flatten)]
    pub prepare: PrepareArgs,
    /// Seed of every random draw: the same seed on the same device gives the same bits.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
}

impl Settings {
    /// How a code's atoms are chosen.
    pub fn method(&self) -> Method {
        let usual = if self.online { Method::Ols } else { Method::Omp };
        self.pursuit.unwrap_or(usual)
    }

    /// Whether coefficients are at least 0.
    pub fn is_nonnegative(&self) -> bool {
        self.nonnegative.unwrap_or(false)
    }

    /// How atoms are updated from all rows.
    pub fn rule(&self) -> Rule {
        self.rule.unwrap_or(if self.nonnegative_atoms { Rule::Sgk } else { Rule::AkSvd })
    }

    /// Atoms updated together.
    pub fn group(&self) -> usize {
        self.group.unwrap_or(if self.nonnegative_atoms { 1 } else { self.atoms })
    }
}

/// Arguments of `dictionary-learning train`.
#[derive(Debug, Args)]
pub struct TrainArgs {
    /// Where rows come from.
    #[command(flatten)]
    pub input: InputArgs,
    /// How the dictionary is trained.
    #[command(flatten)]
    pub settings: Settings,
    /// Epochs: passes over the training rows. Default: 50. With --resume, a larger number extends
    /// the run, even a finished one, to N epochs in all.
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub epochs: Option<usize>,
    /// Where the run is saved, and how it is resumed.
    #[command(flatten)]
    pub session: SessionArgs,
}

/// Arguments of `dictionary-learning encode`.
#[derive(Debug, Args)]
pub struct EncodeArgs {
    /// The dictionary: folder of a run, OWNER/NAME on the Hugging Face hub, or a .npy, .csv or
    /// .safetensors file. A folder holds config.json and model.safetensors. A file holds a matrix
    /// with one atom per row; its codes have 10 atoms unless --nonzero is given.
    #[arg(value_name = "MODEL")]
    pub model: String,
    /// Data set: a name, a folder or a file. All patches of an image are encoded, in order, which
    /// needs a dictionary of square grey patches. Default: the data of the run if MODEL is the
    /// folder of a run, else natural-images.
    #[arg(long, value_name = "DATA")]
    pub data: Option<String>,
    /// Rows to use; default: the test rows if there are any, else the training rows. Patches have
    /// no splits.
    #[arg(long, value_enum)]
    pub split: Option<SplitArg>,
    /// How a data set is read.
    #[command(flatten)]
    pub read: ReadArgs,
    /// Largest number of atoms in a code; default: as in training.
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub nonzero: Option<usize>,
    /// Root mean square error at which a code stops growing, in the unit of the rows (grey levels
    /// for images); default: as in training.
    #[arg(long, value_name = "RMS", value_parser = above_zero)]
    pub error: Option<f64>,
    /// Pursuit that chooses a code's atoms; default: as in training.
    #[arg(long, value_enum)]
    pub pursuit: Option<Method>,
    /// Rows that are coded at a time; fewer need less memory and give the same codes. Default: as
    /// many as memory has room for.
    #[arg(long, value_name = "ROWS", value_parser = at_least_one)]
    pub chunk_rows: Option<usize>,
    /// Distance in pixels between neighbouring patches, at most the side of a patch; default: that
    /// side, so that patches tile the image.
    #[arg(long, value_name = "PIXELS", value_parser = at_least_one)]
    pub step: Option<usize>,
    /// File to write, .npz or .safetensors.
    ///
    /// A row is its mean plus the sum of its first `count` values times the atoms of their indices:
    ///   indices     n_rows x nonzero, u32   atoms of each row, 0 beyond its count
    ///   values      n_rows x nonzero, f32   their coefficients, 0 beyond its count
    ///   count       n_rows, u32             atoms of the row
    ///   mean        n_rows, f32             mean subtracted from the row, 0 where none was
    ///   dictionary  2, u32                  fingerprint of the atoms, which `decode` compares
    ///
    /// A .safetensors file also records where patches were cut, which `decode` needs to rebuild
    /// images. For scipy, see --sparse-format.
    #[arg(long, value_name = "FILE", default_value = "codes.safetensors", verbatim_doc_comment)]
    pub out: PathBuf,
    /// Arrays of a .npz file: padded (those of --out), or csr, a sparse matrix that
    /// scipy.sparse.load_npz reads. csr holds data, indices, indptr, shape (n_rows, n_atoms) and
    /// format, without the means of rows; `decode` does not read it.
    #[arg(long, value_enum, value_name = "padded|csr", default_value_t)]
    pub sparse_format: SparseFormat,
    /// How many processes compute together.
    #[command(flatten)]
    pub ranks: RanksArgs,
    /// Where and how it runs.
    #[command(flatten)]
    pub common: Common,
}

/// Arguments of `dictionary-learning decode`.
#[derive(Debug, Args)]
pub struct DecodeArgs {
    /// The dictionary that made the codes: folder of a run, OWNER/NAME on the Hugging Face hub, or
    /// a .npy, .csv or .safetensors file of atoms.
    #[arg(value_name = "MODEL")]
    pub model: String,
    /// The file that `encode` wrote.
    #[arg(value_name = "CODES")]
    pub codes: PathBuf,
    /// What to write: an image file for one image, a folder for several, or a .npy, .csv or
    /// .safetensors file for rows; - writes rows as CSV to standard output. Overlapping patches are
    /// averaged. Default: decoded.png, the folder decoded, or decoded.npy.
    #[arg(long, value_name = "PATH")]
    pub out: Option<PathBuf>,
    /// Where and how it runs.
    #[command(flatten)]
    pub common: Common,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn parse(flags: &[&str]) -> Result<Cli, clap::Error> {
        crate::session::args::parse(["dictionary-learning"].iter().chain(flags))
    }

    #[test]
    fn the_command_line_is_sound_and_every_flag_has_a_sentence() {
        crate::session::args::assert_sound::<Cli>();
    }

    #[test]
    fn without_a_sub_command_it_trains() {
        let flags = ["--atoms", "30", "--rule", "sgk", "--epochs", "7", "--device", "cpu"];
        let short = parse(&flags).unwrap();
        let long = parse(&[&["train"][..], &flags].concat()).unwrap();
        assert!(short.command.is_none());
        let Some(Command::Train(train)) = long.command else { unreachable!() };
        assert_eq!(short.train.settings, train.settings);
        assert_eq!((train.settings.atoms, train.settings.rule()), (30, Rule::Sgk));
        assert_eq!((short.train.epochs, train.epochs), (Some(7), Some(7)));
        let settings = parse(&["--online"]).unwrap().train.settings;
        assert_eq!((settings.online, settings.batch), (true, 512));
    }

    #[test]
    fn numbers_out_of_range_are_refused_with_the_range() {
        let cases: [(&[&str], &str); 9] = [
            (&["--atoms=0"], "must be a whole number of at least 1"),
            (&["--error=0"], "must be a number above 0"),
            (&["--max-coherence=1.1"], "must be a number above 0 and at most 1"),
            (&["--coherence-penalty=-1"], "must be a number of at least 0"),
            (&["--rule=svd"], "possible values: ksvd, ak-svd, sgk, nsgk, mod"),
            (&["denoise", "x.png", "--sigma=nan"], "must be a number above 0"),
            (&["denoise", "x.png", "--patch=1"], "1 is not in 2..=64"),
            (&["inpaint", "x.png", "--missing=1"], "must be a number above 0 and below 1"),
            (
                &["inpaint", "x.png", "--missing=0.4", "--pursuit=look-ahead-ols"],
                "[possible values: omp, ols]",
            ),
        ];
        for (flags, text) in cases {
            let err = parse(flags).unwrap_err();
            assert!(err.to_string().contains(text), "{flags:?}: {err}");
            assert_eq!(err.exit_code(), 2);
        }
    }

    #[test]
    fn flags_that_contradict_or_need_each_other_are_told_so() {
        assert!(parse(&["--resume", "runs/a", "--epochs", "9"]).is_ok());
        let others = [
            ["--atoms", "9"],
            ["--data", "mnist"],
            ["--patch", "9"],
            ["--patches", "9"],
            ["--prepare=none", "--overwrite"],
            ["--max-rows", "9"],
            ["--out", "b"],
        ];
        for flags in others {
            let err = parse(&[&["--resume", "runs/a"][..], &flags].concat()).unwrap_err();
            assert!(err.to_string().contains("cannot be used with"), "{flags:?}: {err}");
        }
        let cases: [(&[&str], &str); 15] = [
            (&["--online", "--rule=ksvd"], "cannot be used with"),
            (&["--online", "--group=3"], "cannot be used with"),
            (&["--online", "--min-uses=3"], "cannot be used with"),
            (&["--online", "--coherence-penalty=3"], "cannot be used with"),
            (&["--forgetting=3"], "--online"),
            (&["--sweeps=3"], "--online"),
            (&["--batch=3"], "--online"),
            (&["--max-idle=3"], "--online"),
            (&["--start-from=runs/a", "--start=dct"], "cannot be used with"),
            (&["--start-from=runs/a", "--atoms=9"], "cannot be used with"),
            (&["denoise", "x.png", "--add-noise"], "--sigma"),
            (&["denoise", "x.png", "--sigma=9", "--add-noise", "--clean=y.png"], "cannot be used with"),
            (&["denoise", "x.png", "--dictionary=d", "--atoms=9"], "cannot be used with"),
            (&["inpaint", "x.png"], "--mask"),
            (&["inpaint", "x.png", "--mask=m.png", "--missing=0.5"], "cannot be used with"),
        ];
        for (flags, text) in cases {
            let err = parse(flags).unwrap_err();
            assert!(err.to_string().contains(text), "{flags:?}: {err}");
        }
    }

    #[test]
    fn settings_come_back_from_json_as_they_went() {
        let train = parse(&["--rule", "nsgk", "--max-coherence", "0.9", "--max-rows", "7"]).unwrap().train;
        let text = serde_json::to_string(&(&train.settings, &train.input)).unwrap();
        let back: (Settings, InputArgs) = serde_json::from_str(&text).unwrap();
        assert_eq!(back, (train.settings, train.input));
    }
}
