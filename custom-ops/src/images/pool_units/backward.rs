//! The way back through pooled units: from the derivative by their means to that by the
//! pre-activations.
//!
//! ```text
//! off = 1 / (1 + Σ_s e^x_s),  pooled = 1 − off          the mean of a pooled unit
//! ∂pooled/∂x_t = p(h_t = 1) · off
//! ```
use super::{PoolShape, cpu};
use crate::core::check::expect;
use crate::core::op::{Io, Kernel, operands};
use candle::{CpuStorage, DType, Result, Tensor};

const OP: &str = "pool_backward_";

/// `pre_t ← delta · p(h_t = 1) · (1 − pooled)`: turns the derivative by the means of pooled units,
/// `delta` `[batch, n_pooled]`, into that by the pre-activations, which takes their place.
///
/// `pre` and `bias` are those of [`pool_units_`](super::pool_units_), all contiguous f32. A NaN or
/// an infinity in a block gives NaN there. The result is the same bits on CPU and CUDA.
///
/// # Errors
/// When blocks do not tile the maps, or shapes, types or devices do not fit.
pub fn pool_backward_(pre: &Tensor, bias: &Tensor, delta: &Tensor, shape: PoolShape) -> Result<()> {
    let batch = super::batch_of(OP, "pre", pre, shape)?;
    expect(OP, "bias", bias, &[DType::F32], &[shape.n_maps])?;
    expect(OP, "delta", delta, &[DType::F32], &[batch, shape.n_pooled()])?;
    if batch == 0 {
        return Ok(());
    }
    let op = Backward { shape, n: delta.elem_count() };
    operands(OP).write("pre", pre).read("bias", bias).read("delta", delta).run(&op)
}

/// [`pool_backward_`] computed with candle's own ops from the means of the units,
/// `[batch, n_units]`, and of the pooled units, `[batch, n_pooled]`; returns a new tensor.
///
/// # Errors
/// When shapes do not fit.
pub fn pool_backward_reference(
    mean: &Tensor,
    pooled: &Tensor,
    delta: &Tensor,
    shape: PoolShape,
) -> Result<Tensor> {
    let through = (delta * pooled.affine(-1., 1.)?)?;
    // Each unit has what its block has.
    mean * super::spread_blocks_reference(&(through * (shape.pool * shape.pool) as f64)?, shape)?
}

struct Backward {
    shape: PoolShape,
    /// Blocks.
    n: usize,
}

impl Kernel for Backward {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let ([pre], [bias, delta]) = io.parts()?;
        cpu::backward(self.shape, pre.elements()?, bias.elements()?, delta.elements()?);
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        let ([pre], [bias, delta]) = io.parts()?;
        let (mut pre, bias, delta) =
            (pre.elements::<f32>()?, bias.elements::<f32>()?, delta.elements::<f32>()?);
        let sizes = super::Sizes::of(OP, self.shape)?;
        let launch = gpu.launch(OP, "pool_backward", "pool_backward_f32")?.write(&mut pre);
        let launch = launch.read(&bias).read(&delta).num(self.n).num(sizes);
        // SAFETY: (float*, 2 × const float*, size_t, Sizes). `pool_backward_` checked that blocks
        // tile the maps, that delta holds n floats, one for each block, pre all units of these
        // blocks and bias n_maps floats.
        unsafe { launch.linear(self.n).go() }
    }
}
