//! How well a layout keeps what is near: the usual measures beside its divergence.
use crate::tsne::Neighbours;
use crate::tsne::measure::{Compared, Estimate, TrueDistances};
use candle::{Result, Tensor};
use serde::Serialize;

/// Points whose ranks trustworthiness looks at.
pub const TRUST_NEIGHBOURS: usize = 12;
/// Points that vote for a label, and rows whose recall is taken.
pub const NEIGHBOURS: usize = 10;
/// The most rows of which all are looked at by the other measures.
pub const ALL: usize = 300_000;
/// Rows that are looked at, evenly spaced, of more; and of any number by trustworthiness.
pub const SAMPLE: usize = 10_000;
/// Rows that are looked at of more than [`ALL`] that are in host memory, and their layout is not.
pub const SAMPLE_OF_HOST: usize = 512;
/// Points of more than [`ALL`] whose pairs with all others are summed for a divergence.
pub const SAMPLE_OF_PAIRS: usize = 65_536;

/// How many of `n` rows are looked at where `sample` stand for more than [`ALL`].
pub fn looked_at(n: usize, sample: usize) -> usize {
    if n > ALL { sample } else { n }
}

/// Measures of a layout beside its divergence; none where there are too few rows, or no labels.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Measures {
    /// Over the 12 nearest points of up to 10,000 rows; at most 1.
    pub trustworthiness: Option<Estimate>,
    /// Share of the 10 nearest rows that are among the 10 nearest points.
    pub knn_recall: Option<Estimate>,
    /// Share of points whose label is that of most of their 10 nearest points.
    pub knn_label_accuracy: Option<Estimate>,
}

impl Measures {
    /// Those of a layout, f32 `[n, n_dims]`, that should keep the distances `of`; `labels` are
    /// `[n]`. `nearest` are the nearest rows of each, nearest first, if a search of all rows is
    /// known; a matrix needs none. `next` is told what is measured before each.
    ///
    /// Cost: up to 300,000 rows `n²` distances of points, of rows those of trustworthiness, and
    /// `n²` where `nearest` are not 11 at least. Above, 10,000 rows stand for all: `10,000 n` of
    /// both. A matrix is read three times.
    ///
    /// # Errors
    /// When shapes or devices do not fit, or a distance makes no sense.
    pub fn of(
        of: TrueDistances<'_>,
        labels: Option<&[u32]>,
        layout: &Tensor,
        nearest: Option<&Neighbours>,
        next: &mut dyn FnMut(&str),
    ) -> Result<Self> {
        // The host compares rows that have no room on a GPU.
        let most = if of.are_with(layout) { SAMPLE } else { SAMPLE_OF_HOST };
        let sample = looked_at(of.n()?, most);
        Self::of_sample(of, labels, layout, nearest, sample, next)
    }

    /// [`of`](Self::of) over `sample` evenly spaced rows, or all where it is `n` or more.
    ///
    /// # Errors
    /// As [`of`](Self::of).
    pub fn of_sample(
        of: TrueDistances<'_>,
        labels: Option<&[u32]>,
        layout: &Tensor,
        nearest: Option<&Neighbours>,
        sample: usize,
        next: &mut dyn FnMut(&str),
    ) -> Result<Self> {
        let n = of.n()?;
        let mut measures = Self::default();
        let k = if 2 * TRUST_NEIGHBOURS < n { TRUST_NEIGHBOURS } else { NEIGHBOURS };
        next("trustworthiness");
        if k >= n {
            return Ok(measures);
        }
        let compared = Compared::new("Measures", of, layout, k, sample)?;
        if 2 * TRUST_NEIGHBOURS < n {
            measures.trustworthiness = Some(compared.trustworthiness(TRUST_NEIGHBOURS, SAMPLE)?);
        }
        next("nearest rows kept");
        measures.knn_recall = Some(compared.knn_recall(NEIGHBOURS, nearest)?);
        next("labels by nearest points");
        let accuracy = |labels| compared.points().label_accuracy(labels, NEIGHBOURS);
        measures.knn_label_accuracy = labels.map(accuracy).transpose()?;
        Ok(measures)
    }
}
