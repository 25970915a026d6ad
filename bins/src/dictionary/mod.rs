//! The program `dictionary-learning`: dictionaries and sparse codes from the shell.
//!
//! | module     | what                                                              |
//! |------------|-------------------------------------------------------------------|
//! | [`args`]   | the command line                                                  |
//! | `signals`  | patches of images, or rows, in the unit they are learned in       |
//! | `train`    | the command `train`, from all rows or from minibatches            |
//! | `plan`     | the first dictionary, and how it learns                           |
//! | `measure`  | how well a dictionary represents signals                          |
//! | `encode`   | the command `encode`                                              |
//! | `decode`   | the command `decode`                                              |
//! | `codes`    | files of codes, which both share                                  |
//! | `csr`      | codes as scipy's sparse matrices                                  |
//! | `given`    | a dictionary that the command line names: a model, or a file      |
//! | `pixels`   | atoms of a model as patches of pixels                             |
//! | `restore`  | what `denoise` and `inpaint` share                                |
//! | `denoise`  | the command `denoise`                                             |
//! | `inpaint`  | the command `inpaint`                                             |
//! | `summary`  | the fields that the JSON of every command has                         |
//! | `draw`     | the dictionary as a picture                                       |
//! | `card`     | model cards                                                       |
pub mod args;
mod card;
mod codes;
mod csr;
mod decode;
pub(crate) mod denoise;
pub(crate) mod draw;
mod encode;
mod given;
pub(crate) mod inpaint;
mod measure;
mod pixels;
mod plan;
pub(crate) mod restore;
pub(crate) mod signals;
mod summary;
mod train;

use crate::report::Outcome;
use anyhow::Result;
use args::{Cli, Command};
use restore::Codes;

/// Places in the random sequence of a run's seed, one for each use. Patches drawn for training and the rows' order have their own
/// ([`chandlery_datasets`]).
mod streams {
    /// The first dictionary.
    pub const START: u64 = 1 << 32;
    /// What a trainer draws.
    pub const TRAINER: u64 = 2 << 32;
    /// Patches of an image that is restored.
    pub const PATCHES: u64 = 3 << 32;
    /// Noise that is added.
    pub const NOISE: u64 = 4 << 32;
    /// Pixels that are taken away.
    pub const HOLES: u64 = 5 << 32;
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
        Some(Command::Denoise(args)) => denoise::denoise(&args, Codes::Pursuit),
        Some(Command::Inpaint(args)) => inpaint::inpaint(&args, Codes::Pursuit),
        Some(Command::Completions(args)) => args.print::<Cli>(),
    }
}
