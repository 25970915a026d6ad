//! Times the models at named shapes, beside the papers' figures, today's peers and the hardware's floor.
use chandlery_bins::bench::{Cli, run};
use chandlery_bins::report;
use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    report::exit_code("bench", run(&Cli::parse()))
}
