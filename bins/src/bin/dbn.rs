//! Trains deep belief networks and uses them; `dbn --help` says how.
use chandlery_bins::dbn::{cli::Cli, run};
use chandlery_bins::report::exit_code;
use chandlery_bins::session::args::parse_or_exit;
use std::process::ExitCode;

fn main() -> ExitCode {
    exit_code("dbn", run(parse_or_exit::<Cli>()))
}
