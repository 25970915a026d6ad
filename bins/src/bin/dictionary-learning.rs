//! Trains dictionaries and uses them; `dictionary-learning --help` says how.
use chandlery_bins::{dictionary, program};
use std::process::ExitCode;

fn main() -> ExitCode {
    program::main("dictionary-learning", std::env::args_os(), dictionary::run)
}
