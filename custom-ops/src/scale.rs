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

/// `scale · x` as the sum of two f16 numbers: `out[0] ← f16(scale x)`, `out[1] ← f16(scale x − out[0])`.
///
/// `x` is contiguous u8 or f32 and `out` f16 of shape `[2, ..x]`, each of the two contiguous. The sum is within 2⁻²² of
/// `scale x` where that is between 2⁻² and 65,504, and within 3e-8 below.
///
/// # Errors
/// When shapes, types or devices do not fit.
pub fn split_into_(out: &Tensor, x: &Tensor, scale: f32) -> Result<()> {
    if out.rank() == 0 || out.dims()[0] != 2 || out.dims()[1..] != *x.dims() {
        candle::bail!("split_into_: out must have shape [2, ..{:?}], got {:?}", x.dims(), out.dims())
    }
    if out.dtype() != DType::F16 || !matches!(x.dtype(), DType::U8 | DType::F32) {
        candle::bail!(
            "split_into_: x must be u8 or f32 and out f16, got {:?} and {:?}",
            x.dtype(),
            out.dtype()
        )
    }
    if !out.get(0)?.is_contiguous() || !x.is_contiguous() {
        candle::bail!(
            "split_into_: x and each part of out must be contiguous, got strides {:?} and {:?}",
            x.stride(),
            out.stride()
        )
    }
    out.inplace_op2(x, &SplitInto { scale })
}

struct SplitInto {
    scale: f32,
}

impl InplaceOp2 for SplitInto {
    fn name(&self) -> &'static str {
        "split_into_"
    }

    fn cpu_fwd(&self, out: &mut CpuStorage, out_l: &Layout, x: &CpuStorage, x_l: &Layout) -> Result<()> {
        let CpuStorage::F16(out) = out else { candle::bail!("split_into_: out must be f16") };
        let (start, part, n) = (out_l.start_offset(), out_l.stride()[0], x_l.shape().elem_count());
        let [hi, lo] = out
            .get_disjoint_mut([start..start + n, start + part..start + part + n])
            .map_err(|_| candle::Error::Msg("split_into_: the parts of out overlap".into()))?;
        let scale = self.scale;
        let split = |x: f32| {
            let hi = f16::from_f32(x);
            (hi, f16::from_f32(x - hi.to_f32()))
        };
        match x {
            CpuStorage::U8(x) => {
                split_all(hi, lo, &x[x_l.start_offset()..][..n], |&x| split(f32::from(x) * scale))
            }
            CpuStorage::F32(x) => split_all(hi, lo, &x[x_l.start_offset()..][..n], |&x| split(x * scale)),
            x => candle::bail!("split_into_: x must be u8 or f32, got {:?}", x.dtype()),
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
        match x.dtype() {
            DType::U8 => self.launch::<u8>("split_u8", out, out_l, x, x_l),
            _ => self.launch::<f32>("split_f32", out, out_l, x, x_l),
        }
    }
}

fn split_all<T: Sync>(hi: &mut [f16], lo: &mut [f16], x: &[T], f: impl Fn(&T) -> (f16, f16) + Sync) {
    hi.par_chunks_mut(CHUNK).zip(lo.par_chunks_mut(CHUNK)).zip(x.par_chunks(CHUNK)).for_each(
        |((hi, lo), x)| {
            for ((hi, lo), x) in hi.iter_mut().zip(lo).zip(x) {
                (*hi, *lo) = f(x);
            }
        },
    );
}

#[cfg(feature = "cuda")]
impl SplitInto {
    fn launch<T: candle::cuda::CudaDType>(
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
        let (start, part, n) = (out_l.start_offset(), out_l.stride()[0], x_l.shape().elem_count());
        let x = crate::cuda::view::<T>(x, x_l, "split_into_")?;
        let mut out = out.as_cuda_slice_mut::<f16>()?.slice_mut(start..start + part + n);
        let function = crate::cuda::function(&device, "scale", kernel)?;
        let mut launch = function.builder();
        launch.arg(&x).arg(&mut out).arg(&part).arg(&self.scale).arg(&n);
        // SAFETY: (const In*, half*, size_t, float, size_t); x holds n entries and `out` was sliced to the end of its
        // second part, whose shapes `split_into_` checked; candle refuses a shared storage.
        unsafe { launch.launch(crate::cuda::linear_launch(n, 4096)) }.w()?;
        Ok(())
    }
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
