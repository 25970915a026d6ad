//! The command line of `denoise` and `inpaint`.
use crate::choices::{MaskedMethod, Method, Rule};
use crate::options::{Common, above_zero, at_least_one, inside_zero_one, not_negative, whole_number};
use clap::Args;
use std::path::PathBuf;

/// The dictionary of an image: learned from it, or given.
#[derive(Debug, Clone, Args)]
pub struct ImageDictionaryArgs {
    /// A trained dictionary of square grey patches; default: a dictionary is learned from the image
    /// itself. The folder of a run of `dictionary-learning` or `sparse-coding`, OWNER/NAME on the
    /// hub, or a .npy, .csv or .safetensors file with one atom per row. Atoms of whitened patches
    /// are turned back into atoms of pixels.
    #[arg(long, value_name = "MODEL", conflicts_with_all = ["atoms", "epochs", "patch", "patches", "rule", "group"])]
    pub dictionary: Option<String>,
    /// Size of the patches that are cut from images at random, in pixels. The side of square
    /// patches, from 2 to 64. Default: 8 to denoise, 10 to inpaint.
    #[arg(long, value_name = "SIDE", value_parser = clap::value_parser!(u32).range(2..=64))]
    pub patch: Option<u32>,
    /// Number of atoms.
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = at_least_one)]
    pub atoms: usize,
    /// Epochs: passes over the training rows. These are patches; 0 keeps the initial dictionary, an
    /// overcomplete cosine transform.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = whole_number)]
    pub epochs: usize,
    /// Number of patches to cut. At most so many are learned from.
    #[arg(long, value_name = "N", default_value_t = 40_000, value_parser = at_least_one)]
    pub patches: usize,
    /// Rule that updates the atoms.
    #[arg(long, value_enum, default_value_t = Rule::AkSvd)]
    pub rule: Rule,
    /// Atoms updated together from one error matrix, 1 to --atoms; default: all. Not with --rule
    /// mod.
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub group: Option<usize>,
    /// Save the dictionary to this folder, with a model card and results, for `--dictionary` and
    /// `encode`.
    #[arg(long, value_name = "DIR", conflicts_with = "dictionary")]
    pub save_dictionary: Option<PathBuf>,
    /// Replace the run in the folder of --out, or of --save-dictionary: the files that it wrote,
    /// which its files.txt lists, are removed once the new run has its first checkpoint. A folder
    /// of anything else is refused.
    #[arg(long, requires = "save_dictionary")]
    pub overwrite: bool,
    /// Seed of every random draw: the same seed on the same device gives the same bits.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
}

/// Arguments of `dictionary-learning denoise`.
#[derive(Debug, Args)]
pub struct DenoiseArgs {
    /// The noisy image, grey or colour.
    #[arg(value_name = "IMAGE")]
    pub image: PathBuf,
    /// Standard deviation of the noise, in grey levels of 0 to 255. Default: estimated from the
    /// image.
    #[arg(long, value_name = "LEVELS", value_parser = above_zero)]
    pub sigma: Option<f64>,
    /// The original image, to measure the result against.
    #[arg(long, value_name = "FILE", conflicts_with = "add_noise")]
    pub clean: Option<PathBuf>,
    /// Treat IMAGE as clean: add Gaussian noise of standard deviation --sigma, which is then
    /// required, remove it and report the PSNR.
    #[arg(long, requires = "sigma")]
    pub add_noise: bool,
    /// The dictionary.
    #[command(flatten)]
    pub dictionary: ImageDictionaryArgs,
    /// The code of a patch stops growing when the root mean square error of the patch is at most
    /// FACTOR x sigma. In sparse-coding, used only while a dictionary is learned from the image.
    #[arg(long, value_name = "FACTOR", default_value_t = 1.15, value_parser = above_zero)]
    pub gain: f64,
    /// In the average that makes the result, each denoised patch has the weight WEIGHT x sigma and
    /// the noisy image has the weight 1.
    #[arg(long, value_name = "WEIGHT", default_value_t = 0.034, value_parser = above_zero)]
    pub blend: f64,
    /// Distance in pixels between neighbouring patches, at most the side of a patch; 2 takes a
    /// quarter of the time of 1.
    #[arg(long, value_name = "PIXELS", default_value_t = 1, value_parser = at_least_one)]
    pub step: usize,
    /// Pursuit that chooses a code's atoms. In sparse-coding, used only while a dictionary is
    /// learned from the image.
    #[arg(long, value_enum, default_value_t = Method::Omp)]
    pub pursuit: Method,
    /// The denoised image: .png, .jpg (with loss), .bmp, .tiff, .pnm or .webp.
    #[arg(long, value_name = "FILE", default_value = "denoised.png")]
    pub out: PathBuf,
    /// Write the images before and after, and the original where there is one, side by side with
    /// their PSNR.
    #[arg(long, value_name = "FILE")]
    pub comparison: Option<PathBuf>,
    /// Where and how it runs.
    #[command(flatten)]
    pub common: Common,
}

/// Arguments of `dictionary-learning inpaint`.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("what").required(true).args(["mask", "missing"]))]
pub struct InpaintArgs {
    /// The image with missing pixels, grey or colour.
    #[arg(value_name = "IMAGE")]
    pub image: PathBuf,
    /// Mask of the same size as the image, white where pixels are missing.
    #[arg(long, value_name = "FILE")]
    pub mask: Option<PathBuf>,
    /// The mask is black, not white, where pixels are missing.
    #[arg(long, requires = "mask")]
    pub invert_mask: bool,
    /// Treat IMAGE as complete: remove this fraction of its pixels at random, fill them in and
    /// report the PSNR.
    #[arg(long, value_name = "FRACTION", value_parser = inside_zero_one)]
    pub missing: Option<f64>,
    /// The original image, to measure the result against.
    #[arg(long, value_name = "FILE", requires = "mask")]
    pub clean: Option<PathBuf>,
    /// Standard deviation of the noise, in grey levels of 0 to 255. With 0 the known pixels are
    /// kept unchanged.
    #[arg(long, value_name = "LEVELS", default_value_t = 0., value_parser = not_negative)]
    pub sigma: f64,
    /// Root mean square error at which a code stops growing, in the unit of the rows (grey levels
    /// for images). It is that of a patch's known pixels. In sparse-coding, the unit of --penalty.
    #[arg(long, value_name = "RMS", default_value_t = 3., value_parser = not_negative)]
    pub error: f64,
    /// Largest number of atoms in a code. In sparse-coding, used only while a dictionary is learned
    /// from the image.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = at_least_one)]
    pub nonzero: usize,
    /// Rounds of inpainting and relearning before the final inpainting.
    #[arg(long, value_name = "N", default_value_t = 2, conflicts_with = "dictionary", value_parser = whole_number)]
    pub rounds: usize,
    /// The dictionary.
    #[command(flatten)]
    pub dictionary: ImageDictionaryArgs,
    /// Distance in pixels between neighbouring patches, at most the side of a patch; 2 takes a
    /// quarter of the time of 1.
    #[arg(long, value_name = "PIXELS", default_value_t = 1, value_parser = at_least_one)]
    pub step: usize,
    /// Pursuit that chooses a code's atoms. In sparse-coding, used only while a dictionary is
    /// learned from the image.
    #[arg(long, value_enum, default_value_t = MaskedMethod::Omp)]
    pub pursuit: MaskedMethod,
    /// The filled image: .png, .jpg (with loss), .bmp, .tiff, .pnm or .webp.
    #[arg(long, value_name = "FILE", default_value = "inpainted.png")]
    pub out: PathBuf,
    /// Write the images before and after, and the original where there is one, side by side with
    /// their PSNR.
    #[arg(long, value_name = "FILE")]
    pub comparison: Option<PathBuf>,
    /// Where and how it runs.
    #[command(flatten)]
    pub common: Common,
}
