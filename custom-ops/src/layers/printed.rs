//! The kernels of Kumar and Giaquinto as they describe them, to be timed beside the library's own:
//! the naive parallel form, and products by tiles of a width that can be chosen.
//!
//! ```text
//! naive   each observation by itself, all at once:
//!         y  = σ(W x̃ + b),   z = σ(Wᵀ y + c),   LN = x − z,   LH = y (1 − y) W LN
//!         ΔW += LH x̃ᵀ + y LNᵀ,   Δb += LH,   Δc += LN            by atomic additions
//!         then  W += ε/M ΔW,   b += ε/M Δb,   c += ε/M Δc
//! tiled   out[i, j] = Σₖ a[i, k] b[j, k]                         a tile of T × T after the other
//! ```
//!
//! | symbol | argument | shape |
//! |---|---|---|
//! | `W b c` | `params`: [`DenoisingParams`] | `[n_hidden, n_visible]`, `[n_hidden]`, `[n_visible]`, f32 |
//! | `ΔW Δb Δc` | `sums`, where `params` has their parameters | f32, zeros before and after |
//! | `x x̃` | `rows`, `corrupted` | `[M, n_visible]` f32 |
//! | `ε` | `learning_rate` | |
//!
//! On a GPU the naive form is a block for each observation and a thread for each feature; on a CPU
//! it is a task for each observation. Atomic additions have no order, so that its bits differ from
//! run to run.
//!
//! Source: Kumar and Giaquinto, "Parallelizing denoising autoencoders", sections 3.2 and 3.3.
//! Departure: they add to the weights that other observations are reading; here the update of a
//! minibatch is summed apart and then added, so that the result is that of Algorithm 1 on a
//! minibatch.
use super::denoising_steps::DenoisingParams;
use crate::core::atomic::{add, atomics};
use crate::core::check::{expect, matrix};
use crate::core::math::sigmoid;
use crate::core::op::{Io, Kernel, operands};
use candle::{CpuStorage, DType, Result, Tensor};
use rayon::prelude::*;
use std::sync::atomic::AtomicU32;

const NAIVE: &str = "naive_denoising_step_";
const TILED: &str = "tiled_product_";
/// The widths that [`tiled_product_`] takes: more than 32 × 32 threads are no block.
pub const TILE_WIDTHS: [usize; 4] = [4, 8, 16, 32];
/// Most threads of a block of the naive kernel.
#[cfg(feature = "cuda")]
const THREADS: usize = 1024;

/// A step of a denoising autoencoder of tied weights and sigmoid units in the naive form, from a
/// minibatch `rows` and the same `corrupted`, `[M, n_visible]` f32 each; `sums` is as long as the
/// values of `params`, and must hold zeros, which it does again afterwards.
///
/// Cost: `6 · n_hidden · n_visible` FLOP a row, and an atomic addition for each weight and row.
///
/// # Errors
/// When shapes, types or devices do not fit, there are no rows, or the units are more than the
/// shared memory of a block has room for, two f32 each.
pub fn naive_denoising_step_(
    params: DenoisingParams<'_>,
    sums: &Tensor,
    rows: &Tensor,
    corrupted: &Tensor,
    learning_rate: f32,
) -> Result<()> {
    params.check(NAIVE)?;
    let DenoisingParams { values, n_visible, n_hidden, bias_at, visible_bias_at } = params;
    let (batch, _) = matrix(NAIVE, "rows", "[batch, n_visible]", rows, &[DType::F32])?;
    expect(NAIVE, "rows", rows, &[DType::F32], &[batch, n_visible])?;
    expect(NAIVE, "corrupted", corrupted, &[DType::F32], &[batch, n_visible])?;
    expect(NAIVE, "sums", sums, &[DType::F32], values.dims())?;
    if batch == 0 || n_visible == 0 || n_hidden == 0 {
        candle::bail!(
            "{NAIVE}: there must be rows and units, got {batch} rows and weights [{n_hidden}, {n_visible}]"
        )
    }
    let op =
        Naive { n_visible, n_hidden, bias_at, visible_bias_at, batch, rate: learning_rate / batch as f32 };
    let io = operands(NAIVE).write("params.values", values).write("sums", sums);
    io.read("rows", rows).read("corrupted", corrupted).run(&op)
}

/// The same computed with candle's own ops in f64; returns the values as a new f32 tensor.
///
/// # Errors
/// When shapes do not fit.
pub fn naive_denoising_step_reference(
    params: DenoisingParams<'_>,
    rows: &Tensor,
    corrupted: &Tensor,
    learning_rate: f64,
) -> Result<Tensor> {
    let DenoisingParams { values, n_visible, n_hidden, bias_at, visible_bias_at } = params;
    let wide = values.to_dtype(DType::F64)?;
    let weight = wide.narrow(0, 0, n_hidden * n_visible)?.reshape((n_hidden, n_visible))?;
    let (b, c) = (wide.narrow(0, bias_at, n_hidden)?, wide.narrow(0, visible_bias_at, n_visible)?);
    let (x, noisy) = (rows.to_dtype(DType::F64)?, corrupted.to_dtype(DType::F64)?);
    let sigmoid = |t: Tensor| (t.neg()?.exp()? + 1.)?.recip();
    let y = sigmoid(noisy.matmul(&weight.t()?)?.broadcast_add(&b)?)?;
    let ln = (x - sigmoid(y.matmul(&weight)?.broadcast_add(&c)?)?)?;
    let lh = ((&y - y.sqr()?)? * ln.matmul(&weight.t()?)?)?;
    let rate = learning_rate / rows.dim(0)? as f64;
    let of_weight = (lh.t()?.matmul(&noisy)? + y.t()?.matmul(&ln)?)?;
    let stepped = |at: usize, old: &Tensor, sum: Tensor| -> Result<(usize, Tensor)> {
        Ok((at, (old + (sum * rate)?)?.flatten_all()?))
    };
    let mut parts = vec![
        stepped(0, &weight, of_weight)?,
        stepped(bias_at, &b, lh.sum(0)?)?,
        stepped(visible_bias_at, &c, ln.sum(0)?)?,
    ];
    // What lies between the parameters stays.
    let mut all = Vec::new();
    let mut at = 0;
    for (start, part) in parts.drain(..) {
        all.extend([wide.narrow(0, at, start - at)?, part.clone()]);
        at = start + part.elem_count();
    }
    all.push(wide.narrow(0, at, wide.elem_count() - at)?);
    Tensor::cat(&all, 0)?.to_dtype(DType::F32)
}

/// `out ← a bᵀ` by tiles of `width` × `width`, which a block copies to shared memory, for `a`
/// `[rows, depth]`, `b` `[cols, depth]` and `out` `[rows, cols]`, all contiguous f32.
///
/// Every entry is summed in the order of `k`: the same bits for every width, on CPU and CUDA.
///
/// Cost: `2 · rows · cols · depth` FLOP.
///
/// # Errors
/// When shapes, types or devices do not fit, there is nothing to sum over, `width` is not one of
/// [`TILE_WIDTHS`], or `b` has more than 65,535 tiles of rows.
pub fn tiled_product_(out: &Tensor, a: &Tensor, b: &Tensor, width: usize) -> Result<()> {
    let (rows, depth) = matrix(TILED, "a", "[rows, depth]", a, &[DType::F32])?;
    let (cols, _) = matrix(TILED, "b", "[cols, depth]", b, &[DType::F32])?;
    expect(TILED, "b", b, &[DType::F32], &[cols, depth])?;
    expect(TILED, "out", out, &[DType::F32], &[rows, cols])?;
    if depth == 0 {
        candle::bail!("{TILED}: a must have columns to be summed over, got shape {:?}", a.dims())
    }
    if !TILE_WIDTHS.contains(&width) || cols.div_ceil(width) > 65_535 {
        candle::bail!(
            "{TILED}: width must be one of {TILE_WIDTHS:?} and b have at most 65535 tiles of rows, got {width} for {cols} rows"
        )
    }
    if rows * cols == 0 {
        return Ok(());
    }
    operands(TILED).write("out", out).read("a", a).read("b", b).run(&Tiled { rows, cols, depth, width })
}

/// The op with what was checked.
struct Naive {
    n_visible: usize,
    n_hidden: usize,
    bias_at: usize,
    visible_bias_at: usize,
    batch: usize,
    /// Over the rows.
    rate: f32,
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

impl Naive {
    /// One observation, from the values before the step.
    fn observation(&self, values: &[f32], sums: &[AtomicU32], x: &[f32], noisy: &[f32]) {
        let Self { n_visible, n_hidden, bias_at, visible_bias_at, .. } = *self;
        let weights = || values[..n_hidden * n_visible].chunks_exact(n_visible);
        let bias = &values[bias_at..][..n_hidden];
        let y: Vec<f32> = weights().zip(bias).map(|(row, bias)| sigmoid(bias + dot(row, noisy))).collect();
        let mut ln = values[visible_bias_at..][..n_visible].to_vec();
        for (row, y) in weights().zip(&y) {
            ln.iter_mut().zip(row).for_each(|(sum, w)| *sum += w * y);
        }
        ln.iter_mut().zip(x).for_each(|(sum, x)| *sum = x - sigmoid(*sum));
        sums[visible_bias_at..].iter().zip(&ln).for_each(|(sum, ln)| add(sum, *ln));
        let of_rows = sums.chunks_exact(n_visible);
        for (((row, y), sum), of_row) in weights().zip(&y).zip(&sums[bias_at..]).zip(of_rows) {
            let lh = y * (1. - y) * dot(row, &ln);
            add(sum, lh);
            for ((sum, noisy), ln) in of_row.iter().zip(noisy).zip(&ln) {
                add(sum, lh * noisy + ln * y);
            }
        }
    }
}

impl Kernel for Naive {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let ([values, sums], [rows, corrupted]) = io.parts()?;
        let (values, sums) = (values.elements::<f32>()?, sums.elements::<f32>()?);
        let (rows, corrupted) = (rows.elements::<f32>()?, corrupted.elements::<f32>()?);
        let (old, n): (&[f32], usize) = (values, self.n_visible);
        let shared = atomics(sums);
        let observations = rows.par_chunks_exact(n).zip(corrupted.par_chunks_exact(n));
        observations.for_each(|(x, noisy)| self.observation(old, shared, x, noisy));
        for (value, sum) in values.iter_mut().zip(sums) {
            *value += self.rate * *sum;
            *sum = 0.;
        }
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        let ([values, sums], [rows, corrupted]) = io.parts()?;
        let (mut values, mut sums) = (values.elements::<f32>()?, sums.elements::<f32>()?);
        let (rows, corrupted) = (rows.elements::<f32>()?, corrupted.elements::<f32>()?);
        let n = values.len();
        let launch = gpu.launch(NAIVE, "printed", "naive_observations")?;
        let launch = launch.write(&mut values).write(&mut sums).read(&rows).read(&corrupted);
        let launch =
            launch.num(self.n_visible).num(self.n_hidden).num(self.bias_at).num(self.visible_bias_at);
        let shared = 2 * (self.n_visible + self.n_hidden) * size_of::<f32>();
        let threads = self.n_visible.next_multiple_of(32).min(THREADS) as u32;
        // SAFETY: (float*, float*, 2 × const float*, 4 × size_t): values and sums hold W, b and c
        // at these places, rows and corrupted [batch, n_visible], all checked by
        // `naive_denoising_step_`; a block for each row has the shared floats of y, LH, x̃ and LN.
        unsafe { launch.blocks(self.batch, threads).shared(shared).go()? };
        let launch = gpu.launch(NAIVE, "printed", "naive_update")?;
        let launch = launch.write(&mut values).write(&mut sums).num(n).num(self.rate);
        // SAFETY: (float*, float*, size_t, float): both hold n floats.
        unsafe { launch.linear(n).go() }
    }
}

/// The op with what was checked.
struct Tiled {
    rows: usize,
    cols: usize,
    depth: usize,
    width: usize,
}

impl Kernel for Tiled {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let ([out], [a, b]) = io.parts()?;
        let (out, a, b) = (out.elements::<f32>()?, a.elements::<f32>()?, b.elements::<f32>()?);
        let Self { cols, depth, width, .. } = *self;
        out.fill(0.);
        let tiles = out.par_chunks_mut(width * cols).zip(a.par_chunks(width * depth));
        tiles.for_each(|(out, a)| self.tiles(out, a, b));
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        let ([out], [a, b]) = io.parts()?;
        let (mut out, a, b) = (out.elements::<f32>()?, a.elements::<f32>()?, b.elements::<f32>()?);
        let Self { rows, cols, depth, width } = *self;
        let launch = gpu.launch(TILED, "printed", &format!("tiled_product_{width}"))?;
        let launch = launch.write(&mut out).read(&a).read(&b).num(rows).num(cols).num(depth);
        let grid = [rows.div_ceil(width), cols.div_ceil(width), 1];
        // SAFETY: (float*, 2 × const float*, 3 × size_t): out is [rows, cols], a [rows, depth] and
        // b [cols, depth], by `tiled_product_`; there is a block of width × width threads for each
        // tile.
        unsafe { launch.grid(grid, (width as u32, width as u32, 1)).go() }
    }
}

impl Tiled {
    /// The tiles of at most `width` rows of `a`: a tile of each factor is copied, and then added.
    fn tiles(&self, out: &mut [f32], a: &[f32], b: &[f32]) {
        let Self { cols, depth, width, .. } = *self;
        let height = out.len() / cols;
        // The second with `k` before the columns, so that neighbours are added together.
        let (mut left, mut right) = (vec![0f32; width * width], vec![0f32; width * width]);
        for first in (0..cols).step_by(width) {
            let across = width.min(cols - first);
            for k0 in (0..depth).step_by(width) {
                let deep = width.min(depth - k0);
                for i in 0..height {
                    left[i * width..][..deep].copy_from_slice(&a[i * depth + k0..][..deep]);
                }
                for j in 0..across {
                    let row = &b[(first + j) * depth + k0..][..deep];
                    row.iter().enumerate().for_each(|(k, x)| right[k * width + j] = *x);
                }
                for i in 0..height {
                    let out = &mut out[i * cols + first..][..across];
                    for k in 0..deep {
                        let x = left[i * width + k];
                        out.iter_mut().zip(&right[k * width..]).for_each(|(sum, y)| *sum += x * y);
                    }
                }
            }
        }
    }
}
