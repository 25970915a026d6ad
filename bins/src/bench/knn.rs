//! The search for nearest neighbours, of rows on the device.
use super::TimingArgs;
use super::timing::{Seconds, time};
use super::tsne::Rows;
use crate::device::describe;
use crate::options::at_least_one;
use crate::report::Report;
use crate::tsne::choices::MetricArg;
use anyhow::{Context, Result};
use candle::DType;
use clap::Args;
use serde::Serialize;

/// Options of `bench knn`.
#[derive(Debug, Args)]
pub struct KnnArgs {
    #[command(flatten)]
    timing: TimingArgs,
    /// Data set: a name, a folder or a file. Also blobs:NxD (ten Gaussians) or sheet:NxD (Gaussians on a curved sheet); several are separated by
    /// commas. Training and test rows are taken together.
    #[arg(
        long,
        value_name = "DATA,…",
        value_delimiter = ',',
        default_value = "blobs:20000x50,blobs:20000x256"
    )]
    data: Vec<Rows>,
    /// Number of neighbours of each row.
    #[arg(long, value_name = "N", default_value_t = 90, value_parser = at_least_one)]
    neighbours: usize,
    /// How rows are compared.
    #[arg(long, value_enum, default_value_t)]
    metric: MetricArg,
}

/// One line of the table.
#[derive(Debug, Serialize)]
struct Row {
    data: String,
    n: usize,
    n_features: usize,
    k: usize,
    ms: f64,
    ms_min: f64,
    ms_max: f64,
    /// Multiply-adds of all pairs, twice, over the median.
    tflops: f64,
    device: String,
}

pub(super) fn run(args: &KnnArgs) -> Result<()> {
    let device = args.timing.common.open_device()?;
    let report = Report::new(args.timing.common.json);
    report.line(&format!("k nearest neighbours, rows and results on {}, ms", describe(&device)))?;
    report.line(&format!(
        "{:<24} {:>8} {:>5} {:>5} {:>9} {:>9} {:>9} {:>8}",
        "data", "rows", "cols", "k", "median", "min", "max", "TFLOP/s"
    ))?;
    let mut table = Vec::new();
    for of in &args.data {
        let (rows, _) = of.make().with_context(|| of.name())?;
        let scale = if rows.dtype() == DType::U8 { 1. / 255. } else { 1. };
        let rows = (rows.to_device(&device)?.to_dtype(DType::F32)? * scale)?.contiguous()?;
        let (n, n_features) = rows.dims2()?;
        let Seconds { median, min, max } = time(&device, args.timing.repeats, || {
            chandlery_ops::tsne::knn(&rows, args.neighbours, args.metric.0)?;
            Ok(())
        })?;
        let row = Row {
            data: of.name(),
            n,
            n_features,
            k: args.neighbours,
            ms: median * 1e3,
            ms_min: min * 1e3,
            ms_max: max * 1e3,
            tflops: 2. * (n * n) as f64 * n_features as f64 / median / 1e12,
            device: describe(&device),
        };
        report.line(&format!(
            "{:<24} {:>8} {:>5} {:>5} {:>9.3} {:>9.3} {:>9.3} {:>8.1}",
            row.data, n, n_features, args.neighbours, row.ms, row.ms_min, row.ms_max, row.tflops
        ))?;
        table.push(row);
    }
    report.finish(&table)
}
