//! Approximate nearest neighbours by cells.
//!
//! ```text
//! cells    rows around centres, by Lloyd's k-means on a sample; those too full are divided again
//! row i    is compared with the rows of the p cells whose centres are nearest to it, its own first
//! p        the fewest in which the wanted share of the k nearest is, by an exact search of a sample
//! recall   the share that was found, of rows that p was not chosen by; where it is less, p grows
//! ```
//!
//! The cells that hold the nearest of the sample's rows are known before the search, so that one
//! search is enough as a rule. Where a row would be compared with more than seven tenths of all,
//! the exact search takes its place.
//!
//! Rows of a cell lie together, less its centre: products of them tell small distances apart
//! wherever the cell is.
//!
//! Source: Jégou, Douze and Schmid, "Product quantization for nearest neighbor search", 2011
//! (inverted file).
mod partition;
mod sample;
mod scores;
mod units;

use super::{Knn, LeftOut, Metric, Neighbours, OP as SEARCH, centred, knn_in_group};
use crate::core::check::matrix;
use crate::core::op::not_recording;
use crate::core::philox::Philox;
use crate::group::Group;
use candle::{DType, Device, Result, Tensor};
pub(super) use partition::{Partition, Tile};
pub use sample::Recall;
use sample::Sample;
pub(super) use scores::Scores;
use units::unit_rows;

const OP: &str = "knn_approximate";
/// Rows of a cell, about: fewer make it easier to leave rows out, more are multiplied faster.
const CELL: usize = 512;
const CELL_ON_GPU: usize = 1024;
/// Cells up to which all are searched.
const FEWEST: usize = 8;
/// Rows that the number of cells is chosen by, and as many that the recall is measured on.
const SAMPLE: usize = 512;
/// The most cells of a row on a GPU, where their search keeps them in shared memory.
const MOST_CELLS_ON_GPU: usize = 2048;
/// Above this share of rows that are looked at, the exact search is as fast.
const MOST_LOOKED_AT: f64 = 0.7;

/// Neighbours, most of which are the nearest.
#[derive(Debug, Clone)]
pub struct ApproximateNeighbours {
    /// What was found, sorted by distance and index.
    pub neighbours: Neighbours,
    /// How many of the nearest that are, on 512 rows which decided nothing of the search.
    pub recall: Recall,
    /// The share of all rows that a row was compared with, in `(0, 1]`; 1 where the search was
    /// exact.
    pub looked_at: f64,
}

/// The nearest other rows of each row of a contiguous f32 matrix `rows`, `[n, n_features]`, of
/// which a share of `recall`, in `(0, 1]`, are among the `k` nearest: the search looks at as many
/// cells of rows as this takes, and says what it reached. Of a cell that holds more than four times
/// as many rows as others because they are equal, others look at the first rows alone.
///
/// The search is exact where `recall` is 1, rows are fewer than some 4,000 (8,000 on a GPU), or
/// the cells would hold most rows.
///
/// The same `philox` gives the same bits on one device, whatever the number of threads.
///
/// Cost: `2 · n² · n_features · looked_at` FLOP, `2 · n² / 512 · n_features` for the cells and
/// `2048 · n · n_features` for the sample, where [`knn`] takes `2 · n² · n_features`; memory as
/// [`knn`].
///
/// [`knn`]: super::knn
///
/// # Errors
/// As [`knn`], and when `recall` is out of its range.
pub fn knn_approximate(
    rows: &Tensor,
    k: usize,
    metric: Metric,
    recall: f64,
    philox: Philox,
) -> Result<ApproximateNeighbours> {
    knn_approximate_in_group(&Group::single(), rows, k, metric, recall, philox)
}

/// The same with the other ranks of a group: each has all rows, and searches for those of its part
/// of the cells; all get the neighbours of all. The cells, and how many of them a row looks at, are
/// those of one rank, and so is what is found: on the CPU byte for byte, on a GPU but for rows that
/// products of another size round to another place in a list.
///
/// # Errors
/// As [`knn_approximate`], and when a rank is gone.
pub fn knn_approximate_in_group(
    group: &Group,
    rows: &Tensor,
    k: usize,
    metric: Metric,
    recall: f64,
    philox: Philox,
) -> Result<ApproximateNeighbours> {
    if !(recall > 0. && recall <= 1.) {
        candle::bail!("{OP}: recall must be above 0 and at most 1, got {recall}")
    }
    let (n, n_features) = matrix(SEARCH, "rows", "[n, n_features]", rows, &[DType::F32])?;
    not_recording(OP, rows.device())?;
    let cell = if rows.device().is_cuda() { CELL_ON_GPU } else { CELL }.max(2 * k);
    if recall == 1. || n_features == 0 || n / cell < FEWEST {
        return exact(group, rows, k, metric);
    }
    if metric.is_of_host() && !rows.device().is_cpu() {
        // On the host of each rank: ranks exchange what is on their GPUs.
        let found = knn_approximate(&rows.to_device(&Device::Cpu)?, k, metric, recall, philox)?;
        let neighbours = found.neighbours.to_device(rows.device())?;
        return Ok(ApproximateNeighbours { neighbours, ..found });
    }
    if metric == Metric::Correlation {
        return knn_approximate_in_group(group, &centred(rows)?, k, Metric::Cosine, recall, philox);
    }
    let sample = Sample::new(group, rows, philox.sample(n, 2 * SAMPLE), k, metric)?;
    let [chosen_by, held_out] = sample.halves();
    let points = match metric {
        Metric::Cosine => unit_rows(rows)?,
        Metric::Jaccard => rows.ne(0f64)?.to_dtype(DType::F32)?,
        _ => rows.clone(),
    };
    let least = (cell / 8).max(k + 1);
    let partition = Partition::new(group, &points, cell, least, philox.skipped(1 << 24))?;
    let needs = chosen_by.needs(&points, &partition, metric)?;
    let mut n_cells = needs.cells_for(recall);
    loop {
        let looked_at = needs.share_of(n_cells);
        // Of cells that are not seen whole, all of them may be too few.
        let most = if rows.device().is_cuda() { MOST_CELLS_ON_GPU } else { usize::MAX };
        if looked_at > MOST_LOOKED_AT || n_cells > most.min(partition.n_cells()) {
            return exact(group, rows, k, metric);
        }
        let (left_out, entries) = (LeftOut::Same, super::Entries::Finite);
        let knn = Knn { n, n_features, k, metric, left_out, entries };
        let neighbours = knn.visit(group, rows, &points, &partition, n_cells)?;
        let reached = held_out.recall(&neighbours)?;
        if reached.mean >= recall {
            return Ok(ApproximateNeighbours { neighbours, recall: reached, looked_at });
        }
        n_cells += (n_cells / 2).max(1);
    }
}

/// All rows looked at.
fn exact(group: &Group, rows: &Tensor, k: usize, metric: Metric) -> Result<ApproximateNeighbours> {
    let recall = Recall::exact(rows.dim(0)?);
    Ok(ApproximateNeighbours { neighbours: knn_in_group(group, rows, k, metric)?, recall, looked_at: 1. })
}
