//! Queries that are not certain, by cells: products of rows less the centre of a cell lose little
//! of distances within it.
//!
//! Centres are queries of a sample, each the farthest from those before it (Gonzalez, "Clustering
//! to minimize the maximum intercluster distance", 1985), until all of the sample are so near to
//! one that TF32 tells their neighbours apart.
use super::distances::distances_;
use super::normalise::{Form, Normal, Scale};
use super::{Found, Keys, Knn, Normals, OP, Pair};
use crate::arrays::gather_rows;
use crate::core::op::new_tensor;
use candle::{DType, Result, Tensor};

/// Queries of the sample, and the most cells, each of which takes a copy of all rows.
const SAMPLE: usize = 512;
const CELLS: usize = 32;
/// The square of a cell's radius by that of the median query's last neighbour: what TF32 loses of
/// the first, 2^-9 of it, is then a small part of the second.
const RADIUS: f64 = 128.;

impl Knn<'_> {
    /// Searches the queries `picks` again, those of each cell with products about its centre.
    pub(super) fn by_cells(&self, pair: Pair<'_>, picks: &[u32], found: &Found, bad: &Tensor) -> Result<()> {
        let centres = self.centres(pair, picks, found, bad)?;
        let cells = self.cells(pair, picks, &centres, bad)?;
        for (centre, picks) in centres.iter().zip(&cells).filter(|(_, picks)| !picks.is_empty()) {
            let queries = gather_rows(pair.queries, picks)?;
            let means = pair.queries.get(*centre as usize)?.contiguous()?;
            let scale = Scale::about(Pair { queries: &queries, ..pair }, Some(means))?;
            let normal = |t, at| Normal::new(t, &scale, Form::Centred, true, &bad.narrow(0, at, 1)?);
            let (rows, queries) = (normal(pair.rows, 0)?, normal(&queries, 1)?);
            let normals = Normals { queries: queries.clone(), rows, keys: Keys::Products, scale };
            self.nearest(pair, &normals, &queries, Some(picks), found)?;
        }
        Ok(())
    }

    /// Queries of `picks` that are centres.
    fn centres(&self, pair: Pair<'_>, picks: &[u32], found: &Found, bad: &Tensor) -> Result<Vec<u32>> {
        let count = SAMPLE.min(picks.len());
        let sample: Vec<u32> = (0..count).map(|i| picks[i * picks.len() / count]).collect();
        let rows = gather_rows(pair.queries, &sample)?;
        let (squares, factor) = squares(&rows, &rows, bad)?;
        let squares = squares.to_vec2::<f32>()?;
        let mut last =
            gather_rows(&found.farthest.unsqueeze(1)?, &sample)?.flatten_all()?.to_vec1::<f64>()?;
        let median = *last.select_nth_unstable_by(count / 2, f64::total_cmp).1;
        let enough = (RADIUS * median * factor * factor) as f32;
        let (mut centres, mut nearest) = (vec![], vec![f32::INFINITY; count]);
        // One at least.
        while centres.len() < CELLS {
            let farthest = (0..count).max_by(|&a, &b| nearest[a].total_cmp(&nearest[b])).unwrap_or(0);
            if !centres.is_empty() && nearest[farthest] <= enough {
                break;
            }
            centres.push(sample[farthest]);
            nearest.iter_mut().zip(&squares[farthest]).for_each(|(near, &square)| *near = near.min(square));
        }
        Ok(centres)
    }

    /// The queries of each centre, in their order.
    fn cells(&self, pair: Pair<'_>, picks: &[u32], centres: &[u32], bad: &Tensor) -> Result<Vec<Vec<u32>>> {
        let (queries, of_cells) = (gather_rows(pair.queries, picks)?, gather_rows(pair.queries, centres)?);
        let nearest = squares(&queries, &of_cells, bad)?.0.argmin(1)?.to_vec1::<u32>()?;
        let mut cells = vec![vec![]; centres.len()];
        picks.iter().zip(nearest).for_each(|(&pick, cell)| cells[cell as usize].push(pick));
        Ok(cells)
    }
}

/// Squared distances of all pairs, `[m, n]`, and the factor by which rows were multiplied before.
fn squares(a: &Tensor, b: &Tensor, bad: &Tensor) -> Result<(Tensor, f64)> {
    let scale = Scale::of(Pair { queries: a, rows: b, left_out: None })?;
    let points = |t| {
        Ok::<_, candle::Error>(Normal::new(t, &scale, Form::Scaled, false, &bad.narrow(0, 0, 1)?)?.points)
    };
    let halves = new_tensor(OP, (a.dim(0)?, b.dim(0)?), DType::F32, a.device())?;
    distances_(&halves, &points(a)?, &points(b)?, super::Metric::Euclidean)?;
    Ok(((halves * -2.)?, scale.factor()?))
}
