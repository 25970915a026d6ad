//! A product that is added to a matrix and written to another.
//!
//! On CUDA it is cuBLASLt's, or that of a kernel of our own; see `onto_kernel.rs`.
use super::{Factors, Precision, run};
use candle::{Result, Tensor};

const OP: &str = "gemm_onto_";

/// `c ← a b + beta · onto`: what is added to the product is read where it lies, in place of a copy of
/// it to `c` before [`gemm_`](super::gemm_).
///
/// `c` and `onto` are `[m, n]` f32, contiguous; `a` and `b` are f32, bf16
/// or f16, as for [`gemm_`](super::gemm_).
///
/// Cost: `2mnk` FLOP, and one read of `onto` beside those of the operands. On CUDA cuBLASLt, where it
/// makes the product, chooses its kernel anew for each call, in some microseconds of the host.
///
/// # Errors
/// When shapes, types, devices or layouts do not fit.
pub fn gemm_onto_(
    c: &Tensor,
    onto: &Tensor,
    a: &Tensor,
    b: &Tensor,
    beta: f64,
    precision: Precision,
) -> Result<()> {
    run(OP, c, a, b, Factors::Host { alpha: 1., beta }, Some(onto), precision)
}

#[cfg(feature = "cuda")]
mod cuda {
    use super::super::{Gemm, Order, Precision};
    use crate::core::cuda::Gpu;
    use candle::cuda::CudaDType;
    use candle::cuda::cudarc::cublaslt::result::{self, CublasError};
    use candle::cuda::cudarc::cublaslt::sys::{
        cublasComputeType_t as Compute, cublasLtMatmulDescAttributes_t as Description,
        cublasLtMatmulPreferenceAttributes_t as Preference, cudaDataType,
    };
    use candle::cuda::cudarc::driver::{CudaView, CudaViewMut, DevicePtr, DevicePtrMut};
    use candle::{DType, Result, WithDType};
    use std::ffi::c_void;

    /// What the library made, and how it takes it back.
    struct Owned<T: Copy>(T, unsafe fn(T) -> std::result::Result<(), CublasError>);

    impl<T: Copy> Drop for Owned<T> {
        fn drop(&mut self) {
            // SAFETY: it was made by the function that belongs to this one, and goes once. It is
            // memory of the host, and nothing can be done about an error.
            let _ = unsafe { (self.1)(self.0) };
        }
    }

    /// Bytes on which memory begins, as far as it matters to cuBLASLt.
    fn alignment(at: u64) -> u32 {
        1 << at.trailing_zeros().min(8)
    }

    impl Gemm {
        /// `c ← alpha · a b + beta · onto`, of one product with factors from the host, of which
        /// `alpha` is 1.
        pub(in super::super) fn launch_onto<T: CudaDType + WithDType>(
            &self,
            gpu: &Gpu,
            c: &mut CudaViewMut<'_, f32>,
            onto: &CudaView<'_, f32>,
            a: &CudaView<'_, T>,
            b: &CudaView<'_, T>,
        ) -> Result<()> {
            let begins = [gpu.to_write(c).at, gpu.to_read(onto).at, gpu.to_read(a).at, gpu.to_read(b).at];
            if self.fuses(gpu.limits()) && begins.iter().all(|at| at.is_multiple_of(16)) {
                return self.launch_onto_kernel(gpu, c, onto, a, b);
            }
            self.launch_library(gpu, c, onto, a, b)
        }

        /// By cuBLASLt.
        fn launch_library<T: CudaDType + WithDType>(
            &self,
            gpu: &Gpu,
            c: &mut CudaViewMut<'_, f32>,
            onto: &CudaView<'_, f32>,
            a: &CudaView<'_, T>,
            b: &CudaView<'_, T>,
        ) -> Result<()> {
            let stream = gpu.stream();
            let (a, _a) = a.device_ptr(stream);
            let (b, _b) = b.device_ptr(stream);
            let (onto, _onto) = onto.device_ptr(stream);
            let (c, _c) = c.device_ptr_mut(stream);
            let (alpha, beta) = self.factors.unwrap_or_default();
            let (alpha, beta) = (alpha as f32, beta as f32);
            let (of_operands, compute) = match (T::DTYPE, self.precision) {
                (DType::BF16, _) => (cudaDataType::CUDA_R_16BF, Compute::CUBLAS_COMPUTE_32F),
                (DType::F16, _) => (cudaDataType::CUDA_R_16F, Compute::CUBLAS_COMPUTE_32F),
                (_, Precision::F32) => (cudaDataType::CUDA_R_32F, Compute::CUBLAS_COMPUTE_32F),
                (_, Precision::Tf32) => (cudaDataType::CUDA_R_32F, Compute::CUBLAS_COMPUTE_32F_FAST_TF32),
                (_, Precision::Bf16) => (cudaDataType::CUDA_R_32F, Compute::CUBLAS_COMPUTE_32F_FAST_16BF),
            };
            // As in `launch`: row-major c = a b is column-major cᵀ = bᵀ aᵀ, b goes first, and a
            // row-major operand is what the library calls not transposed.
            let layout = |dtype, [rows, cols]: [usize; 2], order: Order| {
                let (rows, cols, line) = match order {
                    Order::RowMajor { line } => (cols, rows, line),
                    Order::ColumnMajor { line } => (rows, cols, line),
                };
                let made = result::create_matrix_layout(dtype, rows as u64, cols as u64, line as i64)?;
                Ok::<_, CublasError>(Owned(made, result::destroy_matrix_layout))
            };
            let transposed = |order: Order| i32::from(matches!(order, Order::ColumnMajor { .. }));
            let called = gpu.with_cublas_lt(|handle, (workspace, bytes), stream| {
                let first = layout(of_operands, [self.k, self.n], self.b.order)?;
                let second = layout(of_operands, [self.m, self.k], self.a.order)?;
                let whole = Order::RowMajor { line: self.n };
                let result_layout = layout(cudaDataType::CUDA_R_32F, [self.m, self.n], whole)?;
                let description = result::create_matmul_desc(compute, cudaDataType::CUDA_R_32F)?;
                let description = Owned(description, result::destroy_matmul_desc);
                for (attribute, value) in [
                    (Description::CUBLASLT_MATMUL_DESC_TRANSA, transposed(self.b.order)),
                    (Description::CUBLASLT_MATMUL_DESC_TRANSB, transposed(self.a.order)),
                ] {
                    // SAFETY: the description is alive, and these attributes are of 32 bits.
                    unsafe {
                        result::set_matmul_desc_attribute(
                            description.0,
                            attribute,
                            (&raw const value).cast(),
                            size_of_val(&value),
                        )
                    }?;
                }
                let preference = Owned(result::create_matmul_pref()?, result::destroy_matmul_pref);
                let prefer = |attribute, value: *const c_void, size| {
                    // SAFETY: the preference is alive, and `value` is of the size of the attribute:
                    // 64 bits for the workspace, 32 for an alignment.
                    unsafe { result::set_matmul_pref_attribute(preference.0, attribute, value, size) }
                };
                let most = bytes as u64;
                prefer(
                    Preference::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                    (&raw const most).cast(),
                    size_of_val(&most),
                )?;
                for (attribute, at) in [
                    (Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, b),
                    (Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, a),
                    (Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, onto),
                    (Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, c),
                ] {
                    let bytes = alignment(at);
                    prefer(attribute, (&raw const bytes).cast(), size_of_val(&bytes))?;
                }
                // SAFETY: the layouts say what the spans hold, which `run` checked; all is alive
                // until the product is queued. The factors are f32 of the host. The workspace is
                // that of the stream.
                unsafe {
                    let chosen = result::get_matmul_algo_heuristic(
                        handle,
                        description.0,
                        first.0,
                        second.0,
                        result_layout.0,
                        result_layout.0,
                        preference.0,
                    )?;
                    result::matmul(
                        handle,
                        description.0,
                        (&raw const alpha).cast(),
                        (&raw const beta).cast(),
                        b as *const c_void,
                        first.0,
                        a as *const c_void,
                        second.0,
                        onto as *const c_void,
                        result_layout.0,
                        c as *mut c_void,
                        result_layout.0,
                        &raw const chosen.algo,
                        workspace as *mut c_void,
                        bytes,
                        stream.cast(),
                    )
                }
            });
            called.map_err(|e| candle::Error::Msg(format!("{}: {e}", self.op)))
        }
    }
}
