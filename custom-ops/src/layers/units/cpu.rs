//! The CPU version of `kernels/layers/units.cu`: the same arithmetic in the same order, in tiles of
//! 128 elements.
#![expect(clippy::needless_range_loop, reason = "an element is an index into several arrays of one length")]

use super::Unit;
use crate::core::draw::{normal_tile, uniform_tile};
use crate::core::math::sigmoid;
use crate::core::philox::{Philox, TILE};
use half::{bf16, f16};
use multiversion::multiversion;

/// Elements below which a task is not worth handing to another thread: 10 to 50 µs of work with
/// vectors of eight numbers, half of it with sixteen, and waking one costs 10.
pub(super) const GRAIN: usize = 128 * TILE;

/// A type that planes are stored in.
pub(crate) trait Plane: Copy + Send {
    /// Rounds to nearest, ties to even.
    fn of(x: f32) -> Self;
    /// What it stands for.
    fn wide(self) -> f32;
}

impl Plane for f32 {
    #[inline(always)]
    fn of(x: f32) -> Self {
        x
    }
    #[inline(always)]
    fn wide(self) -> f32 {
        self
    }
}

impl Plane for bf16 {
    #[inline(always)]
    fn of(x: f32) -> Self {
        bf16::from_f32(x)
    }
    #[inline(always)]
    fn wide(self) -> f32 {
        self.to_f32()
    }
}

impl Plane for f16 {
    #[inline(always)]
    fn of(x: f32) -> Self {
        f16::from_f32(x)
    }
    #[inline(always)]
    fn wide(self) -> f32 {
        self.to_f32()
    }
}

/// A plane and the one for its second part; each empty where it is not wanted.
type Parts<'a, T> = [&'a mut [T]; 2];

pub(super) fn split_at<T>([high, low]: Parts<'_, T>, at: usize) -> (Parts<'_, T>, Parts<'_, T>) {
    let (high, high_rest) = high.split_at_mut(at.min(high.len()));
    let (low, low_rest) = low.split_at_mut(at.min(low.len()));
    ([high, low], [high_rest, low_rest])
}

/// What one pass reads; element `e` is row `e / n_units`, unit `e % n_units`.
#[derive(Clone, Copy)]
pub(super) struct Pass<'a> {
    pub unit: Unit,
    pub pre: &'a [f32],
    pub bias: &'a [f32],
    pub std: Option<&'a [f32]>,
    pub mean_scale: f32,
    pub philox: Option<Philox>,
}

impl Pass<'_> {
    /// Computes elements `first..first + n`, of which `mean` and `sample` are the places to write,
    /// and those of their second parts; an empty one is a plane that is not wanted. `first` is a
    /// multiple of [`TILE`].
    pub(super) fn run<T: Plane>(&self, first: usize, n: usize, mean: Parts<T>, sample: Parts<T>) {
        if n <= GRAIN {
            return run_tiles(self, first, n, mean, sample);
        }
        let half = (n / 2).next_multiple_of(TILE);
        let (mean, mean_rest) = split_at(mean, half);
        let (sample, sample_rest) = split_at(sample, half);
        rayon::join(
            || self.run(first, half, mean, sample),
            || self.run(first + half, n - half, mean_rest, sample_rest),
        );
    }
}

#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
fn run_tiles<T: Plane>(pass: &Pass, first: usize, n: usize, mean: Parts<T>, sample: Parts<T>) {
    let ([mean, mean_low], [sample, sample_low]) = (mean, sample);
    let mut tile = Tile { x: [0.; TILE], mean: [0.; TILE], sample: [0.; TILE] };
    for at in (0..n).step_by(TILE) {
        let len = TILE.min(n - at);
        tile.load(pass, first + at, len);
        tile.compute_mean(pass.unit);
        if !mean.is_empty() {
            // Draws take the mean as it is.
            let scaled = tile.mean.map(|mean| pass.mean_scale * mean);
            store(&mut mean[at..at + len], &scaled);
            if !mean_low.is_empty() {
                store_low(&mut mean_low[at..at + len], &mean[at..at + len], &scaled);
            }
        }
        if !sample.is_empty() {
            tile.draw(pass, first + at, len);
            store(&mut sample[at..at + len], &tile.sample);
        }
        // 0 and 1 are exact.
        if !sample_low.is_empty() && pass.unit != Unit::Bernoulli {
            store_low(&mut sample_low[at..at + len], &sample[at..at + len], &tile.sample);
        }
    }
}

/// Rounds as many of `x` as fit to `out`.
#[inline(always)]
pub(crate) fn store<T: Plane>(out: &mut [T], x: &[f32]) {
    for (out, x) in out.iter_mut().zip(x) {
        *out = T::of(*x);
    }
}

/// What rounding took from `x` when `high` was stored.
#[inline(always)]
pub(crate) fn store_low<T: Plane>(out: &mut [T], high: &[T], x: &[f32]) {
    for ((out, high), x) in out.iter_mut().zip(high).zip(x) {
        *out = T::of(x - high.wide());
    }
}

/// A short stretch of elements on its way through the pass. The loops run over whole tiles, whose
/// length the compiler knows; what lies beyond the last element is computed and never stored.
struct Tile {
    /// Pre-activations with the bias.
    x: [f32; TILE],
    mean: [f32; TILE],
    sample: [f32; TILE],
}

impl Tile {
    #[inline(always)]
    fn load(&mut self, pass: &Pass, at: usize, len: usize) {
        along_units(at, len, pass.bias, |i, bias| {
            let pre = &pass.pre[at + i..at + i + bias.len()];
            for ((x, pre), bias) in self.x[i..].iter_mut().zip(pre).zip(bias) {
                *x = pre + bias;
            }
        });
    }

    #[inline(always)]
    fn compute_mean(&mut self, unit: Unit) {
        match unit {
            Unit::Bernoulli => {
                for i in 0..TILE {
                    self.mean[i] = sigmoid(self.x[i]);
                }
            }
            Unit::Gaussian => self.mean = self.x,
            Unit::Rectified => {
                for i in 0..TILE {
                    self.mean[i] = rectify(self.x[i]);
                }
            }
        }
    }

    #[inline(always)]
    fn draw(&mut self, pass: &Pass, at: usize, len: usize) {
        match (pass.unit, pass.philox) {
            (Unit::Bernoulli, philox) => {
                // Without draws the more probable state: 1 above one half.
                let u = match philox {
                    Some(philox) => uniform_tile(philox, at),
                    None => [0.5; TILE],
                };
                for i in 0..TILE {
                    self.sample[i] = if u[i] < self.mean[i] { 1. } else { 0. };
                }
            }
            (_, None) => self.sample = self.mean,
            (Unit::Gaussian, Some(philox)) => {
                let mut noise = normal_tile(philox, at);
                if let Some(std) = pass.std {
                    along_units(at, len, std, |i, std| {
                        for (noise, std) in noise[i..].iter_mut().zip(std) {
                            *noise *= std;
                        }
                    });
                }
                for i in 0..TILE {
                    self.sample[i] = self.x[i] + noise[i];
                }
            }
            (Unit::Rectified, Some(philox)) => {
                let noise = normal_tile(philox, at);
                for i in 0..TILE {
                    self.sample[i] = rectify(self.x[i] + sigmoid(self.x[i]).sqrt() * noise[i]);
                }
            }
        }
    }
}

/// `max(0, x)` with +0 for every zero, and a NaN for a NaN.
#[inline(always)]
fn rectify(x: f32) -> f32 {
    if x <= 0. { 0. } else { x }
}

/// Calls `f(i, part)` for each stretch of elements `at + i..` that meets `part` of the units'
/// parameters.
#[inline(always)]
fn along_units(at: usize, len: usize, of_units: &[f32], mut f: impl FnMut(usize, &[f32])) {
    let mut unit = at % of_units.len();
    let mut i = 0;
    while i < len {
        let n = (of_units.len() - unit).min(len - i);
        f(i, &of_units[unit..unit + n]);
        i += n;
        unit = 0;
    }
}
