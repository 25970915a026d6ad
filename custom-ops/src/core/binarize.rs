//! Binary states drawn from probabilities: `1` where `u < p`, else `0`, with the draws `u` of
//! [`uniform`].
use crate::core::check::expect_layout;
use crate::core::draw::{Draws, Place, RowBlocks, uniform, uniform_tile};
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
/// [`Draws::Counter`] gives each replay new draws; [`Draws::Columns`] are those of some columns of a
/// matrix, `[rows, columns]`.
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
    let width = match (draws, out.dims()) {
        (Draws::Columns { .. }, &[_, width]) => width,
        (Draws::Columns { .. }, shape) => {
            candle::bail!("{OP}: out must have shape [rows, columns] for draws of columns, got {shape:?}")
        }
        _ => 0,
    };
    let Some((place, blocks)) = draws.place_of_columns(OP, width, out.device())? else {
        candle::bail!("{OP}: draws must be At, Counter or Columns, got Mode, which draws nothing")
    };
    let op = BernoulliInto { place, blocks, width, dtype: out.dtype(), n: out.elem_count() };
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
    /// Where the draws of rows begin, of `width` entries each, if these are some columns of more.
    blocks: Option<RowBlocks>,
    width: usize,
    dtype: DType,
    n: usize,
}

impl BernoulliInto<'_> {
    fn draw<T: Copy + Send + Sync>(&self, out: &mut [T], p: &[f32], off: T, on: T) {
        let philox = self.place.philox;
        let Some(RowBlocks { by, at }) = self.blocks else { return draw_cpu(philox, out, p, off, on) };
        let rows = out.chunks_mut(self.width.max(1)).zip(p.chunks(self.width.max(1))).enumerate();
        rows.for_each(|(row, (out, p))| draw_cpu(philox.skipped((by * row + at) as u64), out, p, off, on));
    }
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
        let p = p.elements()?;
        match self.dtype {
            DType::BF16 => self.draw(out.elements()?, p, bf16::ZERO, bf16::ONE),
            DType::F16 => self.draw(out.elements()?, p, f16::ZERO, f16::ONE),
            _ => self.draw(out.elements()?, p, 0f32, 1.),
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
            let RowBlocks { by, at } = self.blocks.unwrap_or(RowBlocks { by: 0, at: 0 });
            let philox = self.place.philox.skipped(at as u64);
            let launch = launch.read(&p).write(&mut out).num(self.n).num(self.width).num(by);
            // SAFETY: (const float*, T*, 3 × size_t, 3 × unsigned long long, const long long*) of the
            // kernel's T; both views hold n entries, since the shapes are equal (checked by
            // `bernoulli_into_`); the counter is one i64, checked by `Draws::place`, or null.
            unsafe { launch.draws(philox, &counter).linear(self.n.div_ceil(4)).go() }
        })
    }
}
