//! Streams for the transfer of data: rows that stay on the device, rows that cross to it while
//! steps run, and rows that cross first.
use super::{DaeArgs, EPOCH, trainer};
use crate::bench::size::Size;
use crate::bench::stream::{Stream, synthetic_rows};
use crate::bench::table::{Column, Table};
use crate::bench::timing::{Seconds, time};
use crate::device::describe;
use crate::report::Report;
use anyhow::Result;
use candle::Device;
use chandlery::{MinibatchTrainer, Philox, Precision, Trainer};
use chandlery_datasets::{Feed, FeedConfig, Split};
use serde::Serialize;

/// Bytes of a chunk: an epoch has a dozen of them.
const CHUNK_BYTES: usize = 4 << 20;

/// One line of the table: seconds of an epoch.
#[derive(Debug, Serialize)]
struct Row {
    size: String,
    batch: usize,
    resident_seconds: f64,
    streamed_seconds: f64,
    copied_first_seconds: f64,
}

/// What is printed of a row.
const COLUMNS: &[Column<Row>] = &[
    Column("size", -10, |row| row.size.clone()),
    Column("batch", 6, |row| row.batch.to_string()),
    Column("resident s", 11, |row| format!("{:.4}", row.resident_seconds)),
    Column("streamed s", 11, |row| format!("{:.4}", row.streamed_seconds)),
    Column("copied first s", 13, |row| format!("{:.4}", row.copied_first_seconds)),
];

/// Prints the table.
pub(super) fn compare(args: &DaeArgs, device: &Device, report: &Report) -> Result<()> {
    report.line(&format!(
        "seconds an epoch of {EPOCH} rows of bytes in an order of its own, on {}; chunks of {} MiB",
        describe(device),
        CHUNK_BYTES >> 20
    ))?;
    report.line(
        "resident: rows in the device's memory; streamed: a thread gathers a chunk and a stream copies another while steps run; copied first: \
         each chunk is gathered and copied, then trained on",
    )?;
    let mut table = Table::new(report, COLUMNS)?;
    for size in &args.size {
        let rows = synthetic_rows(EPOCH, size.units().0)?;
        for &batch in &args.batch {
            let fed = |resident_bytes| {
                let config =
                    FeedConfig { chunk_bytes: CHUNK_BYTES, resident_bytes, ..FeedConfig::new(batch, 0) };
                from_feed(args, device, *size, &rows, config)
            };
            table.add(Row {
                size: size.to_string(),
                batch,
                resident_seconds: fed(FeedConfig::new(batch, 0).resident_bytes)?.median,
                streamed_seconds: fed(None)?.median,
                copied_first_seconds: copied_first(args, device, *size, &rows, batch)?.median,
            })?;
        }
    }
    table.finish()
}

fn from_feed(
    args: &DaeArgs,
    device: &Device,
    size: Size,
    rows: &Split,
    config: FeedConfig,
) -> Result<Seconds> {
    let mut trainer = trainer(size, Precision::F32, config.batch, device)?;
    let mut feed = Feed::new(rows, device, config)?;
    let steps = feed.n_batches();
    let mut stream = Stream::new(&mut feed)?;
    let took = time(device, args.timing.repeats, || stream.train(&mut trainer, steps))?;
    trainer.check()?;
    Ok(took)
}

fn copied_first(args: &DaeArgs, device: &Device, size: Size, rows: &Split, batch: usize) -> Result<Seconds> {
    let mut trainer = trainer(size, Precision::F32, batch, device)?;
    let of_chunk = (CHUNK_BYTES / rows.n_features() / batch).max(1) * batch;
    let mut epoch = 0;
    let took = time(device, args.timing.repeats, || {
        let order = Philox::new(0, epoch).permutation(rows.n_samples());
        epoch += 1;
        for chunk in order[..order.len() / batch * batch].chunks(of_chunk) {
            let there = rows.select(chunk)?.raw(device)?;
            device.synchronize()?;
            trainer.steps_of(&there, None, chunk.len() / batch)?;
            device.synchronize()?;
        }
        Ok(())
    })?;
    trainer.check()?;
    Ok(took)
}
