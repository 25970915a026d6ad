//! Rows: patches of images, or rows of a data set, and what is done to them.
use super::args::{InputArgs, PrepareArg, Settings, UseArgs};
use super::train::{Input, KIND};
use crate::dictionary::signals::{holds_images, open_images};
use crate::options::located;
use crate::rows::{BLOCK, in_order};
use crate::session::RunInfo;
use anyhow::{Context, Result, ensure};
use candle::{Device, Tensor};
use chandlery::sparse_autoencoder::SparseAutoencoderConfig;
use chandlery_datasets::patches::PatchSampler;
use chandlery_datasets::preparation::{StepConfig, WhiteningConfig};
use chandlery_datasets::{Feed, Preparation, Split, count};
use std::path::Path;

/// Side of a patch, and number of patches, when none is asked for.
const SIDE: usize = 8;
const PATCHES: usize = 10_000;

/// Raw rows, as they were asked for.
pub struct Rows {
    pub name: String,
    pub split: Split,
    /// Whether rows are patches cut out of images.
    pub patches: bool,
}

impl Rows {
    /// Rows to learn from, or with `test` those that the data set keeps for tests where it does; patches are drawn with `seed`.
    pub fn open(args: &InputArgs, test: bool, seed: u64) -> Result<Self> {
        let name = args.data.clone().unwrap_or_else(|| "natural-images".to_owned());
        let at = || format!("--data {name}");
        let base = args.base.as_deref();
        let (data, read) = (located(&name, base), args.read.located(base));
        if args.side.is_some() || holds_images(&data)? {
            let images = open_images(&data, &read)?;
            let (size, n) = (args.side.unwrap_or(SIDE.into()), args.patches.unwrap_or(PATCHES));
            let split = PatchSampler::new(images, size, n, seed).with_context(at)?.into_split()?;
            return Ok(Self { name, split, patches: true });
        }
        ensure!(
            args.patches.is_none(),
            "--patches: {name} holds rows, not images; leave it out, or give --side"
        );
        let dataset = read.open(&data)?;
        let split = if test { dataset.test.unwrap_or(dataset.train) } else { dataset.train };
        Ok(Self { name, split, patches: false })
    }

    /// The rows that a model is used on: those asked for, or those of the run in its folder.
    pub fn to_use(args: &UseArgs, config: &SparseAutoencoderConfig) -> Result<Self> {
        let mut input = args.input.clone();
        if input.data.is_none()
            && let Ok((_, RunInfo::<Input, Settings> { input: of_run, directory, .. })) =
                KIND.open(Path::new(&args.model.model))
        {
            input = InputArgs {
                side: input.side.or(of_run.rows.side),
                patches: input.patches.or(of_run.rows.patches),
                read: input.read.above(&of_run.rows.read),
                data: of_run.rows.data,
                base: directory,
            };
        }
        let rows = Self::open(&input, true, args.seed)?;
        let (want, got) = (config.n_inputs(), rows.split.n_features());
        ensure!(got == want, "--data: rows must have {want} values for this model, got {got}");
        Ok(rows)
    }

    /// What is done to the rows, fitted to them.
    pub fn preparation(&self, asked: Option<PrepareArg>, seed: u64) -> Result<Preparation> {
        let usual = if self.patches { PrepareArg::Rescale } else { PrepareArg::None };
        let steps = match asked.unwrap_or(usual) {
            PrepareArg::None => return Ok(Preparation::default()),
            PrepareArg::Rescale => vec![StepConfig::Rescale],
            PrepareArg::Zca => vec![
                StepConfig::RowMean,
                StepConfig::Whiten(WhiteningConfig { epsilon: 0.1, ..WhiteningConfig::default() }),
            ],
        };
        Ok(Preparation::fit(&self.split, &steps, seed)?)
    }

    /// Calls `f` with blocks of raw rows in the order of the source.
    pub fn each(&self, device: &Device, mut f: impl FnMut(&Tensor) -> Result<()>) -> Result<()> {
        let mut feed = self.feed(device)?;
        while let Some(minibatch) = feed.next()? {
            f(&minibatch.rows)?;
        }
        Ok(())
    }

    /// Blocks of raw rows in the order of the source.
    pub fn feed(&self, device: &Device) -> Result<Feed> {
        in_order(&self.split, device, BLOCK)
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
