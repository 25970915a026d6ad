//! Programs whose models read patches of images or rows of a data set: their rows, and the commands
//! that are the same for all.
pub mod args;
mod family;

pub use args::{EncodeArgs, InputArgs, ReconstructArgs, UseArgs};
pub use family::{Family, encode, open, reconstruct, write_filters};

use crate::args::prepare::{PrepareArgs, Steps};
use crate::options::{PatchArg, ReadArgs, located};
use crate::report::note_usual_data;
use crate::rows::{Reads, Rows, SplitArg, images};
use crate::session::{self, Kind, RunInfo};
use anyhow::{Context, Result, ensure};
use chandlery_datasets::Preparation;
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
    /// These options; without --data, those not given are taken from the run of this `kind`, with
    /// settings `S`, in the folder `model`.
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
    /// Whether rows that are no patches stay in their files as they are.
    pub stay: bool,
}

impl Usual {
    /// Opens rows of this split; patches are drawn with `seed`.
    ///
    /// # Errors
    /// When the data set is missing, or holds rows where patches are asked for.
    pub fn open(self, args: &InputArgs, split: Option<SplitArg>, seed: u64) -> Result<Rows> {
        let name = args.data.as_deref().unwrap_or(DATA);
        let base = args.base.as_deref();
        let (data, read) = (located(name, base), args.read.located(base));
        let cut = &args.cut;
        if !cut.is_none() && (cut.size().is_some() || images::are_in(&data)?) {
            let size = cut.size().unwrap_or(self.side.into());
            return Rows::cut((name, &data), &read, size, cut.patches.unwrap_or(self.patches), seed);
        }
        ensure!(
            args.cut.patches.is_none(),
            "--patches: {name} holds rows, not images; leave it out, or give --patch"
        );
        let read = ReadArgs { stay: self.stay, ..read };
        Ok(Rows { name: name.to_owned(), ..Rows::of(read.open(&data)?, split)? })
    }

    /// The rows that a model that `reads` so is used on: those asked for, or those of the run of
    /// this `kind`, with settings `S`, in its folder. Patches have the size of those that the model
    /// reads, unless another is asked for.
    ///
    /// # Errors
    /// When the data set is missing, its rows are not those of the model, or a split of patches is
    /// asked for.
    pub fn open_to_use<S: DeserializeOwned>(
        self,
        args: &UseArgs,
        kind: &Kind,
        reads: &Reads,
    ) -> Result<Rows> {
        let mut input = args.input.or_those_of::<S>(&args.model.model, kind)?;
        if let (Some(data), None, Some(image)) = (&args.input.data, input.cut.patch, reads.image)
            && images::are_in(data)?
        {
            input.cut.patch = Some(PatchArg::Size((image.height, image.width).into()));
        }
        let rows = self.open(&input, args.split, args.seed)?;
        ensure!(
            args.split.is_none() || !rows.patches,
            "--split: {} is cut into patches, which have no splits; leave it out",
            rows.name
        );
        rows.check_for(reads)?;
        Ok(rows)
    }

    /// What is done to rows, fitted to them.
    ///
    /// # Errors
    /// When a row is not finite, or there are too few.
    pub fn preparation(self, rows: &Rows, asked: &PrepareArgs, seed: u64) -> Result<Preparation> {
        let mut prepare = asked.clone();
        if rows.patches {
            let Steps(usual) = self.prepare.parse().map_err(anyhow::Error::msg)?;
            prepare.choose(usual);
        }
        rows.preparation(prepare.steps(), seed)
    }
}
