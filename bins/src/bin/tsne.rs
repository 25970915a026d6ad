//! Lays rows out in one to three dimensions by t-SNE; `tsne --help` says how.
use chandlery_bins::{program, tsne};
use std::process::ExitCode;

fn main() -> ExitCode {
    program::main("tsne", std::env::args_os(), tsne::run)
}
