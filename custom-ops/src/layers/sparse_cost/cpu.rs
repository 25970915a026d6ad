//! The cost on the CPU: rows are cut into blocks, and a thread takes a block through all products,
//! some rows at a time.
//!
//! Lines of all matrices are padded to whole vectors; what is computed in the padding is not read.
//!
//! Blocks depend only on the sizes, and every sum has one order, so the result is the same bits on
//! any number of threads.
use super::product::{PAD, add_product};
use super::{OfRows, SparseCost};
use crate::core::vector::{Vector, is_wide};
use crate::layers::activation::{SIGMOID, activate, through, with_activation};
use crate::layers::tiles::Across;
use multiversion::multiversion;
use rayon::prelude::*;

/// Rows that go through the products together: with 64 values each, some 100 KiB that stay in the
/// cache of a core.
const TILE: usize = 128;
/// Blocks, at most: each has a gradient of its own.
const BLOCKS: usize = 32;
/// Weights of one matrix up to which a core keeps both with their gradients in its cache, and above
/// which separate products cut their results into enough blocks.
const MOST_WEIGHTS: usize = 32 * 1024;
/// Lanes of the sums of squares of a row.
const LANES: usize = 32;

/// Whether this is faster than separate products.
pub(super) fn is_fast(n_visible: usize, n_hidden: usize) -> bool {
    is_wide() && n_visible.saturating_mul(n_hidden) <= MOST_WEIGHTS
}

pub(super) fn run(of: &OfRows, figures: &mut [f64], gradient: &mut [f32], theta: &[f32], rows: &[f32]) {
    let SparseCost { n_visible: v, n_hidden: h, weight_decay, .. } = of.cost;
    let (n, m) = (of.cost.n_weights(), of.m as f64);
    let net = Net::new(of.cost, theta);
    let passes = Passes::of_this_processor();
    let each = of.m.div_ceil(BLOCKS).max(TILE);

    let mut features = vec![0f32; of.m * net.h_line];
    let blocks = features.par_chunks_mut(each * net.h_line).zip(rows.par_chunks(each * v));
    let sums: Vec<Vec<f64>> = blocks.map(|(a, x)| (passes.encode)(&net, a, x)).collect();
    let means: Vec<f64> = (0..h).map(|j| sums.iter().map(|sums| sums[j]).sum::<f64>() / m).collect();

    let pull = means.iter().map(|&mean| of.cost.pull(mean) as f32);
    let pull = lines(pull, h, net.h_line);
    let blocks = features.par_chunks(each * net.h_line).zip(rows.par_chunks(each * v));
    let parts: Vec<Part> = blocks.map(|(a, x)| (passes.propagate)(&net, &pull, a, x)).collect();

    // ∂W and ∂W', ∂b and ∂c, each in padded lines.
    let sums: [Vec<f64>; 4] = std::array::from_fn(|of| {
        let mut sums = vec![0f64; parts[0].sums[of].len()];
        for part in &parts {
            sums.iter_mut().zip(&part.sums[of]).for_each(|(sum, &x)| *sum += f64::from(x));
        }
        sums
    });
    let of_lines = |of: usize, width: usize, line: usize| {
        sums[of].chunks_exact(line).flat_map(move |sums| &sums[..width]).map(|sum| sum / m)
    };
    let decayed = of_lines(0, v, net.v_line).chain(of_lines(1, h, net.h_line)).zip(theta);
    let decayed = decayed.map(|(sum, &w)| sum + weight_decay * f64::from(w));
    let all = decayed.chain(of_lines(2, h, net.h_line)).chain(of_lines(3, v, net.v_line));
    gradient.iter_mut().zip(all).for_each(|(gradient, sum)| *gradient = sum as f32);
    let squares = 0.5 * parts.iter().map(|part| part.squares).sum::<f64>() / m;
    let of_weights = theta[..2 * n].iter().map(|&w| f64::from(w) * f64::from(w)).sum::<f64>();
    let divergence = means.iter().map(|&mean| of.cost.divergence(mean)).sum::<f64>();
    let value = of.cost.value(squares, of_weights, divergence);
    figures.copy_from_slice(&[value, squares, of_weights, divergence]);
}

/// The parameters as the products take them.
struct Net {
    cost: SparseCost,
    /// Distances of lines of visible and of hidden units.
    v_line: usize,
    h_line: usize,
    /// `Wᵀ` and `W'`, lines of hidden units, and `W'ᵀ`, lines of visible units.
    weight_transposed: Vec<f32>,
    decoder: Vec<f32>,
    decoder_transposed: Vec<f32>,
    /// `b` and `c`.
    bias: Vec<f32>,
    visible_bias: Vec<f32>,
}

/// Lines of `width` entries at a distance of `line`, with zeros between.
fn lines(entries: impl Iterator<Item = f32>, width: usize, line: usize) -> Vec<f32> {
    let mut padded = Vec::new();
    for (i, entry) in entries.enumerate() {
        padded.resize(i / width * line + i % width, 0.);
        padded.push(entry);
    }
    padded.resize(padded.len().next_multiple_of(line), 0.);
    padded
}

impl Net {
    fn new(cost: SparseCost, theta: &[f32]) -> Self {
        let (v, h, n) = (cost.n_visible, cost.n_hidden, cost.n_weights());
        let (v_line, h_line) = (v.next_multiple_of(PAD), h.next_multiple_of(PAD));
        let (weight, rest) = theta.split_at(n);
        let (decoder, biases) = rest.split_at(n);
        let (bias, visible_bias) = biases.split_at(h);
        let transposed = |of: &[f32], rows: usize, columns: usize, line| {
            lines((0..rows * columns).map(|at| of[at % rows * columns + at / rows]), rows, line)
        };
        Self {
            cost,
            v_line,
            h_line,
            weight_transposed: transposed(weight, h, v, h_line),
            decoder: lines(decoder.iter().copied(), h, h_line),
            decoder_transposed: transposed(decoder, v, h, v_line),
            bias: lines(bias.iter().copied(), h, h_line),
            visible_bias: lines(visible_bias.iter().copied(), v, v_line),
        }
    }
}

/// What a block gives to the gradient, `m` times as large and without the decay, and the sum of its
/// squared errors.
struct Part {
    /// Of `W`, lines of visible units, of `W'`, lines of hidden units, of `b` and of `c`.
    sums: [Vec<f32>; 4],
    squares: f64,
}

/// `a ← σ(x Wᵀ + b)` for the rows of a block, and the sums of its columns.
#[inline(always)]
fn encode<V: Vector<Number = f32>, const N: usize>(net: &Net, a: &mut [f32], x: &[f32]) -> Vec<f64> {
    let (v, h, line) = (net.cost.n_visible, net.cost.n_hidden, net.h_line);
    let mut sums = vec![0f64; h];
    for (a, x) in a.chunks_mut(TILE * line).zip(x.chunks(TILE * v)) {
        a.chunks_exact_mut(line).for_each(|a| a.copy_from_slice(&net.bias));
        let x = Across { entries: x, row: v, term: 1 };
        add_product::<V, N>(a, (x, &net.weight_transposed), (a.len() / line, h, v), line);
        sigmoids(a);
        let mut tile = vec![0f32; line];
        add_rows(&mut tile, a);
        sums.iter_mut().zip(tile).for_each(|(sum, tile)| *sum += f64::from(tile));
    }
    sums
}

/// The way back of a block, from its features.
#[inline(always)]
fn propagate<V: Vector<Number = f32>, const N: usize>(net: &Net, pull: &[f32], a: &[f32], x: &[f32]) -> Part {
    let (v, h) = (net.cost.n_visible, net.cost.n_hidden);
    let (v_line, h_line) = (net.v_line, net.h_line);
    let mut part = Part { sums: [h * v_line, v * h_line, h_line, v_line].map(|n| vec![0.; n]), squares: 0. };
    let (mut errors, mut deltas) = (vec![0f32; TILE * v_line], vec![0f32; TILE * h_line]);
    let mut padded = vec![0f32; if v == v_line { 0 } else { TILE * v_line }];
    for (a, x) in a.chunks(TILE * h_line).zip(x.chunks(TILE * v)) {
        let rows = a.len() / h_line;
        let (e, d) = (&mut errors[..rows * v_line], &mut deltas[..rows * h_line]);
        let x = match v == v_line {
            true => x,
            false => {
                let pairs = padded.chunks_exact_mut(v_line).zip(x.chunks_exact(v));
                pairs.for_each(|(to, x)| to[..v].copy_from_slice(x));
                &padded[..rows * v_line]
            }
        };
        let by_rows = |entries, row| Across { entries, row, term: 1 };
        let by_columns = |entries, term| Across { entries, row: 1, term };
        e.chunks_exact_mut(v_line).for_each(|e| e.copy_from_slice(&net.visible_bias));
        add_product::<V, N>(e, (by_rows(a, h_line), &net.decoder_transposed), (rows, v, h), v_line);
        part.squares += with_activation!(net.cost.decoder, errors_of(e, x, v, v_line));
        d.chunks_exact_mut(h_line).for_each(|d| d.copy_from_slice(pull));
        add_product::<V, N>(d, (by_rows(e, v_line), &net.decoder), (rows, h, v), h_line);
        through_features(d, a);
        let [weight, decoder, bias, visible_bias] = &mut part.sums;
        add_product::<V, N>(weight, (by_columns(d, h_line), x), (h, v, rows), v_line);
        add_product::<V, N>(decoder, (by_columns(e, v_line), a), (v, h, rows), h_line);
        add_rows(bias, d);
        add_rows(visible_bias, e);
    }
    part
}

/// Both passes over a block, compiled for a processor.
struct Passes {
    encode: fn(&Net, &mut [f32], &[f32]) -> Vec<f64>,
    propagate: fn(&Net, &[f32], &[f32], &[f32]) -> Part,
}

impl Passes {
    fn of_this_processor() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            if crate::core::vector::is_widest() {
                return Self { encode: x86::avx512::encode, propagate: x86::avx512::propagate };
            }
            if is_wide() {
                return Self { encode: x86::avx2::encode, propagate: x86::avx2::propagate };
            }
        }
        Self { encode: encode::<f32, 2>, propagate: propagate::<f32, 2> }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Net, Part};
    use std::arch::x86_64::{__m256, __m512};

    macro_rules! passes {
        ($name:ident, $vector:ty, $vectors:literal, $features:literal) => {
            pub mod $name {
                use super::*;

                #[target_feature(enable = $features)]
                fn encode_of(net: &Net, a: &mut [f32], x: &[f32]) -> Vec<f64> {
                    super::super::encode::<$vector, $vectors>(net, a, x)
                }

                #[target_feature(enable = $features)]
                fn propagate_of(net: &Net, pull: &[f32], a: &[f32], x: &[f32]) -> Part {
                    super::super::propagate::<$vector, $vectors>(net, pull, a, x)
                }

                pub fn encode(net: &Net, a: &mut [f32], x: &[f32]) -> Vec<f64> {
                    // SAFETY: `Passes::of_this_processor` has seen that it has the features.
                    unsafe { encode_of(net, a, x) }
                }

                pub fn propagate(net: &Net, pull: &[f32], a: &[f32], x: &[f32]) -> Part {
                    // SAFETY: as above.
                    unsafe { propagate_of(net, pull, a, x) }
                }
            }
        };
    }
    passes!(avx512, __m512, 4, "avx512f,avx512vl,avx512dq,avx512bw,avx2,fma");
    passes!(avx2, __m256, 2, "avx2,fma");
}

#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
fn sigmoids(x: &mut [f32]) {
    x.iter_mut().for_each(|x| *x = activate::<SIGMOID>(*x));
}

/// Replaces pre-activations by `(f(e) − x) f'(e)`, and returns the sum of `(f(e) − x)²` over the
/// first `width` entries of each line.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
fn errors_of<const F: u8>(e: &mut [f32], x: &[f32], width: usize, line: usize) -> f64 {
    let mut sum = 0.;
    for (e, x) in e.chunks_exact_mut(line).zip(x.chunks_exact(line)) {
        let mut squares = [0f32; LANES];
        for (e, x) in e[..width].chunks_mut(LANES).zip(x.chunks(LANES)) {
            for ((e, x), square) in e.iter_mut().zip(x).zip(&mut squares) {
                let y = activate::<F>(*e);
                let apart = y - x;
                *square += apart * apart;
                *e = through::<F>(apart, y);
            }
        }
        sum += squares.iter().copied().map(f64::from).sum::<f64>();
    }
    sum
}

#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
fn through_features(delta: &mut [f32], a: &[f32]) {
    delta.iter_mut().zip(a).for_each(|(delta, &a)| *delta = through::<SIGMOID>(*delta, a));
}

/// Adds all rows to `sums`.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
fn add_rows(sums: &mut [f32], rows: &[f32]) {
    for row in rows.chunks_exact(sums.len()) {
        sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
    }
}
