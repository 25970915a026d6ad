//! Rows as they are stored become the numbers that a model reads.
use candle::backend::BackendStorage;
use candle::{CpuStorage, DType, InplaceOp2, Layout, Result, Tensor};
use half::{bf16, f16};
use rayon::prelude::*;

/// Elements that one task of the CPU twin handles.
const CHUNK: usize = 16 * 1024;

/// `out ← scale · x`, from the stored type of `x` to the type of `out`.
///
/// `x` is u8 or f32, `out` f32, bf16 or f16, both contiguous and of the same shape; `scale` is 1/255 for bytes that
/// stand for `[0, 1]` and 1 for numbers. The 16-bit types are rounded to nearest, ties to even.
///
/// # Errors
/// When shapes, types or devices do not fit.
pub fn scale_into_(out: &Tensor, x: &Tensor, scale: f32) -> Result<()> {
    if out.dims() != x.dims() {
        candle::bail!("scale_into_: x must have the shape of out {:?}, got {:?}", out.dims(), x.dims())
    }
    if !matches!(x.dtype(), DType::U8 | DType::F32)
        || !matches!(out.dtype(), DType::F32 | DType::BF16 | DType::F16)
    {
        candle::bail!(
            "scale_into_: x must be u8 or f32 and out f32, bf16 or f16, got {:?} and {:?}",
            x.dtype(),
            out.dtype()
        )
    }
    if !out.is_contiguous() || !x.is_contiguous() {
        candle::bail!(
            "scale_into_: x and out must be contiguous, got strides {:?} and {:?}",
            x.stride(),
            out.stride()
        )
    }
    out.inplace_op2(x, &ScaleInto { scale })
}

/// The same function from candle's own ops; the result is new, of type f32.
///
/// # Errors
/// When candle cannot convert `x`.
pub fn scale_into_reference(x: &Tensor, scale: f32) -> Result<Tensor> {
    x.to_dtype(DType::F32)?.affine(f64::from(scale), 0.)
}

struct ScaleInto {
    scale: f32,
}

impl InplaceOp2 for ScaleInto {
    fn name(&self) -> &'static str {
        "scale_into_"
    }

    fn cpu_fwd(&self, out: &mut CpuStorage, out_l: &Layout, x: &CpuStorage, x_l: &Layout) -> Result<()> {
        let n = out_l.shape().elem_count();
        let (o, i) = (out_l.start_offset(), x_l.start_offset());
        let scale = self.scale;
        match (out, x) {
            (CpuStorage::F32(out), CpuStorage::U8(x)) => {
                convert(&mut out[o..o + n], &x[i..i + n], |x| f32::from(x) * scale);
            }
            (CpuStorage::F32(out), CpuStorage::F32(x)) => {
                convert(&mut out[o..o + n], &x[i..i + n], |x| x * scale)
            }
            (CpuStorage::BF16(out), CpuStorage::U8(x)) => {
                convert(&mut out[o..o + n], &x[i..i + n], |x| bf16::from_f32(f32::from(x) * scale));
            }
            (CpuStorage::BF16(out), CpuStorage::F32(x)) => {
                convert(&mut out[o..o + n], &x[i..i + n], |x| bf16::from_f32(x * scale));
            }
            (CpuStorage::F16(out), CpuStorage::F32(x)) => {
                convert(&mut out[o..o + n], &x[i..i + n], |x| f16::from_f32(x * scale));
            }
            (CpuStorage::F16(out), CpuStorage::U8(x)) => {
                convert(&mut out[o..o + n], &x[i..i + n], |x| f16::from_f32(f32::from(x) * scale));
            }
            (out, x) => candle::bail!("scale_into_: no conversion of {:?} to {:?}", x.dtype(), out.dtype()),
        }
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        out: &mut candle::CudaStorage,
        out_l: &Layout,
        x: &candle::CudaStorage,
        x_l: &Layout,
    ) -> Result<()> {
        match (x.dtype(), out.dtype()) {
            (DType::U8, DType::F32) => self.launch::<u8, f32>("scale_u8_f32", out, out_l, x, x_l),
            (DType::F32, DType::F32) => self.launch::<f32, f32>("scale_f32_f32", out, out_l, x, x_l),
            (DType::U8, DType::BF16) => self.launch::<u8, bf16>("scale_u8_bf16", out, out_l, x, x_l),
            (DType::F32, DType::BF16) => self.launch::<f32, bf16>("scale_f32_bf16", out, out_l, x, x_l),
            (DType::U8, DType::F16) => self.launch::<u8, f16>("scale_u8_f16", out, out_l, x, x_l),
            (DType::F32, DType::F16) => self.launch::<f32, f16>("scale_f32_f16", out, out_l, x, x_l),
            (x, out) => candle::bail!("scale_into_: no conversion of {x:?} to {out:?}"),
        }
    }
}

fn convert<T: Copy + Sync, U: Send>(out: &mut [U], x: &[T], f: impl Fn(T) -> U + Sync) {
    out.par_chunks_mut(CHUNK).zip(x.par_chunks(CHUNK)).for_each(|(out, x)| {
        out.iter_mut().zip(x).for_each(|(out, &x)| *out = f(x));
    });
}

#[cfg(feature = "cuda")]
impl ScaleInto {
    fn launch<T: candle::cuda::CudaDType, U: candle::cuda::CudaDType>(
        &self,
        kernel: &str,
        out: &mut candle::CudaStorage,
        out_l: &Layout,
        x: &candle::CudaStorage,
        x_l: &Layout,
    ) -> Result<()> {
        use candle::cuda::WrapErr;
        use candle::cuda::cudarc::driver::PushKernelArg;

        let device = x.device().clone();
        let x = crate::cuda::view::<T>(x, x_l, "scale_into_")?;
        let mut out = crate::cuda::view_mut::<U>(out, out_l, "scale_into_")?;
        let n = out_l.shape().elem_count();
        let function = crate::cuda::function(&device, "scale", kernel)?;
        let mut launch = function.builder();
        launch.arg(&x).arg(&mut out).arg(&self.scale).arg(&n);
        // SAFETY: (const In*, Out*, float, size_t) of the types named; both views hold n entries, since
        // the shapes are equal (checked by `scale_into_`), and candle refuses a shared storage.
        unsafe { launch.launch(crate::cuda::linear_launch(n, 4096)) }.w()?;
        Ok(())
    }
}
