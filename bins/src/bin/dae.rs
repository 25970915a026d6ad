//! Trains denoising autoencoders and uses them; `dae --help` says how.
use chandlery_bins::dae::{args::Cli, run};
use chandlery_bins::report::exit_code;
use chandlery_bins::session::args::parse_or_exit;
use std::process::ExitCode;

fn main() -> ExitCode {
    exit_code("dae", run(parse_or_exit::<Cli>()))
}
