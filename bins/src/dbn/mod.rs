//! The program `dbn`: deep belief networks from the shell.
//!
//! | module     | what                                                                 |
//! |------------|----------------------------------------------------------------------|
//! | [`args`]   | the command line                                                     |
//! | `train`    | a run from its first step or a checkpoint to its folder              |
//! | `plan`     | the data cut up, the machines, and how each learns                   |
//! | `evaluate` | linear classifier, reconstruction error, free energies               |
//! | `likelihood` | likelihoods and lower bounds on them                               |
//! | `draw`     | pictures; the commands `reconstruct` and `sample`                    |
//! | `encode`   | the command `encode`                                                 |
//! | `fine_tune` | the command `fine-tune`: classifiers and deep autoencoders          |
//! | `learning_curves` | errors and free energies by epoch                             |
//! | `card`     | the README.md of a run folder                                        |
//! | `rows`     | rows as a network reads them                                         |
//! | `saved`    | saved models of every kind, and what takes them                      |
//! | `up_down`  | the command `up-down`: labels and generative weights                 |
pub mod args;
mod card;
mod draw;
mod encode;
mod evaluate;
mod fine_tune;
mod learning_curves;
mod likelihood;
mod plan;
mod rows;
mod saved;
mod train;
mod up_down;

use crate::report::Outcome;
use anyhow::Result;
use args::{Cli, Command};

/// Places in the random sequence of a run's seed, one for each use. The rows' order has its own
/// ([`chandlery_datasets::feed::ORDER_STREAM`]).
mod streams {
    /// Initial weights.
    pub const WEIGHTS: u64 = 1 << 32;
    /// Units of layer `l`: this plus `l`.
    pub const UNITS: u64 = 2 << 32;
    /// Order of the linear classifier's minibatches, epoch `e`: this plus `e`.
    pub const READOUT: u64 = 3 << 32;
    /// Chains of samples.
    pub const SAMPLES: u64 = 4 << 32;
    /// Units that the pseudo-likelihood flips.
    pub const FLIPS: u64 = 5 << 32;
    /// Binary rows from grey levels, and the units above them: test, training and middle rows, and the draws of a bound.
    pub const BINARIZE: u64 = 6 << 32;
    /// Chains of the annealing forward, and (this plus 1) back.
    pub const ANNEALING: u64 = 7 << 32;
    /// Units that dropout leaves out.
    pub const DROPOUT: u64 = 11 << 32;
    /// Rows whose labels are used, where not all are.
    pub const LABELLED: u64 = 12 << 32;
    /// Units of the up-down algorithm, stage `s`: this plus `s`.
    pub const UP_DOWN: u64 = 16 << 32;
}

/// Does what the command line says.
///
/// # Errors
/// Whatever went wrong, in one line that says what to do.
pub fn run(cli: Cli) -> Result<Outcome> {
    match cli.command {
        None => train::train(&cli.train),
        Some(Command::Train(args)) => train::train(&args),
        Some(Command::Encode(args)) => encode::encode(&args),
        Some(Command::Reconstruct(args)) => draw::reconstruct(&args),
        Some(Command::Sample(args)) => draw::sample(&args),
        Some(Command::Evaluate(args)) => evaluate::evaluate(&args),
        Some(Command::FineTune(args)) => fine_tune::fine_tune(&args),
        Some(Command::UpDown(args)) => up_down::up_down(&args),
    }
}

/// `784-500-500`: the sizes of a network's layers, the input's first.
fn sizes(dbn: &chandlery::dbn::DbnConfig) -> String {
    let input = dbn.layers.first().map(|layer| layer.n_visible);
    let sizes = input.into_iter().chain(dbn.layers.iter().map(|layer| layer.n_hidden));
    sizes.map(|n| n.to_string()).collect::<Vec<_>>().join("-")
}
