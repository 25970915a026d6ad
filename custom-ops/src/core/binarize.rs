//! Binary states drawn from probabilities: `1` where `u < p`, else `0`, with the draws `u` of
//! [`uniform`].
use crate::core::check::expect_layout;
use crate::core::draw::{Draws, Place, uniform, uniform_tile};
use crate::core::op::{Io, Kernel, new_tensor, operands};
use crate::core::philox::{Philox, TILE};
use candle::{CpuStorage, DType, Result, Tensor};
use half::{bf16, f16};
use multiversion::multiversion;
use rayon::prelude::*;

const OP: &str = "bernoulli_into_";
/// Elements of one task of the CPU twin; a multiple of [`TILE`].
const CHUNK: usize = 128 * TILE;

/// 1 with probability `p`, else 0: `uniform < p`, elementwise.
///
/// `p` is contiguous f32 of any shape; 0 never gives 1, 1 always does, a NaN never. There is no
/// gradient.
///
/// # Errors
/// When `p` is not contiguous f32.
pub fn bernoulli(p: &Tensor, philox: Philox) -> Result<Tensor> {
    const OP: &str = "bernoulli";
    expect_layout(OP, "p", p, &[DType::F32])?;
    let out = new_tensor(OP, p.shape(), DType::F32, p.device())?;
    bernoulli_into_(&out, p, Draws::At(philox))?;
    Ok(out)
}

/// `out ← 1` with probability `p`, else 0: [`bernoulli`] written over `out`, with the same draws.
///
/// `p` is f32, `out` f32, bf16 or f16, both contiguous and of the same shape. A probability of 0 or
/// less never gives 1, one of 1 or more always does, a NaN never. In a recorded step,
/// [`Draws::Counter`] gives each replay new draws.
///
/// # Errors
/// When shapes, types or devices do not fit, or `draws` is [`Draws::Mode`] or has an ill-formed
/// counter.
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
    let Some(place) = draws.place(OP, out.device())? else {
        candle::bail!("{OP}: draws must be At or Counter, got Mode, which draws nothing")
    };
    let op = BernoulliInto { place, dtype: out.dtype(), n: out.elem_count() };
    operands(OP).write("out", out).read("p", p).maybe("counter", place.counter).run(&op)
}

/// The same states computed with candle's own ops and [`uniform`], as a new f32 tensor.
///
/// # Errors
/// When candle cannot compare.
pub fn bernoulli_into_reference(p: &Tensor, philox: Philox) -> Result<Tensor> {
    uniform(p.shape(), p.device(), philox)?.lt(p)?.to_dtype(DType::F32)
}

struct BernoulliInto<'a> {
    place: Place<'a>,
    dtype: DType,
    n: usize,
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

impl Kernel for BernoulliInto<'_> {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let ([out], [p, _]) = io.parts()?;
        let (philox, p) = (self.place.philox, p.elements()?);
        match self.dtype {
            DType::BF16 => draw_cpu(philox, out.elements()?, p, bf16::ZERO, bf16::ONE),
            DType::F16 => draw_cpu(philox, out.elements()?, p, f16::ZERO, f16::ONE),
            _ => draw_cpu(philox, out.elements()?, p, 0f32, 1.),
        }
        Ok(())
    }

    fn is_serial(&self, most: usize) -> bool {
        most <= CHUNK
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        let dtype = self.dtype.as_str();
        for_type!(self.dtype, [BF16: bf16, F16: f16; f32], |T| {
            let ([out], [p, counter]) = io.parts()?;
            let (mut out, p, counter) = (out.elements::<T>()?, p.elements::<f32>()?, counter.maybe()?);
            let launch = gpu.launch(OP, "binarize", &format!("bernoulli_into_{dtype}"))?;
            let launch = launch.read(&p).write(&mut out).num(self.n);
            // SAFETY: (const float*, T*, size_t, 3 × unsigned long long, const long long*) of the
            // kernel's T; both views hold n entries, since the shapes are equal (checked by
            // `bernoulli_into_`); the counter is one i64, checked by `Draws::place`, or null.
            unsafe { launch.draws(self.place.philox, &counter).linear(self.n.div_ceil(4)).go() }
        })
    }
}
