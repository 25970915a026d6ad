//! The program `dbn`: deep belief networks from the shell.
//!
//! | module     | what                                                                 |
//! |------------|----------------------------------------------------------------------|
//! | [`cli`]    | the command line                                                     |
//! | [`args`]   | arguments of the sub-commands that have no module of their own       |
//! | `train`    | the command `train`: a network layer by layer                        |
//! | `up_down`  | the command `up-down`: labels and generative weights                 |
//! | `evaluate` | the command `evaluate`                                               |
//! | `encode`   | the command `encode`                                                 |
//! | `reconstruct` | the command `reconstruct`                                         |
//! | `sample`   | the command `sample`                                                 |
//! | `plan`     | the RBMs, and how each learns                                        |
//! | `measure`  | linear classifier, reconstruction error, free energies               |
//! | `likelihood` | likelihoods and lower bounds on them                               |
//! | `draw`     | pictures                                                             |
//! | `learning_curves` | errors and free energies by epoch                             |
//! | `card`     | the model card                                                       |
//! | `saved`    | saved models of every kind, and what takes them                      |
//! | `streams`  | places in the random sequence of a seed                              |
//!
//! The command `fine-tune` is `fine_tune`.
pub mod args;
mod card;
pub mod cli;
mod draw;
mod encode;
mod evaluate;
mod learning_curves;
mod likelihood;
mod measure;
mod plan;
mod predict;
mod reconstruct;
mod sample;
mod saved;
mod streams;
mod train;
mod up_down;

use crate::fine_tune::{Base, fine_tune};
use crate::report::Outcome;
use crate::session::Kind;
use anyhow::Result;
use candle::Device;
use chandlery::feedforward::Feedforward;
use cli::{Cli, Command};

/// Runs the command of the command line.
///
/// # Errors
/// Whatever went wrong, in one line that says what to do.
pub fn run(cli: Cli) -> Result<Outcome> {
    match cli.command {
        None => cli.train.session.named(train::train(&cli.train)),
        Some(Command::Train(args)) => args.session.named(train::train(&args)),
        Some(Command::Encode(args)) => encode::encode(&args),
        Some(Command::Predict(args)) => predict::predict(&args),
        Some(Command::Reconstruct(args)) => reconstruct::reconstruct(&args),
        Some(Command::Sample(args)) => sample::sample(&args),
        Some(Command::Evaluate(args)) => evaluate::evaluate(&args),
        Some(Command::FineTune(args)) => args.session.named(fine_tune::<OfDbn>(&args)),
        Some(Command::UpDown(args)) => args.session.named(up_down::up_down(&args)),
        Some(Command::Completions(args)) => args.print::<Cli>(),
    }
}

/// Deep belief networks.
struct OfDbn;

impl Base for OfDbn {
    const KIND: Kind = Kind { command: "dbn fine-tune", folder: "dbn-fine-tune" };
    const TAGS: [&'static [&'static str]; 2] = [
        &["deep-belief-network", "fine-tuned", "image-classification"],
        &["deep-belief-network", "fine-tuned", "autoencoder"],
    ];

    fn network(model: &str, n_classes: Option<usize>, device: &Device) -> Result<Feedforward> {
        let dbn = saved::plain(model, "fine-tune", device)?;
        Ok(match n_classes {
            Some(n) => Feedforward::from_dbn(&dbn, n)?,
            None => Feedforward::unroll(&dbn)?,
        })
    }
}
