//! Denoising autoencoder of tied weights: seconds an epoch by minibatch beside the serial program.
//! What Kumar and Giaquinto print is `bench paper kumar`.
use super::common::TimingArgs;
use super::floor::Gpu;
use super::size::Size;
use super::stream::{Stream, synthetic_rows};
use super::table::{Column, Table, or_dash};
use super::timing::{Seconds, time};
use crate::device::describe;
use crate::options::at_least_one;
use crate::report::Report;
use anyhow::{Context, Result};
use candle::Device;
use chandlery::dae::reference::{Real, Serial};
use chandlery::dae::{Dae, DaeConfig, DaeTrainConfig, DaeTrainer};
use chandlery::{Philox, Precision, Trainer};
use chandlery_datasets::{Feed, FeedConfig, Split};
use clap::Args;
use serde::Serialize;
use std::time::Instant;

/// Rows of an epoch.
pub(in crate::bench) const EPOCH: usize = 60_000;
/// A timed run lasts about this long, or is this many steps, but no longer than an epoch.
pub(in crate::bench) const RUN_SECONDS: f64 = 0.5;
const MIN_STEPS: usize = 20;
/// Rows that the serial program is timed on.
const SERIAL_ROWS: usize = 300;

/// Options of `bench dae`.
#[derive(Debug, Args)]
pub struct DaeArgs {
    #[command(flatten)]
    timing: TimingArgs,
    /// Sizes, several separated by commas. Visible x hidden units.
    #[arg(long, value_name = "VxH,…", value_delimiter = ',', default_value = "784x500")]
    size: Vec<Size>,
    /// Rows of a minibatch. Several are separated by commas.
    #[arg(long, value_name = "ROWS,…", value_delimiter = ',', default_value = "1,2,4,8,16,32,128,512", value_parser = at_least_one)]
    batch: Vec<usize>,
    /// Precision of the matrix products; f32, tf32 or bf16, several separated by commas.
    #[arg(long, value_name = "PRECISION,…", value_delimiter = ',', default_value = "f32")]
    precision: Vec<Precision>,
}

/// Seconds of an epoch by PyTorch on an H200 (f32, updates in place, replayed as a CUDA graph), by
/// rows of a minibatch, at 784-500.
const PYTORCH: [(usize, f64); 5] = [(1, 2.72), (8, 0.416), (32, 0.112), (128, 0.029), (512, 0.010)];

/// One line of the table.
#[derive(Debug, Serialize)]
struct Row {
    model: &'static str,
    size: String,
    precision: &'static str,
    batch: usize,
    /// Seconds of an epoch of 60,000 rows: the median, the fastest and the slowest run.
    seconds: f64,
    seconds_min: f64,
    seconds_max: f64,
    /// Microseconds a step.
    step_us: f64,
    /// Of the serial program, one row after the other on one thread.
    serial_seconds: f64,
    /// PyTorch on an H200, measured earlier.
    pytorch_seconds: Option<f64>,
    /// Arithmetic over the peak of an H200.
    floor_seconds: f64,
    device: String,
}

/// What is printed of a row.
const COLUMNS: &[Column<Row>] = &[
    Column("size", -10, |row| row.size.clone()),
    Column("type", -5, |row| row.precision.to_owned()),
    Column("batch", 6, |row| row.batch.to_string()),
    Column("median s", 9, |row| format!("{:.4}", row.seconds)),
    Column("min s", 9, |row| format!("{:.4}", row.seconds_min)),
    Column("max s", 9, |row| format!("{:.4}", row.seconds_max)),
    Column("step us", 9, |row| format!("{:.2}", row.step_us)),
    Column("speed-up", 9, |row| format!("{:.0}", row.serial_seconds / row.seconds)),
    Column("PyTorch s", 9, |row| or_dash(row.pytorch_seconds, 3)),
    Column("floor s", 9, |row| format!("{:.5}", row.floor_seconds)),
];

pub(super) fn run(args: &DaeArgs) -> Result<()> {
    let device = args.timing.common.open_device()?;
    let report = Report::new(args.timing.common.json);
    report.line(&format!(
        "denoising autoencoder, tied weights, 30 % salt and pepper, seconds an epoch of {EPOCH} rows, on {}",
        describe(&device)
    ))?;
    report.line(
        "speed-up: over the serial program on one thread of this machine (the paper's, at minibatches of 8: 60); PyTorch: CUDA graph on an \
         H200, recorded; floor: of an H200",
    )?;
    let mut table = Table::new(&report, COLUMNS)?;
    for size in &args.size {
        let rows = synthetic_rows(EPOCH, size.units().0)?;
        let serial_seconds = serial(*size, &rows.take(SERIAL_ROWS)?)? * EPOCH as f64;
        for &precision in &args.precision {
            for &batch in &args.batch {
                let runs = (args.timing.repeats, RUN_SECONDS);
                let Seconds { median, min, max } = epoch(runs, &device, *size, precision, batch, &rows)?;
                let (v, h) = size.units();
                let known = PYTORCH.iter().find(|(of, _)| *of == batch && (v, h) == (784, 500));
                table.add(Row {
                    model: "denoising-autoencoder",
                    size: size.to_string(),
                    precision: precision.name(),
                    batch,
                    seconds: median,
                    seconds_min: min,
                    seconds_max: max,
                    step_us: 1e6 * median * batch as f64 / EPOCH as f64,
                    serial_seconds,
                    pytorch_seconds: known.map(|(_, seconds)| *seconds),
                    floor_seconds: 10. * (v * h * EPOCH) as f64 / Gpu::H200.f32_flops,
                    device: describe(&device),
                })?;
            }
        }
    }
    table.finish()
}

/// A trainer of minibatches of `batch` rows, the same weights and draws each time.
pub(in crate::bench) fn trainer(
    size: Size,
    precision: Precision,
    batch: usize,
    device: &Device,
) -> Result<DaeTrainer> {
    let (n_visible, n_hidden) = size.units();
    let dae = Dae::init(DaeConfig::new(n_visible, n_hidden), Philox::new(0, 0), device)?;
    let config = DaeTrainConfig { batch, precision, ..DaeTrainConfig::default() };
    Ok(DaeTrainer::new(&dae, config, Philox::new(0, 1))?)
}

/// Times an epoch over the rows of `split`, at least a minibatch, from the device's memory: so many
/// runs of about so many seconds.
pub(in crate::bench) fn epoch(
    (repeats, run_seconds): (u32, f64),
    device: &Device,
    size: Size,
    precision: Precision,
    batch: usize,
    split: &Split,
) -> Result<Seconds> {
    let of = || format!("{size}, minibatches of {batch}");
    let mut trainer = trainer(size, precision, batch, device).with_context(of)?;
    let n = split.n_samples();
    let mut feed = Feed::new(split, device, FeedConfig::new(batch, 0)).with_context(of)?;
    let all = n / batch;
    let mut stream = Stream::new(&mut feed)?;
    stream.train(&mut trainer, MIN_STEPS.min(all))?;
    device.synchronize()?;
    let start = Instant::now();
    stream.train(&mut trainer, MIN_STEPS.min(all))?;
    device.synchronize()?;
    let step = start.elapsed().as_secs_f64() / MIN_STEPS.min(all) as f64;
    // Of a GPU always whole epochs, with the gathering of their rows.
    let steps =
        if device.is_cpu() { ((run_seconds / step) as usize).clamp(MIN_STEPS.min(all), all) } else { all };
    let run = time(device, repeats, || stream.train(&mut trainer, steps))?;
    trainer.check()?;
    Ok(run.times(n as f64 / (steps * batch) as f64))
}

/// Seconds of a row by the serial program in f32.
pub(in crate::bench) fn serial(size: Size, split: &Split) -> Result<f64> {
    let (n_visible, _) = size.units();
    let mut serial = Serial::<f32>::of(&trainer(size, Precision::F32, 1, &Device::Cpu)?.model()?)?;
    let rows = values(split)?;
    let start = Instant::now();
    serial_epoch(&mut serial, &rows, (n_visible, 1), &mut Philox::new(0, 10));
    Ok(start.elapsed().as_secs_f64() / split.n_samples() as f64)
}

/// Rows of a split as values in [0, 1].
pub(in crate::bench) fn values(split: &Split) -> Result<Vec<f32>> {
    Ok(split.to_tensor(&Device::Cpu)?.flatten_all()?.to_vec1()?)
}

/// Algorithm 1 over rows, one after the other in minibatches of `batch`, with the draws that a
/// trainer takes from `philox` on.
pub(in crate::bench) fn serial_epoch<T: Real>(
    serial: &mut Serial<T>,
    rows: &[T],
    (n_visible, batch): (usize, usize),
    philox: &mut Philox,
) {
    let config = DaeTrainConfig::default();
    let rate = T::of(config.learning_rate.at(0));
    for x in rows.chunks(batch * n_visible) {
        let corrupted = Serial::corrupt(x, config.corruption, *philox, 0);
        *philox = philox.advanced(x.len());
        serial.step(x, &corrupted, rate);
    }
}
