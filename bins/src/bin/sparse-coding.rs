//! Learns bases for sparse coding and uses them; `sparse-coding --help` says how.
use chandlery_bins::{program, sparse_coding};
use std::process::ExitCode;

fn main() -> ExitCode {
    program::main("sparse-coding", std::env::args_os(), sparse_coding::run)
}
