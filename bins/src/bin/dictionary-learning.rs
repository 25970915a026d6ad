//! Trains dictionaries and uses them; `dictionary-learning --help` says how.
use chandlery_bins::{dictionary, report};
use std::process::ExitCode;

fn main() -> ExitCode {
    report::main("dictionary-learning", dictionary::run)
}
