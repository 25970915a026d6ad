//! Rows of a matrix in any order.
//!
//! ```text
//! out[i, ..] = x[rows[i], ..]
//! ```
//!
//! The rule: whatever grows with the data is gathered by these ops. candle's `index_select`
//! computes addresses in 32 bits on CUDA, which gives wrong rows without an error once `x` or the
//! result has 2³² entries, and an index that is no row ends the context; it is for what is bounded:
//! one dimension, or tables whose size a configuration sets.
//!
//! On a GPU it also copies one number a thread: for rows of 20,736 bytes that takes 424 µs per 64
//! MiB on an H200, less than a tenth of the rate of memory. The kernel here copies 16 bytes at once
//! where rows are multiples of 16 bytes, fewer where they are not.
//!
//! ```
//! use candle::{Device::Cpu, Tensor};
//! # fn main() -> candle::Result<()> {
//! let x = Tensor::new(&[[1u8, 2], [3, 4], [5, 6]], &Cpu)?;
//! assert_eq!(chandlery_ops::arrays::gather_rows(&x, &[2, 0, 2])?.to_vec2::<u8>()?, [[5, 6], [1, 2], [5, 6]]);
//! # Ok(()) }
//! ```
use crate::core::check::{begins_on, expect_layout};
use crate::core::op::{Io, Kernel, new_tensor, operands};
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

/// The rows `rows` of `x`, `[n_rows, ..]` of u8, u32, i64, bf16, f16, f32 or f64, contiguous, in
/// that order: `[rows.len(), ..]`. A row may come several times. No gradient.
///
/// Cost: reads and writes the result's bytes once.
///
/// # Errors
/// When `x` is not such a tensor, an entry of `rows` is not one of its rows, memory is short, or a
/// step is being recorded.
pub fn gather_rows(x: &Tensor, rows: &[u32]) -> Result<Tensor> {
    all_below(rows, n_rows_of(x)?)?;
    gather(x, &Tensor::from_slice(rows, rows.len(), x.device())?)
}

/// [`gather_rows`] for rows that are on the device of `x`: u32 of one dimension, contiguous. It
/// does not wait for the device.
///
/// On a GPU, what should come from a row that `x` does not have is NaN in floating point, else the
/// number whose bits are all set.
///
/// # Errors
/// As [`gather_rows`]; on a GPU entries of `rows` are not looked at by the host.
pub fn gather_rows_by(x: &Tensor, rows: &Tensor) -> Result<Tensor> {
    n_rows_of(x)?;
    if rows.rank() != 1 {
        candle::bail!("{OP}: rows must have one dimension, got shape {:?}", rows.dims())
    }
    expect_layout(OP, "rows", rows, &[DType::U32])?;
    gather(x, rows)
}

/// The number of rows of a tensor that was checked.
fn n_rows_of(x: &Tensor) -> Result<usize> {
    expect_layout(OP, "x", x, &TYPES)?;
    match x.dims().first() {
        Some(&n_rows) => Ok(n_rows),
        None => candle::bail!("{OP}: x must be [n_rows, ..], got a scalar"),
    }
}

/// Refuses rows that a tensor of so many does not have.
fn all_below(rows: &[u32], n_rows: usize) -> Result<()> {
    match rows.iter().find(|&&row| row as usize >= n_rows) {
        Some(row) => candle::bail!("{OP}: rows must be below {n_rows}, the number of rows of x, got {row}"),
        None => Ok(()),
    }
}

fn gather(x: &Tensor, rows: &Tensor) -> Result<Tensor> {
    let (n_rows, of_row) = (n_rows_of(x)?, &x.dims()[1..]);
    let n_cols: usize = of_row.iter().product();
    let out = new_tensor(OP, [&[rows.elem_count()], of_row].concat(), x.dtype(), x.device())?;
    if out.elem_count() == 0 {
        return Ok(out);
    }
    // The most bytes at once of which rows, and where x begins, are multiples.
    let row_bytes = n_cols * x.dtype().size_in_bytes();
    let unit = [16, 8, 4, 2].into_iter().find(|&unit| row_bytes.is_multiple_of(unit) && begins_on(unit, x));
    let op = GatherRows { n_rows, n_cols, dtype: x.dtype(), unit: unit.unwrap_or(1) };
    operands(OP).write("out", &out).read("x", x).read("rows", rows).run(&op)?;
    Ok(out)
}

/// [`gather_rows`] by candle's `index_select`.
///
/// # Errors
/// As [`gather_rows`], on the CPU.
pub fn gather_rows_reference(x: &Tensor, rows: &[u32]) -> Result<Tensor> {
    x.index_select(&Tensor::from_slice(rows, rows.len(), x.device())?, 0)
}

struct GatherRows {
    n_rows: usize,
    n_cols: usize,
    dtype: DType,
    /// Bytes that a thread of a GPU copies at once.
    unit: usize,
}

impl Kernel for GatherRows {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let ([out], [x, rows]) = io.parts()?;
        let rows = rows.elements::<u32>()?;
        all_below(rows, self.n_rows)?;
        for_row!(self.dtype, |T| copy_rows(out.elements::<T>()?, x.elements()?, rows, self.n_cols));
        Ok(())
    }

    fn is_serial(&self, most: usize) -> bool {
        most * self.dtype.size_in_bytes() < GRAIN
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        for_row!(self.dtype, |T| {
            let ([out], [x, rows]) = io.parts()?;
            let (mut out, x, rows) = (out.elements::<T>()?, x.elements::<T>()?, rows.elements::<u32>()?);
            let (n, units) = (rows.len(), self.n_cols * size_of::<T>() / self.unit);
            let lanes = units.next_power_of_two().min(THREADS);
            let launch = gpu.launch(OP, "gather_rows", &format!("gather_rows_{}", self.unit))?;
            let launch =
                launch.write(&mut out).read(&x).read(&rows).num(n).num(self.n_rows).num(units).count(lanes);
            // SAFETY: (Unit*, const Unit*, const unsigned*, 3 × size_t, unsigned): `out` is `n` and
            // `x` is `n_rows` rows of `units` units, and `x` begins on a multiple of a unit, all by
            // `gather`; so does `out`, which is new memory. The kernel reads no row that `x` does
            // not have. There are as many blocks as the threads for `n` rows take.
            unsafe { launch.blocks(n.div_ceil(THREADS / lanes), THREADS as u32).go() }
        })
    }
}

/// Rows of `n_cols` numbers.
fn copy_rows<T: WithDType>(out: &mut [T], x: &[T], rows: &[u32], n_cols: usize) {
    let at_once = GRAIN.div_ceil(n_cols * size_of::<T>());
    out.par_chunks_mut(n_cols).zip(rows).with_min_len(at_once).for_each(|(out, &row)| {
        out.copy_from_slice(&x[row as usize * n_cols..][..n_cols]);
    });
}

/// Threads of a block of `kernels/arrays/gather_rows.cu`.
#[cfg(feature = "cuda")]
const THREADS: usize = 256;
