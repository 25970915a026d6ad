//! The program `tsne`: layouts in one to three dimensions from the shell.
//!
//! | module | what |
//! |---|---|
//! | [`args`], [`descent`] | the command line |
//! | `changes` | changes on the way |
//! | `choices` | the names of starts and affinities |
//! | `rows` | the rows that are laid out |
//! | `train` | the command `train` |
//! | `transform`, `evaluate`, `draw`, `neighbours` | the other commands |
//! | `figures` | figures of a layout in words |
//! | `output` | files and pictures of a layout |
//! | `history` | pictures on the way |
//! | `card` | the model card |
pub mod args;
mod card;
mod changes;
mod choices;
pub mod descent;
mod draw;
mod evaluate;
mod figures;
mod given;
mod history;
mod neighbours;
mod output;
mod rows;
mod train;
mod transform;

use crate::report::Outcome;
use anyhow::Result;
use args::{Cli, Command};

/// Places in the random sequence of a run's seed, one for each use.
mod streams {
    /// The first layout.
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
        Some(Command::Transform(args)) => transform::transform(&args),
        Some(Command::Evaluate(args)) => evaluate::evaluate(&args),
        Some(Command::Draw(args)) => draw::draw(&args),
        Some(Command::Neighbours(args)) => neighbours::neighbours(&args),
        Some(Command::Completions(args)) => args.print::<Cli>(),
    }
}
