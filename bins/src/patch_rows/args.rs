//! The command line of programs that learn from patches of images or from rows.
use crate::help::COLOUR_OF_PATCHES;
use crate::options::{Common, ModelArgs, ReadArgs, at_least_one};
use crate::rows::SplitArg;
use chandlery_datasets::patches::PatchSize;
use chandlery_datasets::preparation::{StepConfig, WhiteningConfig};
use clap::Args;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::str::FromStr;

/// Where rows come from. The run folder keeps these arguments.
#[derive(Debug, Clone, PartialEq, Args, Serialize, Deserialize)]
#[command(mut_arg("colour", |arg| arg.help(COLOUR_OF_PATCHES)))]
pub struct InputArgs {
    /// Images to cut patches from, or rows.
    /// Images: natural-images (built in), a folder of images of any sizes, or an image file. Rows: mnist-sample, mnist,
    /// fashion-mnist, hub:OWNER/NAME, a folder of idx files, or a .npy, .npz, .safetensors, .parquet, .csv or .tsv file. Default:
    /// natural-images.
    #[arg(long, value_name = "DATA")]
    pub data: Option<String>,
    /// Height and width of the patches cut from images, in pixels: one number for square patches. Default: those of the model.
    #[arg(long, value_name = "SIDE|HEIGHTxWIDTH")]
    pub side: Option<PatchSize>,
    /// Number of patches to cut. Default: that of the run if its data is used, else that of `train`.
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub patches: Option<usize>,
    /// How a data set is read.
    #[command(flatten)]
    #[serde(flatten)]
    pub read: ReadArgs,
    /// Base folder of relative paths; default: the current folder.
    #[arg(skip)]
    #[serde(skip)]
    pub base: Option<PathBuf>,
}

/// Preparation of the rows: steps in order, as `none` or a list of their names; `zca` alone is what patches want.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PrepareArg {
    text: String,
    /// What is done to rows.
    pub steps: Vec<StepConfig>,
}

impl FromStr for PrepareArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let steps = match text {
            "none" => Vec::new(),
            "zca" => vec![
                StepConfig::RowMean,
                StepConfig::Whiten(WhiteningConfig { epsilon: 0.1, ..WhiteningConfig::default() }),
            ],
            list => list.split(',').map(str::parse).collect::<Result<_, _>>()?,
        };
        Ok(Self { text: text.to_owned(), steps })
    }
}

impl TryFrom<String> for PrepareArg {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<PrepareArg> for String {
    fn from(prepare: PrepareArg) -> Self {
        prepare.text
    }
}

/// A model and the rows that it is used on.
#[derive(Debug, Args)]
#[command(mut_arg("data", |arg| arg.help(
    "Data set, named as for `train --data`. Default: the data of the run if MODEL is the folder of a run, else natural-images"
)))]
pub struct UseArgs {
    /// The model.
    #[command(flatten)]
    pub model: ModelArgs,
    /// Where rows come from.
    #[command(flatten)]
    pub input: InputArgs,
    /// Split of a data set of rows; default: the test rows if there are any, else the training rows.
    #[arg(long, value_enum)]
    pub split: Option<SplitArg>,
    /// Seed for cutting patches. The default cuts other patches than a training run with seed 0. To get the training patches, give the seed
    /// of the run.
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
    /// File to write, .npy, .csv or .safetensors; the last two also hold the labels. - writes CSV to standard output.
    #[arg(long, value_name = "FILE", default_value = "features.npy")]
    pub out: PathBuf,
}

/// Arguments of `reconstruct`.
#[derive(Debug, Args)]
pub struct ReconstructArgs {
    /// Model and rows.
    #[command(flatten)]
    pub of: UseArgs,
    /// The picture to write, .png.
    #[arg(long, value_name = "FILE", default_value = "reconstructions.png")]
    pub out: PathBuf,
    /// Rows in the picture.
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = at_least_one)]
    pub n: usize,
}
