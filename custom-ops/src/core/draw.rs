//! Tensors of random draws.
//!
//! Element `e` (flat, row-major) takes word `e % 4` of Philox block `offset + e / 4`; so the draws
//! of a tensor depend only on the place in the sequence, and are the same bits on CPU and CUDA.
//!
//! ```text
//! uniform    u = (word >> 8) · 2⁻²⁴                                            in [0, 1)
//! normal     words (a, b) of elements (2i, 2i + 1):  r = √(-2 ln(a·2⁻³² + 2⁻³³)),  r cos 2πu(b) and r sin 2πu(b)
//! ```
use crate::core::check::expect_layout;
use crate::core::math::{normal_of, uniform_of};
pub(crate) use crate::core::op::same_device;
use crate::core::op::{Io, Kernel, new_tensor, operands};
use crate::core::philox::{BLOCKS, Philox, TILE};
use candle::{CpuStorage, DType, Device, Result, Shape, Tensor};
use multiversion::multiversion;
use rayon::prelude::*;

/// Elements of one task of the CPU twin; a multiple of [`TILE`].
const CHUNK: usize = 128 * TILE;

/// The source of the random draws of an in-place op.
#[derive(Debug, Clone, Copy)]
pub enum Draws<'a> {
    /// No draws: each unit takes its most probable state.
    Mode,
    /// Draws at this place of the sequence.
    At(Philox),
    /// Draws at this place plus a counter that the device holds, so that each replay of a recorded
    /// CUDA graph makes new draws.
    Counter {
        /// Seed, stream and the offset to which the counter is added.
        philox: Philox,
        /// The counter, in blocks: one i64 on the device of the other tensors.
        counter: &'a Tensor,
    },
    /// The same for some columns of a matrix: entry `[r, c]` takes the draw of entry `[r, first + c]` of
    /// a matrix of `of` columns, as one rank of several does that has these. Both are multiples of 4.
    Columns {
        /// Seed, stream and the offset to which the counter is added.
        philox: Philox,
        /// As of `Counter`.
        counter: &'a Tensor,
        /// The first column of the whole matrix that there is.
        first: usize,
        /// How many columns the whole matrix has.
        of: usize,
    },
}

/// Where the draws of a row of some columns begin, in blocks: `by · row + at`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RowBlocks {
    pub by: usize,
    pub at: usize,
}

/// [`Draws`] that were checked: on the CPU the counter is already added.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    pub philox: Philox,
    pub counter: Option<&'a Tensor>,
}

impl<'a> Draws<'a> {
    /// The checked place on `device`, none for [`Draws::Mode`].
    pub(crate) fn place(self, op: &'static str, device: &Device) -> Result<Option<Place<'a>>> {
        let (philox, counter) = match self {
            Draws::Mode => return Ok(None),
            Draws::At(philox) => return Ok(Some(Place { philox, counter: None })),
            Draws::Counter { philox, counter } => (philox, counter),
            Draws::Columns { .. } => candle::bail!("{op}: draws must be those of all columns"),
        };
        if counter.dtype() != DType::I64 || counter.elem_count() != 1 {
            let (dtype, shape) = (counter.dtype(), counter.dims());
            candle::bail!("{op}: counter must be one i64, got {dtype:?} of shape {shape:?}")
        }
        same_device(op, "counter", counter, device)?;
        if !device.is_cpu() {
            return Ok(Some(Place { philox, counter: Some(counter) }));
        }
        let blocks = counter.reshape(())?.to_scalar::<i64>()?;
        Ok(Some(Place { philox: philox.skipped(blocks as u64), counter: None }))
    }
}

impl<'a> Draws<'a> {
    /// The checked place of a matrix of `n` columns, and where its rows begin if these are some of more.
    pub(crate) fn place_of_columns(
        self,
        op: &'static str,
        n: usize,
        device: &Device,
    ) -> Result<Option<(Place<'a>, Option<RowBlocks>)>> {
        let Draws::Columns { philox, counter, first, of } = self else {
            return Ok(self.place(op, device)?.map(|place| (place, None)));
        };
        if [n, first, of].iter().any(|n| n % 4 != 0) || first + n > of {
            candle::bail!("{op}: columns must lie within {of} by fours, got {n} from {first} on")
        }
        let place = Draws::Counter { philox, counter }.place(op, device)?;
        Ok(place.map(|place| (place, Some(RowBlocks { by: of / 4, at: first / 4 }))))
    }
}

/// Draws from `[0, 1)`, multiples of 2⁻²⁴, as an f32 tensor.
///
/// # Errors
/// When the device fails to allocate or launch.
pub fn uniform(shape: impl Into<Shape>, device: &Device, philox: Philox) -> Result<Tensor> {
    let out = new_tensor("uniform", shape, DType::F32, device)?;
    uniform_(&out, Draws::At(philox))?;
    Ok(out)
}

/// Draws from the normal distribution of mean 0 and standard deviation 1, as an f32 tensor; none is
/// beyond 6.8.
///
/// # Errors
/// When the device fails to allocate or launch.
pub fn normal(shape: impl Into<Shape>, device: &Device, philox: Philox) -> Result<Tensor> {
    let out = new_tensor("normal", shape, DType::F32, device)?;
    normal_(&out, Draws::At(philox))?;
    Ok(out)
}

/// [`uniform`] written over `out`, a contiguous f32 tensor.
///
/// # Errors
/// When `out` is not contiguous f32, or `draws` is [`Draws::Mode`] or has an ill-formed counter.
pub fn uniform_(out: &Tensor, draws: Draws) -> Result<()> {
    fill("uniform_", Law::Uniform, out, draws)
}

/// [`normal`] written over `out`, a contiguous f32 tensor.
///
/// # Errors
/// When `out` is not contiguous f32, or `draws` is [`Draws::Mode`] or has an ill-formed counter.
pub fn normal_(out: &Tensor, draws: Draws) -> Result<()> {
    fill("normal_", Law::Normal, out, draws)
}

fn fill(op: &'static str, law: Law, out: &Tensor, draws: Draws) -> Result<()> {
    expect_layout(op, "out", out, &[DType::F32])?;
    let Some(place) = draws.place(op, out.device())? else {
        candle::bail!("{op}: draws must be At or Counter, got Mode, which draws nothing")
    };
    let fill = Fill { op, law, place, n: out.elem_count() };
    operands(op).write("out", out).maybe("counter", place.counter).run(&fill)
}

/// Uniform draws of elements `at..at + TILE`; `at` is a multiple of 4.
#[inline(always)]
pub(crate) fn uniform_tile(philox: Philox, at: usize) -> [f32; TILE] {
    let words = philox.tile(at as u64 / 4);
    let mut out = [0.; TILE];
    for b in 0..BLOCKS {
        out[4 * b] = uniform_of(words[0][b]);
        out[4 * b + 1] = uniform_of(words[1][b]);
        out[4 * b + 2] = uniform_of(words[2][b]);
        out[4 * b + 3] = uniform_of(words[3][b]);
    }
    out
}

/// Normal draws of elements `at..at + TILE`; `at` is a multiple of 4.
#[inline(always)]
pub(crate) fn normal_tile(philox: Philox, at: usize) -> [f32; TILE] {
    let words = philox.tile(at as u64 / 4);
    let mut out = [0.; TILE];
    for pair in 0..2 {
        let (mut first, mut second) = ([0.; BLOCKS], [0.; BLOCKS]);
        for b in 0..BLOCKS {
            (first[b], second[b]) = normal_of(words[2 * pair][b], words[2 * pair + 1][b]);
        }
        for b in 0..BLOCKS {
            out[4 * b + 2 * pair] = first[b];
            out[4 * b + 2 * pair + 1] = second[b];
        }
    }
    out
}

#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
fn fill_tiles(law: Law, philox: Philox, first: usize, out: &mut [f32]) {
    for (i, out) in out.chunks_mut(TILE).enumerate() {
        let at = first + i * TILE;
        let draws = match law {
            Law::Uniform => uniform_tile(philox, at),
            Law::Normal => normal_tile(philox, at),
        };
        out.copy_from_slice(&draws[..out.len()]);
    }
}

fn fill_cpu(law: Law, philox: Philox, out: &mut [f32]) {
    out.par_chunks_mut(CHUNK).enumerate().for_each(|(i, out)| fill_tiles(law, philox, i * CHUNK, out));
}

#[derive(Debug, Clone, Copy)]
enum Law {
    Uniform,
    Normal,
}

struct Fill<'a> {
    op: &'static str,
    law: Law,
    place: Place<'a>,
    n: usize,
}

impl Kernel for Fill<'_> {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let ([out], [_]) = io.parts()?;
        fill_cpu(self.law, self.place.philox, out.elements()?);
        Ok(())
    }

    fn is_serial(&self, most: usize) -> bool {
        most <= CHUNK
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        let ([out], [counter]) = io.parts()?;
        let (mut out, counter) = (out.elements::<f32>()?, counter.maybe()?);
        let kernel = match self.law {
            Law::Uniform => "uniform_f32",
            Law::Normal => "normal_f32",
        };
        let launch = gpu.launch(self.op, "draw", kernel)?.write(&mut out).num(self.n);
        // SAFETY: (float*, size_t, 3 × unsigned long long, const long long*); out holds n floats,
        // its layout says so; the counter is one i64, checked by `Draws::place`, or null.
        unsafe { launch.draws(self.place.philox, &counter).linear(self.n.div_ceil(4)).go() }
    }
}
