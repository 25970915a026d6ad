//! Times the models at named shapes, beside the papers' figures, today's peers and the hardware's
//! floor.
use chandlery_bins::{bench, program};
use std::process::ExitCode;

fn main() -> ExitCode {
    program::main("bench", std::env::args_os(), |cli: bench::Cli| bench::run(&cli))
}
