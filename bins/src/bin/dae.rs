//! Trains denoising autoencoders and uses them; `dae --help` says how.
use chandlery_bins::{dae, report};
use std::process::ExitCode;

fn main() -> ExitCode {
    report::main("dae", dae::run)
}
