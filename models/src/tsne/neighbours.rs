//! The search for neighbours, in which a draw decides between rows that are equally far.
//!
//! A search takes the lower row of two that are equally far. Where many are (equal rows, rows of
//! categories, angles with rows of zeros), the first rows of a file would be neighbours of all
//! others, and their numbers make structure. So one neighbour more than wanted is searched, and
//! where the last two are equally far, each row draws among all that are.
use super::distances::{Distances, HostRows};
use super::{Draw, Metric, Neighbours, TsneConfig};
use crate::{Group, Philox};
use candle::{DType, Device, Result, Tensor};
use chandlery_ops::arrays::elementwise::{abs, contiguous};
use chandlery_ops::arrays::gather_rows;
use chandlery_ops::tsne::{
    ApproximateNeighbours, Recall, StreamedSearch, knn_approximate_in_group, knn_in_group, knn_streamed,
};
use rayon::prelude::*;

/// Rows that are drawn among: all where there are no more, else so many that are drawn anew for
/// each [`SHARING`] rows.
const CANDIDATES: usize = 4096;
/// Rows that draw among the same candidates.
const SHARING: usize = 64;
/// Of the search on a GPU.
const MOST_ON_GPU: usize = 2457;

/// By what rows are multiplied before their distances are f32: a power of two that brings the
/// largest entry near 1, where squares or sums of theirs may not fit f32; none where they do, and
/// for angles and sets, on which the unit has no influence.
pub(super) fn unit_of(rows: &Tensor, metric: Metric) -> Result<Option<f64>> {
    const SAFE: std::ops::Range<f64> = 1e-15..1e15;
    let has_no_unit =
        matches!(metric, Metric::Cosine | Metric::Correlation | Metric::Hamming | Metric::Jaccard);
    if has_no_unit || rows.elem_count() == 0 {
        return Ok(None);
    }
    let largest = largest_of(rows)?;
    let is_safe = SAFE.contains(&largest) || largest == 0. || !largest.is_finite();
    Ok((!is_safe).then(|| (-largest.log2().ceil()).exp2()))
}

/// The largest magnitude of an entry of rows, of which there is one at least. Row by row: a maximum
/// over all entries at once is one block's on a GPU.
fn largest_of(rows: &Tensor) -> Result<f64> {
    Ok(abs(rows)?.max(1)?.max(0)?.to_scalar::<f32>()?.into())
}

/// Rows in another unit.
pub(super) fn in_unit(rows: &Tensor, unit: Option<f64>) -> Result<Tensor> {
    match unit {
        Some(unit) => (rows.to_dtype(DType::F64)? * unit)?.to_dtype(DType::F32),
        None => Ok(rows.clone()),
    }
}

/// What a search finds.
pub(super) struct Found {
    pub neighbours: Neighbours,
    /// How many of the nearest they are.
    pub recall: Recall,
    /// Distances are this times those of the rows.
    pub unit: f64,
}

/// Who searches.
#[derive(Clone, Copy)]
pub(super) enum By<'a> {
    /// The device of the rows, and those of the other ranks, which have the rows too: each searches
    /// for its part, and gets all.
    Ranks(&'a Group),
    /// This device, in rows of host memory, of which it holds so many bytes at a time.
    Stretches(&'a Device, u64),
}

/// The neighbours of prepared rows, f32 `[n, n_features]`, on the device that searches.
pub(super) fn search(by: By<'_>, config: &TsneConfig, philox: Philox, read: &Tensor) -> Result<Found> {
    let unit = unit_of(read, config.metric)?;
    let (neighbours, recall) = search_near_1(by, config, philox, &in_unit(read, unit)?)?;
    Ok(Found { neighbours, recall, unit: unit.unwrap_or(1.) })
}

/// The same for rows in a unit in which f32 holds their distances.
fn search_near_1(
    by: By<'_>,
    config: &TsneConfig,
    philox: Philox,
    read: &Tensor,
) -> Result<(Neighbours, Recall)> {
    let (n, metric) = (read.dim(0)?, config.metric);
    let k = config.neighbours_of(n);
    let on_gpu = match by {
        By::Ranks(_) => read.device().is_cuda(),
        By::Stretches(device, _) => device.is_cuda(),
    };
    let more = if k + 1 < n && !(on_gpu && k >= MOST_ON_GPU) { k + 1 } else { k };
    let recall = if config.is_approximate(n) { config.recall } else { 1. };
    let of_cells = Draw::Cells.of(philox);
    let found = match by {
        By::Ranks(group) if recall < 1. => {
            knn_approximate_in_group(group, read, more, metric, recall, of_cells)?
        }
        By::Ranks(group) => ApproximateNeighbours::exact(knn_in_group(group, read, more, metric)?)?,
        By::Stretches(device, bytes) => {
            knn_streamed(read, device, &StreamedSearch { k: more, metric, recall, bytes }, of_cells)?
        }
    };
    let (found, recall) = (found.neighbours, found.recall);
    if more == k {
        return Ok((found, recall));
    }
    // Of many equals the last three are; which of two comes first makes no structure.
    let some = (k + 1).min(3);
    let last = contiguous(&found.distances.narrow(1, k + 1 - some, some)?)?.to_vec2::<f32>()?;
    let suspects: Vec<u32> =
        (0..).zip(&last).filter(|(_, last)| near(last, metric)).map(|(i, _)| i).collect();
    let nearest = found.first(k)?;
    if suspects.is_empty() {
        return Ok((nearest, recall));
    }
    Ok((Ties { read, metric, k, philox }.broken(&found, nearest, &suspects)?, recall))
}

/// Whether the first and the last of distances, ascending, may be one but for rounding to f32: of
/// the distances, and for the correlation of the rows without their means, which moves a distance
/// by as much as its root times what moves them.
pub(super) fn near(last: &[f32], metric: Metric) -> bool {
    const ROUNDING: f32 = 16. * f32::EPSILON;
    let of_rows = if metric == Metric::Correlation { 1. } else { 0. };
    matches!(last, &[a, .., b] if b <= a + ROUNDING * (a + of_rows * (a.max(0.).sqrt() + ROUNDING)))
}

struct Ties<'a> {
    read: &'a Tensor,
    metric: Metric,
    k: usize,
    philox: Philox,
}

/// Rows that are drawn among.
struct Among<'a> {
    distances: &'a Distances,
    rows: &'a HostRows,
    /// Numbers that equal rows share, by place; none where equal rows are not those at distance 0.
    equals: Option<Vec<u32>>,
    /// The place of each row in both.
    places: Vec<u32>,
}

impl Ties<'_> {
    /// The nearest with a draw for each of `suspects` of which the last of `k` is as far as the
    /// next.
    fn broken(&self, found: &Neighbours, nearest: Neighbours, suspects: &[u32]) -> Result<Neighbours> {
        let (n, k) = (self.read.dim(0)?, self.k);
        let last = gather_rows(&found.indices, suspects)?.to_vec2::<u32>()?;
        let tied = self.equally_far(&last, suspects)?;
        if tied.is_empty() {
            return Ok(nearest);
        }
        let chunks: Vec<_> = tied
            .chunks(SHARING)
            .enumerate()
            .map(|(chunk, rows)| (self.candidates(chunk as u64, n), rows))
            .collect();
        // Of few ties, only the rows that are compared leave the device.
        let mut rows: Vec<u32> = chunks.iter().flat_map(|(candidates, _)| candidates).copied().collect();
        rows.extend(tied.iter().flat_map(|(i, found)| found.iter().chain([i])));
        rows.par_sort_unstable();
        rows.dedup();
        let mut places: Vec<u32> = (0..n as u32).collect();
        rows.iter().zip(0..).for_each(|(&row, place)| places[row as usize] = place);
        let distances = Distances::new(&gather_rows(self.read, &rows)?, self.metric)?;
        let all: Vec<u32> = (0..rows.len() as u32).collect();
        let among =
            Among { equals: distances.equals(&all)?, rows: distances.host()?, distances: &distances, places };
        let drawn: Vec<(u32, Vec<u32>)> = chunks
            .par_iter()
            .flat_map_iter(|(candidates, rows)| {
                let drawn = rows
                    .iter()
                    .filter_map(|(i, found)| Some((*i, self.drawn(&among, *i, found, candidates)?)));
                drawn.collect::<Vec<_>>()
            })
            .collect();
        if drawn.is_empty() {
            return Ok(nearest);
        }
        let mut indices = nearest.indices.flatten_all()?.to_vec1::<u32>()?;
        for (i, row) in drawn {
            indices[i as usize * k..][..k].copy_from_slice(&row);
        }
        let indices = Tensor::from_vec(indices, nearest.indices.shape(), nearest.indices.device())?;
        Ok(Neighbours { indices, ..nearest })
    }

    /// Those of `suspects` of which the last two of `found` are equally far, with what was found of
    /// them.
    fn equally_far(&self, found: &[Vec<u32>], suspects: &[u32]) -> Result<Vec<(u32, Vec<u32>)>> {
        let k = self.k;
        let last: Vec<u32> = found.iter().flat_map(|found| [found[k - 1], found[k]]).collect();
        let distances = Distances::new(self.read, self.metric)?;
        let far = distances.of_pairs(suspects, &last)?;
        let are_equal = |s: &usize| distances.equal(far[2 * s], far[2 * s + 1]);
        Ok((0..suspects.len()).filter(are_equal).map(|s| (suspects[s], found[s].clone())).collect())
    }

    /// Rows that are looked at for those that are as far, ascending.
    fn candidates(&self, chunk: u64, n: usize) -> Vec<u32> {
        if n <= CANDIDATES {
            return (0..n as u32).collect();
        }
        let philox = Draw::Candidates.of(self.philox);
        let from = chunk * CANDIDATES as u64;
        let row = |e| ((u64::from(philox.bits(e)) * n as u64) >> 32) as u32;
        let mut rows: Vec<u32> = (from..from + CANDIDATES as u64).map(row).collect();
        rows.sort_unstable();
        rows.dedup();
        rows
    }

    /// Neighbours of row `i`, of which `found` are the nearest and one more; none where the last
    /// two are not equally far.
    fn drawn(&self, among: &Among<'_>, i: u32, found: &[u32], candidates: &[u32]) -> Option<Vec<u32>> {
        let (&next, nearest) = found.split_last()?;
        let Among { distances, rows, equals, places } = among;
        let at = |row: u32| places[row as usize] as usize;
        let (own, last) = (at(i), at(*nearest.last()?));
        let far = rows.exact(own, last);
        let is_as_far = |&j: &u32| match equals {
            Some(equals) if far == 0. => equals[at(j)] == equals[own],
            _ => distances.equal(rows.up_to(own, at(j), 2. * far), far),
        };
        if !is_as_far(&next) {
            return None;
        }
        let (of_search, mut row): (Vec<u32>, Vec<u32>) = nearest.iter().partition(|j| is_as_far(j));
        let philox = Philox { offset: u64::from(i) << 32, ..Draw::Ties.of(self.philox) };
        let by_chance = |rows: &mut Vec<u32>| rows.sort_by_cached_key(|&j| (philox.bits(j.into()), j));
        let mut equals: Vec<u32> = candidates.iter().filter(|&j| *j != i && is_as_far(j)).copied().collect();
        by_chance(&mut equals);
        let mut others: Vec<u32> = of_search.into_iter().filter(|j| !equals.contains(j)).collect();
        by_chance(&mut others);
        row.extend(equals.into_iter().chain(others).take(self.k - row.len()));
        Some(row)
    }
}
