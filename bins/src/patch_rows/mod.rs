//! Patches of images, or rows of a data set, and what is done to them: for programs whose models read either.
pub mod args;
mod encode;
mod reconstruct;

pub use args::{EncodeArgs, InputArgs, ReconstructArgs, UseArgs};
pub use encode::encode;
pub use reconstruct::Reconstructing;

use crate::args::prepare::{PrepareArgs, Steps};
use crate::dictionary::signals::{holds_images, open_images};
use crate::options::{PatchArg, located};
use crate::progress::Progress;
use crate::report::{note_usual_data, of_data};
use crate::rows::{BLOCK, Reads, SplitArg, in_order, split_of};
use crate::session::{self, Kind, RunInfo};
use anyhow::{Context, Result, ensure};
use candle::{Device, Tensor};
use chandlery_datasets::patches::PatchSampler;
use chandlery_datasets::{Feed, Preparation, Split, count};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Where the rows of a run come from: fields of `run.json`.
#[derive(Debug, Serialize, Deserialize)]
pub struct Input {
    /// As the command line says it.
    pub rows: InputArgs,
}

impl session::info::Input for Input {
    fn meant_from(&mut self, base: &Path) {
        self.rows.base = Some(base.to_owned());
    }
}

impl InputArgs {
    /// These options; without --data, those not given are taken from the run of this `kind`, with settings `S`, in the folder `model`.
    ///
    /// # Errors
    /// When there is a run whose data is not known.
    pub fn or_those_of<S: DeserializeOwned>(&self, model: &str, kind: &Kind) -> Result<Self> {
        if self.data.is_some() {
            return Ok(self.clone());
        }
        let of_run: Option<RunInfo<Input, S>> = kind
            .of(Path::new(model))
            .with_context(|| format!("{model}: the data of this run is not known; name it with --data"))?;
        let Some(RunInfo { input: Input { rows }, directory, .. }) = of_run else {
            note_usual_data(model, DATA);
            return Ok(self.clone());
        };
        Ok(Self {
            cut: self.cut.above(&rows.cut),
            read: self.read.above(&rows.read),
            data: rows.data,
            base: directory,
        })
    }
}

/// The data set that is read where none is named.
pub const DATA: &str = "natural-images";

/// What a program does with patches when it is not told.
#[derive(Debug, Clone, Copy)]
pub struct Usual {
    /// Side of a patch, in pixels.
    pub side: usize,
    /// Number of patches.
    pub patches: usize,
    /// What is done to them, as `--prepare` names it; to other rows nothing.
    pub prepare: &'static str,
}

/// Raw rows, as they were asked for.
pub struct Rows {
    /// The data set, as the user named it.
    pub name: String,
    /// The rows.
    pub split: Split,
    /// Whether rows are patches cut out of images.
    pub patches: bool,
    usual: Usual,
}

impl Rows {
    /// Rows of this split, as `split_of` has it; patches are drawn with `seed`.
    ///
    /// # Errors
    /// When the data set is missing, or holds rows where patches are asked for.
    pub fn open(args: &InputArgs, usual: Usual, split: Option<SplitArg>, seed: u64) -> Result<Self> {
        let name = args.data.clone().unwrap_or_else(|| DATA.to_owned());
        let at = || format!("--data {name}");
        let base = args.base.as_deref();
        let (data, read) = (located(&name, base), args.read.located(base));
        if !args.cut.is_none() && (args.cut.size().is_some() || holds_images(&data)?) {
            let images = open_images(&data, &read)?;
            let size = args.cut.size().unwrap_or(usual.side.into());
            let n = args.cut.patches.unwrap_or(usual.patches);
            let split = PatchSampler::new(images, size, n, seed).with_context(at)?.into_split()?;
            return Ok(Self { name, split, patches: true, usual });
        }
        ensure!(
            args.cut.patches.is_none(),
            "--patches: {name} holds rows, not images; leave it out, or give --patch"
        );
        Ok(Self { name, split: split_of(read.open(&data)?, split)?, patches: false, usual })
    }

    /// The rows that a model that `reads` so is used on: those asked for, or those of the run of this `kind`, with settings `S`, in its
    /// folder. Patches have the size of those that the model reads, unless another is asked for.
    ///
    /// # Errors
    /// When the data set is missing, its rows are not those of the model, or a split of patches is asked for.
    pub fn to_use<S: DeserializeOwned>(
        args: &UseArgs,
        kind: &Kind,
        usual: Usual,
        reads: &Reads,
    ) -> Result<Self> {
        let mut input = args.input.or_those_of::<S>(&args.model.model, kind)?;
        if let (Some(data), None, Some(image)) = (&args.input.data, input.cut.patch, reads.image)
            && holds_images(data)?
        {
            input.cut.patch = Some(PatchArg::Size((image.height, image.width).into()));
        }
        let rows = Self::open(&input, usual, args.split, args.seed)?;
        ensure!(
            args.split.is_none() || !rows.patches,
            "--split: {} is cut into patches, which have no splits; leave it out",
            rows.name
        );
        let (n_inputs, got) = (reads.n_inputs, rows.split.n_features());
        ensure!(got == n_inputs, "--data: rows must have {n_inputs} values for this model, got {got}");
        Ok(rows)
    }

    /// What is done to the rows, fitted to them.
    ///
    /// # Errors
    /// When a row is not finite, or there are too few.
    pub fn preparation(&self, asked: &PrepareArgs, seed: u64) -> Result<Preparation> {
        let mut prepare = asked.clone();
        if self.patches {
            let Steps(usual) = self.usual.prepare.parse().map_err(anyhow::Error::msg)?;
            prepare.choose(usual);
        }
        Preparation::fit(&self.split, prepare.steps(), seed).context("--prepare")
    }

    /// Calls `f` with blocks of raw rows in the order of the source.
    ///
    /// # Errors
    /// Those of `f`, and when a row cannot be read.
    pub fn each(&self, device: &Device, mut f: impl FnMut(&Tensor) -> Result<()>) -> Result<()> {
        let mut feed = self.feed(device)?;
        let bar = Progress::rows(self.split.n_samples() as u64, 0);
        bar.label("measuring".to_owned());
        while let Some(minibatch) = feed.next()? {
            of_data(&self.name, f(&minibatch.rows))?;
            bar.advance(minibatch.rows.dim(0)? as u64);
        }
        Ok(())
    }

    /// Blocks of raw rows in the order of the source.
    ///
    /// # Errors
    /// When the device has no room.
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
