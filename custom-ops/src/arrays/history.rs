//! The vectors of a quasi-Newton method as rows of one matrix: a direction from all of them, a step
//! along it, a new gradient.
//!
//! ```text
//! combine_rows_     x[to] ← Σ_i coefficients[i] · x[i]          rows with coefficient 0 are left out
//! moved_along       from + step · x[row]
//! put_difference_   x[difference] ← values − x[old],   x[to] ← values
//! ```
//!
//! Products and sums are f64, and a result is rounded once to the type of `x`: the same bits on CPU
//! and CUDA. With [`row_dots`](crate::arrays::row_dots()) these are all the passes of L-BFGS over
//! its vectors.
//!
//! ```
//! use candle::{Device::Cpu, Tensor};
//! use chandlery_ops::arrays::{combine_rows_, moved_along, put_difference_};
//! # fn main() -> candle::Result<()> {
//! let x = Tensor::new(&[[1f32, 2.], [10., 0.], [0., 0.]], &Cpu)?;
//! combine_rows_(&x, 2, &Tensor::new(&[3f64, 0.5, 0.], &Cpu)?)?;
//! assert_eq!(x.get(2)?.to_vec1::<f32>()?, [8., 6.]);
//! let moved = moved_along(&Tensor::new(&[1f32, 1.], &Cpu)?, &x, 2, 0.5)?;
//! assert_eq!(moved.to_vec1::<f32>()?, [5., 4.]);
//! put_difference_(&x, &moved, (0, 1, 2))?; // x[0] ← moved, x[2] ← moved − x[1]
//! assert_eq!(x.to_vec2::<f32>()?, [[5., 4.], [10., 0.], [-5., 4.]]);
//! # Ok(()) }
//! ```
use crate::core::check::{expect, matrix};
use crate::core::op::{Io, Kernel, new_tensor, operands};
use candle::{CpuStorage, DType, Result, Tensor, WithDType};
use multiversion::multiversion;
use rayon::prelude::*;

const COMBINE: &str = "combine_rows_";
const MOVED: &str = "moved_along";
const DIFFERENCE: &str = "put_difference_";
const FLOATS: [DType; 2] = [DType::F32, DType::F64];
/// Columns of one task of the CPU twin, whose sums stay in the cache.
const COLUMNS: usize = 1024;
/// Entries below which other threads are not worth waking.
const GRAIN: usize = 256 * 1024;

/// `x[to] ← Σ_i coefficients[i] · x[i]`, in the order of the rows; those with coefficient 0 are
/// left out, NaN or not.
///
/// `x` is a contiguous f32 or f64 matrix `[rows, n]`, `coefficients` `[rows]` f64 on its device.
///
/// Cost: reads each row with a coefficient once.
///
/// # Errors
/// When shapes, types or devices do not fit, or `to` is not a row.
pub fn combine_rows_(x: &Tensor, to: usize, coefficients: &Tensor) -> Result<()> {
    let (rows, n) = matrix(COMBINE, "x", "[rows, n]", x, &FLOATS)?;
    expect(COMBINE, "coefficients", coefficients, &[DType::F64], &[rows])?;
    check_rows(COMBINE, rows, &[("to", to)])?;
    let op = Combine { rows, n, to, dtype: x.dtype() };
    operands(COMBINE).write("x", x).read("coefficients", coefficients).run(&op)
}

/// `from + step · x[row]`, `[n]`, a new tensor, for `from` `[n]` and `x` `[rows, n]`, contiguous,
/// both f32 or both f64.
///
/// # Errors
/// When shapes, types or devices do not fit, `row` is not a row, memory is short, or a step is
/// being recorded.
pub fn moved_along(from: &Tensor, x: &Tensor, row: usize, step: f64) -> Result<Tensor> {
    let (rows, n) = matrix(MOVED, "x", "[rows, n]", x, &FLOATS)?;
    expect(MOVED, "from", from, &[x.dtype()], &[n])?;
    check_rows(MOVED, rows, &[("row", row)])?;
    let out = new_tensor(MOVED, n, x.dtype(), x.device())?;
    let op = Move { n, row, step, dtype: x.dtype() };
    operands(MOVED).write("out", &out).read("from", from).read("x", x).run(&op)?;
    Ok(out)
}

/// `x[difference] ← values − x[old]` and `x[to] ← values`, for `rows = (to, old, difference)`.
///
/// `x` is `[rows, n]` and `values` `[n]`, contiguous, both f32 or both f64.
///
/// # Errors
/// When shapes, types or devices do not fit, one of the three is not a row, or `difference` is one
/// of the others.
pub fn put_difference_(
    x: &Tensor,
    values: &Tensor,
    (to, old, difference): (usize, usize, usize),
) -> Result<()> {
    let (rows, n) = matrix(DIFFERENCE, "x", "[rows, n]", x, &FLOATS)?;
    expect(DIFFERENCE, "values", values, &[x.dtype()], &[n])?;
    check_rows(DIFFERENCE, rows, &[("to", to), ("old", old), ("difference", difference)])?;
    if difference == to || difference == old {
        candle::bail!(
            "{DIFFERENCE}: difference must be another row than to and old, got {difference}, {to} and {old}"
        )
    }
    let op = Difference { n, to, old, difference, dtype: x.dtype() };
    operands(DIFFERENCE).write("x", x).read("values", values).run(&op)
}

/// The row that [`combine_rows_`] writes, in f64, computed with candle's own ops; for finite `x`.
///
/// # Errors
/// When shapes do not fit.
pub fn combine_rows_reference(x: &Tensor, coefficients: &Tensor) -> Result<Tensor> {
    coefficients.unsqueeze(0)?.matmul(&x.to_dtype(DType::F64)?)?.squeeze(0)
}

/// [`moved_along`] in f64, computed with candle's own ops.
///
/// # Errors
/// When shapes do not fit.
pub fn moved_along_reference(from: &Tensor, x: &Tensor, row: usize, step: f64) -> Result<Tensor> {
    from.to_dtype(DType::F64)? + (x.get(row)?.to_dtype(DType::F64)? * step)?
}

/// The matrix that [`put_difference_`] leaves, as a new tensor, computed with candle's own ops.
///
/// # Errors
/// When shapes do not fit.
pub fn put_difference_reference(
    x: &Tensor,
    values: &Tensor,
    (to, old, difference): (usize, usize, usize),
) -> Result<Tensor> {
    let apart = (values - x.get(old)?)?;
    let row = |i: usize| match i {
        _ if i == to => Ok(values.clone()),
        _ if i == difference => Ok(apart.clone()),
        _ => x.get(i),
    };
    Tensor::stack(&(0..x.dim(0)?).map(row).collect::<Result<Vec<_>>>()?, 0)
}

fn check_rows(op: &str, rows: usize, named: &[(&str, usize)]) -> Result<()> {
    match named.iter().find(|(_, row)| *row >= rows) {
        Some((name, row)) => {
            candle::bail!("{op}: {name} must be below {rows}, the number of rows, got {row}")
        }
        None => Ok(()),
    }
}

struct Combine {
    rows: usize,
    n: usize,
    to: usize,
    dtype: DType,
}

impl Combine {
    fn run_cpu<T: WithDType>(&self, x: &mut [T], coefficients: &[f64]) {
        let Self { rows, n, to, .. } = *self;
        let (before, rest) = x.split_at_mut(to * n);
        let (row, after) = rest.split_at_mut(n);
        let (before, after) = (&*before, &*after);
        let block = |(i, row): (usize, &mut [T])| {
            let mut sums = [0f64; COLUMNS];
            let sums = &mut sums[..row.len()];
            for (other, &coefficient) in coefficients.iter().enumerate().filter(|(_, c)| **c != 0.) {
                match other {
                    _ if other == to => add_scaled(sums, row, coefficient),
                    _ if other < to => add_scaled(sums, &before[other * n + i * COLUMNS..], coefficient),
                    _ => add_scaled(sums, &after[(other - to - 1) * n + i * COLUMNS..], coefficient),
                }
            }
            row.iter_mut().zip(sums).for_each(|(x, sum)| *x = T::from_f64(*sum));
        };
        if rows * n < GRAIN {
            row.chunks_mut(COLUMNS).enumerate().for_each(block);
        } else {
            row.par_chunks_mut(COLUMNS).enumerate().for_each(block);
        }
    }
}

#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
fn add_scaled<T: WithDType>(sums: &mut [f64], row: &[T], coefficient: f64) {
    sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += coefficient * x.to_f64());
}

impl Kernel for Combine {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let ([x], [coefficients]) = io.parts()?;
        let coefficients = coefficients.elements()?;
        if self.n > 0 {
            for_float!(self.dtype, |T| self.run_cpu(x.elements::<T>()?, coefficients));
        }
        Ok(())
    }

    fn is_serial(&self, _: usize) -> bool {
        self.rows * self.n < GRAIN
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        let kernel = format!("combine_rows_{}", self.dtype.as_str());
        for_float!(self.dtype, |T| {
            let ([x], [coefficients]) = io.parts()?;
            let (mut x, coefficients) = (x.elements::<T>()?, coefficients.elements::<f64>()?);
            let launch = gpu.launch(COMBINE, "history", &kernel)?.write(&mut x).read(&coefficients);
            let launch = launch.num(self.rows).num(self.n).num(self.to);
            // SAFETY: (T*, const double*, 3 × size_t): x is [rows, n] with a row `to`, and there is
            // a coefficient for each row, all by `combine_rows_`; each thread keeps to its columns.
            unsafe { launch.linear(self.n).go() }
        })
    }
}

struct Move {
    n: usize,
    row: usize,
    step: f64,
    dtype: DType,
}

impl Move {
    fn run_cpu<T: WithDType>(&self, out: &mut [T], from: &[T], x: &[T]) {
        let moved = out.iter_mut().zip(from).zip(&x[self.row * self.n..]);
        moved.for_each(|((out, from), x)| *out = T::from_f64(from.to_f64() + self.step * x.to_f64()));
    }
}

impl Kernel for Move {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let ([out], [from, x]) = io.parts()?;
        for_float!(self.dtype, |T| self.run_cpu(out.elements::<T>()?, from.elements()?, x.elements()?));
        Ok(())
    }

    fn is_serial(&self, _: usize) -> bool {
        true
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        let kernel = format!("moved_along_{}", self.dtype.as_str());
        for_float!(self.dtype, |T| {
            let ([out], [from, x]) = io.parts()?;
            let (mut out, from, x) = (out.elements::<T>()?, from.elements::<T>()?, x.elements::<T>()?);
            let row = x.slice(self.row * self.n..(self.row + 1) * self.n);
            let launch = gpu.launch(MOVED, "history", &kernel)?.write(&mut out).read(&from).read(&row);
            // SAFETY: (T*, 2 × const T*, double, size_t): all three hold n entries, by
            // `moved_along`.
            unsafe { launch.num(self.step).num(self.n).linear(self.n).go() }
        })
    }
}

struct Difference {
    n: usize,
    to: usize,
    old: usize,
    difference: usize,
    dtype: DType,
}

impl Difference {
    fn run_cpu<T: WithDType>(&self, x: &mut [T], values: &[T]) {
        let Self { n, to, old, difference, .. } = *self;
        for (c, &value) in values.iter().enumerate() {
            x[difference * n + c] = value - x[old * n + c];
            x[to * n + c] = value;
        }
    }
}

impl Kernel for Difference {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let ([x], [values]) = io.parts()?;
        for_float!(self.dtype, |T| self.run_cpu(x.elements::<T>()?, values.elements()?));
        Ok(())
    }

    fn is_serial(&self, _: usize) -> bool {
        true
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        let kernel = format!("put_difference_{}", self.dtype.as_str());
        for_float!(self.dtype, |T| {
            let ([x], [values]) = io.parts()?;
            let (mut x, values) = (x.elements::<T>()?, values.elements::<T>()?);
            let launch = gpu.launch(DIFFERENCE, "history", &kernel)?.write(&mut x).read(&values).num(self.n);
            let launch = launch.num(self.to).num(self.old).num(self.difference);
            // SAFETY: (T*, const T*, 4 × size_t): values holds n entries, x [rows, n], and all
            // three are rows, by `put_difference_`; each thread keeps to its columns.
            unsafe { launch.linear(self.n).go() }
        })
    }
}
