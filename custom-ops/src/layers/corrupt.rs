//! Corruption of rows: the noise that a denoising autoencoder learns to undo.
//!
//! ```text
//! salt-and-pepper   x̃ = 0 where u < p/2,  1 where p/2 ≤ u < p,  else x
//! masking           x̃ = 0 where u < p,  else x
//! flip              x̃ = 1 − x where u < p,  else x
//! gaussian          x̃ = x + σ z
//! ```
//!
//! | symbol | what                                                                                            |
//! |--------|-------------------------------------------------------------------------------------------------|
//! | `x x̃`  | rows before and after, f32 of any shape; 0 and 1 are the darkest and the brightest value        |
//! | `p`    | share of the values that are replaced, in [0, 1]                                                |
//! | `σ`    | standard deviation of the noise, at least 0                                                     |
//! | `u z`  | a uniform and a normal draw, those of [`uniform`] and [`normal`] |
//!
//! **Numbering.** Element `e` takes word `e % 4` of Philox block `offset + e / 4`; a normal draw
//! takes the two words of its pair of elements. A row of width `n` begins at element `row · n`, so
//! rows `r` and above of a minibatch are corrupted alone, with the same bits, when they are given
//! `first = r · n`. `n_elements` values use `⌈n_elements / 4⌉` blocks, so that step `t` of a
//! training loop with minibatches of that size begins at block `offset + t · ⌈n_elements / 4⌉`, also
//! where [`corrupt_minibatches_`] takes several at once. The bits are the same on CPU and CUDA.
//!
//! Sources: Vincent, Larochelle, Bengio and Manzagol, "Extracting and composing robust features
//! with denoising autoencoders", ICML 2008 (masking); Vincent et al., "Stacked denoising
//! autoencoders", JMLR 11, 2010, section 3.3 (salt and pepper, masking, Gaussian); Kumar and
//! Giaquinto, "Parallelizing denoising autoencoders", section 2.1 (flip: pixels that were on are
//! turned off, and the other way round; they call it salt and pepper).
//!
//! ```
//! use candle::{Device::Cpu, Tensor};
//! use chandlery_ops::layers::{Corruption, corrupt};
//! use chandlery_ops::Philox;
//! # fn main() -> candle::Result<()> {
//! let rows = Tensor::full(0.5f32, (2, 3), &Cpu)?;
//! let law: Corruption = "salt-and-pepper:1".parse().map_err(candle::Error::msg)?;
//! // Every value is replaced, each by 0 or 1.
//! let corrupted = corrupt(&rows, law, Philox::new(7, 0))?.to_vec2::<f32>()?;
//! assert!(corrupted.concat().iter().all(|x| *x == 0. || *x == 1.));
//! // Element 4 is value 1 of row 1.
//! assert_eq!(corrupted[1][1], law.of_element(0.5, Philox::new(7, 0), 4));
//! # Ok(()) }
//! ```
mod lines;

use crate::arrays::scale::parts_of;
use crate::core::check::{expect, expect_layout};
use crate::core::draw::{Draws, Place, normal, normal_tile, uniform, uniform_tile};
use crate::core::math::{normal_of, uniform_of};
#[cfg(feature = "cuda")]
use crate::core::op::In;
use crate::core::op::{Io, Kernel, Out, new_tensor, operands};
use crate::core::philox::{Philox, TILE};
use candle::{CpuStorage, DType, Result, Tensor, WithDType};
use half::{bf16, f16};
use lines::Lines;
use multiversion::multiversion;
use rayon::prelude::*;
use std::fmt::{self, Display};
use std::str::FromStr;

const OP: &str = "corrupt_";
/// Elements of one task of the CPU twin; a multiple of [`TILE`].
const CHUNK: usize = 128 * TILE;
/// Threads of a block of the kernel.
#[cfg(feature = "cuda")]
const THREADS: u32 = 256;

/// What is done to rows before an autoencoder reads them; formulas and numbering of the draws are
/// in [`corrupt`].
///
/// As text: `none`, `salt-and-pepper:0.3`, `masking:0.25`, `flip:0.3`, `gaussian:0.5`.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Corruption {
    /// Rows stay as they are.
    #[default]
    None,
    /// This share of the values, in [0, 1], becomes 0 or 1, each with the same probability.
    SaltAndPepper(f32),
    /// This share of the values, in [0, 1], becomes 0.
    Masking(f32),
    /// This share of the values `x`, in [0, 1], becomes `1 − x`: what is on is turned off, and what
    /// is off is turned on.
    Flip(f32),
    /// Normal noise of this standard deviation, at least 0, is added to every value.
    Gaussian(f32),
}

impl Corruption {
    /// What becomes of one value: `x` at `element` of the draws at `philox`.
    pub fn of_element(self, x: f32, philox: Philox, element: u64) -> f32 {
        match self {
            Self::None => x,
            Self::SaltAndPepper(p) => salt_or_pepper(x, uniform_of(philox.bits(element)), p),
            Self::Masking(p) => mask(x, uniform_of(philox.bits(element)), p),
            Self::Flip(p) => flip(x, uniform_of(philox.bits(element)), p),
            Self::Gaussian(sigma) => {
                let pair = element / 2 * 2;
                let (first, second) = normal_of(philox.bits(pair), philox.bits(pair + 1));
                x + sigma * if element == pair { first } else { second }
            }
        }
    }

    /// # Errors
    /// When a share is not in [0, 1], or a standard deviation is not a finite number of at least 0.
    pub fn validate(self) -> Result<()> {
        match self.fault() {
            None => Ok(()),
            Some(fault) => candle::bail!("{fault}"),
        }
    }

    /// What is wrong with it.
    fn fault(self) -> Option<String> {
        match self {
            Self::SaltAndPepper(p) | Self::Masking(p) | Self::Flip(p) if !(0. ..=1.).contains(&p) => {
                Some(format!("Corruption: the share of replaced values must be in [0, 1], got {p}"))
            }
            Self::Gaussian(sigma) if !(sigma >= 0. && sigma.is_finite()) => Some(format!(
                "Corruption: the standard deviation must be a finite number of at least 0, got {sigma}"
            )),
            _ => None,
        }
    }

    /// `Law` of the kernels, and the share or standard deviation.
    #[cfg(feature = "cuda")]
    pub(crate) fn law(self) -> (u32, f32) {
        let law = match self {
            Self::None => 0,
            Self::SaltAndPepper(_) => 1,
            Self::Masking(_) => 2,
            Self::Gaussian(_) => 3,
            Self::Flip(_) => 4,
        };
        (law, self.parts().1)
    }

    /// Name of the kernel, and the share or standard deviation.
    fn parts(self) -> (&'static str, f32) {
        match self {
            Self::None => ("none", 0.),
            Self::SaltAndPepper(p) => ("salt-and-pepper", p),
            Self::Masking(p) => ("masking", p),
            Self::Flip(p) => ("flip", p),
            Self::Gaussian(sigma) => ("gaussian", sigma),
        }
    }
}

impl Display for Corruption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.parts() {
            (name, _) if *self == Self::None => f.write_str(name),
            (name, number) => write!(f, "{name}:{number}"),
        }
    }
}

impl FromStr for Corruption {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        const FORMS: &str = "none, salt-and-pepper:SHARE, masking:SHARE, flip:SHARE or gaussian:DEVIATION";
        let refused = || format!("corruption must be {FORMS}, got `{text}`");
        if text == "none" {
            return Ok(Self::None);
        }
        let (name, number) = text.split_once(':').ok_or_else(refused)?;
        let number = number.parse().map_err(|_| refused())?;
        let law = match name {
            "salt-and-pepper" => Self::SaltAndPepper(number),
            "masking" => Self::Masking(number),
            "flip" => Self::Flip(number),
            "gaussian" => Self::Gaussian(number),
            _ => return Err(refused()),
        };
        match law.fault() {
            None => Ok(law),
            Some(fault) => Err(format!("{fault} in `{text}`")),
        }
    }
}

/// Corrupted `rows`, contiguous f32 of any shape, as a new tensor of that shape. There is no
/// gradient.
///
/// With a uniform draw `u` and a normal draw `z` for each value `x`:
///
/// ```text
/// salt-and-pepper   0 where u < p/2,  1 where p/2 ≤ u < p,  else x
/// masking           0 where u < p,  else x
/// flip              1 − x where u < p,  else x
/// gaussian          x + σ z
/// ```
///
/// Element `e`, counted row by row, takes word `e % 4` of Philox block `offset + e / 4`, as in
/// [`uniform`] and [`normal`]; `n` values use `⌈n / 4⌉` blocks. The bits are the same on CPU and
/// CUDA. A NaN that is not replaced stays.
///
/// # Errors
/// When `rows` are not contiguous f32 or `corruption` is out of its range.
pub fn corrupt(rows: &Tensor, corruption: Corruption, philox: Philox) -> Result<Tensor> {
    expect_layout("corrupt", "rows", rows, &[DType::F32])?;
    let out = new_tensor("corrupt", rows.shape(), DType::F32, rows.device())?;
    corrupt_(&out, rows, corruption, Draws::At(philox), 0)?;
    Ok(out)
}

/// [`corrupt`] written over `out`, whose entries count from `first`: the number of the first value
/// of these rows among those that share the draws.
///
/// `out` is contiguous f32 of the shape of `rows`, or f16 `[2, ..rows]` for the sum of two numbers,
/// as in [`split_into_`](crate::arrays::split_into_), or f16 or bf16 `[1, ..rows]`, each part
/// contiguous. Within a part there may be gaps between the entries of the first dimension of `rows`:
/// between minibatches that lie beside other planes. `rows` and `out` may be some columns of wider
/// rows, of one width: values are counted without the other columns, which stay as they are.
///
/// # Errors
/// When shapes, types or devices do not fit, `corruption` is out of its range, or `draws` is
/// [`Draws::Mode`].
pub fn corrupt_(
    out: &Tensor,
    rows: &Tensor,
    corruption: Corruption,
    draws: Draws<'_>,
    first: usize,
) -> Result<()> {
    let (lines, to) = lines_of(out, rows)?;
    run(out, rows, corruption, draws, first, (lines, to))
}

/// [`corrupt_`] of minibatches, the entries of the first dimension of `rows`: each has the draws that
/// it would have alone, and the next one begins at the next whole block. Minibatch `i` of `n` values
/// each begins `i · ⌈n / 4⌉` blocks after `draws`, where a step of its own would be.
///
/// # Errors
/// As [`corrupt_`].
pub fn corrupt_minibatches_(
    out: &Tensor,
    rows: &Tensor,
    corruption: Corruption,
    draws: Draws<'_>,
) -> Result<()> {
    let (lines, to) = lines_of(out, rows)?;
    run(out, rows, corruption, draws, 0, (lines.by_minibatch(rows.dim(0)?), to))
}

/// Where rows and the result lie, and what it is.
fn lines_of(out: &Tensor, rows: &Tensor) -> Result<(Lines, To)> {
    let to = match (out.dtype(), out.dims()) {
        (DType::BF16, _) => To::Bf16,
        (DType::F16, [2, ..]) => To::Parts(out.stride()[0]),
        (DType::F16, _) => To::F16,
        _ => To::F32,
    };
    let lines = match (Lines::of_columns(out, rows)?, to) {
        (Some(lines), _) => lines,
        (None, To::F32) => {
            expect_layout(OP, "out", out, &[DType::F32])?;
            expect(OP, "rows", rows, &[DType::F32], out.dims())?;
            Lines::whole(rows.elem_count())
        }
        (None, _) => {
            expect_layout(OP, "rows", rows, &[DType::F32])?;
            Lines::of_parts(out, rows)?
        }
    };
    Ok((lines, to))
}

fn run(
    out: &Tensor,
    rows: &Tensor,
    law: Corruption,
    draws: Draws<'_>,
    first: usize,
    (lines, to): (Lines, To),
) -> Result<()> {
    law.validate()?;
    let Some(place) = draws.place(OP, out.device())? else {
        candle::bail!("{OP}: draws must be At or Counter, got Mode, which draws nothing")
    };
    let op = Corrupt { law, place, first, lines, to };
    operands(OP).write("out", out).read("rows", rows).maybe("counter", place.counter).run(&op)
}

/// The same as [`corrupt`] by candle's own ops and draws; returns a new tensor.
///
/// # Errors
/// When candle cannot compare.
pub fn corrupt_reference(rows: &Tensor, corruption: Corruption, philox: Philox) -> Result<Tensor> {
    let draws = || uniform(rows.shape(), rows.device(), philox);
    match corruption {
        Corruption::None => rows.copy(),
        Corruption::SaltAndPepper(p) => {
            let u = draws()?;
            let extreme = u.ge(0.5 * p)?.to_dtype(DType::F32)?;
            u.lt(p)?.where_cond(&extreme, rows)
        }
        Corruption::Masking(p) => draws()?.lt(p)?.where_cond(&rows.zeros_like()?, rows),
        Corruption::Flip(p) => draws()?.lt(p)?.where_cond(&rows.affine(-1., 1.)?, rows),
        Corruption::Gaussian(sigma) => {
            rows + normal(rows.shape(), rows.device(), philox)?.affine(f64::from(sigma), 0.)?
        }
    }
}

#[inline(always)]
fn salt_or_pepper(x: f32, u: f32, p: f32) -> f32 {
    let extreme = if u < 0.5 * p { 0. } else { 1. };
    if u < p { extreme } else { x }
}

#[inline(always)]
fn mask(x: f32, u: f32, p: f32) -> f32 {
    if u < p { 0. } else { x }
}

#[inline(always)]
fn flip(x: f32, u: f32, p: f32) -> f32 {
    if u < p { 1. - x } else { x }
}

struct Corrupt<'a> {
    law: Corruption,
    place: Place<'a>,
    first: usize,
    lines: Lines,
    to: To,
}

/// What the result is.
#[derive(Clone, Copy)]
enum To {
    F32,
    Bf16,
    F16,
    /// The sum of two f16 numbers, the second so far on.
    Parts(usize),
}

/// Corrupts the values from element `first` on.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
pub(crate) fn corrupt_tiles(law: Corruption, philox: Philox, first: usize, out: &mut [f32], x: &[f32]) {
    let mut at = 0;
    while at < out.len() {
        // Tiles of draws begin at multiples of their length, wherever the values begin.
        let skip = (first + at) % TILE;
        let tile = first + at - skip;
        let len = (TILE - skip).min(out.len() - at);
        let (out, x) = (&mut out[at..at + len], &x[at..at + len]);
        match law {
            Corruption::None => out.copy_from_slice(x),
            Corruption::SaltAndPepper(p) => {
                let u = uniform_tile(philox, tile);
                for ((out, x), u) in out.iter_mut().zip(x).zip(&u[skip..]) {
                    *out = salt_or_pepper(*x, *u, p);
                }
            }
            Corruption::Masking(p) => {
                let u = uniform_tile(philox, tile);
                for ((out, x), u) in out.iter_mut().zip(x).zip(&u[skip..]) {
                    *out = mask(*x, *u, p);
                }
            }
            Corruption::Flip(p) => {
                let u = uniform_tile(philox, tile);
                for ((out, x), u) in out.iter_mut().zip(x).zip(&u[skip..]) {
                    *out = flip(*x, *u, p);
                }
            }
            Corruption::Gaussian(sigma) => {
                let z = normal_tile(philox, tile);
                for ((out, x), z) in out.iter_mut().zip(x).zip(&z[skip..]) {
                    *out = x + sigma * z;
                }
            }
        }
        at += len;
    }
}

impl Kernel for Corrupt<'_> {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let ([out], [rows, _]) = io.parts()?;
        let Lines { runs, width, line, .. } = self.lines;
        let (n_lines, philox) = (runs * self.lines.of_run(), self.place.philox);
        let rows = &rows.all::<f32>()?[rows.layout()?.start_offset()..];
        let corrupt_line = |i: usize, out: &mut [f32]| {
            let first = self.first + self.lines.element(i);
            corrupt_tiles(self.law, philox, first, out, &rows[i * line..][..width]);
        };
        let corrupted = || {
            let mut corrupted = vec![0.; n_lines * width];
            corrupted.chunks_mut(width.max(1)).enumerate().for_each(|(i, out)| corrupt_line(i, out));
            corrupted
        };
        match self.to {
            To::Bf16 => self.store(out, &corrupted(), bf16::from_f32),
            To::F16 => self.store(out, &corrupted(), f16::from_f32),
            To::Parts(part) => {
                let [high, low] = parts_of(OP, out, part, self.lines.span())?;
                for (i, corrupted) in corrupted().chunks(width.max(1)).enumerate() {
                    let at = self.lines.at(i);
                    for ((high, low), x) in high[at..].iter_mut().zip(&mut low[at..]).zip(corrupted) {
                        *high = f16::from_f32(*x);
                        *low = f16::from_f32(x - high.to_f32());
                    }
                }
                Ok(())
            }
            To::F32 if runs == 1 && width == line => {
                let out = out.elements::<f32>()?;
                if out.len() <= CHUNK {
                    corrupt_tiles(self.law, philox, self.first, out, &rows[..width]);
                    return Ok(());
                }
                let chunks = out.par_chunks_mut(CHUNK).zip(rows[..width].par_chunks(CHUNK)).enumerate();
                chunks.for_each(|(i, (out, x))| {
                    corrupt_tiles(self.law, philox, self.first + i * CHUNK, out, x);
                });
                Ok(())
            }
            To::F32 => {
                let start = out.layout().start_offset();
                let out = &mut out.all::<f32>()?[start..][..self.lines.span()];
                let lines = out.par_chunks_mut(line).with_min_len(CHUNK.div_ceil(line)).enumerate();
                lines.for_each(|(i, out)| corrupt_line(i, &mut out[..width]));
                Ok(())
            }
        }
    }

    fn is_serial(&self, most: usize) -> bool {
        most <= CHUNK
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        let ([out], [rows, counter]) = io.parts()?;
        match self.to {
            To::Parts(part) => {
                self.launch(gpu, "parts_", part, rows, out.span::<f16>(part + self.lines.span())?, counter)
            }
            To::F16 => self.launch(gpu, "parts_", 0, rows, out.span::<f16>(self.lines.span())?, counter),
            To::Bf16 => self.launch(gpu, "bf16_", 0, rows, out.span::<bf16>(self.lines.span())?, counter),
            To::F32 => self.launch(gpu, "", 0, rows, out.span::<f32>(self.lines.span())?, counter),
        }
    }
}

impl Corrupt<'_> {
    /// Stores all entries, rounded.
    fn store<T: WithDType>(
        &self,
        out: Out<'_, CpuStorage>,
        x: &[f32],
        round: impl Fn(f32) -> T,
    ) -> Result<()> {
        let start = out.layout().start_offset();
        let out = &mut out.all::<T>()?[start..];
        for (i, x) in x.chunks(self.lines.width.max(1)).enumerate() {
            out[self.lines.at(i)..].iter_mut().zip(x).for_each(|(out, &x)| *out = round(x));
        }
        Ok(())
    }
}

#[cfg(feature = "cuda")]
impl Corrupt<'_> {
    fn launch<T: candle::cuda::CudaDType>(
        &self,
        gpu: &crate::core::cuda::Gpu,
        to: &str,
        part: usize,
        rows: In<'_, candle::CudaStorage>,
        mut out: candle::cuda::cudarc::driver::CudaViewMut<'_, T>,
        counter: In<'_, candle::CudaStorage>,
    ) -> Result<()> {
        let Lines { runs, apart, width, line, numbers, .. } = self.lines;
        let of_run = self.lines.of_run();
        let of_rows = Lines { apart: of_run * line, ..self.lines };
        let (rows, counter) = (rows.span::<f32>(of_rows.span())?, counter.maybe()?);
        let (name, number) = self.law.parts();
        let kernel = format!("corrupt_{to}{}", name.replace('-', "_"));
        let launch = gpu.launch(OP, "corrupt", &kernel)?.read(&rows).write(&mut out);
        let launch = launch.num(part).num(apart).num(runs).num(of_run).num(width).num(line);
        let launch = launch.num(self.first).num(numbers).num(number).draws(self.place.philox, &counter);
        // A thread for each four entries of a line, and one lane of a warp that may only draw.
        let warps = (of_run * width.div_ceil(4)).div_ceil(31);
        let across = warps.div_ceil(THREADS as usize / 32).clamp(1, 4096);
        let launch = launch.grid([across, runs.min(65_535), 1], (THREADS, 1, 1));
        // SAFETY: (const float*, float*, bf16* or half*, 8 × size_t, float, 3 × unsigned long long, const
        // long long*); rows hold `runs` runs of `of_run` lines of `width` floats, and so does out, or one
        // part or two of as many, `part` and `apart` entries apart, which `corrupt_` checked; the counter
        // is one i64, checked by `Draws::place`, or null.
        unsafe { launch.overlapped().go() }
    }
}
