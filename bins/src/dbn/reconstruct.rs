//! The command `reconstruct`: the squared error of reconstructed rows, and a picture.
use super::args::ReconstructArgs;
use super::saved::Saved;
use crate::ranks;
use crate::reconstructions::{GivesBack, draw_reconstructions, drawable};
use crate::report::{Outcome, Report, figure};
use crate::rows::{Blocks, Rows, agree};
use crate::run_folder::check_writable;
use anyhow::{Context, Result};
use chandlery::pictures::can_draw;
use chandlery_datasets::count;
use serde_json::json;

/// The command `reconstruct`.
pub fn reconstruct(args: &ReconstructArgs) -> Result<Outcome> {
    let report = Report::new(args.of.common.json);
    check_writable(&args.picture.out).context("--out")?;
    let (ranks, device) = ranks::join(&args.ranks, &args.of.common)?;
    let saved = Saved::load(&args.of.model.model, &device)?;
    let network: &dyn GivesBack = match &saved {
        Saved::Plain(dbn) => dbn,
        Saved::Labelled(dbn) => dbn,
        Saved::Autoencoder(network) => network,
        Saved::Classifier(_) => return Err(saved.refused(&args.of.model.model, "reconstruct")),
    };
    let reads = saved.reads();
    let Rows { name: data, split, image, .. } = args.of.open()?;
    agree(&ranks, [&split])?;
    let mut blocks = Blocks::of_rank(&ranks, &split, reads.clone(), &device)?;
    let mut sum = 0.;
    while let Some(rows) = blocks.next()? {
        sum += network.error(&rows)? * rows.dim(0)? as f64;
    }
    let [sum] = ranks.sums([sum])?;
    ranks.first_goes_on();
    let error = sum / split.n_samples() as f64;
    report.line(&format!(
        "mean squared error of {} of {data}: {} summed over {}, {} per input",
        count(split.n_samples(), "row"),
        figure(error, 4),
        count(split.n_features(), "input"),
        figure(error / split.n_features() as f64, 6)
    ))?;
    let shape = image.filter(can_draw).or(drawable(reads.clone()));
    if let Some(shape) = shape {
        draw_reconstructions(network, &reads, &split, shape, args.picture.n, &device, &args.picture.out)?;
        report.line(&format!("{}", args.picture.out.display()))?;
    }
    report.finish(json!({
        "out": shape.map(|_| &args.picture.out),
        "data": data,
        "n_samples": split.n_samples(),
        "squared_error": error,
        "squared_error_per_input": error / split.n_features() as f64,
    }))?;
    Ok(Outcome::Done)
}
