//! The command `evaluate`: the terms of the cost over rows, and how active features are.
use super::args::{CostArgs, EvaluateArgs};
use crate::patch_rows::open;
use crate::ranks;
use crate::report::{Outcome, Report};
use crate::rows::agree;
use anyhow::{Result, ensure};
use candle::{DType, Device, Module, Tensor};
use chandlery::sparse_autoencoder::{Cost, SparseAutoencoder};
use chandlery_ops::arrays::elementwise::add;
use serde_json::json;

/// A feature that is less active than this, on average, counts as dead.
const DEAD: f64 = 1e-3;

/// Prints both.
pub fn evaluate(args: &EvaluateArgs) -> Result<Outcome> {
    let report = Report::new(args.of.common.json);
    for (option, given) in [("--picture", args.picture.is_some()), ("--targets", args.targets.is_some())] {
        ensure!(!given, "{option}: this model has no latents of --kind; leave it out");
    }
    let (ranks, device) = ranks::join(&args.ranks, &args.of.common)?;
    let (model, rows) = open::<SparseAutoencoder>(&args.of, &device)?;
    agree(&ranks, [&rows.split])?;
    let group = ranks.group(&device)?;
    let fit = CostArgs { chunk: args.feed.chunk(&rows.split), ..args.cost.clone() }.fit(1);
    let dtype = if fit.double { DType::F64 } else { DType::F32 };
    let home = if fit.chunk.is_some() { Device::Cpu } else { device.clone() };
    let raw = rows.raw(&home)?;
    let cost = Cost::new(model.config().clone(), fit.cost, &raw, fit.chunk, dtype, &device)?;
    let cost = cost.in_group(&group)?;
    let parts = cost.parts(&model.flat()?.to_dtype(dtype)?)?;
    let mut sums = Tensor::zeros(model.config().n_hidden, DType::F64, &device)?;
    rows.each(&ranks, &device, |rows| {
        sums = add(&sums, &model.forward(rows)?.to_dtype(DType::F64)?.sum(0)?)?;
        Ok(())
    })?;
    group.all_reduce_(&sums)?;
    ranks.first_goes_on();
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
    report.finish(json!({
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
