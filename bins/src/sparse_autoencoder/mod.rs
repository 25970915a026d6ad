//! The program `sparse-autoencoder`: sparse features from the shell.
//!
//! | module | what |
//! |---|---|
//! | [`args`] | the command line |
//! | `train` | the command `train`, and what the family says of itself |
//! | `start` | the weights that it starts from |
//! | `finish` | what it leaves |
//! | `minibatches` | runs that learn from minibatches |
//! | `evaluate` | the command `evaluate` |
//! | [`latents`] | models with `--kind`: their options, training and commands |
//! | `self_taught` | the command `self-taught` |
pub mod args;
mod evaluate;
mod finish;
pub mod latents;
mod minibatches;
mod self_taught;
mod start;
mod train;

use crate::patch_rows::{UseArgs, encode, reconstruct};
use crate::program::model_type;
use crate::report::Outcome;
use anyhow::Result;
use args::{Cli, Command};
use chandlery::pretrained::ModelType;
use chandlery::sparse_autoencoder::SparseAutoencoder;
use chandlery::sparse_autoencoder::sae::{FileFormat, Sae};
use std::path::Path;

/// Runs the command of the command line.
///
/// # Errors
/// Whatever went wrong, in one line that says what to do.
pub fn run(cli: Cli) -> Result<Outcome> {
    match cli.command {
        None => train::train(&cli.train),
        Some(Command::Train(args)) => train::train(&args),
        Some(Command::Encode(args)) if has_latents(&args.of)? => latents::encode(&args),
        Some(Command::Encode(args)) => encode::<SparseAutoencoder>(&args, Ok),
        Some(Command::Evaluate(args)) if has_latents(&args.of)? => latents::evaluate(&args),
        Some(Command::Evaluate(args)) => evaluate::evaluate(&args),
        Some(Command::Top(args)) => latents::top(&args),
        Some(Command::Reconstruct(args)) if has_latents(&args.of)? => reconstruct::<Sae>(&args),
        Some(Command::Reconstruct(args)) => reconstruct::<SparseAutoencoder>(&args),
        Some(Command::SelfTaught(args)) => self_taught::self_taught(&args),
        Some(Command::Completions(args)) => args.print::<Cli>(),
    }
}

/// Whether a model is one of `--kind`, or of another library.
fn has_latents(of: &UseArgs) -> Result<bool> {
    let model = &of.model.model;
    Ok(FileFormat::of(Path::new(model))?.is_some() || model_type(model)? == ModelType::Sae)
}
