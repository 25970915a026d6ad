//! What both commands share: planes, the dictionary of an image, and what is written.
use super::card::{self, RestoredImage};
use crate::args::restore::ImageDictionaryArgs;
use crate::atoms::card::picture;
use crate::atoms::draw;
use crate::atoms::given::atoms_of;
use crate::atoms::summary::Summary;
use crate::choices::Rule;
use crate::device::describe;
use crate::options::Common;
use crate::progress::Progress;
use crate::report::{Outcome, Report, seconds};
use crate::run_folder::{Existing, RunFolder, check_writable, command_line};
use crate::session::card::Made;
use crate::stages::{self, Stage};
use anyhow::{Context, Result, bail, ensure};
use candle::{Device, Tensor};
use chandlery::dictionary::image::colour::{from_opponent, to_opponent};
use chandlery::dictionary::image::{ImageTrainer, ImageTraining, Restored, psnr};
use chandlery::dictionary::measure::energy_of;
use chandlery::dictionary::{Dictionary, DictionaryConfig};
use chandlery::pictures::planes;
use chandlery::{Model, Philox};
use chandlery_datasets::ImageShape;
use serde_json::{Value, json};
use std::path::Path;

/// Places in the random sequence of a seed, one for each use.
pub mod streams {
    /// Patches of an image that is restored.
    pub const PATCHES: u64 = 3 << 32;
    /// Noise that is added.
    pub const NOISE: u64 = 4 << 32;
    /// Pixels that are taken away.
    pub const HOLES: u64 = 5 << 32;
}

/// What finds the codes that a result is made of. Where a dictionary is learned, its codes are
/// those of a pursuit.
#[derive(Debug, Clone, Copy)]
pub enum Codes {
    /// The pursuit of the command line; of `dictionary-learning`.
    Pursuit,
    /// The lasso; of `sparse-coding`.
    Lasso {
        /// On magnitudes, in units of the noise or of the error that is allowed.
        penalty: f64,
    },
}

impl Codes {
    /// As the library takes it.
    pub fn penalty(self) -> Option<f64> {
        match self {
            Self::Pursuit => None,
            Self::Lasso { penalty } => Some(penalty),
        }
    }

    /// The program whose command it is.
    fn program(self) -> &'static str {
        match self {
            Self::Pursuit => "dictionary-learning",
            Self::Lasso { .. } => "sparse-coding",
        }
    }

    /// The most atoms of a code, of so many, where a pursuit takes at most `n_nonzero`.
    fn most(self, n_atoms: usize, n_nonzero: usize) -> usize {
        match self {
            Self::Pursuit => n_nonzero.min(n_atoms),
            Self::Lasso { .. } => n_atoms,
        }
    }
}

/// An image, `[channels, height, width]` in grey levels, as planes of its own: grey as it is,
/// colour as luma and two opponents, in each of which white noise stays what it was.
pub fn planes_of(image: &Tensor) -> Result<Vec<Tensor>> {
    let (channels, ..) = image.dims3()?;
    let planes = if channels == 3 { to_opponent(image)? } else { image.clone() };
    (0..channels).map(|c| Ok(planes.get(c)?.contiguous()?)).collect()
}

/// Planes back to an image.
pub fn image_of(planes: &[Tensor]) -> Result<Tensor> {
    let planes = Tensor::stack(planes, 0)?;
    Ok(if planes.dim(0)? == 3 { from_opponent(&planes)? } else { planes })
}

/// What `restore` makes of each plane, as an image, and the mean number of atoms of a patch.
pub fn each_plane(
    planes: &[Tensor],
    mut restore: impl FnMut(&Tensor, &mut dyn FnMut(usize, usize)) -> candle::Result<Restored>,
) -> Result<(Vec<Tensor>, f64)> {
    let bar = Progress::rows(0, 0);
    bar.label("coding all patches".to_owned());
    let of_plane = |(i, plane): (usize, &Tensor)| {
        // Planes have as many patches each.
        restore(plane, &mut |done, n| bar.show(i * n + done, planes.len() * n))
    };
    let restored = planes.iter().enumerate().map(of_plane).collect::<candle::Result<Vec<_>>>()?;
    let count = restored.iter().map(|r| r.mean_count).sum::<f64>() / planes.len() as f64;
    Ok((restored.into_iter().map(|r| r.image).collect(), count))
}

/// What a command has before it begins.
pub struct Task {
    pub device: Device,
    /// A given dictionary.
    pub dictionary: Option<Dictionary>,
    /// Of the square patches: that of the dictionary, or as asked for, or the default.
    pub side: usize,
    /// `[channels, height, width]` in grey levels.
    pub image: Tensor,
}

/// What a command line asks for that both commands have.
pub struct Wanted<'a> {
    pub image: &'a Path,
    pub dictionary: &'a ImageDictionaryArgs,
    /// Of a patch, where neither a dictionary nor the command line says.
    pub default_side: usize,
    pub step: usize,
    pub out: &'a Path,
    pub comparison: Option<&'a Path>,
    pub common: &'a Common,
}

impl Task {
    /// Refuses what cannot be written or read before anything is computed.
    pub fn open(wanted: &Wanted) -> Result<Self> {
        for (flag, path) in [("--out", Some(wanted.out)), ("--comparison", wanted.comparison)] {
            let Some(path) = path else { continue };
            planes::format_of(path).context(flag)?;
            check_writable(path).context(flag)?;
        }
        let device = wanted.common.open_device()?;
        let args = wanted.dictionary;
        check_group(args.group, args.atoms, args.rule)?;
        let open = |name: &String| atoms_of(name, &device).with_context(|| format!("--dictionary {name}"));
        let dictionary = args.dictionary.as_ref().map(open).transpose()?;
        let side = match (&dictionary, &args.dictionary) {
            (Some(dictionary), Some(name)) => side_of(dictionary, name)?,
            _ => args.patch.map_or(wanted.default_side, |side| side as usize),
        };
        check_step(wanted.step, side)?;
        let image = planes::read_planes(wanted.image)?;
        let (_, height, width) = image.dims3()?;
        ensure!(
            side <= height.min(width),
            "{}: the image must be at least as large as a patch of {side}x{side}, got {height}x{width}",
            wanted.image.display()
        );
        Ok(Self { device, dictionary, side, image })
    }
}

/// Refuses steps that leave pixels out.
pub fn check_step(step: usize, side: usize) -> Result<()> {
    ensure!(step <= side, "--step: must be at most the side of a patch, {side}, got {step}");
    Ok(())
}

/// Refuses groups of more atoms than there are, and those of a rule that has none.
pub fn check_group(group: Option<usize>, atoms: usize, rule: Rule) -> Result<()> {
    let Some(group) = group else { return Ok(()) };
    ensure!(group <= atoms, "--group: must be at most --atoms, {atoms}, got {group}");
    ensure!(
        rule != Rule::Mod,
        "--group: has no effect with --rule mod, which updates all atoms at once; leave out one of them"
    );
    Ok(())
}

/// The side of the square patches that a dictionary is for.
fn side_of(dictionary: &Dictionary, name: &str) -> Result<usize> {
    let p = dictionary.config().n_features;
    let side = (p as f64).sqrt().round() as usize;
    ensure!(
        side * side == p && side >= 2,
        "--dictionary {name}: its atoms must be square grey patches, got {p} values; train one with `train --patch`"
    );
    Ok(side)
}

/// How a dictionary is learned from an image.
pub fn training(args: &ImageDictionaryArgs) -> ImageTraining {
    ImageTraining {
        n_atoms: args.atoms,
        iterations: args.epochs,
        n_patches: args.patches,
        rule: args.rule.into(),
        group: args.group.unwrap_or(args.atoms),
    }
}

/// Where an image's patches are drawn.
pub fn draws(args: &ImageDictionaryArgs) -> Philox {
    Philox::new(args.seed, streams::PATCHES)
}

/// The dictionary of an image.
#[derive(Clone)]
pub struct ImageDictionary {
    pub dictionary: Dictionary,
    /// Of each atom, the sum of the squares of its coefficients over the patches that it was
    /// learned from; empty where it was given.
    energy: Vec<f64>,
}

impl From<Dictionary> for ImageDictionary {
    fn from(dictionary: Dictionary) -> Self {
        Self { dictionary, energy: Vec::new() }
    }
}

/// Runs a trainer to its end.
pub fn learn(mut trainer: ImageTrainer, iterations: usize, label: &str) -> Result<ImageDictionary> {
    let _stage = stages::enter(Stage::Training);
    let bar = Progress::iterations(iterations as u64, 0);
    bar.label(label.to_owned());
    while trainer.step()?.is_some() {
        bar.advance(1);
    }
    bar.finish();
    Ok(ImageDictionary { dictionary: trainer.dictionary().clone(), energy: energy_of(trainer.codes())? })
}

/// The folder of `--save-dictionary`, if there is to be one; to be asked for before anything is
/// computed.
pub fn folder_for(args: &ImageDictionaryArgs) -> Result<Option<RunFolder>> {
    let Some(path) = &args.save_dictionary else {
        return Ok(None);
    };
    let existing = if args.overwrite { Existing::Overwrite } else { Existing::Refuse };
    RunFolder::claim(path, "--save-dictionary", existing, "name another or add --overwrite").map(Some)
}

/// A command at its end.
pub struct Finished<'a> {
    /// `denoised`, `filled in`.
    pub done: &'static str,
    pub codes: Codes,
    pub wanted: &'a Wanted<'a>,
    pub device: &'a Device,
    pub side: usize,
    /// The atoms that the image was restored with, `[n_atoms, n_features]`, and how many a code may
    /// have.
    pub atoms: &'a Tensor,
    pub n_nonzero: usize,
    pub mean_count: f64,
    /// Iterations of learning, whether there were any, and their time.
    pub epochs: usize,
    pub learned: bool,
    pub training_seconds: f64,
    pub seconds: f64,
    /// Where the dictionary is kept.
    pub folder: Option<RunFolder>,
}

impl Finished<'_> {
    /// Writes and says everything; `own` are fields of the command's own for `--json`, `of_image`
    /// is the dictionary to keep.
    pub fn finish(
        &self,
        report: &Report,
        compared: &Compared<'_>,
        own: Value,
        of_image: impl FnOnce() -> Result<ImageDictionary>,
    ) -> Result<Outcome> {
        let &Wanted { image, dictionary: args, out, comparison, .. } = self.wanted;
        let psnr = compared.write(out, comparison)?;
        if let Some([before, after]) = psnr {
            report.line(&format!("PSNR {before:.2} dB → {after:.2} dB"))?;
        }
        let took = seconds(self.seconds);
        report.line(&format!("{:.2} atoms per patch; {} in {took}", self.mean_count, out.display()))?;
        let (n_atoms, n_features) = self.atoms.dims2()?;
        let n_nonzero = self.codes.most(n_atoms, self.n_nonzero);
        let config = DictionaryConfig::new(n_atoms, n_features, n_nonzero);
        let summary = Summary {
            mean_count: self.mean_count,
            training_seconds: Some(self.training_seconds),
            seconds: Some(self.seconds),
            ..Summary::new(out, &config, "grey levels", self.device)
        };
        let mut fields = json!({
            "penalty": self.codes.penalty(),
            "psnr_noisy": psnr.map(|[before, _]| before),
            "psnr": psnr.map(|[_, after]| after),
            "learned": self.learned,
            "seed": args.seed,
        });
        if let (Some(fields), Value::Object(own)) = (fields.as_object_mut(), own) {
            fields.extend(own);
        }
        let mut results = summary.with(fields)?;
        if let Some(folder) = &self.folder {
            let ImageDictionary { dictionary, energy } = of_image()?;
            folder.begin(&[])?;
            folder.save_model("", |path| dictionary.save_pretrained(path))?;
            let tile = ImageShape::grey(self.side, self.side);
            let pictured = draw::atoms(dictionary.atoms(), &energy, tile, &folder.file("dictionary.png")?)?;
            results = stages::with_seconds(results);
            folder.write_json("results.json", &results)?;
            let restored = RestoredImage {
                done: self.done,
                image,
                epochs: self.epochs,
                psnr,
                mean_count: self.mean_count,
            };
            let made = Made {
                version: env!("CARGO_PKG_VERSION"),
                command: &command_line(self.codes.program()),
                seed: args.seed,
                device: &describe(self.device),
                seconds: self.seconds,
            };
            let pictures = [picture(pictured)];
            let card = card::of(dictionary.config(), args, &restored, &pictures);
            folder.write("README.md", card.text(&made).as_bytes())?;
            report.line(&format!("dictionary in {}", folder.path().display()))?;
        }
        report.finish(results)?;
        Ok(Outcome::Done)
    }
}

/// The largest value of a pixel.
const PEAK: f64 = 255.;

/// An image before and after, and the one that it should be, where there is such.
pub struct Compared<'a> {
    /// What it is called in the picture, and what is wrong with it.
    pub before: (&'a str, &'a Tensor),
    pub after: (&'a str, &'a Tensor),
    pub clean: Option<&'a Tensor>,
}

impl Compared<'_> {
    /// Writes the image and, with captions, the comparison; returns PSNR before and after, if the
    /// true image is known: after is that of the file.
    pub fn write(&self, out: &Path, comparison: Option<&Path>) -> Result<Option<[f64; 2]>> {
        let written = planes::write_planes(self.after.1, out).context("--out")?;
        let psnr = match self.clean {
            Some(clean) => Some([psnr(self.before.1, clean, PEAK)?, psnr(&written, clean, PEAK)?]),
            None => None,
        };
        let Some(path) = comparison else { return Ok(psnr) };
        let caption = |name: &str, which: usize| match psnr {
            Some(psnr) => format!("{name} {:.2} dB", psnr[which]),
            None => name.to_owned(),
        };
        let captions = [caption(self.before.0, 0), caption(self.after.0, 1)];
        let mut row = vec![(captions[0].as_str(), self.before.1), (captions[1].as_str(), &written)];
        row.extend(self.clean.map(|clean| ("clean", clean)));
        planes::write_planes(&planes::side_by_side(&row)?, path).context("--comparison")?;
        Ok(psnr)
    }
}

/// Reads the image to measure against, which must have the shape of the other.
pub fn read_like(path: &Path, flag: &str, image: &Tensor) -> Result<Tensor> {
    let other = planes::read_planes(path).with_context(|| flag.to_owned())?;
    let ((c, h, w), (oc, oh, ow)) = (image.dims3()?, other.dims3()?);
    if (h, w) != (oh, ow) || c != oc {
        bail!(
            "{flag} {}: must be {h}x{w} with {c} planes like the image, got {oh}x{ow} with {oc}",
            path.display()
        )
    }
    Ok(other)
}
