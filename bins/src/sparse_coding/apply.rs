//! The commands `encode`, `evaluate` and `reconstruct`: what one does with a model after training.
use super::args::{EncodeArgs, EvaluateArgs, Settings};
use super::train::{KIND, USUAL};
use crate::patch_rows::{self, ReconstructArgs, Reconstructing, Rows, UseArgs};
use crate::report::{Outcome, Report, figure};
use crate::run_folder::check_writable;
use crate::session::info::check_finished;
use anyhow::{Context, Result};
use candle::Device;
use chandlery::sparse_coding::{SparseCoding, SparseCodingConfig};
use serde_json::json;

fn open(args: &UseArgs) -> Result<(Device, SparseCoding, Rows)> {
    let device = args.common.open_device()?;
    check_finished(&args.model.model)?;
    let model = SparseCoding::from_pretrained(&args.model.model, &device)?;
    let rows = Rows::to_use::<Settings>(args, &KIND, USUAL, &model.config().into())?;
    Ok((device, model, rows))
}

/// Writes the activations of every row.
pub fn encode(args: &EncodeArgs) -> Result<Outcome> {
    let open = |of: &UseArgs| {
        let (device, model, rows) = open(of)?;
        let config = model.config();
        let model = match args.penalty {
            Some(beta) => {
                let config = SparseCodingConfig { beta, ..config.clone() };
                SparseCoding::from_tensor(config, model.basis().clone())?
            }
            None => model,
        };
        Ok((device, model, rows))
    };
    patch_rows::encode(&args.with, open, |model| (model.config().into(), model.config().n_atoms))
}

/// Prints how well activations represent rows.
pub fn evaluate(args: &EvaluateArgs) -> Result<Outcome> {
    let report = Report::new(args.of.common.json);
    let (device, model, rows) = open(&args.of)?;
    let mut measure = model.measure();
    rows.each(&device, |rows| Ok(measure.add(rows)?))?;
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
    report.finish(&json!({
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

/// Prints the error of reconstructed rows, and draws some.
pub fn reconstruct(args: &ReconstructArgs) -> Result<Outcome> {
    let report = Report::new(args.of.common.json);
    check_writable(&args.picture.out).context("--out")?;
    let (device, model, rows) = open(&args.of)?;
    let config = model.config();
    let reconstructing = Reconstructing {
        preparation: &config.preparation,
        n_features: config.n_features,
        image: config.image,
        back: &|rows| model.reconstruct(rows),
    };
    reconstructing.run(args, &rows, &device, &report)
}
