//! Solutions in f32 that problems in f64 start from: twice as many lanes, and half of the memory.
use super::rows::AllRows;
use super::signal::Signal;
use super::subset::Subset;
use super::{Problem, Row};
use crate::codes::lasso::{Lasso, LassoMethod, LassoOptions};
use crate::core::real::{Real, peak};
use candle::{DType, Result};

/// A gap that f32 reaches in most problems.
const GAP: f64 = 1e-5;
/// The width of a block of atoms.
const W: usize = 64;

/// The problems in f32, with atoms of length 1 and a largest penalty near 1.
pub(super) struct Rough {
    problem: Problem<f32>,
    /// `Ĝ`, `[n, padded]`
    gram: Vec<f32>,
    /// What penalties and signals are multiplied by: a power of two, which changes no mantissa.
    scale: f64,
    options: LassoOptions,
}

/// What a thread keeps from signal to signal.
pub(super) struct Solver<'a, T> {
    signal: Signal<'a, f32, AllRows<'a, f32>>,
    subset: Subset<f32, W>,
    rough: &'a Rough,
    /// `1 / wⱼ`
    inverse: &'a [T],
    a: Vec<f32>,
    c: Vec<f32>,
}

impl Rough {
    /// Of the scaled problem and its `Ĝ`, `[n, padded]`; nothing where f32 would not help.
    pub(super) fn new<T: Real>(lasso: &Lasso, problem: &Problem<T>, gram: &[T]) -> Result<Option<Self>> {
        let (n, options) = (problem.n, lasso.options);
        let is_zero = |j: usize| problem.inverse[j] <= T::zero();
        let beta = |j: usize| if is_zero(j) { 0. } else { problem.beta[j].to_f64() };
        let largest = (0..n).map(beta).fold(0., f64::max);
        if lasso.dtype != DType::F64 || options.method != LassoMethod::ActiveSet || largest <= 0. {
            return Ok(None);
        }
        let scale = (-largest.log2().round()).clamp(-1000., 1000.).exp2();
        let beta: Vec<f32> = (0..n).map(|j| (beta(j) * scale) as f32).collect();
        let rough = Problem::of_squares::<W>(|j| if is_zero(j) { 0. } else { 1. }, &beta)?;
        let mut narrow = vec![0f32; n * rough.padded];
        let rows = narrow.chunks_exact_mut(rough.padded).zip(gram.chunks_exact(problem.padded));
        rows.for_each(|(to, row)| to.iter_mut().zip(row).for_each(|(to, g)| *to = g.to_f64() as f32));
        let options = LassoOptions { tolerance: options.tolerance.max(GAP), from_zeros: true, ..options };
        Ok(Some(Self { problem: rough, gram: narrow, scale, options }))
    }

    pub(super) fn solver<'a, T>(&'a self, inverse: &'a [T]) -> Solver<'a, T> {
        let gram = AllRows { entries: &self.gram, stride: self.problem.padded };
        let signal = Signal::new(&self.problem, gram);
        let n = self.problem.n;
        Solver { signal, subset: Subset::new(n), rough: self, inverse, a: vec![0.; n], c: vec![0.; n] }
    }
}

impl<T: Real> Solver<'_, T> {
    /// Writes a solution to the coefficients of the row, and returns the updates made; nothing
    /// where the row has a start of its own, or numbers are beyond the range of f32.
    pub(super) fn solve(&mut self, row: &mut Row<'_, T>, from_zeros: bool) -> Option<u32> {
        let Self { signal, subset, rough, inverse, a, c } = self;
        if !from_zeros && row.a.iter().any(|&a| a != T::zero()) {
            return None;
        }
        let scale = rough.scale;
        for ((c, of), inverse) in c.iter_mut().zip(row.c).zip(*inverse) {
            *c = (of.to_f64() * inverse.to_f64() * scale) as f32;
        }
        let energy = row.energy * scale * scale;
        let (mut gap, mut updates) = (0., 0);
        let of_row = Row { row: row.row, a, c, energy, gap: &mut gap, updates: &mut updates };
        of_row.solve::<_, W>(signal, subset, &rough.options, 0).ok()?;
        if !peak(a).1 {
            return None;
        }
        for ((to, &a), inverse) in row.a.iter_mut().zip(&*a).zip(*inverse) {
            *to = T::from_f64(f64::from(a) / scale) * *inverse;
        }
        Some(updates)
    }
}
