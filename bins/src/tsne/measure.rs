//! How good a layout is.
use crate::progress::Stages;
use anyhow::Result;
use candle::Tensor;
use chandlery::tsne::Metric;
use chandlery::tsne::measure::{knn_label_accuracy, knn_recall, trustworthiness};
use serde::Serialize;

/// Points whose ranks trustworthiness looks at.
pub const TRUST_NEIGHBOURS: usize = 12;
/// Points that vote for a label, and rows whose recall is taken.
pub const NEIGHBOURS: usize = 10;
/// Rows that trustworthiness is taken over, evenly spaced, where there are more.
pub const SAMPLE: usize = 10_000;

/// Measures of a layout beside its divergence; none where there are too few rows, or no labels.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Measures {
    /// Over the 12 nearest points of up to 10,000 rows.
    pub trustworthiness: Option<f64>,
    /// Of the 10 nearest rows.
    pub knn_recall: Option<f64>,
    /// By the 10 nearest points.
    pub knn_label_accuracy: Option<f64>,
}

impl Measures {
    /// Those of a layout, f32 `[n, n_dims]`, of prepared rows, f32 `[n, n_features]`, which are compared by `metric`.
    pub fn new(
        stages: &Stages,
        read: &Tensor,
        labels: Option<&[u32]>,
        layout: &Tensor,
        metric: Metric,
    ) -> Result<Self> {
        let n = read.dim(0)?;
        let trust = stages.next("trustworthiness", || {
            let measure = || trustworthiness(read, layout, TRUST_NEIGHBOURS, SAMPLE, metric);
            (2 * TRUST_NEIGHBOURS < n).then(measure).transpose()
        })?;
        let recall = stages.next("nearest rows kept", || {
            (NEIGHBOURS < n).then(|| knn_recall(read, layout, NEIGHBOURS, metric)).transpose()
        })?;
        let accuracy = stages.next("labels by nearest points", || {
            let labels = labels.filter(|_| NEIGHBOURS < n);
            let labels = labels.map(|labels| Tensor::new(labels, layout.device())).transpose()?;
            labels.map(|labels| knn_label_accuracy(layout, &labels, NEIGHBOURS)).transpose()
        })?;
        Ok(Self { trustworthiness: trust, knn_recall: recall, knn_label_accuracy: accuracy })
    }

    /// Names and values of those that were taken, for people.
    pub fn figures(&self) -> Vec<(String, String)> {
        [
            ("trustworthiness", self.trustworthiness.map(|x| format!("{x:.4}"))),
            ("10 nearest rows kept", self.knn_recall.map(percent)),
            ("label by 10 nearest points", self.knn_label_accuracy.map(percent)),
        ]
        .into_iter()
        .filter_map(|(name, value)| Some((name.to_owned(), value?)))
        .collect()
    }
}

/// Stages of measuring: the divergence, then those of [`Measures::new`].
pub const STAGES: usize = 4;

/// A share in words.
pub fn percent(share: f64) -> String {
    format!("{:.2} %", 100. * share)
}
