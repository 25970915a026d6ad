//! Signals: patches of images, or rows of a data set, in the unit that a dictionary is learned in.
//!
//! Pixels are grey levels from 0 to 255 whatever they are stored as, so that an error can be read
//! as one; rows that are no images keep their own unit.
use crate::args::prepare::PrepareArgs;
use crate::options::located;
use crate::patch_rows::{DATA, InputArgs};
use crate::progress::Progress;
use crate::rows::{Rows, SplitArg, images, in_order};
use crate::stages::{self, Stage};
use anyhow::{Context, Result};
use candle::{Device, Tensor};
use chandlery::dictionary::measure::{Figures, Measure};
use chandlery::dictionary::pixels::keeps_directions;
use chandlery::dictionary::pursuit::SparseCoder;
use chandlery_datasets::preparation::{Preparation, StepConfig};
use chandlery_datasets::{Feed, RowType, Split};

/// Side of a patch when none is asked for.
const SIDE: usize = 8;
/// Number of patches when none is asked for.
const PATCHES: usize = 40_000;
/// Rows that are read at once.
pub const BLOCK: usize = 8192;

/// Signals to learn from or to encode.
#[derive(Debug, Clone)]
pub struct Signals {
    /// Raw rows.
    pub rows: Rows,
    /// What makes signals of them.
    pub preparation: Preparation,
}

impl Signals {
    /// Opens what was asked for; patches are drawn with `seed`.
    pub fn open(args: &InputArgs, prepare: &PrepareArgs, seed: u64) -> Result<Self> {
        let name = args.data.as_deref().unwrap_or(DATA);
        let base = args.base.as_deref();
        let (data, read) = (located(name, base), args.read.located(base));
        let (cut, mut prepare) = (&args.cut, prepare.clone());
        let rows = if !cut.is_none() && (cut.size().is_some() || images::are_in(&data)?) {
            prepare.choose([StepConfig::RowMean]);
            let size = cut.size().unwrap_or(SIDE.into());
            Rows::cut((name, &data), &read, size, cut.patches.unwrap_or(PATCHES), seed)?
        } else {
            Rows { name: name.to_owned(), ..Rows::of(read.open(&data)?, Some(SplitArg::Train))? }
        };
        let preparation = fitted(&rows.split, prepare.steps(), seed)?;
        Ok(Self { rows, preparation })
    }

    /// Blocks of all signals, in the order of the source.
    pub fn blocks(&self, device: &Device) -> Result<Blocks<'_>> {
        Ok(Blocks { signals: self, feed: in_order(&self.rows.split, device, BLOCK)? })
    }

    /// All signals, `[n_rows, n_features]` f32.
    pub fn all(&self, device: &Device) -> Result<Tensor> {
        let (mut blocks, mut all) = (self.blocks(device)?, Vec::new());
        while let Some(block) = blocks.next()? {
            // A block lies in memory that the next one is written to.
            all.push(block.force_contiguous()?);
        }
        Ok(Tensor::cat(&all, 0)?)
    }

    /// At most `n` signals drawn with `seed`, in the order of the source.
    pub fn some(&self, n: usize, seed: u64, device: &Device) -> Result<Tensor> {
        let split = &self.rows.split;
        let split = if n < split.n_samples() { split.hold_out(n, seed)?.1 } else { split.clone() };
        Self { rows: Rows { split, ..self.rows.clone() }, ..self.clone() }.all(device)
    }

    /// Codes all signals, block by block.
    pub fn measure(&self, coder: &SparseCoder, atoms: &Tensor) -> Result<Figures> {
        let mut blocks = self.blocks(atoms.device())?;
        let mut measure = Measure::new(atoms.dim(0)?);
        let bar = Progress::rows(self.rows.split.n_samples() as u64, 0);
        bar.label("measuring".to_owned());
        while let Some(rows) = blocks.next()? {
            measure.add(&rows, &coder.encode(&rows, atoms)?, atoms)?;
            bar.advance(rows.dim(0)? as u64);
        }
        bar.finish();
        Ok(measure.figures())
    }

    /// What the signals are, in words.
    pub fn words(&self) -> String {
        let in_colour = self.rows.patches && self.rows.split.image.is_some_and(|image| image.channels == 3);
        let colour = if in_colour { " in colour" } else { "" };
        let without_mean = self.preparation.without_last_row_mean().is_some();
        let mean = if without_mean { " without their means" } else { "" };
        format!("{}{colour}{mean}", self.rows.words())
    }

    /// Values of a signal.
    pub fn n_features(&self) -> Result<usize> {
        Ok(self.preparation.n_outputs(self.rows.split.n_features())?)
    }

    /// The unit of errors, in words.
    pub fn unit(&self) -> &'static str {
        match (keeps_directions(&self.preparation), is_grey_levels(&self.rows.split)) {
            (false, _) => "units of the prepared rows",
            (true, true) => "grey levels",
            (true, false) => "units of the rows",
        }
    }
}

/// Whether the values of rows are taken as grey levels from 0 to 255: pixels, and bytes of other
/// rows.
fn is_grey_levels(split: &Split) -> bool {
    split.image.is_some() || split.row_type() == RowType::U8
}

/// What makes signals of rows where no dictionary says so: grey levels where values are such, then
/// `steps`, fitted to the rows.
pub fn fitted(split: &Split, steps: &[StepConfig], seed: u64) -> Result<Preparation> {
    let _stage = stages::enter(Stage::Preparation);
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
    /// The next signals, `[_, n_features]` f32.
    pub fn next(&mut self) -> Result<Option<Tensor>> {
        let Some(minibatch) = self.feed.next()? else { return Ok(None) };
        Ok(Some(self.signals.preparation.apply(&minibatch.rows)?))
    }
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

    fn signals(split: Split, preparation: Preparation) -> Signals {
        let rows = Rows { name: "x".to_owned(), image: split.image, split, patches: false };
        Signals { rows, preparation }
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
            let signals = signals(split, preparation);
            assert_eq!(values(&signals.all(&Cpu).unwrap()), [0., want]);
        }
        let preparation = fitted(&floats, &[StepConfig::RowMean], 0).unwrap();
        let centred = signals(floats, preparation);
        assert_eq!(values(&centred.all(&Cpu).unwrap()), [-0.5, 0.5]);
    }

    #[test]
    fn all_signals_are_there_and_in_order_beyond_a_block() {
        let n = 2 * BLOCK + 5;
        let rows: Vec<f32> = (0..n).map(|i| i as f32).collect();
        let split = Split::from_f32(rows.clone(), 1, None).unwrap();
        let signals = signals(split, Preparation::default());
        assert_eq!(values(&signals.all(&Cpu).unwrap()), rows);
    }
}
