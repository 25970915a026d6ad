//! Trains sparse autoencoders and uses them; `sparse-autoencoder --help` says how.
use chandlery_bins::{report, sparse_autoencoder};
use std::process::ExitCode;

fn main() -> ExitCode {
    report::main("sparse-autoencoder", sparse_autoencoder::run)
}
