//! FFT interpolation: the launches of `kernels/tsne/repulsion_grid.cu`.
use super::{POINTS, THREADS, add_totals};
use crate::core::cuda::{Gpu, Launch};
use crate::core::op::{Io, Operands, Out};
use crate::tsne::repulsion::{OP, Repulsion};
use candle::cuda::cudarc::driver::{CudaView, CudaViewMut};
use candle::{CudaStorage, DType, Device, Result, Tensor};

/// Blocks that look for the box.
const BOX_BLOCKS: usize = 256;
/// Nodes of a side up to which cells hold many points, as in early iterations.
const MOST_CROWDED: usize = 384;

/// Arrays of kernels/tsne/repulsion_grid.cu.
#[derive(Debug)]
pub(super) struct Grid {
    pub(super) nodes: usize,
    pub(super) place: Tensor,
    boxes: Tensor,
    counts: Tensor,
    starts: Tensor,
    ranks: Tensor,
    placed: Tensor,
    placed_weights: Tensor,
    charges: Tensor,
    a: Tensor,
    b: Tensor,
    rows: Tensor,
    spectra: Tensor,
    pub(super) potentials: Tensor,
    turns: Tensor,
    /// Two corners of the box in place of those of the layout.
    pub(super) frame: Option<Tensor>,
}

impl Grid {
    pub(super) fn new(nodes: usize, n: usize, device: &Device) -> Result<Self> {
        let floats = |len: usize| Tensor::zeros(len, DType::F32, device);
        let counts = |len: usize| Tensor::zeros(len, DType::U32, device);
        Ok(Self {
            nodes,
            place: floats(4)?,
            boxes: floats(4 * BOX_BLOCKS)?,
            counts: counts(nodes * nodes + 1)?,
            starts: counts(nodes * nodes)?,
            ranks: counts(n)?,
            placed: floats(2 * n)?,
            placed_weights: floats(n)?,
            charges: floats(3 * nodes * nodes)?,
            a: floats(4 * nodes * nodes)?,
            b: floats(4 * nodes * nodes)?,
            rows: floats(2 * (nodes + 1) * (nodes + 1))?,
            spectra: floats(2 * (nodes + 1) * (nodes + 1))?,
            potentials: floats(4 * nodes * nodes)?,
            turns: turns(2 * nodes, device)?,
            frame: None,
        })
    }
}

impl Grid {
    /// Adds the arrays and the layout to forces, total and blocks; [`Arrays::of`] takes them in
    /// this order.
    pub(super) fn operands<'a>(
        &'a self,
        io: Operands<'a>,
        layout: &'a Tensor,
        weights: Option<&'a Tensor>,
    ) -> Operands<'a> {
        let io = io.write("place", &self.place).write("boxes", &self.boxes).write("counts", &self.counts);
        let io = io.write("starts", &self.starts).write("ranks", &self.ranks).write("placed", &self.placed);
        let io = io.write("placed_weights", &self.placed_weights);
        let io = io.write("charges", &self.charges).write("a", &self.a).write("b", &self.b);
        let io = io.write("rows", &self.rows).write("spectra", &self.spectra);
        let io = io.write("potentials", &self.potentials);
        let io = io.read("layout", layout).read("turns", &self.turns);
        io.maybe("frame", self.frame.as_ref()).maybe("weights", weights)
    }
}

/// What a call writes and reads: [`Grid`] in memory, and the operands of [`Repulsion::repulsion_`].
struct Arrays<'a> {
    forces: CudaViewMut<'a, f32>,
    total: Out<'a, CudaStorage>,
    blocks: CudaViewMut<'a, f64>,
    place: CudaViewMut<'a, f32>,
    boxes: CudaViewMut<'a, f32>,
    counts: CudaViewMut<'a, u32>,
    starts: CudaViewMut<'a, u32>,
    ranks: CudaViewMut<'a, u32>,
    placed: CudaViewMut<'a, f32>,
    placed_weights: CudaViewMut<'a, f32>,
    charges: CudaViewMut<'a, f32>,
    a: CudaViewMut<'a, f32>,
    b: CudaViewMut<'a, f32>,
    rows: CudaViewMut<'a, f32>,
    spectra: CudaViewMut<'a, f32>,
    potentials: CudaViewMut<'a, f32>,
    layout: CudaView<'a, f32>,
    turns: CudaView<'a, f32>,
    frame: Option<CudaView<'a, f32>>,
    weights: Option<CudaView<'a, f32>>,
}

impl<'a> Arrays<'a> {
    /// In the order of [`Grid::operands`].
    fn of(io: Io<'a, CudaStorage>) -> Result<Self> {
        let ([forces, total, blocks, place, boxes, counts, starts, ranks, placed, rest @ ..], read) =
            io.parts::<16, 4>()?;
        let [placed_weights, charges, a, b, rows, spectra, potentials] = rest;
        let [layout, turns, frame, weights] = read;
        Ok(Self {
            forces: forces.elements()?,
            total,
            blocks: blocks.elements()?,
            place: place.elements()?,
            boxes: boxes.elements()?,
            counts: counts.elements()?,
            starts: starts.elements()?,
            ranks: ranks.elements()?,
            placed: placed.elements()?,
            placed_weights: placed_weights.elements()?,
            charges: charges.elements()?,
            a: a.elements()?,
            b: b.elements()?,
            rows: rows.elements()?,
            spectra: spectra.elements()?,
            potentials: potentials.elements()?,
            layout: layout.elements()?,
            turns: turns.elements()?,
            frame: frame.maybe()?,
            weights: weights.maybe()?,
        })
    }
}

/// `exp(−2πik/n)`, k below n, as pairs.
fn turns(n: usize, device: &Device) -> Result<Tensor> {
    let angle = |k: usize| -2. * std::f64::consts::PI * k as f64 / n as f64;
    let pairs: Vec<f32> = (0..n).flat_map(|k| [angle(k).cos() as f32, angle(k).sin() as f32]).collect();
    Tensor::new(pairs, device)
}

impl Repulsion {
    pub(super) fn launch_grid(&self, gpu: &Gpu, nodes: usize, io: Io<'_, CudaStorage>) -> Result<()> {
        let Arrays {
            mut forces,
            total,
            mut blocks,
            mut place,
            mut boxes,
            mut counts,
            mut starts,
            mut ranks,
            mut placed,
            mut placed_weights,
            mut charges,
            mut a,
            mut b,
            mut rows,
            mut spectra,
            mut potentials,
            layout,
            turns,
            frame,
            weights,
        } = Arrays::of(io)?;
        let n = self.n;
        let boxing = n.div_ceil(POINTS).clamp(1, BOX_BLOCKS);
        let start = |name: &str| gpu.launch(OP, "repulsion_grid", name);
        let start_lines = |name: &str| start(&format!("{name}_{nodes}"));
        let (of_rows, of_columns) = (Lines::of_rows(nodes), Lines::of_columns(nodes));
        let (around, n_around) = frame.as_ref().map_or((&layout, n), |frame| (frame, 2));
        let launch = start("grid_bounds")?.write(&mut boxes).write(&mut counts).read(around);
        // SAFETY: (float*, unsigned*, const float*, 2 × size_t): four floats for each of at most
        // BOX_BLOCKS blocks, a count for each node and one more, layout [n, 2] or a frame of two
        // points.
        unsafe { launch.num(n_around).num(nodes * nodes).blocks(boxing, THREADS).go() }?;
        {
            let boxes = boxes.slice(..);
            let launch = start("grid_count")?.write(&mut counts).write(&mut ranks).write(&mut place);
            let launch = launch.read(&boxes).count(boxing).read(&layout).num(n).count(nodes);
            // SAFETY: (2 × unsigned*, 2 × float*, unsigned, const float*, size_t, unsigned): as
            // above, ranks [n] and place [4]; a thread for each point.
            unsafe { launch.blocks(n.div_ceil(POINTS), THREADS).go() }?;
        }
        let launch = start("grid_starts")?.write(&mut starts).write(&mut counts).count(nodes);
        // SAFETY: (2 × unsigned*, unsigned): starts [nodes, nodes], counts as above, both from 16
        // bytes on; a thread for each four cells, of which there are whole blocks, as nodes are a
        // multiple of 64.
        unsafe { launch.blocks(nodes * nodes / (4 * POINTS), THREADS).go() }?;
        {
            let (starts, counts, place) = (starts.slice(..), counts.slice(..), place.slice(..));
            let ranks = ranks.slice(..);
            let launch = start("grid_place")?.write(&mut placed).write(&mut placed_weights).read(&starts);
            let launch = launch.read(&ranks).read(&place).read(&layout).maybe(&weights);
            let launch = launch.num(n).count(nodes);
            // SAFETY: (float2*, float*, 2 × const unsigned*, 3 × const float*, size_t, unsigned):
            // placed and their weights [n], of which starts and ranks give each point a place of
            // its own, weights [n] or null, the others as above.
            unsafe { launch.blocks(n.div_ceil(POINTS), THREADS).go() }?;
            self.ended_on_gpu("sorting")?;
            let (placed, placed_weights) = (placed.slice(..), placed_weights.slice(..));
            let lanes = if nodes > MOST_CROWDED { 4 } else { 32 };
            let name = if weights.is_some() { "grid_charges_weighted" } else { "grid_charges" };
            let launch = start(&format!("{name}_{lanes}"))?.write(&mut charges).read(&counts);
            let launch = launch.read(&starts).read(&placed).read(&placed_weights).count(nodes);
            // SAFETY: (float*, 2 × const unsigned*, const float2*, const float*, unsigned): charges
            // [3, nodes, nodes], the others as above; `lanes` threads a node.
            unsafe { launch.blocks(lanes * nodes * nodes / POINTS, THREADS).go() }?;
            self.ended_on_gpu("spreading")?;
        }
        {
            let place = place.slice(..);
            let launch = start_lines("grid_spectra_rows")?.write(&mut rows).read(&turns).read(&place);
            // SAFETY: (float2*, const float2*, const float*, float): rows [nodes + 1, nodes + 1],
            // turns [2 nodes]; blocks of whole lines for nodes + 1 of them.
            unsafe { of_rows.of(launch.num(self.degrees_of_freedom), nodes + 1, 1).go() }?;
            let from = rows.slice(..);
            let launch = start_lines("grid_spectra_columns")?.write(&mut spectra).read(&from).read(&turns);
            // SAFETY: (float2*, 2 × const float2*, const float*): as above.
            unsafe { of_columns.of(launch.read(&place), nodes + 1, 1).go() }?;
        }
        {
            let charges = charges.slice(..);
            let launch = start_lines("grid_forward")?.write(&mut a).write(&mut b).read(&charges).read(&turns);
            // SAFETY: (2 × float2*, const float*, const float2*): a and b [nodes, 2 nodes]; blocks
            // for `nodes` lines of each.
            unsafe { of_rows.of(launch, nodes, 2).go() }?;
            let spectra = spectra.slice(..);
            let launch = start_lines("grid_columns")?.write(&mut a).write(&mut b).read(&spectra).read(&turns);
            // SAFETY: (2 × float2*, 2 × const float2*): as above; blocks for 2 nodes columns of
            // each, of which there are whole blocks.
            unsafe { of_columns.of(launch, 2 * nodes, 2).go() }?;
        }
        let (a, b) = (a.slice(..), b.slice(..));
        let launch = start_lines("grid_back")?.write(&mut potentials).write(&mut place).read(&a).read(&b);
        // SAFETY: (float2*, float*, 3 × const float2*): potentials of four floats a node; blocks
        // for `nodes` lines of each.
        unsafe { of_rows.of(launch.read(&turns), nodes, 2).go() }?;
        self.ended_on_gpu("FFT")?;
        let (potentials, place) = (potentials.slice(..), place.slice(..));
        let (own, blocks_of_own) = (&self.own, self.own.len().div_ceil(POINTS));
        if blocks_of_own > 0 {
            let launch =
                start("grid_gather")?.write(&mut forces).write(&mut blocks).read(&potentials).read(&place);
            let launch = launch.read(&layout).maybe(&weights).num(own.start).num(own.end).count(nodes);
            // SAFETY: (float*, double*, const float4*, 3 × const float*, 2 × size_t, unsigned):
            // forces and layout [n, 2], weights [n] or null, own points of these, a part for each
            // block; a thread for each own point.
            unsafe { launch.blocks(blocks_of_own, THREADS).go() }?;
        }
        add_totals(gpu, total, &blocks.slice(..), blocks_of_own)?;
        self.ended_on_gpu("interpolation")
    }
}

/// The blocks of lines of a grid, as kernels/tsne/fft.cuh has them.
#[derive(Clone, Copy)]
struct Lines {
    /// Complex numbers of a line, of a thread and of a block.
    length: usize,
    each: usize,
    held: usize,
}

impl Lines {
    fn of_rows(nodes: usize) -> Self {
        Self::holding(nodes, 1)
    }

    fn of_columns(nodes: usize) -> Self {
        Self::holding(nodes, 4)
    }

    /// Blocks of so many lines, where neither too few nor too many threads hold them.
    fn holding(nodes: usize, lines: usize) -> Self {
        let length = 2 * nodes;
        let each = if length.is_multiple_of(3) { 12 } else { 16 };
        Self { length, each, held: (lines * length).clamp(128 * each, 512 * each) }
    }

    /// Blocks for `count` lines of each of so many planes.
    fn of(self, launch: Launch<'_>, count: usize, planes: usize) -> Launch<'_> {
        let blocks = count.div_ceil(self.held / self.length);
        launch.grid([blocks, planes, 1], ((self.held / self.each) as u32, 1, 1)).shared(self.held * 8)
    }
}
