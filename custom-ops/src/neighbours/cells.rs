//! Approximate nearest neighbours by cells.
use super::{Entries, Metric, Neighbours, OP as SEARCH, centred, find, knn, knn_of};
use crate::check::matrix;
use crate::draw::uniform;
use crate::gather_rows;
use crate::philox::Philox;
use crate::sort_by_key;
use candle::{DType, Device, Result, Tensor};

const OP: &str = "knn_approximate";
/// Rows of a cell, about.
const CELL: usize = 1024;
/// Rows for each cell that its centre is found from.
const SAMPLE: usize = 64;
/// Rounds of Lloyd's algorithm.
const ROUNDS: usize = 6;
/// Rows that the recall is measured on.
const CHECKED: usize = 256;

/// Neighbours, most of which are the nearest.
#[derive(Debug, Clone)]
pub struct ApproximateNeighbours {
    /// What was found, sorted by distance and index.
    pub neighbours: Neighbours,
    /// The share of the nearest rows that was found, in `[0, 1]`, measured on 256 rows (all where there are fewer).
    pub recall: f64,
}

/// Most of the `k` nearest other rows of each row of a contiguous f32 matrix `rows`, `[n, n_features]`: rows are sorted into cells of about 1,024
/// around centres (Lloyd's k-means on a sample), and neighbours are searched in a row's own cell and the `probes − 1` cells whose centres are
/// nearest to its own.
///
/// Every metric is searched in this way; how well cells of means fit it shows in the recall.
///
/// The same `philox` gives the same bits on one device. With at least as many probes as cells the result is exact.
///
/// Cost: about `2 · n · 1024 · probes · n_features` FLOP and `n² / 1024` products for the cells, where [`knn`] takes `2 · n² · n_features`.
///
/// # Errors
/// As [`knn`], and when `probes` is 0.
///
/// Source: Jégou, Douze and Schmid, "Product quantization for nearest neighbor search", 2011 (inverted file).
pub fn knn_approximate(
    rows: &Tensor,
    k: usize,
    metric: Metric,
    probes: usize,
    philox: Philox,
) -> Result<ApproximateNeighbours> {
    if probes == 0 {
        candle::bail!("{OP}: probes must be at least 1, got 0")
    }
    let n = rows.dims().first().copied().unwrap_or(0);
    let n_cells = n / CELL;
    if n_cells <= probes {
        return Ok(ApproximateNeighbours { neighbours: knn(rows, k, metric)?, recall: 1. });
    }
    if metric == Metric::Correlation {
        matrix(SEARCH, "rows", "[n, n_features]", rows, &[DType::F32])?;
        return knn_approximate(&centred(rows)?, k, Metric::Cosine, probes, philox);
    }
    let cells = Cells::new(rows, n_cells, k, metric, probes, philox)?;
    let neighbours = cells.search(rows, k, metric, probes)?;
    let recall = recall(rows, &neighbours, k, metric)?;
    Ok(ApproximateNeighbours { neighbours, recall })
}

/// Rows by cell; none is empty.
struct Cells {
    /// For each cell the nearest others, by the distance of their centres: as many as are probed, and so many that rows do not run short.
    near: Vec<Vec<u32>>,
    /// Where each cell begins in `order`, and the end of the last.
    starts: Vec<u32>,
    /// Rows, those of the first cell first.
    order: Vec<u32>,
}

/// Evenly spaced rows.
fn spaced(n: usize, count: usize) -> Vec<u32> {
    let count = count.min(n);
    (0..count).map(|i| (i * n / count) as u32).collect()
}

impl Cells {
    fn new(
        rows: &Tensor,
        n_cells: usize,
        k: usize,
        metric: Metric,
        probes: usize,
        philox: Philox,
    ) -> Result<Self> {
        let sample = gather_rows(rows, &spaced(rows.dim(0)?, n_cells * SAMPLE))?;
        let centres = centres(&sample, n_cells, metric, philox)?;
        let own = knn_of(rows, &centres, 1, metric)?.indices.flatten_all()?;
        let sorted = sort_by_key(&own, n_cells)?;
        let offsets = sorted.offsets.to_vec1::<u32>()?;
        let full: Vec<u32> =
            (0..n_cells as u32).filter(|&c| offsets[c as usize] < offsets[c as usize + 1]).collect();
        let near = match (full.len() - 1).min(probes.max(k + 1)) {
            0 => vec![vec![]; full.len()],
            most => knn(&gather_rows(&centres, &full)?, most, metric)?.indices.to_vec2::<u32>()?,
        };
        // Where an empty cell would begin, the next one does.
        let starts = full.iter().map(|&c| offsets[c as usize]).chain(offsets.last().copied()).collect();
        Ok(Self { near, starts, order: sorted.order.to_vec1()? })
    }

    /// Rows of a cell.
    fn members(&self, cell: usize) -> &[u32] {
        &self.order[self.starts[cell] as usize..self.starts[cell + 1] as usize]
    }

    fn search(&self, rows: &Tensor, k: usize, metric: Metric, probes: usize) -> Result<Neighbours> {
        let (mut indices, mut distances) = (vec![], vec![]);
        for (cell, near) in self.near.iter().enumerate() {
            // The cell itself comes first, so that query i is candidate i.
            let mut candidates = self.members(cell).to_vec();
            let m = candidates.len();
            for (probe, &other) in near.iter().enumerate() {
                if probe + 1 >= probes && candidates.len() > 4 * k {
                    break;
                }
                candidates.extend_from_slice(self.members(other as usize));
            }
            let among = gather_rows(rows, &candidates)?;
            // The rows have been searched for their cells.
            let found = find(&among.narrow(0, 0, m)?, &among, k, metric, true, Entries::Finite)?;
            let candidates = Tensor::new(candidates, rows.device())?;
            // One number for each neighbour of a cell: far from 2^32.
            indices.push(candidates.index_select(&found.indices.flatten_all()?, 0)?.reshape((m, k))?);
            distances.push(found.distances);
        }
        // Row i of what was found is row order[i].
        let mut places = vec![0u32; self.order.len()];
        self.order.iter().enumerate().for_each(|(place, &row)| places[row as usize] = place as u32);
        let back = |parts: &[Tensor]| gather_rows(&Tensor::cat(parts, 0)?, &places);
        Ok(Neighbours { indices: back(&indices)?, distances: back(&distances)? })
    }
}

/// Centres of cells of the sampled rows, `[n_cells, n_features]`; a centre without rows stays where it is.
fn centres(sample: &Tensor, n_cells: usize, metric: Metric, philox: Philox) -> Result<Tensor> {
    let device = sample.device();
    let (m, d) = sample.dims2()?;
    let draws = uniform(m, &Device::Cpu, philox)?.to_vec1::<f32>()?;
    let mut first: Vec<u32> = (0..m as u32).collect();
    first.sort_by(|&a, &b| draws[a as usize].total_cmp(&draws[b as usize]).then(a.cmp(&b)));
    let mut centres = gather_rows(sample, &first[..n_cells])?;
    let values = sample.flatten_all()?.to_vec1::<f32>()?;
    for _ in 0..ROUNDS {
        let own = knn_of(sample, &centres, 1, metric)?.indices.flatten_all()?.to_vec1::<u32>()?;
        let (mut sums, mut counts) = (vec![0f64; n_cells * d], vec![0u32; n_cells]);
        for (row, &cell) in values.chunks(d.max(1)).zip(&own) {
            counts[cell as usize] += 1;
            let sum = &mut sums[cell as usize * d..][..d];
            sum.iter_mut().zip(row).for_each(|(sum, &x)| *sum += f64::from(x));
        }
        let mut means = centres.flatten_all()?.to_vec1::<f32>()?;
        for (c, &count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            let mean = means[c * d..][..d].iter_mut().zip(&sums[c * d..][..d]);
            mean.for_each(|(mean, sum)| *mean = (sum / f64::from(count)) as f32);
        }
        centres = Tensor::from_vec(means, (n_cells, d), device)?;
    }
    Ok(centres)
}

/// The share of the nearest rows of some that was found.
fn recall(rows: &Tensor, found: &Neighbours, k: usize, metric: Metric) -> Result<f64> {
    let n = rows.dim(0)?;
    let own = spaced(n, CHECKED);
    // One more, because each row finds itself.
    let k_and_itself = (k + 1).min(n);
    let exact = knn_of(&gather_rows(rows, &own)?, rows, k_and_itself, metric)?.indices.to_vec2::<u32>()?;
    let got = gather_rows(&found.indices, &own)?.to_vec2::<u32>()?;
    let mut right = 0;
    for ((exact, got), own) in exact.iter().zip(&got).zip(&own) {
        right += exact.iter().filter(|j| *j != own).take(k).filter(|j| got.contains(j)).count();
    }
    Ok(right as f64 / (own.len() * k) as f64)
}
