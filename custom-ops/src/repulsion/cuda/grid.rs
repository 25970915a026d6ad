//! FFT interpolation: the launches of `kernels/repulsion_grid.cu`.
use super::{POINTS, THREADS, add_totals};
use crate::cuda::{Gpu, Launch};
use crate::op::Io;
use crate::repulsion::{OP, Repulsion};
use candle::{CudaStorage, DType, Device, Result, Tensor};

/// Of kernels/repulsion_grid.cu: complex numbers of a thread, and of a block of lines; blocks that look for the box.
const EACH: usize = 16;
const LEAST_HELD: usize = 2048;
const MOST_HELD: usize = 8192;
const BOX_BLOCKS: usize = 256;

/// Arrays of kernels/repulsion_grid.cu.
#[derive(Debug)]
pub(super) struct Grid {
    pub(super) nodes: usize,
    pub(super) place: Tensor,
    pub(super) boxes: Tensor,
    pub(super) charges: Tensor,
    pub(super) a: Tensor,
    pub(super) b: Tensor,
    pub(super) rows: Tensor,
    pub(super) spectra: Tensor,
    pub(super) potentials: Tensor,
    pub(super) turns: Tensor,
}

impl Grid {
    pub(super) fn new(nodes: usize, device: &Device) -> Result<Self> {
        let floats = |len: usize| Tensor::zeros(len, DType::F32, device);
        Ok(Self {
            nodes,
            place: floats(4)?,
            boxes: floats(4 * BOX_BLOCKS)?,
            charges: Tensor::zeros(3 * nodes * nodes, DType::I64, device)?,
            a: floats(4 * nodes * nodes)?,
            b: floats(4 * nodes * nodes)?,
            rows: floats(2 * (nodes + 1) * (nodes + 1))?,
            spectra: floats(2 * (nodes + 1) * (nodes + 1))?,
            potentials: floats(4 * nodes * nodes)?,
            turns: turns(2 * nodes, device)?,
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
        let ([forces, total, blocks, place, boxes, charges, a, b, rows, spectra, potentials], read) =
            io.parts()?;
        let [layout, turns] = read;
        let (mut forces, mut blocks) = (forces.elements::<f32>()?, blocks.elements::<f64>()?);
        let (mut place, mut boxes) = (place.elements::<f32>()?, boxes.elements::<f32>()?);
        let (mut charges, mut potentials) = (charges.elements::<i64>()?, potentials.elements::<f32>()?);
        let (mut a, mut b) = (a.elements::<f32>()?, b.elements::<f32>()?);
        let (mut rows, mut spectra) = (rows.elements::<f32>()?, spectra.elements::<f32>()?);
        let (layout, turns) = (layout.elements::<f32>()?, turns.elements::<f32>()?);
        let n = self.n;
        let boxing = n.div_ceil(POINTS).clamp(1, BOX_BLOCKS);
        let start = |name: &str| gpu.launch(OP, "repulsion_grid", name);
        // Small blocks keep more multiprocessors busy; those of columns read four neighbours at once where they can.
        let row_held = LEAST_HELD.max(2 * nodes);
        let column_held = (4 * 2 * nodes).clamp(LEAST_HELD, MOST_HELD);

        let launch = start("grid_bounds")?.write(&mut boxes).write(&mut charges).read(&layout);
        // SAFETY: (float*, i64*, const float*, 2 × size_t): four floats for each of at most BOX_BLOCKS blocks, three charges a node, layout [n, 2].
        unsafe { launch.num(n).num(nodes * nodes).blocks(boxing, THREADS).go() }?;
        {
            let boxes = boxes.slice(..);
            let launch = start("grid_spread")?.write(&mut charges).write(&mut place).read(&boxes);
            let launch = launch.count(boxing).read(&layout).num(n).count(nodes);
            // SAFETY: (i64*, float*, const float*, unsigned, const float*, size_t, unsigned): as above, and place [4]; a thread for each point.
            unsafe { launch.blocks(n.div_ceil(POINTS), THREADS).go() }?;
        }
        {
            let place = place.slice(..);
            let launch = start("grid_spectra_rows")?.write(&mut rows).read(&turns).read(&place);
            let launch = launch.count(nodes).num(self.degrees_of_freedom);
            // SAFETY: (float2*, const float2*, const float*, unsigned, float): rows [nodes + 1, nodes + 1], turns [2 nodes]; blocks of whole lines
            // for nodes + 1 of them.
            unsafe { lines(launch, nodes, nodes + 1, 1, row_held).go() }?;
            let from = rows.slice(..);
            let launch =
                start("grid_spectra_columns")?.write(&mut spectra).read(&from).read(&turns).read(&place);
            // SAFETY: (float2*, 2 × const float2*, const float*, unsigned): as above.
            unsafe { lines(launch.count(nodes), nodes, nodes + 1, 1, column_held).go() }?;
        }
        {
            let charges = charges.slice(..);
            let launch = start("grid_forward")?.write(&mut a).write(&mut b).read(&charges).read(&turns);
            // SAFETY: (2 × float2*, const i64*, const float2*, unsigned): a and b [nodes, 2 nodes]; blocks for `nodes` lines of each.
            unsafe { lines(launch.count(nodes), nodes, nodes, 2, row_held).go() }?;
            let spectra = spectra.slice(..);
            let launch = start("grid_columns")?.write(&mut a).write(&mut b).read(&spectra).read(&turns);
            // SAFETY: (2 × float2*, 2 × const float2*, unsigned): as above; blocks for 2 nodes columns of each, of which there are whole blocks.
            unsafe { lines(launch.count(nodes), nodes, 2 * nodes, 2, column_held).go() }?;
        }
        let (a, b) = (a.slice(..), b.slice(..));
        let launch =
            start("grid_back")?.write(&mut potentials).write(&mut place).read(&a).read(&b).read(&turns);
        // SAFETY: (float2*, float*, 3 × const float2*, unsigned): potentials of four floats a node; blocks for `nodes` lines of each.
        unsafe { lines(launch.count(nodes), nodes, nodes, 2, row_held).go() }?;
        let (potentials, place) = (potentials.slice(..), place.slice(..));
        let launch = start("grid_feel")?.write(&mut forces).write(&mut blocks).read(&potentials).read(&place);
        // SAFETY: (float*, double*, const float4*, const float*, const float*, size_t, unsigned): forces and layout [n, 2], a part for each block; a
        // thread for each point.
        unsafe { launch.read(&layout).num(n).count(nodes).blocks(n.div_ceil(POINTS), THREADS).go() }?;
        add_totals(gpu, total, &blocks.slice(..), n.div_ceil(POINTS))
    }
}

/// Blocks for `count` lines of each of so many planes, which hold so many complex numbers each; a line has `2 · nodes`.
fn lines(launch: Launch<'_>, nodes: usize, count: usize, planes: usize, held: usize) -> Launch<'_> {
    let blocks = count.div_ceil(held / (2 * nodes));
    launch.grid([blocks, planes, 1], ((held / EACH) as u32, 1, 1)).shared(held * 8)
}
