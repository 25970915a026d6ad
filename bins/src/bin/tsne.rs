//! Lays rows out in two or three dimensions by t-SNE; `tsne --help` says how.
use chandlery_bins::{report, tsne};
use std::process::ExitCode;

fn main() -> ExitCode {
    report::main("tsne", tsne::run)
}
