//! The CPU version of `kernels/images/pool_units.cu`: the same arithmetic in the same order, a line
//! of blocks at a time.
use super::{PoolShape, PoolSide};
use crate::core::draw::{RowBlocks, uniform_tile};
use crate::core::math::exp;
use crate::core::philox::{Philox, TILE};
use crate::layers::units::{Plane, store, store_low};
use multiversion::multiversion;
use rayon::prelude::*;

/// Units below which a task is not worth handing to another thread.
const GRAIN: usize = 64 * 1024;

/// What one pass reads.
#[derive(Clone, Copy)]
pub(super) struct Pass<'a> {
    pub shape: PoolShape,
    pub side: PoolSide,
    pub pre: &'a [f32],
    pub bias: &'a [f32],
    pub mean_scale: f32,
    /// None for the most probable states.
    pub philox: Option<Philox>,
    /// Where the draws of a place of blocks begin, if maps are some of more.
    pub blocks: Option<RowBlocks>,
}

/// The places to write, each empty where it is not wanted: means, their second parts, and samples.
struct Out<'a, T> {
    mean: &'a mut [T],
    mean_low: &'a mut [T],
    sample: &'a mut [T],
}

impl<'a, T> Out<'a, T> {
    fn split_at(self, at: usize) -> (Self, Self) {
        let split = |t: &'a mut [T]| t.split_at_mut(at.min(t.len()));
        let (mean, mean_rest) = split(self.mean);
        let (mean_low, low_rest) = split(self.mean_low);
        let (sample, sample_rest) = split(self.sample);
        let rest = Self { mean: mean_rest, mean_low: low_rest, sample: sample_rest };
        (Self { mean, mean_low, sample }, rest)
    }
}

/// Units of a line of blocks.
fn units_of_line(shape: PoolShape) -> usize {
    shape.pool * shape.width * shape.n_maps
}

/// Pooled units of a line of blocks.
fn pooled_of_line(shape: PoolShape) -> usize {
    shape.width / shape.pool * shape.n_maps
}

impl Pass<'_> {
    /// Computes all units; an empty slice is a plane that is not wanted.
    pub(super) fn run<T: Plane>(&self, mean: &mut [T], mean_low: &mut [T], sample: &mut [T]) {
        let lines = self.pre.len() / units_of_line(self.shape);
        self.lines(0, lines, Out { mean, mean_low, sample });
    }

    /// Lines of blocks `first..first + n`, of which `out` has the places.
    fn lines<T: Plane>(&self, first: usize, n: usize, out: Out<'_, T>) {
        if n <= 1 || n * units_of_line(self.shape) <= GRAIN {
            return run_lines(self, first, n, out);
        }
        let of_line = match self.side {
            PoolSide::Detection => units_of_line(self.shape),
            PoolSide::Pooled => pooled_of_line(self.shape),
        };
        let half = n / 2;
        let (out, rest) = out.split_at(half * of_line);
        rayon::join(|| self.lines(first, half, out), || self.lines(first + half, n - half, rest));
    }
}

/// What is known of each block of a line.
struct Blocks {
    /// The largest of 0 and the pre-activations.
    top: Vec<f32>,
    /// `Σ e^(x − top)` over the units.
    sum: Vec<f32>,
    /// The same with the state in which all are off.
    total: Vec<f32>,
    /// Uniform draws, and from then on their share of `total`.
    bar: Vec<f32>,
    /// `Σ e^(x − top)` over the units so far.
    reached: Vec<f32>,
    /// 1 where a unit is on.
    on: Vec<f32>,
    /// Means of the units of a place.
    means: Vec<f32>,
}

#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
fn run_lines<T: Plane>(pass: &Pass, first: usize, n: usize, mut out: Out<'_, T>) {
    let (of_line, pooled) = (units_of_line(pass.shape), pooled_of_line(pass.shape));
    let zeros = || vec![0.; pooled];
    let mut blocks = Blocks {
        top: zeros(),
        sum: zeros(),
        total: zeros(),
        bar: vec![0.; pooled + 2 * TILE],
        reached: zeros(),
        on: zeros(),
        means: vec![0.; pass.shape.n_maps],
    };
    for line in 0..n {
        let pre = &pass.pre[(first + line) * of_line..][..of_line];
        let len = match pass.side {
            PoolSide::Detection => of_line,
            PoolSide::Pooled => pooled,
        };
        let (now, rest) = out.split_at(len);
        out = rest;
        one_line(pass, (first + line) * pooled, pre, &mut blocks, now);
    }
}

/// Calls `f(blocks of the maps, units, x of which they are)` for the places of a line: `n_maps`
/// neighbours at a time.
#[inline(always)]
fn each_place(shape: PoolShape, mut f: impl FnMut(std::ops::Range<usize>, std::ops::Range<usize>)) {
    let PoolShape { width, n_maps, pool, .. } = shape;
    for y in 0..pool {
        for x in 0..width {
            let (block, unit) = (x / pool * n_maps, (y * width + x) * n_maps);
            f(block..block + n_maps, unit..unit + n_maps);
        }
    }
}

/// What the probabilities of the blocks of a line are made of, see [`Blocks`].
#[inline(always)]
fn totals(shape: PoolShape, bias: &[f32], pre: &[f32], top: &mut [f32], sum: &mut [f32], total: &mut [f32]) {
    top.fill(0.);
    sum.fill(0.);
    each_place(shape, |block, unit| {
        for ((top, pre), bias) in top[block].iter_mut().zip(&pre[unit]).zip(bias) {
            let x = pre + bias;
            *top = if x > *top { x } else { *top };
        }
    });
    each_place(shape, |block, unit| {
        let of_block = sum[block.clone()].iter_mut().zip(&top[block]);
        for (((sum, top), pre), bias) in of_block.zip(&pre[unit]).zip(bias) {
            *sum += exp((pre + bias) - top);
        }
    });
    for ((total, sum), top) in total.iter_mut().zip(&*sum).zip(&*top) {
        *total = sum + exp(-top);
    }
}

/// Lines of blocks of [`pool_backward_`](super::pool_backward_): `pre` becomes the derivative by
/// it.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
fn backward_lines(shape: PoolShape, pre: &mut [f32], bias: &[f32], delta: &[f32]) {
    let [mut top, mut sum, mut total] = [(); 3].map(|()| vec![0.; pooled_of_line(shape)]);
    for (pre, delta) in pre.chunks_mut(units_of_line(shape)).zip(delta.chunks(pooled_of_line(shape))) {
        totals(shape, bias, pre, &mut top, &mut sum, &mut total);
        // From here on the probability that all units of a block are off.
        for ((off, top), total) in sum.iter_mut().zip(&top).zip(&total) {
            *off = exp(-top) / total;
        }
        each_place(shape, |block, unit| {
            let of_block = top[block.clone()].iter().zip(&total[block.clone()]);
            let of_block = of_block.zip(&sum[block.clone()]).zip(&delta[block]);
            for (((((top, total), off), delta), pre), bias) in of_block.zip(&mut pre[unit]).zip(bias) {
                *pre = (exp((*pre + bias) - top) / total) * off * delta;
            }
        });
    }
}

/// All lines of [`backward_lines`], on all threads.
pub(super) fn backward(shape: PoolShape, pre: &mut [f32], bias: &[f32], delta: &[f32]) {
    let lines = (GRAIN / units_of_line(shape)).max(1);
    pre.par_chunks_mut(lines * units_of_line(shape))
        .zip(delta.par_chunks(lines * pooled_of_line(shape)))
        .for_each(|(pre, delta)| backward_lines(shape, pre, bias, delta));
}

/// The sum of each block times `share`.
pub(super) fn means(shape: PoolShape, pooled: &mut [f32], units: &[f32], share: f32) {
    let of_line = |(pooled, units): (&mut [f32], &[f32])| {
        pooled.fill(0.);
        each_place(shape, |block, unit| {
            pooled[block].iter_mut().zip(&units[unit]).for_each(|(sum, unit)| *sum += unit);
        });
        pooled.iter_mut().for_each(|sum| *sum *= share);
    };
    let lines = pooled.par_chunks_mut(pooled_of_line(shape)).zip(units.par_chunks(units_of_line(shape)));
    lines.with_min_len(GRAIN / units_of_line(shape)).for_each(of_line);
}

/// `share` times its block's to each unit.
pub(super) fn spread(shape: PoolShape, units: &mut [f32], pooled: &[f32], share: f32) {
    let of_line = |(units, pooled): (&mut [f32], &[f32])| {
        each_place(shape, |block, unit| {
            units[unit].iter_mut().zip(&pooled[block]).for_each(|(unit, pooled)| *unit = pooled * share);
        });
    };
    let lines = units.par_chunks_mut(units_of_line(shape)).zip(pooled.par_chunks(pooled_of_line(shape)));
    lines.with_min_len(GRAIN / units_of_line(shape)).for_each(of_line);
}

#[inline(always)]
fn one_line<T: Plane>(pass: &Pass, first_pooled: usize, pre: &[f32], blocks: &mut Blocks, out: Out<'_, T>) {
    let Blocks { top, sum, total, bar, reached, on, means } = blocks;
    let (shape, bias) = (pass.shape, pass.bias);
    reached.fill(0.);
    on.fill(0.);
    totals(shape, bias, pre, top, sum, total);
    let sampled = !out.sample.is_empty();
    let skipped = first_pooled % 4;
    if let Some(philox) = pass.philox.filter(|_| sampled) {
        match pass.blocks {
            None => {
                for at in (0..skipped + top.len()).step_by(TILE) {
                    bar[at..at + TILE].copy_from_slice(&uniform_tile(philox, first_pooled - skipped + at));
                }
            }
            Some(RowBlocks { by, at }) => {
                let place = first_pooled / shape.n_maps;
                for (i, bar) in bar[..top.len()].chunks_mut(shape.n_maps).enumerate() {
                    let philox = philox.skipped((by * (place + i) + at) as u64);
                    for (i, bar) in bar.chunks_mut(TILE).enumerate() {
                        let n = bar.len();
                        bar.copy_from_slice(&uniform_tile(philox, i * TILE)[..n]);
                    }
                }
            }
        }
        for (bar, total) in bar[skipped..].iter_mut().zip(&*total) {
            *bar *= total;
        }
    }
    let bar = &bar[skipped..][..top.len()];
    let detection = pass.side == PoolSide::Detection;
    if detection && !out.mean.is_empty() {
        each_place(shape, |block, unit| {
            let of_block = top[block.clone()].iter().zip(&total[block]);
            let x = pre[unit.clone()].iter().zip(bias);
            for ((mean, (top, total)), (pre, bias)) in means.iter_mut().zip(of_block).zip(x) {
                *mean = pass.mean_scale * (exp((pre + bias) - top) / total);
            }
            store(&mut out.mean[unit.clone()], means);
            if !out.mean_low.is_empty() {
                store_low(&mut out.mean_low[unit.clone()], &out.mean[unit], means);
            }
        });
    }
    if sampled {
        let drawn = pass.philox.is_some();
        each_place(shape, |block, unit| {
            for (m, (at, i)) in block.zip(unit).enumerate() {
                let x = pre[i] + bias[m];
                reached[at] += exp(x - top[at]);
                let passed = match drawn {
                    true => bar[at] < reached[at],
                    false => x == top[at] && x > 0. && !total[at].is_nan(),
                };
                let first = passed && on[at] == 0.;
                if first {
                    on[at] = 1.;
                }
                if detection {
                    out.sample[i] = T::of(if first { 1. } else { 0. });
                }
            }
        });
    }
    if !detection {
        for ((mean, sum), total) in reached.iter_mut().zip(&*sum).zip(&*total) {
            *mean = pass.mean_scale * (sum / total);
        }
        store(out.mean, reached);
        store_low(out.mean_low, out.mean, reached);
        store(out.sample, on);
    }
}
