//! The CPU version: the windows of one patch at a time are gathered in a thread's own memory and
//! multiplied by the `gemm` crate.
//!
//! Patches are shared among the threads. Downwards, patches that do not overlap are added at the
//! same time, and one group of them follows the other, so that the sums have one order on any
//! number of threads.
use super::sizes::Sizes;
use crate::core::op::In;
use crate::layers::gemm::Order;
use crate::layers::gemm::cpu::{Entries, Operands, product_alone};
use candle::{CpuStorage, Result, WithDType};
use half::{bf16, f16};
use rayon::prelude::*;

/// A number as tensors store it.
pub(super) trait Number: WithDType {
    /// What products and sums are computed in.
    type Sum: WithDType + std::ops::AddAssign;

    fn wide(self) -> Self::Sum;

    /// The numbers themselves, where they are stored as they are computed with.
    fn as_sums(from: &[Self]) -> Option<&[Self::Sum]>;
}

macro_rules! number {
    ($type:ty, $sum:ty, $wide:expr, $as_sums:expr) => {
        impl Number for $type {
            type Sum = $sum;
            fn wide(self) -> $sum {
                $wide(self)
            }
            fn as_sums(from: &[Self]) -> Option<&[$sum]> {
                $as_sums(from)
            }
        }
    };
}
number!(f32, f32, std::convert::identity, Some);
number!(f64, f64, std::convert::identity, Some);
number!(bf16, f32, bf16::to_f32, |_| None);
number!(f16, f32, f16::to_f32, |_| None);

fn zero<S: WithDType>() -> S {
    S::zero()
}

/// An operand `[parts, ..]`, each part contiguous.
#[derive(Clone, Copy)]
pub(super) struct Parts<'a, T> {
    first: &'a [T],
    second: Option<&'a [T]>,
}

impl<'a, T: Number> Parts<'a, T> {
    pub fn of(from: &In<'a, CpuStorage>) -> Result<Self> {
        let (all, layout) = (from.all::<T>()?, from.layout()?);
        let n = layout.dims()[1..].iter().product::<usize>();
        let part = |i: usize| &all[layout.start_offset() + i * layout.stride()[0]..][..n];
        Ok(Self { first: part(0), second: (layout.dims()[0] == 2).then(|| part(1)) })
    }

    /// Entries `at..at + out.len()`, both parts added.
    fn read(&self, at: usize, out: &mut [T::Sum]) {
        for (out, x) in out.iter_mut().zip(&self.first[at..]) {
            *out = x.wide();
        }
        if let Some(second) = self.second {
            for (out, x) in out.iter_mut().zip(&second[at..]) {
                *out += x.wide();
            }
        }
    }

    /// `n` entries from `at` on as numbers to multiply: where they lie, or in `scratch`.
    fn numbers<'s>(&self, at: usize, n: usize, scratch: &'s mut Vec<T::Sum>) -> &'s [T::Sum]
    where
        'a: 's,
    {
        match (T::as_sums(&self.first[at..at + n]), self.second) {
            (Some(numbers), None) => numbers,
            _ => {
                scratch.resize(n, zero());
                self.read(at, scratch);
                scratch
            }
        }
    }
}

/// The windows of patch `patch` in `rows` rows, one row below the other.
fn gather<T: Number>(x: Parts<'_, T>, sizes: &Sizes, patch: usize, out: &mut Vec<T::Sum>) {
    let grid = &sizes.grid;
    let (run, len) = (grid.run(), grid.window_len());
    out.resize(sizes.batch * len, zero());
    for (row, out) in out.chunks_exact_mut(len).enumerate() {
        let origin = row * grid.n_values() + grid.origin(patch);
        for (i, out) in out.chunks_exact_mut(run).enumerate() {
            x.read(origin + grid.run_start(i), out);
        }
    }
}

/// The hidden units of patch `patch` in `rows` rows, one row below the other.
fn gather_units<T: Number>(x: Parts<'_, T>, sizes: &Sizes, patch: usize, out: &mut Vec<T::Sum>) {
    out.resize(sizes.batch * sizes.hidden, zero());
    for (row, out) in out.chunks_exact_mut(sizes.hidden).enumerate() {
        x.read(row * sizes.n_hidden() + patch * sizes.hidden, out);
    }
}

/// `out[b, p, j] ← factor · Σ_i W_p[j, i] x[b, π_p(i)]`.
pub(super) fn up<T: Number>(
    out: &mut [T::Sum],
    x: Parts<'_, T>,
    weight: Parts<'_, T>,
    sizes: &Sizes,
    factor: f32,
) {
    let Sizes { grid, hidden, batch } = *sizes;
    let (n_hidden, len) = (sizes.n_hidden(), grid.window_len());
    let shared = Entries::of(out);
    let scratch = || (Vec::new(), Vec::new(), Vec::new());
    (0..grid.n_patches()).into_par_iter().for_each_init(scratch, |(windows, weights, result), patch| {
        gather(x, sizes, patch, windows);
        let w = weight.numbers(patch * sizes.of_patch(), sizes.of_patch(), weights);
        result.resize(batch * hidden, zero());
        product_alone(
            result,
            Operands {
                alpha: T::Sum::from_f64(factor.into()),
                ..Operands::of(
                    (windows, Order::RowMajor { line: len }),
                    (w, Order::ColumnMajor { line: len }),
                    [batch, hidden, len],
                )
            },
        );
        for (row, result) in result.chunks_exact(hidden).enumerate() {
            // SAFETY: the units of this patch in this row, within `out` by the sizes that the op
            // checked; no other task writes them.
            let units = unsafe { shared.stretch(row * n_hidden + patch * hidden, hidden) };
            units.copy_from_slice(result);
        }
    });
}

/// `out[b, u] ← factor · Σ_p Σ_j x[b, p, j] W_p[j, i]` over the windows that cover `u`.
pub(super) fn down<T: Number>(
    out: &mut [T::Sum],
    x: Parts<'_, T>,
    weight: Parts<'_, T>,
    sizes: &Sizes,
    factor: f32,
) {
    let Sizes { grid, hidden, batch } = *sizes;
    let (len, run) = (grid.window_len(), grid.run());
    out.fill(zero());
    let shared = Entries::of(out);
    let scratch = || (Vec::new(), Vec::new(), Vec::new());
    for group in groups(sizes) {
        group.into_par_iter().for_each_init(scratch, |(units, weights, windows), patch| {
            gather_units(x, sizes, patch, units);
            let w = weight.numbers(patch * sizes.of_patch(), sizes.of_patch(), weights);
            windows.resize(batch * len, zero());
            product_alone(
                windows,
                Operands {
                    alpha: T::Sum::from_f64(factor.into()),
                    ..Operands::of(
                        (units, Order::RowMajor { line: hidden }),
                        (w, Order::RowMajor { line: len }),
                        [batch, len, hidden],
                    )
                },
            );
            for (row, window) in windows.chunks_exact(len).enumerate() {
                let origin = row * grid.n_values() + grid.origin(patch);
                for (i, from) in window.chunks_exact(run).enumerate() {
                    // SAFETY: a run of the window of this patch, within `out` by the sizes; the
                    // windows of a group do not overlap.
                    let to = unsafe { shared.stretch(origin + grid.run_start(i), run) };
                    to.iter_mut().zip(from).for_each(|(to, &from)| *to += from);
                }
            }
        });
    }
}

/// The patches in groups whose windows do not overlap.
fn groups(sizes: &Sizes) -> Vec<Vec<usize>> {
    let (grid, apart) = (&sizes.grid, sizes.grid.overlap());
    let first = (0..apart).flat_map(|y| (0..apart).map(move |x| (y, x)));
    let group = |(top, left): (usize, usize)| {
        let across = |y: usize| (left..grid.across()).step_by(apart).map(move |x| y * grid.across() + x);
        (top..grid.down()).step_by(apart).flat_map(across).collect()
    };
    first.map(group).collect()
}

/// `out_p ← alpha · h_pᵀ v_p + beta · out_p`.
pub(super) fn gradient<T: Number>(
    out: &mut [T::Sum],
    hidden: Parts<'_, T>,
    visible: Parts<'_, T>,
    sizes: &Sizes,
    factors: (f64, f64),
) {
    let factors = (T::Sum::from_f64(factors.0), T::Sum::from_f64(factors.1));
    let patches = out.par_chunks_exact_mut(sizes.of_patch()).enumerate();
    patches.for_each_init(Scratch::default, |scratch, (patch, out)| {
        of_patch(out, hidden, visible, sizes, patch, factors, scratch);
    });
}

/// `V_p ← beta · V_p + alpha · h_pᵀ v_p`, and then `then(W_p, V_p)` while they are still in the
/// cache.
pub(super) fn step(
    w: &mut [f32],
    v: &mut [f32],
    hidden: Parts<'_, f32>,
    visible: Parts<'_, f32>,
    sizes: &Sizes,
    factors: (f32, f32),
    then: impl Fn(&mut [f32], &mut [f32]) + Sync,
) {
    let n = sizes.of_patch();
    let patches = w.par_chunks_exact_mut(n).zip(v.par_chunks_exact_mut(n)).enumerate();
    patches.for_each_init(Scratch::default, |scratch, (patch, (w, v))| {
        of_patch(v, hidden, visible, sizes, patch, factors, scratch);
        then(w, v);
    });
}

/// What a thread gathers of a patch.
struct Scratch<S> {
    windows: Vec<S>,
    units: Vec<S>,
}

impl<S> Default for Scratch<S> {
    fn default() -> Self {
        Self { windows: Vec::new(), units: Vec::new() }
    }
}

/// The gradient of one patch.
fn of_patch<T: Number>(
    out: &mut [T::Sum],
    hidden: Parts<'_, T>,
    visible: Parts<'_, T>,
    sizes: &Sizes,
    patch: usize,
    (alpha, beta): (T::Sum, T::Sum),
    Scratch { windows, units }: &mut Scratch<T::Sum>,
) {
    let (len, per_patch) = (sizes.grid.window_len(), sizes.hidden);
    gather(visible, sizes, patch, windows);
    gather_units(hidden, sizes, patch, units);
    product_alone(
        out,
        Operands {
            alpha,
            beta,
            ..Operands::of(
                (units, Order::ColumnMajor { line: per_patch }),
                (windows, Order::RowMajor { line: len }),
                [per_patch, len, sizes.batch],
            )
        },
    );
}
