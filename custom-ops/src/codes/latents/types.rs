//! Types of numbers of latents: matrices of f32, f64 or bf16, and values of f64 for f64, else f32.
use candle::{DType, Result, Tensor};

pub(super) const FLOATS: [DType; 3] = [DType::F32, DType::F64, DType::BF16];

/// The type of values that go with matrices of `dtype`.
pub(super) fn wide_type(dtype: DType) -> DType {
    if dtype == DType::F64 { dtype } else { DType::F32 }
}

/// A matrix as the code of its device takes it: that of the CPU has no bf16.
pub(super) fn on_device(matrix: &Tensor) -> Result<Tensor> {
    if matrix.device().is_cpu() { matrix.to_dtype(wide_type(matrix.dtype())) } else { Ok(matrix.clone()) }
}

/// Runs code in which `T` is the type of matrices of `$dtype` and `V` that of values.
#[cfg(feature = "cuda")]
macro_rules! for_latents {
    ($dtype:expr, |$t:ident, $v:ident| $run:expr) => {
        match $dtype {
            candle::DType::F64 => {
                type $t = f64;
                type $v = f64;
                $run
            }
            candle::DType::BF16 => {
                type $t = half::bf16;
                type $v = f32;
                $run
            }
            _ => {
                type $t = f32;
                type $v = f32;
                $run
            }
        }
    };
}

/// A number that kernels know.
#[cfg(feature = "cuda")]
pub(super) trait Number: candle::cuda::CudaDType + candle::WithDType {}
#[cfg(feature = "cuda")]
impl<T: candle::cuda::CudaDType + candle::WithDType> Number for T {}

/// The end of the names of kernels for matrices of `T`.
#[cfg(feature = "cuda")]
pub(super) fn suffix<T: Number>() -> &'static str {
    T::DTYPE.as_str()
}
