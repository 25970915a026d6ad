//! A step on the CPU in two passes over the weights, which are cut into blocks of rows.
//!
//! ```text
//! first     y = σ(W x̃ + b) of a block, and its part of Wᵀ y
//! between   the parts are added, block after block: z, LN, c
//! second    LH = y (1 − y) W LN of a block, and its rows W ← keep W + ε/M (LH x̃ᵀ + y LNᵀ), b
//! ```
//!
//! Every product is made of [`tiles`], in registers over the whole sum.
//!
//! Blocks depend only on the sizes, and every sum has one order, so the result is the same bits on
//! any number of threads.
//!
//! Cost: `10 n_hidden n_visible` FLOP a row; a step reads the weights four times from the cache of
//! the core that keeps the block, writes them once, and waits for other threads twice.
//!
//! [`tiles`]: crate::layers::tiles
use super::{Sizes, Steps};
use crate::core::math::sigmoid;
use crate::core::vector::Vector;
#[cfg(target_arch = "x86_64")]
use crate::core::vector::{is_wide, is_widest};
use crate::layers::corrupt::corrupt_tiles;
use crate::layers::loss::cross_row;
use crate::layers::tiles::{Across, add_rows, dots};
use candle::WithDType;
use rayon::prelude::*;

/// Blocks of rows of the weights.
const BLOCKS: usize = 8;
/// FLOP that are worth a task: some 20 µs of one core.
const GRAIN: usize = 1_000_000;
/// `c[r, m] ← Σ_n w[r, n] x[m, n]` for all rows of a block of weights and of a minibatch; lines of
/// `c` are two minibatches long.
#[inline(always)]
fn of_minibatch<V: Vector<Number = f32>>(c: &mut [f32], w: &[f32], x: &[f32], (n, batch): (usize, usize)) {
    let rows = w.len() / n;
    let mut row = 0;
    while row < rows {
        let (w, c) = (&w[row * n..], &mut c[2 * row * batch..]);
        row += match rows - row {
            4.. => of_rows::<V, 4>(c, w, x, (n, batch)),
            _ => of_rows::<V, 1>(c, w, x, (n, batch)),
        };
    }
}

/// The same for `R` rows of weights, three of the minibatch at a time; returns `R`.
#[inline(always)]
fn of_rows<V: Vector<Number = f32>, const R: usize>(
    c: &mut [f32],
    w: &[f32],
    x: &[f32],
    (n, batch): (usize, usize),
) -> usize {
    let mut m = 0;
    while m < batch {
        let (c, x) = (&mut c[m..], &x[m * n..]);
        m += match batch - m {
            3.. => store::<R, 3>(c, dots::<V, R, 3>((w, n), (x, n), n), 2 * batch),
            2 => store::<R, 2>(c, dots::<V, R, 2>((w, n), (x, n), n), 2 * batch),
            _ => store::<R, 1>(c, dots::<V, R, 1>((w, n), (x, n), n), 2 * batch),
        };
    }
    R
}

#[inline(always)]
fn store<const R: usize, const J: usize>(c: &mut [f32], sums: [[f32; J]; R], line: usize) -> usize {
    for (r, sums) in sums.iter().enumerate() {
        c[r * line..][..J].copy_from_slice(sums);
    }
    J
}

/// Some rows of the weights, and what belongs to them.
struct Block<'a> {
    /// `[rows, n_visible]`
    w: &'a mut [f32],
    /// `[rows]`
    bias: &'a mut [f32],
    /// `[rows, 2, batch]`: LH, Y.
    hidden: &'a mut [f32],
}

/// `y` of a block, and its part of `y W`, `[batch, n_visible]`.
#[inline(always)]
fn forward<V: Vector<Number = f32>>(block: &mut Block<'_>, part: &mut [f32], x: &[f32], sizes: Sizes) {
    let Sizes { n_visible: n, batch, .. } = sizes;
    of_minibatch::<V>(&mut block.hidden[batch..], block.w, x, (n, batch));
    for (hidden, bias) in block.hidden.chunks_exact_mut(2 * batch).zip(block.bias.iter()) {
        hidden[batch..].iter_mut().for_each(|y| *y = sigmoid(*y + bias));
    }
    let (rows, part) = (block.bias.len(), &mut part[..batch * n]);
    let mut m = 0;
    while m < batch {
        let a = Across { entries: &block.hidden[batch + m..], term: 2 * batch, row: 1 };
        // SAFETY: row m and, by the match, those that follow are within the part.
        unsafe {
            let c = (part.as_mut_ptr().add(m * n), n);
            m += match batch - m {
                4.. => add_rows::<V, 4, 2>(c, a, (block.w, n), (n, rows), (0., 1.)),
                2.. => add_rows::<V, 2, 4>(c, a, (block.w, n), (n, rows), (0., 1.)),
                _ => add_rows::<V, 1, 8>(c, a, (block.w, n), (n, rows), (0., 1.)),
            };
        }
    }
}

/// `LH` of a block, and the update of its weights and biases; `stacked` is X̃ and, after it, LN.
#[inline(always)]
fn backward<V: Vector<Number = f32>>(
    block: &mut Block<'_>,
    stacked: &[f32],
    sizes: Sizes,
    (keep, scale): (f32, f32),
) {
    let Sizes { n_visible: n, batch, .. } = sizes;
    of_minibatch::<V>(block.hidden, block.w, &stacked[batch * n..], (n, batch));
    for (hidden, bias) in block.hidden.chunks_exact_mut(2 * batch).zip(block.bias.iter_mut()) {
        let (lh, y) = hidden.split_at_mut(batch);
        lh.iter_mut().zip(y).for_each(|(lh, y)| *lh *= *y * (1. - *y));
        *bias += scale * lh.iter().sum::<f32>();
    }
    let rows = block.bias.len();
    let mut row = 0;
    while row < rows {
        let a = Across { entries: &block.hidden[2 * row * batch..], term: 1, row: 2 * batch };
        // SAFETY: the row and, by the match, those that follow are within the block.
        unsafe {
            let c = (block.w.as_mut_ptr().add(row * n), n);
            row += match rows - row {
                4.. => add_rows::<V, 4, 2>(c, a, (stacked, n), (n, 2 * batch), (keep, scale)),
                _ => add_rows::<V, 1, 8>(c, a, (stacked, n), (n, 2 * batch), (keep, scale)),
            };
        }
    }
}

/// [`forward`] for a processor.
type Forward = fn(&mut Block<'_>, &mut [f32], &[f32], Sizes);
/// [`backward`] for a processor.
type Backward = fn(&mut Block<'_>, &[f32], Sizes, (f32, f32));

/// The two passes over a block, compiled for a processor.
#[derive(Clone, Copy)]
struct Passes {
    forward: Forward,
    backward: Backward,
}

#[cfg(target_arch = "x86_64")]
mod passes {
    use super::{Block, Sizes};
    use std::arch::x86_64;

    macro_rules! passes {
        ($name:ident, $vector:ident, $features:literal) => {
            pub mod $name {
                use super::*;

                #[target_feature(enable = $features)]
                fn forward_of(block: &mut Block<'_>, part: &mut [f32], x: &[f32], sizes: Sizes) {
                    super::super::forward::<x86_64::$vector>(block, part, x, sizes);
                }

                #[target_feature(enable = $features)]
                fn backward_of(block: &mut Block<'_>, stacked: &[f32], sizes: Sizes, factors: (f32, f32)) {
                    super::super::backward::<x86_64::$vector>(block, stacked, sizes, factors);
                }

                pub fn forward(block: &mut Block<'_>, part: &mut [f32], x: &[f32], sizes: Sizes) {
                    // SAFETY: `Passes::of_this_processor` has seen that it has the features.
                    unsafe { forward_of(block, part, x, sizes) }
                }

                pub fn backward(block: &mut Block<'_>, stacked: &[f32], sizes: Sizes, factors: (f32, f32)) {
                    // SAFETY: `Passes::of_this_processor` has seen that it has the features.
                    unsafe { backward_of(block, stacked, sizes, factors) }
                }
            }
        };
    }
    passes!(avx512, __m512, "avx512f,avx512vl,avx512dq,avx512bw,avx2,fma");
    passes!(avx2, __m256, "avx2,fma");
}

impl Passes {
    fn of_this_processor() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            if is_widest() {
                return Self { forward: passes::avx512::forward, backward: passes::avx512::backward };
            }
            if is_wide() {
                return Self { forward: passes::avx2::forward, backward: passes::avx2::backward };
            }
        }
        Self { forward: forward::<f32>, backward: backward::<f32> }
    }
}

/// What the steps work on.
pub(super) struct Work<'a> {
    of: &'a Steps<'a>,
    passes: Passes,
    weight: &'a mut [f32],
    bias: &'a mut [f32],
    visible_bias: &'a mut [f32],
    /// `[batch, n_visible]` each: X̃ and, after it, LN.
    stacked: Vec<f32>,
    /// `[n_hidden, 2, batch]`: LH, Y.
    hidden: Vec<f32>,
    /// `[batch, n_visible]` for each block.
    parts: Vec<f32>,
}

impl<'a> Work<'a> {
    pub(super) fn new(of: &'a Steps<'a>, values: &'a mut [f32]) -> Self {
        let Sizes { n_visible: n, n_hidden, batch, .. } = of.sizes;
        let (weight, rest) = values.split_at_mut(of.bias_at);
        let (bias, rest) = rest.split_at_mut(of.visible_bias_at - of.bias_at);
        Self {
            of,
            passes: Passes::of_this_processor(),
            weight: &mut weight[..n_hidden * n],
            bias: &mut bias[..n_hidden],
            visible_bias: &mut rest[..n],
            stacked: vec![0.; 2 * batch * n],
            hidden: vec![0.; 2 * n_hidden * batch],
            parts: vec![0.; BLOCKS * batch * n],
        }
    }

    /// All steps; adds to the figures.
    pub(super) fn run<T: WithDType>(&mut self, rows: &[T], figures: &mut [f64]) {
        let Sizes { n_visible, batch, .. } = self.of.sizes;
        let size = batch * n_visible;
        let mut philox = self.of.place.philox;
        let mut x = vec![0.; size];
        for rows in rows.chunks_exact(size) {
            x.iter_mut().zip(rows).for_each(|(x, row)| *x = self.of.scale * row.to_f64() as f32);
            corrupt_tiles(self.of.corruption, philox, 0, &mut self.stacked[..size], &x);
            philox = philox.advanced(size);
            self.step(&x, figures);
        }
    }

    fn step(&mut self, x: &[f32], figures: &mut [f64]) {
        let Self { of, passes, weight, bias, visible_bias, stacked, hidden, parts } = self;
        let sizes @ Sizes { n_visible: n, n_hidden, batch, .. } = of.sizes;
        let (passes, scale) = (*passes, of.rate / batch as f32);
        let height = n_hidden.div_ceil(BLOCKS).next_multiple_of(8);
        let blocks = weight.chunks_mut(height * n).zip(bias.chunks_mut(height));
        let blocks = blocks.zip(hidden.chunks_mut(2 * height * batch));
        let mut blocks: Vec<Block<'_>> =
            blocks.map(|((w, bias), hidden)| Block { w, bias, hidden }).collect();
        // Half of a step is a pass, and a task is some blocks of one.
        let least = GRAIN.div_ceil(4 * height * n * batch);
        let corrupted = &stacked[..batch * n];
        let forwards = blocks.par_iter_mut().zip(parts.par_chunks_mut(batch * n)).with_min_len(least);
        forwards.for_each(|(block, part)| (passes.forward)(block, part, corrupted, sizes));

        let (first, others) = parts.split_at_mut(batch * n);
        let others = &others[..(blocks.len() - 1) * batch * n];
        let (of_loss, of_squares) = figures.split_at_mut(figures.len() / 2);
        for (m, sum) in first.chunks_exact_mut(n).enumerate() {
            for part in others.chunks_exact(batch * n) {
                sum.iter_mut().zip(&part[m * n..]).for_each(|(sum, part)| *sum += part);
            }
            // Minus the derivative is LN.
            let [loss, squares] = cross_row(sum, visible_bias, &x[m * n..][..n], -1.);
            of_loss[0] += loss;
            of_squares[0] += squares;
        }
        for ln in first.chunks_exact(n) {
            visible_bias.iter_mut().zip(ln).for_each(|(bias, ln)| *bias += scale * ln);
        }
        stacked[batch * n..].copy_from_slice(first);
        let backwards = blocks.par_iter_mut().with_min_len(least);
        backwards.for_each(|block| (passes.backward)(block, stacked, sizes, (of.keep, scale)));
    }
}
