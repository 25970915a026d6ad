//! The methods on a GPU.
mod grid;
mod tree;

use super::at::At;
use super::{OP, Repulsion, RepulsionMethod};
use crate::core::cuda::Gpu;
use crate::core::op::{Io, Out, operands};
use candle::cuda::cudarc::driver::{CudaView, CudaViewMut};
use candle::{CudaStorage, DType, Device, Result, Tensor};
use grid::Grid;
use tree::{PLACES, Tree};

const THREADS: u32 = 256;
/// Points of a block of 256 threads.
const POINTS: usize = THREADS as usize;
/// Of kernels/tsne/repulsion.cu: queries of a block.
const QUERIES: usize = 128;
/// Blocks that keep a GPU of 132 multiprocessors busy.
const BLOCKS: usize = 1024;

/// Memory of a method, for layouts of one size.
#[derive(Debug)]
pub(super) struct Work {
    /// Parts of the total, one for each block of points: f64.
    blocks: Tensor,
    of: Of,
}

#[derive(Debug)]
enum Of {
    Exact {
        splits: usize,
        /// `[splits, n, n_dims + 1]`
        parts: Tensor,
    },
    Grid(Box<Grid>),
    Tree(Box<Tree>),
}

impl Work {
    pub(super) fn new(method: RepulsionMethod, n: usize, n_dims: usize, device: &Device) -> Result<Self> {
        let of = match method {
            RepulsionMethod::Exact => {
                let splits = splits(n, n);
                let parts = Tensor::zeros(splits * n * (n_dims + 1), DType::F32, device)?;
                Of::Exact { splits, parts }
            }
            RepulsionMethod::Grid { nodes } => Of::Grid(Box::new(Grid::new(nodes, n, device)?)),
            RepulsionMethod::Tree { theta } => Of::Tree(Box::new(Tree::new(theta, n, device)?)),
        };
        Ok(Self { blocks: Tensor::zeros(n.div_ceil(PLACES).max(1), DType::F64, device)?, of })
    }
}

/// Stretches of `n` sources for `m` queries.
fn splits(m: usize, n: usize) -> usize {
    BLOCKS.div_ceil(m.div_ceil(QUERIES).max(1)).clamp(1, n.div_ceil(QUERIES).max(1)).min(64)
}

impl Work {
    /// Makes a grid cover the box with these two corners, `[2, 2]`, in place of that of the layout.
    pub(super) fn cover(&mut self, frame: Tensor) {
        if let Of::Grid(grid) = &mut self.of {
            grid.frame = Some(frame);
        }
    }

    /// The potentials of the last call, `[nodes, nodes, 4]`, and where they are, `[4]`.
    pub(super) fn potentials(&self) -> Option<(Tensor, Tensor)> {
        match &self.of {
            Of::Grid(grid) => Some((grid.potentials.clone(), grid.place.clone())),
            _ => None,
        }
    }
}

impl Repulsion {
    /// See [`arrange`](Self::arrange).
    pub(super) fn sort(&self, layout: &Tensor) -> Result<()> {
        match &self.work {
            Some(Work { of: Of::Tree(tree), .. }) => tree.sort(layout),
            _ => Ok(()),
        }
    }

    pub(super) fn run_cuda(
        &self,
        forces: &Tensor,
        total: &Tensor,
        layout: &Tensor,
        weights: Option<&Tensor>,
    ) -> Result<()> {
        let Some(work) = &self.work else { candle::bail!("{OP}: it was made for the CPU") };
        let io = operands(OP).write("forces", forces).write("total", total).write("blocks", &work.blocks);
        match &work.of {
            Of::Exact { parts, .. } => {
                io.write("parts", parts).read("layout", layout).maybe("weights", weights).run(self)
            }
            Of::Grid(grid) => grid.operands(io, layout, weights).run(self),
            Of::Tree(t) => {
                let io = io.write("sorted", &t.sorted).write("nodes", &t.nodes).write("masses", &t.masses);
                let io = io.write("tops", &t.tops).read("layout", layout).read("order", &t.order);
                io.maybe("weights", weights).run(self)
            }
        }
    }

    pub(super) fn launch(&self, gpu: &Gpu, io: Io<'_, CudaStorage>) -> Result<()> {
        let Some(work) = &self.work else { candle::bail!("{OP}: it was made for the CPU") };
        match &work.of {
            Of::Exact { splits, .. } => {
                let ([forces, total, blocks, parts], [layout, weights]) = io.parts()?;
                let (layout, weights) = (layout.elements::<f32>()?, weights.maybe::<f32>()?);
                let m = self.own.len();
                let pairs = Pairs {
                    m,
                    n: self.n,
                    n_dims: self.n_dims,
                    splits: *splits,
                    alpha: self.degrees_of_freedom,
                    source: Some(self.own.start),
                };
                let of_own = self.own.start * self.n_dims..self.own.end * self.n_dims;
                let (mut blocks, mut forces) = (blocks.elements::<f64>()?, forces.elements::<f32>()?);
                if m > 0 {
                    pairs.launch(
                        gpu,
                        &mut forces.slice_mut(of_own.clone()),
                        None,
                        Some(&mut blocks),
                        &mut parts.elements()?,
                        &layout.slice(of_own),
                        (&layout, &weights),
                    )?;
                }
                add_totals(gpu, total, &blocks.slice(..), m.div_ceil(POINTS))?;
                self.ended_on_gpu("pairs")
            }
            Of::Grid(grid) => self.launch_grid(gpu, grid.nodes, io),
            Of::Tree(tree) => self.launch_tree(gpu, tree, io),
        }
    }
}

/// Every pair of queries and sources.
struct Pairs {
    m: usize,
    n: usize,
    n_dims: usize,
    splits: usize,
    alpha: f32,
    /// Which of the sources the first query is, a multiple of [`QUERIES`]; none where queries are
    /// no sources.
    source: Option<usize>,
}

impl Pairs {
    #[expect(clippy::too_many_arguments, reason = "the arrays of two kernels")]
    fn launch(
        &self,
        gpu: &Gpu,
        forces: &mut CudaViewMut<'_, f32>,
        mut totals: Option<CudaViewMut<'_, f32>>,
        mut blocks: Option<&mut CudaViewMut<'_, f64>>,
        parts: &mut CudaViewMut<'_, f32>,
        queries: &CudaView<'_, f32>,
        (layout, weights): (&CudaView<'_, f32>, &Option<CudaView<'_, f32>>),
    ) -> Result<()> {
        let &Self { m, n, n_dims, splits, alpha, source } = self;
        let stretch = n.div_ceil(splits).next_multiple_of(QUERIES);
        let start = |name: &str| gpu.launch(OP, "repulsion", &format!("{name}_{n_dims}"));
        let name = if weights.is_some() { "pairs_weighted" } else { "pairs" };
        let launch = start(name)?.write(parts).read(queries).read(layout).maybe(weights);
        let launch = launch.num(m).num(n).num(stretch).num(source.unwrap_or(0)).num(alpha);
        let launch = launch.count(usize::from(source.is_some()));
        let blocks_of_queries = m.div_ceil(QUERIES);
        // SAFETY: (float*, 3 × const float*, 4 × size_t, float, unsigned): parts [splits, m, n_dims
        // + 1], queries [m, n_dims], layout [n, n_dims], weights [n] or null; a block for 128
        // queries and each stretch, the last of which may be empty.
        unsafe { launch.grid([blocks_of_queries, splits, 1], (QUERIES as u32, 1, 1)).go() }?;
        let parts = parts.slice(..);
        let launch = start("gather")?.write(forces).maybe_write(&mut totals);
        let launch = match &mut blocks {
            Some(blocks) => launch.write(blocks),
            None => launch.num(0u64),
        };
        let of_queries = source.and_then(|source| Some(weights.as_ref()?.slice(source..source + m)));
        let launch = launch.read(&parts).maybe(&of_queries).num(m).count(splits);
        // SAFETY: (2 × float*, double*, 2 × const float*, size_t, unsigned): forces [m, n_dims],
        // totals [m] or null, a part for each block or null, weights of the queries [m] or null.
        unsafe { launch.blocks(m.div_ceil(POINTS), THREADS).go() }
    }
}

/// Adds the parts of the total.
fn add_totals(
    gpu: &Gpu,
    total: Out<'_, CudaStorage>,
    blocks: &CudaView<'_, f64>,
    count: usize,
) -> Result<()> {
    let mut total = total.elements::<f64>()?;
    let launch = gpu.launch(OP, "repulsion", "add_totals")?.write(&mut total).read(blocks);
    // SAFETY: (double*, const double*, unsigned): one total, `count` parts; one block.
    unsafe { launch.count(count).blocks(1, THREADS).go() }
}

impl At {
    pub(super) fn launch(&self, gpu: &Gpu, io: Io<'_, CudaStorage>) -> Result<()> {
        let ([forces, totals], [queries, layout]) = io.parts()?;
        let (queries, layout) = (queries.elements::<f32>()?, layout.elements::<f32>()?);
        let splits = splits(self.m, self.n);
        let mut room = crate::core::cuda::ScratchLayout::default();
        let part = room.part::<f32>(splits * self.m * (self.n_dims + 1));
        let mut scratch = room.alloc(OP, gpu)?;
        let mut bytes = scratch.view_mut(part);
        // SAFETY: bytes of an allocation that begins on 256 bytes, as many as these floats have.
        let parts = unsafe { bytes.transmute_mut::<f32>(splits * self.m * (self.n_dims + 1)) };
        let Some(mut parts) = parts else { candle::bail!("{OP}: scratch memory is short") };
        let (m, n, n_dims, alpha) = (self.m, self.n, self.n_dims, self.degrees_of_freedom);
        let pairs = Pairs { m, n, n_dims, splits, alpha, source: None };
        let mut forces = forces.elements()?;
        let totals = Some(totals.elements()?);
        pairs.launch(gpu, &mut forces, totals, None, &mut parts, &queries, (&layout, &None))
    }
}
