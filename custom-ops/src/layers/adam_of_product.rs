//! A step of Adam of one matrix of weights, whose gradient is the product of what backpropagation
//! has: of the derivatives by a layer's outputs and of what it reads.
//!
//! ```text
//! g = δᵀ x,   m ← β₁ m + (1 − β₁) g,   v ← β₂ v + (1 − β₂) g²,   W as for adam_step_
//! ```
//!
//! Of large matrices on GPUs of capability 9.0 one launch of
//! `kernels/layers/sm_90a/adam_of_product.cu` sums a tile of the gradient and steps the weights by
//! it, where a product and a step write the gradient and read it again.
use super::gemm::{Factors, gemm_};
use super::optimizer::{adam_step_, check, check_steps};
use super::pingpong::tiles;
use crate::Precision;
use crate::core::adam::{AdamRule, AdamStep};
use crate::core::check::{expect, expect_layout};
use crate::core::limits::Limits;
use crate::core::op::{Kernel, operands};
use candle::{DType, Device, Result, Tensor};
use std::ops::Range;

const OP: &str = "adam_step_of_product_";
/// Tiles of a multiprocessor from which on one launch is faster.
const LEAST_TILES: usize = 4;
/// Rows of a minibatch up to which it is: of more, separate products are faster by more than the
/// gradient's way through memory.
const MOST_ROWS: usize = 8192;

/// Whether [`adam_step_of_product_`] of a matrix `[n_outputs, n_inputs]` is one kernel on this
/// device, for minibatches of `batch` rows.
pub fn adam_step_of_product_fuses(
    device: &Device,
    [n_outputs, n_inputs]: [usize; 2],
    batch: usize,
) -> Result<bool> {
    let Device::Cuda(device) = device else { return Ok(false) };
    #[cfg(feature = "cuda")]
    return Ok(fuses(crate::core::cuda::Gpu::of(device)?.limits(), [n_outputs, n_inputs], batch));
    #[cfg(not(feature = "cuda"))]
    {
        _ = (device, batch, n_outputs, n_inputs);
        Ok(false)
    }
}

fn fuses(limits: Limits, [rows, cols]: [usize; 2], batch: usize) -> bool {
    limits.has_warpgroup_products()
        && [rows, cols].iter().all(|n| n.is_multiple_of(8))
        && tiles(rows, cols) >= LEAST_TILES * limits.multiprocessors
        && [rows, cols].iter().all(|&n| i32::try_from(n).is_ok())
        && (1..=MOST_ROWS).contains(&batch)
}

/// One step of Adam of the weights `[n_outputs, n_inputs]` that begin at parameter `first` of
/// `state = [θ, g, m, v]`, `[4, n]` f32, with the gradient `δᵀ x` for `delta`, `[batch, n_outputs]`
/// bf16, and `x`, `[batch, n_inputs]` bf16.
///
/// The weights decay if `decays`; `scalars`, `steps` and `step` are as for [`adam_step_`]. `copy`,
/// `[≥ first + n_outputs · n_inputs]` bf16, receives them rounded. Whether the gradient's plane
/// receives the gradient is not said. All are contiguous. Devices differ by rounding.
///
/// Cost: `2 · batch · n_outputs · n_inputs` FLOP. One kernel moves 26 bytes a weight, a product and a
/// step 34.
///
/// # Errors
/// When shapes, types or devices do not fit, or a constant is out of its range.
#[expect(clippy::too_many_arguments, reason = "what the step of an optimiser and a product read")]
pub fn adam_step_of_product_(
    state: &Tensor,
    copy: &Tensor,
    first: usize,
    delta: &Tensor,
    x: &Tensor,
    scalars: &Tensor,
    steps: &Tensor,
    step: AdamStep,
    decays: bool,
) -> Result<()> {
    let n = check(OP, state, 4, scalars, 0, Some(copy))?;
    check_steps(OP, steps)?;
    let rule = step.rule(OP)?;
    expect_layout(OP, "delta", delta, &[DType::BF16])?;
    let (batch, rows) = delta.dims2()?;
    expect_layout(OP, "x", x, &[DType::BF16])?;
    let (_, cols) = x.dims2()?;
    expect(OP, "x", x, &[DType::BF16], &[batch, cols])?;
    let of = first..first.saturating_add(rows.saturating_mul(cols));
    if of.is_empty() || of.end > n.min(copy.elem_count()) {
        candle::bail!(
            "{OP}: weights must be among the {n} parameters and the {} of the copy, got {rows} x {cols} from {first} on",
            copy.elem_count()
        )
    }
    let op = OfProduct { rule, n, of: of.clone(), sizes: [rows, cols], batch, decays };
    if op.fuses(state, copy, delta, x)? {
        let io = operands(OP).write("state", state).write("copy", copy).read("delta", delta);
        return io.read("x", x).read("scalars", scalars).read("steps", steps).run(&op);
    }
    let gradient = state.get(1)?.narrow(0, first, of.len())?.reshape((rows, cols))?;
    gemm_(&gradient, &delta.t()?, x, Factors::OVERWRITE, Precision::Bf16)?;
    let decayed = if decays { of.end } else { 0 };
    adam_step_(state, scalars, steps, step, of, decayed, Some(copy))
}

/// The step in one kernel.
struct OfProduct {
    rule: AdamRule,
    n: usize,
    of: Range<usize>,
    sizes: [usize; 2],
    batch: usize,
    decays: bool,
}

impl OfProduct {
    fn fuses(&self, state: &Tensor, copy: &Tensor, delta: &Tensor, x: &Tensor) -> Result<bool> {
        let start = |t: &Tensor| t.layout().start_offset();
        // Copies by tensor maps begin on 16 bytes.
        let aligned =
            [start(copy) + self.of.start, start(delta), start(x)].iter().all(|n| n.is_multiple_of(8))
                && [start(state) + self.of.start, self.n].iter().all(|n| n.is_multiple_of(4));
        Ok(aligned && adam_step_of_product_fuses(state.device(), self.sizes, self.batch)?)
    }
}

/// `Numbers` of the kernel, in its order.
#[cfg(feature = "cuda")]
#[repr(C)]
#[derive(Clone, Copy)]
struct Numbers {
    rule: AdamRule,
    rows: i32,
    cols: i32,
    batch: i32,
    decays: i32,
}
// SAFETY: a rule of 40 bytes and four numbers of 32 bits, without padding, the same layout as the
// kernel's struct.
#[cfg(feature = "cuda")]
unsafe impl candle::cuda::cudarc::driver::DeviceRepr for Numbers {}

impl Kernel for OfProduct {
    #[cfg(feature = "cuda")]
    fn cuda(
        &self,
        gpu: &crate::core::cuda::Gpu,
        io: crate::core::op::Io<'_, candle::CudaStorage>,
    ) -> Result<()> {
        use super::pingpong::{DEPTH, Rooms, THREADS, TILE};
        use crate::core::cuda::{Fetch, TensorMap};
        use half::bf16;
        /// Bytes of a line of parameters and of one of the copy; lines of a subtile, and its bytes:
        /// three planes and the copy.
        const LINE: usize = 128;
        const COPY_LINE: usize = 64;
        const LINES: usize = 64;
        const SUBTILE: usize = LINES * (3 * LINE + COPY_LINE);
        let Self { rule, n, ref of, sizes: [rows, cols], batch, decays } = *self;
        let first = of.start;
        let ([state, copy], [delta, x, scalars, steps]) = io.parts()?;
        let (mut state, mut copy) = (state.elements::<f32>()?, copy.elements::<bf16>()?);
        let (delta, x) = (delta.elements::<bf16>()?, x.elements::<bf16>()?);
        let (scalars, steps) = (scalars.elements::<f32>()?, steps.elements::<i64>()?);
        let (of_state, of_copy) = (gpu.to_write(&mut state), gpu.to_write(&mut copy));
        let (of_delta, of_x) = (gpu.to_read(&delta), gpu.to_read(&x));
        let operand = |at, width: usize| {
            let planes = [(1, batch * width)];
            TensorMap::of_columns(at, DType::BF16, [width, batch, width], &planes, [TILE / 64, DEPTH])
        };
        let of_weights = |at, dtype, line| {
            TensorMap::of(at, dtype, &[cols, rows], &[cols], [line, LINES], Fetch::TwoLines)
        };
        let plane = |i: usize| of_weights(of_state.at + 4 * (i * n + first) as u64, DType::F32, LINE);
        let launch = gpu.launch(OP, "sm_90a/adam_of_product", "adam_of_product_bf16")?;
        let launch = launch.num(operand(of_delta.at, rows)?).num(operand(of_x.at, cols)?);
        let launch = launch.num(plane(0)?).num(plane(2)?).num(plane(3)?);
        let launch = launch.num(of_weights(of_copy.at + 2 * first as u64, DType::BF16, COPY_LINE)?);
        let numbers = Numbers {
            rule,
            rows: rows as i32,
            cols: cols as i32,
            batch: batch as i32,
            decays: decays.into(),
        };
        let rooms = Rooms::of(batch, SUBTILE);
        let launch = launch.read(&scalars).read(&steps).num(numbers).num(rooms.subtiles as i32);
        let blocks = tiles(rows, cols).min(gpu.limits().multiprocessors);
        let launch = launch.blocks(blocks, THREADS).shared(rooms.shared_bytes);
        // SAFETY: (6 × TensorMap, const float*, const long long*, Numbers, int): maps of both operands, of
        // the weights, the moments and the copy, whose memory has addresses that are alive, in the
        // blocks that the kernel takes. `adam_step_of_product_` checked shapes and that the weights
        // lie within their planes, `fuses` that lines and views begin on 16 bytes.
        unsafe { launch.overlapped().go() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::limits::gpus;

    #[test]
    fn only_large_matrices_on_capability_9_0_have_one_kernel() {
        for gpu in gpus::ALL {
            let nine = gpu.has_warpgroup_products();
            assert_eq!(fuses(gpu, [4096, 4096], 64), nine, "{gpu:?}");
            assert!(!fuses(gpu, [1024, 1024], 64), "few tiles: {gpu:?}");
            assert!(!fuses(gpu, [4100, 4096], 64), "lines between 16 bytes: {gpu:?}");
            assert!(!fuses(gpu, [4096, 4096], MOST_ROWS + 1), "long sums: {gpu:?}");
        }
    }
}
