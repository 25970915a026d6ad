//! The command `transform`: new rows in a saved layout.
use super::args::TransformArgs;
use super::figures::{words_of_list, words_of_recall};
use super::rows::{centred, prepared};
use crate::arrays::{self, Format};
use crate::features::report_beside;
use crate::progress::Spinner;
use crate::report::{Outcome, named, of_data, seconds};
use crate::rows::Rows;
use crate::session::info::check_finished;
use anyhow::{Result, ensure};
use chandlery::tsne::{Embedding, TransformTrainer};
use chandlery::{LoadOptions, Model, Trainer};
use chandlery_datasets::{Centre, count};
use serde_json::json;
use std::time::Instant;

/// Writes the points of new rows.
pub fn transform(args: &TransformArgs) -> Result<Outcome> {
    let report = report_beside(args.of.common.json, &args.out)?;
    let device = args.of.common.open_device()?;
    check_finished(&args.of.model.model)?;
    let embedding = Embedding::from_pretrained(&args.of.model.model, &LoadOptions::on(&device))?;
    ensure!(
        embedding.n_inputs()?.is_some(),
        "{}: this layout was made from distances or neighbours alone: new rows cannot be compared with its own; lay all rows out together",
        args.of.model.model
    );
    let mut data = args.of.data.clone();
    let centre = embedding.config().centre.clone();
    data.read.centre = (!centre.is_empty()).then(|| Centre::new(centre));
    let Rows { name, split, .. } = Rows::for_model(&data, &args.of.model.model, args.of.split)?;
    if let Some(want) = embedding.n_inputs()? {
        let got = split.n_features();
        ensure!(want == got, "--data: rows must have {want} values for this layout, got {got}");
    }
    let (asked, n) = (args.config(), embedding.layout().dim(0)?);
    let config = asked.lowered(n);
    if config.perplexity < asked.perplexity {
        let (from, to) = (words_of_list(&[asked.perplexity]), words_of_list(&[config.perplexity]));
        report
            .line(&format!("note: perplexity {from} was lowered to {to} for {}", count(n, "training row")))?;
    }
    let started = Instant::now();
    let spinner = Spinner::new("placing rows");
    let run = match split.rows.is_sparse() {
        true => {
            let rows = prepared(&split, &embedding.config().preparation, &device)?;
            TransformTrainer::of_prepared(&embedding, config, &rows)
        }
        false => {
            let rows = centred(&split, data.read.centre.as_ref(), &device)?;
            TransformTrainer::new(&embedding, config, &rows)
        }
    };
    let mut run = of_data(&name, run.map_err(Into::into))?;
    run.finish()?;
    let (points, recall) = (run.model()?, run.recall());
    drop(spinner);
    let took = started.elapsed().as_secs_f64();
    let shape = points.dims2()?;
    let mut once = Some(points);
    arrays::write(&args.out, shape, || Ok(once.take()), split.labels.as_deref())?;
    report.line(&format!(
        "{} of {name} in {} dimensions, in {} ({})",
        count(shape.0, "row"),
        shape.1,
        named(&args.out),
        seconds(took)
    ))?;
    if let Some(recall) = recall.filter(|recall| recall.interval[0] < 1.) {
        report.line(&format!("nearest training rows found: {}", words_of_recall(&recall)))?;
    }
    report.finish(json!({
        "model": args.of.model.model,
        "data": name,
        "out": args.out,
        "n_samples": shape.0,
        "n_dims": shape.1,
        "search_recall": recall,
        "labels": split.labels.is_some() && Format::of(&args.out)?.has_labels(),
        "seconds": took,
    }))?;
    Ok(Outcome::Done)
}
