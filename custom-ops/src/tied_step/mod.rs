//! One step of a denoising autoencoder of tied weights and sigmoid units, for small minibatches on the CPU, in place.
//!
//! ```text
//! y  = σ(x̃ Wᵀ + b)               z  = σ(y W + b')
//! LN = x − z                      LH = y (1 − y) ∘ (LN Wᵀ)
//! W ← (1 − ρλ) W + ρ/B (LHᵀ x̃ + yᵀ LN),   b ← b + ρ/B Σ LH,   b' ← b' + ρ/B Σ LN
//! ```
//!
//! | symbol | argument | shape |
//! |---|---|---|
//! | `W b b'` | in `params` at 0, `bias_at`, `visible_bias_at` | `[n_hidden, n_visible]`, `[n_hidden]`, `[n_visible]` |
//! | `x x̃` | `rows`, `corrupted` | `[B, n_visible]` |
//! | `ρ` | the first entry of `scalars` | `[2]`: rate, momentum |
//! | `λ` | `weight_decay` | |
//!
//! With few rows the products are bound by reading `W`: five general products read it three times, and write and read a gradient
//! of its size. Here the rows of `W` are cut into eight blocks. A block makes its `y` and its part of the sum that becomes `z`; when
//! all are done, it makes its `LH` and updates its rows at once. So a step reads `W` four times from the cache of the core that
//! keeps the block, writes it once, and waits for other threads twice. The blocks depend on the sizes only, and so do the bits.
//!
//! Source: Kumar and Giaquinto, "Parallelizing denoising autoencoders", section 4.
mod cpu;

use crate::activation::Activation;
use crate::check::expect;
use crate::loss::{OutputLoss, output_loss_reference};
use crate::op::{Io, Kernel, operands};
use candle::{CpuStorage, DType, Device, Result, Tensor};

const OP: &str = "tied_step_";
/// Blocks of rows of the weights.
const BLOCKS: usize = 8;
/// Rows of a minibatch at most.
const MOST_ROWS: usize = 64;

/// The tensors of [`tied_step_`]; all f32 but `gathered`, contiguous, and on the CPU.
#[derive(Clone, Copy)]
pub struct TiedStep<'a> {
    /// `[n]`: weights and biases, changed in place.
    pub params: &'a Tensor,
    /// Where the hidden biases begin in `params`.
    pub bias_at: usize,
    /// Where the visible biases begin, above the hidden ones.
    pub visible_bias_at: usize,
    /// `[2, batch]` f64: each row's cross-entropy and squared error are added, as by [`output_loss_`](crate::output_loss_).
    pub gathered: &'a Tensor,
    /// At least [`tied_step_scratch`] entries, of any content.
    pub scratch: &'a Tensor,
    /// `[batch, n_visible]`
    pub rows: &'a Tensor,
    /// `[batch, n_visible]`
    pub corrupted: &'a Tensor,
    /// `[2]`: the learning rate, at least 0, and the momentum, which is not used.
    pub scalars: &'a Tensor,
    /// Hidden units, at least 1.
    pub n_hidden: usize,
    /// L2 decay of the weights, at least 0.
    pub weight_decay: f32,
}

/// Whether [`tied_step_`] is the fastest way for minibatches of so many rows: on an x86-64 CPU with AVX2 and FMA, for 2 to 64 rows.
pub fn tied_step_fits(device: &Device, batch: usize) -> bool {
    let vectors = cfg!(target_arch = "x86_64") && crate::math::has_fused();
    device.is_cpu() && vectors && (2..=MOST_ROWS).contains(&batch)
}

/// Entries of the scratch memory of [`tied_step_`].
pub fn tied_step_scratch(batch: usize, n_visible: usize, n_hidden: usize) -> usize {
    let lanes = cpu::lanes(batch);
    2 * n_visible * lanes + 2 * batch * n_visible + 2 * n_hidden * lanes + BLOCKS * batch * n_visible
}

/// The update of the module's equations.
///
/// Cost: `10 · batch · n_hidden · n_visible` FLOP.
///
/// # Errors
/// When shapes, types or devices do not fit, or the decay is negative or NaN.
pub fn tied_step_(step: TiedStep<'_>) -> Result<()> {
    let TiedStep { n_hidden, bias_at, visible_bias_at, .. } = step;
    let (batch, n_visible) =
        crate::check::matrix(OP, "rows", "[batch, n_visible]", step.rows, &[DType::F32])?;
    if !(1..=MOST_ROWS).contains(&batch) || n_visible == 0 || n_hidden == 0 {
        candle::bail!(
            "{OP}: sizes must be at least 1, and rows at most {MOST_ROWS}, got {batch} rows of {n_visible} and {n_hidden} hidden units"
        )
    }
    expect(OP, "corrupted", step.corrupted, &[DType::F32], &[batch, n_visible])?;
    expect(OP, "gathered", step.gathered, &[DType::F64], &[2, batch])?;
    expect(OP, "scalars", step.scalars, &[DType::F32], &[2])?;
    let n = step.params.elem_count();
    expect(OP, "params", step.params, &[DType::F32], &[n])?;
    let ordered = n_hidden * n_visible <= bias_at && bias_at + n_hidden <= visible_bias_at;
    if !ordered || visible_bias_at + n_visible > n {
        candle::bail!(
            "{OP}: weights, hidden and visible biases must follow each other in params, got {n_hidden}×{n_visible}, then {bias_at} and {visible_bias_at} of {n}"
        )
    }
    let (need, scratch) = (tied_step_scratch(batch, n_visible, n_hidden), step.scratch.elem_count());
    expect(OP, "scratch", step.scratch, &[DType::F32], &[scratch])?;
    if scratch < need {
        candle::bail!("{OP}: scratch must have at least {need} entries, got {scratch}")
    }
    if step.weight_decay.is_nan() || step.weight_decay < 0. {
        candle::bail!("{OP}: weight_decay must be at least 0, got {}", step.weight_decay)
    }
    let op = Step { batch, n_visible, n_hidden, bias_at, visible_bias_at, weight_decay: step.weight_decay };
    let io = operands(OP).write("params", step.params).write("gathered", step.gathered);
    let io = io.write("scratch", step.scratch).read("rows", step.rows).read("corrupted", step.corrupted);
    io.read("scalars", step.scalars).run(&op)
}

/// Weights, hidden biases, visible biases after the step, and what is added to `gathered`, by candle's own ops in f64; new tensors.
///
/// # Errors
/// When shapes do not fit.
pub fn tied_step_reference(
    [weight, bias, visible_bias]: [&Tensor; 3],
    rows: &Tensor,
    corrupted: &Tensor,
    rate: f64,
    weight_decay: f64,
) -> Result<[Tensor; 4]> {
    let wide = |t: &Tensor| t.to_dtype(DType::F64);
    let (w, b, b_visible) = (wide(weight)?, wide(bias)?, wide(visible_bias)?);
    let (x, noisy) = (wide(rows)?, wide(corrupted)?);
    let y = Activation::Sigmoid.apply(&noisy.matmul(&w.t()?)?.broadcast_add(&b)?)?;
    let pre = y.matmul(&w)?;
    let (_, sums) = output_loss_reference(&pre, &b_visible, &x, OutputLoss::CrossEntropy)?;
    let ln = (x - Activation::Sigmoid.apply(&pre.broadcast_add(&b_visible)?)?)?;
    let lh = (Activation::Sigmoid.derivative(&y)? * ln.matmul(&w.t()?)?)?;
    let step = rate / rows.dim(0)? as f64;
    let gradient = (lh.t()?.matmul(&noisy)? + y.t()?.matmul(&ln)?)?;
    let weight = ((w * (1. - rate * weight_decay))? + (gradient * step)?)?;
    Ok([weight, (b + (lh.sum(0)? * step)?)?, (b_visible + (ln.sum(0)? * step)?)?, sums])
}

/// A checked [`tied_step_`].
struct Step {
    batch: usize,
    n_visible: usize,
    n_hidden: usize,
    bias_at: usize,
    visible_bias_at: usize,
    weight_decay: f32,
}

impl Kernel for Step {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let ([params, gathered, scratch], [rows, corrupted, scalars]) = io.parts()?;
        let rate = scalars.elements::<f32>()?[0];
        let (params, scratch) = (params.elements::<f32>()?, scratch.elements::<f32>()?);
        self.run(params, gathered.elements()?, scratch, rows.elements()?, corrupted.elements()?, rate);
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, _: &crate::cuda::Gpu, _: Io<'_, candle::CudaStorage>) -> Result<()> {
        candle::bail!("{OP}: this step runs on the CPU")
    }
}
