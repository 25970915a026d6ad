//! The stochastic rounding of f32 numbers to bf16, for weights without f32 masters.
//!
//! A bf16 number is the upper half of an f32 number. Rounding adds 16 random bits to the lower half
//! and cuts the lower half off:
//!
//! ```text
//! round(x, bits) = upper half of (x + bits)        both as integers, bits uniform in 0 … 2¹⁶ − 1
//! ```
//!
//! So `x` becomes the neighbour away from 0 with probability `lower half / 2¹⁶`, else the one
//! towards 0, and the mean of many roundings is `x`: steps far below the spacing of bf16 numbers
//! still count on average, where rounding to nearest would drop every one of them. A bf16 number
//! stays as it is, and so do infinities; NaN stays NaN. A number beyond the largest bf16 may become
//! infinite.
//!
//! The bits of the weight in row `r` and column `c` are half `c % 2` of word `c/8 % 4` of block
//! `4 r ⌈n_cols/32⌉ + 4 ⌊c/32⌋ + ⌊c % 8 / 2⌋`: in tensor cores the weights of a thread lie so, two
//! neighbours in every eighth column. A step whose counter is `t` begins at
//! `offset + 4 t n_rows ⌈n_cols/32⌉`. `kernels/layers/rounding.cuh` is the same.
//!
//! The velocity is rounded to nearest: it is renewed by a share `1 − μ` in each step, so that
//! rounding keeps back no more than a share `2⁻⁹/(1 − μ)` of it, 2 % for `μ = 0.9`.
//!
//! Sources: Gupta, Agrawal, Gopalakrishnan, Narayanan, "Deep learning with limited numerical
//! precision", ICML 2015, section 3; Zamirai, Zhang, Aberger, De Sa, "Revisiting BFloat16
//! training", 2020.
use crate::core::op::{Io, Kernel, operands};
use crate::core::philox::{BLOCKS, Philox};
use crate::layers::weight_step::WeightStep;
use candle::{CpuStorage, Result, Tensor};
use half::bf16;
use multiversion::multiversion;
use rayon::prelude::*;

/// `x` rounded stochastically to bf16 by 16 random bits; of weights those of [`rounding_bits`].
///
/// ```
/// use chandlery_ops::layers::round_stochastic;
/// use half::bf16;
/// // 1 + 2^-9 lies a quarter of the way from 1 to the next bf16 number, 1 + 2^-7.
/// let up = (0..=u16::MAX).filter(|&bits| round_stochastic(1. + 1. / 512., bits) > bf16::ONE).count();
/// assert_eq!(up, 1 << 14);
/// ```
#[inline(always)]
pub fn round_stochastic(x: f32, bits: u16) -> bf16 {
    let sum = if x.is_nan() { 0x7fff_ffff } else { x.to_bits().wrapping_add(u32::from(bits)) };
    bf16::from_bits((sum >> 16) as u16)
}

/// Columns of a row whose bits are four blocks.
const GROUP: usize = 32;

/// Blocks that an update takes.
pub(crate) fn rounding_blocks(rows: usize, cols: usize) -> u64 {
    (4 * rows * cols.div_ceil(GROUP)) as u64
}

/// The bits by which the weight at `(row, col)` of a matrix of `rows × cols` is rounded in the step
/// that begins at `counter`.
pub fn rounding_bits(
    draws: Philox,
    counter: i64,
    (rows, cols): (usize, usize),
    (row, col): (usize, usize),
) -> u16 {
    let block = rounding_blocks(row, cols) + (4 * (col / GROUP) + col % 8 / 2) as u64;
    let word = draws_of(draws, counter, rows, cols).block(block)[col / 8 % 4];
    (word >> (16 * (col % 2))) as u16
}

/// The place of the draws of an update.
fn draws_of(draws: Philox, counter: i64, rows: usize, cols: usize) -> Philox {
    draws.skipped((counter as u64).wrapping_mul(rounding_blocks(rows, cols)))
}

/// `V ← bf16(V'), W ← round(W + V')` with `V' = μ V + ε/B G − ε(λ₂ W + λ₁ sign W)`, on the CPU:
/// `weight`, `velocity` bf16 and `gradient` f32 matrices, `scalars` as in
/// [`cd_update_`](crate::layers::cd_update_).
#[expect(clippy::too_many_arguments, reason = "those of the op")]
pub(crate) fn rounded_step_on_cpu(
    op: &'static str,
    weight: &Tensor,
    velocity: &Tensor,
    gradient: &Tensor,
    scalars: &Tensor,
    counter: &Tensor,
    weights: WeightStep,
    draws: Philox,
) -> Result<()> {
    let (rows, cols) = weight.dims2()?;
    let io = operands(op).write("weight", weight).write("velocity", velocity).read("gradient", gradient);
    io.read("scalars", scalars).read("counter", counter).run(&OnCpu { op, weights, draws, rows, cols })
}

struct OnCpu {
    op: &'static str,
    weights: WeightStep,
    draws: Philox,
    rows: usize,
    cols: usize,
}

impl Kernel for OnCpu {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let Self { op, weights, draws, rows, cols } = *self;
        let ([weight, velocity], [gradient, scalars, counter]) = io.parts()?;
        let (w, v) = (weight.elements::<bf16>()?, velocity.elements::<bf16>()?);
        let (g, counter) = (gradient.elements::<f32>()?, counter.elements::<i64>()?);
        let (&[alpha, momentum, rate], &[counter]) = (scalars.elements::<f32>()?, counter) else {
            candle::bail!("{op}: scalars must have 3 entries and the counter 1")
        };
        let draws = draws_of(draws, counter, rows, cols);
        let lines = w.par_chunks_mut(cols).zip(v.par_chunks_mut(cols)).zip(g.par_chunks(cols));
        lines.enumerate().for_each(|(row, ((w, v), g))| {
            let draws = draws.skipped(rounding_blocks(row, cols));
            step_row(draws, weights, [alpha, momentum, rate], w, v, g);
        });
        Ok(())
    }
}

#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
fn step_row(
    draws: Philox,
    WeightStep { l1, l2 }: WeightStep,
    [alpha, momentum, rate]: [f32; 3],
    w: &mut [bf16],
    v: &mut [bf16],
    g: &[f32],
) {
    // Columns of as many blocks as are drawn at once.
    const AT_ONCE: usize = BLOCKS / 4 * GROUP;
    let tiles = w.chunks_mut(AT_ONCE).zip(v.chunks_mut(AT_ONCE)).zip(g.chunks(AT_ONCE));
    for (i, ((w, v), g)) in tiles.enumerate() {
        let words = draws.tile((i * BLOCKS) as u64);
        for (e, ((w, v), g)) in w.iter_mut().zip(v).zip(g).enumerate() {
            let word = words[e / 8 % 4][e / GROUP * 4 + e % 8 / 2];
            let old = w.to_f32();
            let sign = f32::from(i8::from(old > 0.) - i8::from(old < 0.));
            let new = momentum * v.to_f32() + (alpha * g - rate * (l2 * old + l1 * sign));
            *w = round_stochastic(old + new, (word >> (16 * (e % 2))) as u16);
            *v = bf16::from_f32(new);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const DRAWS: Philox = Philox::new(16, 1);

    /// Halves of words of [`DRAWS`].
    fn bits(i: u64) -> u16 {
        (DRAWS.bits(i / 2) >> (16 * (i % 2))) as u16
    }

    #[test]
    fn the_mean_of_many_roundings_is_the_number() {
        const N: u64 = 1 << 16;
        for (i, x) in [0.1f32, -0.1, 1.001, -3.9999, 1e-20, 7e30, -2.5e-39].into_iter().enumerate() {
            let roundings = (0..N).map(|j| f64::from(round_stochastic(x, bits(i as u64 * N + j)).to_f32()));
            let (sum, squares) = roundings
                .fold((0., 0.), |(s, q), y| (s + (y - f64::from(x)), q + (y - f64::from(x)).powi(2)));
            let (mean, standard_error) = (sum / N as f64, squares.sqrt() / N as f64);
            assert!(
                mean.abs() <= 4. * standard_error,
                "{x:e}: off by {mean:e}, standard error {standard_error:e}"
            );
            assert!(standard_error > 0., "{x:e} was not between two bf16 numbers");
        }
    }

    #[test]
    fn every_rounding_is_one_of_the_two_neighbours() {
        for i in 0..100_000u64 {
            let x = f32::from_bits(Philox::new(16, 2).bits(i));
            if x.is_nan() {
                continue;
            }
            let towards_zero = x.to_bits() >> 16;
            let got = u32::from(round_stochastic(x, bits(i)).to_bits());
            assert!(got == towards_zero || got == towards_zero + 1, "{x:e} became {got:#x}");
        }
    }

    #[test]
    fn exact_numbers_infinities_and_nan_stay() {
        for bits in [0, 1, 0x7fff, 0x8000, u16::MAX] {
            for x in
                [0., -0., 1., -1.5, 2f32.powi(-133), bf16::MAX.to_f32(), f32::INFINITY, f32::NEG_INFINITY]
            {
                assert_eq!(round_stochastic(x, bits).to_f32().to_bits(), x.to_bits(), "{x:e} by {bits:#x}");
            }
            for nan in [0x7f80_0001, 0x7fff_ffff, 0xffc0_0000, 0xffff_ffff].map(f32::from_bits) {
                assert!(round_stochastic(nan, bits).is_nan(), "{:#x} by {bits:#x}", nan.to_bits());
            }
        }
        // Beyond the largest bf16 number is infinity.
        assert_eq!(round_stochastic(f32::MAX, u16::MAX), bf16::INFINITY);
    }
}
