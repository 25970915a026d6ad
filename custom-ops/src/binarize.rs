//! Probabilities become states, drawn afresh each time.
use crate::draw::{Draws, Place, same_device, uniform_tile};
use crate::host::elements;
use crate::philox::{Philox, TILE};
use candle::backend::BackendStorage;
use candle::{CpuStorage, DType, InplaceOp2, Layout, Result, Tensor};
use half::{bf16, f16};
use multiversion::multiversion;
use rayon::prelude::*;

const OP: &str = "bernoulli_into_";
/// Elements of one task of the CPU twin; a multiple of [`TILE`].
const CHUNK: usize = 128 * TILE;

/// `out ← 1` with probability `p`, else 0: [`bernoulli`](crate::bernoulli) written over `out`, with the same draws.
///
/// `p` is f32, `out` f32, bf16 or f16, both contiguous and of the same shape. A probability of 0 or less never gives 1, one of 1 or
/// more always does, a NaN never. In a recorded step [`Draws::Counter`] makes each replay draw anew.
///
/// # Errors
/// When shapes, types or devices do not fit, or `draws` is [`Draws::Mode`] or has an ill-formed counter.
pub fn bernoulli_into_(out: &Tensor, p: &Tensor, draws: Draws) -> Result<()> {
    if out.dims() != p.dims() {
        candle::bail!("{OP}: p must have the shape of out {:?}, got {:?}", out.dims(), p.dims())
    }
    if p.dtype() != DType::F32 || !matches!(out.dtype(), DType::F32 | DType::BF16 | DType::F16) {
        let (p, out) = (p.dtype(), out.dtype());
        candle::bail!("{OP}: p must be f32 and out f32, bf16 or f16, got {p:?} and {out:?}")
    }
    if !out.is_contiguous() || !p.is_contiguous() {
        let (p, out) = (p.stride(), out.stride());
        candle::bail!("{OP}: p and out must be contiguous, got strides {p:?} and {out:?}")
    }
    same_device(OP, "p", p, out.device())?;
    let Some(place) = draws.place(OP, out.device())? else {
        candle::bail!("{OP}: draws must be At or Counter, got Mode, which draws nothing")
    };
    if out.elem_count() == 0 {
        return Ok(());
    }
    out.inplace_op2(p, &BernoulliInto { place })
}

/// The same states from candle's own ops and [`uniform`](crate::uniform), a new f32 tensor.
///
/// # Errors
/// When candle cannot compare.
pub fn bernoulli_into_reference(p: &Tensor, philox: Philox) -> Result<Tensor> {
    crate::uniform(p.shape(), p.device(), philox)?.lt(p)?.to_dtype(DType::F32)
}

struct BernoulliInto<'a> {
    place: Place<'a>,
}

#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
fn draw_tiles<T: Copy>(philox: Philox, first: usize, out: &mut [T], p: &[f32], off: T, on: T) {
    for (i, (out, p)) in out.chunks_mut(TILE).zip(p.chunks(TILE)).enumerate() {
        let draws = uniform_tile(philox, first + i * TILE);
        for ((out, p), u) in out.iter_mut().zip(p).zip(draws) {
            *out = if u < *p { on } else { off };
        }
    }
}

fn draw_cpu<T: Copy + Send + Sync>(philox: Philox, out: &mut [T], p: &[f32], off: T, on: T) {
    let chunks = out.par_chunks_mut(CHUNK).zip(p.par_chunks(CHUNK)).enumerate();
    chunks.for_each(|(i, (out, p))| draw_tiles(philox, i * CHUNK, out, p, off, on));
}

impl InplaceOp2 for BernoulliInto<'_> {
    fn name(&self) -> &'static str {
        OP
    }

    fn cpu_fwd(&self, out: &mut CpuStorage, out_l: &Layout, p: &CpuStorage, p_l: &Layout) -> Result<()> {
        let n = out_l.shape().elem_count();
        let (o, philox) = (out_l.start_offset(), self.place.philox);
        let p = elements(p, p_l)?;
        match out {
            CpuStorage::F32(out) => draw_cpu(philox, &mut out[o..][..n], p, 0., 1.),
            CpuStorage::BF16(out) => draw_cpu(philox, &mut out[o..][..n], p, bf16::ZERO, bf16::ONE),
            CpuStorage::F16(out) => draw_cpu(philox, &mut out[o..][..n], p, f16::ZERO, f16::ONE),
            out => candle::bail!("{OP}: out must be f32, bf16 or f16, got {:?}", out.dtype()),
        }
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        out: &mut candle::CudaStorage,
        out_l: &Layout,
        p: &candle::CudaStorage,
        p_l: &Layout,
    ) -> Result<()> {
        match out.dtype() {
            DType::F32 => self.launch::<f32>("bernoulli_into_f32", out, out_l, p, p_l),
            DType::BF16 => self.launch::<bf16>("bernoulli_into_bf16", out, out_l, p, p_l),
            DType::F16 => self.launch::<f16>("bernoulli_into_f16", out, out_l, p, p_l),
            dtype => candle::bail!("{OP}: out must be f32, bf16 or f16, got {dtype:?}"),
        }
    }
}

#[cfg(feature = "cuda")]
impl BernoulliInto<'_> {
    fn launch<T: candle::cuda::CudaDType>(
        &self,
        kernel: &str,
        out: &mut candle::CudaStorage,
        out_l: &Layout,
        p: &candle::CudaStorage,
        p_l: &Layout,
    ) -> Result<()> {
        use crate::cuda::{
            PushKernelArg, PushKernelArgs, WrapErr, function, linear_launch, optional_view, view, view_mut,
        };

        let device = p.device().clone();
        let p = view::<f32>(p, p_l, OP)?;
        let mut out = view_mut::<T>(out, out_l, OP)?;
        let n = out_l.shape().elem_count();
        let function = function(&device, "binarize", kernel)?;
        let (_, philox, counter) = Place::arguments(Some(self.place));
        let counter = optional_view(&counter, OP)?;
        let mut launch = function.builder();
        launch.arg(&p).arg(&mut out).arg(&n).draws(&philox, &counter);
        // SAFETY: (const float*, T*, size_t, 3 × unsigned long long, const long long*) of the kernel's T; both views hold n
        // entries, since the shapes are equal (checked by `bernoulli_into_`), and candle refuses a shared storage; the
        // counter is one i64 of this device, checked by `Draws::place`, or null.
        unsafe { launch.launch(linear_launch(n.div_ceil(4), 4096)) }.w()?;
        Ok(())
    }
}
