//! The commands `encode` and `evaluate`: what one does with a model after training.
use super::args::{EncodeArgs, EvaluateArgs};
use crate::patch_rows::{self, open};
use crate::ranks;
use crate::report::{Outcome, Report, figure};
use crate::rows::agree;
use anyhow::Result;
use chandlery::sparse_coding::{SparseCoding, SparseCodingConfig};
use serde_json::json;

/// Writes the activations of every row.
pub fn encode(args: &EncodeArgs) -> Result<Outcome> {
    patch_rows::encode(&args.with, |model: SparseCoding| match args.penalty {
        Some(beta) => {
            let config = SparseCodingConfig { beta, ..model.config().clone() };
            Ok(SparseCoding::from_tensor(config, model.basis().clone())?)
        }
        None => Ok(model),
    })
}

/// Prints how well activations represent rows.
pub fn evaluate(args: &EvaluateArgs) -> Result<Outcome> {
    let report = Report::new(args.of.common.json);
    let (ranks, device) = ranks::join(&args.ranks, &args.of.common)?;
    let (model, rows) = open::<SparseCoding>(&args.of, &device)?;
    agree(&ranks, [&rows.split])?;
    let mut measure = model.measure();
    rows.each(&ranks, &device, |rows| Ok(measure.add(rows)?))?;
    let measure = measure.joined(&ranks.group(&device)?)?;
    ranks.first_goes_on();
    let figures = measure.figures()?;
    report.line(&format!(
        "objective {} over {} of {}: RMSE {}, {:.2} % of the activations nonzero, largest relative gap {:.1e}",
        figure(figures.objective, 5),
        rows.words(),
        rows.name,
        figure(figures.rmse, 5),
        100. * figures.nonzero_fraction,
        figures.max_relative_gap
    ))?;
    report.finish(json!({
        "model": args.of.model.model,
        "data": rows.name,
        "n_samples": rows.split.n_samples(),
        "rmse": figures.rmse,
        "objective": figures.objective,
        "nonzero_fraction": figures.nonzero_fraction,
        "max_relative_gap": figures.max_relative_gap,
    }))?;
    Ok(Outcome::Done)
}
