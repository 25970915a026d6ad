//! All programs by their names, and the binary `chandlery`, which has them as sub-commands.
use crate::completions::CompletionsArgs;
use crate::program;
use crate::{bench, dae, dbn, dictionary, sparse_autoencoder, sparse_coding, tsne};
use clap::{Args, Command, CommandFactory, FromArgMatches};
use std::ffi::OsString;
use std::process::ExitCode;

/// The command lines of all programs. The last is `bench`, which `chandlery` does not have.
pub fn commands() -> [Command; 7] {
    [
        dbn::cli::Cli::command(),
        dae::args::Cli::command(),
        dictionary::args::Cli::command(),
        sparse_coding::args::Cli::command(),
        sparse_autoencoder::args::Cli::command(),
        tsne::args::Cli::command(),
        bench::Cli::command(),
    ]
}

/// Runs the program of this name, or returns none where `chandlery` has none of it. The first
/// argument is what the user calls the program.
fn run(name: &str, args: Vec<OsString>) -> Option<ExitCode> {
    Some(match name {
        "dbn" => program::main(name, args, dbn::run),
        "dae" => program::main(name, args, dae::run),
        "dictionary-learning" => program::main(name, args, dictionary::run),
        "sparse-coding" => program::main(name, args, sparse_coding::run),
        "sparse-autoencoder" => program::main(name, args, sparse_autoencoder::run),
        "tsne" => program::main(name, args, tsne::run),
        _ => return None,
    })
}

/// The command line of `chandlery`.
pub fn whole() -> Command {
    let completions = CompletionsArgs::augment_args(Command::new("completions"))
        .about("Print completions of all programs for a shell");
    let programs = commands().into_iter().filter(|program| program.get_name() != "bench");
    Command::new("chandlery")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Unsupervised models: train them, and use them for features, codes, pictures and layouts")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .disable_help_subcommand(true)
        .subcommands(programs)
        .subcommand(completions)
}

/// The `main` of `chandlery`: the program that the first argument names, with the others.
pub fn main() -> ExitCode {
    let args: Vec<_> = std::env::args_os().collect();
    if let Some(name) = args.get(1).and_then(|name| name.to_str()) {
        let called = OsString::from(format!("chandlery {name}"));
        let its = std::iter::once(called).chain(args.iter().skip(2).cloned()).collect();
        if let Some(code) = run(name, its) {
            return code;
        }
    }
    let completions = |matches: clap::ArgMatches| {
        let (_, matches) = matches.subcommand().ok_or_else(|| anyhow::anyhow!("no command"))?;
        CompletionsArgs::from_arg_matches(matches)?.print_of(whole())
    };
    program::ended("chandlery", completions(whole().get_matches_from(args)))
}
