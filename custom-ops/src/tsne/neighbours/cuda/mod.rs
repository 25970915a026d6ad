//! The search on a GPU: blocks of products, lower bounds of distances, candidates, and their
//! distances in f64.
//!
//! Each product of normalised rows gives a lower bound of a distance: less what rounding may take
//! from it, `error · |q| |x|`. The rows with the least bounds are the candidates of a query; it is
//! certain where its last neighbour is nearer than the bound of every other row. Queries that are
//! not certain, because they are far from the mean and near each other, are searched again: by
//! cells of queries, about whose centres products lose less ([`local`]); then with distances from
//! differences in place of products, which lose nothing; and the last, of which more rows are as
//! near as the last neighbour than there are candidates, are refined: every row is measured whose
//! bound does not exceed the distance of the last neighbour so far.
//!
//! Products of many features are in TF32. Products of few are in f32: writing and reading them
//! takes longer than the arithmetic. Distances that no product gives take the place of products, in
//! f32 (`kernels/tsne/distances.cu`).
//!
//! With `u = 2⁻²⁴`, `d` features, and operands that are rounded to TF32 beforehand, so that it does
//! not matter whether the tensor cores round or cut:
//!
//! ```text
//! error = 2 (2⁻¹⁰ + 2⁻²² + (d/4 + 32) · 4u) + 2⁻²⁰    TF32: two factors of 2⁻¹¹ each; sums of at least four terms at a time, which may be cut
//! error = 2 (d + 16) · 2u + 2⁻²⁰                      f32: one rounding of at most 2u for each term
//! share = 1 − (d + 8) · 2u                            differences: each term is rounded thrice, and each sum once, by at most u of itself
//! ```
//!
//! `2⁻²⁰` is for the rounding of rows and of the bound itself.
mod distances;
mod local;
mod normalise;
mod steps;
mod visit;

use super::{Entries, Knn, LeftOut, Metric, Neighbours, OP, not_finite};
use crate::core::check::address;
use crate::core::op::{new_tensor, not_recording, operands};
use crate::layers::gemm::{Factors, Precision, gemm_};
use candle::{DType, Result, Tensor};
use distances::distances_;
use normalise::{Form, Normal, Scale, half_squares};
use steps::{Candidates, Lists, Rank, Refine, Search, Select};
pub(super) use visit::unit_rows;

/// Rows of a block of products, and its columns: 32 MiB, of which the L2 of a large GPU holds most.
const QUERIES: usize = 1024;
const COLUMNS: usize = 8192;
/// FEW of kernels/tsne/nearest.cu: features of which squared distances are taken where they are
/// needed.
const FEW: usize = 8;
/// The most features whose products are in f32.
const MOST_IN_F32: usize = 128;
/// Uncertain queries up to which each is refined at once.
const FEW_QUERIES: usize = 64;

/// What stands in the place of products: `Form` of kernels/tsne/nearest.cu.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keys {
    Products,
    Distances,
    /// Squared distances of few features, taken where they are needed.
    Rows,
}

/// Rows, halves and scale of [`RowsAboutMean`](super::RowsAboutMean).
pub(super) fn about_mean(rows: &Tensor) -> Result<(Tensor, Tensor, f64)> {
    let scale = Scale::of_centred(Pair { queries: rows, rows, left_out: None })?;
    let bad = Tensor::full(-1i64, 1, rows.device())?;
    let about = Normal::new(rows, &scale, Form::Centred, false, &bad)?.points;
    Ok((about.clone(), half_squares(&about)?, scale.factor()?))
}

/// Queries and rows, as they came.
#[derive(Clone, Copy)]
struct Pair<'a> {
    queries: &'a Tensor,
    rows: &'a Tensor,
    /// For each query the row that is left out, where that is not its own number.
    left_out: Option<&'a Tensor>,
}

impl Pair<'_> {
    /// Whether the queries are the rows.
    fn is_one(&self) -> bool {
        let place = |t: &Tensor| (address(t), t.layout().start_offset(), t.elem_count());
        place(self.queries) == place(self.rows)
    }
}

/// Both as bounds take them.
struct Normals {
    queries: Normal,
    rows: Normal,
    keys: Keys,
    scale: Scale,
}

/// What is found of all queries.
struct Found {
    neighbours: Neighbours,
    /// The distance of the last neighbour in f64, squared for the Euclidean one.
    farthest: Tensor,
    uncertain: Tensor,
}

impl Found {
    /// The queries that are not certain, those apart that equal all their neighbours: only refining
    /// tells which equals come first. Waits for the device.
    fn uncertain(&self) -> Result<(Vec<u32>, Vec<u32>)> {
        let uncertain = self.uncertain.to_vec1::<u8>()?;
        let picks: Vec<u32> = (0..uncertain.len() as u32).filter(|&q| uncertain[q as usize] != 0).collect();
        if picks.is_empty() {
            return Ok((vec![], picks));
        }
        let farthest = self.farthest.to_vec1::<f64>()?;
        Ok(picks.into_iter().partition(|&q| farthest[q as usize] == 0.))
    }
}

impl Knn<'_> {
    /// The search for contiguous f32 tensors on one GPU.
    pub(super) fn find(&self, queries: &Tensor, rows: &Tensor) -> Result<Neighbours> {
        not_recording(OP, rows.device())?;
        let left_out = match self.left_out {
            LeftOut::Rows(of_queries) => Some(Tensor::new(of_queries, rows.device())?),
            LeftOut::None | LeftOut::Same => None,
        };
        let pair = Pair { queries, rows, left_out: left_out.as_ref() };
        let bad = Tensor::full(-1i64, 2, rows.device())?;
        let mut normals = self.normals(pair, self.keys(), &bad)?;
        let found = self.room(pair)?;
        self.nearest(pair, &normals, &normals.queries, None, &found)?;
        if self.entries == Entries::Unknown {
            self.check_finite(&bad, pair)?;
        }
        let (mut equal, mut picks) = found.uncertain()?;
        if normals.keys == Keys::Products && !(equal.is_empty() && picks.is_empty()) {
            drop(normals);
            if picks.len() > FEW_QUERIES
                && self.metric == Metric::Euclidean
                && self.precision() == Precision::Tf32
            {
                self.by_cells(pair, &picks, &found, &bad)?;
                (equal, picks) = found.uncertain()?;
            }
            normals = self.normals(pair, Keys::Distances, &bad)?;
            if picks.len() > FEW_QUERIES {
                self.nearest(pair, &normals, &normals.queries.picked(&picks)?, Some(&picks), &found)?;
                (equal, picks) = found.uncertain()?;
            }
        }
        picks.extend(equal);
        for picks in picks.chunks(QUERIES) {
            self.refine(picks, pair, &normals, &found)?;
        }
        Ok(found.neighbours)
    }

    /// Memory for what is found.
    fn room(&self, pair: Pair<'_>) -> Result<Found> {
        let (m, k) = (pair.queries.dim(0)?, self.k);
        let new = |shape: &[usize], dtype| new_tensor(OP, shape, dtype, pair.rows.device());
        Ok(Found {
            neighbours: Neighbours {
                indices: new(&[m, k], DType::U32)?,
                distances: new(&[m, k], DType::F32)?,
            },
            farthest: new(&[m], DType::F64)?,
            uncertain: new(&[m], DType::U8)?,
        })
    }

    fn keys(&self) -> Keys {
        match self.metric {
            metric if metric.has_no_product() => Keys::Distances,
            Metric::Euclidean if self.n_features <= FEW => Keys::Rows,
            _ => Keys::Products,
        }
    }

    /// Of products: their precision.
    fn precision(&self) -> Precision {
        if self.n_features > MOST_IN_F32 { Precision::Tf32 } else { Precision::F32 }
    }

    /// Queries and rows for bounds of this kind; the places of entries that are not finite go to
    /// `bad`.
    fn normals(&self, pair: Pair<'_>, keys: Keys, bad: &Tensor) -> Result<Normals> {
        let (form, scale) = match self.metric {
            Metric::Cosine | Metric::Correlation => (Form::Unit, Scale::default()),
            _ if keys == Keys::Products => (Form::Centred, Scale::of_centred(pair)?),
            _ => (Form::Scaled, Scale::of(pair)?),
        };
        let rounded = keys == Keys::Products && self.precision() == Precision::Tf32;
        let normal = |t, at| Normal::new(t, &scale, form, rounded, &bad.narrow(0, at, 1)?);
        let rows = normal(pair.rows, 0)?;
        let queries = if pair.is_one() { rows.clone() } else { normal(pair.queries, 1)? };
        Ok(Normals { queries, rows, keys, scale })
    }

    /// Refuses entries that are not finite; waits for the device.
    fn check_finite(&self, bad: &Tensor, pair: Pair<'_>) -> Result<()> {
        let at = bad.to_vec1::<i64>()?;
        for (name, at, t) in [("rows", at[0], pair.rows), ("queries", at[1], pair.queries)] {
            if let Ok(at) = usize::try_from(at) {
                let (row, column) = (at / self.n_features, at % self.n_features);
                return Err(not_finite(name, row, column, t.get(row)?.get(column)?.to_scalar()?));
            }
        }
        Ok(())
    }

    /// Writes what bounds of a block of products come from: products, or distances in their place.
    fn fill(
        &self,
        normals: &Normals,
        block: &Tensor,
        query: &Tensor,
        column: usize,
    ) -> Result<Option<Tensor>> {
        let (count, columns) = (query.dim(0)?, COLUMNS.min(self.n - column));
        if normals.keys == Keys::Rows {
            return Ok(None);
        }
        let product = block.narrow(0, 0, count * columns)?.reshape((count, columns))?;
        let against = normals.rows.points.narrow(0, column, columns)?;
        match normals.keys {
            Keys::Products => {
                gemm_(&product, query, &against.t()?, Factors::OVERWRITE, self.precision())?;
            }
            _ => distances_(&product, query, &against, self.metric)?,
        }
        Ok(Some(product))
    }

    /// Memory for a block of products of at most so many queries.
    fn block(&self, normals: &Normals, queries: usize) -> Result<Tensor> {
        let len = if normals.keys == Keys::Rows { 1 } else { QUERIES.min(queries) * COLUMNS.min(self.n) };
        new_tensor(OP, len, DType::F32, normals.rows.points.device())
    }

    /// The best candidates of every query, or of those that are picked, and which queries are
    /// certain. `of` are these queries for bounds.
    fn nearest(
        &self,
        pair: Pair<'_>,
        normals: &Normals,
        of: &Normal,
        picks: Option<&[u32]>,
        found: &Found,
    ) -> Result<()> {
        let device = pair.rows.device();
        let m = of.points.dim(0)?;
        let lists = Lists::of(self.k)?;
        let picks = picks.map(|picks| Tensor::new(picks, device)).transpose()?;
        let block = self.block(normals, m)?;
        for first in (0..m).step_by(QUERIES) {
            let count = QUERIES.min(m - first);
            let of = of.part(first, count)?;
            let candidates = Candidates::new(&lists, count, device)?;
            for column in (0..self.n).step_by(COLUMNS) {
                let products = self.fill(normals, &block, &of.points, column)?;
                let search = Search::new(self, normals.keys, first, column);
                let io = operands(OP).write("lists", &candidates.lists).write("counts", &candidates.counts);
                let io = io.write("limits", &candidates.limits).maybe("products", products.as_ref());
                let io =
                    io.read("squares", &normals.rows.squares).read("magnitudes", &normals.rows.magnitudes);
                let io = io.read("points", &normals.rows.points).read("query_points", &of.points);
                let io = io.read("query_magnitudes", &of.magnitudes).maybe("picks", picks.as_ref());
                let io = io.maybe("left_out", pair.left_out);
                io.run(&Select { search, lists, count })?;
            }
            let io = operands(OP).write("indices", &found.neighbours.indices);
            let io = io.write("distances", &found.neighbours.distances).write("farthest", &found.farthest);
            let io = io.write("uncertain", &found.uncertain).read("lists", &candidates.lists);
            let io = io.read("counts", &candidates.counts).read("limits", &candidates.limits);
            let io = io.read("queries", pair.queries).read("rows", pair.rows);
            let io = io.maybe("query_lengths", normals.queries.lengths.as_ref());
            let io = io.maybe("lengths", normals.rows.lengths.as_ref()).read("query_squares", &of.squares);
            let io = io.maybe("largest", normals.scale.largest.as_ref()).maybe("picks", picks.as_ref());
            let io = io.maybe("numbers", None);
            let search = Search::new(self, normals.keys, first, 0);
            io.run(&Rank { search, lists, count })?;
        }
        Ok(())
    }

    /// Finds the neighbours of a block of queries anew, in the place of what was found of them.
    fn refine(&self, picks: &[u32], pair: Pair<'_>, normals: &Normals, found: &Found) -> Result<()> {
        let (device, count) = (pair.rows.device(), picks.len());
        let of = normals.queries.picked(picks)?;
        let picks = Tensor::new(picks, device)?;
        let block = self.block(normals, count)?;
        let new = |shape: &[usize], dtype| new_tensor(OP, shape, dtype, device);
        let (near, near_rows) = (new(&[count, self.k], DType::I64)?, new(&[count, self.k], DType::U32)?);
        let (near_counts, waiting_counts) = (new(&[count], DType::U32)?, new(&[count], DType::U32)?);
        let waiting = new(&[count, Refine::WAITING], DType::U32)?;
        for column in (0..self.n).step_by(COLUMNS) {
            let products = self.fill(normals, &block, &of.points, column)?;
            let io = operands(OP).write("indices", &found.neighbours.indices);
            let io = io.write("distances", &found.neighbours.distances).write("farthest", &found.farthest);
            let io =
                io.write("near", &near).write("near_rows", &near_rows).write("near_counts", &near_counts);
            let io = io.write("waiting", &waiting).write("waiting_counts", &waiting_counts);
            let io = io.maybe("products", products.as_ref());
            let io = io.read("squares", &normals.rows.squares).read("magnitudes", &normals.rows.magnitudes);
            let io = io.read("points", &normals.rows.points).read("query_points", &of.points);
            let io = io.read("query_magnitudes", &of.magnitudes).read("queries", pair.queries);
            let io = io.read("rows", pair.rows).maybe("query_lengths", normals.queries.lengths.as_ref());
            let io = io.maybe("lengths", normals.rows.lengths.as_ref()).read("query_squares", &of.squares);
            let io = io.maybe("largest", normals.scale.largest.as_ref()).read("picks", &picks);
            let io = io.maybe("left_out", pair.left_out);
            let search = Search::new(self, normals.keys, 0, column);
            io.run(&Refine { search, count, is_last: column + COLUMNS >= self.n })?;
        }
        Ok(())
    }

    /// All distances of contiguous f32 tensors on one GPU, none of them empty: `[n_queries, n]`.
    /// For a metric that no product gives.
    pub(super) fn distances(&self, queries: &Tensor, rows: &Tensor) -> Result<Tensor> {
        not_recording(OP, rows.device())?;
        let bad = Tensor::full(-1i64, 1, rows.device())?;
        let points =
            |t| Ok::<_, candle::Error>(Normal::new(t, &Scale::default(), Form::Scaled, false, &bad)?.points);
        let (queries, rows) = (points(queries)?, points(rows)?);
        let halves = new_tensor(OP, (queries.dim(0)?, rows.dim(0)?), DType::F32, rows.device())?;
        distances_(&halves, &queries, &rows, self.metric)?;
        halves * -2.
    }
}
