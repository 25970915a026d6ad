//! t-SNE from rows in host memory to a layout in host memory, by stage, with the quality of the
//! layout.
use super::common::TimingArgs;
use super::neighbours::mixture;
use super::table::{Column, Table, or_dash};
use super::timing::{Seconds, time};
use crate::device::describe;
use crate::options::at_least_one;
use crate::report::Report;
use crate::tsne::descent::DescentArgs;
use anyhow::{Context, Result, bail};
use candle::{DType, Device, Tensor};
use chandlery::evaluation::layout as quality;
use chandlery::tsne::measure::{self, TrueDistances};
use chandlery::tsne::{Method, StageSeconds, Tsne, TsneConfig, TsneTrainer};
use chandlery::{FullBatchTrainer, Philox};
use chandlery_datasets::{DataOptions, Dataset};
use clap::Args;
use serde::Serialize;
use std::str::FromStr;
use std::time::Instant;

/// Groups of made-up rows.
const GROUPS: usize = 10;
/// Rows of made-up data that are made in one go.
const BLOCK: usize = 65_536;

/// Options of `bench tsne`.
#[derive(Debug, Args)]
pub struct TsneArgs {
    #[command(flatten)]
    timing: TimingArgs,
    /// Data set: a name, a folder or a file. Also blobs:NxD (ten Gaussians) or sheet:NxD (Gaussians
    /// on a curved sheet) or mixture:NxD (the Gaussians of `bench neighbours`); several are separated
    /// by commas. Training and test rows are taken together.
    #[arg(long, value_name = "DATA,…", value_delimiter = ',', default_value = "mnist-sample")]
    data: Vec<Rows>,
    /// Use only the first ROWS rows; of training and test rows together. Default: all rows.
    #[arg(long, value_name = "ROWS", value_parser = at_least_one)]
    max_rows: Option<usize>,
    /// The layout, and how it is found.
    #[command(flatten)]
    descent: DescentArgs,
    /// Iterations, which are no epochs: each computes the gradient from all rows at least once. So
    /// many after the early ones.
    #[arg(long, value_name = "N", default_value_t = TsneConfig::default().iterations, value_parser = at_least_one)]
    iterations: usize,
    /// Skip the measures of quality, whose time grows with the square of the number of rows.
    #[arg(long)]
    skip_measures: bool,
}

/// What is laid out.
#[derive(Debug, Clone)]
pub(super) enum Rows {
    Set(String),
    Blobs(usize, usize),
    Sheet(usize, usize),
    Mixture(usize, usize),
}

impl FromStr for Rows {
    type Err = anyhow::Error;

    fn from_str(name: &str) -> Result<Self> {
        let Some((kind, size)) = name.split_once(':') else { return Ok(Self::Set(name.to_owned())) };
        let (n, d) = size.split_once('x').context("a size must be rows x features, such as 1000x50")?;
        let (n, d) = (n.parse()?, d.parse()?);
        match kind {
            "blobs" => Ok(Self::Blobs(n, d)),
            "sheet" => Ok(Self::Sheet(n, d)),
            "mixture" => Ok(Self::Mixture(n, d)),
            _ => Ok(Self::Set(name.to_owned())),
        }
    }
}

impl Rows {
    /// Rows and labels on the CPU, some of them made on `device`.
    pub(super) fn make(&self, device: &Device) -> Result<(Tensor, Option<Tensor>)> {
        match self {
            &Self::Mixture(n, d) => Ok((mixture(n, d, device)?.to_device(&Device::Cpu)?, None)),
            Self::Set(name) => rows_of(&chandlery_datasets::open(name, &DataOptions::default())?),
            &Self::Blobs(n, d) => {
                let centres =
                    ((chandlery_ops::core::uniform((GROUPS, d), &Device::Cpu, Philox::new(15, 0))? - 0.5)?
                        * 20.)?;
                made_up(n, |group, start, len| {
                    let noise = chandlery_ops::core::normal(
                        (len, d),
                        &Device::Cpu,
                        Philox::new(15, 1).advanced(start * d),
                    )?;
                    Ok((centres.index_select(group, 0)? + noise)?)
                })
            }
            &Self::Sheet(n, d) => {
                let of =
                    |stream| chandlery_ops::core::uniform((GROUPS, 2), &Device::Cpu, Philox::new(15, stream));
                let (centres, turn) =
                    ((of(2)? * 8.)?, chandlery_ops::core::normal((2, d), &Device::Cpu, Philox::new(15, 3))?);
                made_up(n, |group, start, len| {
                    let at = |stream: u64, d: usize| {
                        chandlery_ops::core::normal(
                            (len, d),
                            &Device::Cpu,
                            Philox::new(15, stream).advanced(start * d),
                        )
                    };
                    // Places on the sheet, which every feature bends in a direction of its own.
                    let places = (centres.index_select(group, 0)? + (at(4, 2)? * 0.7)?)?;
                    Ok((places.matmul(&turn)?.sin()? + (at(5, d)? * 0.05)?)?)
                })
            }
        }
    }

    pub(super) fn name(&self) -> String {
        match self {
            Self::Set(name) => name.rsplit('/').next().unwrap_or(name).to_owned(),
            Self::Blobs(n, d) => format!("blobs:{n}x{d}"),
            Self::Sheet(n, d) => format!("sheet:{n}x{d}"),
            Self::Mixture(n, d) => format!("mixture:{n}x{d}"),
        }
    }

    /// Seconds of the source on a V100, and of cuML 26.10 by FFT and by Barnes-Hut on an H200,
    /// measured earlier, with the true KL of those two.
    fn known(&self, n: usize, dims: u8) -> (Option<f64>, Option<[f64; 4]>) {
        match (self, n, dims) {
            (Self::Set(name), 70_000, 2) if !name.contains("fashion") => {
                (None, Some([0.997, 3.287, 1.328, 3.028]))
            }
            (Self::Set(name), 60_000..=70_000, 2) if name.contains("fashion") => {
                (Some(3.), Some([1.004, 3.629, 1.219, 2.697]))
            }
            (Self::Blobs(204_800, 80), 204_800, 2) => (Some(5.4), Some([2.344, f64::NAN, 2.776, f64::NAN])),
            _ => (None, None),
        }
    }
}

/// All rows of a set, those of training first, and labels where every split has them, on the CPU.
pub(super) fn rows_of(set: &Dataset) -> Result<(Tensor, Option<Tensor>)> {
    let splits: Vec<_> = [&set.train].into_iter().chain(&set.test).collect();
    let raw = splits.iter().map(|split| split.raw(&Device::Cpu)).collect::<Result<Vec<_>, _>>()?;
    let labels: Option<Vec<&[u32]>> = splits.iter().map(|split| split.labels.as_deref()).collect();
    let labels = labels.map(|of| Tensor::new(of.concat(), &Device::Cpu)).transpose()?;
    Ok((Tensor::cat(&raw, 0)?, labels))
}

/// Rows in blocks, by the group of each.
fn made_up(
    n: usize,
    mut block: impl FnMut(&Tensor, usize, usize) -> Result<Tensor>,
) -> Result<(Tensor, Option<Tensor>)> {
    if n == 0 {
        bail!("there must be at least one row");
    }
    let labels: Vec<u32> = (0..n).map(|i| (i % GROUPS) as u32).collect();
    let labels = Tensor::new(labels, &Device::Cpu)?;
    let mut blocks = vec![];
    for start in (0..n).step_by(BLOCK) {
        let len = BLOCK.min(n - start);
        blocks.push(block(&labels.narrow(0, start, len)?, start, len)?);
    }
    Ok((Tensor::cat(&blocks, 0)?, Some(labels)))
}

fn gib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 30)
}

/// One line of the table.
#[derive(Debug, Serialize)]
struct Row {
    model: &'static str,
    data: String,
    n: usize,
    n_features: usize,
    n_dims: u8,
    method: Method,
    /// From rows in host memory to a layout in host memory: the median, the fastest and the slowest
    /// run.
    seconds: f64,
    seconds_min: f64,
    seconds_max: f64,
    /// The first run, with what it loads.
    first_seconds: f64,
    /// Of the last run.
    stages: StageSeconds,
    /// Bytes that the run takes beside the rows as it tells before it begins, and as the device's
    /// allocator counted them; of a GPU.
    memory_told: u64,
    memory_taken: Option<u64>,
    /// The share of the nearest rows that the search found.
    recall: Option<f64>,
    kl: Option<f64>,
    trustworthiness: Option<f64>,
    knn_label_accuracy: Option<f64>,
    /// Of the true divergence and of the trustworthiness.
    measure_seconds: Option<[f64; 2]>,
    /// The source's, on a V100.
    paper_seconds: Option<f64>,
    /// cuML 26.10 on an H200, measured earlier: seconds and true KL by FFT, then by Barnes-Hut.
    cuml: Option<[f64; 4]>,
    device: String,
}

/// What is printed of a row.
const COLUMNS: &[Column<Row>] = &[
    Column("data", -18, |row| row.data.clone()),
    Column("rows", 8, |row| row.n.to_string()),
    Column("cols", 5, |row| row.n_features.to_string()),
    Column("d", 2, |row| row.n_dims.to_string()),
    Column("median", 8, |row| format!("{:.3}", row.seconds)),
    Column("min", 8, |row| format!("{:.3}", row.seconds_min)),
    Column("max", 8, |row| format!("{:.3}", row.seconds_max)),
    Column("first", 8, |row| format!("{:.3}", row.first_seconds)),
    Column("knn", 8, |row| format!("{:.4}", row.stages.neighbours)),
    Column("recall", 7, |row| or_dash(row.recall, 4)),
    Column("perpl.", 7, |row| format!("{:.4}", row.stages.perplexity)),
    Column("symm.", 7, |row| format!("{:.4}", row.stages.symmetrisation)),
    Column("start", 7, |row| format!("{:.4}", row.stages.start)),
    Column("descent", 8, |row| format!("{:.4}", row.stages.descent)),
    Column("KL", 7, |row| or_dash(row.kl, 4)),
    Column("trust", 7, |row| or_dash(row.trustworthiness, 4)),
    Column("10-NN", 7, |row| or_dash(row.knn_label_accuracy, 4)),
    Column("KL s", 6, |row| or_dash(row.measure_seconds.map(|seconds| seconds[0]), 3)),
    Column("trust s", 7, |row| or_dash(row.measure_seconds.map(|seconds| seconds[1]), 3)),
    Column("told", 6, |row| format!("{:.3}", gib(row.memory_told))),
    Column("taken", 6, |row| or_dash(row.memory_taken.map(gib), 3)),
    Column("paper", 6, |row| or_dash(row.paper_seconds, 1)),
    Column("fft", 6, |row| or_dash(row.cuml.map(|c| c[0]), 3)),
    Column("bh", 6, |row| or_dash(row.cuml.map(|c| c[2]), 3)),
];

pub(super) fn run(args: &TsneArgs) -> Result<()> {
    let device = args.timing.common.open_device()?;
    let report = Report::new(args.timing.common.json);
    report.line(&format!(
        "t-SNE at perplexity 30, host memory to host memory, seconds, on {}",
        describe(&device)
    ))?;
    report.line(
        "KL: the true one, over all pairs up to 300,000 rows, over those of 65,536 rows above; told, taken: GiB of the GPU beside the rows, as told before the run and as counted; paper: cuML on a V100 in 2019; cuML: 26.10 by FFT and by Barnes-Hut on an H200, recorded",
    )?;
    let mut table = Table::new(&report, COLUMNS)?;
    for rows in &args.data {
        table.add(measure_one(args, rows, &device).with_context(|| rows.name())?)?;
    }
    table.finish()
}

/// What a measure finds, and its seconds from host to host.
fn seconds_of(measure: impl FnOnce() -> candle::Result<f64>) -> Result<(f64, f64)> {
    let begin = Instant::now();
    Ok((measure()?, begin.elapsed().as_secs_f64()))
}

fn measure_one(args: &TsneArgs, of: &Rows, device: &Device) -> Result<Row> {
    let (mut rows, mut labels) = of.make(device)?;
    if let Some(first) = args.max_rows.filter(|&first| first < rows.dim(0).unwrap_or(0)) {
        rows = rows.narrow(0, 0, first)?.contiguous()?;
        labels = labels.map(|labels| labels.narrow(0, 0, first)).transpose()?;
    }
    let config = args.descent.config(args.iterations);
    let (n, n_features) = rows.dims2()?;
    let method = config.method_for(n, device.is_cuda());
    let tsne = Tsne { config, philox: Philox::new(15, 9) };
    let (mut last, mut first) = (None, None);
    let runs = || {
        time(device, args.timing.repeats, || {
            drop(last.take());
            let begin = Instant::now();
            let there = rows.to_device(device)?;
            let mut run = TsneTrainer::new(tsne.config.clone(), tsne.philox, &there)?;
            run.fit()?;
            last = Some((run.layout()?.to_device(&Device::Cpu)?, run));
            first.get_or_insert(begin.elapsed().as_secs_f64());
            Ok(())
        })
    };
    let (timed, taken) = chandlery_ops::core::most_memory(device, runs)?;
    let Seconds { median, min, max } = timed?;
    let (layout, run) = last.context("at least one run was made")?;
    let of_rows = (rows.elem_count() * rows.dtype().size_in_bytes()) as u64;
    let (paper_seconds, cuml) = of.known(n, args.descent.dims as u8);
    let mut row = Row {
        model: "t-sne",
        data: of.name(),
        n,
        n_features,
        n_dims: args.descent.dims as u8,
        method,
        seconds: median,
        seconds_min: min,
        seconds_max: max,
        first_seconds: first.unwrap_or_default(),
        stages: run.seconds(),
        memory_told: tsne.config.memory(n, n_features, device.is_cuda()).peak(),
        memory_taken: taken.map(|bytes| bytes.saturating_sub(of_rows)),
        recall: run.recall().map(|recall| recall.mean),
        kl: None,
        trustworthiness: None,
        knn_label_accuracy: None,
        measure_seconds: None,
        paper_seconds,
        cuml,
        device: describe(device),
    };
    if !args.skip_measures {
        let layout = layout.to_device(device)?;
        let read =
            tsne.config.preparation.apply(&rows.to_device(device)?)?.to_dtype(DType::F32)?.contiguous()?;
        let metric = tsne.config.metric;
        let (k, sample) = (quality::TRUST_NEIGHBOURS, quality::SAMPLE);
        let distances = TrueDistances::Rows(&read, metric);
        let of_pairs = quality::looked_at(n, quality::SAMPLE_OF_PAIRS);
        let (kl, of_kl) = seconds_of(|| Ok(run.kl_estimate(&layout, of_pairs)?.value))?;
        let (trust, of_trust) = seconds_of(|| measure::trustworthiness(distances, &layout, k, sample))?;
        (row.kl, row.trustworthiness, row.measure_seconds) = (Some(kl), Some(trust), Some([of_kl, of_trust]));
        row.knn_label_accuracy = labels
            .map(|labels| measure::knn_label_accuracy(&layout, &labels, quality::NEIGHBOURS))
            .transpose()?;
    }
    Ok(row)
}
