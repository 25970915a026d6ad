//! The program `sparse-coding`: bases and activations from the shell.
//!
//! | module | what |
//! |---|---|
//! | [`args`] | the command line |
//! | `train` | the command `train` |
//! | `apply` | the commands `encode`, `evaluate` and `reconstruct` |
//! | `denoise`, `inpaint` | the commands of these names, which `dictionary-learning` has too |
//! | `self_taught` | the command `self-taught` |
//! | `draw` | the basis as a picture |
//! | `card` | the model card |
mod apply;
pub mod args;
mod card;
mod draw;
mod self_taught;
mod train;

use crate::dictionary::denoise::denoise;
use crate::dictionary::inpaint::inpaint;
use crate::dictionary::restore::Codes;
use crate::report::Outcome;
use anyhow::Result;
use args::{Cli, Command};

/// Places in the random sequence of a run's seed, one for each use.
mod streams {
    /// The first basis.
    pub const START: u64 = 1 << 32;
    /// What a trainer draws.
    pub const TRAINER: u64 = 2 << 32;
}

/// Runs the command of the command line.
///
/// # Errors
/// Whatever went wrong, in one line that says what to do.
pub fn run(cli: Cli) -> Result<Outcome> {
    match cli.command {
        None => cli.train.session.named(train::train(&cli.train)),
        Some(Command::Train(args)) => args.session.named(train::train(&args)),
        Some(Command::Encode(args)) => apply::encode(&args),
        Some(Command::Evaluate(args)) => apply::evaluate(&args),
        Some(Command::Reconstruct(args)) => apply::reconstruct(&args),
        Some(Command::Denoise(args)) => denoise(&args.of, Codes::Lasso { penalty: args.penalty }),
        Some(Command::Inpaint(args)) => inpaint(&args.of, Codes::Lasso { penalty: args.penalty }),
        Some(Command::SelfTaught(args)) => self_taught::self_taught(&args),
        Some(Command::Completions(args)) => args.print::<Cli>(),
    }
}
