//! Trains deep belief networks and uses them; `dbn --help` says how.
use chandlery_bins::{dbn, report};
use std::process::ExitCode;

fn main() -> ExitCode {
    report::main("dbn", dbn::run)
}
