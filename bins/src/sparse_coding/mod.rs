//! The program `sparse-coding`: bases and activations from the shell.
//!
//! | module | what |
//! |---|---|
//! | [`args`] | the command line |
//! | [`choices`] | its choices of algorithms, which `bench` has too |
//! | `train` | the command `train`, and what the family says of itself |
//! | `apply` | the commands `encode` and `evaluate` |
//! | `self_taught` | the command `self-taught` |
//!
//! The commands `denoise` and `inpaint` are `restore`.
mod apply;
pub mod args;
pub mod choices;
mod self_taught;
mod train;

use crate::patch_rows::reconstruct;
use crate::report::Outcome;
use crate::restore::{Codes, denoise, inpaint};
use anyhow::Result;
use args::{Cli, Command};
use chandlery::sparse_coding::SparseCoding;

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
        Some(Command::Reconstruct(args)) => reconstruct::<SparseCoding>(&args),
        Some(Command::Denoise(args)) => denoise(&args.of, Codes::Lasso { penalty: args.penalty }),
        Some(Command::Inpaint(args)) => inpaint(&args.of, Codes::Lasso { penalty: args.penalty }),
        Some(Command::SelfTaught(args)) => self_taught::self_taught(&args),
        Some(Command::Completions(args)) => args.print::<Cli>(),
    }
}
