//! Sums over the rows of a matrix in a fixed order.
//!
//! Row `r` belongs to lane `r mod 32`. A lane adds its rows from first to last; then the lanes are
//! added in halves: lane `l` adds lane `l + 16`, then `l + 8`, `4`, `2` and `1`. The result is
//! therefore the same bits on CPU and CUDA and in every run, and its rounding error grows with
//! `rows / 32` instead of `rows`.
//!
//! ```
//! use candle::{DType, Device::Cpu, Tensor};
//! # fn main() -> candle::Result<()> {
//! let x = Tensor::new(&[[1f32, 10., 100.], [2., 20., 200.]], &Cpu)?;
//! let sums = Tensor::zeros(3, DType::F32, &Cpu)?;
//! chandlery_ops::arrays::column_sums_(&sums, &x)?;
//! assert_eq!(sums.to_vec1::<f32>()?, [3., 30., 300.]);
//! # Ok(()) }
//! ```
use crate::core::check::{expect, matrix};
use crate::core::op::{Io, Kernel, operands};
use candle::{CpuStorage, DType, Result, Tensor, WithDType};
use half::bf16;
use rayon::prelude::*;

const OP: &str = "column_sums_";
pub(crate) const LANES: usize = 32;
/// Columns of one task of the CPU twin: 4 KiB of sums stay in the cache.
const COLUMNS: usize = 32;
/// Columns of a block of the kernel.
#[cfg(feature = "cuda")]
const UNITS: usize = 8;
/// Elements below which other threads are not worth waking.
const GRAIN: usize = 128 * 1024;

/// `sums[j] ← Σᵣ x[r, j]`, in the order that the module describes.
///
/// `sums` is `[n_units]` f32, `x` `[rows, n_units]` f32 or bf16, both contiguous; planes of equal
/// width can be summed together as `[n_planes · rows, n_units]`. Without rows the sums are 0.
///
/// # Errors
/// When shapes, types or devices do not fit.
pub fn column_sums_(sums: &Tensor, x: &Tensor) -> Result<()> {
    let (rows, n_units) = matrix(OP, "x", "[rows, n_units]", x, &[DType::F32, DType::BF16])?;
    expect(OP, "sums", sums, &[DType::F32], &[n_units])?;
    operands(OP).write("sums", sums).read("x", x).run(&ColumnSums { rows, n_units, dtype: x.dtype() })
}

/// The same sums computed with candle's own ops, in f64 and rounded once.
///
/// # Errors
/// When candle cannot convert or sum `x`.
pub fn column_sums_reference(x: &Tensor) -> Result<Tensor> {
    x.to_dtype(DType::F64)?.sum(0)?.to_dtype(DType::F32)
}

struct ColumnSums {
    rows: usize,
    n_units: usize,
    dtype: DType,
}

impl Kernel for ColumnSums {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let ([sums], [x]) = io.parts()?;
        let sums = sums.elements()?;
        if self.n_units > 0 {
            for_type!(self.dtype, [BF16: bf16; f32], |T| sum_cpu(sums, x.elements::<T>()?));
        }
        Ok(())
    }

    fn is_serial(&self, most: usize) -> bool {
        most < GRAIN
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        let kernel = format!("column_sums_{}", self.dtype.as_str());
        for_type!(self.dtype, [BF16: bf16; f32], |T| {
            let ([sums], [x]) = io.parts()?;
            let (mut sums, x) = (sums.elements::<f32>()?, x.elements::<T>()?);
            let launch =
                gpu.launch(OP, "sums", &kernel)?.write(&mut sums).read(&x).num(self.rows).num(self.n_units);
            let blocks = self.n_units.div_ceil(UNITS);
            // SAFETY: (float*, const T*, size_t, size_t); sums holds n_units floats and x rows ·
            // n_units elements, checked by `column_sums_`; the block is the kernel's (8, 32).
            unsafe { launch.grid([blocks, 1, 1], (UNITS as u32, LANES as u32, 1)).go() }
        })
    }
}

/// Adds the lanes of sums, so that the first has all.
pub(crate) fn add_in_halves(lanes: &mut [impl AsMut<[f32]>]) {
    let mut half = LANES / 2;
    while half > 0 {
        let (low, high) = lanes.split_at_mut(half);
        for (low, high) in low.iter_mut().zip(high) {
            low.as_mut().iter_mut().zip(high.as_mut()).for_each(|(low, high)| *low += *high);
        }
        half /= 2;
    }
}

fn sum_cpu<T: WithDType + Into<f32>>(sums: &mut [f32], x: &[T]) {
    let n_units = sums.len();
    let stripe = |(i, sums): (usize, &mut [f32])| {
        let mut lanes = [[0f32; COLUMNS]; LANES];
        for (r, row) in x.chunks_exact(n_units).enumerate() {
            let row = &row[i * COLUMNS..][..sums.len()];
            for (sum, &x) in lanes[r % LANES].iter_mut().zip(row) {
                *sum += x.into();
            }
        }
        add_in_halves(&mut lanes);
        sums.copy_from_slice(&lanes[0][..sums.len()]);
    };
    if x.len() < GRAIN {
        sums.chunks_mut(COLUMNS).enumerate().for_each(stripe);
    } else {
        sums.par_chunks_mut(COLUMNS).enumerate().for_each(stripe);
    }
}
