//! Trains sparse autoencoders and uses them; `sparse-autoencoder --help` says how.
use chandlery_bins::report::exit_code;
use chandlery_bins::session::args::parse_or_exit;
use chandlery_bins::sparse_autoencoder::{args::Cli, run};
use std::process::ExitCode;

fn main() -> ExitCode {
    exit_code("sparse-autoencoder", run(parse_or_exit::<Cli>()))
}
