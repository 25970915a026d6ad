//! The command `evaluate`: measures of a layout, made by this or any other program.
use super::args::EvaluateArgs;
use super::choices::{MetricArg, SplitsArg};
use super::measure::Measures;
use super::rows::{Rows, read_layout};
use crate::progress::Spinner;
use crate::report::{Outcome, Report};
use crate::session::info::data_and_settings;
use anyhow::{Context, Result};
use candle::{DType, Device};
use chandlery::tsne::measure::true_kl;
use chandlery_datasets::{Preparation, count};
use serde::Deserialize;
use serde_json::json;

/// Prints the measures.
pub fn evaluate(args: &EvaluateArgs) -> Result<Outcome> {
    let report = Report::new(args.common.json);
    let device = args.common.open_device()?;
    let (rows, metric) = rows(args, &device)?;
    let layout = read_layout(&args.embedding, "--embedding", rows.n(), &device)?;
    let spinner = Spinner::new("measuring");
    // Bytes over 255.
    let read = Preparation::default().apply(&rows.raw)?.to_dtype(DType::F32)?.contiguous()?;
    let kl = true_kl(&read, &layout, args.perplexity, metric.0).context("--perplexity")?;
    let measures = Measures::new(&read, rows.labels.as_deref(), &layout, metric.0)?;
    drop(spinner);
    report.line(&format!("KL {kl:.4} at perplexity {} over {}", args.perplexity, count(rows.n(), "row")))?;
    for (name, value) in measures.figures() {
        report.line(&format!("{name} {value}"))?;
    }
    report.finish(&json!({
        "data": rows.name,
        "embedding": args.embedding,
        "n_samples": rows.n(),
        "n_dims": layout.dim(1)?,
        "metric": metric,
        "perplexity": args.perplexity,
        "kl": kl,
        "trustworthiness": measures.trustworthiness,
        "knn_recall": measures.knn_recall,
        "knn_label_accuracy": measures.knn_label_accuracy,
    }))?;
    Ok(Outcome::Done)
}

/// The rows that the layout is of, and how they are compared, as asked for; what is not said is as in the run if the layout is the folder of one.
fn rows(args: &EvaluateArgs, device: &Device) -> Result<(Rows, MetricArg)> {
    #[derive(Deserialize)]
    struct OfRun {
        split: SplitsArg,
        #[serde(default)]
        metric: MetricArg,
    }
    let run = match data_and_settings::<OfRun>(&args.embedding) {
        // A run is not needed where the data is named.
        Err(_) if args.data.data.is_some() => None,
        run => run?,
    };
    let (data, of_run) = run.unzip();
    let split = args.split.or(of_run.as_ref().map(|of_run| of_run.split)).unwrap_or_default();
    let metric = args.metric.or(of_run.map(|of_run| of_run.metric)).unwrap_or_default();
    let dataset = args.data.or_those_of(data).open();
    Ok((Rows::of(args.data.named(&args.embedding.display().to_string(), dataset)?, split, device)?, metric))
}
