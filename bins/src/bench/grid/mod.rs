//! A step of each family over widths, minibatches and precisions, beside a peer's in the same call:
//! where ours is behind is marked in the table and red in the picture.
mod family;
mod heat_map;
pub(super) mod peer;

use super::common::TimingArgs;
use super::paper::write;
use super::table::{Column, Table, or_dash};
use super::timing::{Seconds, slices_of_one};
use crate::device::describe;
use crate::options::{above_zero, at_least_one};
use crate::precision::RbmPrecision;
use crate::report::{Report, named};
use anyhow::{Context, Result, anyhow, bail, ensure};
use candle::Device;
use chandlery::pictures::write_png;
use chandlery::rbm::WeightStorage;
use chandlery_ops::Precision;
use clap::Args;
use family::{Cell, Family};
use peer::{Answer, Peer};
use serde::Serialize;
use serde_json::{Value, json};
use std::path::PathBuf;

/// Options of `bench grid`.
#[derive(Debug, Args)]
pub struct GridArgs {
    #[command(flatten)]
    timing: TimingArgs,
    /// What is timed. A step of a trainer, or a call.
    #[arg(long, value_enum)]
    family: Family,
    /// Sizes, several separated by commas. Inputs x units, or one number for both; for
    /// convolutions height x width x channels of an image, filters, their side. Default: those of
    /// the family, with odd ones.
    #[arg(long, value_name = "SIZE,…", value_delimiter = ',')]
    widths: Vec<String>,
    /// Rows of a minibatch. Several are separated by commas; images of a convolution, signals of a
    /// code.
    #[arg(
        long,
        value_name = "ROWS,…",
        value_delimiter = ',',
        default_value = "1,8,32,64,100,128,192,193,256,512,1000,1024,4096",
        value_parser = at_least_one
    )]
    minibatches: Vec<usize>,
    /// Precision of the matrix products; f32, tf32 or bf16, several separated by commas. For an RBM
    /// also bf16-stochastic: weights of bf16 alone, as a peer in bf16 has them.
    #[arg(long, value_name = "PRECISION,…", value_delimiter = ',', default_value = "f32")]
    precision: Vec<RbmPrecision>,
    /// Python script to run in addition to our own steps. It takes turns with them: for each cell it
    /// reads a line of JSON and prints one, as `bins/peers/grid.py` does. Default: none.
    #[arg(long, value_name = "FILE")]
    peer: Option<PathBuf>,
    /// Milliseconds of a slice, above 0. A step is timed by --repeats of them, so that a grid takes
    /// minutes.
    #[arg(long, value_name = "MS", default_value_t = 50., value_parser = above_zero)]
    slice: f64,
    /// Most arithmetic of a step in GFLOP, above 0; cells above it are left out. Default: 20 on a
    /// CPU, 20000 on a GPU.
    #[arg(long, value_name = "GFLOP", value_parser = above_zero)]
    most: Option<f64>,
    /// Folder for what is made. The rows as FAMILY.json, the picture as FAMILY.png.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

/// A cell, as it was measured.
#[derive(Debug, Clone, Serialize)]
struct Row {
    family: &'static str,
    size: String,
    batch: usize,
    precision: &'static str,
    /// Microseconds of a step: the median of the slices, the fastest and the slowest.
    us: f64,
    us_min: f64,
    us_max: f64,
    /// FLOP/s of the step's products.
    gflops: f64,
    /// The library that the peer measured, or why it did not.
    peer: Option<String>,
    peer_us: Option<f64>,
    peer_us_min: Option<f64>,
    peer_us_max: Option<f64>,
    /// The peer's median over ours.
    ratio: Option<f64>,
    device: String,
}

impl Row {
    /// Whether the peer is faster.
    fn is_behind(&self) -> bool {
        self.ratio.is_some_and(|ratio| ratio < 1.)
    }
}

/// What is printed of a row.
const COLUMNS: &[Column<Row>] = &[
    Column("size", -18, |row| row.size.clone()),
    Column("batch", 5, |row| row.batch.to_string()),
    Column("type", -5, |row| row.precision.to_owned()),
    Column("median us", 11, |row| format!("{:.1}", row.us)),
    Column("noise", 7, |row| noise(row.us, row.us_min, row.us_max)),
    Column("GFLOP/s", 8, |row| format!("{:.1}", row.gflops)),
    Column("peer us", 11, |row| or_dash(row.peer_us, 1)),
    Column("noise", 7, |row| match (row.peer_us, row.peer_us_min, row.peer_us_max) {
        (Some(us), Some(min), Some(max)) => noise(us, min, max),
        _ => "-".to_owned(),
    }),
    Column("ratio", 6, |row| or_dash(row.ratio, 2)),
    Column("", -6, |row| if row.is_behind() { "behind" } else { "" }.to_owned()),
    Column("peer", -1, |row| row.peer.clone().unwrap_or_default()),
];

/// How far the slices lie apart.
fn noise(median: f64, min: f64, max: f64) -> String {
    format!("±{:.0} %", 50. * (max - min) / median)
}

pub(super) fn run(args: &GridArgs) -> Result<()> {
    let device = args.timing.common.open_device()?;
    let family = args.family;
    let most = args.most.unwrap_or(if device.is_cpu() { 20. } else { 20_000. });
    let (cells, left_out) = cells(args, most)?;
    std::fs::create_dir_all(&args.out).with_context(|| format!("--out {}", args.out.display()))?;
    let mut peer = args.peer.as_deref().map(|script| Peer::start(script, &device)).transpose()?;
    let report = Report::new(args.timing.common.json);
    report.line(&format!("{}, microseconds, on {}", family.what(), describe(&device)))?;
    if left_out > 0 {
        report.line(&format!("{left_out} cells of more than {most} GFLOP a step are left out (--most)"))?;
    }
    let mut table = Table::new(&report, COLUMNS)?;
    for cell in &cells {
        table.add(measure(args, &device, cell, peer.as_mut()).with_context(|| cell.to_string())?)?;
    }
    let ratios: Vec<f64> = table.rows().iter().filter_map(|row| row.ratio).collect();
    if !ratios.is_empty() {
        let behind = ratios.iter().filter(|&&ratio| ratio < 1.).count();
        let mean = (ratios.iter().map(|ratio| ratio.ln()).sum::<f64>() / ratios.len() as f64).exp();
        report.line(&format!(
            "{behind} of {} cells are behind; geometric mean of the ratios {mean:.2}",
            ratios.len()
        ))?;
        let picture = args.out.join(format!("{}.png", family.name()));
        write_png(&heat_map::draw(family.what(), table.rows())?, &picture)?;
        report.line(&format!("ratios as a picture: {}", named(&picture)))?;
    }
    let path = args.out.join(format!("{}.json", family.name()));
    write(&path, &format!("{}\n", serde_json::to_string_pretty(table.rows())?))?;
    table.finish()
}

/// The cells of a grid, minibatch after minibatch of each size, and how many are too large.
fn cells(args: &GridArgs, most: f64) -> Result<(Vec<Cell>, usize)> {
    let usual = args.family.widths();
    let names: Vec<&str> = match args.widths.is_empty() {
        true => usual.to_vec(),
        false => args.widths.iter().map(String::as_str).collect(),
    };
    let mut cells = Vec::new();
    for &precision in &args.precision {
        for name in &names {
            let shape = args.family.shape(name).map_err(|why| anyhow!("--widths: {why}"))?;
            for &batch in &args.minibatches {
                cells.push(Cell { family: args.family, shape, batch, precision });
            }
        }
    }
    let in_f32 = matches!(args.family, Family::Convolution | Family::Lasso | Family::Pursuit);
    if let Some(other) = args.precision.iter().find(|of| in_f32 && of.products != Precision::F32) {
        bail!("--precision: {} computes in f32, got {}", args.family.name(), other.name())
    }
    let is_stored = |of: &&RbmPrecision| of.weights != WeightStorage::F32;
    if let Some(other) = args.precision.iter().find(is_stored).filter(|_| args.family != Family::Rbm) {
        bail!("--precision: {} is for an rbm, got {}", other.name(), args.family.name())
    }
    let all = cells.len();
    cells.retain(|cell| cell.flop() <= 1e9 * most);
    ensure!(!cells.is_empty(), "--most: no cell has at most {most} GFLOP a step; ask for smaller ones");
    let left_out = all - cells.len();
    Ok((cells, left_out))
}

/// What a peer is asked: to time a cell by so many slices of `slice` seconds.
fn question(cell: &Cell, penalty: Option<f64>, repeats: u32, slice: f64) -> Value {
    json!({
        "family": cell.family.name(),
        "size": cell.shape.to_string(),
        "batch": cell.batch,
        "precision": cell.precision.products.name(),
        "penalty": penalty,
        "repeats": repeats,
        "slice": slice,
    })
}

/// Times a cell: half of our slices, the peer's, and the other half, so that what slows the machine
/// down for a while slows down both.
fn measure(args: &GridArgs, device: &Device, cell: &Cell, peer: Option<&mut Peer>) -> Result<Row> {
    let mut work = cell.work(device)?;
    let (repeats, slice) = (args.timing.repeats, args.slice / 1e3);
    let mut half = |repeats| slices_of_one(device, repeats, (slice, 1), &mut work.steps);
    let mut ours = half(repeats.div_ceil(2))?;
    let answer = peer.map(|peer| peer.put(question(cell, work.penalty, repeats, slice))).transpose()?;
    if repeats > 1 {
        ours.extend(half(repeats / 2)?);
    }
    let ours = Seconds::of(ours).times(1e6);
    let (peer, theirs) = match answer {
        Some(Answer::Measured { peer, seconds }) => (Some(peer), Some(Seconds::of(seconds).times(1e6))),
        Some(Answer::Missing { missing }) => (Some(missing), None),
        None => (None, None),
    };
    Ok(Row {
        family: cell.family.name(),
        size: cell.shape.to_string(),
        batch: cell.batch,
        precision: cell.precision.name(),
        us: ours.median,
        us_min: ours.min,
        us_max: ours.max,
        gflops: cell.flop() / ours.median / 1e3,
        peer,
        peer_us: theirs.map(|of| of.median),
        peer_us_min: theirs.map(|of| of.min),
        peer_us_max: theirs.map(|of| of.max),
        ratio: theirs.map(|of| of.median / ours.median),
        device: describe(device),
    })
}
