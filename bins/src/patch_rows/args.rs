//! The command line of programs that learn from patches of images or from rows.
use crate::args::used::PictureArgs;
use crate::options::{Common, ModelArgs, PatchArgs, ReadArgs};
use crate::ranks::RanksArgs;
use crate::rows::SplitArg;
use clap::Args;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Where rows come from. The run folder keeps these arguments.
#[derive(Debug, Clone, Default, PartialEq, Args, Serialize, Deserialize)]
pub struct InputArgs {
    /// Data set: a name, a folder or a file. Names: mnist-sample and natural-images (built in),
    /// mnist, fashion-mnist, hub:OWNER/NAME. A folder holds images of any sizes, idx files, parquet
    /// files, tables or arrays, or a sub-folder of images for each class; a file is an image or a
    /// .npy, .npz, .safetensors, .parquet, .csv, .tsv or .txt file. Patches are cut from
    /// natural-images, from an image file and from a folder of images, and with --patch from any
    /// data set of images. Default: the data of the run if MODEL is the folder of a run, else
    /// natural-images.
    #[arg(long, value_name = "DATA")]
    pub data: Option<String>,
    /// What is cut out of images.
    #[command(flatten)]
    #[serde(flatten)]
    pub cut: PatchArgs,
    /// How a data set is read.
    #[command(flatten)]
    #[serde(flatten)]
    pub read: ReadArgs,
    /// Base folder of relative paths; default: the current folder.
    #[arg(skip)]
    #[serde(skip)]
    pub base: Option<PathBuf>,
}

/// A model and the rows that it is used on.
#[derive(Debug, Args)]
pub struct UseArgs {
    /// The model.
    #[command(flatten)]
    pub model: ModelArgs,
    /// Where rows come from.
    #[command(flatten)]
    pub input: InputArgs,
    /// Rows to use; default: the test rows if there are any, else the training rows. Patches have
    /// no splits.
    #[arg(long, value_enum)]
    pub split: Option<SplitArg>,
    /// Seed of every random draw: the same seed on the same device gives the same bits. The default
    /// cuts other patches than a training run with seed 0. To get the training patches, give the
    /// seed of the run.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Where and how it runs.
    #[command(flatten)]
    pub common: Common,
}

/// Arguments of `encode`.
#[derive(Debug, Args)]
pub struct EncodeArgs {
    /// Model and rows.
    #[command(flatten)]
    pub of: UseArgs,
    /// File to write, .npy, .csv or .safetensors; the last two also hold the labels. - writes CSV
    /// to standard output.
    #[arg(long, value_name = "FILE", default_value = "features.safetensors")]
    pub out: PathBuf,
    /// How many processes compute together.
    #[command(flatten)]
    pub ranks: RanksArgs,
}

/// Arguments of `reconstruct`.
#[derive(Debug, Args)]
pub struct ReconstructArgs {
    /// Model and rows.
    #[command(flatten)]
    pub of: UseArgs,
    /// What is drawn.
    #[command(flatten)]
    pub picture: PictureArgs,
    /// How many processes compute together.
    #[command(flatten)]
    pub ranks: RanksArgs,
}
