//! Streams for the transfer of data, an open question of the paper: rows that stay on the device,
//! rows that cross to it while steps run, and rows that cross first.
use super::{SIZE, either, heads, table};
use crate::bench::dae::{EPOCH, trainer};
use crate::bench::paper::{Cell, Paper};
use crate::bench::stream::{Stream, synthetic_rows};
use crate::bench::timing::{Seconds, time};
use crate::device::describe;
use anyhow::Result;
use candle::Device;
use chandlery::{MinibatchTrainer, Philox, Precision, Trainer};
use chandlery_datasets::{Feed, FeedConfig, Split};

/// Bytes of a chunk: an epoch has a dozen of them.
const CHUNK_BYTES: usize = 4 << 20;

/// The table.
pub(super) fn section(paper: &mut Paper<'_>) -> Result<()> {
    let (device, quick) = (paper.device().clone(), paper.quick());
    let repeats = if quick { 1 } else { paper.repeats() };
    let n = if quick { EPOCH / 10 } else { EPOCH };
    let data = synthetic_rows(n, SIZE.n_visible)?;
    let mut rows = Vec::new();
    for batch in either(paper, &[8, 32, 128, 512], &[128]) {
        let fed = |resident_bytes| {
            let config = FeedConfig { chunk_bytes: CHUNK_BYTES, resident_bytes, ..FeedConfig::new(batch, 0) };
            from_feed(repeats, &device, &data, config)
        };
        let resident = fed(FeedConfig::new(batch, 0).resident_bytes)?.median;
        let streamed = fed(None)?.median;
        let copied_first = copied_first(repeats, &device, &data, batch)?.median;
        rows.push(vec![
            Cell::number(batch as f64, 0),
            Cell::seconds(resident),
            Cell::seconds(streamed),
            Cell::seconds(copied_first),
            Cell::factor(copied_first / streamed),
        ]);
    }
    let heads =
        heads(["minibatch", "resident, s", "streamed, s", "copied first, s", "streams are faster by"]);
    let notes = vec![
        "The paper asks whether CUDA streams make the access to large data sets more efficient, and has no figure.".to_owned(),
        format!(
            "Seconds of an epoch of {n} rows of bytes in an order of its own, on {}; chunks of {} MiB. Resident: all rows in the device's memory. Streamed: a \
             thread gathers a chunk and a stream copies another while steps run. Copied first: each chunk is gathered and copied, then trained on, as \
             the paper's program copies its data before training.",
            describe(&device),
            CHUNK_BYTES >> 20
        ),
    ];
    table(paper, "Open question: streams for the transfer of data", &heads, rows, notes)
}

fn from_feed(repeats: u32, device: &Device, rows: &Split, config: FeedConfig) -> Result<Seconds> {
    let mut trainer = trainer(SIZE, Precision::F32, config.batch, device)?;
    let mut feed = Feed::new(rows, device, config)?;
    let steps = rows.n_samples() / feed.config().batch;
    let mut stream = Stream::new(&mut feed)?;
    let took = time(device, repeats, || stream.train(&mut trainer, steps))?;
    trainer.check()?;
    Ok(took)
}

fn copied_first(repeats: u32, device: &Device, rows: &Split, batch: usize) -> Result<Seconds> {
    let mut trainer = trainer(SIZE, Precision::F32, batch, device)?;
    let of_chunk = (CHUNK_BYTES / rows.n_features() / batch).max(1) * batch;
    let mut epoch = 0;
    let took = time(device, repeats, || {
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
