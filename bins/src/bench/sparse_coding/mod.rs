//! Sparse coding: activations of natural patches to a duality gap, and one update of activations
//! and basis, beside table 4 of Raina, Madhavan and Ng 2009.
pub(super) mod work;

use super::common::TimingArgs;
use super::floor::Gpu;
use super::table::{Column, Table, or_dash};
use super::timing::{Seconds, time};
use crate::arrays;
use crate::device::describe;
use crate::options::at_least_one;
use crate::precision::f32_or_f64;
use crate::report::Report;
use crate::sparse_coding::choices::{BasisArg, SolverArg};
use anyhow::{Context, Result};
use candle::{DType, Tensor};
use chandlery::sparse_coding::basis::BasisUpdate;
use chandlery::sparse_coding::lasso::Lasso;
use chandlery_datasets::DataOptions;
use chandlery_datasets::patches::ImageSet;
use clap::{Args, ValueEnum};
use serde::Serialize;
use std::path::PathBuf;
use std::sync::Arc;
use work::{Update, directions, largest, nonzero, patches, penalty};

/// Options of `bench sparse-coding`.
#[derive(Debug, Args)]
pub struct SparseCodingArgs {
    #[command(flatten)]
    timing: TimingArgs,
    /// Problems, several separated by commas.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "paper")]
    problem: Vec<Problem>,
    /// Shares of nonzero activations in per cent, several separated by commas; penalties are
    /// searched for them.
    #[arg(long, value_name = "PERCENT", value_delimiter = ',', default_value = "3,6,10")]
    density: Vec<f64>,
    /// Algorithm that solves the lasso of a row. Several are separated by commas.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "active-set")]
    solver: Vec<SolverArg>,
    /// Update of the basis, given the activations. For --update.
    #[arg(long, value_enum, default_value_t, requires = "update")]
    basis: BasisArg,
    /// Sweeps of the update over the atoms per minibatch. For --update.
    #[arg(long, value_name = "N", default_value_t = 1, requires = "update", value_parser = at_least_one)]
    sweeps: usize,
    /// Start of training. The atoms: patches, or random directions as in the paper.
    #[arg(long, value_enum, default_value_t = StartArg::Patches)]
    start: StartArg,
    /// Use so many signals in place of those of the problem.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    signals: Option<u32>,
    /// Write what is computed on to this folder. Signals and atoms of each problem, for
    /// `bins/peers/sparse_coding.py`.
    #[arg(long, value_name = "DIR")]
    dump: Option<PathBuf>,
    /// Time one update of activations and basis in minibatches of 1000 signals, in place of
    /// activations.
    #[arg(long)]
    update: bool,
    /// Precision of the matrix products; f64 computes everything in f64.
    #[arg(long, value_name = "f32|f64", default_value = "f32", value_parser = f32_or_f64)]
    precision: DType,
}

/// Signals, atoms and samples, patches and atoms from the package `natural-images`; each patch has
/// mean 0 and deviation 1, and atoms are patches of length 1, so that many are nearly alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Problem {
    /// 5000 patches of 32x32, 1024 atoms: table 4 of the paper.
    Paper,
    /// 100,000 patches of 8x8, 512 atoms.
    Small,
    /// 5000 patches of 16x16, 4096 atoms.
    Wide,
}

/// What the atoms are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum StartArg {
    /// Patches of the images.
    Patches,
    /// Random directions, as in the paper.
    Directions,
}

impl Problem {
    /// Signals, atoms, pixels of a side.
    fn sizes(self) -> (usize, usize, usize) {
        match self {
            Self::Paper => (5000, 1024, 32),
            Self::Small => (100_000, 512, 8),
            Self::Wide => (5000, 4096, 16),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Paper => "paper",
            Self::Small => "small",
            Self::Wide => "wide",
        }
    }
}

/// Seconds of the paper for an update of all 5000 signals, on a CPU of two cores and on its GPU, at
/// this share of nonzeros.
const PAPER: [(f64, f64, f64); 3] = [(3., 191., 37.0), (6., 375., 41.5), (10., 854., 55.8)];

#[derive(Debug, Serialize)]
struct Row {
    model: &'static str,
    problem: &'static str,
    signals: usize,
    atoms: usize,
    samples: usize,
    /// `activations` or `update`.
    what: &'static str,
    /// Of an update.
    basis: Option<&'static str>,
    solver: &'static str,
    beta: f64,
    nonzero_percent: f64,
    /// Seconds for all signals: the median, the fastest and the slowest.
    seconds: f64,
    seconds_min: f64,
    seconds_max: f64,
    max_relative_gap: f64,
    /// The paper's, for an update.
    paper_cpu_seconds: Option<f64>,
    paper_gpu_seconds: Option<f64>,
    /// Both products with the dictionary, on an H200.
    floor_seconds: f64,
    device: String,
}

/// What is printed of a row.
const COLUMNS: &[Column<Row>] = &[
    Column("signals", 7, |row| row.signals.to_string()),
    Column("atoms", 5, |row| row.atoms.to_string()),
    Column("size", 5, |row| row.samples.to_string()),
    Column("what", -11, |row| row.what.to_owned()),
    Column("solver", -20, |row| row.solver.to_owned()),
    Column("basis", -18, |row| row.basis.unwrap_or("-").to_owned()),
    Column("beta", 6, |row| format!("{:.3}", row.beta)),
    Column("used %", 6, |row| format!("{:.2}", row.nonzero_percent)),
    Column("median ms", 10, |row| format!("{:.3}", 1e3 * row.seconds)),
    Column("min ms", 10, |row| format!("{:.3}", 1e3 * row.seconds_min)),
    Column("max ms", 10, |row| format!("{:.3}", 1e3 * row.seconds_max)),
    Column("us/signal", 9, |row| format!("{:.2}", 1e6 * row.seconds / row.signals as f64)),
    Column("gap", 8, |row| format!("{:.1e}", row.max_relative_gap)),
    Column("CPU s", 8, |row| or_dash(row.paper_cpu_seconds, 1)),
    Column("GPU s", 8, |row| or_dash(row.paper_gpu_seconds, 1)),
    Column("floor ms", 8, |row| format!("{:.3}", 1e3 * row.floor_seconds)),
];

pub(super) fn run(args: &SparseCodingArgs) -> Result<()> {
    let device = args.timing.common.open_device()?;
    let report = Report::new(args.timing.common.json);
    report.line(&format!(
        "sparse coding of natural patches, to a relative duality gap of 1e-4 unless a solver has its own stop, on {}",
        describe(&device)
    ))?;
    report.line("paper: seconds for one update on its CPU and its GPU; floor: the products with the dictionary on an H200")?;
    let images = Arc::new(ImageSet::open("natural-images", &DataOptions::default())?);
    let mut table = Table::new(&report, COLUMNS)?;
    for &problem in &args.problem {
        let (m, n, side) = problem.sizes();
        let m = args.signals.map_or(m, |m| m as usize);
        let signals = patches(&images, side, m, 10, &device)?;
        let atoms = match args.start {
            StartArg::Patches => {
                let atoms = patches(&images, side, n, 11, &device)?;
                atoms.broadcast_div(&atoms.sqr()?.sum_keepdim(1)?.sqrt()?)?
            }
            StartArg::Directions => directions(n, side * side, &device)?,
        };
        let dtype = args.precision;
        let (signals, atoms) = (signals.to_dtype(dtype)?, atoms.to_dtype(dtype)?);
        if let Some(folder) = &args.dump {
            std::fs::create_dir_all(folder).with_context(|| format!("--dump {}", folder.display()))?;
            arrays::write_one(&folder.join(format!("{}-signals.npy", problem.name())), &signals)?;
            arrays::write_one(&folder.join(format!("{}-atoms.npy", problem.name())), &atoms)?;
        }
        for &density in &args.density {
            let beta = penalty(&signals, &atoms, density / 100.)?;
            for &solver in &args.solver {
                let row = measure(args, problem, &signals, &atoms, beta, density, solver)
                    .with_context(|| format!("{problem:?} at {density} %"))?;
                table.add(row)?;
            }
        }
    }
    table.finish()
}

fn measure(
    args: &SparseCodingArgs,
    problem: Problem,
    signals: &Tensor,
    atoms: &Tensor,
    beta: f64,
    density: f64,
    solver: SolverArg,
) -> Result<Row> {
    let ((m, p), n, device) = (signals.dims2()?, atoms.dim(0)?, signals.device());
    let lasso = Lasso { solver: solver.into(), ..Lasso::new(beta) };
    let mut last = None;
    let seconds = match args.update {
        false => time(device, args.timing.repeats, || {
            last = Some(lasso.solve(signals, atoms, None)?);
            Ok(())
        })?,
        true => {
            last = Some(lasso.solve(signals, atoms, None)?);
            let basis = BasisUpdate { method: args.basis.into(), iterations: args.sweeps };
            let update = Update { solver: solver.into(), basis, ..Update::usual() };
            update.time(args.timing.repeats, signals, atoms, beta)?
        }
    };
    let last = last.context("a solve must have been made")?;
    let Seconds { median, min, max } = seconds;
    let paper = PAPER.iter().find(|paper| args.update && paper.0 == density && (m, n) == (5000, 1024));
    Ok(Row {
        model: "sparse-coding",
        problem: problem.name(),
        signals: m,
        atoms: n,
        samples: p,
        basis: args.update.then_some(args.basis.name()),
        what: if args.update { "update" } else { "activations" },
        solver: solver.name(),
        beta,
        nonzero_percent: 100. * nonzero(&last)?,
        seconds: median,
        seconds_min: min,
        seconds_max: max,
        max_relative_gap: largest(&last.gaps)?,
        paper_cpu_seconds: paper.map(|paper| paper.1),
        paper_gpu_seconds: paper.map(|paper| paper.2),
        floor_seconds: flop(m, n, p) / Gpu::H200.f32_flops,
        device: describe(device),
    })
}

/// FLOP of the Gram matrix and the correlations.
fn flop(m: usize, n: usize, p: usize) -> f64 {
    2. * (n * p) as f64 * (m + n) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_floor_is_that_of_the_products_done_by_hand() {
        // 2 · 1024 · 1024 · 6024 = 12.6 GFLOP.
        assert!((flop(5000, 1024, 1024) / 1e9 - 12.6).abs() < 0.05);
    }
}
