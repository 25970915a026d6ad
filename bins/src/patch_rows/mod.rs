//! Programs whose models read patches of images or rows of a data set: their rows, and the commands that are the same for all.
pub mod args;
mod family;

pub use args::{EncodeArgs, InputArgs, PrepareArg, ReconstructArgs, UseArgs};
pub use family::{Family, encode, open, reconstruct, write_filters};

use crate::options::located;
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

/// The data set that is read where none is named.
const DATA: &str = "natural-images";

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

impl Usual {
    /// Opens rows of this split; patches are drawn with `seed`.
    ///
    /// # Errors
    /// When the data set is missing, or holds rows where patches are asked for.
    pub fn open(self, args: &InputArgs, split: Option<SplitArg>, seed: u64) -> Result<Rows> {
        let name = args.data.as_deref().unwrap_or(DATA);
        let base = args.base.as_deref();
        let (data, read) = (located(name, base), args.read.located(base));
        if args.side.is_some() || images::are_in(&data)? {
            let (size, n) = (args.side.unwrap_or(self.side.into()), args.patches.unwrap_or(self.patches));
            return Rows::cut((name, &data), &read, size, n, seed);
        }
        ensure!(
            args.patches.is_none(),
            "--patches: {name} holds rows, not images; leave it out, or give --side"
        );
        Ok(Rows { name: name.to_owned(), ..Rows::of(read.open(&data)?, split)? })
    }

    /// The rows that a model that `reads` so is used on: those asked for, or those of the run of this `kind`, with settings `S`, in its
    /// folder. Patches have the size of those that the model reads, unless another is asked for.
    ///
    /// # Errors
    /// When the data set is missing, its rows are not those of the model, or a split of patches is asked for.
    pub fn open_to_use<S: DeserializeOwned>(
        self,
        args: &UseArgs,
        kind: &Kind,
        reads: &Reads,
    ) -> Result<Rows> {
        let mut input = args.input.clone();
        let model = &args.model.model;
        if input.data.is_none() {
            let of_run: Option<RunInfo<Input, S>> = kind.of(Path::new(model)).with_context(|| {
                format!("{model}: the data of this run is not known; name it with --data")
            })?;
            match of_run {
                Some(RunInfo { input: of_run, directory, .. }) => {
                    input = InputArgs {
                        side: input.side.or(of_run.rows.side),
                        patches: input.patches.or(of_run.rows.patches),
                        read: input.read.above(&of_run.rows.read),
                        data: of_run.rows.data,
                        base: directory,
                    };
                }
                None => note_usual_data(model, DATA),
            }
        }
        if let (Some(data), None, Some(image)) = (&args.input.data, input.side, reads.image)
            && images::are_in(data)?
        {
            input.side = Some((image.height, image.width).into());
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
    pub fn preparation(self, rows: &Rows, asked: Option<&PrepareArg>, seed: u64) -> Result<Preparation> {
        let usual = || if rows.patches { self.prepare } else { "none" }.parse();
        let prepare = match asked {
            Some(asked) => asked.clone(),
            None => usual().map_err(anyhow::Error::msg)?,
        };
        rows.preparation(&prepare.steps, seed)
    }
}
