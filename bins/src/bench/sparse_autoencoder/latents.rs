//! Whole training steps of sparse autoencoders with latents, and what encoding takes, beside a
//! peer's in the same call.
use super::SparseAutoencoderArgs;
use crate::bench::floor::Gpu;
use crate::bench::grid::peer::{Answer, Peer};
use crate::bench::table::{Column, Table, or_dash};
use crate::bench::timing::{Seconds, time_of_one};
use crate::device::describe;
use crate::report::Report;
use crate::sparse_autoencoder::latents::args::KindArg;
use anyhow::{Context, Result, bail};
use candle::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use chandlery::sparse_autoencoder::sae::{Kind, Sae, SaeConfig, SaeTrainConfig, SaeTrainer};
use chandlery::{Encode, MinibatchTrainer, Model, Philox};
use chandlery_ops::codes::batch_threshold;
use chandlery_ops::core::{most_memory, normal};
use chandlery_ops::layers::{Precision, product};
use serde::Serialize;
use serde_json::json;
use std::collections::HashMap;

/// Seconds of a timed slice, and its steps at least.
const SLICE: (f64, usize) = (0.3, 3);
/// Sizes of today's models, and one for a CPU.
const SIZES: [(usize, usize); 3] = [(768, 24_576), (2304, 65_536), (4096, 131_072)];
const CPU_SIZES: [(usize, usize); 1] = [(384, 3072)];
/// The parameter that [`Sae`] has for thresholds, by its name in files.
const THRESHOLD: &str = "threshold";

/// Steps at one size.
#[derive(Debug, Serialize)]
struct Row {
    model: &'static str,
    kind: &'static str,
    size: String,
    active: usize,
    batch: usize,
    precision: &'static str,
    /// Seconds of a training step: the median, the fastest and the slowest.
    seconds: f64,
    seconds_min: f64,
    seconds_max: f64,
    rows_a_second: f64,
    /// Active latents of a row in the last step.
    l0: f64,
    /// Of the model, its trainer and a step, where the driver counts.
    peak_bytes: Option<u64>,
    /// Seconds of the encoder's product alone, and of encoding.
    product_seconds: f64,
    encode_seconds: f64,
    /// The other library, and seconds of its step.
    peer: Option<String>,
    peer_seconds: Option<f64>,
    ratio: Option<f64>,
    /// Lower bound on an H200.
    floor_seconds: f64,
    device: String,
}

const COLUMNS: &[Column<Row>] = &[
    Column("kind", -12, |row| row.kind.to_owned()),
    Column("size", -11, |row| row.size.clone()),
    Column("k", 4, |row| row.active.to_string()),
    Column("batch", 6, |row| row.batch.to_string()),
    Column("type", -5, |row| row.precision.to_owned()),
    Column("step ms", 8, |row| format!("{:.3}", 1e3 * row.seconds)),
    Column("min", 8, |row| format!("{:.3}", 1e3 * row.seconds_min)),
    Column("max", 8, |row| format!("{:.3}", 1e3 * row.seconds_max)),
    Column("M rows/s", 9, |row| format!("{:.4}", row.rows_a_second / 1e6)),
    Column("L0", 6, |row| format!("{:.1}", row.l0)),
    Column("GB", 6, |row| or_dash(row.peak_bytes.map(|bytes| bytes as f64 / 1e9), 2)),
    Column("product", 8, |row| format!("{:.3}", 1e3 * row.product_seconds)),
    Column("encode", 8, |row| format!("{:.3}", 1e3 * row.encode_seconds)),
    Column("peer ms", 9, |row| or_dash(row.peer_seconds.map(|seconds| 1e3 * seconds), 3)),
    Column("ratio", 6, |row| or_dash(row.ratio, 2)),
    Column("floor", 8, |row| format!("{:.3}", 1e3 * row.floor_seconds)),
    Column("peer", -1, |row| row.peer.clone().unwrap_or_default()),
];

/// Seconds of a step on an H200: the encoder's product, pre-activations of 2 bytes written and read,
/// and 26 bytes a weight of Adam.
fn floor((d, n): (usize, usize), batch: usize) -> f64 {
    let gpu = Gpu::H200;
    let (d, n, batch) = (d as f64, n as f64, batch as f64);
    2. * batch * d * n / gpu.bf16_flops + (4. * batch * n + 26. * 2. * d * n) / gpu.memory_bytes
}

pub(super) fn run(args: &SparseAutoencoderArgs) -> Result<()> {
    let device = args.timing.common.open_device()?;
    let report = Report::new(args.timing.common.json);
    report.line(&format!("training steps of sparse autoencoders with latents, on {}", describe(&device)))?;
    report.line("product, encode, peer, floor: ms; floor: of an H200 in bf16")?;
    let mut peer = args.peer.as_deref().map(|script| Peer::start(script, &device)).transpose()?;
    let usual: &[(usize, usize)] = if device.is_cpu() { &CPU_SIZES } else { &SIZES };
    let sizes: Vec<(usize, usize)> = match args.size.is_empty() {
        true => usual.to_vec(),
        false => args.size.iter().map(|size| size.units()).collect(),
    };
    let mut table = Table::new(&report, COLUMNS)?;
    for size in sizes {
        for &precision in &args.precision {
            for &kind in &args.kind {
                let row = measure(args, &device, (size, kind, precision), peer.as_mut());
                table.add(row.with_context(|| format!("{size:?}, {}", kind.words()))?)?;
            }
        }
    }
    table.finish()
}

fn measure(
    args: &SparseAutoencoderArgs,
    device: &Device,
    (size, kind, precision): ((usize, usize), KindArg, Precision),
    peer: Option<&mut Peer>,
) -> Result<Row> {
    let (d, n) = size;
    let active = args.active.unwrap_or(if d < SIZES[1].0 { 32 } else { 64 });
    let batch = args.batch.unwrap_or(if device.is_cpu() { 1024 } else { 8192 });
    let (of_kind, name) = match kind {
        KindArg::TopK => (Kind::TopK { k: active }, "top-k"),
        KindArg::BatchTopK => (Kind::BatchTopK { k: active }, "batch-top-k"),
        KindArg::JumpRelu => (Kind::JumpRelu, "jump-relu"),
        KindArg::Matryoshka => (Kind::matryoshka(active, n), "matryoshka"),
        KindArg::Relu | KindArg::Gated => {
            bail!(
                "--kind: only kinds that start with a number of active latents can be timed, got {}",
                kind.words()
            )
        }
    };
    let rows = normal((batch, d), device, Philox::new(0, 0))?;
    let first = Sae::init(SaeConfig::new(d, n, of_kind), Philox::new(0, 1), device)?;
    let cut = product(&rows.narrow(0, 0, batch.min(64))?, &first.encoder().t()?, DType::F32, Precision::F32)?;
    let zeros = Tensor::zeros(n, DType::F32, device)?;
    let cut = batch_threshold(&cut, &zeros, active * cut.dim(0)?)?;
    let first = with_threshold(first, &cut)?;

    let config = SaeTrainConfig {
        precision,
        batch,
        start_at_median: false,
        start_share: 0.,
        learning_rate: Some(1e-5),
        ..SaeTrainConfig::default()
    };
    let (timed, peak_bytes) = most_memory(device, || -> Result<_> {
        let mut trainer = SaeTrainer::new(&first, config, Philox::new(0, 2))?;
        let seconds = time_of_one(device, args.timing.repeats, SLICE, |steps| {
            (0..steps).try_for_each(|_| trainer.step(&rows, None))?;
            Ok(())
        })?;
        chandlery::Trainer::metrics(&mut trainer)?;
        trainer.step(&rows, None)?;
        Ok((seconds, chandlery::Trainer::metrics(&mut trainer)?.l0))
    })?;
    let (Seconds { median, min, max }, l0) = timed?;

    let encoder = first.at_precision(precision)?;
    let x = rows.to_dtype(encoder.encoder().dtype())?;
    let weights = encoder.encoder().t()?;
    let alone = time_of_one(device, args.timing.repeats, SLICE, |calls| {
        (0..calls).try_for_each(|_| product(&x, &weights, x.dtype(), precision).map(drop))?;
        Ok(())
    })?;
    let encode = time_of_one(device, args.timing.repeats, SLICE, |calls| {
        (0..calls).try_for_each(|_| encoder.encode_prepared(&rows).map(drop))?;
        Ok(())
    })?;
    let question = json!({
        "family": "latents",
        "kind": name,
        "size": format!("{d}x{n}"),
        "active": active,
        "batch": batch,
        "precision": precision.name(),
        "repeats": args.timing.repeats,
        "slice": SLICE.0,
    });
    let (peer, peer_seconds) = match peer.map(|peer| peer.put(question)).transpose()? {
        None => (None, None),
        Some(Answer::Missing { missing }) => (Some(missing), None),
        Some(Answer::Measured { peer, seconds }) => (Some(peer), Some(Seconds::of(seconds).median)),
    };
    Ok(Row {
        model: "sparse-autoencoder",
        kind: name,
        size: format!("{d}x{n}"),
        active,
        batch,
        precision: precision.name(),
        seconds: median,
        seconds_min: min,
        seconds_max: max,
        rows_a_second: batch as f64 / median,
        l0,
        peak_bytes,
        product_seconds: alone.median,
        encode_seconds: encode.median,
        peer,
        ratio: peer_seconds.map(|seconds| seconds / median),
        peer_seconds,
        floor_seconds: floor(size, batch),
        device: describe(device),
    })
}

/// The model with `cut` as all its thresholds, where it has some.
fn with_threshold(model: Sae, cut: &Tensor) -> Result<Sae> {
    let Some(threshold) = model.parameter_named(THRESHOLD) else { return Ok(model) };
    let threshold = cut.broadcast_as(threshold.shape())?.contiguous()?;
    let mut tensors: HashMap<String, Tensor> = model.tensors().into_iter().collect();
    tensors.insert(THRESHOLD.to_owned(), threshold);
    let device = cut.device();
    Ok(Sae::new(model.config().clone(), VarBuilder::from_tensors(tensors, DType::F32, device))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_floor_is_that_of_the_arithmetic_done_by_hand() {
        // 309 GFLOP over 790 TFLOP/s .39 ms; .8 GB of pre-activations and .98 GB of Adam over 4.3
        // TB/s .42 ms.
        assert!((floor((768, 24_576), 8192) - 0.81e-3).abs() < 0.01e-3);
    }
}
