//! A step on the CPU in two passes over the weights, which are cut into blocks of rows.
//!
//! ```text
//! first     y = σ(W x̃ + b) of a block, and its part of Wᵀ y
//! between   the parts are added, block after block: z, LN, c
//! second    LH = y (1 − y) W LN of a block, and its rows W ← keep W + ε/M (LH x̃ᵀ + y LNᵀ), b
//! ```
//!
//! Every product is made of tiles of one kind: a few rows of the result by a few vectors of its
//! columns, in registers, over the whole sum. Where the result has a column for each row of the
//! minibatch (`y`, `LH`), the minibatch is transposed, `[n_visible, lanes]`, and padded with zeros
//! to whole vectors.
//!
//! Blocks depend only on the sizes, and every sum has one order, so the result is the same bits on
//! any number of threads.
//!
//! Cost: `10 n_hidden n_visible` FLOP a row; a step reads the weights four times from the cache of
//! the core that keeps the block, writes them once, and waits for other threads twice.
#![expect(clippy::needless_range_loop, reason = "a lane is an index into several arrays of one length")]
use super::{Sizes, Steps};
use crate::core::math::sigmoid;
use crate::core::vector::Vector;
#[cfg(target_arch = "x86_64")]
use crate::core::vector::{is_wide, is_widest};
use crate::layers::corrupt::corrupt_tiles;
use crate::layers::loss::cross_row;
use candle::WithDType;
use rayon::prelude::*;

/// Blocks of rows of the weights.
const BLOCKS: usize = 8;
/// Columns of a tile for rows of the minibatch.
const NARROW: usize = 8;

/// Rows of a minibatch, padded to whole vectors.
fn lanes(batch: usize) -> usize {
    batch.next_multiple_of(NARROW)
}

/// `Σ_k a[r, k] b[k, ..8]` for `R` rows `[depth]` of `a`, which are `line` apart; lines of `b` are
/// `lanes` apart.
#[inline(always)]
fn tile_of_rows<V: Vector, const R: usize>(
    a: &[f32],
    line: usize,
    b: &[f32],
    (lanes, depth): (usize, usize),
) -> [V; R] {
    assert!(a.len() >= (R - 1) * line + depth && b.len() >= (depth - 1) * lanes + V::LANES);
    let mut sums = [V::splat(0.); R];
    for k in 0..depth {
        // SAFETY: k is below depth, and the slices reach as far as the assertion says.
        unsafe {
            let b = V::load(b.as_ptr().add(k * lanes));
            for r in 0..R {
                sums[r] = V::splat(*a.as_ptr().add(r * line + k)).fused(b, sums[r]);
            }
        }
    }
    sums
}

/// `c[r, at..] ← keep · c + scale · Σ_k a[k, r] b[k, at..]` for `R` rows and `N` vectors. Lines of
/// `a` are `width` apart, those of `b` and `c` `line`.
#[inline(always)]
fn add_tile<V: Vector, const R: usize, const N: usize>(
    c: &mut [f32],
    (a, width): (&[f32], usize),
    b: &[f32],
    (line, at, depth): (usize, usize, usize),
    (keep, scale): (f32, f32),
) {
    let end = at + N * V::LANES;
    assert!(end <= line && c.len() >= (R - 1) * line + end && b.len() >= (depth - 1) * line + end);
    assert!(a.len() >= (depth - 1) * width + R);
    let mut sums = [[V::splat(0.); N]; R];
    for k in 0..depth {
        for r in 0..R {
            // SAFETY: k is below depth, and the slices reach as far as the assertions say.
            unsafe {
                let factor = V::splat(*a.as_ptr().add(k * width + r));
                for n in 0..N {
                    let b = V::load(b.as_ptr().add(k * line + at + n * V::LANES));
                    sums[r][n] = factor.fused(b, sums[r][n]);
                }
            }
        }
    }
    let (keep, scale) = (V::splat(keep), V::splat(scale));
    for r in 0..R {
        for n in 0..N {
            // SAFETY: r is below R and n below N: within the row by the assertions.
            unsafe {
                let c = c.as_mut_ptr().add(r * line + at + n * V::LANES);
                scale.fused(sums[r][n], keep.times(V::load(c))).store(c);
            }
        }
    }
}

/// `c ← keep · c + scale · aᵀ b` for `R` whole rows of `line` entries; `b` has `depth` lines, and
/// so has `a`, `width` apart.
#[inline(always)]
fn add_rows<V: Vector, const R: usize, const N: usize>(
    c: &mut [f32],
    a: (&[f32], usize),
    b: &[f32],
    (line, depth): (usize, usize),
    factors: (f32, f32),
) {
    let mut at = 0;
    while at + N * V::LANES <= line {
        add_tile::<V, R, N>(c, a, b, (line, at, depth), factors);
        at += N * V::LANES;
    }
    while at + V::LANES <= line {
        add_tile::<V, R, 1>(c, a, b, (line, at, depth), factors);
        at += V::LANES;
    }
    while at < line {
        add_tile::<f32, R, 1>(c, a, b, (line, at, depth), factors);
        at += 1;
    }
}

/// `c[r, ..lanes] ← Σ_n w[r, n] x[n, ..lanes]` for all rows of a block of weights.
#[inline(always)]
fn of_minibatch<V: Vector>(c: &mut [f32], w: &[f32], x: &[f32], (n, lanes): (usize, usize)) {
    let rows = w.len() / n;
    for at in (0..lanes).step_by(V::LANES) {
        let mut row = 0;
        while row < rows {
            let (w, c) = (&w[row * n..], &mut c[row * lanes + at..]);
            row += match rows - row {
                8.. => of_rows::<V, 8>(c, w, &x[at..], (n, lanes)),
                4.. => of_rows::<V, 4>(c, w, &x[at..], (n, lanes)),
                _ => of_rows::<V, 1>(c, w, &x[at..], (n, lanes)),
            };
        }
    }
}

#[inline(always)]
fn of_rows<V: Vector, const R: usize>(
    c: &mut [f32],
    w: &[f32],
    x: &[f32],
    (n, lanes): (usize, usize),
) -> usize {
    let sums = tile_of_rows::<V, R>(w, n, x, (lanes, n));
    for r in 0..R {
        let c = &mut c[r * lanes..r * lanes + V::LANES];
        // SAFETY: the slice has as many entries as the vector.
        unsafe { sums[r].store(c.as_mut_ptr()) };
    }
    R
}

/// Some rows of the weights, and what belongs to them.
struct Block<'a> {
    /// `[rows, n_visible]`
    w: &'a mut [f32],
    /// `[rows]`
    bias: &'a mut [f32],
    /// `[rows, lanes]` each.
    y: &'a mut [f32],
    lh: &'a mut [f32],
}

/// `y` of a block, and its part of `y W`, `[batch, n_visible]`.
#[inline(always)]
fn forward<W: Vector, V: Vector>(block: &mut Block<'_>, part: &mut [f32], transposed: &[f32], sizes: Sizes) {
    let (n, lanes) = (sizes.n_visible, lanes(sizes.batch));
    of_minibatch::<V>(block.y, block.w, transposed, (n, lanes));
    for (y, bias) in block.y.chunks_exact_mut(lanes).zip(block.bias.iter()) {
        y.iter_mut().for_each(|y| *y = sigmoid(*y + bias));
    }
    let rows = block.bias.len();
    part.fill(0.);
    let mut m = 0;
    while m < sizes.batch {
        let a = (&block.y[m..], lanes);
        let c = &mut part[m * n..];
        if m + 4 <= sizes.batch {
            add_rows::<W, 4, 2>(c, a, block.w, (n, rows), (1., 1.));
            m += 4;
        } else {
            add_rows::<W, 1, 2>(c, a, block.w, (n, rows), (1., 1.));
            m += 1;
        }
    }
}

/// `LH` of a block, and the update of its weights and biases.
#[inline(always)]
fn backward<W: Vector, V: Vector>(
    block: &mut Block<'_>,
    (transposed, stacked): (&[f32], &[f32]),
    sizes: Sizes,
    (keep, scale): (f32, f32),
) {
    let (n, batch, lanes) = (sizes.n_visible, sizes.batch, lanes(sizes.batch));
    of_minibatch::<V>(block.lh, block.w, transposed, (n, lanes));
    for (lh, y) in block.lh.iter_mut().zip(block.y.iter()) {
        *lh *= y * (1. - y);
    }
    for (bias, lh) in block.bias.iter_mut().zip(block.lh.chunks_exact(lanes)) {
        *bias += scale * lh[..batch].iter().sum::<f32>();
    }
    // Columns of factors [LH; y], four at a time.
    let mut factors = vec![0f32; 4 * 2 * batch];
    let rows = block.bias.len();
    let mut row = 0;
    while row < rows {
        let height = if row + 4 <= rows { 4 } else { 1 };
        for r in 0..height {
            let from = (row + r) * lanes..(row + r) * lanes + batch;
            for m in 0..batch {
                factors[4 * m + r] = block.lh[from.clone()][m];
                factors[4 * (batch + m) + r] = block.y[from.clone()][m];
            }
        }
        let a = (&factors[..], 4);
        let c = &mut block.w[row * n..(row + height) * n];
        if height == 4 {
            add_rows::<W, 4, 4>(c, a, stacked, (n, 2 * batch), (keep, scale));
        } else {
            add_rows::<W, 1, 4>(c, a, stacked, (n, 2 * batch), (keep, scale));
        }
        row += height;
    }
}

/// [`forward`] for a processor.
type Forward = fn(&mut Block<'_>, &mut [f32], &[f32], Sizes);
/// [`backward`] for a processor.
type Backward = fn(&mut Block<'_>, (&[f32], &[f32]), Sizes, (f32, f32));

/// The two passes over a block, compiled for a processor.
#[derive(Clone, Copy)]
struct Passes {
    forward: Forward,
    backward: Backward,
}

#[cfg(target_arch = "x86_64")]
mod passes {
    use super::{Block, Sizes};
    use std::arch::x86_64::{__m256, __m512};

    macro_rules! passes {
        ($name:ident, $wide:ty, $features:literal) => {
            pub mod $name {
                use super::*;

                #[target_feature(enable = $features)]
                fn forward_of(block: &mut Block<'_>, part: &mut [f32], transposed: &[f32], sizes: Sizes) {
                    super::super::forward::<$wide, __m256>(block, part, transposed, sizes);
                }

                #[target_feature(enable = $features)]
                fn backward_of(
                    block: &mut Block<'_>,
                    read: (&[f32], &[f32]),
                    sizes: Sizes,
                    factors: (f32, f32),
                ) {
                    super::super::backward::<$wide, __m256>(block, read, sizes, factors);
                }

                pub fn forward(block: &mut Block<'_>, part: &mut [f32], transposed: &[f32], sizes: Sizes) {
                    // SAFETY: `Passes::of_this_processor` has seen that it has the features.
                    unsafe { forward_of(block, part, transposed, sizes) }
                }

                pub fn backward(
                    block: &mut Block<'_>,
                    read: (&[f32], &[f32]),
                    sizes: Sizes,
                    factors: (f32, f32),
                ) {
                    // SAFETY: `Passes::of_this_processor` has seen that it has the features.
                    unsafe { backward_of(block, read, sizes, factors) }
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
        Self { forward: forward::<f32, f32>, backward: backward::<f32, f32> }
    }
}

/// Rows `[batch, n]` as columns `[n, lanes]`; the padding is 0.
fn transpose(out: &mut [f32], rows: &[f32], n: usize, lanes: usize) {
    for (i, out) in out.chunks_exact_mut(lanes).enumerate() {
        for (out, row) in out.iter_mut().zip(rows.chunks_exact(n)) {
            *out = row[i];
        }
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
    /// Its two parts as columns, `[n_visible, lanes]` each.
    transposed: [Vec<f32>; 2],
    /// `[n_hidden, lanes]` each: Y and LH.
    hidden: [Vec<f32>; 2],
    /// `[batch, n_visible]` for each block.
    parts: Vec<f32>,
}

impl<'a> Work<'a> {
    pub(super) fn new(of: &'a Steps<'a>, values: &'a mut [f32]) -> Self {
        let Sizes { n_visible: n, n_hidden, batch, .. } = of.sizes;
        let lanes = lanes(batch);
        let (weight, rest) = values.split_at_mut(of.bias_at);
        let (bias, rest) = rest.split_at_mut(of.visible_bias_at - of.bias_at);
        Self {
            of,
            passes: Passes::of_this_processor(),
            weight: &mut weight[..n_hidden * n],
            bias: &mut bias[..n_hidden],
            visible_bias: &mut rest[..n],
            stacked: vec![0.; 2 * batch * n],
            transposed: [vec![0.; n * lanes], vec![0.; n * lanes]],
            hidden: [vec![0.; n_hidden * lanes], vec![0.; n_hidden * lanes]],
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
        let Self { of, passes, weight, bias, visible_bias, stacked, transposed, hidden, parts } = self;
        let sizes @ Sizes { n_visible: n, n_hidden, batch, .. } = of.sizes;
        let (passes, lanes, scale) = (*passes, lanes(batch), of.rate / batch as f32);
        let ([x_transposed, ln_transposed], [y, lh]) = (transposed, hidden);
        transpose(x_transposed, &stacked[..batch * n], n, lanes);
        let height = n_hidden.div_ceil(BLOCKS).next_multiple_of(8);
        let blocks = weight.par_chunks_mut(height * n).zip(bias.par_chunks_mut(height));
        let blocks = blocks.zip(y.par_chunks_mut(height * lanes)).zip(lh.par_chunks_mut(height * lanes));
        let mut blocks: Vec<Block<'_>> =
            blocks.map(|(((w, bias), y), lh)| Block { w, bias, y, lh }).collect();
        let forwards = blocks.par_iter_mut().zip(parts.par_chunks_mut(batch * n));
        forwards.for_each(|(block, part)| (passes.forward)(block, part, x_transposed, sizes));

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
        transpose(ln_transposed, first, n, lanes);
        stacked[batch * n..].copy_from_slice(first);
        let read = (&ln_transposed[..], &stacked[..]);
        blocks.par_iter_mut().for_each(|block| (passes.backward)(block, read, sizes, (of.keep, scale)));
    }
}
