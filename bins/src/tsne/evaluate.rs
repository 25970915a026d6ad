//! The command `evaluate`: measures of a layout, of whatever program.
use super::args::EvaluateArgs;
use super::measure::Measures;
use super::rows::{Rows, read_layout};
use crate::progress::Spinner;
use crate::report::{Outcome, Report};
use anyhow::{Context, Result};
use candle::DType;
use chandlery::tsne::measure::true_kl;
use chandlery_datasets::{Preparation, count};
use serde_json::json;

/// Prints the measures.
pub fn evaluate(args: &EvaluateArgs) -> Result<Outcome> {
    let report = Report::new(args.common.json);
    let device = args.common.open_device()?;
    let rows = Rows::open(&args.data, args.split, &device)?;
    let layout = read_layout(&args.embedding, "--embedding", rows.n(), &device)?;
    let spinner = Spinner::new("measuring");
    // Bytes over 255.
    let read = Preparation::default().apply(&rows.raw)?.to_dtype(DType::F32)?.contiguous()?;
    let kl = true_kl(&read, &layout, args.perplexity).context("--perplexity")?;
    let measures = Measures::new(&read, rows.labels.as_deref(), &layout)?;
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
        "perplexity": args.perplexity,
        "kl": kl,
        "trustworthiness": measures.trustworthiness,
        "knn_recall": measures.knn_recall,
        "knn_label_accuracy": measures.knn_label_accuracy,
    }))?;
    Ok(Outcome::Done)
}
