//! All programs in one, as `cargo install` puts it on PATH; `chandlery --help` lists them.
use std::process::ExitCode;

fn main() -> ExitCode {
    chandlery_bins::programs::main()
}
