//! The commands `encode`, `evaluate` and `reconstruct`: what one does with a model after training.
use super::args::{EvaluateArgs, NoisyRowsArgs, ReconstructArgs};
use super::draw;
use super::measure::{Errors, Noise};
use super::saved;
use crate::args::used::{EncodeArgs, LayerChoice};
use crate::features::{Encoding, report_beside};
use crate::ranks;
use crate::report::{Outcome, Report};
use crate::rows::{Rows, agree};
use crate::run_folder::check_writable;
use crate::session::info::data_and_settings;
use anyhow::{Context, Result, anyhow, bail, ensure};
use candle::Device;
use chandlery::Layered;
use chandlery::dae::StackedDae;
use chandlery::pictures::can_draw;
use chandlery_datasets::{Split, count};
use serde::Deserialize;
use serde_json::json;
use std::path::Path;

/// Writes features of every row of a split.
pub fn encode(args: &EncodeArgs) -> Result<Outcome> {
    let report = report_beside(args.of.common.json, &args.out)?;
    let (ranks, device) = ranks::join(&args.ranks, &args.of.common)?;
    let stack = saved::load(&args.of.model.model, &device)?;
    let layers = &stack.config().layers;
    let (first, layer) = match args.layer {
        None => (layers.len(), layers.len()),
        Some(LayerChoice::One(layer)) => (layer, layer),
        Some(LayerChoice::All) => (1, layers.len()),
    };
    ensure!(
        layer <= layers.len(),
        "--layer: must be between 1 and {} for this model, got {layer}",
        layers.len()
    );
    let rows = args.of.open()?;
    let encoding = Encoding {
        out: &args.out,
        ranks: &ranks,
        rows: &rows,
        reads: stack.config().into(),
        layers: (first..=layer, layers.len()),
        width: layers[first - 1..layer].iter().map(|layer| layer.n_hidden).sum(),
    };
    encoding.write(&report, &device, |rows, layer| stack.features(rows, layer))
}

/// A model, rows to measure it on, and their noise.
pub(super) struct Task {
    pub device: Device,
    pub stack: StackedDae,
    pub data: String,
    pub split: Split,
    pub noise: Noise,
}

impl Task {
    pub fn open(args: &NoisyRowsArgs, device: Device) -> Result<Self> {
        let stack = saved::load(&args.used.model.model, &device)?;
        let noise = noise_of(args)?;
        let Rows { name: data, split, .. } = args.used.open()?;
        Ok(Self { device, stack, data, split, noise })
    }
}

/// The noise that is asked for; what is not said is that of the run, of its lowest layer.
fn noise_of(args: &NoisyRowsArgs) -> Result<Noise> {
    #[derive(Deserialize)]
    struct OfRun {
        seed: u64,
        #[serde(default)]
        corruption: Vec<String>,
    }
    let of_run = match data_and_settings::<OfRun>(Path::new(&args.used.model.model)) {
        // A run is not needed where all is said.
        Err(_) if args.used.data.data.is_some() => None,
        run => run?.map(|(_, settings)| settings),
    };
    let (seed, of_layers) = of_run.map_or((0, Vec::new()), |run| (run.seed, run.corruption));
    let name = args.corruption.as_deref().or(of_layers.first().map(String::as_str));
    let corruption = name.unwrap_or("salt-and-pepper:0.3");
    let corruption = corruption.parse().map_err(|err| anyhow!("--corruption: {err}"))?;
    Ok(Noise { corruption, seed: args.seed.unwrap_or(seed) })
}

/// Prints the errors of reconstructions.
pub fn evaluate(args: &EvaluateArgs) -> Result<Outcome> {
    let report = Report::new(args.of.used.common.json);
    let (ranks, device) = ranks::join(&args.ranks, &args.of.used.common)?;
    let Task { device, stack, data, split, noise } = Task::open(&args.of, device)?;
    agree(&ranks, [&split])?;
    let errors = Errors::of(&ranks, &stack, &split, noise, &device)?;
    ranks.first_goes_on();
    let rows = format!("{} of {data}", count(errors.n_samples, "row"));
    report.line(&errors.words(&rows, noise.corruption))?;
    report.line(&format!(
        "a row and its reconstruction from noise: squared distance {:.4}, distance {:.4}",
        errors.squared_error, errors.distance
    ))?;
    report.finish(json!({
        "model": args.of.used.model.model,
        "data": data,
        "layers": saved::sizes(stack.config()),
        "corruption": noise.corruption.to_string(),
        "n_samples": errors.n_samples,
        "rmse_of_noise": errors.rmse_of_noise,
        "rmse_clean": errors.rmse_clean,
        "rmse": errors.rmse,
        "squared_error": errors.squared_error,
        "distance": errors.distance,
    }))?;
    Ok(Outcome::Done)
}

/// Draws rows, the same corrupted, and their reconstructions.
pub fn reconstruct(args: &ReconstructArgs) -> Result<Outcome> {
    let report = Report::new(args.of.used.common.json);
    check_writable(&args.picture.out).context("--out")?;
    let Task { device, stack, data, split, noise } =
        Task::open(&args.of, args.of.used.common.open_device()?)?;
    let shape = stack.config().image.or(split.image).filter(can_draw);
    let Some(shape) = shape.filter(|shape| shape.n_features() == split.n_features()) else {
        bail!("--data: rows must be images to be drawn, got {} of {data}", count(split.n_features(), "value"))
    };
    let n = draw::reconstructions(&stack, &split, noise, args.picture.n, shape, &device, &args.picture.out)?;
    report.line(&format!(
        "{} of {data} with {} and their reconstructions in {}",
        count(n, "row"),
        noise.corruption,
        args.picture.out.display()
    ))?;
    report.finish(json!({
        "out": args.picture.out,
        "data": data,
        "corruption": noise.corruption.to_string(),
        "n_samples": n,
    }))?;
    Ok(Outcome::Done)
}
