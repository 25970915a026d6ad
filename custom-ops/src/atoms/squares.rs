//! The squares of rows.
use super::{GRAIN, check_contiguous, check_float, squares_of};
use crate::host::contiguous;
use candle::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor, WithDType};
use multiversion::multiversion;
use rayon::prelude::*;

const OP: &str = "row_squares";
/// Rows that one task of the CPU twin takes.
const ROWS: usize = 128;

/// `Σ_c x[i, c]²` for each row of a contiguous f32 or f64 matrix `[rows, cols]`: f64 `[rows]`, summed in f64.
///
/// # Errors
/// When `x` is not such a matrix.
pub fn row_squares(x: &Tensor) -> Result<Tensor> {
    if x.rank() != 2 {
        candle::bail!("{OP}: x must be [rows, cols], got shape {:?}", x.dims())
    }
    check_float(OP, "x", x, x.dtype())?;
    check_contiguous(OP, "x", x)?;
    x.apply_op1_no_bwd(&RowSquares)
}

struct RowSquares;

impl CustomOp1 for RowSquares {
    fn name(&self) -> &'static str {
        OP
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (rows, cols) = layout.shape().dims2()?;
        let out = match x {
            CpuStorage::F32(_) => squares(contiguous::<f32>(x, layout, OP)?, rows, cols),
            _ => squares(contiguous::<f64>(x, layout, OP)?, rows, cols),
        };
        Ok((CpuStorage::F64(out), Shape::from(rows)))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, x: &candle::CudaStorage, layout: &Layout) -> Result<(candle::CudaStorage, Shape)> {
        use candle::backend::BackendStorage;
        match x.dtype() {
            candle::DType::F32 => cuda::squares::<f32>("f32", x, layout),
            _ => cuda::squares::<f64>("f64", x, layout),
        }
    }
}

fn squares<T: WithDType>(x: &[T], rows: usize, cols: usize) -> Vec<f64> {
    let mut out = vec![0.; rows];
    if x.len() < 2 * GRAIN && cols > 0 {
        square_rows(x, cols, &mut out);
    } else if cols > 0 {
        out.par_chunks_mut(ROWS).zip(x.par_chunks(ROWS * cols)).for_each(|(out, x)| {
            square_rows(x, cols, out);
        });
    }
    out
}

#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
fn square_rows<T: WithDType>(x: &[T], cols: usize, out: &mut [f64]) {
    for (row, out) in x.chunks_exact(cols).zip(out) {
        *out = squares_of(row);
    }
}

#[cfg(feature = "cuda")]
mod cuda {
    use super::OP;
    use crate::cuda::{count, function, view};
    use candle::backend::BackendStorage;
    use candle::cuda::cudarc::driver::{LaunchConfig, PushKernelArg};
    use candle::cuda::{CudaDType, CudaStorage, WrapErr};
    use candle::{Layout, Result, Shape};

    /// Of kernels/row_squares.cu: threads of a block, eight warps with a row each.
    const THREADS: u32 = 256;
    const ROWS: usize = 8;

    pub(super) fn squares<T: CudaDType>(
        dtype: &str,
        x: &CudaStorage,
        layout: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        let device = x.device();
        let (rows, cols) = layout.shape().dims2()?;
        let x = view::<T>(x, layout, OP)?;
        // SAFETY: uninitialised, but the kernel writes every row's sum.
        let mut out = unsafe { device.alloc::<f64>(rows.max(1))? };
        let squares = function(device, "row_squares", &format!("row_squares_{dtype}"))?;
        let blocks = count(OP, rows.div_ceil(ROWS).max(1))?;
        let config =
            LaunchConfig { grid_dim: (blocks, 1, 1), block_dim: (THREADS, 1, 1), shared_mem_bytes: 0 };
        let mut launch = squares.builder();
        let (rows_64, cols_64) = (rows as u64, cols as u64);
        launch.arg(&mut out).arg(&x).arg(&rows_64).arg(&cols_64);
        // SAFETY: (double*, const T*, 2 × size_t): x is [rows, cols] by its layout, `out` holds `rows` numbers.
        unsafe { launch.launch(config) }.w()?;
        Ok((CudaStorage::wrap_cuda_slice(out, device.clone()), Shape::from(rows)))
    }
}
