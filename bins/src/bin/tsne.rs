//! Lays rows out in two or three dimensions by t-SNE; `tsne --help` says how.
use chandlery_bins::report::exit_code;
use chandlery_bins::session::args::parse_or_exit;
use chandlery_bins::tsne::{args::Cli, run};
use std::process::ExitCode;

fn main() -> ExitCode {
    exit_code("tsne", run(parse_or_exit::<Cli>()))
}
