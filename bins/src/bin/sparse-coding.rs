//! Learns bases for sparse coding and uses them; `sparse-coding --help` says how.
use chandlery_bins::report::exit_code;
use chandlery_bins::session::args::parse_or_exit;
use chandlery_bins::sparse_coding::{args::Cli, run};
use std::process::ExitCode;

fn main() -> ExitCode {
    exit_code("sparse-coding", run(parse_or_exit::<Cli>()))
}
