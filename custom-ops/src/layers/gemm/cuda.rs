//! The product on CUDA: cuBLAS, with factors from the host or from the device.
use super::{Gemm, Order, Precision};
use crate::core::cuda::Gpu;
use crate::core::op::Io;
use candle::cuda::CudaDType;
use candle::cuda::cudarc::cublas::result;
use candle::cuda::cudarc::cublas::sys::{
    cublasComputeType_t as Compute, cublasGemmAlgo_t as Algorithm, cublasOperation_t as Operation,
    cublasPointerMode_t as Mode, cudaDataType,
};
use candle::cuda::cudarc::driver::{DevicePtr, DevicePtrMut};
use candle::{CudaStorage, DType, Result, WithDType};
use half::{bf16, f16};
use std::ffi::c_void;

impl Gemm {
    pub(super) fn run_cuda(&self, gpu: &Gpu, io: Io<'_, CudaStorage>) -> Result<()> {
        match (self.from, self.to) {
            (DType::F32, _) => self.launch::<f32, f32>(gpu, io),
            (DType::F64, _) => self.launch::<f64, f64>(gpu, io),
            (DType::F16, _) => self.launch::<f16, f32>(gpu, io),
            (_, DType::F32) => self.launch::<bf16, f32>(gpu, io),
            (_, _) => self.launch::<bf16, bf16>(gpu, io),
        }
    }

    fn launch<T: CudaDType + WithDType, C: CudaDType + WithDType>(
        &self,
        gpu: &Gpu,
        io: Io<'_, CudaStorage>,
    ) -> Result<()> {
        let ([c], [a, b, factors, onto]) = io.parts()?;
        let (a, b) = (a.span::<T>(self.a.span)?, b.span::<T>(self.b.span)?);
        if let Some(onto) = onto.maybe::<f32>()? {
            return self.launch_onto(gpu, &mut c.elements()?, &onto, &a, &b);
        }
        let stream = gpu.stream();
        // Row-major c = a b is column-major cᵀ = bᵀ aᵀ: cuBLAS gets b first, and a row-major
        // operand is what it calls not transposed.
        let ((a_op, lda), (b_op, ldb)) = (column_major(self.a.order), column_major(self.b.order));
        let int = |what: &str, n: usize| {
            let too_large =
                |_| candle::Error::Msg(format!("{}: {what} must be below 2^31, got {n}", self.op));
            i32::try_from(n).map_err(too_large)
        };
        let (m, n, k) = (int("m", self.m)?, int("n", self.n)?, int("k", self.k)?);
        let (lda, ldb) = (int("a's stride", lda)?, int("b's stride", ldb)?);
        let batch = int("batch", self.batch)?;
        let mut c = c.elements::<C>()?;
        let factors = factors.maybe::<f32>()?;
        let (a, _a) = a.device_ptr(stream);
        let (b, _b) = b.device_ptr(stream);
        let (c, _c) = c.device_ptr_mut(stream);
        let factors = factors.as_ref().map(|factors| factors.device_ptr(stream));

        let (alpha, beta) = self.factors.unwrap_or_default();
        let (wide, narrow) = ([alpha, beta], [alpha as f32, beta as f32]);
        let (mode, alpha, beta): (_, *const c_void, *const c_void) = match &factors {
            Some((at, _)) => {
                (Mode::CUBLAS_POINTER_MODE_DEVICE, *at as *const c_void, (*at + 4) as *const c_void)
            }
            None if T::DTYPE == DType::F64 => {
                (Mode::CUBLAS_POINTER_MODE_HOST, (&raw const wide[0]).cast(), (&raw const wide[1]).cast())
            }
            None => {
                (Mode::CUBLAS_POINTER_MODE_HOST, (&raw const narrow[0]).cast(), (&raw const narrow[1]).cast())
            }
        };
        let compute = match (T::DTYPE, self.precision) {
            (DType::F64, _) => Compute::CUBLAS_COMPUTE_64F,
            (DType::F32, Precision::Tf32) => Compute::CUBLAS_COMPUTE_32F_FAST_TF32,
            (DType::F32, Precision::Bf16) => Compute::CUBLAS_COMPUTE_32F_FAST_16BF,
            _ => Compute::CUBLAS_COMPUTE_32F,
        };
        let (of_operands, of_result) = (data_type(T::DTYPE)?, data_type(C::DTYPE)?);
        let (a, b, c) = (a as *const c_void, b as *const c_void, c as *mut c_void);
        let algorithm = Algorithm::CUBLAS_GEMM_DEFAULT;
        gpu.with_cublas(mode, |handle| {
            // SAFETY: the spans and the contiguous c hold every element that these sizes and
            // strides reach, are of the types named, and stay borrowed until the products are
            // queued. The factors are two numbers of the compute type, on the side that the pointer
            // mode names.
            unsafe {
                match self.batch {
                    1 => result::gemm_ex(
                        handle,
                        b_op,
                        a_op,
                        n,
                        m,
                        k,
                        alpha,
                        b,
                        of_operands,
                        ldb,
                        a,
                        of_operands,
                        lda,
                        beta,
                        c,
                        of_result,
                        n,
                        compute,
                        algorithm,
                    ),
                    _ => result::gemm_strided_batched_ex(
                        handle,
                        b_op,
                        a_op,
                        n,
                        m,
                        k,
                        alpha,
                        b,
                        of_operands,
                        ldb,
                        self.b.step as i64,
                        a,
                        of_operands,
                        lda,
                        self.a.step as i64,
                        beta,
                        c,
                        of_result,
                        n,
                        (self.m * self.n) as i64,
                        batch,
                        compute,
                        algorithm,
                    ),
                }
            }
        })
        .map_err(|e| candle::Error::Msg(format!("{}: {e}", self.op)))
    }
}

fn column_major(order: Order) -> (Operation, usize) {
    match order {
        Order::RowMajor { line } => (Operation::CUBLAS_OP_N, line),
        Order::ColumnMajor { line } => (Operation::CUBLAS_OP_T, line),
    }
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
