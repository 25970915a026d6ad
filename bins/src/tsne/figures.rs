//! Figures of a layout, for people.
use super::given::Matrix;
use crate::progress::Progress;
use anyhow::Result;
use candle::Tensor;
use chandlery::evaluation::layout::{Measures, SAMPLE_OF_PAIRS, looked_at};
use chandlery::tsne::measure::{Estimate, TrueDistances};
use chandlery::tsne::{Metric, Neighbours, Recall};
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// What is measured one after the other: the divergence, and three [`Measures`].
const STAGES: u64 = 4;

/// What a layout is compared with.
#[derive(Debug, Clone)]
pub enum Truth {
    /// Prepared rows, f32 `[n, n_features]`.
    Rows(Tensor, Metric),
    /// Distances of all pairs.
    Matrix(Arc<Matrix>),
}

impl Truth {
    fn distances(&self) -> TrueDistances<'_> {
        match self {
            Self::Rows(rows, metric) => TrueDistances::Rows(rows, *metric),
            Self::Matrix(matrix) => TrueDistances::Matrix(matrix.distances()),
        }
    }
}

/// The divergence that `kl` finds, with the nearest rows where it knows them, and the measures of a
/// layout of what `truth` gives, with progress.
pub fn measured(
    kl: impl FnOnce() -> Result<(Estimate, Option<Neighbours>)>,
    truth: impl FnOnce() -> Result<Truth>,
    labels: Option<&[u32]>,
    layout: &Tensor,
) -> Result<(Estimate, Measures)> {
    let bar = Progress::iterations(STAGES, 0);
    bar.label("divergence".to_owned());
    let (kl, nearest) = kl()?;
    let mut next = |name: &str| {
        bar.advance(1);
        bar.label(name.to_owned());
    };
    let truth = truth()?;
    Ok((kl, Measures::of(truth.distances(), labels, layout, nearest.as_ref(), &mut next)?))
}

/// The divergence of a layout that `of` finds; of many rows over the pairs of so many.
pub fn divergence(layout: &Tensor, of: impl FnOnce(usize) -> candle::Result<Estimate>) -> Result<Estimate> {
    Ok(of(looked_at(layout.dim(0)?, SAMPLE_OF_PAIRS))?)
}

/// Names and values of those that were taken.
pub fn figures_of(kl: Option<Estimate>, measures: &Measures) -> Vec<(String, String)> {
    [
        ("KL", kl.map(words_of_number)),
        ("trustworthiness", measures.trustworthiness.map(words_of_number)),
        ("10 nearest rows kept", measures.knn_recall.map(words_of_share)),
        ("label by 10 nearest points", measures.knn_label_accuracy.map(words_of_share)),
    ]
    .into_iter()
    .filter_map(|(name, value)| Some((name.to_owned(), value?)))
    .collect()
}

/// The same for programs: values, and half of the width of the 95 % interval of each, 0 where all
/// rows were looked at.
pub fn fields(kl: Option<Estimate>, measures: &Measures) -> Map<String, Value> {
    let Measures { trustworthiness, knn_recall, knn_label_accuracy } = *measures;
    let (mut fields, mut errors) = (Map::new(), Map::new());
    for (name, estimate) in [
        ("kl", kl),
        ("trustworthiness", trustworthiness),
        ("knn_recall", knn_recall),
        ("knn_label_accuracy", knn_label_accuracy),
    ] {
        fields.insert(name.to_owned(), json!(estimate.map(|of| of.value)));
        errors.insert(name.to_owned(), json!(estimate.map(|of| of.error)));
    }
    fields.insert("errors".to_owned(), errors.into());
    fields
}

/// Four decimals, and how far the value of all rows may be.
fn words_of_number(Estimate { value, error }: Estimate) -> String {
    /// Half of the last digit that is shown.
    const SHOWN: f64 = 0.5e-4;
    if error >= SHOWN { format!("{value:.4} ± {error:.4}") } else { format!("{value:.4}") }
}

/// The same of a share in percent.
fn words_of_share(Estimate { value, error }: Estimate) -> String {
    const SHOWN: f64 = 0.5e-4;
    if error >= SHOWN { format!("{:.2} ± {:.2} %", 100. * value, 100. * error) } else { percent(value) }
}

/// A share in words.
pub fn percent(share: f64) -> String {
    format!("{:.2} %", 100. * share)
}

/// How many of the nearest rows were found, and where the share of all rows lies.
pub fn words_of_recall(recall: &Recall) -> String {
    let [low, high] = recall.interval.map(percent);
    match recall.interval[0] < 1. {
        true => format!("{} (95 % interval {low} to {high})", percent(recall.mean)),
        false => "all".to_owned(),
    }
}

/// Numbers of at most two decimals with commas between them.
pub fn words_of_list(numbers: &[f64]) -> String {
    let words = |x: &f64| ((100. * x).round() / 100.).to_string();
    numbers.iter().map(words).collect::<Vec<_>>().join(", ")
}
