//! Figure 4 of Kumar and Giaquinto: loss against time, seconds an epoch and speed-up against the
//! number of rows, error by minibatch.
use super::{DaeArgs, EPOCH, SERIAL_ROWS, serial, serial_epoch, trainer, values};
use crate::bench::size::Size;
use crate::bench::stream::{Stream, synthetic_rows};
use crate::bench::timing::time;
use crate::device::describe;
use crate::report::Report;
use anyhow::{Context, Result};
use candle::{Device, Tensor};
use chandlery::dae::reference::Serial;
use chandlery::pictures::curves::{self, Curve, Panel};
use chandlery::pictures::write_png;
use chandlery::{Philox, Precision, Trainer};
use chandlery_datasets::{DataOptions, Feed, FeedConfig, Split};
use serde::Serialize;
use std::time::Instant;

/// Training rows, and epochs, of the runs that are measured by what they learn.
const LEARNING_ROWS: usize = 2000;
const LEARNING_EPOCHS: usize = 5;

/// The figure as tables and a picture.
#[derive(Debug, Default, Serialize)]
struct Figure {
    /// Rows, minibatch, seconds of an epoch, speed-up over the serial program.
    epochs: Vec<(usize, usize, f64, f64)>,
    /// Minibatch (0: the serial program), root mean square error of reconstructions of held-out
    /// rows.
    rmse: Vec<(usize, f64)>,
    /// Minibatch (0: the serial program), seconds, root mean square error, after each epoch.
    learning: Vec<(usize, f64, f64)>,
}

pub(super) fn draw(args: &DaeArgs, device: &Device, report: &Report) -> Result<()> {
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
        let (mut of_batch, mut ratios) = (Vec::new(), Vec::new());
        for n in [100, 1000, 10_000, EPOCH].into_iter().filter(|n| *n >= batch) {
            let rows = synthetic_rows(n, size.n_visible)?;
            let mut feed = Feed::new(&rows, device, FeedConfig::new(batch, 0))?;
            let mut trainer = trainer(size, Precision::F32, batch, device)?;
            let mut stream = Stream::new(&mut feed)?;
            let took = time(device, args.timing.repeats.min(3), || stream.train(&mut trainer, n / batch))?;
            let (took, ratio) = (took.median, serial_row * n as f64 / took.median);
            report.line(&format!("{n:>8} {batch:>6} {took:>12.5} {ratio:>9.0}"))?;
            figure.epochs.push((n, batch, took, ratio));
            of_batch.push(((n as f64).log10(), took));
            ratios.push(((n as f64).log10(), ratio));
        }
        seconds.push(Curve::new(format!("batch {batch}"), of_batch));
        speed.push(Curve::new(format!("batch {batch}"), ratios));
    }
    let sizes = [100., 1000., 10_000., EPOCH as f64];
    seconds.push(Curve::new("serial", sizes.map(|n: f64| (n.log10(), n * serial_row))));

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
        let learned = learn(size, batch, &train, &held_out, device)?;
        let curve = line(report, &mut figure, batch, &learned)?;
        if [1, 8, 32].contains(&batch) {
            curves_of_learning.push(curve);
        }
    }
    let of_batches = |figure: &Figure, serial: bool| {
        let rmse = figure.rmse.iter().find(|(batch, _)| *batch == 0).map_or(f64::NAN, |(_, rmse)| *rmse);
        let parallel = figure.rmse.iter().filter(|(batch, _)| *batch > 0);
        let points = parallel.map(|(batch, own)| ((*batch as f64).log2(), if serial { rmse } else { *own }));
        points.collect::<Vec<_>>()
    };
    let errors = vec![
        Curve::new("parallel", of_batches(&figure, false)),
        Curve::new("serial, one row at a time", of_batches(&figure, true)),
    ];
    let panels = [
        Panel::new("Error against time", "seconds", "RMSE, held out", curves_of_learning),
        Panel::new("An epoch", "log10 of rows", "s", seconds).log(),
        Panel::new("Error by minibatch", "log2 of the minibatch", "RMSE, held out", errors),
        Panel::new("Speed-up", "log10 of rows", "times the serial program", speed).log(),
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
    Ok(Curve::new(name, learned.to_vec()))
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
        learned.push((seconds, trainer.model()?.errors_prepared(&held_out, &held_out)?.rmse));
    }
    Ok(learned)
}

/// The same by the serial program.
fn learn_serially(size: Size, rows: &[f32], held_out: &Tensor) -> Result<Vec<(f64, f64)>> {
    let mut serial = Serial::<f32>::of(&trainer(size, Precision::F32, 1, &Device::Cpu)?.model()?)?;
    let (mut learned, mut seconds) = (Vec::new(), 0.);
    for epoch in 0..LEARNING_EPOCHS as u64 {
        let start = Instant::now();
        serial_epoch(&mut serial, rows, (size.n_visible, 1), &mut Philox::new(0, 10 + epoch));
        seconds += start.elapsed().as_secs_f64();
        learned.push((seconds, serial.dae(&Device::Cpu)?.errors_prepared(held_out, held_out)?.rmse));
    }
    Ok(learned)
}
