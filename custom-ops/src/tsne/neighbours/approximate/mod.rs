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

use super::{Asked, Entries, Knn, LeftOut, Metric, Neighbours, Sizes, centred, knn_of};
use crate::arrays::elementwise::contiguous;
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
pub(super) const SAMPLE: usize = 512;
/// The most cells of a row on a GPU, where their search keeps them in shared memory.
const MOST_CELLS_ON_GPU: usize = 2048;
/// Queries below which the exact search takes no longer than the cells.
const FEWEST_QUERIES: usize = 4096;
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

impl ApproximateNeighbours {
    /// Those that an exact search found.
    ///
    /// # Errors
    /// When they are no matrix.
    pub fn exact(neighbours: Neighbours) -> Result<Self> {
        let recall = Recall::exact(neighbours.indices.dims2()?.0);
        Ok(Self { neighbours, recall, looked_at: 1. })
    }
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
    let asked = Asked { left_out: LeftOut::Same, ..Asked::of(rows, rows, k, metric) };
    asked.find_approximate(group, recall, philox)
}

/// The nearest of `rows`, `[n, n_features]`, for each of `queries`, `[n_queries, n_features]`, of
/// which a share of `recall` are found, as [`knn_approximate`] says. A row that equals the query
/// counts.
///
/// The search is exact, too, where queries are so few that the cells take longer: below some 4,000,
/// or a 64th of the rows.
///
/// Cost: `2 · n_queries · n · n_features · looked_at` FLOP and that of the cells; memory for copies
/// of rows and queries.
///
/// # Errors
/// As [`knn_approximate`]; `k` may be `n` here.
pub fn knn_of_approximate(
    queries: &Tensor,
    rows: &Tensor,
    k: usize,
    metric: Metric,
    recall: f64,
    philox: Philox,
) -> Result<ApproximateNeighbours> {
    Asked::of(queries, rows, k, metric).find_approximate(&Group::single(), recall, philox)
}

impl Asked<'_> {
    fn find_approximate(&self, group: &Group, recall: f64, philox: Philox) -> Result<ApproximateNeighbours> {
        if !(recall > 0. && recall <= 1.) {
            candle::bail!("{OP}: recall must be above 0 and at most 1, got {recall}")
        }
        let &Self { queries, rows, k, metric, left_out, .. } = self;
        let Sizes { n, n_queries, n_features } = self.checked()?;
        not_recording(OP, rows.device())?;
        // Whether the queries are no rows.
        let are_others = left_out != LeftOut::Same;
        let cell = if rows.device().is_cuda() { CELL_ON_GPU } else { CELL }.max(2 * k);
        let are_few = are_others && n_queries < FEWEST_QUERIES.max(n / 64);
        if recall == 1. || n_features == 0 || n / cell < FEWEST || are_few {
            return self.exact(group);
        }
        if metric.is_of_host() && !rows.device().is_cpu() {
            // On the host of each rank: ranks exchange what is on their GPUs.
            let found = self.in_form(
                metric,
                |t| t.to_device(&Device::Cpu),
                |asked| asked.find_approximate(&Group::single(), recall, philox),
            )?;
            let neighbours = found.neighbours.to_device(rows.device())?;
            return Ok(ApproximateNeighbours { neighbours, ..found });
        }
        if metric == Metric::Correlation {
            let find = |asked: Asked<'_>| asked.find_approximate(group, recall, philox);
            return self.in_form(Metric::Cosine, centred, find);
        }
        if are_others {
            // The searches below see some of them only: this one refuses what is not finite.
            knn_of(queries, &rows.narrow(0, 0, 1)?, 1, metric)?;
        }
        let sample = Sample::new(group, self, philox.sample(n_queries, 2 * SAMPLE))?;
        let [chosen_by, held_out] = sample.halves();
        let points_of = |rows: &Tensor| match metric {
            Metric::Cosine => unit_rows(rows),
            Metric::Jaccard => rows.ne(0f64)?.to_dtype(DType::F32),
            _ => Ok(rows.clone()),
        };
        let (mut all, mut points) = (rows.clone(), points_of(rows)?);
        let least = (cell / 8).max(k + 1);
        let mut partition = Partition::new(group, &points, cell, least, philox.skipped(1 << 24))?;
        if are_others {
            let points_of_queries = points_of(queries)?;
            partition = partition.with_queries(group, &points_of_queries)?;
            all = contiguous(&Tensor::cat(&[rows, queries], 0)?)?;
            points = contiguous(&Tensor::cat(&[&points, &points_of_queries], 0)?)?;
        }
        let needs = chosen_by.needs(&points, &partition, metric)?;
        let mut n_cells = needs.cells_for(recall);
        loop {
            let looked_at = needs.share_of(n_cells);
            // Of cells that are not seen whole, all of them may be too few.
            let most = if rows.device().is_cuda() { MOST_CELLS_ON_GPU } else { usize::MAX };
            if looked_at > MOST_LOOKED_AT || n_cells > most.min(partition.n_cells()) {
                return self.exact(group);
            }
            // A query that is no row is none of what it is compared with either.
            let (left_out, entries) = (LeftOut::Same, Entries::Finite);
            let knn = Knn { n: all.dim(0)?, n_features, k, metric, left_out, entries };
            let found = knn.visit(group, &all, &points, &partition, n_cells)?;
            let reached = held_out.recall(&found)?;
            if reached.mean >= recall {
                let neighbours = if are_others { found.of_rows(n..n + n_queries)? } else { found };
                return Ok(ApproximateNeighbours { neighbours, recall: reached, looked_at });
            }
            n_cells += (n_cells / 2).max(1);
        }
    }

    /// All rows looked at.
    fn exact(&self, group: &Group) -> Result<ApproximateNeighbours> {
        ApproximateNeighbours::exact(self.find_in_group(group)?)
    }
}
