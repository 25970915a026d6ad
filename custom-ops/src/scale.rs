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
    out.inplace_op2(x, &Scale { scale, split: false })
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
    out.inplace_op2(x, &Scale { scale, split: true })
}

/// Both ops: `scale · x` rounded to the type of `out`, or split into two f16 numbers.
struct Scale {
    scale: f32,
    split: bool,
}

impl Scale {
    fn op(&self) -> &'static str {
        if self.split { "split_into_" } else { "scale_into_" }
    }

    /// How far on the second part of `out` begins, 0 where there is one part.
    fn part(&self, out: &Layout) -> usize {
        if self.split { out.stride()[0] } else { 0 }
    }

    fn run_cpu<T: Copy + Sync>(
        &self,
        out: &mut CpuStorage,
        out_l: &Layout,
        x: &[T],
        wide: impl Fn(T) -> f32 + Sync,
    ) -> Result<()> {
        let (start, part) = (out_l.start_offset(), self.part(out_l));
        let places = start..start + x.len();
        let scaled = |x| wide(x) * self.scale;
        match out {
            CpuStorage::F16(out) if self.split => {
                let [high, low] = out
                    .get_disjoint_mut([places, start + part..start + part + x.len()])
                    .map_err(|_| candle::Error::Msg("split_into_: the parts of out overlap".into()))?;
                convert(high, x, |x| f16::from_f32(scaled(x)));
                let pairs = low.par_chunks_mut(CHUNK).zip(high.par_chunks(CHUNK)).zip(x.par_chunks(CHUNK));
                pairs.for_each(|((low, high), x)| {
                    for ((low, high), &x) in low.iter_mut().zip(high).zip(x) {
                        *low = f16::from_f32(scaled(x) - high.to_f32());
                    }
                });
            }
            CpuStorage::F32(out) => convert(&mut out[places], x, scaled),
            CpuStorage::BF16(out) => convert(&mut out[places], x, |x| bf16::from_f32(scaled(x))),
            CpuStorage::F16(out) => convert(&mut out[places], x, |x| f16::from_f32(scaled(x))),
            out => candle::bail!("{}: out must be f32, bf16 or f16, got {:?}", self.op(), out.dtype()),
        }
        Ok(())
    }
}

fn convert<T: Copy + Sync, U: Send>(out: &mut [U], x: &[T], f: impl Fn(T) -> U + Sync) {
    out.par_chunks_mut(CHUNK).zip(x.par_chunks(CHUNK)).for_each(|(out, x)| {
        out.iter_mut().zip(x).for_each(|(out, &x)| *out = f(x));
    });
}

impl InplaceOp2 for Scale {
    fn name(&self) -> &'static str {
        self.op()
    }

    fn cpu_fwd(&self, out: &mut CpuStorage, out_l: &Layout, x: &CpuStorage, x_l: &Layout) -> Result<()> {
        let range = x_l.start_offset()..x_l.start_offset() + x_l.shape().elem_count();
        match x {
            CpuStorage::U8(x) => self.run_cpu(out, out_l, &x[range], f32::from),
            CpuStorage::F32(x) => self.run_cpu(out, out_l, &x[range], |x| x),
            x => candle::bail!("{}: x must be u8 or f32, got {:?}", self.op(), x.dtype()),
        }
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        out: &mut candle::CudaStorage,
        out_l: &Layout,
        x: &candle::CudaStorage,
        x_l: &Layout,
    ) -> Result<()> {
        let (out, x) = ((out, out_l), (x, x_l));
        match (x.0.dtype(), out.0.dtype(), self.split) {
            (DType::U8, DType::F16, true) => self.launch::<u8, f16>("split_u8", out, x),
            (DType::F32, DType::F16, true) => self.launch::<f32, f16>("split_f32", out, x),
            (DType::U8, DType::F32, false) => self.launch::<u8, f32>("scale_u8_f32", out, x),
            (DType::F32, DType::F32, false) => self.launch::<f32, f32>("scale_f32_f32", out, x),
            (DType::U8, DType::BF16, false) => self.launch::<u8, bf16>("scale_u8_bf16", out, x),
            (DType::F32, DType::BF16, false) => self.launch::<f32, bf16>("scale_f32_bf16", out, x),
            (DType::U8, DType::F16, false) => self.launch::<u8, f16>("scale_u8_f16", out, x),
            (DType::F32, DType::F16, false) => self.launch::<f32, f16>("scale_f32_f16", out, x),
            (x, out, _) => candle::bail!("{}: no conversion of {x:?} to {out:?}", self.op()),
        }
    }
}

#[cfg(feature = "cuda")]
impl Scale {
    fn launch<T: candle::cuda::CudaDType, U: candle::cuda::CudaDType>(
        &self,
        kernel: &str,
        (out, out_l): (&mut candle::CudaStorage, &Layout),
        (x, x_l): (&candle::CudaStorage, &Layout),
    ) -> Result<()> {
        use crate::cuda::{PushKernelArg, WrapErr, function, linear_launch, view};

        let device = x.device().clone();
        let (start, part, n) = (out_l.start_offset(), self.part(out_l), x_l.shape().elem_count());
        let x = view::<T>(x, x_l, self.op())?;
        let mut out = out.as_cuda_slice_mut::<U>()?.slice_mut(start..start + part + n);
        let function = function(&device, "scale", kernel)?;
        let mut launch = function.builder();
        launch.arg(&x).arg(&mut out);
        if self.split {
            launch.arg(&part);
        }
        launch.arg(&self.scale).arg(&n);
        // SAFETY: (const In*, Out*, size_t of the split_* kernels, float, size_t) of the types named; x holds n entries, and
        // `out`, whose shape and contiguous parts the public functions checked, was sliced to the end of its last part;
        // candle refuses a shared storage.
        unsafe { launch.launch(linear_launch(n, 4096)) }.w()?;
        Ok(())
    }
}
