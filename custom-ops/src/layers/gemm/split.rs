//! Products of f32 numbers in the tensor cores, each number as the sum of two TF32 ones.
//!
//! ```text
//! x = high + low                                        11 bits each, so that what is lost is at most 2⁻²³ |x|
//! a b ≈ a_low b_high + a_high b_low + a_high b_high     one product of three times as many terms
//! ```
//!
//! Tensor cores cut their sums off where f32 rounds, and the loss grows with the terms: a long sum
//! is cut into parts, which are added to the result in f32.
#[cfg(feature = "cuda")]
use super::Order;
use super::{Factors, Precision, gemm_};
#[cfg(feature = "cuda")]
use crate::core::op::{Io, Kernel, new_tensor, operands};
#[cfg(feature = "cuda")]
use candle::{DType, Device};
use candle::{Result, Tensor};

const OP: &str = "gemm_split_";

/// `c ← alpha · a b + beta · c` for f32 numbers, as exact as [`gemm_`] with [`Precision::F32`].
///
/// Operands are those of [`gemm_`], and `factors` are those of the host. On GPUs whose tensor cores
/// make TF32 products more than three times as fast as f32 ones (the data-centre GPUs of capability
/// 8.0, 9.0 and 10.0) large products are made there, of numbers in two parts. This allocates 12
/// bytes for each number of 256 columns of `a` and as many rows of `b`, and cannot be recorded, see
/// [`gemm_split_makes_tensors`]. Infinite operands may give NaN. In all other cases it is [`gemm_`].
///
/// Cost: `2mnk` FLOP, or `6mnk` of the tensor cores.
///
/// # Errors
/// When shapes, types, devices or layouts do not fit, or `factors` are in a tensor.
pub fn gemm_split_(c: &Tensor, a: &Tensor, b: &Tensor, factors: Factors<'_>) -> Result<()> {
    let Factors::Host { alpha, beta } = factors else {
        candle::bail!("{OP}: factors must be those of the host, got a tensor")
    };
    #[cfg(feature = "cuda")]
    if is_faster(c, a, b)? {
        return split(c, a, b, alpha, beta);
    }
    gemm_(c, a, b, Factors::Host { alpha, beta }, Precision::F32)
}

/// Whether [`gemm_split_`] of these operands makes tensors, so that it cannot be recorded.
///
/// # Errors
/// When the device fails, or `a` is no matrix.
pub fn gemm_split_makes_tensors(c: &Tensor, a: &Tensor, b: &Tensor) -> Result<bool> {
    #[cfg(feature = "cuda")]
    return is_faster(c, a, b);
    #[cfg(not(feature = "cuda"))]
    {
        let _ = (c, a, b);
        Ok(false)
    }
}

/// Terms that go through the tensor cores before an f32 addition that rounds. On an H200 the
/// largest error of four million sums of 256 to 513 terms is then .5 to 1.4 times that of f32
/// products by cuBLAS, and .7 to 1.9 times where all terms have one sign. Twice as many terms make
/// a pass over 10,000 rows at 8192-4096 a tenth faster, and these errors up to 1.6 times larger.
#[cfg(feature = "cuda")]
const TERMS: usize = 256;
/// Terms and columns are padded to multiples of these, with which cuBLAS has its fast kernels.
#[cfg(feature = "cuda")]
const WHOLE: usize = 8;
/// Entries of a result from which on [`TERMS`] of each take the GPU longer than the host takes to
/// queue their product, some 25 µs, and the least terms and sides for which it is worth it.
#[cfg(feature = "cuda")]
const ENTRIES: usize = 1 << 22;
#[cfg(feature = "cuda")]
const SIDE: usize = 128;

#[cfg(feature = "cuda")]
fn is_faster(c: &Tensor, a: &Tensor, b: &Tensor) -> Result<bool> {
    let (Device::Cuda(device), &[m, n], &[_, k]) = (c.device(), c.dims(), a.dims()) else { return Ok(false) };
    let is_f32 = [c, a, b].iter().all(|t| t.dtype() == DType::F32);
    let fits = b.dims() == [k, n] && a.dim(0)? == m;
    let is_large = m.saturating_mul(n) >= ENTRIES && m.min(n) >= SIDE && k >= TERMS;
    let fits = fits && [a, b].into_iter().all(|t| Order::find(t).is_some());
    Ok(is_f32 && fits && is_large && crate::core::cuda::Gpu::of(device)?.limits().has_fast_tf32())
}

#[cfg(feature = "cuda")]
fn split(c: &Tensor, a: &Tensor, b: &Tensor, alpha: f64, beta: f64) -> Result<()> {
    let k = a.dim(1)?;
    let length = k.div_ceil(k.div_ceil(TERMS)).next_multiple_of(WHOLE);
    for start in (0..k).step_by(length) {
        let terms = length.min(k - start);
        let a = parts("a", &a.narrow(1, start, terms)?, 0)?;
        // The transpose of b has its terms in columns, as a has.
        let b = parts("b", &b.narrow(0, start, terms)?.t()?, 1)?.t()?;
        let beta = if start == 0 { beta } else { 1. };
        gemm_(c, &a, &b, Factors::Host { alpha, beta }, Precision::Tf32)?;
    }
    Ok(())
}

/// `[m, 3k]` of `x` `[m, k]`: low, high and high parts side by side where `low_at` is 0, high, low
/// and high where it is 1, with `k` padded by zeros. It lies in memory the way `x` does.
#[cfg(feature = "cuda")]
fn parts(name: &'static str, x: &Tensor, low_at: u32) -> Result<Tensor> {
    let (m, k) = x.dims2()?;
    let (wide, deep) = (m.next_multiple_of(WHOLE), k.next_multiple_of(WHOLE));
    let by_rows = match Order::of(name, x)? {
        Order::RowMajor { line } => Ok(line),
        Order::ColumnMajor { line } => Err(line),
    };
    let (op, shape) = match by_rows {
        Ok(line) => {
            let line = [line, 3 * deep];
            (Parts { lines: [m, m], width: [k, deep], line, part: deep, low_at }, (m, 3 * deep))
        }
        Err(line) => {
            let part = deep * wide;
            (Parts { lines: [k, deep], width: [m, m], line: [line, wide], part, low_at }, (3 * deep, wide))
        }
    };
    let out = new_tensor(OP, shape, DType::F32, x.device())?;
    operands(OP).write("out", &out).read(name, x).run(&op)?;
    match by_rows {
        Ok(_) => Ok(out),
        Err(_) => out.narrow(1, 0, m)?.t(),
    }
}

/// The parts of a matrix: lines, their widths and distances, of the matrix and of what is written.
#[cfg(feature = "cuda")]
struct Parts {
    lines: [usize; 2],
    width: [usize; 2],
    line: [usize; 2],
    part: usize,
    low_at: u32,
}

#[cfg(feature = "cuda")]
impl Kernel for Parts {
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        /// Threads of a block, and most lines of a grid.
        const THREADS: usize = 256;
        const LINES: usize = 4096;
        let ([out], [x]) = io.parts()?;
        let span = (self.lines[0] - 1) * self.line[0] + self.width[0];
        let (mut out, x) = (out.elements::<f32>()?, x.span::<f32>(span)?);
        let launch = gpu.launch(OP, "tf32_parts", "tf32_parts_f32")?.write(&mut out).read(&x);
        let launch = launch.num(self.lines[0]).num(self.width[0]).num(self.line[0]);
        let launch =
            launch.num(self.lines[1]).num(self.width[1]).num(self.line[1]).num(self.part).num(self.low_at);
        let grid = [self.width[1].div_ceil(THREADS), self.lines[1].min(LINES), 1];
        // SAFETY: (float*, const float*, 7 × size_t, unsigned): the span reaches to the last number
        // of x, and `out` holds three parts of `lines[1]` lines, by `parts`; each thread keeps to
        // its column and lines.
        unsafe { launch.grid(grid, (THREADS as u32, 1, 1)).go() }
    }
}
