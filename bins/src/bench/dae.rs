//! Denoising autoencoder of tied weights: seconds an epoch by minibatch beside the serial program, and figure 4 of Kumar and Giaquinto.
use super::CommonArgs;
use super::floor::Gpu;
use super::size::Size;
use super::stream::{Stream, synthetic_rows};
use super::timing::{Seconds, time};
use crate::curves::{self, Curve, Panel};
use crate::device::describe;
use crate::pictures::write_png;
use crate::report::Report;
use anyhow::{Context, Result};
use candle::{Device, Tensor};
use chandlery::dae::reference::Serial;
use chandlery::dae::{Dae, DaeConfig, DaeTrainConfig, DaeTrainer};
use chandlery::{Philox, Precision, Trainer};
use chandlery_datasets::{DataOptions, Feed, FeedConfig, Split};
use clap::Args;
use serde::Serialize;
use std::path::PathBuf;
use std::time::Instant;

/// Rows of an epoch.
const EPOCH: usize = 60_000;
/// A timed run lasts about this long, or is this many steps, but no longer than an epoch.
const RUN_SECONDS: f64 = 0.5;
const MIN_STEPS: usize = 20;
/// Rows that the serial program is timed on.
const SERIAL_ROWS: usize = 300;
/// Training rows, and epochs, of the figure's runs that are measured by what they learn.
const LEARNING_ROWS: usize = 2000;
const LEARNING_EPOCHS: usize = 5;

/// Options of `bench dae`.
#[derive(Debug, Args)]
pub struct DaeArgs {
    #[command(flatten)]
    common: CommonArgs,
    /// Sizes (visible x hidden units), several separated by commas.
    #[arg(long, value_name = "VxH", value_delimiter = ',', default_value = "784x500")]
    size: Vec<Size>,
    /// Rows per minibatch, several separated by commas.
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,2,4,8,16,32,128,512", value_parser = clap::value_parser!(u32).range(1..=60_000))]
    batch: Vec<u32>,
    /// Precision of the matrix products (f32, tf32, bf16), several separated by commas.
    #[arg(long, value_name = "P", value_delimiter = ',', default_value = "f32")]
    precision: Vec<Precision>,
    /// Draw the paper's figure 4 in place of the table: loss against time, seconds an epoch and speed-up against the number of rows, error
    /// by minibatch.
    #[arg(long)]
    figure4: bool,
    /// Data that the figure learns from: 28x28 images such as mnist-sample, mnist or fashion-mnist.
    #[arg(long, value_name = "NAME", default_value = "mnist-sample", requires = "figure4")]
    data: String,
    /// Folder for the picture of the figure.
    #[arg(long, value_name = "DIR", default_value = "figures", requires = "figure4")]
    figures: PathBuf,
}

/// Seconds of an epoch by PyTorch on an H200 (f32, updates in place, replayed as a CUDA graph), by rows of a minibatch, at 784-500.
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

impl Row {
    fn table(&self) -> String {
        let pytorch = self.pytorch_seconds.map_or("-".to_owned(), |x| format!("{x:.3}"));
        format!(
            "{:<10} {:<5} {:>6} {:>9.4} {:>9.4} {:>9.4} {:>9.2} {:>9.0} {:>9} {:>9.5}",
            self.size,
            self.precision,
            self.batch,
            self.seconds,
            self.seconds_min,
            self.seconds_max,
            self.step_us,
            self.serial_seconds / self.seconds,
            pytorch,
            self.floor_seconds
        )
    }
}

pub(super) fn run(args: &DaeArgs) -> Result<()> {
    let device = args.common.open_device()?;
    let report = Report::new(args.common.json);
    if args.figure4 {
        return figure4(args, &device, &report);
    }
    report.line(&format!(
        "denoising autoencoder, tied weights, 30 % salt and pepper, seconds an epoch of {EPOCH} rows, on {}",
        describe(&device)
    ))?;
    report.line(
        "speed-up: over the serial program on one thread of this machine (the paper's, at minibatches of 8: 60); PyTorch: CUDA graph on an \
         H200, recorded; floor: of an H200",
    )?;
    report.line(&format!(
        "{:<10} {:<5} {:>6} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}",
        "size", "type", "batch", "median s", "min s", "max s", "step us", "speed-up", "PyTorch s", "floor s"
    ))?;
    let mut table = Vec::new();
    for size in &args.size {
        let rows = synthetic_rows(EPOCH, size.units().0)?;
        let serial_seconds = serial(*size, &rows)?;
        for &precision in &args.precision {
            for &batch in &args.batch {
                let batch = batch as usize;
                let Seconds { median, min, max } = epoch(args, &device, *size, precision, batch, &rows)?;
                let (v, h) = size.units();
                let known = PYTORCH.iter().find(|(of, _)| *of == batch && (v, h) == (784, 500));
                let row = Row {
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
                };
                report.line(&row.table())?;
                table.push(row);
            }
        }
    }
    report.finish(&table)
}

fn trainer(size: Size, precision: Precision, batch: usize, device: &Device) -> Result<DaeTrainer> {
    let (n_visible, n_hidden) = size.units();
    let dae = Dae::init(DaeConfig::new(n_visible, n_hidden), Philox::new(0, 0), device)?;
    let config = DaeTrainConfig { batch, precision, ..DaeTrainConfig::default() };
    Ok(DaeTrainer::new(&dae, config, Philox::new(0, 1))?)
}

/// Times an epoch of [`EPOCH`] rows over the rows of `split`, from the device's memory.
fn epoch(
    args: &DaeArgs,
    device: &Device,
    size: Size,
    precision: Precision,
    batch: usize,
    split: &Split,
) -> Result<Seconds> {
    let of = || format!("{size}, minibatches of {batch}");
    let mut trainer = trainer(size, precision, batch, device).with_context(of)?;
    let mut feed = Feed::new(split, device, FeedConfig::new(batch, 0)).with_context(of)?;
    let all = EPOCH / batch;
    let mut stream = Stream::new(&mut feed)?;
    stream.train(&mut trainer, MIN_STEPS.min(all))?;
    device.synchronize()?;
    let start = Instant::now();
    stream.train(&mut trainer, MIN_STEPS.min(all))?;
    device.synchronize()?;
    let step = start.elapsed().as_secs_f64() / MIN_STEPS.min(all) as f64;
    // Of a GPU always whole epochs, with the gathering of their rows.
    let steps =
        if device.is_cpu() { ((RUN_SECONDS / step) as usize).clamp(MIN_STEPS.min(all), all) } else { all };
    let run = time(device, args.common.repeats, || stream.train(&mut trainer, steps))?;
    trainer.check()?;
    Ok(run.times(EPOCH as f64 / (steps * batch) as f64))
}

/// Seconds of an epoch of [`EPOCH`] rows by the serial program in f32, from as many as it takes in a fraction of a second.
fn serial(size: Size, split: &Split) -> Result<f64> {
    let (n_visible, _) = size.units();
    let mut serial = Serial::<f32>::of(&trainer(size, Precision::F32, 1, &Device::Cpu)?.model()?)?;
    let rows = values(&split.take(SERIAL_ROWS)?)?;
    let start = Instant::now();
    serial_epoch(&mut serial, &rows, n_visible, 0);
    Ok(start.elapsed().as_secs_f64() * EPOCH as f64 / SERIAL_ROWS as f64)
}

/// Rows of a split as values in [0, 1].
fn values(split: &Split) -> Result<Vec<f32>> {
    Ok(split.to_tensor(&Device::Cpu)?.flatten_all()?.to_vec1()?)
}

/// Algorithm 1: one row after the other.
fn serial_epoch(serial: &mut Serial<f32>, rows: &[f32], n_visible: usize, epoch: u64) {
    let config = DaeTrainConfig::default();
    let mut philox = Philox::new(0, 10 + epoch);
    for x in rows.chunks(n_visible) {
        let corrupted = Serial::corrupt(x, config.corruption, philox, 0);
        philox = philox.advanced(n_visible);
        serial.step(x, &corrupted, config.learning_rate.at(0) as f32);
    }
}

/// The figure as tables and a picture.
#[derive(Debug, Default, Serialize)]
struct Figure {
    /// Rows, minibatch, seconds of an epoch, speed-up over the serial program.
    epochs: Vec<(usize, usize, f64, f64)>,
    /// Minibatch (0: the serial program), root mean square error of reconstructions of held-out rows.
    rmse: Vec<(usize, f64)>,
    /// Minibatch (0: the serial program), seconds, root mean square error, after each epoch.
    learning: Vec<(usize, f64, f64)>,
}

fn figure4(args: &DaeArgs, device: &Device, report: &Report) -> Result<()> {
    let dataset = chandlery_datasets::open(&args.data, &DataOptions::default())?;
    let test = dataset.test.context("the data must have test rows")?;
    let train = dataset.train;
    let size = Size { n_visible: train.n_features(), n_hidden: 500 };
    let held_out = test.take(test.n_samples().min(1000))?.raw(&Device::Cpu)?;
    let mut figure = Figure::default();
    let (mut seconds, mut speed) = (Vec::new(), Vec::new());

    let serial_row = serial(size, &synthetic_rows(SERIAL_ROWS, size.n_visible)?)? / EPOCH as f64;
    report.line(&format!(
        "on {}; serial program: one thread, {:.3} ms a row",
        describe(device),
        1e3 * serial_row
    ))?;
    report.line(&format!("{:>8} {:>6} {:>12} {:>9}", "rows", "batch", "s an epoch", "speed-up"))?;
    for &batch in &args.batch {
        let batch = batch as usize;
        let (mut of_batch, mut ratios) = (Vec::new(), Vec::new());
        for n in [100, 1000, 10_000, EPOCH].into_iter().filter(|n| *n >= batch) {
            let rows = synthetic_rows(n, size.n_visible)?;
            let mut feed = Feed::new(&rows, device, FeedConfig::new(batch, 0))?;
            let mut trainer = trainer(size, Precision::F32, batch, device)?;
            let mut stream = Stream::new(&mut feed)?;
            let took = time(device, args.common.repeats.min(3), || stream.train(&mut trainer, n / batch))?;
            let (took, ratio) = (took.median, serial_row * n as f64 / took.median);
            report.line(&format!("{n:>8} {batch:>6} {took:>12.5} {ratio:>9.0}"))?;
            figure.epochs.push((n, batch, took, ratio));
            of_batch.push(((n as f64).log10(), took));
            ratios.push(((n as f64).log10(), ratio));
        }
        seconds.push(Curve { name: format!("batch {batch}"), points: of_batch });
        speed.push(Curve { name: format!("batch {batch}"), points: ratios });
    }
    let sizes = [100., 1000., 10_000., EPOCH as f64];
    let points = sizes.iter().map(|n: &f64| (n.log10(), n * serial_row)).collect();
    seconds.push(Curve { name: "serial".to_owned(), points });

    let n = LEARNING_ROWS.min(train.n_samples());
    report.line(&format!(
        "{n} rows of {}, {LEARNING_EPOCHS} epochs: error of {} held-out rows",
        args.data,
        held_out.dim(0)?
    ))?;
    report.line(&format!("{:>8} {:>12} {:>9}", "batch", "seconds", "RMSE"))?;
    let train = train.take(n)?;
    let learned = learn_serially(size, &values(&train)?, &held_out)?;
    let mut curves_of_learning = vec![line(report, &mut figure, 0, &learned)?];
    for &batch in &args.batch {
        let batch = batch as usize;
        let learned = learn(size, batch, &train, &held_out, device)?;
        let curve = line(report, &mut figure, batch, &learned)?;
        if [1, 8, 32].contains(&batch) {
            curves_of_learning.push(curve);
        }
    }
    let of_batches = |figure: &Figure, serial: bool| {
        let rmse = figure.rmse.iter().find(|(batch, _)| *batch == 0).map_or(f64::NAN, |(_, rmse)| *rmse);
        let parallel = figure.rmse.iter().filter(|(batch, _)| *batch > 0);
        parallel.map(|(batch, own)| ((*batch as f64).log2(), if serial { rmse } else { *own })).collect()
    };
    let errors = vec![
        Curve { name: "parallel".to_owned(), points: of_batches(&figure, false) },
        Curve { name: "serial, one row at a time".to_owned(), points: of_batches(&figure, true) },
    ];
    let panel = |title: &str, x: &str, y: &str, log_y, curves| Panel {
        title: title.to_owned(),
        x_label: x.to_owned(),
        y_label: y.to_owned(),
        log_y,
        curves,
    };
    let panels = [
        panel("Error against time", "seconds", "RMSE, held out", false, curves_of_learning),
        panel("An epoch", "log10 of rows", "s", true, seconds),
        panel("Error by minibatch", "log2 of the minibatch", "RMSE, held out", false, errors),
        panel("Speed-up", "log10 of rows", "times the serial program", true, speed),
    ];
    std::fs::create_dir_all(&args.figures)?;
    let path = args.figures.join("dae-figure4.png");
    write_png(&curves::draw_pixels(&panels)?, &path)?;
    report.line(&path.display().to_string())?;
    report.finish(&figure)
}

/// Prints what was learned after the last epoch, and makes a curve of seconds and errors.
fn line(report: &Report, figure: &mut Figure, batch: usize, learned: &[(f64, f64)]) -> Result<Curve> {
    let name = if batch == 0 { "serial".to_owned() } else { batch.to_string() };
    let &(seconds, rmse) = learned.last().context("an epoch must have been made")?;
    report.line(&format!("{name:>8} {seconds:>12.4} {rmse:>9.5}"))?;
    figure.rmse.push((batch, rmse));
    figure.learning.extend(learned.iter().map(|(seconds, rmse)| (batch, *seconds, *rmse)));
    let name = if batch == 0 { name } else { format!("batch {batch}") };
    Ok(Curve { name, points: learned.to_vec() })
}

/// Seconds of training and the error of held-out rows after each epoch.
fn learn(
    size: Size,
    batch: usize,
    rows: &Split,
    held_out: &Tensor,
    device: &Device,
) -> Result<Vec<(f64, f64)>> {
    let mut trainer = trainer(size, Precision::F32, batch, device)?;
    let mut feed = Feed::new(rows, device, FeedConfig::new(batch, 0))?;
    let mut stream = Stream::new(&mut feed)?;
    let held_out = held_out.to_device(device)?;
    let (mut learned, mut seconds) = (Vec::new(), 0.);
    for _ in 0..LEARNING_EPOCHS {
        let start = Instant::now();
        stream.train(&mut trainer, rows.n_samples() / batch)?;
        device.synchronize()?;
        seconds += start.elapsed().as_secs_f64();
        learned.push((seconds, trainer.model()?.reconstruction_error(&held_out)?.rmse));
    }
    Ok(learned)
}

/// The same by the serial program.
fn learn_serially(size: Size, rows: &[f32], held_out: &Tensor) -> Result<Vec<(f64, f64)>> {
    let mut serial = Serial::<f32>::of(&trainer(size, Precision::F32, 1, &Device::Cpu)?.model()?)?;
    let (mut learned, mut seconds) = (Vec::new(), 0.);
    for epoch in 0..LEARNING_EPOCHS as u64 {
        let start = Instant::now();
        serial_epoch(&mut serial, rows, size.n_visible, epoch);
        seconds += start.elapsed().as_secs_f64();
        learned.push((seconds, serial.dae(&Device::Cpu)?.reconstruction_error(held_out)?.rmse));
    }
    Ok(learned)
}
