//! Ranks that compute together: collectives by size, and each family on one rank and on several.
mod families;

use super::common::TimingArgs;
use super::table::{Column, Table, or_dash};
use crate::device;
use crate::numbers::at_least_one;
use crate::report::Report;
use anyhow::{Context, Result, anyhow};
use candle::{DType, Device, Tensor};
use chandlery_ops::{Group, Precision};
use clap::{Args, ValueEnum};
use families::Case;
use serde::Serialize;
use std::time::Instant;

/// Bytes of the tensors that are summed and gathered.
const BYTES: [usize; 9] =
    [4_000, 64_000, 1_000_000, 1_800_000, 4_000_000, 16_000_000, 74_000_000, 147_000_000, 600_000_000];
/// Options of `bench group`.
#[derive(Debug, Args)]
pub struct GroupArgs {
    #[command(flatten)]
    timing: TimingArgs,
    /// Ranks: GPUs from that of --device on, or threads on the CPU.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = at_least_one)]
    ranks: usize,
    /// Parts to time, several separated by commas. Default: all.
    #[arg(long, value_name = "PART,…", value_enum, value_delimiter = ',')]
    parts: Vec<What>,
    /// Largest tensor of a collective, in bytes.
    #[arg(long, value_name = "BYTES", default_value_t = 600_000_000)]
    most_bytes: usize,
    /// Precision of the matrix products; f32, tf32 or bf16.
    #[arg(long, value_name = "PRECISION", default_value = "tf32")]
    precision: Precision,
    /// Latents of the sparse autoencoder whose latents are divided over the ranks: some 18 KB each.
    #[arg(long, value_name = "N", default_value_t = 262_144, value_parser = at_least_one)]
    latents_in_all: usize,
    /// Time all ranks alone, without the one that a gain is over: for what fits none.
    #[arg(long)]
    only_together: bool,
    /// Calls or steps of one timed run.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = at_least_one)]
    calls: usize,
}

/// Parts of `bench group`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum What {
    /// Sums, scattered sums and gathers by size.
    Collectives,
    /// Steps of a network of 9.6 million weights.
    Network,
    /// Steps of restricted Boltzmann machines, of divided units and of divided rows.
    Rbm,
    /// Steps of the up-down algorithm.
    UpDown,
    /// Steps of layers of overlapping patches, and of a network of them.
    Patches,
    /// Steps of a convolutional restricted Boltzmann machine.
    ConvRbm,
    /// Steps of a denoising autoencoder.
    Dae,
    /// Steps of a sparse autoencoder with latents.
    Latents,
    /// Steps of one whose latents are divided over the ranks.
    DividedLatents,
    /// Evaluations of a sparse autoencoder over all rows.
    SparseAutoencoder,
    /// Minibatches of sparse coding.
    SparseCoding,
    /// Minibatches of online dictionary learning.
    Dictionary,
    /// Codes of all rows by a pursuit.
    Pursuit,
    /// Codes of all rows by the layers of a network.
    Encode,
    /// Annealed importance sampling of an RBM.
    Ais,
    /// The nearest neighbours of queries among rows that all ranks have.
    Neighbours,
    /// The layout of all rows by t-SNE: the search, and iterations.
    Tsne,
}

/// One line of the table of collectives.
#[derive(Debug, Serialize)]
struct Exchange {
    collective: &'static str,
    bytes: usize,
    microseconds: f64,
    microseconds_min: f64,
    microseconds_max: f64,
    /// Bytes a second that cross each rank's link, by the fewest that must.
    bus_gigabytes: f64,
}

const EXCHANGES: &[Column<Exchange>] = &[
    Column("collective", -15, |row| row.collective.to_owned()),
    Column("MB", 9, |row| format!("{:.3}", row.bytes as f64 / 1e6)),
    Column("us", 10, |row| format!("{:.1}", row.microseconds)),
    Column("min", 10, |row| format!("{:.1}", row.microseconds_min)),
    Column("max", 10, |row| format!("{:.1}", row.microseconds_max)),
    Column("bus GB/s", 9, |row| format!("{:.1}", row.bus_gigabytes)),
];

/// One line of the table of families.
#[derive(Debug, Serialize)]
struct Steps {
    family: &'static str,
    size: &'static str,
    scaling: &'static str,
    ranks: usize,
    /// Rows of a minibatch, those of all ranks.
    batch: usize,
    milliseconds: f64,
    milliseconds_min: f64,
    milliseconds_max: f64,
    rows_per_second: f64,
    /// Rows a second over those of one rank (strong), and over as many times those of one rank
    /// (weak).
    gain: Option<f64>,
}

const STEPS: &[Column<Steps>] = &[
    Column("family", -18, |row| row.family.to_owned()),
    Column("size", -16, |row| row.size.to_owned()),
    Column("scaling", -8, |row| row.scaling.to_owned()),
    Column("ranks", 5, |row| row.ranks.to_string()),
    Column("rows", 6, |row| row.batch.to_string()),
    Column("ms a step", 10, |row| format!("{:.3}", row.milliseconds)),
    Column("min", 8, |row| format!("{:.3}", row.milliseconds_min)),
    Column("max", 8, |row| format!("{:.3}", row.milliseconds_max)),
    Column("rows/s", 11, |row| format!("{:.0}", row.rows_per_second)),
    Column("gain", 6, |row| or_dash(row.gain, 2)),
];

#[derive(Debug, Serialize)]
struct Tables {
    ranks: usize,
    device: String,
    exchanges: Vec<Exchange>,
    steps: Vec<Steps>,
}

pub(super) fn run(args: &GroupArgs) -> Result<()> {
    let first = args.timing.common.open_device()?;
    let devices = devices(&first, args.ranks)?;
    let report = Report::new(args.timing.common.json);
    let asked = |what| args.parts.is_empty() || args.parts.contains(&what);
    let kind = device::describe(&first);
    report.line(&format!("{} ranks, the first on {kind}", args.ranks))?;
    let mut tables = Tables { ranks: args.ranks, device: kind, exchanges: vec![], steps: vec![] };
    if asked(What::Collectives) {
        tables.exchanges = exchanges(args, &devices, &report)?;
    }
    let cases: Vec<_> = families::ALL.iter().filter(|case| asked(case.what)).collect();
    if !cases.is_empty() {
        report.line(&format!("products in {} where a family has a choice", args.precision.name()))?;
        tables.steps = steps(args, &cases, &devices, &report)?;
    }
    report.finish_as_is(&tables)
}

/// A device for each rank.
fn devices(first: &Device, ranks: usize) -> Result<Vec<Device>> {
    let ordinal = match first.location() {
        candle::DeviceLocation::Cuda { gpu_id } => gpu_id,
        _ => return Ok(vec![first.clone(); ranks]),
    };
    let rest = (1..ranks).map(|i| {
        chandlery_ops::core::cuda_device(ordinal + i)
            .with_context(|| format!("--ranks {ranks}: the GPU of rank {i} cannot be opened"))
    });
    [Ok(first.clone())].into_iter().chain(rest).collect()
}

/// What each rank makes; the error of the lowest rank that has one.
fn each<T: Send>(
    devices: &[Device],
    of_rank: impl Fn(&Group, &Device) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let seats = match devices {
        [_] => vec![Group::single()],
        [Device::Cpu, ..] => Group::threads(devices.len()),
        _ => Group::on_gpus(devices)?,
    };
    let made = Group::on_threads(seats, |group| of_rank(group, &devices[group.rank()]));
    let of_rank = |(rank, made): (usize, Result<T>)| made.map_err(|err| anyhow!("rank {rank}: {err:#}"));
    made.into_iter().enumerate().map(of_rank).collect()
}

/// Median, least and most seconds of one of `calls` calls, of `repeats` timed runs after an untimed one.
/// All ranks make as many.
fn timed(args: &GroupArgs, device: &Device, call: impl FnMut() -> Result<()>) -> Result<[f64; 3]> {
    timed_by(args, args.calls, device, call)
}

/// The same of another number of calls.
fn timed_by(
    args: &GroupArgs,
    calls: usize,
    device: &Device,
    mut call: impl FnMut() -> Result<()>,
) -> Result<[f64; 3]> {
    let mut seconds = vec![];
    for _ in 0..=args.timing.repeats {
        device.synchronize()?;
        let began = Instant::now();
        (0..calls).try_for_each(|_| call())?;
        device.synchronize()?;
        seconds.push(began.elapsed().as_secs_f64() / calls as f64);
    }
    seconds.remove(0);
    seconds.sort_by(f64::total_cmp);
    let at = |i: usize| seconds.get(i).copied().unwrap_or(f64::NAN);
    Ok([at(seconds.len() / 2), at(0), at(seconds.len() - 1)])
}

fn exchanges(args: &GroupArgs, devices: &[Device], report: &Report) -> Result<Vec<Exchange>> {
    let world = devices.len();
    let link = (world - 1) as f64 / world as f64;
    let mut table = Table::new(report, EXCHANGES)?;
    for bytes in BYTES.into_iter().filter(|&bytes| bytes <= args.most_bytes) {
        let n = (bytes / size_of::<f32>()).next_multiple_of(world);
        let of_ranks = each(devices, |group, device| {
            let all = Tensor::zeros(n, DType::F32, device)?;
            let part = Tensor::zeros(n / world, DType::F32, device)?;
            Ok([
                timed(args, device, || Ok(group.all_reduce_(&all)?))?,
                timed(args, device, || Ok(group.reduce_scatter_(&part, &all)?))?,
                timed(args, device, || Ok(group.all_gather_(&all, &part)?))?,
            ])
        })?;
        let names = [("all-reduce", 2. * link), ("reduce-scatter", link), ("all-gather", link)];
        for ((collective, share), seconds) in
            names.into_iter().zip(of_ranks.into_iter().next().unwrap_or_default())
        {
            let [microseconds, microseconds_min, microseconds_max] = seconds.map(|s| 1e6 * s);
            let bus_gigabytes = share * (4 * n) as f64 / microseconds / 1e3;
            let bytes = 4 * n;
            table.add(Exchange {
                collective,
                bytes,
                microseconds,
                microseconds_min,
                microseconds_max,
                bus_gigabytes,
            })?;
        }
    }
    Ok(table.into_rows())
}

fn steps(args: &GroupArgs, cases: &[&Case], devices: &[Device], report: &Report) -> Result<Vec<Steps>> {
    let world = devices.len();
    let mut table = Table::new(report, STEPS)?;
    for Case { family, size, rows, is_weak, most_ranks, seconds, .. } in cases {
        if world > *most_ranks {
            report.note(&format!("{family} {size}: left out, since it has parts for {most_ranks} ranks"));
            continue;
        }
        let mut alone = None;
        let of_all = if *is_weak { rows * world } else { *rows };
        for (devices, batch) in [(&devices[..1], *rows), (devices, of_all)] {
            let ranks = devices.len();
            if ranks == 1 && (alone.is_some() || args.only_together && world > 1) {
                continue;
            }
            let made = each(devices, |group, device| seconds(args, group, device, batch));
            let made = made.with_context(|| format!("{family} {size} on {ranks} ranks"))?;
            let [median, least, most] = made.into_iter().next().unwrap_or([f64::NAN; 3]);
            let rows_per_second = batch as f64 / median;
            let ideal = if *is_weak { ranks as f64 } else { 1. };
            let gain = alone.map(|alone: f64| rows_per_second / alone / ideal);
            alone = alone.or(Some(rows_per_second));
            let [milliseconds, milliseconds_min, milliseconds_max] = [median, least, most].map(|s| 1e3 * s);
            let scaling = if *is_weak { "weak" } else { "strong" };
            table.add(Steps {
                family,
                size,
                scaling,
                ranks,
                batch,
                milliseconds,
                milliseconds_min,
                milliseconds_max,
                rows_per_second,
                gain,
            })?;
        }
    }
    Ok(table.into_rows())
}
