//! Trains denoising autoencoders and uses them; `dae --help` says how.
use chandlery_bins::{dae, program};
use std::process::ExitCode;

fn main() -> ExitCode {
    program::main("dae", std::env::args_os(), dae::run)
}
