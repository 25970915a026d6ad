//! Options of every benchmark.
use crate::options::Common;
use clap::Args;

/// Options of every benchmark.
#[derive(Debug, Args)]
pub struct TimingArgs {
    /// Where it computes, and how it reports.
    #[command(flatten)]
    pub common: Common,
    /// Number of timed runs; the median, the fastest and the slowest are printed.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeats: u32,
}
