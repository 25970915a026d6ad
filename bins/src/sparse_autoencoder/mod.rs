//! The program `sparse-autoencoder`: sparse features from the shell.
//!
//! | module | what |
//! |---|---|
//! | [`args`] | the command line |
//! | `train` | the command `train` |
//! | `apply` | the commands `encode`, `evaluate` and `reconstruct` |
//! | `self_taught` | the command `self-taught` |
//! | `draw` | pictures |
//! | `card` | the model card |
mod apply;
pub mod args;
mod card;
mod draw;
mod self_taught;
mod train;

use crate::report::Outcome;
use anyhow::Result;
use args::{Cli, Command};

/// Places in the random sequence of a run's seed, one for each use.
mod streams {
    /// The first weights.
    pub const START: u64 = 1 << 32;
}

/// Runs the command of the command line.
///
/// # Errors
/// Whatever went wrong, in one line that says what to do.
pub fn run(cli: Cli) -> Result<Outcome> {
    match cli.command {
        None => train::train(&cli.train),
        Some(Command::Train(args)) => train::train(&args),
        Some(Command::Encode(args)) => apply::encode(&args),
        Some(Command::Evaluate(args)) => apply::evaluate(&args),
        Some(Command::Reconstruct(args)) => apply::reconstruct(&args),
        Some(Command::SelfTaught(args)) => self_taught::self_taught(&args),
        Some(Command::Completions(args)) => args.print::<Cli>(),
    }
}
