//! The command line of `dictionary-learning`.
use super::choices::{ReplaceArg, SparseFormat, StartArg};
use crate::choices::{Method, Rule};
use crate::completions::CompletionsArgs;
use crate::help::COLOUR_OF_PATCHES;
use crate::options::{Common, ReadArgs, above_zero, at_least_one, at_most_one, not_negative, whole_number};
use crate::restore::args::{DenoiseArgs, InpaintArgs};
use crate::rows::SplitArg;
use crate::session::SessionArgs;
use chandlery_datasets::patches::PatchSize;
use clap::{Args, Parser, Subcommand};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Command lines of the program, at the end of its help.
const EXAMPLES: &str = "\
Examples:
  dictionary-learning --out runs/DICTIONARY   # 256 atoms of 8x8 patches
  dictionary-learning encode runs/DICTIONARY IMAGE --out codes.safetensors
  dictionary-learning decode runs/DICTIONARY codes.safetensors
  dictionary-learning denoise IMAGE --sigma 25 --add-noise";
/// The same of `train`.
const TRAIN: &str = "\
Examples:
  dictionary-learning train --data FOLDER --side 12 --atoms 512 --nonzero 8
  dictionary-learning train --data mnist-sample --atoms 300 --pursuit ols --rule ksvd
  dictionary-learning train --online --iterations 4
  dictionary-learning train --resume runs/DICTIONARY --iterations 100";
/// The same of `encode`.
const ENCODE: &str = "\
Examples:
  dictionary-learning encode runs/DICTIONARY IMAGE --out codes.safetensors
  dictionary-learning encode runs/DICTIONARY mnist --split test --nonzero 5 --out codes.npz
  dictionary-learning encode runs/DICTIONARY mnist --out codes.npz --sparse-format csr";

/// Dictionary learning: train atoms such that a few of them, chosen by a greedy pursuit, represent each row; the weights are its sparse code.
/// Then use them to encode rows and to denoise and inpaint images.
///
/// Without a sub-command it trains: `dictionary-learning --iterations 10` is `dictionary-learning train --iterations 10`.
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
    /// Print completions of this program for a shell.
    Completions(CompletionsArgs),
}

/// Where signals come from. The run folder keeps these arguments.
#[derive(Debug, Clone, PartialEq, Args, Serialize, Deserialize)]
#[command(mut_arg("colour", |arg| arg.help(COLOUR_OF_PATCHES)))]
pub struct SignalArgs {
    /// Images to cut patches from, or rows.
    /// Images: natural-images (built in), a folder of images of any sizes, or an image file. Rows: mnist-sample, mnist,
    /// fashion-mnist, hub:OWNER/NAME, a folder of idx files, a folder with a sub-folder of images for each class, or a .npy, .npz,
    /// .safetensors, .parquet, .csv or .tsv file.
    #[arg(long, value_name = "DATA", default_value = "natural-images")]
    pub data: String,
    /// Height and width of the patches cut from images, in pixels: one number for square patches; default: 8.
    /// If the rows of a data set are images and --side is given, patches are cut from them.
    #[arg(long, value_name = "SIDE|HEIGHTxWIDTH")]
    pub side: Option<PatchSize>,
    /// Make each image of a folder a row, instead of cutting patches from it; all images must have the same size.
    #[arg(long, conflicts_with_all = ["side", "patches"])]
    pub rows: bool,
    /// Number of patches to cut.
    #[arg(long, value_name = "N", default_value_t = 40_000, value_parser = at_least_one)]
    pub patches: usize,
    /// Subtract its mean from each row; default: true for patches unless --fixed-dc is given, false for rows.
    #[arg(long, value_name = "true|false", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub remove_mean: Option<bool>,
    /// How a data set is read.
    #[command(flatten)]
    #[serde(flatten)]
    pub read: ReadArgs,
    /// Base folder of relative paths; default: the current folder.
    #[arg(skip)]
    #[serde(skip)]
    pub base: Option<PathBuf>,
}

/// Default number of passes over the rows.
const ITERATIONS: usize = 50;

/// Settings of `train`. The run folder keeps them, so that `--resume` needs nothing else.
#[derive(Debug, Clone, PartialEq, Args, Serialize, Deserialize)]
pub struct Settings {
    /// Number of atoms in the dictionary.
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = at_least_one)]
    pub atoms: usize,
    /// Largest number of atoms in a code.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = at_least_one)]
    pub nonzero: usize,
    /// Root mean square error at which a code stops growing, in the unit of the rows (grey levels for images).
    /// Training then keeps the dictionary whose codes need the fewest atoms. Default: codes have --nonzero atoms.
    #[arg(long, value_name = "RMS", value_parser = above_zero)]
    pub error: Option<f64>,
    /// Pursuit that chooses a code's atoms; default: omp, or ols with --online, which learns faster with it.
    #[arg(long, value_enum)]
    pub pursuit: Option<Method>,
    /// Allow only coefficients of at least 0; needs omp or ols.
    #[arg(long)]
    pub nonnegative: bool,
    /// Keep the numbers of every atom at least 0: with --nonnegative, a nonnegative matrix
    /// factorisation with sparse codes. New atoms have numbers below 0 set to 0 and are scaled to
    /// norm 1. Needs --rule sgk or nsgk, or --online. Rows keep their means.
    #[arg(long)]
    pub nonnegative_atoms: bool,
    /// Rule that updates the atoms; default: ak-svd, or sgk with --nonnegative-atoms. Not with
    /// --online, which has its own.
    #[arg(long, value_enum, conflicts_with = "online")]
    pub rule: Option<Rule>,
    /// Atoms updated together from one error matrix, 1 to --atoms; default: all, or 1 with
    /// --nonnegative-atoms. Not with --rule mod or --online.
    #[arg(long, value_name = "N", value_parser = at_least_one, conflicts_with = "online")]
    pub group: Option<usize>,
    /// Passes over the rows.
    #[arg(skip = ITERATIONS)]
    pub iterations: usize,
    /// Learn online from minibatches of this many rows (512 if no number is given) instead of all rows at once.
    /// Online learning (Mairal et al. 2010) needs fewer passes.
    #[arg(long, value_name = "ROWS", num_args = 0..=1, default_missing_value = "512", value_parser = at_least_one)]
    pub online: Option<usize>,
    /// With --online, how fast old minibatches lose weight, at least 0; with 0 all minibatches weigh the same.
    /// After t minibatches, about the last t/RATE determine the atoms. Default: 20.
    #[arg(long, value_name = "RATE", value_parser = not_negative, requires = "online")]
    pub forgetting: Option<f64>,
    /// With --online, sweeps over the atoms per minibatch; default: 1.
    #[arg(long, value_name = "N", value_parser = at_least_one, requires = "online")]
    pub sweeps: Option<usize>,
    /// Initial dictionary: rows drawn at random, or for patches the overcomplete cosine transform.
    #[arg(long, value_enum, default_value_t = StartArg::Random)]
    pub start: StartArg,
    /// Initial dictionary from a run or file, which also sets the number of atoms.
    /// The folder of a run (or any folder with config.json and model.safetensors), OWNER/NAME on the hub, or a .npy,
    /// .csv or .safetensors file with one atom per row (the tensor `dictionary`, or the only matrix).
    #[arg(long, value_name = "MODEL", conflicts_with_all = ["start", "atoms"])]
    pub init: Option<String>,
    /// Make the first atom constant and keep it fixed, to represent the mean of a row; rows keep their means.
    #[arg(long)]
    pub fixed_dc: bool,
    /// What replaces an atom that too few rows use (see --min-uses, --max-idle) or that nearly equals another (see --max-coherence).
    #[arg(long, value_enum, default_value_t = ReplaceArg::WorstRepresented)]
    pub replace: ReplaceArg,
    /// Replace an atom that fewer rows than this use; default: 4. Not with --online, which has --max-idle.
    #[arg(long, value_name = "ROWS", conflicts_with = "online", value_parser = whole_number)]
    pub min_uses: Option<usize>,
    /// With --online, replace an atom that went unused for this many consecutive rows; default: 10,000.
    #[arg(long, value_name = "ROWS", value_parser = at_least_one, requires = "online")]
    pub max_idle: Option<usize>,
    /// Largest absolute cosine of the angle between two atoms, above 0 and at most 1. If it is larger, the second atom is replaced;
    /// never with --replace none. Default: 0.99; 1 sets no limit.
    #[arg(long, value_name = "COSINE", value_parser = at_most_one)]
    pub max_coherence: Option<f64>,
    /// Weight of a penalty on coherent atoms, in squared units of the rows, at least 0; not with --rule mod or
    /// --online.
    #[arg(long, value_name = "WEIGHT", default_value_t = 0., value_parser = not_negative, conflicts_with = "online")]
    pub coherence_penalty: f64,
    /// Seed of every random draw: the same seed on the same device gives the same bits.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
}

impl Settings {
    /// How a code's atoms are chosen.
    pub fn method(&self) -> Method {
        let usual = if self.online.is_some() { Method::Ols } else { Method::Omp };
        self.pursuit.unwrap_or(usual)
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
    /// Where signals come from.
    #[command(flatten)]
    pub signals: SignalArgs,
    /// How the dictionary is trained.
    #[command(flatten)]
    pub settings: Settings,
    /// Passes over the rows; default: 50. With --resume, a larger number extends the run, even a finished one, to N passes in all.
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub iterations: Option<usize>,
    /// Where the run is saved, and how it is resumed.
    #[command(flatten)]
    pub session: SessionArgs,
}

/// Arguments of `dictionary-learning encode`.
#[derive(Debug, Args)]
#[command(mut_arg("colour", |arg| arg.help(COLOUR_OF_PATCHES)))]
pub struct EncodeArgs {
    /// The dictionary: folder of a run, OWNER/NAME on the Hugging Face hub, or a .npy, .csv or .safetensors file.
    /// A folder holds config.json and model.safetensors. A file holds a matrix with one atom per row; its codes have 10 atoms
    /// unless --nonzero is given.
    #[arg(value_name = "MODEL")]
    pub model: String,
    /// What to encode: an image file, a folder of images, natural-images, or rows as for `train --data`. Images are cut into patches, which
    /// needs a dictionary of square grey patches.
    #[arg(value_name = "DATA")]
    pub data: String,
    /// Split of a data set of rows; default: train.
    #[arg(long, value_enum)]
    pub split: Option<SplitArg>,
    /// How a data set is read.
    #[command(flatten)]
    pub read: ReadArgs,
    /// Largest number of atoms in a code; default: as in training.
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub nonzero: Option<usize>,
    /// Root mean square error at which a code stops growing, in the unit of the rows (grey levels for images);
    /// default: as in training.
    #[arg(long, value_name = "RMS", value_parser = above_zero)]
    pub error: Option<f64>,
    /// Pursuit that chooses a code's atoms; default: as in training.
    #[arg(long, value_enum)]
    pub pursuit: Option<Method>,
    /// Distance in pixels between neighbouring patches of an image; default: the side of a patch, so that patches tile the image.
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
    /// Where and how it runs.
    #[command(flatten)]
    pub common: Common,
}

/// Arguments of `dictionary-learning decode`.
#[derive(Debug, Args)]
pub struct DecodeArgs {
    /// The dictionary that made the codes: folder of a run, OWNER/NAME on the Hugging Face hub, or a .npy, .csv or .safetensors file
    /// of atoms.
    #[arg(value_name = "MODEL")]
    pub model: String,
    /// The file that `encode` wrote.
    #[arg(value_name = "CODES")]
    pub codes: PathBuf,
    /// What to write: an image file for one image, a folder for several, or a .npy, .csv or .safetensors file for
    /// rows; - writes rows as CSV to standard output. Overlapping patches are averaged. Default: decoded.png, the folder decoded, or decoded.npy.
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
        let flags = ["--atoms", "30", "--rule", "sgk", "--iterations", "7", "--device", "cpu"];
        let short = parse(&flags).unwrap();
        let long = parse(&[&["train"][..], &flags].concat()).unwrap();
        assert!(short.command.is_none());
        let Some(Command::Train(train)) = long.command else { unreachable!() };
        assert_eq!(short.train.settings, train.settings);
        assert_eq!((train.settings.atoms, train.settings.rule()), (30, Rule::Sgk));
        assert_eq!((short.train.iterations, train.iterations), (Some(7), Some(7)));
        assert_eq!(parse(&["--online"]).unwrap().train.settings.online, Some(512));
        assert_eq!(train.signals.data, "natural-images");
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
            (&["denoise", "x.png", "--side=1"], "1 is not in 2..=64"),
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
        assert!(parse(&["--resume", "runs/a", "--iterations", "9"]).is_ok());
        let others = [
            ["--atoms", "9"],
            ["--data", "mnist"],
            ["--side", "9"],
            ["--patches", "9"],
            ["--remove-mean=true", "--overwrite"],
            ["--max-rows", "9"],
            ["--out", "b"],
        ];
        for flags in others {
            let err = parse(&[&["--resume", "runs/a"][..], &flags].concat()).unwrap_err();
            assert!(err.to_string().contains("cannot be used with"), "{flags:?}: {err}");
        }
        let cases: [(&[&str], &str); 14] = [
            (&["--online", "--rule=ksvd"], "cannot be used with"),
            (&["--online", "--group=3"], "cannot be used with"),
            (&["--online", "--min-uses=3"], "cannot be used with"),
            (&["--online", "--coherence-penalty=3"], "cannot be used with"),
            (&["--forgetting=3"], "--online"),
            (&["--sweeps=3"], "--online"),
            (&["--max-idle=3"], "--online"),
            (&["--init=runs/a", "--start=dct"], "cannot be used with"),
            (&["--init=runs/a", "--atoms=9"], "cannot be used with"),
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
        let text = serde_json::to_string(&(&train.settings, &train.signals)).unwrap();
        let back: (Settings, SignalArgs) = serde_json::from_str(&text).unwrap();
        assert_eq!(back, (train.settings, train.signals));
    }
}
