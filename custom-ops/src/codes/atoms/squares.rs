//! The squares of rows.
use super::{FLOATS, GRAIN, squares_of};
use crate::core::check::matrix;
use crate::core::op::{Io, Kernel, new_tensor, operands};
use candle::{CpuStorage, DType, Result, Tensor, WithDType};
use multiversion::multiversion;
use rayon::prelude::*;

const OP: &str = "row_squares";
/// Rows that one task of the CPU twin takes.
const ROWS: usize = 128;

/// `Σ_c x[i, c]²` for each row of a contiguous f32 or f64 matrix `[rows, cols]`: f64 `[rows]`,
/// summed in f64.
///
/// # Errors
/// When `x` is not such a matrix, or a step is being recorded.
pub fn row_squares(x: &Tensor) -> Result<Tensor> {
    let (rows, cols) = matrix(OP, "x", "[rows, cols]", x, &FLOATS)?;
    let out = new_tensor(OP, rows, DType::F64, x.device())?;
    operands(OP).write("out", &out).read("x", x).run(&RowSquares { rows, cols, dtype: x.dtype() })?;
    Ok(out)
}

struct RowSquares {
    rows: usize,
    cols: usize,
    dtype: DType,
}

impl Kernel for RowSquares {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let ([out], [x]) = io.parts()?;
        for_float!(self.dtype, |T| squares(x.elements::<T>()?, self.cols, out.elements()?));
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        let kernel = format!("row_squares_{}", self.dtype.as_str());
        for_float!(self.dtype, |T| {
            /// Of kernels/codes/row_squares.cu: eight warps with a row each.
            const THREADS: u32 = 256;
            const BLOCK_ROWS: usize = 8;
            let ([out], [x]) = io.parts()?;
            let (mut out, x) = (out.elements::<f64>()?, x.elements::<T>()?);
            let launch = gpu.launch(OP, "row_squares", &kernel)?.write(&mut out).read(&x);
            let launch = launch.num(self.rows).num(self.cols).blocks(self.rows.div_ceil(BLOCK_ROWS), THREADS);
            // SAFETY: (double*, const T*, 2 × size_t): x is [rows, cols], `out` holds `rows`
            // numbers, both by `row_squares`.
            unsafe { launch.go() }
        })
    }
}

/// Writes the squares of each row of `cols` numbers; without columns they are 0.
pub(super) fn squares<T: WithDType>(x: &[T], cols: usize, out: &mut [f64]) {
    match cols {
        0 => out.fill(0.),
        _ if x.len() < 2 * GRAIN => square_rows(x, cols, out),
        _ => {
            let parts = out.par_chunks_mut(ROWS).zip(x.par_chunks(ROWS * cols));
            parts.for_each(|(out, x)| square_rows(x, cols, out));
        }
    }
}

#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
fn square_rows<T: WithDType>(x: &[T], cols: usize, out: &mut [f64]) {
    for (row, out) in x.chunks_exact(cols).zip(out) {
        *out = squares_of(row);
    }
}
