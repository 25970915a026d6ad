//! Barnes-Hut: the launches of `kernels/tsne/repulsion_tree.cu`.
use super::{THREADS, add_totals};
use crate::core::cuda::Gpu;
use crate::core::op::Io;
use crate::tsne::curve_order::curve_order_;
use crate::tsne::repulsion::{OP, Repulsion};
use candle::cuda::cudarc::driver::DeviceRepr;
use candle::{CudaStorage, DType, Device, Result, Tensor};

/// Of kernels/tsne/repulsion_tree.cu: children of a node, places of a block, levels, points or
/// nodes of a block that makes three levels of nodes.
const FANOUT: usize = 8;
pub(super) const PLACES: usize = 64;
const MOST_LEVELS: usize = 11;
const BUILD: usize = 512;

/// Arrays of kernels/tsne/repulsion_tree.cu.
#[derive(Debug)]
pub(super) struct Tree {
    theta: f32,
    levels: Levels,
    pub(super) order: Tensor,
    pub(super) sorted: Tensor,
    pub(super) nodes: Tensor,
    pub(super) masses: Tensor,
    /// Two `tops`: one is read while the other is written.
    pub(super) tops: Tensor,
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
            nodes: floats(4 * levels.nodes())?,
            masses: floats(levels.nodes())?,
            tops: floats(2 * 3 * 4 * n.div_ceil(BUILD).max(1))?,
        })
    }

    /// See [`Repulsion::arrange`].
    pub(super) fn sort(&self, layout: &Tensor) -> Result<()> {
        curve_order_(&self.order, layout)
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

impl Repulsion {
    pub(super) fn launch_tree(&self, gpu: &Gpu, tree: &Tree, io: Io<'_, CudaStorage>) -> Result<()> {
        let ([forces, total, blocks, sorted, nodes, masses, tops], [layout, order, weights]) = io.parts()?;
        let (mut forces, mut blocks) = (forces.elements::<f32>()?, blocks.elements::<f64>()?);
        let (mut sorted, mut nodes) = (sorted.elements::<f32>()?, nodes.elements::<f32>()?);
        let (mut tops, layout) = (tops.elements::<f32>()?, layout.elements::<f32>()?);
        let (order, weights) = (order.elements::<u32>()?, weights.maybe::<f32>()?);
        let mut masses = weights.is_some().then(|| masses.elements::<f32>()).transpose()?;
        let (n, d, levels) = (self.n, self.n_dims, tree.levels);
        let start = |name: &str| gpu.launch(OP, "repulsion_tree", name);
        let stride = n.div_ceil(BUILD);
        let (mut tops, mut others) = tops.split_at_mut(3 * 4 * stride);
        let launch = start(&format!("tree_leaves_{d}"))?.write(&mut sorted).write(&mut nodes);
        let launch = launch.maybe_write(&mut masses).write(&mut tops).read(&layout).maybe(&weights);
        let launch = launch.read(&order).num(n).num(levels).count(stride);
        // SAFETY: (2 × float4*, float*, float4*, 2 × const float*, const unsigned*, size_t, Levels,
        // unsigned): sorted [n], nodes as many as levels have, masses as many or null, tops [3,
        // stride] with a place for each block, layout [n, d], weights [n] or null as masses, order
        // holds each point once.
        unsafe { launch.blocks(stride, BUILD as u32).go() }?;
        let mut count = stride;
        for level in (3..levels.levels as usize).step_by(3) {
            {
                let below = tops.slice(..);
                let launch = start("tree_levels")?.write(&mut nodes).maybe_write(&mut masses);
                let launch = launch.write(&mut others).read(&below).num(levels);
                let launch = launch.count(level).count(count).count(stride);
                // SAFETY: (float4*, float*, float4*, const float4*, Levels, 3 × unsigned): as above;
                // the level below has `count` nodes, and the last of these three at most one for
                // each block.
                unsafe { launch.blocks(count.div_ceil(BUILD), BUILD as u32).go() }?;
            }
            count = count.div_ceil(BUILD);
            std::mem::swap(&mut tops, &mut others);
        }
        self.ended_on_gpu("tree and summary")?;
        let (sorted, nodes) = (sorted.slice(..), nodes.slice(..));
        let masses = masses.as_ref().map(|masses| masses.slice(..));
        let name = if masses.is_some() { "tree_interact_weighted" } else { "tree_interact" };
        let launch = start(&format!("{name}_{d}"))?.write(&mut forces).write(&mut blocks).read(&sorted);
        let launch = launch.read(&order).read(&nodes).maybe(&masses).num(n).num(self.own.start);
        let launch = launch.num(self.own.end).num(levels).num(tree.theta);
        // SAFETY: (float*, double*, const float4*, const unsigned*, const float4*, const float*,
        // 3 × size_t, Levels, 2 × float): forces [n, d], a part for each block, the others as
        // above; a block for each PLACES places.
        unsafe { launch.num(self.degrees_of_freedom).blocks(n.div_ceil(PLACES), THREADS).go() }?;
        add_totals(gpu, total, &blocks.slice(..), n.div_ceil(PLACES))?;
        self.ended_on_gpu("traversal")
    }
}
