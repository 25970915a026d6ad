//! The rows that commands read: patches of images, or rows of a split of a data set.
//!
//! | module | what |
//! |---|---|
//! | [`Rows`] | rows that were opened, whatever they are |
//! | [`Data`] | the rows of a run, cut into those that training sees, those held out and test rows |
//! | `reads` | what a model says of the rows that it is for, and blocks of them |
//! | `of_run` | the data of a run, where a command line names none |
//! | `in_turn` | blocks of them by rank, and what ranks make of them |
//! | [`images`] | images that patches are cut from |
mod data;
pub mod images;
mod in_turn;
mod of_run;
mod reads;

pub use data::{Data, MeasuredOn, OfModel, OfRows, OutsideUnit, of_classes};
pub use in_turn::{InTurn, agree, own};
pub use reads::{BLOCK, Blocks, Reads, all, in_order, through};

use crate::options::{ReadArgs, RowsArgs};
use crate::progress::Progress;
use crate::ranks::Ranks;
use crate::report::of_data;
use crate::session;
use crate::stages::{self, Stage};
use anyhow::{Context, Result, ensure};
use candle::{Device, Tensor};
use chandlery_datasets::patches::{PatchSampler, PatchSize};
use chandlery_datasets::preparation::StepConfig;
use chandlery_datasets::{Dataset, Feed, Fingerprint, ImageShape, Preparation, Split, count};
use clap::ValueEnum;

/// Which rows of a data set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SplitArg {
    /// Rows to learn from.
    Train,
    /// Rows that the data set keeps for tests.
    Test,
}

/// Raw rows, as they were asked for.
#[derive(Debug, Clone)]
pub struct Rows {
    /// The data set, as the user named it.
    pub name: String,
    /// The rows.
    pub split: Split,
    /// How the values of a row of the data set make an image.
    pub image: Option<ImageShape>,
    /// Whether rows are patches cut out of images.
    pub patches: bool,
}

impl Rows {
    /// Rows of a data set: the split that was asked for; else its test rows, or its training rows
    /// where it keeps none for tests.
    pub fn of(dataset: Dataset, asked: Option<SplitArg>) -> Result<Self> {
        let (name, image) = (dataset.name.clone(), dataset.image());
        let split =
            match asked.unwrap_or(if dataset.test.is_some() { SplitArg::Test } else { SplitArg::Train }) {
                SplitArg::Train => dataset.train,
                SplitArg::Test => dataset
                    .test
                    .with_context(|| format!("--split test: {name} has no test rows; use --split train"))?,
            };
        Ok(Self { name, split, image, patches: false })
    }

    /// Rows that a saved model is used on: those asked for, or those of its run.
    pub fn for_model(args: &RowsArgs, model: &str, asked: Option<SplitArg>) -> Result<Self> {
        Self::of(args.open(model)?, asked)
    }

    /// `n` patches of the images that `data` names, drawn with `seed`; `name` is what the user
    /// called them.
    pub fn cut(
        (name, data): (&str, &str),
        read: &ReadArgs,
        size: PatchSize,
        n: usize,
        seed: u64,
    ) -> Result<Self> {
        let _stage = stages::enter(Stage::Data);
        let images = images::open(data, read)?;
        let sampler = PatchSampler::new(images, size, n, seed).with_context(|| format!("--data {name}"))?;
        let split = sampler.into_split()?;
        Ok(Self { name: name.to_owned(), image: split.image, split, patches: true })
    }

    /// What a run keeps of the rows, to know them again.
    pub fn of_run(&self) -> Result<session::Rows<'_>> {
        let _stage = stages::enter(Stage::Data);
        let fingerprint = Fingerprint::of([&self.split], None)?;
        Ok(session::Rows { data: &self.name, n: self.split.n_samples(), fingerprint })
    }

    /// What `steps` do to the rows, fitted to them.
    pub fn preparation(&self, steps: &[StepConfig], seed: u64) -> Result<Preparation> {
        let _stage = stages::enter(Stage::Preparation);
        Preparation::fit(&self.split, steps, seed).context("--prepare")
    }

    /// All of them on a device, as they are stored.
    pub fn raw(&self, device: &Device) -> Result<Tensor> {
        let _stage = stages::enter(Stage::Data);
        Ok(self.split.raw(device)?)
    }

    /// Refuses rows that a model does not read.
    pub fn check_for(&self, reads: &Reads) -> Result<()> {
        let (n_inputs, got) = (reads.n_inputs, self.split.n_features());
        ensure!(got == n_inputs, "--data: rows must have {n_inputs} values for this model, got {got}");
        Ok(())
    }

    /// Calls `f` with blocks of raw rows in the order of the source, those of this rank.
    pub fn each(
        &self,
        ranks: &Ranks,
        device: &Device,
        mut f: impl FnMut(&Tensor) -> Result<()>,
    ) -> Result<()> {
        let Some(mut feed) = self.feed(ranks, device)? else { return Ok(()) };
        let bar = Progress::rows((self.split.n_samples() / ranks.place().1) as u64, 0);
        bar.label("measuring".to_owned());
        while let Some(minibatch) = feed.next()? {
            of_data(&self.name, f(&minibatch.rows))?;
            bar.advance(minibatch.rows.dim(0)? as u64);
        }
        Ok(())
    }

    /// Blocks of raw rows in the order of the source, those of this rank; none where it has none.
    pub fn feed(&self, ranks: &Ranks, device: &Device) -> Result<Option<Feed>> {
        let own = own(ranks, &self.split, BLOCK)?;
        own.map(|own| in_order(&own, device, BLOCK)).transpose()
    }

    /// What the rows are, in words.
    pub fn words(&self) -> String {
        let n = self.split.n_samples();
        match self.split.image {
            Some(shape) if self.patches => {
                format!("{} of {}x{} pixels", count(n, "patch"), shape.height, shape.width)
            }
            _ => format!("{} of {}", count(n, "row"), count(self.split.n_features(), "value")),
        }
    }
}
