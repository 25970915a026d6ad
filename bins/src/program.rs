//! How a program begins and ends, and which program uses which model.
use crate::interrupt;
use crate::ranks;
use crate::report::{Outcome, complain, one_line};
use crate::session::args::parse;
use crate::session::info::check_finished;
use crate::stages;
use anyhow::{Context, Result};
use chandlery::pretrained::{self, ModelType};
use clap::Parser;
use std::ffi::OsString;
use std::process::ExitCode;

/// The `main` of a program: runs the command of this command line, whose first argument is what the
/// user calls the program. Prints an error as one line: `dbn: cause: cause`.
///
/// The exit code is 0 when done, 1 for an error, 130 after Ctrl-C, 143 after SIGTERM. Clap's usage
/// errors exit with 2 before.
pub fn main<C: Parser>(
    bin: &str,
    args: impl IntoIterator<Item = OsString>,
    run: impl FnOnce(C) -> Result<Outcome>,
) -> ExitCode {
    stages::begin();
    chandlery_ops::core::candle_on_one_thread();
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if !chandlery_datasets::panics_are_caught() {
            hook(panic);
        }
    }));
    let cli = parse(args).unwrap_or_else(|e: clap::Error| e.exit());
    ended(bin, interrupt::listen().context("cannot listen for Ctrl-C").and_then(|()| run(cli)))
}

/// The exit code of this outcome; an error is printed.
pub(crate) fn ended(bin: &str, outcome: Result<Outcome>) -> ExitCode {
    let failed = outcome.as_ref().err().map(one_line);
    ranks::wait_if_lost();
    if let Some(why) = &failed {
        complain(&format!("{bin}: {why}"));
    }
    let code = match outcome {
        Ok(Outcome::Done) => 0,
        Ok(Outcome::Interrupted) => interrupt::exit_code(),
        Err(_) => 1,
    };
    if ranks::end(failed.as_deref()) {
        // What libraries do at the end of a process may wait for the others.
        interrupt::take_words();
        interrupt::end_now(code.into())
    }
    ExitCode::from(code)
}

/// Which model a folder or a repository of the hub holds.
///
/// # Errors
/// When the folder is that of a run that is not finished, or holds no model; the message names it.
pub fn model_type(model: &str) -> Result<ModelType> {
    check_finished(model)?;
    Ok(pretrained::model_type(model)?)
}

/// What takes models of this type: a program by its sub-commands, or the library alone.
pub fn program_of(model: ModelType) -> &'static str {
    match model {
        ModelType::Rbm | ModelType::Dbn | ModelType::LabelledDbn | ModelType::Feedforward => "dbn",
        ModelType::Dictionary => "dictionary-learning",
        ModelType::Dae | ModelType::StackedDae => "dae",
        ModelType::SparseAutoencoder | ModelType::Sae => "sparse-autoencoder",
        ModelType::SparseCoding => "sparse-coding",
        ModelType::Tsne => "tsne",
        ModelType::Softmax => "chandlery::softmax::Softmax",
    }
}

/// What is said of a model that a program does not take; `wanted` is what it takes.
pub fn other_model(model: ModelType, wanted: &str) -> String {
    format!("this is a model of type {model}, not {wanted}; use it with `{}`", program_of(model))
}
