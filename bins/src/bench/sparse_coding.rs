//! Sparse coding: activations of natural patches to a duality gap, and one update of activations
//! and basis, beside table 4 of Raina, Madhavan and Ng 2009.
use super::common::TimingArgs;
use super::floor::Gpu;
use super::table::{Column, Table, or_dash};
use super::timing::{Seconds, time};
use crate::arrays;
use crate::device::describe;
use crate::precision::f32_or_f64;
use crate::report::Report;
use anyhow::{Context, Result};
use candle::{DType, Device, Tensor};
use chandlery::Philox;
use chandlery::sparse_coding::lasso::{Activations, Lasso, LineSearch, Solver, Stop};
use chandlery::sparse_coding::{
    SparseCoding, SparseCodingConfig, SparseCodingTrainConfig, SparseCodingTrainer,
};
use chandlery_datasets::DataOptions;
use chandlery_datasets::patches::{ImageSet, PatchSampler};
use clap::{Args, ValueEnum};
use serde::Serialize;
use std::path::PathBuf;
use std::sync::Arc;

/// Signals that the penalty of a density is searched with, and halvings of the interval.
const SEARCHED: usize = 200;
const HALVINGS: usize = 12;

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
    /// Solvers, several separated by commas.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "active-set")]
    solver: Vec<SolverChoice>,
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

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum SolverChoice {
    /// Greedy coordinate descent and Newton steps on the support.
    ActiveSet,
    /// Cyclic coordinate descent.
    CoordinateDescent,
    /// The paper's: all coordinates at once, with the exact line search.
    CoordinateParallel,
    /// The same for one block of 128 coordinates after the other.
    CoordinateBlocks,
    /// FISTA with restart.
    Fista,
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

impl SolverChoice {
    fn solver(self) -> Solver {
        match self {
            Self::ActiveSet => Solver::ActiveSet,
            Self::CoordinateDescent => Solver::CoordinateDescent,
            Self::CoordinateParallel => {
                Solver::CoordinateParallel { line_search: LineSearch::Exact, stop: Stop::Gap }
            }
            Self::CoordinateBlocks => Solver::CoordinateBlocks { block: 128 },
            Self::Fista => Solver::Fista,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::ActiveSet => "active-set",
            Self::CoordinateDescent => "descent",
            Self::CoordinateParallel => "parallel",
            Self::CoordinateBlocks => "blocks",
            Self::Fista => "fista",
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
    Column("solver", -10, |row| row.solver.to_owned()),
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
        "sparse coding of natural patches to a relative duality gap of 1e-4, on {}",
        describe(&device)
    ))?;
    report.line("paper: seconds for one update on its CPU and its GPU; floor: the products with the dictionary on an H200")?;
    let images = Arc::new(ImageSet::open("natural-images", &DataOptions::default())?);
    let mut table = Table::new(&report, COLUMNS)?;
    for &problem in &args.problem {
        let (m, n, side) = problem.sizes();
        let m = args.signals.map_or(m, |m| m as usize);
        let signals = patches(&images, side, m, 10, &device)?;
        let atoms = patches(&images, side, n, 11, &device)?;
        let atoms = atoms.broadcast_div(&atoms.sqr()?.sum_keepdim(1)?.sqrt()?)?;
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

/// Patches of mean 0 and deviation 1, `[n, side²]`.
fn patches(images: &Arc<ImageSet>, side: usize, n: usize, seed: u64, device: &Device) -> Result<Tensor> {
    let rows =
        PatchSampler::new(images.clone(), side, n, seed)?.into_split()?.raw(device)?.to_dtype(DType::F32)?;
    let rows = rows.broadcast_sub(&rows.mean_keepdim(1)?)?;
    let deviation = (rows.sqr()?.mean_keepdim(1)? + 1e-6)?.sqrt()?;
    Ok(rows.broadcast_div(&deviation)?.contiguous()?)
}

/// The penalty at which this share of the activations of some signals is not 0.
fn penalty(signals: &Tensor, atoms: &Tensor, share: f64) -> Result<f64> {
    let some = signals.narrow(0, 0, SEARCHED.min(signals.dim(0)?))?;
    let (mut low, mut high) = (1e-3, Lasso::new(1.).lambda_max(&some, atoms)?);
    for _ in 0..HALVINGS {
        let middle = (low * high).sqrt();
        let of = Lasso::new(middle).solve(&some, atoms, None)?;
        if nonzero(&of)? > share { low = middle } else { high = middle }
    }
    Ok((low * high).sqrt())
}

fn nonzero(activations: &Activations) -> Result<f64> {
    let used = activations.counts()?.to_dtype(DType::F64)?.sum_all()?.to_scalar::<f64>()?;
    Ok(used / activations.dense.elem_count() as f64)
}

fn largest(gaps: &Tensor) -> Result<f64> {
    Ok(gaps.max(0)?.to_dtype(DType::F64)?.to_scalar()?)
}

fn measure(
    args: &SparseCodingArgs,
    problem: Problem,
    signals: &Tensor,
    atoms: &Tensor,
    beta: f64,
    density: f64,
    solver: SolverChoice,
) -> Result<Row> {
    let ((m, p), n, device) = (signals.dims2()?, atoms.dim(0)?, signals.device());
    let lasso = Lasso { solver: solver.solver(), ..Lasso::new(beta) };
    let mut last = None;
    let seconds = match args.update {
        false => time(device, args.timing.repeats, || {
            last = Some(lasso.solve(signals, atoms, None)?);
            Ok(())
        })?,
        true => {
            last = Some(lasso.solve(signals, atoms, None)?);
            update(args, device, signals, atoms, beta)?
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

/// Seconds of one pass of updates in minibatches.
fn update(
    args: &SparseCodingArgs,
    device: &Device,
    signals: &Tensor,
    atoms: &Tensor,
    beta: f64,
) -> Result<Seconds> {
    const BATCH: usize = 1000;
    let ((m, p), n) = (signals.dims2()?, atoms.dim(0)?);
    let model = SparseCoding::from_tensor(SparseCodingConfig::new(n, p, beta), atoms.clone())?;
    let config = SparseCodingTrainConfig::default();
    time(device, args.timing.repeats, || {
        let mut trainer = SparseCodingTrainer::new(&model, config.clone(), Philox::new(0, 1))?;
        for first in (0..m).step_by(BATCH) {
            trainer.partial_fit(&signals.narrow(0, first, BATCH.min(m - first))?.contiguous()?)?;
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_floor_is_that_of_the_products_done_by_hand() {
        // 2 · 1024 · 1024 · 6024 = 12.6 GFLOP.
        assert!((flop(5000, 1024, 1024) / 1e9 - 12.6).abs() < 0.05);
    }

    #[test]
    fn a_penalty_gives_the_share_of_nonzeros_that_was_asked_for() -> Result<()> {
        let signals = chandlery_ops::core::normal((60, 20), &Device::Cpu, Philox::new(1, 0))?;
        let atoms = chandlery_ops::core::normal((40, 20), &Device::Cpu, Philox::new(1, 1))?;
        let atoms = atoms.broadcast_div(&atoms.sqr()?.sum_keepdim(1)?.sqrt()?)?;
        for share in [0.05, 0.2] {
            let beta = penalty(&signals, &atoms, share)?;
            let got = nonzero(&Lasso::new(beta).solve(&signals, &atoms, None)?)?;
            assert!((got / share - 1.).abs() < 0.05, "{got} for {share}");
        }
        Ok(())
    }
}
