//! One training pass over 10,000 rows at the eight sizes of Klaus and Welles 2014, tables 3 to 6,
//! and the run of 400 iterations.
mod latents;
pub(super) mod printed;

use super::common::TimingArgs;
use super::floor::Gpu;
use super::table::{Column, Table, or_dash};
use super::timing::{Seconds, time};
use crate::arrays;
use crate::device::describe;
use crate::report::Report;
use crate::sparse_autoencoder::latents::args::KindArg;
use anyhow::{Context, Result};
use candle::{DType, Device, Tensor};
use chandlery::sparse_autoencoder::serial::serial_cost;
use chandlery::sparse_autoencoder::{
    Cost, CostConfig, SparseAutoencoder, SparseAutoencoderConfig, SparseAutoencoderLbfgsTrainConfig,
    SparseAutoencoderLbfgsTrainer, Start,
};
use chandlery::{FullBatchTrainer, Philox};
use chandlery_datasets::patches::{ImageSet, PatchSampler};
use chandlery_datasets::preparation::StepConfig;
use chandlery_datasets::{DataOptions, Preparation};
use chandlery_ops::Precision;
use chandlery_ops::core::uniform;
use clap::Args;
use printed::{ROWS, SIZES, seconds_at};
use serde::Serialize;
use std::path::PathBuf;
use std::time::Instant;

/// FLOP of a pass that the serial loop may take, some seconds, and that a CPU may take where no
/// size was asked for.
const SERIAL_FLOP: f64 = 5e9;
const CPU_FLOP: f64 = 3e11;

/// Options of `bench sparse-autoencoder`.
#[derive(Debug, Args)]
pub struct SparseAutoencoderArgs {
    #[command(flatten)]
    timing: TimingArgs,
    /// Sizes, several separated by commas. Visible x hidden units; default: those of Klaus and
    /// Welles 2014, on a CPU up to 1024x512.
    #[arg(long, value_name = "VxH,…", value_delimiter = ',')]
    size: Vec<super::size::Size>,
    /// Precision of the matrix products; f32, tf32 or bf16, several separated by commas.
    #[arg(long, value_name = "PRECISION,…", value_delimiter = ',', default_value = "f32")]
    precision: Vec<Precision>,
    /// Time a run of 400 iterations of L-BFGS over 10,000 patches of 8x8 pixels instead of single
    /// passes; --json then prints one object.
    #[arg(long)]
    training: bool,
    /// Whole training steps of models with latents, of these kinds, several separated by commas, and
    /// what encoding takes, in place of passes. Sizes are then 768x24576, 2304x65536 and
    /// 4096x131072 by default, on a CPU 384x3072.
    #[arg(long, value_enum, value_name = "KIND,…", value_delimiter = ',', conflicts_with = "training")]
    kind: Vec<KindArg>,
    /// Active latents of a row, in the mean for batch-top-k and matryoshka. Default: 32, from 2304
    /// values on 64.
    #[arg(long, value_name = "K", requires = "kind")]
    active: Option<usize>,
    /// Rows of a minibatch. Default: 8192, on a CPU 1024.
    #[arg(long, value_name = "ROWS", requires = "kind")]
    batch: Option<usize>,
    /// Python script to run in addition to our own steps. It takes turns with them: for each row it
    /// reads a line of JSON and prints one, as `bins/peers/grid.py` does. Default: none.
    #[arg(long, value_name = "FILE", requires = "kind")]
    peer: Option<PathBuf>,
    /// Write what is computed on to this folder. Patches and first parameters of that run, for
    /// `bins/peers/sparse_autoencoder.py`.
    #[arg(long, value_name = "DIR", requires = "training")]
    dump: Option<PathBuf>,
}

/// The code variants that a row has beside ours: the best serial C, Matlab, and CUDA.
const BESIDE: [&str; 3] = ["serial_loop_3", "Matlab", "GPU"];

/// A pass at one size.
#[derive(Debug, Serialize)]
struct Row {
    model: &'static str,
    size: String,
    precision: &'static str,
    rows: usize,
    /// Seconds of a pass: the median, the fastest and the slowest.
    seconds: f64,
    seconds_min: f64,
    seconds_max: f64,
    /// Our serial loop on one thread, where it ends in seconds.
    serial_seconds: Option<f64>,
    paper_c_seconds: Option<f64>,
    paper_matlab_seconds: Option<f64>,
    paper_cuda_seconds: Option<f64>,
    /// Lower bound on an H200.
    floor_seconds: f64,
    device: String,
}

/// What is printed of a row.
const COLUMNS: &[Column<Row>] = &[
    Column("size", -10, |row| row.size.clone()),
    Column("type", -5, |row| row.precision.to_owned()),
    Column("median s", 10, |row| format!("{:.5}", row.seconds)),
    Column("min s", 10, |row| format!("{:.5}", row.seconds_min)),
    Column("max s", 10, |row| format!("{:.5}", row.seconds_max)),
    Column("serial", 9, |row| or_dash(row.serial_seconds, 2)),
    Column("C", 9, |row| or_dash(row.paper_c_seconds, 2)),
    Column("Matlab", 9, |row| or_dash(row.paper_matlab_seconds, 2)),
    Column("CUDA", 9, |row| or_dash(row.paper_cuda_seconds, 2)),
    Column("floor", 10, |row| format!("{:.5}", row.floor_seconds)),
];

/// FLOP of a pass: five products, and one more to estimate the mean activation before them.
pub(super) fn flop(n_visible: usize, n_hidden: usize) -> f64 {
    12. * (n_visible * n_hidden) as f64 * ROWS as f64
}

pub(super) fn run(args: &SparseAutoencoderArgs) -> Result<()> {
    if args.training {
        return train(args);
    }
    if !args.kind.is_empty() {
        return latents::run(args);
    }
    let device = args.timing.common.open_device()?;
    let report = Report::new(args.timing.common.json);
    report.line(&format!("one training pass over {ROWS} rows, seconds, on {}", describe(&device)))?;
    report.line("serial: our loop on one thread; C, Matlab, CUDA: of the paper; floor: of an H200")?;
    let fits = |&(v, h): &(usize, usize)| !device.is_cpu() || flop(v, h) < CPU_FLOP;
    let sizes: Vec<(usize, usize)> = match args.size.is_empty() {
        true => SIZES.into_iter().filter(fits).collect(),
        false => args.size.iter().map(|size| size.units()).collect(),
    };
    let mut table = Table::new(&report, COLUMNS)?;
    for size in sizes {
        for &precision in &args.precision {
            let row = measure(args, &device, size, precision).with_context(|| format!("{size:?}"))?;
            table.add(row)?;
        }
    }
    table.finish()
}

fn measure(
    args: &SparseAutoencoderArgs,
    device: &Device,
    (v, h): (usize, usize),
    precision: Precision,
) -> Result<Row> {
    let pass = Pass::new(device, (v, h), ROWS, precision)?;
    let Seconds { median, min, max } = pass.timed(device, args.timing.repeats)?;
    let serial_seconds = match flop(v, h) < SERIAL_FLOP {
        true => Some(pass.serial()?),
        false => None,
    };
    let [paper_c_seconds, paper_matlab_seconds, paper_cuda_seconds] =
        BESIDE.map(|variant| seconds_at(variant, (v, h)));
    let gpu = Gpu::H200;
    let peak = match precision {
        // Numbers in two TF32 parts take three products.
        Precision::F32 => gpu.f32_flops.max(gpu.tf32_flops / 3.),
        Precision::Tf32 => gpu.tf32_flops,
        Precision::Bf16 => gpu.bf16_flops,
    };
    Ok(Row {
        model: "sparse-autoencoder",
        size: format!("{v}x{h}"),
        precision: precision.name(),
        rows: ROWS,
        seconds: median,
        seconds_min: min,
        seconds_max: max,
        serial_seconds,
        paper_c_seconds,
        paper_matlab_seconds,
        paper_cuda_seconds,
        floor_seconds: flop(v, h) / peak,
        device: describe(device),
    })
}

/// A training pass over rows that are drawn at random: the cost and its gradient.
pub(super) struct Pass {
    cost: Cost,
    theta: Tensor,
    rows: Tensor,
}

impl Pass {
    /// Over so many rows, in f32, at `(visible, hidden)` units.
    pub(super) fn new(
        device: &Device,
        (v, h): (usize, usize),
        n_rows: usize,
        precision: Precision,
    ) -> Result<Self> {
        let model = SparseAutoencoderConfig::new(v, h);
        let config = CostConfig { precision, ..CostConfig::default() };
        let rows = uniform((n_rows, v), device, Philox::new(0, 0))?.affine(0.8, 0.1)?;
        let theta = SparseAutoencoder::init(model.clone(), Philox::new(0, 1), device)?.flat()?;
        let cost = Cost::new(model, config, &rows, None, DType::F32, device)?;
        Ok(Self { cost, theta, rows })
    }

    /// Makes it; does not wait for the device.
    pub(super) fn make(&self) -> Result<()> {
        self.cost.evaluate(&self.theta)?;
        Ok(())
    }

    /// Seconds of one. On a GPU the third is recorded, which takes longer than those that follow: it
    /// is not timed.
    pub(super) fn timed(&self, device: &Device, repeats: u32) -> Result<Seconds> {
        let before = if device.is_cpu() { 0 } else { 2 };
        (0..before).try_for_each(|_| self.make())?;
        time(device, repeats, || self.make())
    }

    /// Parameters and rows on the host.
    pub(super) fn on_host(&self) -> Result<(Vec<f32>, Vec<f32>)> {
        Ok((self.theta.to_vec1()?, self.rows.flatten_all()?.to_vec1()?))
    }

    /// Seconds of the serial loop.
    fn serial(&self) -> Result<f64> {
        let (theta, rows) = self.on_host()?;
        let started = Instant::now();
        let made = serial_cost(self.cost.model_config(), self.cost.config(), &theta, &rows)
            .context("the lengths must fit the sizes")?;
        std::hint::black_box(made);
        Ok(started.elapsed().as_secs_f64())
    }
}

/// The rows of a run: patches of photographs of 8x8 pixels, `[10_000, 64]`, and the model that it
/// begins with.
pub(super) fn patches(device: &Device, start: Start) -> Result<(Tensor, SparseAutoencoder)> {
    let images = ImageSet::open("natural-images", &DataOptions::default())?;
    let split = PatchSampler::new(images, 8usize, ROWS, 0)?.into_split()?;
    let preparation = Preparation::fit(&split, &[StepConfig::Rescale], 0)?;
    let rows = preparation.apply(&split.raw(device)?)?;
    let config = SparseAutoencoderConfig { start, ..SparseAutoencoderConfig::new(64, 25) };
    Ok((rows, SparseAutoencoder::init(config, Philox::new(0, 1), device)?))
}

/// The run of 400 iterations.
#[derive(Debug, Serialize)]
struct TrainingRow {
    model: &'static str,
    rows: usize,
    iterations: usize,
    evaluations: u64,
    seconds: f64,
    seconds_min: f64,
    seconds_max: f64,
    cost_start: f64,
    cost: f64,
    device: String,
}

fn train(args: &SparseAutoencoderArgs) -> Result<()> {
    let device = args.timing.common.open_device()?;
    let report = Report::new(args.timing.common.json);
    let (rows, first) = patches(&device, Start::default())?;
    if let Some(folder) = &args.dump {
        std::fs::create_dir_all(folder).with_context(|| format!("--dump {}", folder.display()))?;
        arrays::write_one(&folder.join("rows.npy"), &rows)?;
        arrays::write_one(&folder.join("theta.npy"), &first.flat()?.unsqueeze(0)?)?;
    }
    let fit = SparseAutoencoderLbfgsTrainConfig::default();
    let mut last = None;
    let Seconds { median, min, max } = time(&device, args.timing.repeats, || {
        let mut run = SparseAutoencoderLbfgsTrainer::new(&first, fit, &rows)?;
        run.fit()?;
        last = Some(run);
        Ok(())
    })?;
    let run = last.context("a run must have been made")?;
    let row = TrainingRow {
        model: "sparse-autoencoder",
        rows: ROWS,
        iterations: run.descent().iterations(),
        evaluations: run.descent().evaluations(),
        seconds: median,
        seconds_min: min,
        seconds_max: max,
        cost_start: SparseAutoencoderLbfgsTrainer::new(&first, fit, &rows)?.parts()?.cost,
        cost: run.parts()?.cost,
        device: describe(&device),
    };
    report.line(&format!(
        "64-25-64, {} iterations, {} evaluations over {ROWS} patches: {:.3} s ({:.3} to {:.3}), cost {:.6} → {:.6}, on {}",
        row.iterations, row.evaluations, row.seconds, row.seconds_min, row.seconds_max, row.cost_start, row.cost, row.device
    ))?;
    report.finish_as_is(&row)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_floor_is_that_of_the_arithmetic_done_by_hand() {
        // 12 · 8192 · 4096 · 10⁴ = 4.03·10¹² FLOP; over 67·10¹² a second .060 s.
        assert!((flop(8192, 4096) - 4.03e12).abs() < 0.01e12);
        assert!((flop(8192, 4096) / Gpu::H200.f32_flops - 0.060).abs() < 5e-4);
    }
}
