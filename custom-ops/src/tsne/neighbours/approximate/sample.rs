//! Rows that tell how many of the nearest are found.
use super::super::{Asked, LeftOut, Metric, Neighbours};
use super::partition::Partition;
use super::scores::Scores;
use crate::arrays::gather_rows;
use crate::group::Group;
use candle::{Result, Tensor};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

/// How many of the nearest rows were found, measured on rows drawn at random.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Recall {
    /// The mean share, in `[0, 1]`, of neighbours that are no farther than the `k`-th nearest row.
    pub mean: f64,
    /// The interval that covers the share of all rows in 95 of 100 draws: the mean, 1.96 standard
    /// errors to either side, within `[0, 1]`.
    pub interval: [f64; 2],
    /// Rows that it was measured on.
    pub n_queries: usize,
}

impl Recall {
    /// That of an exact search of so many rows.
    pub fn exact(n_queries: usize) -> Self {
        Self { mean: 1., interval: [1., 1.], n_queries }
    }

    /// The mean of shares of single rows.
    pub(in super::super) fn of(shares: &[f64]) -> Self {
        let (mean, error) = mean_and_error(shares);
        let interval = [-1.96, 1.96].map(|by| (mean + by * error).clamp(0., 1.));
        Self { mean, interval, n_queries: shares.len() }
    }
}

/// The mean and its standard error.
fn mean_and_error(shares: &[f64]) -> (f64, f64) {
    let n = shares.len().max(1) as f64;
    let mean = shares.iter().sum::<f64>() / n;
    let squares: f64 = shares.iter().map(|share| (share - mean).powi(2)).sum();
    (mean, (squares / (n - 1.).max(1.) / n).sqrt())
}

/// Some queries and their nearest.
pub(super) struct Sample {
    /// Their numbers among all rows, or after these.
    rows: Vec<u32>,
    k: usize,
    /// `[rows, k]`
    nearest: Vec<u32>,
    distances: Vec<f32>,
}

impl Sample {
    /// The nearest rows of these queries. Refuses rows whose entries are not finite.
    pub(super) fn new(group: &Group, asked: &Asked<'_>, picks: Vec<u32>) -> Result<Self> {
        let is_own = asked.left_out == LeftOut::Same;
        let left_out = if is_own { LeftOut::Rows(&picks) } else { LeftOut::None };
        let queries = &gather_rows(asked.queries, &picks)?;
        let found = Asked { queries, left_out, ..*asked }.find_in_group(group)?;
        let nearest = found.indices.flatten_all()?.to_vec1::<u32>()?;
        let distances = found.distances.flatten_all()?.to_vec1()?;
        let first = if is_own { 0 } else { asked.rows.dim(0)? as u32 };
        let rows = picks.into_iter().map(|pick| first + pick).collect();
        Ok(Self { rows, k: asked.k, nearest, distances })
    }

    /// The first half of the rows, and the other.
    pub(super) fn halves(mut self) -> [Self; 2] {
        let (half, k) = (self.rows.len() / 2, self.k);
        let rows = self.rows.split_off(half);
        let (nearest, distances) = (self.nearest.split_off(half * k), self.distances.split_off(half * k));
        [self, Self { rows, k, nearest, distances }]
    }

    /// How many of the nearest are among what was found.
    pub(super) fn recall(&self, found: &Neighbours) -> Result<Recall> {
        let got = gather_rows(&found.distances, &self.rows)?.to_vec2::<f32>()?;
        let share = |(got, nearest): (&Vec<f32>, &[f32])| {
            let most = nearest.last().copied().unwrap_or(0.);
            got.iter().filter(|&&d| d <= most).count() as f64 / self.k as f64
        };
        let shares: Vec<f64> = got.iter().zip(self.distances.chunks(self.k)).map(share).collect();
        Ok(Recall::of(&shares))
    }

    /// In how many cells each of the nearest is found.
    pub(super) fn needs(&self, points: &Tensor, partition: &Partition, metric: Metric) -> Result<Needs> {
        let mut cells = vec![0; partition.order.len()];
        let of_places = partition.cell_of_places();
        partition.order.iter().zip(of_places).for_each(|(&row, cell)| cells[row as usize] = cell);
        let queries = gather_rows(points, &self.rows)?.flatten_all()?.to_vec1::<f32>()?;
        let centres = partition.centres.flatten_all()?.to_vec1::<f32>()?;
        let (d, n_cells) = (points.dim(1)?, partition.n_cells());
        let all = Scores::new(&centres, d, n_cells, &queries);
        let each = self.rows.par_iter().zip(self.nearest.par_chunks(self.k));
        let of_rows = each.zip(self.distances.par_chunks(self.k)).enumerate().map_init(
            Vec::new,
            |scores, (i, ((&row, nearest), distances))| {
                let own = cells[row as usize] as usize;
                all.of(scores, &queries[i * d..(i + 1) * d], 1, own);
                let mut order: Vec<u32> = (0..n_cells as u32).collect();
                order.sort_by(|&a, &b| scores[a as usize].total_cmp(&scores[b as usize]).then(a.cmp(&b)));
                let mut ranks = vec![0; n_cells];
                (1..).zip(&order).for_each(|(rank, &cell)| ranks[cell as usize] = rank);
                // Zero rows have an angle to none, and are looked at without a cell.
                let is_of_zero = |distance: f32| metric == Metric::Cosine && distance == 1.;
                let rank = |(&j, &d): (&u32, &f32)| {
                    if is_of_zero(d) { 1 } else { ranks[cells[j as usize] as usize] }
                };
                let mut ranks_of_nearest: Vec<u32> = nearest.iter().zip(distances).map(rank).collect();
                ranks_of_nearest.sort_unstable();
                let sums = order.iter().scan(0, |sum, &cell| {
                    *sum += partition.visible(cell as usize).len();
                    Some(*sum)
                });
                (ranks_of_nearest, sums.collect())
            },
        );
        Ok(Needs { of_rows: of_rows.collect(), n: partition.n_rows(), n_cells })
    }
}

/// What a search in cells would find of a sample.
pub(super) struct Needs {
    /// Of each row, how many cells must be searched for each of its neighbours, ascending; and how
    /// many rows the first cells hold.
    of_rows: Vec<(Vec<u32>, Vec<usize>)>,
    n: usize,
    n_cells: usize,
}

impl Needs {
    /// The fewest cells in which so large a share is found of all rows as well, but for one draw of
    /// the sample in twenty.
    pub(super) fn cells_for(&self, recall: f64) -> usize {
        let is_enough = |cells: usize| {
            let share = |(needed, _): &(Vec<u32>, Vec<usize>)| {
                needed.partition_point(|&rank| rank as usize <= cells) as f64 / needed.len() as f64
            };
            let (mean, error) = mean_and_error(&self.of_rows.iter().map(share).collect::<Vec<_>>());
            mean - 1.645 * error >= recall
        };
        let (mut less, mut enough) = (0, self.n_cells);
        while enough - less > 1 {
            let middle = usize::midpoint(less, enough);
            if is_enough(middle) { enough = middle } else { less = middle }
        }
        enough
    }

    /// The share of all rows that so many cells of a row hold.
    pub(super) fn share_of(&self, cells: usize) -> f64 {
        let held = |(_, sums): &(Vec<u32>, Vec<usize>)| {
            sums[cells.clamp(1, self.n_cells) - 1] as f64 / self.n as f64
        };
        self.of_rows.iter().map(held).sum::<f64>() / self.of_rows.len().max(1) as f64
    }
}
