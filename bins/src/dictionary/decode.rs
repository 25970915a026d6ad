//! The command `decode`: the images or rows that sparse codes represent.
use super::args::DecodeArgs;
use crate::arrays;
use crate::atoms::given::given;
use crate::atoms::summary::Summary;
use crate::progress::Progress;
use crate::report::{Outcome, Report, named, seconds};
use crate::run_folder::{Existing, RunFolder, check_writable};
use anyhow::{Context, Result, bail, ensure};
use candle::{DType, Device, Tensor};
use chandlery::codes::{CodesFile, Cut};
use chandlery::dictionary::Dictionary;
use chandlery::dictionary::image::{BandSum, PatchGrid};
use chandlery::dictionary::pixels::keeps_directions;
use chandlery::pictures::planes;
use chandlery_datasets::count;
use serde_json::json;
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Rows that are decoded at once.
const BAND: usize = 65_536;

/// Writes the rows that codes stand for, or the images whose patches they are.
pub fn decode(args: &DecodeArgs) -> Result<Outcome> {
    let device = args.common.open_device()?;
    let dictionary = given(&args.model, &device)?;
    let config = dictionary.config();
    let file = CodesFile::read(&args.codes, &dictionary)?;
    let cut = file.notes.as_ref().and_then(|notes| notes.cut.as_ref());
    let out = match &args.out {
        Some(out) => out.clone(),
        None => PathBuf::from(match cut.map(|cut| cut.images.len()) {
            None => "decoded.npy",
            Some(1) => "decoded.png",
            Some(_) => "decoded",
        }),
    };
    let report = Report::beside(args.common.json, &out)?;
    let target = Target::of(&out, cut).context("--out")?;
    let started = Instant::now();
    let decoder = Decoder { dictionary: &dictionary, file: &file, device: &device };
    let n_rows = file.codes.count.elem_count();
    let n_images = match target {
        Target::Rows => {
            decoder.rows(&out)?;
            0
        }
        Target::Pictures(cut, paths) => {
            ensure!(
                keeps_directions(&config.preparation),
                "--out: codes of patches that were prepared otherwise than by row-mean do not become pictures; name a .npy, .csv or .safetensors file"
            );
            decoder.pictures(cut, &paths, &args.codes)?;
            cut.images.len()
        }
    };
    let (total, what) = (started.elapsed().as_secs_f64(), if n_images == 0 { "row" } else { "patch" });
    let images = match n_images {
        0 => String::new(),
        1 => " as an image".to_owned(),
        n => format!(" as {n} images"),
    };
    report.line(&format!("{}{images} in {}, {}", count(n_rows, what), named(&out), seconds(total)))?;
    let n_entries = file.codes.count.to_dtype(DType::F64)?.sum_all()?.to_scalar::<f64>()?;
    let summary = Summary {
        n_nonzero: file.codes.width(),
        mean_count: n_entries / n_rows as f64,
        unit: file.notes.as_ref().map(|notes| notes.unit.as_str()),
        seconds: Some(total),
        ..Summary::new(&out, config, "", &device)
    };
    report.finish(summary.with(json!({ "n_rows": n_rows, "n_images": n_images }))?)?;
    Ok(Outcome::Done)
}

/// What is written.
enum Target<'a> {
    /// All rows to one file.
    Rows,
    /// Each image to a file.
    Pictures(&'a Cut, Vec<PathBuf>),
}

impl<'a> Target<'a> {
    /// What a name stands for: rows if it ends as arrays do, else one picture, or a folder of them,
    /// which is made.
    fn of(out: &Path, cut: Option<&'a Cut>) -> Result<Self> {
        if arrays::Format::of(out).is_ok() {
            check_writable(out)?;
            return Ok(Self::Rows);
        }
        let Some(cut) = cut else {
            bail!(
                "{}: the name must end in .npy, .csv or .safetensors; only codes of images, in the .safetensors file of `encode`, become pictures",
                out.display()
            )
        };
        if planes::format_of(out).is_ok() {
            let n = cut.images.len();
            ensure!(n == 1, "{}: must name a folder for the {n} images of these codes", out.display());
            check_writable(out)?;
            return Ok(Self::Pictures(cut, vec![out.to_owned()]));
        }
        ensure!(
            out.extension().is_none() || out.is_dir(),
            "{}: the name must be that of a folder or end in .png, .jpg, .bmp, .tiff, .pnm, .webp, .npy, .csv or .safetensors",
            out.display()
        );
        let folder = RunFolder::claim(out, "--out", Existing::Refuse, "name another")?;
        let names = names(cut.images.iter().map(|image| image.name.as_str()));
        Ok(Self::Pictures(cut, names.iter().map(|name| folder.join(name)).collect()))
    }
}

/// Names of pictures in one folder: those of the images without what leads to them, with the ending
/// of what is written, and a number where two would be alike.
fn names<'a>(images: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut taken = HashSet::new();
    images
        .map(|name| {
            let stem = Path::new(name).file_stem().map_or("image".into(), |stem| stem.to_string_lossy());
            let numbered = (2..).map(|n| format!("{stem}-{n}.png"));
            let mut names = std::iter::once(format!("{stem}.png")).chain(numbered);
            names.find(|name| taken.insert(name.clone())).unwrap_or_default()
        })
        .collect()
}

/// Codes and the dictionary that they speak of.
struct Decoder<'a> {
    dictionary: &'a Dictionary,
    file: &'a CodesFile,
    device: &'a Device,
}

impl Decoder<'_> {
    /// What `n` codes from `first` on stand for, with their means: `[n, n_features]` f32.
    fn estimate(&self, first: usize, n: usize) -> Result<Tensor> {
        let (codes, mean) = self.file.rows(first, n, self.device)?;
        let atoms = self.dictionary.atoms().to_dtype(DType::F32)?;
        Ok(codes.reconstruct(&atoms)?.broadcast_add(&mean.unsqueeze(1)?)?)
    }

    fn rows(&self, out: &Path) -> Result<()> {
        let (m, p) = (self.file.codes.count.elem_count(), self.dictionary.config().n_features);
        let bar = Progress::rows(m as u64, 0);
        bar.label("decoding".to_owned());
        let mut first = 0;
        let next = || {
            let n = BAND.min(m - first);
            if n == 0 {
                return Ok(None);
            }
            let rows = self.estimate(first, n)?;
            first += n;
            bar.advance(n as u64);
            Ok(Some(rows))
        };
        arrays::write(out, (m, p), next, None)?;
        bar.finish();
        Ok(())
    }

    /// Each image as the mean of its overlapping patches.
    fn pictures(&self, cut: &Cut, paths: &[PathBuf], codes: &Path) -> Result<()> {
        let (m, p) = (self.file.codes.count.elem_count(), self.dictionary.config().n_features);
        let grids = grids(cut, m, p).with_context(|| codes.display().to_string())?;
        let bar = Progress::rows(m as u64, 0);
        bar.label("decoding".to_owned());
        let mut first = 0;
        for (grid, path) in grids.iter().zip(paths) {
            let mut sum = BandSum::default();
            for band in grid.bands(BAND) {
                let n = band.len() * grid.lefts().len();
                sum.add(grid, &band, grid.sum(&self.estimate(first, n)?, band.clone())?)?;
                first += n;
                bar.advance(n as u64);
            }
            let mean = (sum.image()? / grid.cover(self.device)?)?.unsqueeze(0)?;
            planes::write_planes(&mean.to_device(&Device::Cpu)?, path)?;
        }
        bar.finish();
        Ok(())
    }
}

/// Where the patches of each image lie; `m` patches of `p` values must be those of all images.
fn grids(cut: &Cut, m: usize, p: usize) -> Result<Vec<PatchGrid>> {
    let Cut { side, step, images } = cut;
    ensure!(
        side.checked_mul(*side) == Some(p),
        "its patches must have the {p} values of an atom, got {side}x{side}"
    );
    let mut left = m;
    let mut grids = Vec::with_capacity(images.len());
    for image in images {
        // Patches cover an image, so that it has no more pixels than they: what a file claims is
        // not allocated before that is sure.
        let pixels = image.height.checked_mul(image.width).filter(|&pixels| pixels <= left.saturating_mul(p));
        let grid = pixels
            .and_then(|_| PatchGrid::new(image.height, image.width, *side, *step).ok())
            .filter(|grid| grid.n_patches() <= left);
        let Some(grid) = grid else {
            bail!(
                "image {}: {}x{} pixels do not fit the {} of {side}x{side}, one every {}",
                image.name,
                image.height,
                image.width,
                count(left, "remaining patch"),
                count(*step, "pixel")
            )
        };
        left -= grid.n_patches();
        grids.push(grid);
    }
    ensure!(left == 0, "must hold one code for each patch of its images, has {left} more");
    Ok(grids)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use chandlery::codes::CodedImage;

    #[test]
    fn patches_must_be_those_of_the_images() {
        let image = |height, width| CodedImage { name: "a".to_owned(), height, width };
        let cut = |images: &[CodedImage]| Cut { side: 2, step: 1, images: images.to_vec() };
        // 2×3 patches and one.
        let both = cut(&[image(3, 4), image(2, 2)]);
        let counts: Vec<usize> = grids(&both, 7, 4).unwrap().iter().map(PatchGrid::n_patches).collect();
        assert_eq!(counts, [6, 1]);
        let text = |cut: &Cut, m, p| grids(cut, m, p).unwrap_err().to_string();
        assert_eq!(text(&both, 7, 9), "its patches must have the 9 values of an atom, got 2x2");
        assert_eq!(text(&both, 8, 4), "must hold one code for each patch of its images, has 1 more");
        assert_eq!(
            text(&both, 6, 4),
            "image a: 2x2 pixels do not fit the 0 remaining patches of 2x2, one every 1 pixel"
        );
        for (height, width) in [(usize::MAX, 2), (1 << 40, 1 << 10), (1, 4), (0, 0)] {
            let want = format!(
                "image a: {height}x{width} pixels do not fit the 7 remaining patches of 2x2, one every 1 pixel"
            );
            assert_eq!(text(&cut(&[image(height, width)]), 7, 4), want);
        }
    }

    #[test]
    fn pictures_are_named_as_the_images_and_stay_in_their_folder() {
        let images = ["a.png", "deep/a.jpg", "../../etc/x.y.tiff", "7", "a", ".."];
        let want = ["a.png", "a-2.png", "x.y.png", "7.png", "a-3.png", "image.png"];
        assert_eq!(names(images.into_iter()), want);
    }
}
