//! Learns bases for sparse coding and uses them; `sparse-coding --help` says how.
use chandlery_bins::{report, sparse_coding};
use std::process::ExitCode;

fn main() -> ExitCode {
    report::main("sparse-coding", sparse_coding::run)
}
