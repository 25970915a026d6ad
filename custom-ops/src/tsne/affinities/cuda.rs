//! The launches of `kernels/tsne/affinities.cu`.
use super::perplexity::{MOST, Search, SumCounts};
use super::{Affinities, REORDER};
use crate::arrays::prefix_sum;
use crate::arrays::sort_by_key;
use crate::core::cuda::Gpu;
use crate::core::op::{Io, Kernel, new_tensor, operands};
use candle::cuda::cudarc::driver::DeviceRepr;
use candle::{CudaStorage, DType, Result, Tensor};

const FILE: &str = "affinities";
const OP: &str = "symmetrize";
const THREADS: u32 = 256;
/// Rows of a block that has a warp for each.
const WARPS: usize = 8;
/// The most neighbours that a block sorts: 64 KiB.
const MOST_NEIGHBOURS: usize = 8192;

/// `Entropies` of the kernel.
#[repr(C)]
#[derive(Clone, Copy)]
struct Entropies([f64; MOST]);
// SAFETY: plain numbers in the layout of the kernel's struct.
unsafe impl DeviceRepr for Entropies {}

impl Search {
    pub(super) fn launch(&self, gpu: &Gpu, io: Io<'_, CudaStorage>) -> Result<()> {
        let ([p], [distances, counts]) = io.parts()?;
        let (mut p, distances) = (p.elements::<f32>()?, distances.elements::<f32>()?);
        let counts = counts.maybe::<f32>()?;
        let name = if counts.is_some() { "perplexity_search_of_counts" } else { "perplexity_search" };
        let launch = gpu.launch("perplexity_search", FILE, name)?.write(&mut p).read(&distances);
        let launch = launch.maybe(&counts).num(self.n).count(self.k).count(self.count);
        // SAFETY: (float*, 2 × const float*, size_t, 2 × unsigned, Entropies): all arrays are
        // [n, k], counts null without any, count is at most MOST; a warp for each row.
        unsafe { launch.num(Entropies(self.entropies)).blocks(self.n.div_ceil(WARPS), THREADS).go() }
    }
}

impl SumCounts {
    pub(super) fn launch(&self, gpu: &Gpu, io: Io<'_, CudaStorage>) -> Result<()> {
        let ([sums], [counts]) = io.parts()?;
        let (mut sums, counts) = (sums.elements::<f64>()?, counts.elements::<f32>()?);
        let launch = gpu.launch("perplexity_search", FILE, "sum_counts")?.write(&mut sums);
        let launch = launch.read(&counts).num(self.n).count(self.k);
        // SAFETY: (double*, const float*, size_t, unsigned): sums [n], counts [n, k]; a warp for
        // each row.
        unsafe { launch.blocks(self.n.div_ceil(WARPS), THREADS).go() }
    }
}

/// [`symmetrize`](super::symmetrize) for checked operands on a GPU.
pub(super) fn symmetrize(indices: &Tensor, p: &Tensor, n: usize, k: usize) -> Result<Affinities> {
    if k > MOST_NEIGHBOURS {
        candle::bail!(
            "{OP}: there must be at most {MOST_NEIGHBOURS} neighbours on a GPU, got {k}; use the CPU"
        )
    }
    let device = indices.device();
    let edges = n * k;
    let reversed = sort_by_key(&indices.flatten_all()?, n.max(1))?;
    let sorted = new_tensor(OP, edges, DType::I64, device)?;
    let fresh = new_tensor(OP, edges, DType::U32, device)?;
    let counts = new_tensor(OP, n, DType::U32, device)?;
    let bad = Tensor::full(u32::MAX, 1, device)?;
    let graph = Graph { n, k };
    let io = operands(OP).write("sorted", &sorted).write("bad", &bad).read("indices", indices);
    io.run(&SortRows(graph))?;
    let io = operands(OP).write("counts", &counts).write("fresh", &fresh).read("sorted", &sorted);
    io.read("starts", &reversed.offsets).read("order", &reversed.order).run(&Count(graph))?;
    let before = prefix_sum(&counts)?;
    let bad = bad.to_vec1::<u32>()?[0];
    if bad != u32::MAX {
        let (row, place) = (bad as usize / k, bad as usize % k);
        let got = indices.get(row)?.get(place)?.to_scalar::<u32>()?;
        candle::bail!("{OP}: indices must be below {n}, got {got} in row {row}")
    }
    let n_edges = before.total()? as usize;
    let affinities = Affinities {
        offsets: new_tensor(OP, n + 1, DType::U32, device)?,
        columns: new_tensor(OP, n_edges, DType::U32, device)?,
        values: new_tensor(OP, n_edges, DType::F32, device)?,
    };
    let io = operands(OP).write("columns", &affinities.columns).write("values", &affinities.values);
    let io = io.write("offsets", &affinities.offsets).read("before", &before.sums).read("sorted", &sorted);
    let io = io.read("fresh", &fresh).read("starts", &reversed.offsets).read("order", &reversed.order);
    io.read("p", p).run(&Merge { graph, n_edges })?;
    Ok(affinities)
}

/// [`affinities_in_order_`](super::affinities_in_order_) for checked operands on a GPU.
pub(super) fn reorder(made: &Affinities, affinities: &Affinities, order: &Tensor) -> Result<()> {
    let (n, n_edges) = (affinities.n(), affinities.columns.elem_count());
    let counts = new_tensor(REORDER, n, DType::U32, order.device())?;
    let places = Tensor::zeros(n, DType::U32, order.device())?;
    let io = operands(REORDER).write("counts", &counts).write("places", &places).read("order", order);
    io.read("offsets", &affinities.offsets).run(&ReorderCounts { n, n_edges })?;
    let before = prefix_sum(&counts)?.sums;
    let io = operands(REORDER).write("columns", &made.columns).write("values", &made.values);
    let io = io.write("offsets", &made.offsets).read("before", &before).read("order", order);
    let io = io.read("places", &places).read("from_offsets", &affinities.offsets);
    let io = io.read("from_columns", &affinities.columns).read("from_values", &affinities.values);
    io.run(&ReorderRows { n, n_edges })
}

struct ReorderCounts {
    n: usize,
    n_edges: usize,
}

impl Kernel for ReorderCounts {
    fn cuda(&self, gpu: &Gpu, io: Io<'_, CudaStorage>) -> Result<()> {
        let ([counts, places], [order, offsets]) = io.parts()?;
        let (mut counts, mut places) = (counts.elements::<u32>()?, places.elements::<u32>()?);
        let (order, offsets) = (order.elements::<u32>()?, offsets.elements::<u32>()?);
        let launch = gpu.launch(REORDER, FILE, "reorder_counts")?.write(&mut counts).write(&mut places);
        let launch = launch.read(&order).read(&offsets).num(self.n).count(self.n_edges);
        // SAFETY: (2 × unsigned*, 2 × const unsigned*, size_t, unsigned): offsets [n + 1], the
        // others [n]; a thread for each row, which bounds what order and offsets say.
        unsafe { launch.blocks(self.n.div_ceil(THREADS as usize), THREADS).go() }
    }
}

struct ReorderRows {
    n: usize,
    n_edges: usize,
}

impl Kernel for ReorderRows {
    fn cuda(&self, gpu: &Gpu, io: Io<'_, CudaStorage>) -> Result<()> {
        let ([columns, values, offsets], read) = io.parts()?;
        let [before, order, places, from_offsets, from_columns, from_values] = read;
        let (mut columns, mut values) = (columns.elements::<u32>()?, values.elements::<f32>()?);
        let (mut offsets, before) = (offsets.elements::<u32>()?, before.elements::<u32>()?);
        let (order, places) = (order.elements::<u32>()?, places.elements::<u32>()?);
        let (from_offsets, from_columns) = (from_offsets.elements::<u32>()?, from_columns.elements::<u32>()?);
        let from_values = from_values.elements::<f32>()?;
        let launch = gpu.launch(REORDER, FILE, "reorder_rows")?.write(&mut columns).write(&mut values);
        let launch = launch.write(&mut offsets).read(&before).read(&order).read(&places);
        let launch = launch.read(&from_offsets).read(&from_columns).read(&from_values);
        // SAFETY: (unsigned*, float*, unsigned*, 5 × const unsigned*, const float*, size_t,
        // unsigned): both graphs have [n + 1] offsets and n_edges columns and values, before, order
        // and places are [n]; a block for each row, which bounds what they say.
        unsafe { launch.num(self.n).count(self.n_edges).blocks(self.n, 128).go() }
    }
}

#[derive(Clone, Copy)]
struct Graph {
    n: usize,
    k: usize,
}

struct SortRows(Graph);

impl Kernel for SortRows {
    fn cuda(&self, gpu: &Gpu, io: Io<'_, CudaStorage>) -> Result<()> {
        let ([sorted, bad], [indices]) = io.parts()?;
        let (mut sorted, mut bad) = (sorted.elements::<i64>()?, bad.elements::<u32>()?);
        let indices = indices.elements::<u32>()?;
        let Graph { n, k } = self.0;
        let width = k.next_power_of_two().max(2);
        let launch = gpu.launch(OP, FILE, "sort_rows")?.write(&mut sorted).write(&mut bad).read(&indices);
        // SAFETY: (u64*, unsigned*, const unsigned*, size_t, 2 × unsigned): sorted and indices are
        // [n, k], bad is one number; a block for each row sorts `width` entries, a power of two of
        // at least k.
        unsafe { launch.num(n).count(k).count(width).blocks(n, THREADS).shared(width * 8).go() }
    }
}

struct Count(Graph);

impl Kernel for Count {
    fn cuda(&self, gpu: &Gpu, io: Io<'_, CudaStorage>) -> Result<()> {
        let ([counts, fresh], [sorted, starts, order]) = io.parts()?;
        let (mut counts, mut fresh) = (counts.elements::<u32>()?, fresh.elements::<u32>()?);
        let (sorted, starts) = (sorted.elements::<i64>()?, starts.elements::<u32>()?);
        let order = order.elements::<u32>()?;
        let Graph { n, k } = self.0;
        let launch = gpu.launch(OP, FILE, "count_edges")?.write(&mut counts).write(&mut fresh);
        let launch = launch.read(&sorted).read(&starts).read(&order).num(n).count(k);
        // SAFETY: (2 × unsigned*, const u64*, 2 × const unsigned*, size_t, unsigned): counts [n],
        // fresh, sorted and order [n k], starts [n + 1] with ends of at most n k; a warp for each
        // row.
        unsafe { launch.blocks(n.div_ceil(WARPS), THREADS).go() }
    }
}

struct Merge {
    graph: Graph,
    n_edges: usize,
}

impl Kernel for Merge {
    fn cuda(&self, gpu: &Gpu, io: Io<'_, CudaStorage>) -> Result<()> {
        let ([columns, values, offsets], [before, sorted, fresh, starts, order, p]) = io.parts()?;
        let (mut columns, mut values) = (columns.elements::<u32>()?, values.elements::<f32>()?);
        let (mut offsets, before) = (offsets.elements::<u32>()?, before.elements::<u32>()?);
        let (sorted, fresh) = (sorted.elements::<i64>()?, fresh.elements::<u32>()?);
        let (starts, order) = (starts.elements::<u32>()?, order.elements::<u32>()?);
        let p = p.elements::<f32>()?;
        let Graph { n, k } = self.graph;
        let launch = gpu.launch(OP, FILE, "merge_edges")?.write(&mut columns).write(&mut values);
        let launch = launch.write(&mut offsets).read(&before).read(&sorted).read(&fresh).read(&starts);
        let launch = launch.read(&order).read(&p).num(n).count(k).count(self.n_edges);
        let scale = 1. / (2. * n as f32);
        // SAFETY: (unsigned*, float*, unsigned*, const unsigned*, const u64*, 3 × const unsigned*,
        // const float*, size_t, 2 × unsigned, float): as for `Count`; row i has before[i + 1] −
        // before[i] edges by `Count`, n_edges in all; offsets [n + 1]; a warp for each row.
        unsafe { launch.num(scale).blocks(n.div_ceil(WARPS), THREADS).go() }
    }
}
