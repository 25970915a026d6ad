//! f32 against f64: seconds an epoch, and what is learned in the same epochs from the same rows and
//! draws.
use super::{DaeArgs, EPOCH, epoch, serial_epoch, trainer, values};
use crate::bench::size::Size;
use crate::bench::stream::synthetic_rows;
use crate::bench::table::{Column, Table, or_dash};
use crate::device::describe;
use crate::report::Report;
use anyhow::{Context, Result};
use candle::{Device, Tensor};
use chandlery::dae::reference::{Real, Serial};
use chandlery::{MinibatchTrainer, Philox, Precision, Trainer};
use chandlery_datasets::{DataOptions, Split};
use serde::Serialize;
use std::time::Instant;

/// Training rows, and epochs over them: the serial program takes milliseconds a row.
const ROWS: usize = 512;
const EPOCHS: usize = 2;
/// Held-out rows at most.
const HELD_OUT: usize = 1000;
/// Seconds of an epoch by PyTorch on an H200 in f64 (updates in place, replayed as a CUDA graph),
/// by rows of a minibatch, at 784-500.
const PYTORCH_F64: [(usize, f64); 5] = [(1, 2.83), (8, 0.432), (32, 0.127), (128, 0.035), (512, 0.016)];

/// One line of the table.
#[derive(Debug, Serialize)]
struct Row {
    batch: usize,
    program: String,
    dtype: &'static str,
    /// Seconds of an epoch of 60,000 rows.
    seconds: f64,
    /// Root mean square error of reconstructions of held-out rows, and how many times that of the
    /// serial program in f64 it is.
    rmse: Option<f64>,
    of_serial_f64: Option<f64>,
}

/// What is printed of a row.
const COLUMNS: &[Column<Row>] = &[
    Column("batch", 6, |row| row.batch.to_string()),
    Column("program", -28, |row| row.program.clone()),
    Column("type", -5, |row| row.dtype.to_owned()),
    Column("s an epoch", 11, |row| format!("{:.4}", row.seconds)),
    Column("RMSE", 10, |row| or_dash(row.rmse, 6)),
    Column("of f64's", 10, |row| or_dash(row.of_serial_f64, 6)),
];

/// Prints the table.
pub(super) fn compare(args: &DaeArgs, device: &Device, report: &Report) -> Result<()> {
    let dataset = chandlery_datasets::open(&args.data, &DataOptions::default())?;
    let test = dataset.test.context("the data must have test rows")?;
    let held_out = test.take(test.n_samples().min(HELD_OUT))?.raw(&Device::Cpu)?;
    let size = Size { n_visible: dataset.train.n_features(), n_hidden: 500 };
    let synthetic = synthetic_rows(EPOCH, size.n_visible)?;
    report.line(&format!(
        "{size}, seconds an epoch of {EPOCH} rows; RMSE of {} held-out rows of {} after {EPOCHS} epochs over {} rows, the same rows and draws",
        held_out.dim(0)?,
        args.data,
        ROWS.min(dataset.train.n_samples())
    ))?;
    report.line(
        "serial: one thread of this machine, sums of a minibatch in plain loops; PyTorch: an H200, recorded",
    )?;
    let mut table = Table::new(report, COLUMNS)?;
    for &batch in &args.batch {
        let n = ROWS.min(dataset.train.n_samples()) / batch * batch;
        if n == 0 {
            continue;
        }
        let rows = dataset.train.take(n)?;
        let double = serially::<f64>(size, batch, &rows, &held_out)?;
        let single = serially::<f32>(size, batch, &rows, &held_out)?;
        let seconds = epoch(args, device, size, Precision::F32, batch, &synthetic)?.median;
        let ours = (seconds, learned(size, batch, &rows, &held_out, device)?);
        let line = |program: &str, dtype, (seconds, rmse): (f64, Option<f64>)| Row {
            batch,
            program: program.to_owned(),
            dtype,
            seconds,
            rmse,
            of_serial_f64: rmse.map(|rmse| rmse / double.1),
        };
        let mut lines = vec![
            line("serial", "f64", (double.0, Some(double.1))),
            line("serial", "f32", (single.0, Some(single.1))),
            line(&describe(device), "f32", (ours.0, Some(ours.1))),
        ];
        let known = PYTORCH_F64.iter().find(|(of, _)| *of == batch && size.units() == (784, 500));
        lines.extend(known.map(|(_, seconds)| line("PyTorch, CUDA graph", "f64", (*seconds, None))));
        lines.into_iter().try_for_each(|line| table.add(line))?;
    }
    table.finish()
}

/// Seconds of an epoch of [`EPOCH`] rows and the error of held-out rows, by the serial program.
fn serially<T: Real>(size: Size, batch: usize, rows: &Split, held_out: &Tensor) -> Result<(f64, f64)> {
    let mut serial = Serial::<T>::of(&trainer(size, Precision::F32, batch, &Device::Cpu)?.model()?)?;
    let n = rows.n_samples();
    let rows: Vec<T> = values(rows)?.into_iter().map(|x| T::of(f64::from(x))).collect();
    // The draws of `trainer`.
    let mut philox = Philox::new(0, 1);
    let start = Instant::now();
    for _ in 0..EPOCHS {
        serial_epoch(&mut serial, &rows, (size.n_visible, batch), &mut philox);
    }
    let seconds = start.elapsed().as_secs_f64() * EPOCH as f64 / (EPOCHS * n) as f64;
    Ok((seconds, serial.dae(&Device::Cpu)?.errors_prepared(held_out, held_out)?.rmse))
}

/// The error of held-out rows after the same on the device.
fn learned(size: Size, batch: usize, rows: &Split, held_out: &Tensor, device: &Device) -> Result<f64> {
    let mut trainer = trainer(size, Precision::F32, batch, device)?;
    let rows = rows.raw(device)?;
    for _ in 0..EPOCHS {
        trainer.steps_of(&rows, None, rows.dim(0)? / batch)?;
    }
    let held_out = held_out.to_device(device)?;
    Ok(trainer.model()?.errors_prepared(&held_out, &held_out)?.rmse)
}
