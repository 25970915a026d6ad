//! Sparse coding and dictionary learning at the sizes of Irofti 2016 and beyond.
//!
//! | module     | what                                                                       |
//! |------------|----------------------------------------------------------------------------|
//! | `pursuit`  | Batch-OMP and OLS at named sizes: one thread, all cores, GPU, floor, peers |
//! | `training` | an iteration of AK-SVD and a pass of the online method, on the same devices    |
//! | `data`     | the signals, and the files that peers read                                 |
pub(super) mod data;
mod lists;
pub(super) mod pursuit;
pub(super) mod training;

use super::common::TimingArgs;
use super::place::Place;
use super::timing::Seconds;
use crate::choices::Method;
use crate::device::describe;
use crate::report::Report;
use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};
use serde::Serialize;
use std::path::PathBuf;

/// Options of `bench dictionary`.
#[derive(Debug, Args)]
pub struct DictionaryArgs {
    #[command(flatten)]
    timing: TimingArgs,
    /// What to time, several separated by commas; default: all.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [What::Pursuit, What::Training, What::Lists])]
    what: Vec<What>,
    /// Sizes, several separated by commas. Signals, atoms, values per signal, atoms per code.
    #[arg(
        long,
        value_name = "MxNxPxS,…",
        value_delimiter = ',',
        default_value = "1048576x512x64x8,262144x256x64x8,100000x512x64x8,100000x128x64x8,10240x128x64x8,8192x512x64x8"
    )]
    size: Vec<pursuit::Size>,
    /// Pursuit that chooses a code's atoms. Several are separated by commas.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Method::Omp, Method::Ols])]
    pursuit: Vec<Method>,
    /// Skip the runs on one thread of the CPU.
    #[arg(long)]
    no_single: bool,
    /// Python script to run in addition to our own steps. It must print lines
    /// `... m=M n=N p=P s=S: X ms`.
    #[arg(long, value_name = "FILE")]
    peer: Option<PathBuf>,
    /// Write what is computed on to this folder. Training signals and first dictionary, as
    /// signals.npy and start.npy.
    #[arg(long, value_name = "DIR")]
    dump: Option<PathBuf>,
}

/// What `bench dictionary` can time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum What {
    /// Batch-OMP, OLS and what else is asked for, at the named sizes.
    Pursuit,
    /// An iteration of AK-SVD, a pass of the online method.
    Training,
    /// Updates and statistics where atoms are used evenly, and where each code uses the first.
    Lists,
}

/// One line of a table.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    model: &'static str,
    /// `omp`, `ols`, `ak-svd`, `online`, `update, even`, …
    task: String,
    n_signals: usize,
    n_atoms: usize,
    n_features: usize,
    n_nonzero: usize,
    /// The device: `cpu, 1 thread`, `cpu (2 threads)`, `cuda:0 (…)`.
    device: String,
    /// Milliseconds: the median, the fastest and the slowest run.
    ms: f64,
    ms_min: f64,
    ms_max: f64,
    /// Relative residual of a pursuit; root mean square error after training, with OMP codes.
    error: Option<f64>,
    /// Root mean square error after training, with OLS codes.
    error_ols: Option<f64>,
    /// Lower bound on an H200, in ms, for the pursuit or for one iteration.
    floor_ms: Option<f64>,
    /// Time of the peer's script, run on this device.
    peer_ms: Option<f64>,
}

impl Row {
    /// A row without errors, floor and peer.
    fn new(place: &Place, task: String, size: pursuit::Size, ms: Seconds) -> Self {
        Self {
            model: "dictionary",
            task,
            n_signals: size.m,
            n_atoms: size.n,
            n_features: size.p,
            n_nonzero: size.s,
            device: place.name(),
            ms: ms.median,
            ms_min: ms.min,
            ms_max: ms.max,
            error: None,
            error_ols: None,
            floor_ms: None,
            peer_ms: None,
        }
    }

    fn size(&self) -> pursuit::Size {
        let &Self { n_signals: m, n_atoms: n, n_features: p, n_nonzero: s, .. } = self;
        pursuit::Size { m, n, p, s }
    }
}

/// Runs the requested benchmarks.
pub(super) fn run(args: &DictionaryArgs) -> Result<()> {
    for (flag, given, needs) in
        [("--peer", args.peer.is_some(), What::Pursuit), ("--dump", args.dump.is_some(), What::Training)]
    {
        ensure!(
            !given || args.what.contains(&needs),
            "{flag}: needs --what {}, which is not given",
            needs.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
        );
    }
    let device = args.timing.common.open_device()?;
    let report = Report::new(args.timing.common.json);
    report.line(&format!(
        "on {}, medians of {} runs, at most 3 on one thread",
        describe(&device),
        args.timing.repeats
    ))?;
    let mut rows = Vec::new();
    for what in &args.what {
        match what {
            What::Pursuit => pursuit::run(args, &device, &report, &mut rows)?,
            What::Training => training::run(args, &device, &report, &mut rows)?,
            What::Lists => lists::run(args, &device, &report, &mut rows)?,
        }
    }
    report.finish_as_is(&rows)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Bench {
        #[command(flatten)]
        args: DictionaryArgs,
    }

    #[test]
    fn all_is_timed_when_nothing_is_asked_for() {
        let args = Bench::try_parse_from(["bench"]).unwrap().args;
        assert_eq!(args.what, What::value_variants());
    }
}
