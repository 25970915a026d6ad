//! The search on a GPU: blocks of products, candidates, and their distances.
//!
//! Products of many features are in TF32, whose error is at most `2⁻⁹ |q| |x|` of a squared distance. A query whose last neighbour is nearer than any
//! row can be that is no candidate has its exact neighbours; the others are searched again with products in f32. Products of few features are in
//! f32 at once: writing and reading them takes longer than the arithmetic. Distances that no product gives take the place of products, in f32
//! (`kernels/distances.cu`).
use super::{Entries, Knn, Metric, Neighbours, OP, not_finite};
use crate::cuda::Gpu;
use crate::gemm::{Factors, Precision, gemm_};
use crate::op::{Io, Kernel, new_tensor, not_recording, operands};
use candle::{CudaStorage, DType, Result, Tensor};

const FILE: &str = "neighbours";
const THREADS: u32 = 256;
/// Rows of a block of products, and its columns: 32 MiB, of which the L2 of a large GPU holds most.
const QUERIES: usize = 1024;
const COLUMNS: usize = 8192;
/// Of kernels/neighbours.cu: columns between two looks at the room of a list, and features of direct differences.
const TILE: usize = 2048;
const DIRECT: usize = 8;
/// The most features whose products are in f32 at once.
const FEW: usize = 128;
/// The most entries that a block sorts: 64 KiB.
const MOST_ROOM: usize = 8192;
/// Stretches of rows for the means.
const STRETCHES: usize = 256;

/// What orders the rows for a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keys {
    /// Squared distances of few features, from the rows themselves, which are taken where they are needed.
    Rows,
    /// Products.
    Products,
    /// Distances, in place of products.
    Distances,
}

/// How the list of a query is kept.
#[derive(Debug, Clone, Copy)]
struct Lists {
    keep: usize,
    stored: usize,
    room: usize,
}

impl Lists {
    fn of(k: usize) -> Result<Self> {
        let keep = (k + (k / 4).max(32)).next_multiple_of(32);
        let stored = 2 * keep;
        let room = (stored + TILE).next_power_of_two();
        if room > MOST_ROOM {
            let most = ((MOST_ROOM - TILE) / 2 / 32 * 32) * 4 / 5;
            candle::bail!("{OP}: k must be at most {most} on a GPU, got {k}; use the CPU")
        }
        Ok(Self { keep, stored, room })
    }
}

impl Knn {
    /// The search for contiguous f32 tensors on one GPU.
    pub(super) fn find(&self, queries: &Tensor, rows: &Tensor) -> Result<Neighbours> {
        not_recording(OP, rows.device())?;
        let bad = Tensor::full(-1i64, 2, rows.device())?;
        let place = |t: &Tensor| (crate::op::address(t), t.layout().start_offset(), t.elem_count());
        let means = if self.metric == Metric::Euclidean { Some(means(rows)?) } else { None };
        let ready_rows = self.ready(rows, means.as_ref(), &bad.narrow(0, 0, 1)?)?;
        let ready_queries = match place(queries) == place(rows) {
            true => ready_rows.clone(),
            false => self.ready(queries, means.as_ref(), &bad.narrow(0, 1, 1)?)?,
        };
        let rounded = self.keys() == Keys::Products && self.n_features > FEW;
        let precision = if rounded { Precision::Tf32 } else { Precision::F32 };
        let (found, doubts) = self.nearest(queries, rows, &ready_queries, &ready_rows, precision, None)?;
        if self.entries == Entries::Unknown {
            self.check_finite(&bad, queries, rows)?;
        }
        match rounded {
            true => self.settle(found, &doubts, (queries, rows), (&ready_queries, &ready_rows)),
            false => Ok(found),
        }
    }

    fn keys(&self) -> Keys {
        match self.metric {
            metric if metric.has_no_product() => Keys::Distances,
            Metric::Euclidean if self.n_features <= DIRECT => Keys::Rows,
            _ => Keys::Products,
        }
    }

    /// Refuses entries that are not finite; waits for the device.
    fn check_finite(&self, bad: &Tensor, queries: &Tensor, rows: &Tensor) -> Result<()> {
        let at = bad.to_vec1::<i64>()?;
        for (name, at, t) in [("rows", at[0], rows), ("queries", at[1], queries)] {
            if let Ok(at) = usize::try_from(at) {
                let (row, column) = (at / self.n_features, at % self.n_features);
                return Err(not_finite(name, row, column, t.get(row)?.get(column)?.to_scalar()?));
            }
        }
        Ok(())
    }

    /// Searches the queries in doubt again, with products in f32.
    fn settle(
        &self,
        found: Neighbours,
        doubts: &Tensor,
        (queries, rows): (&Tensor, &Tensor),
        (ready_queries, ready_rows): (&Ready, &Ready),
    ) -> Result<Neighbours> {
        let doubts = doubts.to_vec1::<u8>()?;
        let picks: Vec<u32> = (0..doubts.len() as u32).filter(|&q| doubts[q as usize] != 0).collect();
        if picks.is_empty() {
            return Ok(found);
        }
        let at = Tensor::new(picks, rows.device())?;
        let some = Ready {
            rows: ready_queries.rows.index_select(&at, 0)?,
            squares: ready_queries.squares.index_select(&at, 0)?,
        };
        let queries = queries.index_select(&at, 0)?;
        let (again, _) = self.nearest(&queries, rows, &some, ready_rows, Precision::F32, Some(&at))?;
        let distances = replaced(&found.distances, &at, &again.distances)?;
        Ok(Neighbours { indices: replaced(&found.indices, &at, &again.indices)?, distances })
    }

    /// What is found with products of this precision, and which queries are in doubt; of f32 none is. `picks` are the rows that the queries are,
    /// where they are not all.
    fn nearest(
        &self,
        queries: &Tensor,
        rows: &Tensor,
        ready_queries: &Ready,
        ready_rows: &Ready,
        precision: Precision,
        picks: Option<&Tensor>,
    ) -> Result<(Neighbours, Tensor)> {
        let device = rows.device();
        let (m, k) = (queries.dim(0)?, self.k);
        let lists = Lists::of(k)?;
        let indices = new_tensor(OP, (m, k), DType::U32, device)?;
        let distances = new_tensor(OP, (m, k), DType::F32, device)?;
        let doubts = new_tensor(OP, m, DType::U8, device)?;
        let products = match self.keys() {
            Keys::Rows => None,
            _ => Some(new_tensor(OP, QUERIES.min(m) * COLUMNS.min(self.n), DType::F32, device)?),
        };
        // Two factors of 11 bits each, and the factor 2 of a key; sums and squares in f32.
        let error = if precision == Precision::Tf32 { 1. / 500. } else { -1. };
        let largest = ready_rows.squares.max_keepdim(0)?;
        for first in (0..m).step_by(QUERIES) {
            let count = QUERIES.min(m - first);
            let part = |t: &Tensor| t.narrow(0, first, count);
            let state = State {
                lists: new_tensor(OP, (count, lists.stored), DType::I64, device)?,
                counts: Tensor::zeros(count, DType::U32, device)?,
                limits: Tensor::full(f32::INFINITY, count, device)?,
            };
            let (queries, query) = (part(queries)?, part(&ready_queries.rows)?);
            for column in (0..self.n).step_by(COLUMNS) {
                let columns = COLUMNS.min(self.n - column);
                let product = match &products {
                    Some(products) => {
                        let product = products.narrow(0, 0, count * columns)?.reshape((count, columns))?;
                        let against = ready_rows.rows.narrow(0, column, columns)?;
                        match self.keys() {
                            Keys::Distances => distances_(&product, &query, &against, self.metric)?,
                            _ => gemm_(&product, &query, &against.t()?, Factors::OVERWRITE, precision)?,
                        }
                        Some(product)
                    }
                    None => None,
                };
                let select = Select { knn: *self, lists, first, column, columns, count };
                let io = operands(OP).write("lists", &state.lists).write("counts", &state.counts);
                let io = io.write("limits", &state.limits).maybe("products", product.as_ref());
                let io = io.read("squares", &ready_rows.squares).read("queries", &queries);
                io.read("rows", rows).maybe("picks", picks).run(&select)?;
            }
            let rank = Rank { knn: *self, lists, error, count };
            let (indices, distances, doubts) = (part(&indices)?, part(&distances)?, part(&doubts)?);
            let io = operands(OP).write("indices", &indices).write("distances", &distances);
            let io = io.write("doubts", &doubts).read("lists", &state.lists).read("counts", &state.counts);
            let io = io.read("limits", &state.limits).read("queries", &queries).read("rows", rows);
            let squares = part(&ready_queries.squares)?;
            io.read("squares", &squares).read("largest", &largest).run(&rank)?;
        }
        Ok((Neighbours { indices, distances }, doubts))
    }
}

/// `all` with other rows in the places `at`.
fn replaced(all: &Tensor, at: &Tensor, rows: &Tensor) -> Result<Tensor> {
    let n = all.dim(0)?;
    // Row i of the result is row `from[i]` of the two together.
    let mut from: Vec<u32> = (0..n as u32).collect();
    for (i, &row) in at.to_vec1::<u32>()?.iter().enumerate() {
        from[row as usize] = (n + i) as u32;
    }
    Tensor::cat(&[all, rows], 0)?.index_select(&Tensor::new(from, all.device())?, 0)
}

/// Rows as products take them, padded to a multiple of 8 features, and their squared lengths.
#[derive(Clone)]
struct Ready {
    rows: Tensor,
    squares: Tensor,
}

/// Candidates of a block of queries.
struct State {
    lists: Tensor,
    counts: Tensor,
    limits: Tensor,
}

fn means(rows: &Tensor) -> Result<Tensor> {
    let (n, d) = rows.dims2()?;
    let parts = new_tensor(OP, (STRETCHES, d), DType::F64, rows.device())?;
    let means = new_tensor(OP, d, DType::F32, rows.device())?;
    operands(OP).write("means", &means).write("parts", &parts).read("rows", rows).run(&Means { n, d })?;
    Ok(means)
}

impl Knn {
    fn ready(&self, rows: &Tensor, means: Option<&Tensor>, bad: &Tensor) -> Result<Ready> {
        let (n, d) = rows.dims2()?;
        let pitch = d.max(1).next_multiple_of(8);
        let out = new_tensor(OP, (n, pitch), DType::F32, rows.device())?;
        let squares = new_tensor(OP, n, DType::F32, rows.device())?;
        let io = operands(OP).write("out", &out).write("squares", &squares).write("bad", bad);
        let unit = self.metric == Metric::Cosine;
        io.read("rows", rows).maybe("means", means).run(&MakeReady { n, d, pitch, unit })?;
        Ok(Ready { rows: out, squares })
    }
}

impl Knn {
    /// All distances of contiguous f32 tensors on one GPU, none of them empty: `[n_queries, n]`.
    pub(super) fn distances(&self, queries: &Tensor, rows: &Tensor) -> Result<Tensor> {
        not_recording(OP, rows.device())?;
        let bad = Tensor::full(-1i64, 1, rows.device())?;
        let (queries, rows) = (self.ready(queries, None, &bad)?.rows, self.ready(rows, None, &bad)?.rows);
        let halves = new_tensor(OP, (queries.dim(0)?, rows.dim(0)?), DType::F32, rows.device())?;
        distances_(&halves, &queries, &rows, self.metric)?;
        halves * -2.
    }
}

/// Writes `−d/2` for the distance `d` of each of `queries` and each of `rows`, both [`Ready`].
fn distances_(products: &Tensor, queries: &Tensor, rows: &Tensor, metric: Metric) -> Result<()> {
    let ((m, depth), n) = (queries.dims2()?, rows.dim(0)?);
    let io = operands(OP).write("products", products).read("queries", queries).read("rows", rows);
    io.run(&Distances { m, n, depth, metric })
}

struct Distances {
    m: usize,
    n: usize,
    depth: usize,
    metric: Metric,
}

impl Kernel for Distances {
    fn cuda(&self, gpu: &Gpu, io: Io<'_, CudaStorage>) -> Result<()> {
        /// Rows and columns of a tile: SIDE of kernels/distances.cu.
        const SIDE: usize = 128;
        let ([out], [queries, rows]) = io.parts()?;
        let (mut out, queries, rows) =
            (out.elements::<f32>()?, queries.elements::<f32>()?, rows.elements::<f32>()?);
        let name = if self.metric == Metric::Chebyshev { "chebyshev" } else { "manhattan" };
        let launch = gpu.launch(OP, "distances", name)?.write(&mut out).read(&queries).read(&rows);
        let launch = launch.count(self.m).count(self.n).count(self.depth);
        let grid = [self.n.div_ceil(SIDE), self.m.div_ceil(SIDE), 1];
        // SAFETY: (float*, 2 × const float*, 3 × unsigned): out is [m, n], queries [m, depth] and rows [n, depth], depth a multiple of 8, so that
        // every row begins on 32 bytes, as `out` does; blocks of 256 for tiles, of which the last may have rows and columns beyond.
        unsafe { launch.grid(grid, (THREADS, 1, 1)).go() }
    }
}

struct Means {
    n: usize,
    d: usize,
}

impl Kernel for Means {
    fn cuda(&self, gpu: &Gpu, io: Io<'_, CudaStorage>) -> Result<()> {
        let ([means, parts], [rows]) = io.parts()?;
        let (mut means, mut parts) = (means.elements::<f32>()?, parts.elements::<f64>()?);
        let rows = rows.elements::<f32>()?;
        let stretch = self.n.div_ceil(STRETCHES).max(1);
        let launch = gpu.launch(OP, FILE, "column_parts")?.write(&mut parts).read(&rows);
        let launch = launch.num(self.n).num(self.d).num(stretch);
        // SAFETY: (double*, const float*, 3 × size_t): rows are [n, d], parts hold a number for each stretch and column; a block of 256 for
        // each 32 columns and stretch, the last of which may have no rows.
        unsafe { launch.grid([self.d.div_ceil(32), STRETCHES, 1], (THREADS, 1, 1)).go() }?;
        let parts = parts.slice(..);
        let launch = gpu.launch(OP, FILE, "column_means")?.write(&mut means).read(&parts);
        let launch = launch.num(self.n).num(self.d).count(STRETCHES);
        // SAFETY: (float*, const double*, 2 × size_t, unsigned): a mean for each of d columns, and the parts that were just written.
        unsafe { launch.blocks(self.d.div_ceil(THREADS as usize), THREADS).go() }
    }
}

struct MakeReady {
    n: usize,
    d: usize,
    pitch: usize,
    unit: bool,
}

impl Kernel for MakeReady {
    fn cuda(&self, gpu: &Gpu, io: Io<'_, CudaStorage>) -> Result<()> {
        let ([out, squares, bad], [rows, means]) = io.parts()?;
        let (mut out, mut squares) = (out.elements::<f32>()?, squares.elements::<f32>()?);
        let (mut bad, rows, means) = (bad.elements::<i64>()?, rows.elements::<f32>()?, means.maybe::<f32>()?);
        let launch = gpu.launch(OP, FILE, "ready")?.write(&mut out).write(&mut squares).write(&mut bad);
        let launch = launch.read(&rows).maybe(&means).num(self.n).num(self.d).num(self.pitch);
        let launch = launch.count(usize::from(self.unit));
        // SAFETY: (2 × float*, u64*, const float*, const float* or null, 3 × size_t, unsigned): out is [n, pitch], squares [n], bad one word, rows
        // [n, d], means [d]; a warp for each row.
        unsafe { launch.blocks(self.n.div_ceil(8), THREADS).go() }
    }
}

struct Select {
    knn: Knn,
    lists: Lists,
    first: usize,
    column: usize,
    columns: usize,
    count: usize,
}

impl Kernel for Select {
    fn cuda(&self, gpu: &Gpu, io: Io<'_, CudaStorage>) -> Result<()> {
        let ([lists, counts, limits], [products, squares, queries, rows, picks]) = io.parts()?;
        let (mut lists, mut counts) = (lists.elements::<i64>()?, counts.elements::<u32>()?);
        let (mut limits, products) = (limits.elements::<f32>()?, products.maybe::<f32>()?);
        let (squares, queries, rows) =
            (squares.elements::<f32>()?, queries.elements::<f32>()?, rows.elements::<f32>()?);
        let picks = picks.maybe::<u32>()?;
        let Lists { keep, stored, room } = self.lists;
        let launch = gpu.launch(OP, FILE, "select_nearest")?.write(&mut lists).write(&mut counts);
        let launch = launch.write(&mut limits).maybe(&products).read(&squares).read(&queries).read(&rows);
        let launch = launch.maybe(&picks).num(self.knn.n_features).num(self.first).num(self.column);
        let launch = launch.count(self.columns).count(room).count(keep).count(stored);
        let launch = launch.count(usize::from(self.knn.without_self));
        // SAFETY: (u64*, unsigned*, float*, 4 × const float* (the first may be null), const unsigned* or null, 3 × size_t, 5 × unsigned): lists are
        // [count, stored], products [count, columns], squares [n], queries [count, d], rows [n, d], picks a row for each query of the
        // whole search; columns end below n. Without products d is at most 8. A block for each query sorts `room` entries, a power
        // of two of at least `stored` and a tile.
        unsafe { launch.blocks(self.count, THREADS).shared(room * 8).go() }
    }
}

struct Rank {
    knn: Knn,
    lists: Lists,
    error: f32,
    count: usize,
}

impl Kernel for Rank {
    fn cuda(&self, gpu: &Gpu, io: Io<'_, CudaStorage>) -> Result<()> {
        let ([indices, distances, doubts], read) = io.parts()?;
        let [lists, counts, limits, queries, rows, squares, largest] = read;
        let (mut indices, mut distances) = (indices.elements::<u32>()?, distances.elements::<f32>()?);
        let mut doubts = doubts.elements::<u8>()?;
        let (lists, counts, limits) =
            (lists.elements::<i64>()?, counts.elements::<u32>()?, limits.elements::<f32>()?);
        let (queries, rows) = (queries.elements::<f32>()?, rows.elements::<f32>()?);
        let (squares, largest) = (squares.elements::<f32>()?, largest.elements::<f32>()?);
        let Lists { keep, stored, .. } = self.lists;
        let (d, width) = (self.knn.n_features, stored.next_power_of_two());
        let launch = gpu.launch(OP, FILE, "rank_nearest")?.write(&mut indices).write(&mut distances);
        let launch = launch.write(&mut doubts).read(&lists).read(&counts).read(&limits).read(&queries);
        let launch = launch.read(&rows).read(&squares).read(&largest).num(d).count(self.knn.k).count(stored);
        // In the order of the kernel; the correlation became the cosine.
        let metric = match self.knn.metric {
            Metric::Euclidean => 0,
            Metric::Cosine | Metric::Correlation => 1,
            Metric::Manhattan => 2,
            Metric::Chebyshev => 3,
        };
        let launch = launch.count(width).count(keep).count(metric);
        // SAFETY: (unsigned*, float*, u8*, const u64*, const unsigned*, 5 × const float*, size_t, 5 × unsigned, float): as for `Select`; k is at most
        // `keep`, which is at most `stored` and `width`; a block for each query holds `width` entries and the query.
        unsafe { launch.num(self.error).blocks(self.count, THREADS).shared(width * 8 + d * 4).go() }
    }
}
