//! Barnes-Hut: the launches of `kernels/repulsion_tree.cu`.
use super::{POINTS, THREADS, add_totals};
use crate::cuda::Gpu;
use crate::op::{Io, Kernel, operands};
use crate::repulsion::{OP, Repulsion};
use crate::sort_by_key;
use candle::cuda::cudarc::driver::DeviceRepr;
use candle::{CudaStorage, DType, Device, Result, Tensor};

/// Of kernels/repulsion_tree.cu.
const FANOUT: usize = 8;
pub(super) const PLACES: usize = 64;
const MOST_LEVELS: usize = 12;

/// Arrays of kernels/repulsion_tree.cu.
#[derive(Debug)]
pub(super) struct Tree {
    theta: f32,
    levels: Levels,
    pub(super) order: Tensor,
    pub(super) sorted: Tensor,
    pub(super) centres: Tensor,
    pub(super) sides: Tensor,
    pub(super) lows: Tensor,
    pub(super) highs: Tensor,
}

impl Tree {
    pub(super) fn new(theta: f32, n: usize, device: &Device) -> Result<Self> {
        let floats = |len: usize| Tensor::zeros(len, DType::F32, device);
        let levels = Levels::of(n);
        Ok(Self {
            theta,
            levels,
            order: Tensor::arange(0u32, n as u32, device)?,
            sorted: floats(4 * n)?,
            centres: floats(4 * levels.nodes())?,
            sides: floats(levels.nodes())?,
            lows: floats(4 * levels.nodes())?,
            highs: floats(4 * levels.nodes())?,
        })
    }
}

/// `Levels` of the kernel.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Levels {
    starts: [u32; MOST_LEVELS + 1],
    levels: u32,
}
// SAFETY: plain numbers in the layout of the kernel's struct.
unsafe impl DeviceRepr for Levels {}

impl Levels {
    fn of(n: usize) -> Self {
        let (mut starts, mut levels, mut count) = ([0; MOST_LEVELS + 1], 0, n.max(1));
        loop {
            count = count.div_ceil(FANOUT);
            starts[levels + 1] = starts[levels] + count as u32;
            levels += 1;
            if count == 1 {
                break;
            }
        }
        Self { starts, levels: levels as u32 }
    }

    fn nodes(&self) -> usize {
        self.starts[self.levels as usize] as usize
    }
}

impl Tree {
    /// See [`Repulsion::arrange`].
    pub(super) fn sort(&self, layout: &Tensor) -> Result<()> {
        let (n, n_dims) = layout.dims2()?;
        crate::op::not_recording(OP, layout.device())?;
        // Reductions over the last dimension keep the GPU busy.
        let across = layout.t()?.contiguous()?;
        let (low, high) = (across.min(1)?.to_vec1::<f32>()?, across.max(1)?.to_vec1::<f32>()?);
        let span = low.iter().zip(&high).map(|(low, high)| high - low).fold(0f32, f32::max);
        let scale = if span > 0. && span.is_finite() { 1. / span } else { 0. };
        let device = layout.device();
        let (first, second) = (Tensor::zeros(n, DType::U32, device)?, Tensor::zeros(n, DType::U32, device)?);
        let io = operands(OP).write("low", &first).write("high", &second).read("layout", layout);
        io.run(&Keys { n, n_dims, low, scale })?;
        let by_low = sort_by_key(&first, 1 << 20)?.order;
        let by_both = sort_by_key(&second.index_select(&by_low, 0)?, 1 << 20)?.order;
        let io = operands(OP).write("order", &self.order).read("earlier", &by_low).read("later", &by_both);
        io.run(&Order { n })
    }
}

impl Repulsion {
    pub(super) fn launch_tree(&self, gpu: &Gpu, tree: &Tree, io: Io<'_, CudaStorage>) -> Result<()> {
        let ([forces, total, blocks, sorted, centres, sides, lows, highs], [layout, order]) = io.parts()?;
        let (mut forces, mut blocks) = (forces.elements::<f32>()?, blocks.elements::<f64>()?);
        let (mut sorted, mut centres) = (sorted.elements::<f32>()?, centres.elements::<f32>()?);
        let (mut sides, mut lows) = (sides.elements::<f32>()?, lows.elements::<f32>()?);
        let (mut highs, layout) = (highs.elements::<f32>()?, layout.elements::<f32>()?);
        let order = order.elements::<u32>()?;
        let (n, d, levels) = (self.n, self.n_dims, tree.levels);
        let start = |name: &str| gpu.launch(OP, "repulsion_tree", name);
        let launch = start(&format!("tree_gather_{d}"))?.write(&mut sorted).read(&layout).read(&order);
        // SAFETY: (float4*, const float*, const unsigned*, size_t): sorted [n], layout [n, d], order holds each point once.
        unsafe { launch.num(n).blocks(n.div_ceil(POINTS), THREADS).go() }?;
        let sorted = sorted.slice(..);
        let mut count = n;
        for level in 0..levels.levels as usize {
            let first = levels.starts[level] as usize;
            let below = if level == 0 { 0 } else { levels.starts[level - 1] as usize };
            let launch = start("tree_level")?.write(&mut centres).write(&mut sides).write(&mut lows);
            let launch = launch.write(&mut highs).read(&sorted).count(first).count(below).count(count);
            let nodes = count.div_ceil(FANOUT);
            // SAFETY: (float4*, float*, 2 × float4*, const float4*, 4 × unsigned): nodes of this level are at `first`, those below, or the points,
            // are `count`; a thread for each node.
            unsafe { launch.count(usize::from(level == 0)).blocks(nodes.div_ceil(POINTS), THREADS).go() }?;
            count = nodes;
        }
        let (centres, sides) = (centres.slice(..), sides.slice(..));
        let launch = start(&format!("tree_feel_{d}"))?.write(&mut forces).write(&mut blocks).read(&sorted);
        let launch = launch.read(&order).read(&centres).read(&sides).num(n).num(levels).num(tree.theta);
        // SAFETY: (float*, double*, const float4*, const unsigned*, const float4*, const float*, size_t, Levels, 2 × float): as above; the stack of a warp
        // holds 128 nodes, of which a walk down 12 levels needs at most 8 + 11 · 7.
        unsafe { launch.num(self.degrees_of_freedom).blocks(n.div_ceil(PLACES), THREADS).go() }?;
        add_totals(gpu, total, &blocks.slice(..), n.div_ceil(PLACES))
    }
}

struct Keys {
    n: usize,
    n_dims: usize,
    low: Vec<f32>,
    scale: f32,
}

impl Kernel for Keys {
    fn cuda(&self, gpu: &Gpu, io: Io<'_, CudaStorage>) -> Result<()> {
        let ([low, high], [layout]) = io.parts()?;
        let (mut low, mut high) = (low.elements::<u32>()?, high.elements::<u32>()?);
        let layout = layout.elements::<f32>()?;
        let name = format!("tree_keys_{}", self.n_dims);
        let launch = gpu.launch(OP, "repulsion_tree", &name)?.write(&mut low).write(&mut high);
        let corner = |k: usize| self.low.get(k).copied().unwrap_or(0.);
        let launch = launch.read(&layout).num(self.n).num(corner(0)).num(corner(1)).num(corner(2));
        // SAFETY: (2 × unsigned*, const float*, size_t, 4 × float): keys [n], layout [n, n_dims]; a thread for each point.
        unsafe { launch.num(self.scale).blocks(self.n.div_ceil(POINTS), THREADS).go() }
    }
}

/// Two sorts, one after the other.
struct Order {
    n: usize,
}

impl Kernel for Order {
    fn cuda(&self, gpu: &Gpu, io: Io<'_, CudaStorage>) -> Result<()> {
        let ([order], [earlier, later]) = io.parts()?;
        let mut order = order.elements::<u32>()?;
        let (earlier, later) = (earlier.elements::<u32>()?, later.elements::<u32>()?);
        let launch = gpu.launch(OP, "repulsion_tree", "tree_order")?.write(&mut order).read(&earlier);
        // SAFETY: (unsigned*, 2 × const unsigned*, size_t): each holds the n places once; a thread for each.
        unsafe { launch.read(&later).num(self.n).blocks(self.n.div_ceil(POINTS), THREADS).go() }
    }
}
