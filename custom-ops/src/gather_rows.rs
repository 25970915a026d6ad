//! Rows of a matrix in any order.
//!
//! ```text
//! out[i, :] = x[rows[i], :]
//! ```
//!
//! It is candle's `index_select` along the first dimension, which on a GPU copies one number a thread: for rows of 20,736 bytes that takes 424 µs per 64 MiB on
//! an H200, less than a tenth of the rate of memory. The kernel copies 16 bytes at once where rows are multiples of 16 bytes, fewer where they are not.
//!
//! ```
//! use candle::{Device::Cpu, Tensor};
//! # fn main() -> candle::Result<()> {
//! let x = Tensor::new(&[[1u8, 2], [3, 4], [5, 6]], &Cpu)?;
//! assert_eq!(chandlery_ops::gather_rows(&x, &[2, 0, 2])?.to_vec2::<u8>()?, [[5, 6], [1, 2], [5, 6]]);
//! # Ok(()) }
//! ```
use crate::check::{begins_on, matrix};
use crate::op::{Io, Kernel, new_tensor, operands};
use candle::{CpuStorage, DType, Result, Tensor, WithDType};
use rayon::prelude::*;

const OP: &str = "gather_rows";
/// Types of numbers that it takes.
const TYPES: [DType; 7] =
    [DType::U8, DType::U32, DType::I64, DType::BF16, DType::F16, DType::F32, DType::F64];
/// Bytes below which other threads are not worth waking.
const GRAIN: usize = 256 * 1024;

/// Code for each of [`TYPES`].
macro_rules! for_row {
    ($dtype:expr, |$t:ident| $run:expr) => {
        for_type!(
            $dtype,
            [U8: u8, U32: u32, I64: i64, BF16: half::bf16, F16: half::f16, F32: f32; f64],
            |$t| $run
        )
    };
}

/// The rows `rows` of a contiguous matrix `x`, `[n_rows, n_cols]` of u8, u32, i64, bf16, f16, f32 or f64, in that order: `[rows.len(), n_cols]`. A
/// row may come several times.
///
/// Cost: reads and writes the result's bytes once.
///
/// # Errors
/// When `x` is not such a matrix, an entry of `rows` is not one of its rows, memory is short, or a step is being recorded.
pub fn gather_rows(x: &Tensor, rows: &[u32]) -> Result<Tensor> {
    let (n_rows, n_cols) = matrix(OP, "x", "[n_rows, n_cols]", x, &TYPES)?;
    if let Some(row) = rows.iter().find(|&&row| row as usize >= n_rows) {
        candle::bail!("{OP}: rows must be below {n_rows}, the number of rows of x, got {row}")
    }
    let out = new_tensor(OP, (rows.len(), n_cols), x.dtype(), x.device())?;
    if out.elem_count() == 0 {
        return Ok(out);
    }
    let index = Tensor::from_slice(rows, rows.len(), x.device())?;
    // The most bytes at once of which rows, and where x begins, are multiples.
    let row_bytes = n_cols * x.dtype().size_in_bytes();
    let unit = [16, 8, 4, 2].into_iter().find(|&unit| row_bytes.is_multiple_of(unit) && begins_on(unit, x));
    let op = GatherRows { n_cols, dtype: x.dtype(), unit: unit.unwrap_or(1) };
    operands(OP).write("out", &out).read("x", x).read("rows", &index).run(&op)?;
    Ok(out)
}

/// The same by candle's `index_select`.
///
/// # Errors
/// As [`gather_rows`], on the CPU.
pub fn gather_rows_reference(x: &Tensor, rows: &[u32]) -> Result<Tensor> {
    x.index_select(&Tensor::from_slice(rows, rows.len(), x.device())?, 0)
}

struct GatherRows {
    n_cols: usize,
    dtype: DType,
    /// Bytes that a thread of a GPU copies at once.
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "the CPU copies whole rows"))]
    unit: usize,
}

impl Kernel for GatherRows {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let ([out], [x, rows]) = io.parts()?;
        let rows = rows.elements::<u32>()?;
        for_row!(self.dtype, |T| copy_rows(out.elements::<T>()?, x.elements()?, rows, self.n_cols));
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        for_row!(self.dtype, |T| self.launch::<T>(gpu, io))
    }
}

/// Rows of `n_cols` numbers.
fn copy_rows<T: WithDType>(out: &mut [T], x: &[T], rows: &[u32], n_cols: usize) {
    let at_once = GRAIN.div_ceil(n_cols * size_of::<T>());
    out.par_chunks_mut(n_cols).zip(rows).with_min_len(at_once).for_each(|(out, &row)| {
        out.copy_from_slice(&x[row as usize * n_cols..][..n_cols]);
    });
}

/// Threads of a block of `kernels/gather_rows.cu`.
#[cfg(feature = "cuda")]
const THREADS: usize = 256;

#[cfg(feature = "cuda")]
impl GatherRows {
    fn launch<T: candle::cuda::CudaDType>(
        &self,
        gpu: &crate::cuda::Gpu,
        io: Io<'_, candle::CudaStorage>,
    ) -> Result<()> {
        let ([out], [x, rows]) = io.parts()?;
        let (mut out, x, rows) = (out.elements::<T>()?, x.elements::<T>()?, rows.elements::<u32>()?);
        let (n, units) = (rows.len(), self.n_cols * size_of::<T>() / self.unit);
        let lanes = units.next_power_of_two().min(THREADS);
        let launch = gpu.launch(OP, "gather_rows", &format!("gather_rows_{}", self.unit))?;
        let launch = launch.write(&mut out).read(&x).read(&rows).num(n).num(units).count(lanes);
        // SAFETY: (Unit*, const Unit*, const unsigned*, 2 × size_t, unsigned): `out` is `n` rows of `units` units, each of the `n` entries of `rows` is a
        // row of `x`, and `x` begins on a multiple of a unit, all by `gather_rows`; so does `out`, which is new memory. There are as many blocks as the
        // threads for `n` rows take.
        unsafe { launch.blocks(n.div_ceil(THREADS / lanes), THREADS as u32).go() }
    }
}
