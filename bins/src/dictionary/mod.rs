//! The program `dictionary-learning`: dictionaries and sparse codes from the shell.
//!
//! | module     | what                                                              |
//! |------------|-------------------------------------------------------------------|
//! | [`args`]   | the command line                                                  |
//! | [`choices`] | the names of starts and replacements                             |
//! | `signals`  | patches of images, or rows, in the unit they are learned in       |
//! | `train`    | the command `train`, from all rows or from minibatches            |
//! | `plan`     | the first dictionary, and how it learns                           |
//! | `encode`   | the command `encode`                                              |
//! | `decode`   | the command `decode`                                              |
//! | [`classify`] | the command `classify`                                            |
//! | `card`     | the model card                                                    |
//!
//! The commands `denoise` and `inpaint` are `restore`.
pub mod args;
mod card;
pub mod choices;
pub mod classify;
mod decode;
mod encode;
mod plan;
mod signals;
mod train;

use crate::report::Outcome;
use crate::restore::{Codes, denoise, inpaint};
use anyhow::Result;
use args::{Cli, Command};

/// Places in the random sequence of a run's seed, one for each use. Patches drawn for training and
/// the rows' order have their own ([`chandlery_datasets`]).
mod streams {
    /// The first dictionary.
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
        Some(Command::Encode(args)) => encode::encode(&args),
        Some(Command::Decode(args)) => decode::decode(&args),
        Some(Command::Denoise(args)) => denoise(&args, Codes::Pursuit),
        Some(Command::Inpaint(args)) => inpaint(&args, Codes::Pursuit),
        Some(Command::Classify(args)) => classify::classify(&args),
        Some(Command::Completions(args)) => args.print::<Cli>(),
    }
}
