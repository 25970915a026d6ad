//! The approximate search for nearest neighbours, of rows on the device or in host memory, to a wanted
//! recall.
use super::common::TimingArgs;
use super::table::{Column, Table};
use super::timing::{Seconds, time};
use crate::arrays;
use crate::choices::MetricArg;
use crate::device::describe;
use crate::options::{at_least_one, at_most_one};
use crate::report::Report;
use anyhow::{Context, Result};
use candle::{Device, Tensor};
use chandlery::Philox;
use chandlery_ops::core::normal;
use chandlery_ops::tsne::{Recall, StreamedSearch, knn_approximate, knn_streamed};
use clap::Args;
use serde::Serialize;
use std::path::PathBuf;

/// Rows that are made in one go.
const BLOCK: usize = 65_536;
/// Standard deviations: of centres and of rows about them in the strong directions, and of all
/// features besides.
const CENTRES: f64 = 10.;
const NOISE: f64 = 0.1;
/// Gaussians, and directions in which they differ much.
const CLUSTERS: usize = 1000;
const DIRECTIONS: usize = 32;
/// Of all draws.
const SEED: u64 = 42;

/// Options of `bench neighbours`.
#[derive(Debug, Args)]
pub struct NeighboursArgs {
    #[command(flatten)]
    timing: TimingArgs,
    /// Number of rows that are made.
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = at_least_one)]
    rows: usize,
    /// Number of features of these rows.
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = at_least_one)]
    features: usize,
    /// Number of Gaussians that these rows are drawn from.
    #[arg(long, value_name = "N", default_value_t = CLUSTERS, value_parser = at_least_one)]
    clusters: usize,
    /// Number of directions in which these rows differ much. As many as --features: all alike.
    #[arg(long, value_name = "N", default_value_t = DIRECTIONS, value_parser = at_least_one)]
    directions: usize,
    /// Number of neighbours of each row.
    #[arg(long, value_name = "N", default_value_t = 90, value_parser = at_least_one)]
    neighbours: usize,
    /// How rows are compared.
    #[arg(long, value_enum, default_value_t)]
    metric: MetricArg,
    /// Share of the nearest rows that an approximate search must find, above 0 and at most 1. It is
    /// measured on 512 rows drawn at random.
    #[arg(long, value_name = "SHARE", default_value_t = 0.95, value_parser = at_most_one)]
    recall: f64,
    /// Search rows that stay in host memory, which take at most this many MiB of the device at a time.
    /// Default: rows are on the device.
    #[arg(long, value_name = "MIB", value_parser = at_least_one)]
    stretches: Option<usize>,
    /// Write what is computed on to this folder. The rows, as rows.npy, for
    /// `bins/peers/neighbours.py`.
    #[arg(long, value_name = "DIR")]
    dump: Option<PathBuf>,
}

/// One line of the table.
#[derive(Debug, Serialize)]
struct Row {
    n: usize,
    n_features: usize,
    clusters: usize,
    directions: usize,
    k: usize,
    wanted: f64,
    /// MiB of the device for rows of host memory.
    stretches: Option<usize>,
    recall: Recall,
    /// The share of all rows that a row was compared with.
    looked_at: f64,
    seconds: f64,
    seconds_min: f64,
    seconds_max: f64,
    device: String,
}

/// What is printed of a row.
const COLUMNS: &[Column<Row>] = &[
    Column("rows", 9, |row| row.n.to_string()),
    Column("cols", 5, |row| row.n_features.to_string()),
    Column("clusters", 8, |row| row.clusters.to_string()),
    Column("directions", 10, |row| row.directions.to_string()),
    Column("k", 5, |row| row.k.to_string()),
    Column("wanted", 7, |row| row.wanted.to_string()),
    Column("recall", 7, |row| format!("{:.4}", row.recall.mean)),
    Column("95 % interval", 15, |row| {
        let [low, high] = row.recall.interval;
        format!("{low:.4}-{high:.4}")
    }),
    Column("looked at", 9, |row| format!("{:.2} %", 100. * row.looked_at)),
    Column("median", 8, |row| format!("{:.3}", row.seconds)),
    Column("min", 8, |row| format!("{:.3}", row.seconds_min)),
    Column("max", 8, |row| format!("{:.3}", row.seconds_max)),
];

pub(super) fn run(args: &NeighboursArgs) -> Result<()> {
    let device = args.timing.common.open_device()?;
    let report = Report::new(args.timing.common.json);
    let place = if args.stretches.is_some() { "rows in host memory, results" } else { "rows and results" };
    report.line(&format!("approximate nearest neighbours, {place} on {}, s", describe(&device)))?;
    let mut rows =
        made([args.rows, args.features], args.clusters, args.directions, &device).context("the rows")?;
    if args.stretches.is_some() {
        rows = rows.to_device(&Device::Cpu)?;
    }
    if let Some(folder) = &args.dump {
        std::fs::create_dir_all(folder).with_context(|| format!("--dump {}", folder.display()))?;
        arrays::write_one(&folder.join("rows.npy"), &rows)?;
    }
    let mut last = None;
    let Seconds { median, min, max } = time(&device, args.timing.repeats, || {
        // The results before go first.
        last = None;
        let philox = Philox::new(SEED, 9);
        let (k, metric, recall) = (args.neighbours, args.metric.0, args.recall);
        let found = match args.stretches {
            None => knn_approximate(&rows, k, metric, recall, philox)?,
            Some(mib) => {
                let search = StreamedSearch { k, metric, recall, bytes: (mib as u64) << 20 };
                knn_streamed(&rows, &device, &search, philox)?
            }
        };
        last = Some((found.recall, found.looked_at));
        Ok(())
    })?;
    let (recall, looked_at) = last.context("there was no run")?;
    let mut table = Table::new(&report, COLUMNS)?;
    table.add(Row {
        n: args.rows,
        n_features: args.features,
        clusters: args.clusters,
        directions: args.directions.min(args.features),
        k: args.neighbours,
        wanted: args.recall,
        stretches: args.stretches,
        recall,
        looked_at,
        seconds: median,
        seconds_min: min,
        seconds_max: max,
        device: describe(&device),
    })?;
    table.finish()
}

/// Rows as those of `bench neighbours` are without options.
pub(super) fn mixture(n: usize, d: usize, device: &Device) -> Result<Tensor> {
    made([n, d], CLUSTERS, DIRECTIONS, device)
}

/// Rows `(c + z) B + noise`: `c` is the centre of the cluster, `z` normal, both in the strong
/// directions, which are the rows of `B`; without both where all directions are strong.
fn made([n, d]: [usize; 2], clusters: usize, directions: usize, device: &Device) -> Result<Tensor> {
    let directions = directions.min(d);
    let draw = |stream: u64, start: usize, rows: usize, width: usize| {
        normal((rows, width), device, Philox::new(SEED, stream).advanced(start * width))
    };
    let centres = (draw(0, 0, clusters, directions)? * CENTRES)?;
    let turn = (draw(1, 0, directions, d)? * (d as f64).powf(-0.5))?;
    let mut blocks = vec![];
    for start in (0..n).step_by(BLOCK) {
        let len = BLOCK.min(n - start);
        let of: Vec<u32> = (start..start + len).map(|i| (i % clusters) as u32).collect();
        let own = centres.index_select(&Tensor::new(of, device)?, 0)?;
        let within = (draw(2, start, len, directions)? + own)?;
        blocks.push(match directions < d {
            true => (within.matmul(&turn)? + (draw(3, start, len, d)? * NOISE)?)?,
            false => within,
        });
    }
    Ok(Tensor::cat(&blocks, 0)?)
}
