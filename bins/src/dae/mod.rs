//! The program `dae`: denoising autoencoders from the shell.
//!
//! | module | what |
//! |---|---|
//! | [`args`] | the command line |
//! | `plan` | from the settings to the layers, and how each learns |
//! | `train` | the command `train`: an autoencoder, or a stack layer by layer |
//! | `saved` | autoencoders and stacks in folders |
//! | `measure` | errors of reconstructions from clean and from corrupted rows |
//! | `apply` | the commands `encode`, `evaluate` and `reconstruct` |
//! | `sample` | the command `sample`: artificial views of rows |
//! | `denoise` | the command `denoise`: image files |
//! | `draw` | pictures and learning curves |
//! | `card` | the model card |
//!
//! The command `fine-tune` is `fine_tune`; what it makes is used by `dbn predict`, `dbn encode` and
//! the like.
mod apply;
pub mod args;
mod card;
mod denoise;
mod draw;
mod measure;
mod plan;
mod sample;
mod saved;
mod train;

use crate::fine_tune::{Base, fine_tune};
use crate::report::Outcome;
use crate::session::Kind;
use anyhow::Result;
use args::{Cli, Command};
use candle::Device;
use chandlery::feedforward::Feedforward;

/// Places in the random sequence of a run's seed, one for each use.
mod streams {
    /// The first weights.
    pub const WEIGHTS: u64 = 1 << 32;
    /// Noise in the training of layer `l`: this plus `l`.
    pub const NOISE: u64 = 2 << 32;
    /// Noise of the held-out rows of layer `l`, the same after each epoch: this plus `l`.
    pub const HELD_OUT: u64 = 3 << 32;
    /// Noise of rows that a model is measured on or that are drawn.
    pub const MEASURED: u64 = 4 << 32;
    /// Noise of the chains of `sample`.
    pub const VIEWS: u64 = 5 << 32;
}

/// Runs the command of the command line.
///
/// # Errors
/// Whatever went wrong, in one line that says what to do.
pub fn run(cli: Cli) -> Result<Outcome> {
    match cli.command {
        None => cli.train.session.named(train::train(&cli.train)),
        Some(Command::Train(args)) => args.session.named(train::train(&args)),
        Some(Command::FineTune(args)) => args.session.named(fine_tune::<OfDae>(&args)),
        Some(Command::Denoise(args)) => denoise::denoise(&args),
        Some(Command::Encode(args)) => apply::encode(&args),
        Some(Command::Evaluate(args)) => apply::evaluate(&args),
        Some(Command::Reconstruct(args)) => apply::reconstruct(&args),
        Some(Command::Sample(args)) => sample::sample(&args),
        Some(Command::Completions(args)) => args.print::<Cli>(),
    }
}

/// Denoising autoencoders and stacks of them, to be fine-tuned.
struct OfDae;

impl Base for OfDae {
    const KIND: Kind = Kind { command: "dae fine-tune", folder: "dae-fine-tune" };
    const TAGS: [&'static [&'static str]; 2] = [
        &["denoising-autoencoder", "fine-tuned", "image-classification"],
        &["denoising-autoencoder", "fine-tuned", "autoencoder"],
    ];

    fn network(model: &str, n_classes: Option<usize>, device: &Device) -> Result<Feedforward> {
        let stack = saved::load(model, device)?;
        Ok(match n_classes {
            Some(n) => Feedforward::from_stacked_dae(&stack, n)?,
            None => Feedforward::unroll_stacked_dae(&stack)?,
        })
    }
}
