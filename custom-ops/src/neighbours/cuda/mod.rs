//! The search on a GPU: blocks of products, lower bounds of distances, candidates, and their distances in f64.
//!
//! Each product of normalised rows gives a lower bound of a distance: less what rounding may take from it, `error · |q| |x|`. The rows with the
//! least bounds are the candidates of a query; it is certain where its last neighbour is nearer than the bound of every other row. The
//! others are refined: every row is looked at whose bound does not exceed the distance of the last neighbour so far. Where that would be
//! many, because rows are far from their mean and near each other, bounds come from differences in place of products, and lose nothing.
//!
//! Products of many features are in TF32. Products of few are in f32: writing and reading them takes longer than the arithmetic. Distances
//! that no product gives take the place of products, in f32 (`kernels/distances.cu`).
//!
//! With `u = 2⁻²⁴`, `d` features, and operands that are rounded to TF32 beforehand, so that it does not matter whether the tensor cores round
//! or cut:
//!
//! ```text
//! error = 2 (2⁻¹⁰ + 2⁻²² + (d/4 + 32) · 4u) + 2⁻²⁰    TF32: two factors of 2⁻¹¹ each; sums of at least four terms at a time, which may be cut
//! error = 2 (d + 16) · 2u + 2⁻²⁰                      f32: one rounding of at most 2u for each term
//! share = 1 − (d + 8) · 2u                            differences: each term is rounded thrice, and each sum once, by at most u of itself
//! ```
//!
//! `2⁻²⁰` is for the rounding of rows and of the bound itself.
mod distances;
mod normalise;
mod steps;

use super::{Entries, Knn, Metric, Neighbours, OP, not_finite};
use crate::gemm::{Factors, Precision, gemm_};
use crate::op::{address, new_tensor, not_recording, operands};
use candle::{DType, Result, Tensor};
use distances::distances_;
use normalise::{Form, Normal, Scale};
use steps::{Candidates, Lists, Rank, Refine, Search, Select};

/// Rows of a block of products, and its columns: 32 MiB, of which the L2 of a large GPU holds most.
const QUERIES: usize = 1024;
const COLUMNS: usize = 8192;
/// FEW of kernels/nearest.cu: features of which squared distances are taken where they are needed.
const FEW: usize = 8;
/// The most features whose products are in f32.
const MOST_IN_F32: usize = 128;
/// Queries of the first block that is refined with bounds of products.
const FIRST: usize = 128;
/// Where more than this share of the rows is looked at for the mean query, bounds by differences are cheaper.
const LOOKED_AT: f64 = 0.1;

/// What stands in the place of products: `Form` of kernels/nearest.cu.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keys {
    Products,
    Distances,
    /// Squared distances of few features, taken where they are needed.
    Rows,
}

/// Queries and rows, as they came.
#[derive(Clone, Copy)]
struct Pair<'a> {
    queries: &'a Tensor,
    rows: &'a Tensor,
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

impl Knn {
    /// The search for contiguous f32 tensors on one GPU.
    pub(super) fn find(&self, queries: &Tensor, rows: &Tensor) -> Result<Neighbours> {
        not_recording(OP, rows.device())?;
        let pair = Pair { queries, rows };
        let bad = Tensor::full(-1i64, 2, rows.device())?;
        let normals = self.normals(pair, self.keys(), &bad)?;
        let found = self.nearest(pair, &normals)?;
        if self.entries == Entries::Unknown {
            self.check_finite(&bad, pair)?;
        }
        let uncertain = found.uncertain.to_vec1::<u8>()?;
        let picks: Vec<u32> = (0..uncertain.len() as u32).filter(|&q| uncertain[q as usize] != 0).collect();
        self.refine(&picks, pair, normals, &found, &bad)?;
        Ok(found.neighbours)
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

    /// Queries and rows for bounds of this kind; the places of entries that are not finite go to `bad`.
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

    /// The best candidates of every query, and which queries are certain.
    fn nearest(&self, pair: Pair<'_>, normals: &Normals) -> Result<Found> {
        let device = pair.rows.device();
        let (m, k) = (pair.queries.dim(0)?, self.k);
        let lists = Lists::of(k)?;
        let new = |shape: &[usize], dtype| new_tensor(OP, shape, dtype, device);
        let found = Found {
            neighbours: Neighbours {
                indices: new(&[m, k], DType::U32)?,
                distances: new(&[m, k], DType::F32)?,
            },
            farthest: new(&[m], DType::F64)?,
            uncertain: new(&[m], DType::U8)?,
        };
        let block = self.block(normals, m)?;
        for first in (0..m).step_by(QUERIES) {
            let count = QUERIES.min(m - first);
            let of = normals.queries.part(first, count)?;
            let candidates = Candidates::new(&lists, count, device)?;
            for column in (0..self.n).step_by(COLUMNS) {
                let products = self.fill(normals, &block, &of.points, column)?;
                let search = Search::new(self, normals.keys, first, column);
                let io = operands(OP).write("lists", &candidates.lists).write("counts", &candidates.counts);
                let io = io.write("limits", &candidates.limits).maybe("products", products.as_ref());
                let io =
                    io.read("squares", &normals.rows.squares).read("magnitudes", &normals.rows.magnitudes);
                let io = io.read("points", &normals.rows.points).read("query_points", &of.points);
                let io = io.read("query_magnitudes", &of.magnitudes);
                io.run(&Select { search, lists, count })?;
            }
            let part = |t: &Tensor| t.narrow(0, first, count);
            let (indices, distances) = (part(&found.neighbours.indices)?, part(&found.neighbours.distances)?);
            let (farthest, uncertain) = (part(&found.farthest)?, part(&found.uncertain)?);
            let queries = part(pair.queries)?;
            let io = operands(OP).write("indices", &indices).write("distances", &distances);
            let io = io.write("farthest", &farthest).write("uncertain", &uncertain);
            let io = io.read("lists", &candidates.lists).read("counts", &candidates.counts);
            let io = io.read("limits", &candidates.limits).read("queries", &queries).read("rows", pair.rows);
            let io = io.maybe("query_lengths", of.lengths.as_ref());
            let io = io.maybe("lengths", normals.rows.lengths.as_ref()).read("query_squares", &of.squares);
            let search = Search::new(self, normals.keys, first, 0);
            io.maybe("largest", normals.scale.largest.as_ref()).run(&Rank { search, lists, count })?;
        }
        Ok(found)
    }

    /// Finds the neighbours of the queries `picks` anew, in the place of what was found of them.
    fn refine(
        &self,
        picks: &[u32],
        pair: Pair<'_>,
        mut normals: Normals,
        found: &Found,
        bad: &Tensor,
    ) -> Result<()> {
        // By few features, differences cost hardly more than products.
        let mut by_products = normals.keys == Keys::Products && self.precision() == Precision::Tf32;
        let mut done = 0;
        while done < picks.len() {
            if !by_products && normals.keys == Keys::Products {
                drop(normals);
                normals = self.normals(pair, Keys::Distances, bad)?;
            }
            let most = if by_products && done == 0 { FIRST } else { QUERIES };
            let now = &picks[done..picks.len().min(done + most)];
            done += now.len();
            let looked_at = self.refine_block(now, pair, &normals, found)?;
            if by_products {
                let looked_at: u64 = looked_at.to_vec1::<u32>()?.into_iter().map(u64::from).sum();
                by_products = looked_at as f64 <= LOOKED_AT * (now.len() * self.n) as f64;
            }
        }
        Ok(())
    }

    /// [`refine`](Self::refine) for one block of queries; returns how many rows were looked at for each.
    fn refine_block(
        &self,
        picks: &[u32],
        pair: Pair<'_>,
        normals: &Normals,
        found: &Found,
    ) -> Result<Tensor> {
        let (device, count) = (pair.rows.device(), picks.len());
        let of = normals.queries.picked(picks)?;
        let picks = Tensor::new(picks, device)?;
        let block = self.block(normals, count)?;
        let new = |shape: &[usize], dtype| new_tensor(OP, shape, dtype, device);
        let (near, near_rows) = (new(&[count, self.k], DType::I64)?, new(&[count, self.k], DType::U32)?);
        let (near_counts, looked_at) = (new(&[count], DType::U32)?, new(&[count], DType::U32)?);
        let (waiting, waiting_counts) =
            (new(&[count, Refine::WAITING], DType::U32)?, new(&[count], DType::U32)?);
        for column in (0..self.n).step_by(COLUMNS) {
            let products = self.fill(normals, &block, &of.points, column)?;
            let io = operands(OP).write("indices", &found.neighbours.indices);
            let io = io.write("distances", &found.neighbours.distances).write("farthest", &found.farthest);
            let io =
                io.write("near", &near).write("near_rows", &near_rows).write("near_counts", &near_counts);
            let io = io.write("waiting", &waiting).write("waiting_counts", &waiting_counts);
            let io = io.write("looked_at", &looked_at).maybe("products", products.as_ref());
            let io = io.read("squares", &normals.rows.squares).read("magnitudes", &normals.rows.magnitudes);
            let io = io.read("points", &normals.rows.points).read("query_points", &of.points);
            let io = io.read("query_magnitudes", &of.magnitudes).read("queries", pair.queries);
            let io = io.read("rows", pair.rows).maybe("query_lengths", normals.queries.lengths.as_ref());
            let io = io.maybe("lengths", normals.rows.lengths.as_ref()).read("query_squares", &of.squares);
            let io = io.maybe("largest", normals.scale.largest.as_ref()).read("picks", &picks);
            let search = Search::new(self, normals.keys, 0, column);
            io.run(&Refine { search, count, is_last: column + COLUMNS >= self.n })?;
        }
        Ok(looked_at)
    }

    /// All distances of contiguous f32 tensors on one GPU, none of them empty: `[n_queries, n]`. For a metric that no product gives.
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
