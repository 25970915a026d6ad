//! The steps on the CPU: each visits the weights twice, in groups of hidden units that stay in the cache.
//!
//! ```text
//! first     y = σ(W x̃ + b) of a group, and at once its share of Wᵀ y
//! between   the shares are added, group after group: z, LN, c
//! second    LH = y (1 − y) W LN of a group, and at once its rows of W += ε/M (LH x̃ᵀ + y LNᵀ), b
//! ```
//!
//! Groups depend only on the sizes, and every sum has one order, so the result is the same bits on any number of threads.
//!
//! Cost: the weights are read twice and written once a step; `10 n_hidden n_visible` FLOP a row.
use super::{Sizes, Steps};
use crate::corrupt::corrupt_tiles;
use crate::fused::{fma, fused};
use crate::math::{sigmoid, softplus};
use candle::WithDType;
use multiversion::multiversion;
use rayon::prelude::*;

/// Hidden units that are taken at a time: each value of a row that is loaded serves so many products.
const UNITS: usize = 4;
/// Rows that are taken at a time in products of rows.
const ROWS: usize = 2;
/// Numbers of a vector register or two.
const LANES: usize = 16;
/// Hidden units of a group, and most groups: each costs an addition of its share of `Wᵀ y`.
const GROUP: usize = 32;
const GROUPS: usize = 16;
/// Products of two numbers below which other threads are not worth waking.
const GRAIN: usize = 1 << 19;

/// What the steps work on. `hidden` and `hidden_error` are `[n_hidden, batch]`, the others `[batch, n_visible]`.
pub(super) struct Work<'a> {
    of: &'a Steps<'a>,
    weight: &'a mut [f32],
    bias: &'a mut [f32],
    visible_bias: &'a mut [f32],
    corrupted: Vec<f32>,
    error: Vec<f32>,
    hidden: Vec<f32>,
    /// A matrix `[batch, n_visible]` for each group.
    shares: Vec<f32>,
    /// Hidden units of a group.
    group: usize,
}

impl<'a> Work<'a> {
    pub(super) fn new(of: &'a Steps<'a>, values: &'a mut [f32]) -> Self {
        let Sizes { n_visible, n_hidden, batch, .. } = of.sizes;
        let (weight, rest) = values.split_at_mut(of.bias_at);
        let (bias, rest) = rest.split_at_mut(of.visible_bias_at - of.bias_at);
        let group = GROUP.max(n_hidden.div_ceil(GROUPS).next_multiple_of(UNITS));
        Self {
            of,
            weight: &mut weight[..n_hidden * n_visible],
            bias: &mut bias[..n_hidden],
            visible_bias: &mut rest[..n_visible],
            corrupted: vec![0.; batch * n_visible],
            error: vec![0.; batch * n_visible],
            hidden: vec![0.; n_hidden * batch],
            shares: vec![0.; n_hidden.div_ceil(group) * batch * n_visible],
            group,
        }
    }

    /// All steps; adds to the two figures.
    pub(super) fn run<T: WithDType>(&mut self, rows: &[T], figures: &mut [f64]) {
        let size = self.corrupted.len();
        let mut philox = self.of.place.philox;
        let mut x = vec![0.; size];
        for rows in rows.chunks_exact(size) {
            x.iter_mut().zip(rows).for_each(|(x, row)| *x = self.of.scale * row.to_f64() as f32);
            corrupt_tiles(self.of.corruption, philox, 0, &mut self.corrupted, &x);
            philox = philox.advanced(size);
            self.step(&x, figures);
        }
    }

    fn step(&mut self, x: &[f32], figures: &mut [f64]) {
        let Sizes { n_visible, n_hidden, batch, .. } = self.of.sizes;
        let rate = self.of.rate / batch as f32;
        let threaded = n_visible * n_hidden * batch > GRAIN;
        let (corrupted, group) = (&self.corrupted[..], self.group);

        let forward = self.weight.par_chunks(group * n_visible).zip(self.bias.par_chunks(group));
        let out =
            self.hidden.par_chunks_mut(group * batch).zip(self.shares.par_chunks_mut(batch * n_visible));
        run(threaded, forward.zip(out), |((weight, bias), (hidden, share))| {
            share.fill(0.);
            for ((weight, bias), hidden) in
                weight.chunks(UNITS * n_visible).zip(bias.chunks(UNITS)).zip(hidden.chunks_mut(UNITS * batch))
            {
                products(weight, corrupted, n_visible, hidden);
                for (hidden, bias) in hidden.chunks_mut(batch).zip(bias) {
                    hidden.iter_mut().for_each(|y| *y = sigmoid(*y + bias));
                }
                add_products(weight, hidden, n_visible, share);
            }
        });

        reconstruct(x, &self.shares, self.visible_bias, &mut self.error, figures);
        for error in self.error.chunks(n_visible) {
            self.visible_bias.iter_mut().zip(error).for_each(|(bias, error)| *bias += rate * error);
        }

        let error = &self.error[..];
        let backward = self.weight.par_chunks_mut(group * n_visible).zip(self.bias.par_chunks_mut(group));
        run(threaded, backward.zip(self.hidden.par_chunks(group * batch)), |((weight, bias), hidden)| {
            let mut hidden_error = vec![0.; UNITS * batch];
            for ((weight, bias), hidden) in weight
                .chunks_mut(UNITS * n_visible)
                .zip(bias.chunks_mut(UNITS))
                .zip(hidden.chunks(UNITS * batch))
            {
                let hidden_error = &mut hidden_error[..hidden.len()];
                products(weight, error, n_visible, hidden_error);
                for (lh, y) in hidden_error.iter_mut().zip(hidden) {
                    *lh *= y * (1. - y);
                }
                for (bias, lh) in bias.iter_mut().zip(hidden_error.chunks(batch)) {
                    *bias += rate * lh.iter().sum::<f32>();
                }
                change(weight, (hidden_error, corrupted), (hidden, error), n_visible, (rate, self.of.keep));
            }
        });
    }
}

/// Calls `f` for each part, on several threads where that is worth it.
fn run<T: Send>(threaded: bool, parts: impl IndexedParallelIterator<Item = T>, f: impl Fn(T) + Sync + Send) {
    match threaded {
        true => parts.with_max_len(1).for_each(f),
        false => {
            let len = parts.len();
            parts.with_min_len(len.max(1)).for_each(f);
        }
    }
}

/// `out[u, m] = weight[u] · rows[m]` for up to [`UNITS`] rows of weights.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+fma", "x86_64+avx2+fma"))]
fn products(weight: &[f32], rows: &[f32], width: usize, out: &mut [f32]) {
    const FUSED: bool = fused!();
    let batch = rows.len() / width;
    let whole = weight.len() == UNITS * width;
    for (pair, m) in rows.chunks(ROWS * width).zip((0..).step_by(ROWS)) {
        if whole && pair.len() == ROWS * width {
            let mut sum = [[[0f32; LANES]; ROWS]; UNITS];
            let cut = width / LANES * LANES;
            for at in (0..cut).step_by(LANES) {
                let x: [&[f32]; ROWS] = std::array::from_fn(|b| &pair[b * width + at..][..LANES]);
                for (u, sum) in sum.iter_mut().enumerate() {
                    let w = &weight[u * width + at..][..LANES];
                    for b in 0..ROWS {
                        for l in 0..LANES {
                            sum[b][l] = fma::<f32, FUSED>(w[l], x[b][l], sum[b][l]);
                        }
                    }
                }
            }
            for u in 0..UNITS {
                for b in 0..ROWS {
                    let rest = weight[u * width + cut..][..width - cut].iter().zip(&pair[b * width + cut..]);
                    let rest: f32 = rest.map(|(w, x)| w * x).sum();
                    out[u * batch + m + b] = sum[u][b].iter().sum::<f32>() + rest;
                }
            }
        } else {
            for (u, weight) in weight.chunks(width).enumerate() {
                for (b, x) in pair.chunks(width).enumerate() {
                    let mut sum = [0f32; LANES];
                    let (w, x) = (weight.chunks(LANES), x.chunks(LANES));
                    for (w, x) in w.zip(x) {
                        for (sum, (w, x)) in sum.iter_mut().zip(w.iter().zip(x)) {
                            *sum = fma::<f32, FUSED>(*w, *x, *sum);
                        }
                    }
                    out[u * batch + m + b] = sum.iter().sum();
                }
            }
        }
    }
}

/// `out[m] += Σ_u by[u, m] weight[u]`
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+fma", "x86_64+avx2+fma"))]
fn add_products(weight: &[f32], by: &[f32], width: usize, out: &mut [f32]) {
    const FUSED: bool = fused!();
    let batch = out.len() / width;
    if let Some(weight) = split::<UNITS>(weight, width) {
        for (m, out) in out.chunks_exact_mut(width).enumerate() {
            let by: [f32; UNITS] = std::array::from_fn(|u| by[u * batch + m]);
            let [w0, w1, w2, w3] = weight;
            for ((((out, w0), w1), w2), w3) in out.iter_mut().zip(w0).zip(w1).zip(w2).zip(w3) {
                let sum = fma::<f32, FUSED>(by[0], *w0, *out);
                let sum = fma::<f32, FUSED>(by[1], *w1, sum);
                let sum = fma::<f32, FUSED>(by[2], *w2, sum);
                *out = fma::<f32, FUSED>(by[3], *w3, sum);
            }
        }
    } else {
        for (u, weight) in weight.chunks(width).enumerate() {
            for (m, out) in out.chunks_exact_mut(width).enumerate() {
                let by = by[u * batch + m];
                for (out, w) in out.iter_mut().zip(weight) {
                    *out = fma::<f32, FUSED>(by, *w, *out);
                }
            }
        }
    }
}

/// `weight[u] ← keep weight[u] + rate Σ_m (a[u, m] x[m] + b[u, m] y[m])`
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+fma", "x86_64+avx2+fma"))]
fn change(
    weight: &mut [f32],
    (a, x): (&[f32], &[f32]),
    (b, y): (&[f32], &[f32]),
    width: usize,
    (rate, keep): (f32, f32),
) {
    const FUSED: bool = fused!();
    let batch = x.len() / width;
    let units = weight.len() / width;
    let cut = if units == UNITS { width / LANES * LANES } else { 0 };
    for at in (0..cut).step_by(LANES) {
        let mut sum = [[0f32; LANES]; UNITS];
        for m in 0..batch {
            let (x, y) = (&x[m * width + at..][..LANES], &y[m * width + at..][..LANES]);
            for (u, sum) in sum.iter_mut().enumerate() {
                let (a, b) = (a[u * batch + m], b[u * batch + m]);
                for l in 0..LANES {
                    sum[l] = fma::<f32, FUSED>(b, y[l], fma::<f32, FUSED>(a, x[l], sum[l]));
                }
            }
        }
        for (u, sum) in sum.iter().enumerate() {
            for (w, sum) in weight[u * width + at..][..LANES].iter_mut().zip(sum) {
                *w = fma::<f32, FUSED>(rate, *sum, keep * *w);
            }
        }
    }
    for u in 0..units {
        for at in cut..width {
            let mut sum = 0.;
            for m in 0..batch {
                let first = fma::<f32, FUSED>(a[u * batch + m], x[m * width + at], sum);
                sum = fma::<f32, FUSED>(b[u * batch + m], y[m * width + at], first);
            }
            let w = &mut weight[u * width + at];
            *w = fma::<f32, FUSED>(rate, sum, keep * *w);
        }
    }
}

/// `LN = x − σ(Σ shares + c)`, and the figures.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+fma", "x86_64+avx2+fma"))]
fn reconstruct(x: &[f32], shares: &[f32], bias: &[f32], error: &mut [f32], figures: &mut [f64]) {
    let size = x.len();
    error.copy_from_slice(&shares[..size]);
    for share in shares.chunks_exact(size).skip(1) {
        error.iter_mut().zip(share).for_each(|(sum, share)| *sum += share);
    }
    let (mut entropy, mut squares) = (0., 0.);
    for (x, error) in x.chunks_exact(bias.len()).zip(error.chunks_exact_mut(bias.len())) {
        // A row at a time in f32: 1000 terms.
        let mut row = [[0f32; LANES]; 2];
        for ((x, error), bias) in x.chunks(LANES).zip(error.chunks_mut(LANES)).zip(bias.chunks(LANES)) {
            for (l, ((x, error), bias)) in x.iter().zip(error).zip(bias).enumerate() {
                let a = *error + bias;
                *error = x - sigmoid(a);
                row[0][l] += softplus(a) - x * a;
                row[1][l] += *error * *error;
            }
        }
        entropy += f64::from(row[0].iter().sum::<f32>());
        squares += f64::from(row[1].iter().sum::<f32>());
    }
    let (first, second) = figures.split_at_mut(figures.len() / 2);
    first[0] += entropy;
    second[0] += squares;
}

/// `N` lines, where there are so many.
#[inline(always)]
fn split<const N: usize>(x: &[f32], width: usize) -> Option<[&[f32]; N]> {
    (x.len() == N * width).then(|| std::array::from_fn(|i| &x[i * width..][..width]))
}
