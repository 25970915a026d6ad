//! Trains dictionaries and uses them; `dictionary-learning --help` says how.
use chandlery_bins::dictionary::{args::Cli, run};
use chandlery_bins::report::exit_code;
use chandlery_bins::session::args::parse_or_exit;
use std::process::ExitCode;

fn main() -> ExitCode {
    exit_code("dictionary-learning", run(parse_or_exit::<Cli>()))
}
