//! Figures of a layout, for people.
use crate::progress::Progress;
use anyhow::Result;
use candle::Tensor;
use chandlery::evaluation::layout::Measures;
use chandlery::tsne::{Metric, Neighbours, Recall};

/// What is measured one after the other: the divergence, and three [`Measures`].
const STAGES: u64 = 4;

/// The divergence that `kl` finds, with the nearest rows where it knows them, and the measures of a
/// layout of the prepared rows that `read` gives, with progress.
pub fn measured(
    kl: impl FnOnce() -> Result<(f64, Option<Neighbours>)>,
    read: impl FnOnce() -> Result<Tensor>,
    labels: Option<&[u32]>,
    layout: &Tensor,
    metric: Metric,
) -> Result<(f64, Measures)> {
    let bar = Progress::iterations(STAGES, 0);
    bar.label("divergence".to_owned());
    let (kl, nearest) = kl()?;
    let mut next = |name: &str| {
        bar.advance(1);
        bar.label(name.to_owned());
    };
    Ok((kl, Measures::of(&read()?, labels, layout, metric, nearest.as_ref(), &mut next)?))
}

/// Names and values of those that were taken.
pub fn figures_of(measures: &Measures) -> Vec<(String, String)> {
    [
        ("trustworthiness", measures.trustworthiness.map(|x| format!("{x:.4}"))),
        ("10 nearest rows kept", measures.knn_recall.map(percent)),
        ("label by 10 nearest points", measures.knn_label_accuracy.map(percent)),
    ]
    .into_iter()
    .filter_map(|(name, value)| Some((name.to_owned(), value?)))
    .collect()
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
