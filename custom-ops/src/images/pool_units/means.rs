//! Means over blocks of units, and the way back, which is also the derivative.
//!
//! ```text
//! block_means     pooled = Σ_t h_t / pool²              over the units of a block
//! spread_blocks   h_t = pooled / pool²
//! ```
use super::{PoolShape, cpu};
use crate::core::check::expect;
use crate::core::op::{Io, Kernel, operands};
use candle::{CpuStorage, DType, Result, Tensor};

const MEANS: &str = "block_means_";
const SPREAD: &str = "spread_blocks_";

/// Writes the mean of the units of each block, `units` `[batch, n_units]`, to `pooled`,
/// `[batch, n_pooled]`.
///
/// Both are contiguous f32, laid out as for [`pool_units_`](super::pool_units_). This is the
/// adjoint of [`spread_blocks_`]. The result is the same bits on CPU and CUDA.
///
/// # Errors
/// When blocks do not tile the maps, or shapes, types or devices do not fit.
pub fn block_means_(pooled: &Tensor, units: &Tensor, shape: PoolShape) -> Result<()> {
    run(MEANS, Way::Means, pooled, units, shape)
}

/// Writes to each unit, `units` `[batch, n_units]`, its block's value of `pooled`,
/// `[batch, n_pooled]`, over the units of a block: what units give downwards where only their
/// pooled unit is known.
///
/// Both are contiguous f32, laid out as for [`pool_units_`](super::pool_units_). The result is the
/// same bits on CPU and CUDA.
///
/// # Errors
/// As [`block_means_`].
pub fn spread_blocks_(units: &Tensor, pooled: &Tensor, shape: PoolShape) -> Result<()> {
    run(SPREAD, Way::Spread, pooled, units, shape)
}

/// [`block_means_`] computed with candle's own ops; returns a new, differentiable tensor.
///
/// # Errors
/// When shapes do not fit.
pub fn block_means_reference(units: &Tensor, shape: PoolShape) -> Result<Tensor> {
    let PoolShape { height, width, n_maps, pool } = shape;
    let (rows, down, across) = (units.dim(0)?, height / pool, width / pool);
    let blocks = units.reshape(vec![rows, down, pool, across, pool, n_maps])?;
    blocks.sum((2, 4))?.affine(1. / (pool * pool) as f64, 0.)?.reshape((rows, shape.n_pooled()))
}

/// [`spread_blocks_`] computed with candle's own ops; returns a new, differentiable tensor.
///
/// # Errors
/// When shapes do not fit.
pub fn spread_blocks_reference(pooled: &Tensor, shape: PoolShape) -> Result<Tensor> {
    let PoolShape { height, width, n_maps, pool } = shape;
    let (rows, down, across) = (pooled.dim(0)?, height / pool, width / pool);
    let each = (pooled / (pool * pool) as f64)?.reshape(vec![rows, down, 1, across, 1, n_maps])?;
    each.broadcast_as(vec![rows, down, pool, across, pool, n_maps])?
        .contiguous()?
        .reshape((rows, shape.n_units()))
}

#[derive(Clone, Copy)]
enum Way {
    Means,
    Spread,
}

fn run(op: &'static str, way: Way, pooled: &Tensor, units: &Tensor, shape: PoolShape) -> Result<()> {
    let batch = super::batch_of(op, "units", units, shape)?;
    expect(op, "pooled", pooled, &[DType::F32], &[batch, shape.n_pooled()])?;
    if batch == 0 {
        return Ok(());
    }
    let kernel = BlockMeans { shape, way, n: pooled.elem_count() };
    match way {
        Way::Means => operands(op).write("pooled", pooled).read("units", units).run(&kernel),
        Way::Spread => operands(op).write("units", units).read("pooled", pooled).run(&kernel),
    }
}

struct BlockMeans {
    shape: PoolShape,
    way: Way,
    /// Blocks.
    n: usize,
}

impl BlockMeans {
    fn share(&self) -> f32 {
        1. / (self.shape.pool * self.shape.pool) as f32
    }
}

impl Kernel for BlockMeans {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let ([to], [from]) = io.parts()?;
        let (to, from) = (to.elements()?, from.elements()?);
        match self.way {
            Way::Means => cpu::means(self.shape, to, from, self.share()),
            Way::Spread => cpu::spread(self.shape, to, from, self.share()),
        }
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        let ([to], [from]) = io.parts()?;
        let (mut to, from) = (to.elements::<f32>()?, from.elements::<f32>()?);
        let (op, name) = match self.way {
            Way::Means => (MEANS, "block_means_f32"),
            Way::Spread => (SPREAD, "spread_blocks_f32"),
        };
        let sizes = super::Sizes::of(op, self.shape)?;
        let launch = gpu.launch(op, "block_means", name)?.write(&mut to).read(&from);
        let launch = launch.num(self.share()).num(self.n).num(sizes);
        // SAFETY: (float*, const float*, float, size_t, Sizes). `run` checked that blocks tile the
        // maps, that the pooled tensor holds n floats, one for each block, and the other one all
        // units of these blocks.
        unsafe { launch.linear(self.n).go() }
    }
}
