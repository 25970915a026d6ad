//! Trains deep belief networks and uses them; `dbn --help` says how.
use chandlery_bins::{dbn, program};
use std::process::ExitCode;

fn main() -> ExitCode {
    program::main("dbn", std::env::args_os(), dbn::run)
}
