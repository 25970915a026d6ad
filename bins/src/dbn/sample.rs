//! The command `sample`: rows that a network draws, as a picture.
use super::args::SampleArgs;
use super::draw::{SAMPLES, draw_samples};
use super::saved::Saved;
use super::streams;
use super::up_down::measure;
use crate::progress::Spinner;
use crate::reconstructions::{COLUMNS, drawable};
use crate::report::{Outcome, Report};
use crate::rows;
use crate::run_folder::check_writable;
use anyhow::{Context, Result, ensure};
use candle::{Device, Tensor};
use chandlery::Philox;
use chandlery::dbn::Dbn;
use chandlery::labelled::LabelledDbn;
use chandlery::pictures::{Shades, mosaic, tile_zoom, write_png};
use chandlery_datasets::count;
use chandlery_datasets::{DataOptions, Split};
use serde_json::json;

/// Samples of one class in a picture.
const OF_ONE_CLASS: usize = 100;

/// The command `sample`.
pub fn sample(args: &SampleArgs) -> Result<Outcome> {
    check_writable(&args.out).context("--out")?;
    let device = args.common.open_device()?;
    match Saved::load(&args.model.model, &device)? {
        Saved::Plain(dbn) => sample_plain(args, &dbn),
        Saved::Labelled(dbn) => sample_labelled(args, &dbn, &device),
        other => Err(other.refused(&args.model.model, "sample")),
    }
}

/// Of a network without labels.
fn sample_plain(args: &SampleArgs, dbn: &Dbn) -> Result<Outcome> {
    let report = Report::new(args.common.json);
    ensure!(
        args.label.is_none(),
        "--label: {0} has no label units; make a network that has with `dbn up-down {0}`",
        args.model.model
    );
    let shape = args.image.or(drawable(dbn.config())).context(
        "this network's rows have no image shape that can be drawn; give one with --image HEIGHTxWIDTH",
    )?;
    let spinner = Spinner::new("sampling");
    let (n, inputs) = (args.n.unwrap_or(SAMPLES.0), dbn.config().n_inputs());
    let start = args.start_from.as_deref().map(|start| start_rows(start, inputs, n)).transpose()?;
    let n = start.as_ref().map_or(n, Split::n_samples);
    draw_samples(dbn, shape, n, args.steps, start.as_ref(), args.seed, &args.out)?;
    drop(spinner);
    report.line(&format!("{} in {}", count(n, "sample"), args.out.display()))?;
    report.finish(json!({
        "out": args.out,
        "n": n,
        "steps": args.steps,
        "start_from": args.start_from,
        "seed": args.seed,
    }))?;
    Ok(Outcome::Done)
}

/// Of a network with labels.
fn sample_labelled(args: &SampleArgs, dbn: &LabelledDbn, device: &Device) -> Result<Outcome> {
    let report = Report::new(args.common.json);
    let shape = args.image.or(drawable(dbn.config())).context(
        "this network's rows have no image shape that can be drawn; give one with --image HEIGHTxWIDTH",
    )?;
    let n_classes = dbn.config().n_classes;
    let (labels, columns) = match args.label {
        Some(label) => {
            ensure!(
                (label as usize) < n_classes,
                "--label: must be below the network's {n_classes} classes, got {label}"
            );
            (Tensor::full(label, args.n.unwrap_or(OF_ONE_CLASS), device)?, COLUMNS)
        }
        None => {
            let n = args.n.unwrap_or(measure::SAMPLES.0);
            (measure::each_class(dbn, n)?, n)
        }
    };
    let spinner = Spinner::new("sampling");
    let philox = Philox::new(args.seed, streams::SAMPLES);
    let n = labels.elem_count();
    let samples = match args.start_from.as_deref() {
        None => dbn.sample(&labels, args.steps, philox)?,
        Some(start) => {
            let split = start_rows(start, dbn.config().n_inputs(), n)?;
            ensure!(
                split.n_samples() == n,
                "--start-from {start}: there must be {}, one for each sample, got {}; lower --n",
                count(n, "row"),
                split.n_samples()
            );
            let rows = rows::all(&split, dbn.config(), device)?;
            dbn.sample_from(&rows, &labels, args.steps, philox)?
        }
    };
    let samples = dbn.config().preparation.inverse(&samples)?;
    write_png(&mosaic(&samples, shape, columns, Shades::Unit, tile_zoom(shape))?, &args.out)?;
    drop(spinner);
    let of = args.label.map_or(count(n_classes, "class"), |label| format!("class {label}"));
    report.line(&format!("{} of {of} in {}", count(n, "sample"), args.out.display()))?;
    report.finish(json!({
        "out": args.out,
        "n": n,
        "label": args.label,
        "steps": args.steps,
        "start_from": args.start_from,
        "seed": args.seed,
    }))?;
    Ok(Outcome::Done)
}

/// Up to `n` rows of a data set, of its test split where it has one, to begin chains at.
pub fn start_rows(data: &str, want: usize, n: usize) -> Result<Split> {
    let dataset = chandlery_datasets::open(data, &DataOptions::default())
        .with_context(|| format!("--start-from {data}"))?;
    ensure!(
        dataset.n_features() == want,
        "--start-from {data}: rows must have the network's {want} inputs, got {}",
        dataset.n_features()
    );
    let split = dataset.test.unwrap_or(dataset.train);
    Ok(split.take(n)?)
}
