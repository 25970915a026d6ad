//! Approximate nearest neighbours by cells.
use super::{Entries, LeftOut, Metric, Neighbours, OP as SEARCH, centred, find, knn, knn_of};
use crate::arrays::{gather_rows, gather_rows_by, sort_by_key};
use crate::core::check::matrix;
use crate::core::draw::uniform;
use crate::core::philox::Philox;
use candle::{DType, Device, Result, Tensor};

const OP: &str = "knn_approximate";
/// Rows of a cell, about.
const CELL: usize = 1024;
/// Times that a cell may hold so many.
const MOST: usize = 4;
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
    /// The share of neighbours that are no farther than the `k` nearest, in `[0, 1]`, measured on
    /// 256 rows (all where there are fewer).
    pub recall: f64,
}

/// Most of the `k` nearest other rows of each row of a contiguous f32 matrix `rows`,
/// `[n, n_features]`: rows are sorted into cells of about 1,024 around centres (Lloyd's k-means on
/// a sample), and neighbours are searched in a row's own cell and the `probes − 1` cells whose
/// centres are nearest to its own. Of a cell that holds more than 4,096 rows because they are
/// equal, others look at the first 4,096 alone.
///
/// Every metric is searched in this way; how well cells of means fit it shows in the recall.
///
/// The same `philox` gives the same bits on one device. With at least as many probes as cells the
/// result is exact.
///
/// Cost: about `2 · n · 1024 · probes · n_features` FLOP and `n² / 1024` products for the cells,
/// where [`knn`] takes `2 · n² · n_features`.
///
/// # Errors
/// As [`knn`], and when `probes` is 0.
///
/// Source: Jégou, Douze and Schmid, "Product quantization for nearest neighbor search", 2011
/// (inverted file).
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
    if n / CELL <= probes {
        return Ok(ApproximateNeighbours { neighbours: knn(rows, k, metric)?, recall: 1. });
    }
    if metric == Metric::Correlation {
        matrix(SEARCH, "rows", "[n, n_features]", rows, &[DType::F32])?;
        return knn_approximate(&centred(rows)?, k, Metric::Cosine, probes, philox);
    }
    let cells = Cells::new(rows, k, metric, probes, philox)?;
    let neighbours = cells.search(rows, k, metric, probes)?;
    let recall = recall(rows, &neighbours, k, metric)?;
    Ok(ApproximateNeighbours { neighbours, recall })
}

/// Rows by cell.
struct Cells {
    /// For each cell the nearest others, by the distance of their centres: as many as are probed,
    /// and so many that rows do not run short.
    near: Vec<Vec<u32>>,
    /// Rows of each cell, ascending; none is empty.
    members: Vec<Vec<u32>>,
}

/// Evenly spaced rows.
fn spaced(n: usize, count: usize) -> Vec<u32> {
    let count = count.min(n);
    (0..count).map(|i| (i * n / count) as u32).collect()
}

impl Cells {
    fn new(rows: &Tensor, k: usize, metric: Metric, probes: usize, philox: Philox) -> Result<Self> {
        let (mut members, mut centres) = (vec![], vec![]);
        for (cell, centre) in divided(rows, metric, philox)? {
            // What the sample did not see, as many rows in one place, is divided once more.
            let (len, at) = (cell.len(), centres.len() as u64 + 1);
            if len <= MOST * CELL {
                members.push(cell);
                centres.push(centre);
                continue;
            }
            let philox = Philox { offset: philox.offset.wrapping_add(at << 32), ..philox };
            for (part, centre) in divided(&gather_rows(rows, &cell)?, metric, philox)? {
                members.push(part.into_iter().map(|place| cell[place as usize]).collect());
                centres.push(centre);
            }
        }
        let near = match (members.len() - 1).min(probes.max(k + 1)) {
            0 => vec![vec![]; members.len()],
            most => knn(&Tensor::cat(&centres, 0)?, most, metric)?.indices.to_vec2::<u32>()?,
        };
        Ok(Self { near, members })
    }

    /// Calls `search` with rows of one cell and the rows among which their neighbours are searched,
    /// the first among them, both ascending. Rows of a cell that could not be divided, which as a
    /// rule are equal, are taken a part at a time: the cost does not grow with their square.
    fn each_search(
        &self,
        k: usize,
        probes: usize,
        mut search: impl FnMut(&[u32], &[u32]) -> Result<()>,
    ) -> Result<()> {
        let most = MOST * CELL.max(k);
        for (members, near) in self.members.iter().zip(&self.near) {
            let parts = members.len().div_ceil(most);
            for own in members.chunks(members.len().div_ceil(parts)) {
                let mut candidates = own.to_vec();
                for (probe, &other) in near.iter().enumerate() {
                    if probe + 1 >= probes && candidates.len() > 4 * k {
                        break;
                    }
                    candidates.extend(self.members[other as usize].iter().take(most));
                }
                candidates.sort_unstable();
                search(own, &candidates)?;
            }
        }
        Ok(())
    }

    fn search(&self, rows: &Tensor, k: usize, metric: Metric, probes: usize) -> Result<Neighbours> {
        let (mut indices, mut distances, mut order) = (vec![], vec![], vec![]);
        self.each_search(k, probes, |own, candidates| {
            let places: Vec<u32> =
                own.iter().map(|row| candidates.partition_point(|other| other < row) as u32).collect();
            let (queries, among) = (gather_rows(rows, own)?, gather_rows(rows, candidates)?);
            // The rows have been searched for their cells.
            let found = find(&queries, &among, k, metric, LeftOut::Rows(&places), Entries::Finite)?;
            let candidates = Tensor::new(candidates, rows.device())?;
            let global = gather_rows_by(&candidates, &found.indices.flatten_all()?)?;
            indices.push(global.reshape((own.len(), k))?);
            distances.push(found.distances);
            order.extend_from_slice(own);
            Ok(())
        })?;
        // Row i of what was found is row order[i].
        let mut places = vec![0u32; order.len()];
        order.iter().enumerate().for_each(|(place, &row)| places[row as usize] = place as u32);
        let back = |parts: &[Tensor]| gather_rows(&Tensor::cat(parts, 0)?, &places);
        Ok(Neighbours { indices: back(&indices)?, distances: back(&distances)? })
    }
}

/// The rows around each of about `n / 1024` centres, ascending, and the centre, `[1, n_features]`;
/// those of no rows are left out.
fn divided(rows: &Tensor, metric: Metric, philox: Philox) -> Result<Vec<(Vec<u32>, Tensor)>> {
    let n = rows.dim(0)?;
    let n_cells = n / CELL;
    let sample = gather_rows(rows, &spaced(n, n_cells * SAMPLE))?;
    let centres = centres(&sample, n_cells, metric, philox)?;
    let own = knn_of(rows, &centres, 1, metric)?.indices.flatten_all()?;
    let sorted = sort_by_key(&own, n_cells)?;
    let (offsets, order) = (sorted.offsets.to_vec1::<u32>()?, sorted.order.to_vec1::<u32>()?);
    let cells = offsets.windows(2).enumerate().filter(|(_, at)| at[0] < at[1]);
    cells
        .map(|(c, at)| Ok((order[at[0] as usize..at[1] as usize].to_vec(), centres.narrow(0, c, 1)?)))
        .collect()
}

/// Centres of cells of the sampled rows, `[n_cells, n_features]`; a centre without rows stays where
/// it is.
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

/// The share of neighbours of some rows that are no farther than the true ones.
fn recall(rows: &Tensor, found: &Neighbours, k: usize, metric: Metric) -> Result<f64> {
    let own = spaced(rows.dim(0)?, CHECKED);
    let queries = gather_rows(rows, &own)?;
    let exact = find(&queries, rows, k, metric, LeftOut::Rows(&own), Entries::Finite)?;
    let farthest = exact.distances.narrow(1, k - 1, 1)?.flatten_all()?.to_vec1::<f32>()?;
    let got = gather_rows(&found.distances, &own)?.to_vec2::<f32>()?;
    let right: usize =
        got.iter().zip(&farthest).map(|(got, most)| got.iter().filter(|d| *d <= most).count()).sum();
    Ok(right as f64 / (own.len() * k) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::normal;

    /// 12,000 rows, of which 7 of each 12 are equal.
    fn with_equal_rows() -> Result<Tensor> {
        let (n, d) = (12_000, 6);
        let mut all = normal(n * d, &Device::Cpu, Philox::new(5, 1))?.to_vec1::<f32>()?;
        for i in (0..n).filter(|i| i % 12 < 7) {
            all[i * d..(i + 1) * d].fill(0.25);
        }
        Tensor::from_vec(all, (n, d), &Device::Cpu)
    }

    #[test]
    fn a_cell_of_equal_rows_is_searched_a_part_at_a_time() -> Result<()> {
        let rows = with_equal_rows()?;
        let (k, probes) = (20, 3);
        let cells = Cells::new(&rows, k, Metric::Euclidean, probes, Philox::new(5, 2))?;
        assert!(cells.members.iter().any(|cell| cell.len() >= 7000), "no cell holds the equal rows");
        let mut searched = vec![0; 12_000];
        cells.each_search(k, probes, |own, candidates| {
            assert!(own.len() <= MOST * CELL && candidates.len() <= probes * MOST * CELL);
            assert!(own.is_sorted() && candidates.windows(2).all(|two| two[0] < two[1]));
            assert!(own.iter().all(|row| candidates.binary_search(row).is_ok()));
            own.iter().for_each(|&row| searched[row as usize] += 1);
            Ok(())
        })?;
        assert!(searched.iter().all(|&times| times == 1));
        Ok(())
    }

    #[test]
    fn equal_rows_are_found_lowest_first_and_count_as_found() -> Result<()> {
        let rows = with_equal_rows()?;
        let found = knn_approximate(&rows, 20, Metric::Euclidean, 4, Philox::new(5, 3))?;
        // All of 7 / 12, and at least half of the others.
        assert!(found.recall > (7. + 2.5) / 12., "recall {}", found.recall);
        let indices = found.neighbours.indices.to_vec2::<u32>()?;
        let distances = found.neighbours.distances.to_vec2::<f32>()?;
        for (i, (indices, distances)) in indices.iter().zip(&distances).enumerate() {
            assert!(!indices.contains(&(i as u32)), "row {i} is its own neighbour");
            let ascends = |(d, j): (&[f32], &[u32])| d[0] < d[1] || (d[0] == d[1] && j[0] < j[1]);
            assert!(distances.windows(2).zip(indices.windows(2)).all(ascends), "row {i}: {indices:?}");
            assert!(i % 12 >= 7 || distances.iter().all(|&d| d == 0.), "row {i}: {distances:?}");
        }
        Ok(())
    }
}
