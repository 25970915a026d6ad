//! Times the models at named shapes, beside the papers' figures, today's peers and the hardware's floor.
use chandlery_bins::{bench, report};
use std::process::ExitCode;

fn main() -> ExitCode {
    report::main("bench", |cli: bench::Cli| bench::run(&cli))
}
