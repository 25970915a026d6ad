//! The product on CUDA: cuBLAS on the device's stream, factors from the host or from the device.
use super::{Factors, Gemm, Order, Precision};
use crate::cuda::{view, view_mut};
use candle::backend::BackendStorage;
use candle::cuda::cudarc::cublas::result;
use candle::cuda::cudarc::cublas::sys::{
    cublasComputeType_t as Compute, cublasGemmAlgo_t as Algorithm, cublasHandle_t,
    cublasOperation_t as Operation, cublasPointerMode_t as Mode, cublasSetPointerMode_v2, cudaDataType,
};
use candle::cuda::cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut, SyncOnDrop};
use candle::cuda::{CudaDType, CudaStorage};
use candle::{DType, Layout, Result, Storage, WithDType};
use half::{bf16, f16};
use std::ffi::c_void;
use std::sync::PoisonError;

/// One cuBLAS handle serves a device, and its pointer mode is state: one caller at a time.
static POINTER_MODE: std::sync::Mutex<()> = std::sync::Mutex::new(());

type Operand<'a> = (&'a CudaStorage, &'a Layout);

impl Gemm<'_> {
    pub(super) fn cuda(&self, c: (&mut CudaStorage, &Layout), a: Operand<'_>, b: Operand<'_>) -> Result<()> {
        match (a.0.dtype(), c.0.dtype()) {
            (DType::F32, DType::F32) => self.launch::<f32, f32>(c, a, b),
            (DType::F64, DType::F64) => self.launch::<f64, f64>(c, a, b),
            (DType::BF16, DType::F32) => self.launch::<bf16, f32>(c, a, b),
            (DType::F16, DType::F32) => self.launch::<f16, f32>(c, a, b),
            (DType::BF16, DType::BF16) => self.launch::<bf16, bf16>(c, a, b),
            (a, c) => candle::bail!("gemm_: no product of {a:?} into {c:?}"),
        }
    }

    fn launch<T: CudaDType + WithDType, C: CudaDType + WithDType>(
        &self,
        c: (&mut CudaStorage, &Layout),
        a: Operand<'_>,
        b: Operand<'_>,
    ) -> Result<()> {
        let device = c.0.device().clone();
        let (blas, stream) = (device.cublas_handle(), device.cuda_stream());
        // Row-major c = a b is column-major cᵀ = bᵀ aᵀ: cuBLAS gets b first, and a row-major operand
        // is what it calls not transposed.
        let ((a_op, lda), (b_op, ldb)) = (column_major(self.a_order), column_major(self.b_order));
        let (m, n, k) = (int("m", self.m)?, int("n", self.n)?, int("k", self.k)?);
        let (lda, ldb) = (int("a's stride", lda)?, int("b's stride", ldb)?);
        let a_span = self.a_order.span(self.m, self.k);
        let b_span = self.b_order.span(self.k, self.n);
        let (a_start, b_start) = (a.1.start_offset(), b.1.start_offset());
        let a = a.0.as_cuda_slice::<T>()?.slice(a_start..a_start + a_span);
        let b = b.0.as_cuda_slice::<T>()?.slice(b_start..b_start + b_span);
        let mut c = view_mut::<C>(c.0, c.1, "gemm_")?;
        let (a, _a) = a.device_ptr(&stream);
        let (b, _b) = b.device_ptr(&stream);
        let (c, _c) = c.device_ptr_mut(&stream);
        let compute = match (T::DTYPE, self.precision) {
            (DType::F64, _) => Compute::CUBLAS_COMPUTE_64F,
            (DType::F32, Precision::Tf32) => Compute::CUBLAS_COMPUTE_32F_FAST_TF32,
            (DType::F32, Precision::Bf16) => Compute::CUBLAS_COMPUTE_32F_FAST_16BF,
            _ => Compute::CUBLAS_COMPUTE_32F,
        };

        let guard = match self.factors {
            Factors::Tensor(t) => Some(t.storage_and_layout()),
            Factors::Host { .. } => None,
        };
        let _one_at_a_time = POINTER_MODE.lock().unwrap_or_else(PoisonError::into_inner);
        let scalars = match (&guard, self.factors) {
            (Some((storage, layout)), _) => Scalars::device(storage, layout, &stream)?,
            (None, Factors::Host { alpha, beta }) if T::DTYPE == DType::F64 => Scalars::F64([alpha, beta]),
            (None, Factors::Host { alpha, beta }) => Scalars::F32([alpha as f32, beta as f32]),
            (None, Factors::Tensor(_)) => candle::bail!("gemm_: factors were not read"),
        };
        let (alpha, beta) = scalars.pointers();
        let _mode = PointerMode::set(*blas.handle(), scalars.mode())?;
        // SAFETY: the slices cut above hold every element that these sizes and strides reach (a and b by
        // their spans, c as a contiguous m×n), are of the types named, and stay borrowed until
        // the product is queued on the handle's stream, which is the device's. The factors are two numbers
        // of the compute type on the side that the pointer mode names.
        unsafe {
            result::gemm_ex(
                *blas.handle(),
                b_op,
                a_op,
                n,
                m,
                k,
                alpha,
                b as *const c_void,
                data_type(T::DTYPE)?,
                ldb,
                a as *const c_void,
                data_type(T::DTYPE)?,
                lda,
                beta,
                c as *mut c_void,
                data_type(C::DTYPE)?,
                n,
                compute,
                Algorithm::CUBLAS_GEMM_DEFAULT,
            )
        }
        .map_err(|e| candle::Error::Msg(format!("gemm_: cuBLAS: {e}")))
    }
}

/// `[alpha, beta]`, in host memory or on the device.
enum Scalars<'a> {
    F32([f32; 2]),
    F64([f64; 2]),
    Device { at: u64, _read: SyncOnDrop<'a> },
}

impl<'a> Scalars<'a> {
    fn device(storage: &'a Storage, layout: &Layout, stream: &'a CudaStream) -> Result<Self> {
        let Storage::Cuda(storage) = storage else {
            candle::bail!("gemm_: factors must be on the GPU for operands on the GPU")
        };
        let (at, _read) = view::<f32>(storage, layout, "gemm_")?.view_ptr(stream);
        Ok(Self::Device { at, _read })
    }

    fn pointers(&self) -> (*const c_void, *const c_void) {
        match self {
            Self::F32([alpha, beta]) => ((&raw const *alpha).cast(), (&raw const *beta).cast()),
            Self::F64([alpha, beta]) => ((&raw const *alpha).cast(), (&raw const *beta).cast()),
            Self::Device { at, .. } => (*at as *const c_void, (*at + 4) as *const c_void),
        }
    }

    fn mode(&self) -> Mode {
        match self {
            Self::Device { .. } => Mode::CUBLAS_POINTER_MODE_DEVICE,
            _ => Mode::CUBLAS_POINTER_MODE_HOST,
        }
    }
}

/// Sets the handle's pointer mode and puts it back to the host's, which candle counts on.
struct PointerMode(cublasHandle_t);

impl PointerMode {
    fn set(handle: cublasHandle_t, mode: Mode) -> Result<Self> {
        // SAFETY: the handle is alive: the caller holds the device that owns it.
        unsafe { cublasSetPointerMode_v2(handle, mode) }
            .result()
            .map_err(|e| candle::Error::Msg(format!("gemm_: cuBLAS: {e}")))?;
        Ok(Self(handle))
    }
}

impl Drop for PointerMode {
    fn drop(&mut self) {
        // SAFETY: as in `set`. A failure here would show in the next call.
        let _ = unsafe { cublasSetPointerMode_v2(self.0, Mode::CUBLAS_POINTER_MODE_HOST) };
    }
}

fn column_major(order: Order) -> (Operation, usize) {
    match order {
        Order::RowMajor { line } => (Operation::CUBLAS_OP_N, line),
        Order::ColumnMajor { line } => (Operation::CUBLAS_OP_T, line),
    }
}

fn int(what: &str, n: usize) -> Result<i32> {
    i32::try_from(n).map_err(|_| candle::Error::Msg(format!("gemm_: {what} must be below 2^31, got {n}")))
}

fn data_type(dtype: DType) -> Result<cudaDataType> {
    Ok(match dtype {
        DType::F32 => cudaDataType::CUDA_R_32F,
        DType::F64 => cudaDataType::CUDA_R_64F,
        DType::BF16 => cudaDataType::CUDA_R_16BF,
        DType::F16 => cudaDataType::CUDA_R_16F,
        other => candle::bail!("gemm_: no product of {other:?}"),
    })
}
