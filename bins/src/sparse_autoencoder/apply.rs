//! The commands `encode`, `evaluate` and `reconstruct`: what one does with a model after training.
use super::args::{CostArgs, EvaluateArgs, Settings};
use super::train::{KIND, USUAL};
use crate::patch_rows::{self, EncodeArgs, ReconstructArgs, Reconstructing, Rows, UseArgs};
use crate::report::{Outcome, Report};
use crate::run_folder::check_writable;
use crate::session::info::check_finished;
use anyhow::{Context, Result};
use candle::{DType, Device, Module, Tensor};
use chandlery::sparse_autoencoder::{Cost, SparseAutoencoder};
use serde_json::json;

/// A feature that is less active than this, on average, counts as dead.
const DEAD: f64 = 1e-3;

fn open(args: &UseArgs) -> Result<(Device, SparseAutoencoder, Rows)> {
    let device = args.common.open_device()?;
    check_finished(&args.model.model)?;
    let model = SparseAutoencoder::from_pretrained(&args.model.model, &device)?;
    let rows = Rows::to_use::<Settings>(args, &KIND, USUAL, &model.config().into())?;
    Ok((device, model, rows))
}

/// Writes the features of every row.
pub fn encode(args: &EncodeArgs) -> Result<Outcome> {
    patch_rows::encode(args, open, |model| (model.config().into(), model.config().n_hidden))
}

/// Prints the terms of the cost over rows, and how active features are.
pub fn evaluate(args: &EvaluateArgs) -> Result<Outcome> {
    let report = Report::new(args.of.common.json);
    let (device, model, rows) = open(&args.of)?;
    let fit = CostArgs { chunk: args.feed.chunk(&rows.split), ..args.cost.clone() }.fit(1);
    let dtype = if fit.double { DType::F64 } else { DType::F32 };
    let home = if fit.chunk.is_some() { Device::Cpu } else { device.clone() };
    let raw = rows.split.raw(&home)?;
    let cost = Cost::new(model.config().clone(), fit.cost, &raw, fit.chunk, dtype, &device)?;
    let parts = cost.parts(&model.flat()?.to_dtype(dtype)?)?;
    let mut sums = Tensor::zeros(model.config().n_hidden, DType::F64, &device)?;
    rows.each(&device, |rows| {
        sums = (&sums + model.forward(rows)?.to_dtype(DType::F64)?.sum(0)?)?;
        Ok(())
    })?;
    let activity = (sums / rows.split.n_samples() as f64)?.to_vec1::<f64>()?;
    let mean = activity.iter().sum::<f64>() / activity.len() as f64;
    let dead = activity.iter().filter(|&&a| a < DEAD).count();
    report.line(&format!(
        "cost {:.6} over {} of {}: half the squared error {:.6}, decay {:.6}, divergence {:.6}; mean activation {mean:.4}, {dead} of {} \
         features below {DEAD}",
        parts.cost,
        rows.words(),
        rows.name,
        parts.squared_error,
        parts.decay,
        parts.divergence,
        activity.len()
    ))?;
    report.finish(&json!({
        "model": args.of.model.model,
        "data": rows.name,
        "n_samples": rows.split.n_samples(),
        "squared_error": parts.squared_error,
        "decay": parts.decay,
        "divergence": parts.divergence,
        "mean_activation": mean,
        "dead_features": dead,
        "cost": parts.cost,
    }))?;
    Ok(Outcome::Done)
}

/// Prints the error of reconstructed rows, and draws some.
pub fn reconstruct(args: &ReconstructArgs) -> Result<Outcome> {
    let report = Report::new(args.of.common.json);
    check_writable(&args.picture.out).context("--out")?;
    let (device, model, rows) = open(&args.of)?;
    let config = model.config();
    let reconstructing = Reconstructing {
        preparation: &config.preparation,
        n_features: config.n_visible,
        image: config.image,
        back: &|rows| model.reconstruct(rows),
    };
    reconstructing.run(args, &rows, &device, &report)
}
