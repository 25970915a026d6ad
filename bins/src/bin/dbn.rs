//! Trains deep belief networks and uses them; `dbn --help` says how.
use chandlery_bins::dbn::{args::Cli, run};
use chandlery_bins::report::exit_code;
use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    exit_code("dbn", run(Cli::parse()))
}
