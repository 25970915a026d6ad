//! The command `neighbours`: the nearest rows of each row, as files.
use super::args::{NeighboursArgs, takes_centre};
use super::figures::words_of_recall;
use super::rows::Rows;
use super::streams;
use crate::report::{Outcome, Report, of_data, seconds};
use anyhow::{Context, Result, ensure};
use candle::{Device, Tensor};
use chandlery::Philox;
use chandlery::tsne::{Neighbours, Recall, TsneConfig};
use chandlery_datasets::whole::write_whole;
use chandlery_datasets::{Centre, count};
use chandlery_ops::core::free_memory;
use chandlery_ops::tsne::{ApproximateNeighbours, StreamedSearch, knn, knn_approximate, knn_streamed};
use npyz::{AutoSerialize, WriterBuilder};
use serde_json::json;
use std::path::Path;
use std::time::Instant;

/// Rows of a block of a file.
const BLOCK: usize = 16_384;

/// Writes the neighbours of each row.
pub fn neighbours(args: &NeighboursArgs) -> Result<Outcome> {
    let report = Report::new(args.common.json);
    let device = args.common.open_device()?;
    let centre = takes_centre(args.metric.0, args.prepare.steps()).then(Centre::default);
    let k = args.neighbours;
    let config = TsneConfig {
        neighbours: Some(k),
        metric: args.metric.0,
        approximate: args.search.approximate,
        recall: args.search.recall,
        ..TsneConfig::default()
    };
    let rows = Rows::open_for(&config, &args.data, args.split, centre.as_ref(), &device)?;
    let read = rows.read(&rows.preparation(args.prepare.steps(), args.seed)?)?;
    let (n, n_features) = read.dims2()?;
    ensure!(k < n, "--neighbours: must be below the number of rows, {n}, got {k}");
    let fits = read.device().same_device(&device);
    check_memory(&config, [n, if fits { n_features } else { 0 }], &device)?;
    std::fs::create_dir_all(&args.out).with_context(|| format!("--out {}", args.out.display()))?;
    let started = Instant::now();
    let (found, recall) = of_data(&rows.name, search(&config, &read, &device, args.seed))?;
    device.synchronize()?;
    let took = started.elapsed().as_secs_f64();
    write(&args.out.join("indices.npy"), &found.indices, |row: u32| i64::from(row))?;
    write(&args.out.join("distances.npy"), &found.distances, |distance: f32| distance)?;
    report.line(&format!(
        "the {k} nearest rows of each of {}, in {}: nearest rows found {} ({})",
        count(n, "row"),
        args.out.display(),
        words_of_recall(&recall),
        seconds(took)
    ))?;
    report.finish(json!({
        "data": rows.name,
        "out": args.out,
        "n_samples": n,
        "n_features": n_features,
        "neighbours": k,
        "metric": args.metric,
        "search_recall": recall,
        "seconds": took,
    }))?;
    Ok(Outcome::Done)
}

fn search(config: &TsneConfig, read: &Tensor, device: &Device, seed: u64) -> Result<(Neighbours, Recall)> {
    let (n, k, metric) = (read.dim(0)?, config.neighbours_of(read.dim(0)?), config.metric);
    let (recall, philox) =
        (if config.is_approximate(n) { config.recall } else { 1. }, Philox::new(seed, streams::START));
    let found = match read.device().same_device(device) {
        true if recall < 1. => knn_approximate(read, k, metric, recall, philox)?,
        true => ApproximateNeighbours::exact(knn(read, k, metric)?)?,
        false => {
            let bytes = config.bytes_for_stretches(n, device)?;
            knn_streamed(read, device, &StreamedSearch { k, metric, recall, bytes }, philox)?
        }
    };
    Ok((found.neighbours, found.recall))
}

/// Refuses a search that does not fit, and says what would.
fn check_memory(config: &TsneConfig, [n, n_features]: [usize; 2], device: &Device) -> Result<()> {
    let Some(free) = free_memory(device)? else { return Ok(()) };
    let needs = |n: usize| config.memory(n, n_features, device.is_cuda()).neighbours;
    if needs(n) <= free {
        return Ok(());
    }
    let (mut fits, mut too_many) = (0, n);
    while too_many - fits > 1 {
        let middle = usize::midpoint(fits, too_many);
        if needs(middle) <= free { fits = middle } else { too_many = middle }
    }
    let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
    anyhow::bail!(
        "--data: the neighbours of {} of {n_features} values take {:.2} GiB beside the rows, and {:.2} GiB are free; take fewer --neighbours, \
         or at most {} by --max-rows",
        count(n, "row"),
        gib(needs(n)),
        gib(free),
        count(fits, "row")
    )
}

/// Writes a matrix, each number as `of` makes it.
fn write<T: candle::WithDType, N: AutoSerialize>(path: &Path, t: &Tensor, of: impl Fn(T) -> N) -> Result<()> {
    let (n, k) = t.dims2()?;
    write_whole(path, |file| -> Result<()> {
        let shape = [n as u64, k as u64];
        let mut npy = npyz::WriteOptions::new().default_dtype().shape(&shape).writer(file).begin_nd()?;
        for first in (0..n).step_by(BLOCK) {
            let block = t.narrow(0, first, BLOCK.min(n - first))?.flatten_all()?.to_vec1::<T>()?;
            npy.extend(block.into_iter().map(&of))?;
        }
        Ok(npy.finish()?)
    })
}
