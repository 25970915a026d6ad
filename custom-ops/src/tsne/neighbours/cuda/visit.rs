//! The search in cells.
//!
//! Rows lie in the order of their cells, less the centres. Of some queries at a time, the pairs of
//! a query and a cell that it looks at are sorted by cell: for each cell the queries that look at
//! it are taken about its centre, and a product with its rows gives their distances, of which the
//! best enter the lists of the queries. See `kernels/tsne/visit.cu`.
use super::distances::distances_;
use super::normalise::{Form, Normal, Scale};
use super::steps::{Candidates, Lists, Rank, Search, Select};
use super::{Found, Keys, Knn, OP, Pair};
use crate::arrays::elementwise::contiguous;
use crate::arrays::{gather_rows_by, sort_by_key};
use crate::core::cuda::Gpu;
use crate::core::op::{Io, Kernel, new_tensor, operands};
use crate::group::Group;
use crate::layers::gemm::{Factors, Precision, gemm_};
use crate::tsne::neighbours::approximate::Partition;
use crate::tsne::neighbours::divided::{joined_, lists};
use crate::tsne::neighbours::{Metric, Neighbours, knn_of};
use candle::{CudaStorage, DType, Result, Tensor};

const FILE: &str = "visit";
const THREADS: u32 = 256;
/// Rows of a block, each of which a warp takes.
const ROWS: usize = 8;
/// Products of a block, 32 MiB, and pairs of queries and cells that are sorted at once.
const PRODUCTS: usize = 8 << 20;
const PAIRS: usize = 1 << 26;
/// Bytes of the lists of queries that are searched at once.
const LIST_BYTES: usize = 2 << 30;

/// Rows over their lengths; zero rows stay.
pub(in crate::tsne::neighbours) fn unit_rows(rows: &Tensor) -> Result<Tensor> {
    let bad = Tensor::full(-1i64, 1, rows.device())?;
    let units = Normal::new(rows, &Scale::default(), Form::Unit, false, &bad)?.points;
    contiguous(&units.narrow(1, 0, rows.dim(1)?)?)
}

/// What all blocks of queries share.
struct Visit<'a> {
    knn: &'a Knn<'a>,
    rows: &'a Tensor,
    points: &'a Tensor,
    centres: &'a Tensor,
    partition: &'a Partition,
    n_cells: usize,
    keys: Keys,
    scale: f32,
    lists: Lists,
    /// The row at each place, its cell and the part of this that it sees: u32 `[n]`.
    order: Tensor,
    cells: Tensor,
    parts: Tensor,
    /// The part of each cell that others see: u32 `[n_cells]`.
    first_parts: Tensor,
    /// Of the cosine, by row: its length in f64, and 1 for zero rows, which are as far from all.
    lengths: Option<Tensor>,
    extra: Option<Tensor>,
}

/// Points less centres.
struct Points {
    points: Tensor,
    squares: Tensor,
    magnitudes: Tensor,
}

impl Knn<'_> {
    /// The neighbours of each of `rows` in the `n_cells` cells nearest to it, or of each of the
    /// queries that follow the rows. Each rank of a group searches for a stretch of them by cell.
    pub(in crate::tsne::neighbours) fn visit_on_gpu(
        &self,
        group: &Group,
        rows: &Tensor,
        points: &Tensor,
        partition: &Partition,
        n_cells: usize,
    ) -> Result<Neighbours> {
        let room = self.room(Pair { queries: rows, rows, left_out: None })?;
        // The lists of other ranks are zeros.
        let found = match group.is_single() {
            true => room,
            false => Found { neighbours: lists(self.n, self.k, rows)?, ..room },
        };
        let visit = Visit::new(self, rows, points, partition, n_cells.min(partition.n_cells()))?;
        let by_cell = visit.about(&visit.order, Some(&visit.cells), 0)?;
        let searched = partition.searched();
        let height = (PAIRS / (visit.n_cells + 1)).min(visit.lists.held_in(LIST_BYTES));
        let height = height.clamp(1, searched.len().max(1));
        let part = group.part(searched.len());
        let own = searched.start + part.start..searched.start + part.end;
        for first in own.clone().step_by(height) {
            let count = height.min(own.end - first);
            let candidates = visit.candidates(&by_cell, first, count)?;
            let order = visit.order.narrow(0, first, count)?;
            let squares = Tensor::zeros(count, DType::F32, rows.device())?;
            let io = operands(OP).write("indices", &found.neighbours.indices);
            let io = io.write("distances", &found.neighbours.distances).write("farthest", &found.farthest);
            let io = io.write("uncertain", &found.uncertain).read("lists", &candidates.lists);
            let io = io.read("counts", &candidates.counts).read("limits", &candidates.limits);
            let io = io.read("queries", rows).read("rows", rows);
            let io = io.maybe("query_lengths", visit.lengths.as_ref());
            let io = io.maybe("lengths", visit.lengths.as_ref()).read("query_squares", &squares);
            let io = io.maybe("largest", None).read("picks", &order).read("numbers", &visit.order);
            io.run(&Rank { search: Search::new(self, visit.keys, 0, 0), lists: visit.lists, count })?;
        }
        joined_(group, &found.neighbours)?;
        Ok(found.neighbours)
    }
}

impl<'a> Visit<'a> {
    fn new(
        knn: &'a Knn<'a>,
        rows: &'a Tensor,
        points: &'a Tensor,
        partition: &'a Partition,
        n_cells: usize,
    ) -> Result<Self> {
        let device = rows.device();
        let keys = if knn.metric.has_no_product() { Keys::Distances } else { Keys::Products };
        let scale = Scale::of(Pair { queries: points, rows: points, left_out: None })?.factor()? as f32;
        let lengths = match knn.metric {
            Metric::Cosine => {
                let bad = Tensor::full(-1i64, 1, device)?;
                Normal::new(rows, &Scale::default(), Form::Unit, false, &bad)?.lengths
            }
            _ => None,
        };
        // A zero row is at distance 1 from rows of length 1, of which the square of that of others
        // is twice the distance.
        let of_zero = |lengths: &Tensor| {
            let square = f64::from(scale) * f64::from(scale);
            lengths.eq(&lengths.zeros_like()?)?.to_dtype(DType::F32)? * square
        };
        let extra = lengths.as_ref().map(of_zero).transpose()?;
        let u32s = |all: &[u32]| Tensor::from_slice(all, all.len(), device);
        let first_parts = &partition.first_parts[..partition.n_cells()];
        let first_parts: Vec<u32> = first_parts.iter().map(|&part| part as u32).collect();
        let order = u32s(&partition.order)?;
        let cells = u32s(&partition.cell_of_places())?;
        Ok(Self {
            knn,
            rows,
            points,
            centres: &partition.centres,
            partition,
            n_cells,
            keys,
            scale,
            lists: Lists::of(knn.k)?,
            order,
            cells,
            parts: u32s(&partition.part_of_places())?,
            first_parts: u32s(&first_parts)?,
            lengths,
            extra,
        })
    }

    /// Some rows, u32 `[m]`, less the centres of their `cells`, or of one `cell`.
    fn about(&self, rows: &Tensor, cells: Option<&Tensor>, cell: usize) -> Result<Points> {
        let (m, d) = (rows.dim(0)?, self.knn.n_features);
        let pitch = d.max(1).next_multiple_of(8);
        let new = |shape: &[usize]| new_tensor(OP, shape, DType::F32, rows.device());
        let to = Points { points: new(&[m, pitch])?, squares: new(&[m])?, magnitudes: new(&[m])? };
        let centres = (self.keys == Keys::Products).then_some(self.centres);
        let io = operands(OP).write("out", &to.points).write("squares", &to.squares);
        let io = io.write("magnitudes", &to.magnitudes).read("points", self.points);
        let io = io.maybe("centres", centres).read("rows", rows).maybe("cells", cells);
        let rounded = self.precision() == Precision::Tf32;
        io.maybe("extra", self.extra.as_ref()).run(&About {
            m,
            d,
            pitch,
            cell,
            scale: self.scale,
            rounded,
        })?;
        Ok(to)
    }

    fn precision(&self) -> Precision {
        if self.keys == Keys::Products { self.knn.precision() } else { Precision::F32 }
    }

    /// The best rows for the queries at `count` places from `first` on.
    fn candidates(&self, by_cell: &Points, first: usize, count: usize) -> Result<Candidates> {
        let device = self.rows.device();
        let order = self.order.narrow(0, first, count)?;
        let (parts, rows, picks) = self.pairs(&order, first, count)?;
        let candidates = Candidates::new(&self.lists, count, device)?;
        let places = Tensor::arange(first as u32, (first + count) as u32, device)?;
        for part in 0..self.partition.parts.len() - 1 {
            let (start, end) = (parts[part] as usize, parts[part + 1] as usize);
            let own = self.partition.part(part);
            let cell = self.partition.first_parts.partition_point(|&first| first <= part) - 1;
            let height = (PRODUCTS / own.len()).max(1);
            for from in (start..end).step_by(height) {
                let count = height.min(end - from);
                let queries = self.about(&rows.narrow(0, from, count)?, None, cell)?;
                let against = by_cell.points.narrow(0, own.start, own.len())?;
                let products = new_tensor(OP, (count, own.len()), DType::F32, device)?;
                match self.keys {
                    Keys::Products => {
                        let precision = self.precision();
                        gemm_(&products, &queries.points, &against.t()?, Factors::OVERWRITE, precision)?;
                    }
                    _ => distances_(&products, &queries.points, &against, self.knn.metric)?,
                }
                let metric =
                    if self.knn.metric == Metric::Cosine { Metric::Euclidean } else { self.knn.metric };
                let knn = super::Knn { metric, ..*self.knn };
                let search = Search::of_cell(&knn, self.keys, own.start, own.len());
                let io = operands(OP).write("lists", &candidates.lists).write("counts", &candidates.counts);
                let io = io.write("limits", &candidates.limits).read("products", &products);
                let io = io.read("squares", &by_cell.squares);
                let io = io.read("magnitudes", &by_cell.magnitudes);
                let io = io.read("points", &by_cell.points).read("query_points", &queries.points);
                let picks = picks.narrow(0, from, count)?;
                let io = io.read("query_magnitudes", &queries.magnitudes).read("picks", &picks);
                let io = io.read("left_out", &places);
                io.run(&Select { search, lists: self.lists, count })?;
            }
        }
        Ok(candidates)
    }

    /// Pairs of a query and a part of a cell that it looks at, by part: where each part begins, the
    /// row and the number of the query of each pair.
    fn pairs(&self, order: &Tensor, first: usize, count: usize) -> Result<(Vec<u32>, Tensor, Tensor)> {
        let device = order.device();
        let points = gather_rows_by(self.points, order)?;
        let near = knn_of(&points, self.centres, self.n_cells, Metric::Euclidean)?.indices;
        drop(points);
        let width = self.n_cells + 1;
        let keys = new_tensor(OP, count * width, DType::U32, device)?;
        let (cells, own) = (self.cells.narrow(0, first, count)?, self.parts.narrow(0, first, count)?);
        let io = operands(OP).write("keys", &keys).read("near", &near).read("own_cells", &cells);
        io.read("own", &own).read("first_parts", &self.first_parts).run(&CellKeys { count, width })?;
        let sorted = sort_by_key(&keys, self.partition.parts.len() - 1)?;
        let parts = sorted.offsets.to_vec1::<u32>()?;
        let found = parts.last().copied().unwrap_or(0) as usize;
        let new = || new_tensor(OP, found, DType::U32, device);
        let (picks, rows) = (new()?, new()?);
        let io = operands(OP).write("picks", &picks).write("rows", &rows);
        io.read("order", &sorted.order).read("numbers", order).run(&QueriesOf { found, width })?;
        Ok((parts, rows, picks))
    }
}

struct About {
    m: usize,
    d: usize,
    pitch: usize,
    cell: usize,
    scale: f32,
    rounded: bool,
}

impl Kernel for About {
    fn cuda(&self, gpu: &Gpu, io: Io<'_, CudaStorage>) -> Result<()> {
        let ([out, squares, magnitudes], [points, centres, rows, cells, extra]) = io.parts()?;
        let (mut out, mut squares) = (out.elements::<f32>()?, squares.elements::<f32>()?);
        let (mut magnitudes, points) = (magnitudes.elements::<f32>()?, points.elements::<f32>()?);
        let (centres, rows) = (centres.maybe::<f32>()?, rows.elements::<u32>()?);
        let (cells, extra) = (cells.maybe::<u32>()?, extra.maybe::<f32>()?);
        let launch = gpu.launch(OP, FILE, "about_centres")?.write(&mut out).write(&mut squares);
        let launch = launch.write(&mut magnitudes).read(&points).maybe(&centres).read(&rows);
        let launch = launch.maybe(&cells).maybe(&extra).num(self.m).num(self.d).num(self.pitch);
        let launch = launch.count(self.cell).num(self.scale).count(usize::from(self.rounded));
        // SAFETY: (3 × float*, 2 × const float* (the last may be null), 2 × const unsigned* (the
        // last may be null), const float* (may be null), 3 × size_t, unsigned, float, unsigned):
        // out is [m, pitch], squares and magnitudes [m], points [n, d], rows [m] of these and cells
        // [m] of the centres, as `cell` is one; extra is [n]; a warp for each row.
        unsafe { launch.blocks(self.m.div_ceil(ROWS), THREADS).go() }
    }
}

struct CellKeys {
    count: usize,
    width: usize,
}

impl Kernel for CellKeys {
    fn cuda(&self, gpu: &Gpu, io: Io<'_, CudaStorage>) -> Result<()> {
        let ([keys], [near, own_cells, own, first_parts]) = io.parts()?;
        let (mut keys, near) = (keys.elements::<u32>()?, near.elements::<u32>()?);
        let (own_cells, own) = (own_cells.elements::<u32>()?, own.elements::<u32>()?);
        let first_parts = first_parts.elements::<u32>()?;
        let launch = gpu.launch(OP, FILE, "cell_keys")?.write(&mut keys).read(&near).read(&own_cells);
        let launch = launch.read(&own).read(&first_parts).num(self.count).count(self.width);
        // SAFETY: (unsigned*, 4 × const unsigned*, size_t, unsigned): keys are [count, width], near
        // [count, width − 1] cells, own_cells and own [count], first_parts as many as cells; a
        // thread for each key.
        unsafe { launch.blocks((self.count * self.width).div_ceil(THREADS as usize), THREADS).go() }
    }
}

struct QueriesOf {
    found: usize,
    width: usize,
}

impl Kernel for QueriesOf {
    fn cuda(&self, gpu: &Gpu, io: Io<'_, CudaStorage>) -> Result<()> {
        let ([picks, rows], [order, numbers]) = io.parts()?;
        let (mut picks, mut rows) = (picks.elements::<u32>()?, rows.elements::<u32>()?);
        let (order, numbers) = (order.elements::<u32>()?, numbers.elements::<u32>()?);
        let launch = gpu.launch(OP, FILE, "queries_of")?.write(&mut picks).write(&mut rows);
        let launch = launch.read(&order).read(&numbers).num(self.found).count(self.width);
        // SAFETY: (2 × unsigned*, 2 × const unsigned*, size_t, unsigned): picks and rows are
        // [found], order at least as many entries, each below [count, width] of numbers; a thread
        // for each.
        unsafe { launch.blocks(self.found.div_ceil(THREADS as usize), THREADS).go() }
    }
}
