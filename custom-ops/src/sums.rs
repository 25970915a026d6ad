//! Sums over the rows of a matrix in an order that never changes.
//!
//! Row `r` belongs to lane `r mod 32`; a lane adds its rows from the first to the last, and the lanes are then added in
//! halves: lane `l` takes lane `l + 16`, then `l + 8`, `4`, `2` and `1`. So the result is the same bits on CPU and CUDA
//! and in every run, and its rounding error grows with `rows / 32` instead of `rows`.
//!
//! ```
//! use candle::{DType, Device::Cpu, Tensor};
//! # fn main() -> candle::Result<()> {
//! let x = Tensor::new(&[[1f32, 10., 100.], [2., 20., 200.]], &Cpu)?;
//! let sums = Tensor::zeros(3, DType::F32, &Cpu)?;
//! chandlery_ops::column_sums_(&sums, &x)?;
//! assert_eq!(sums.to_vec1::<f32>()?, [3., 30., 300.]);
//! # Ok(()) }
//! ```
use candle::backend::BackendStorage;
use candle::{CpuStorage, DType, InplaceOp2, Layout, Result, Tensor};
use half::bf16;
use rayon::prelude::*;

const OP: &str = "column_sums_";
const LANES: usize = 32;
/// Columns of one task of the CPU twin: 4 KiB of sums stay in the cache.
const COLUMNS: usize = 32;
/// Elements below which other threads are not worth waking.
const GRAIN: usize = 128 * 1024;

/// `sums[j] ← Σᵣ x[r, j]`, in the order that the module describes.
///
/// `sums` is `[n_units]` f32, `x` `[rows, n_units]` f32 or bf16, both contiguous; planes of equal width can be summed
/// together as `[n_planes · rows, n_units]`. Without rows the sums are 0.
///
/// # Errors
/// When shapes, types or devices do not fit.
pub fn column_sums_(sums: &Tensor, x: &Tensor) -> Result<()> {
    let n_units = match x.dims() {
        &[_, n_units] => n_units,
        shape => candle::bail!("{OP}: x must be [rows, n_units], got shape {shape:?}"),
    };
    if sums.dims() != [n_units] {
        candle::bail!(
            "{OP}: sums must have shape [{n_units}] to go with x {:?}, got {:?}",
            x.dims(),
            sums.dims()
        )
    }
    if sums.dtype() != DType::F32 || !matches!(x.dtype(), DType::F32 | DType::BF16) {
        let (x, sums) = (x.dtype(), sums.dtype());
        candle::bail!("{OP}: x must be f32 or bf16 and sums f32, got {x:?} and {sums:?}")
    }
    for (what, tensor) in [("sums", sums), ("x", x)] {
        if !tensor.is_contiguous() {
            let (shape, stride) = (tensor.dims(), tensor.stride());
            candle::bail!(
                "{OP}: {what} must be contiguous, got shape {shape:?} with strides {stride:?}; call .contiguous() first"
            )
        }
    }
    crate::draw::same_device(OP, "x", x, sums.device())?;
    if n_units == 0 {
        return Ok(());
    }
    sums.inplace_op2(x, &ColumnSums)
}

/// The same sums from candle's own ops, in f64 and rounded once: what any good order of summation comes close to.
///
/// # Errors
/// When candle cannot convert or sum `x`.
pub fn column_sums_reference(x: &Tensor) -> Result<Tensor> {
    x.to_dtype(DType::F64)?.sum(0)?.to_dtype(DType::F32)
}

struct ColumnSums;

impl InplaceOp2 for ColumnSums {
    fn name(&self) -> &'static str {
        OP
    }

    fn cpu_fwd(&self, sums: &mut CpuStorage, sums_l: &Layout, x: &CpuStorage, x_l: &Layout) -> Result<()> {
        let n_units = sums_l.shape().elem_count();
        let CpuStorage::F32(sums) = sums else {
            candle::bail!("{OP}: sums must be f32, got {:?}", sums.dtype())
        };
        let sums = &mut sums[sums_l.start_offset()..][..n_units];
        let elements = x_l.start_offset()..x_l.start_offset() + x_l.shape().elem_count();
        match x {
            CpuStorage::F32(x) => sum_cpu(sums, &x[elements], |x| x),
            CpuStorage::BF16(x) => sum_cpu(sums, &x[elements], bf16::to_f32),
            x => candle::bail!("{OP}: x must be f32 or bf16, got {:?}", x.dtype()),
        }
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        sums: &mut candle::CudaStorage,
        sums_l: &Layout,
        x: &candle::CudaStorage,
        x_l: &Layout,
    ) -> Result<()> {
        match x.dtype() {
            DType::F32 => sum_cuda::<f32>("column_sums_f32", sums, sums_l, x, x_l),
            DType::BF16 => sum_cuda::<bf16>("column_sums_bf16", sums, sums_l, x, x_l),
            dtype => candle::bail!("{OP}: x must be f32 or bf16, got {dtype:?}"),
        }
    }
}

fn sum_cpu<T: Copy + Sync>(sums: &mut [f32], x: &[T], wide: impl Fn(T) -> f32 + Sync) {
    let n_units = sums.len();
    let stripe = |(i, sums): (usize, &mut [f32])| {
        let mut lanes = [[0f32; COLUMNS]; LANES];
        for (r, row) in x.chunks_exact(n_units).enumerate() {
            let row = &row[i * COLUMNS..][..sums.len()];
            for (sum, &x) in lanes[r % LANES].iter_mut().zip(row) {
                *sum += wide(x);
            }
        }
        let mut half = LANES / 2;
        while half > 0 {
            let (low, high) = lanes.split_at_mut(half);
            for (low, high) in low.iter_mut().zip(high.iter()) {
                low.iter_mut().zip(high).for_each(|(low, high)| *low += high);
            }
            half /= 2;
        }
        sums.copy_from_slice(&lanes[0][..sums.len()]);
    };
    if x.len() < GRAIN {
        sums.chunks_mut(COLUMNS).enumerate().for_each(stripe);
    } else {
        sums.par_chunks_mut(COLUMNS).enumerate().for_each(stripe);
    }
}

#[cfg(feature = "cuda")]
fn sum_cuda<T: candle::cuda::CudaDType>(
    kernel: &str,
    sums: &mut candle::CudaStorage,
    sums_l: &Layout,
    x: &candle::CudaStorage,
    x_l: &Layout,
) -> Result<()> {
    use crate::cuda::{LaunchConfig, PushKernelArg, WrapErr, count, function, view, view_mut};

    let device = x.device().clone();
    let n_units = sums_l.shape().elem_count();
    let rows = x_l.shape().elem_count() / n_units;
    let x = view::<T>(x, x_l, OP)?;
    let mut sums = view_mut::<f32>(sums, sums_l, OP)?;
    let function = function(&device, "sums", kernel)?;
    let mut launch = function.builder();
    launch.arg(&mut sums).arg(&x).arg(&rows).arg(&n_units);
    let blocks = count(OP, n_units.div_ceil(COLUMNS))?;
    let config = LaunchConfig {
        grid_dim: (blocks, 1, 1),
        block_dim: (COLUMNS as u32, LANES as u32, 1),
        shared_mem_bytes: 0,
    };
    // SAFETY: (float*, const T*, size_t, size_t); sums holds n_units floats and x rows · n_units elements, checked by
    // `column_sums_`; the block is the kernel's (32, 32), and candle refuses a shared storage.
    unsafe { launch.launch(config) }.w()?;
    Ok(())
}
