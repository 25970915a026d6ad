//! The search for nearest neighbours, of rows on the device.
use super::common::TimingArgs;
use super::table::{Column, Table};
use super::timing::{Seconds, time};
use super::tsne::Rows;
use crate::choices::MetricArg;
use crate::device::describe;
use crate::options::at_least_one;
use crate::report::Report;
use anyhow::{Context, Result};
use candle::DType;
use clap::Args;
use serde::Serialize;

/// Options of `bench knn`.
#[derive(Debug, Args)]
pub struct KnnArgs {
    #[command(flatten)]
    timing: TimingArgs,
    /// Data set: a name, a folder or a file. Also blobs:NxD (ten Gaussians) or sheet:NxD (Gaussians
    /// on a curved sheet); several are separated by commas. Training and test rows are taken
    /// together.
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

/// What is printed of a row.
const COLUMNS: &[Column<Row>] = &[
    Column("data", -24, |row| row.data.clone()),
    Column("rows", 8, |row| row.n.to_string()),
    Column("cols", 5, |row| row.n_features.to_string()),
    Column("k", 5, |row| row.k.to_string()),
    Column("median", 9, |row| format!("{:.3}", row.ms)),
    Column("min", 9, |row| format!("{:.3}", row.ms_min)),
    Column("max", 9, |row| format!("{:.3}", row.ms_max)),
    Column("TFLOP/s", 8, |row| format!("{:.1}", row.tflops)),
];

pub(super) fn run(args: &KnnArgs) -> Result<()> {
    let device = args.timing.common.open_device()?;
    let report = Report::new(args.timing.common.json);
    report.line(&format!("k nearest neighbours, rows and results on {}, ms", describe(&device)))?;
    let mut table = Table::new(&report, COLUMNS)?;
    for of in &args.data {
        let (rows, _) = of.make(&device).with_context(|| of.name())?;
        let scale = if rows.dtype() == DType::U8 { 1. / 255. } else { 1. };
        let rows = (rows.to_device(&device)?.to_dtype(DType::F32)? * scale)?.contiguous()?;
        let (n, n_features) = rows.dims2()?;
        let Seconds { median, min, max } = time(&device, args.timing.repeats, || {
            chandlery_ops::tsne::knn(&rows, args.neighbours, args.metric.0)?;
            Ok(())
        })?;
        table.add(Row {
            data: of.name(),
            n,
            n_features,
            k: args.neighbours,
            ms: median * 1e3,
            ms_min: min * 1e3,
            ms_max: max * 1e3,
            tflops: 2. * (n * n) as f64 * n_features as f64 / median / 1e12,
            device: describe(&device),
        })?;
    }
    table.finish()
}
