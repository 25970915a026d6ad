//! Options that programs share, and parsers that check the ranges of numbers.
use crate::device::DeviceChoice;
pub use crate::numbers::{
    MOST_COUNT, above_zero, at_least_one, at_most_one, below_one, bytes, inside_zero_one, not_negative,
    whole_number,
};
use crate::progress::Spinner;
pub use crate::read_args::{ColourArg, ReadArgs, located};
use crate::report::note;
use crate::stages::{self, Stage};
use anyhow::Context;
use candle::Device;
use chandlery::feedforward::ReconstructionLoss;
use chandlery::schedule::Plan;
use chandlery_datasets::patches::{ImageSet, PatchSize};
use chandlery_datasets::{Dataset, ImageShape, count};
use chandlery_ops::group::Place;
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::str::FromStr;

/// Where rows come from.
#[derive(Debug, Clone, PartialEq, Args, Serialize, Deserialize)]
pub struct DataArgs {
    /// Data set: a name, a folder or a file. Names: mnist-sample and natural-images (built in),
    /// mnist, fashion-mnist, hub:OWNER/NAME. A folder holds idx files, parquet files, images,
    /// tables or arrays; a file is a .npy, .npz, .safetensors, .parquet, .csv, .tsv or .txt file or
    /// an image. Images that are rows must all have one size. The names of sub-folders are the
    /// classes of the images in them; sub-folders `train` and `test` are splits; images in the
    /// folder itself are rows without labels.
    #[arg(long, value_name = "DATA", default_value = "mnist-sample")]
    pub data: String,
    /// Rows to test on, named as for --data: those that this data set keeps for tests, else all of
    /// them. Labels are matched by the names of their classes. Default: the test split of --data,
    /// or what the run was tested on.
    #[arg(long, value_name = "DATA")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub test_data: Option<String>,
    /// How the data set is read.
    #[command(flatten)]
    #[serde(flatten)]
    pub read: ReadArgs,
    /// What is cut out of images.
    #[command(flatten)]
    #[serde(flatten)]
    pub cut: PatchArgs,
    /// Base folder of relative paths; default: the current folder.
    #[arg(skip)]
    #[serde(skip)]
    pub base: Option<PathBuf>,
}

impl DataArgs {
    /// Opens the data set; its name is the one that the user gave.
    ///
    /// # Errors
    /// When it is missing, malformed or cannot be fetched; the message names it.
    pub fn open(&self) -> anyhow::Result<Dataset> {
        let _stage = stages::enter(Stage::Data);
        let base = self.base.as_deref();
        let (data, read) = (located(&self.data, base), self.read.located(base));
        let mut dataset = match self.cut.size() {
            None => {
                anyhow::ensure!(
                    self.cut.patches.is_none(),
                    "--patches: give the size of the patches, too, such as --patch 64"
                );
                read.open(&data)?
            }
            Some(size) => {
                let _spinner = Spinner::new(&format!("opening {}", self.data));
                let at = || format!("--data {}", self.data);
                let mut images = ImageSet::open(&data, &read.options()).with_context(at)?;
                let passed_over = images.leave_out_smaller(size).with_context(at)?;
                if passed_over > 0 {
                    note(&format!(
                        "--data {}: {} smaller than a patch of {size} left out, {} used",
                        self.data,
                        count(passed_over, "image"),
                        images.images().len()
                    ));
                }
                anyhow::ensure!(
                    self.test_data.is_none(),
                    "--test-data: patches are tested on patches of every tenth image; leave out --test-data or --patch"
                );
                images.into_crops(size, self.cut.patches.unwrap_or(PATCHES), 0).with_context(at)?
            }
        };
        dataset.name.clone_from(&self.data);
        if let Some(test_data) = &self.test_data {
            // Splits and sets are those of --data.
            let own = ReadArgs { train_split: None, test_split: None, ..read };
            let mut test = own.open_as("--test-data", &located(test_data, base))?;
            test.name = format!("--test-data {test_data}");
            dataset = dataset.with_test(test)?;
        }
        for split in std::iter::once(&dataset.train).chain(&dataset.test) {
            if let Some((column, cost)) = split.rows.rounding().and_then(|rounding| rounding.cost) {
                note(&format!(
                    "--data {}: values are rounded to 32 bits, which moves those of column {column} by {cost:.1e} of their standard deviation; \
                     subtract the mean of the column before you save it",
                    self.data
                ));
            }
        }
        Ok(dataset)
    }
}

/// Patches when no number is given.
const PATCHES: usize = 100_000;

/// Rows that are cut out of images at random.
#[derive(Debug, Clone, Default, PartialEq, Args, Serialize, Deserialize)]
pub struct PatchArgs {
    /// Size of the patches that are cut from images at random, in pixels. A side, or HEIGHTxWIDTH;
    /// none: rows are whole images, which must all have one size. Each patch is a row; patches are
    /// grey unless --colour is rgb. The images may have different sizes: a folder of images, an
    /// image file, natural-images (built in) or any data set of images. dbn, dae and tsne cut
    /// patches when they read them and never store them, leave out images smaller than a patch, and
    /// keep every tenth image for the test rows; their default is none. Of the other programs the
    /// default is the size that MODEL reads, else 8 (sparse-coding: 12) for natural-images, an
    /// image file or a folder of images.
    #[arg(long, value_name = "SIDE|HEIGHTxWIDTH|none")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub patch: Option<PatchArg>,
    /// Number of patches to cut. Default: that of the run if its data is used, else 100,000 in dbn,
    /// dae and tsne, 40,000 in dictionary-learning, 20,000 in sparse-coding and 10,000 in
    /// sparse-autoencoder.
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub patches: Option<usize>,
}

impl PatchArgs {
    /// The size of patches that was asked for.
    pub fn size(&self) -> Option<PatchSize> {
        match self.patch {
            Some(PatchArg::Size(size)) => Some(size),
            _ => None,
        }
    }

    /// Whether whole images were asked for.
    pub fn is_none(&self) -> bool {
        matches!(self.patch, Some(PatchArg::Whole(_)))
    }

    /// These options; those not given are taken from `other`.
    pub fn above(&self, other: &Self) -> Self {
        Self { patch: self.patch.or(other.patch), patches: self.patches.or(other.patches) }
    }
}

/// What is cut out of images.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum PatchArg {
    /// Patches of a size.
    Size(PatchSize),
    /// Nothing.
    Whole(Nothing),
}

/// The word for nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Nothing {
    /// `none`.
    None,
}

impl FromStr for PatchArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "none" => Ok(Self::Whole(Nothing::None)),
            size => size.parse().map(Self::Size).map_err(|err| format!("{err}, or none")),
        }
    }
}

/// The rows that a saved network is used on.
#[derive(Debug, Clone, Args)]
pub struct RowsArgs {
    /// Data set: a name, a folder or a file. Default: the data of the run if MODEL is the folder of
    /// a run, else mnist-sample.
    #[arg(long, value_name = "DATA")]
    pub data: Option<String>,
    /// Rows to test on, named as for --data: those that this data set keeps for tests, else all of
    /// them. Labels are matched by the names of their classes. Default: the test split of --data,
    /// or what the run was tested on.
    #[arg(long, value_name = "DATA")]
    pub test_data: Option<String>,
    /// How they are read.
    #[command(flatten)]
    pub read: ReadArgs,
    /// What is cut out of images.
    #[command(flatten)]
    pub cut: PatchArgs,
}

/// The saved model that a sub-command uses.
#[derive(Debug, Clone, Args)]
pub struct ModelArgs {
    /// Folder of a run (or any folder with config.json and model.safetensors), or OWNER/NAME or
    /// OWNER/NAME@REVISION on the Hugging Face hub.
    #[arg(value_name = "MODEL")]
    pub model: String,
}

/// Reconstruction loss of an autoencoder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LossArg {
    /// Half the squared distance.
    SquaredError,
    /// Cross-entropy of values in [0, 1].
    CrossEntropy,
}

impl From<LossArg> for ReconstructionLoss {
    fn from(loss: LossArg) -> Self {
        match loss {
            LossArg::SquaredError => Self::SquaredError,
            LossArg::CrossEntropy => Self::CrossEntropy,
        }
    }
}

/// Where a program computes and how it reports.
#[derive(Debug, Clone, Args)]
pub struct Common {
    /// Where to compute: cpu, or cuda:N (GPU N, from 0) in a build with the feature cuda. If this
    /// GPU is missing, the program stops with an error.
    #[arg(long, value_name = "DEVICE", default_value_t)]
    pub device: DeviceChoice,
    /// How many threads it uses on the CPU.
    #[command(flatten)]
    pub threads: ThreadsArg,
    /// Print JSON on standard output at the end, one object (an array of rows for most of bench),
    /// and everything else on standard error. For a command that makes a run, it is the content of
    /// results.json.
    #[arg(long)]
    pub json: bool,
}

impl Common {
    /// Opens the device of a command that runs in one process, after starting the threads of the CPU.
    ///
    /// # Errors
    /// When a launcher has started several processes, the system refuses so many threads, or the device
    /// is missing.
    pub fn open_device(&self) -> anyhow::Result<Device> {
        if let Ok(Some(place)) = Place::of_environment() {
            anyhow::bail!(
                "this command runs in one process, and a launcher has started {}; start it without torchrun, srun or mpirun",
                place.world
            )
        }
        self.open_device_alone()
    }

    /// The same, whatever started the process.
    pub(crate) fn open_device_alone(&self) -> anyhow::Result<Device> {
        self.threads.start()?;
        self.device.open()
    }
}

/// The most threads that `--threads` takes.
const MOST_THREADS: usize = 1024;

/// How many threads a program uses on the CPU.
#[derive(Debug, Clone, Default, Args)]
pub struct ThreadsArg {
    /// Number of CPU threads, from 1 to 1024; default: RAYON_NUM_THREADS if it is set, else one for
    /// each core. Results do not depend on it.
    #[arg(long, value_name = "N", value_parser = threads)]
    pub threads: Option<usize>,
}

impl ThreadsArg {
    /// Starts so many threads, which all that computes on the CPU shares. To be called once in a
    /// process, before the first computation.
    ///
    /// # Errors
    /// When the system refuses them, or threads were started before.
    pub fn start(&self) -> anyhow::Result<()> {
        let Some(n) = self.threads else { return Ok(()) };
        let started = rayon::ThreadPoolBuilder::new().num_threads(n).build_global();
        started.with_context(|| format!("--threads {n}: cannot start so many threads; use fewer"))
    }
}

fn threads(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n) if (1..=MOST_THREADS).contains(&n) => Ok(n),
        _ => Err(format!("must be a whole number from 1 to {MOST_THREADS}")),
    }
}

/// Rows of a minibatch and epochs by the number of rows, where a user gave none; and what to say of
/// them where they are not the usual ones.
pub fn plan_by_rows(
    usual: Plan,
    n_rows: usize,
    batch: &mut Option<usize>,
    epochs: &mut Option<usize>,
) -> Option<String> {
    // Epochs follow from the minibatches that are made, also of a number that was asked for.
    let usual = Plan { batch: batch.unwrap_or(usual.batch), ..usual };
    let plan = if batch.is_some() { usual.epochs_for_rows(n_rows) } else { usual.for_rows(n_rows) };
    let epochs_asked = epochs.is_some();
    let (batch, epochs) = (batch.get_or_insert(plan.batch), epochs.get_or_insert(plan.epochs));
    let chosen = *batch != usual.batch || !epochs_asked && *epochs != usual.epochs;
    chosen.then(|| {
        format!(
            "{}: minibatches of {batch}, {} (usual for many rows: {} and {}); set others with --batch and --epochs",
            count(n_rows, "training row"),
            count(*epochs, "epoch"),
            usual.batch,
            usual.epochs
        )
    })
}

/// `HEIGHTxWIDTH` or `HEIGHTxWIDTHxCHANNELS`, each at least 1, with 1 or 3 channels.
///
/// # Errors
/// When the text is none; the message says what must hold.
pub fn image_shape(text: &str) -> Result<ImageShape, String> {
    let sides: Result<Vec<usize>, _> = text.split('x').map(at_least_one).collect();
    let (height, width, channels) = match sides.as_deref() {
        Ok([height, width]) => (*height, *width, 1),
        Ok([height, width, channels @ (1 | 3)]) => (*height, *width, *channels),
        _ => return Err("must be HEIGHTxWIDTH or HEIGHTxWIDTHxCHANNELS with 1 or 3 channels".to_owned()),
    };
    Ok(ImageShape { height, width, channels })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn an_image_shape_is_two_or_three_numbers() {
        let shape = image_shape("28x20").unwrap();
        assert_eq!((shape.height, shape.width, shape.channels), (28, 20, 1));
        assert_eq!(image_shape("8x9x3").unwrap().n_features(), 216);
        for text in ["28", "28x", "0x4", "4x4x2", "4x4x3x1"] {
            assert!(image_shape(text).is_err(), "{text}");
        }
    }
}
