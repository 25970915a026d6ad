//! Arguments of sub-commands that use a saved model, whatever the model is.
use crate::options::{Common, ModelArgs, RowsArgs, at_least_one};
use crate::ranks::RanksArgs;
use crate::rows::{Rows, SplitArg};
use anyhow::Result;
use clap::Args;
use std::path::PathBuf;
use std::str::FromStr;

/// A model and the rows that it is used on.
#[derive(Debug, Args)]
pub struct UseArgs {
    /// The model.
    #[command(flatten)]
    pub model: ModelArgs,
    /// Where rows come from.
    #[command(flatten)]
    pub data: RowsArgs,
    /// Rows to use; default: the test rows if there are any, else the training rows.
    #[arg(long, value_enum)]
    pub split: Option<SplitArg>,
    /// Where it computes, and how it reports.
    #[command(flatten)]
    pub common: Common,
}

impl UseArgs {
    /// The rows.
    ///
    /// # Errors
    /// As [`RowsArgs::open`], and when there are no test rows that were asked for.
    pub fn open(&self) -> Result<Rows> {
        Rows::for_model(&self.data, &self.model.model, self.split)
    }
}

/// Arguments of `encode` of models of layers.
#[derive(Debug, Args)]
pub struct EncodeArgs {
    /// Model and rows.
    #[command(flatten)]
    pub of: UseArgs,
    /// Layer whose features are written, from 1 for the lowest; all: the default layer and all
    /// below it, side by side. Default: the top layer; of dbn, also the code layer of a deep
    /// autoencoder, the last hidden layer of a classifier, and the layer joined with the labels in
    /// a network of `up-down`.
    #[arg(long, value_name = "N|all")]
    pub layer: Option<LayerChoice>,
    /// File to write, .npy, .csv or .safetensors; the last two also hold the labels. - writes CSV
    /// to standard output.
    #[arg(long, value_name = "FILE", default_value = "features.safetensors")]
    pub out: PathBuf,
    /// How many processes compute together.
    #[command(flatten)]
    pub ranks: RanksArgs,
}

/// The picture of `reconstruct`.
#[derive(Debug, Args)]
pub struct PictureArgs {
    /// Number of rows in the picture.
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = at_least_one)]
    pub n: usize,
    /// Picture to write: each line of originals has its reconstructions below it, of dae with the
    /// corrupted rows between them.
    #[arg(long, value_name = "FILE", default_value = "reconstructions.png")]
    pub out: PathBuf,
}

/// The layers whose features are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayerChoice {
    /// One, counted from 1.
    One(usize),
    /// The one that is written by default and all below it.
    All,
}

impl FromStr for LayerChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "all" => Ok(Self::All),
            text => at_least_one(text).map(Self::One).map_err(|err| format!("{err}, or all")),
        }
    }
}
