//! Trains sparse autoencoders and uses them; `sparse-autoencoder --help` says how.
use chandlery_bins::{program, sparse_autoencoder};
use std::process::ExitCode;

fn main() -> ExitCode {
    program::main("sparse-autoencoder", std::env::args_os(), sparse_autoencoder::run)
}
