//! Signals: patches of images, or rows of a data set, in the unit that a dictionary is learned in.
//!
//! Pixels are grey levels from 0 to 255 whatever they are stored as, so that an error can be read as one; rows that are no images keep their own
//! unit.
use super::pixels::keeps_directions;
use crate::args::prepare::PrepareArgs;
use crate::options::{ReadArgs, located};
use crate::patch_rows::{DATA, InputArgs};
use crate::progress::Spinner;
use crate::report::Report;
use crate::rows::in_order;
use anyhow::{Context, Result};
use candle::{Device, Tensor};
use chandlery_datasets::patches::{ImageSet, PatchSampler};
use chandlery_datasets::preparation::{Preparation, StepConfig};
use chandlery_datasets::{Feed, RowType, Split};
use chandlery_datasets::{count, is_name};
use image::ImageDecoder;
use std::path::{Path, PathBuf};

/// Side of a patch when none is asked for.
const SIDE: usize = 8;
/// Number of patches when none is asked for.
const PATCHES: usize = 40_000;
/// Rows that are read at once.
const BLOCK: usize = 8192;

/// Signals to learn from or to encode.
#[derive(Debug, Clone)]
pub struct Signals {
    /// As it was asked for.
    pub name: String,
    /// Raw rows.
    pub split: Split,
    /// What makes signals of them.
    pub preparation: Preparation,
    /// Whether rows are patches cut out of images.
    pub patches: bool,
}

impl Signals {
    /// Opens what was asked for; patches are drawn with `seed`.
    pub fn open(args: &InputArgs, prepare: &PrepareArgs, seed: u64) -> Result<Self> {
        let name = args.data.as_deref().unwrap_or(DATA);
        let at = || format!("--data {name}");
        let base = args.base.as_deref();
        let (data, read) = (located(name, base), args.read.located(base));
        if !args.cut.is_none() && (args.cut.size().is_some() || holds_images(&data)?) {
            let images = open_images(&data, &read)?;
            let size = args.cut.size().unwrap_or(SIDE.into());
            let n = args.cut.patches.unwrap_or(PATCHES);
            let split = PatchSampler::new(images, size, n, seed).with_context(at)?.into_split()?;
            let mut prepare = prepare.clone();
            prepare.choose([StepConfig::RowMean]);
            let preparation = fitted(&split, prepare.steps(), seed)?;
            return Ok(Self { name: name.to_owned(), split, preparation, patches: true });
        }
        let split = read.open(&data)?.train;
        let preparation = fitted(&split, prepare.steps(), seed)?;
        Ok(Self::rows(name, split, preparation))
    }

    /// Rows of a data set.
    pub fn rows(name: &str, split: Split, preparation: Preparation) -> Self {
        Self { name: name.to_owned(), split, preparation, patches: false }
    }

    /// Blocks of all signals, in the order of the source.
    pub fn blocks(&self, device: &Device) -> Result<Blocks<'_>> {
        Ok(Blocks { signals: self, feed: in_order(&self.split, device, BLOCK)? })
    }

    /// All signals, `[n_rows, n_features]` f32.
    pub fn all(&self, device: &Device) -> Result<Tensor> {
        let (mut blocks, mut all) = (self.blocks(device)?, Vec::new());
        while let Some(block) = blocks.next()? {
            // A block lies in memory that the next one is written to.
            all.push(block.copy()?);
        }
        Ok(Tensor::cat(&all, 0)?)
    }

    /// At most `n` signals drawn with `seed`, in the order of the source.
    pub fn some(&self, n: usize, seed: u64, device: &Device) -> Result<Tensor> {
        let split = match n < self.split.n_samples() {
            true => self.split.hold_out(n, seed)?.1,
            false => self.split.clone(),
        };
        Self { split, ..self.clone() }.all(device)
    }

    /// What the signals are, in words.
    pub fn words(&self) -> String {
        let n = self.split.n_samples();
        let mean =
            if self.preparation.without_last_row_mean().is_some() { " without their means" } else { "" };
        match self.split.image {
            Some(shape) if self.patches => {
                let colour = if shape.channels == 3 { " in colour" } else { "" };
                let patches = count(n, "patch");
                format!("{patches} of {}x{} pixels{colour}{mean}", shape.height, shape.width)
            }
            _ => {
                format!("{} of {}{mean}", count(n, "row"), count(self.split.n_features(), "value"))
            }
        }
    }

    /// Values of a signal.
    pub fn n_features(&self) -> Result<usize> {
        Ok(self.preparation.n_outputs(self.split.n_features())?)
    }

    /// The unit of errors, in words.
    pub fn unit(&self) -> &'static str {
        match (keeps_directions(&self.preparation), is_grey_levels(&self.split)) {
            (false, _) => "units of the prepared rows",
            (true, true) => "grey levels",
            (true, false) => "units of the rows",
        }
    }
}

/// Whether the values of rows are taken as grey levels from 0 to 255: pixels, and bytes of other rows.
fn is_grey_levels(split: &Split) -> bool {
    split.image.is_some() || split.row_type() == RowType::U8
}

/// What makes signals of rows where no dictionary says so: grey levels where values are such, then `steps`, fitted to the rows.
pub fn fitted(split: &Split, steps: &[StepConfig], seed: u64) -> Result<Preparation> {
    let scale = is_grey_levels(split).then_some(StepConfig::Scale(255.));
    let steps: Vec<StepConfig> = scale.into_iter().chain(steps.iter().copied()).collect();
    Preparation::fit(split, &steps, seed).context("--prepare")
}

/// Signals block by block.
pub struct Blocks<'a> {
    signals: &'a Signals,
    feed: Feed,
}

impl Blocks<'_> {
    /// The next raw rows, `[_, n_inputs]` u8 or f32.
    pub fn next_raw(&mut self) -> Result<Option<Tensor>> {
        Ok(self.feed.next()?.map(|minibatch| minibatch.rows))
    }

    /// The next signals, `[_, n_features]` f32.
    pub fn next(&mut self) -> Result<Option<Tensor>> {
        self.next_raw()?.map(|rows| Ok(self.signals.preparation.apply(&rows)?)).transpose()
    }
}

/// Opens images of any sizes.
pub fn open_images(data: &str, read: &ReadArgs) -> Result<ImageSet> {
    let spinner = Spinner::new(&format!("opening {data}"));
    let set = ImageSet::open(data, &read.options()).with_context(|| format!("--data {data}"))?;
    drop(spinner);
    if set.channels() == 1
        && let Some(name) = first_in_colour(data, &set)
    {
        Report::new(false).note(&format!("note: {name} is in colour, and was turned grey"));
    }
    Ok(set)
}

/// The first image file of a grey set that is stored in colour, among the first thousand.
fn first_in_colour<'a>(data: &str, set: &'a ImageSet) -> Option<&'a str> {
    let of_file = Path::new(data).is_file();
    let in_colour = |name: &str| {
        let path = if of_file { PathBuf::from(data) } else { Path::new(data).join(name) };
        let reader = image::ImageReader::open(path).ok()?.with_guessed_format().ok()?;
        Some(reader.into_decoder().ok()?.color_type().has_color())
    };
    set.images()
        .iter()
        .take(1000)
        .map(chandlery_datasets::patches::Image::name)
        .find(|name| in_colour(name) == Some(true))
}

/// Whether patches are to be cut from what `data` names: the built-in photographs, an image file, a folder of such.
pub fn holds_images(data: &str) -> Result<bool> {
    let path = Path::new(data);
    if data == "natural-images" || path.is_file() && is_image(path) {
        return Ok(true);
    }
    if is_name(data) || !path.is_dir() {
        return Ok(false);
    }
    let entries =
        std::fs::read_dir(path).with_context(|| format!("--data {data}: cannot read this folder"))?;
    for entry in entries {
        if is_image(&entry?.path()) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether a name ends as that of an image does.
fn is_image(path: &Path) -> bool {
    image::ImageFormat::from_path(path).is_ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use candle::Device::Cpu;
    use chandlery_datasets::ImageShape;

    fn values(t: &Tensor) -> Vec<f32> {
        t.flatten_all().unwrap().to_vec1().unwrap()
    }

    #[test]
    fn pixels_are_grey_levels_and_other_rows_keep_their_unit() {
        let image = Some(ImageShape::grey(1, 2));
        let bytes = Split::from_u8(vec![0, 255], 2, None).unwrap();
        let floats = Split::from_f32(vec![0., 1.], 2, None).unwrap();
        let cases =
            [(&bytes, image, 255.), (&bytes, None, 255.), (&floats, image, 255.), (&floats, None, 1.)];
        for (split, image, want) in cases {
            let split = split.clone().with_image(image).unwrap();
            let preparation = fitted(&split, &[], 0).unwrap();
            let signals = Signals::rows("x", split, preparation);
            assert_eq!(values(&signals.all(&Cpu).unwrap()), [0., want]);
        }
        let preparation = fitted(&floats, &[StepConfig::RowMean], 0).unwrap();
        let centred = Signals::rows("x", floats, preparation);
        assert_eq!(values(&centred.all(&Cpu).unwrap()), [-0.5, 0.5]);
    }

    #[test]
    fn all_signals_are_there_and_in_order_beyond_a_block() {
        let n = 2 * BLOCK + 5;
        let rows: Vec<f32> = (0..n).map(|i| i as f32).collect();
        let split = Split::from_f32(rows.clone(), 1, None).unwrap();
        let signals = Signals::rows("x", split, Preparation::default());
        assert_eq!(values(&signals.all(&Cpu).unwrap()), rows);
    }

    #[test]
    fn a_folder_of_images_is_told_from_one_of_other_files() {
        let dir = tempfile::tempdir().unwrap();
        let name = dir.path().display().to_string();
        assert!(!holds_images(&name).unwrap());
        std::fs::write(dir.path().join("x.PNG"), "").unwrap();
        assert!(holds_images(&name).unwrap());
        assert!(holds_images("natural-images").unwrap());
        assert!(!holds_images("mnist-sample").unwrap());
    }
}
