//! Solutions in f32 that problems in f64 start from: twice as many lanes, and half of the memory.
use super::rows::AllRows;
use super::signal::Signal;
use super::subset::Subset;
use super::{Problem, Row, scaled};
use crate::codes::lasso::{Lasso, LassoMethod, LassoOptions};
use crate::core::real::{Real, peak};
use candle::{DType, Result};

/// A gap that f32 reaches in most problems.
const GAP: f64 = 1e-5;
/// The width of a block of atoms.
const W: usize = 64;

/// The problems in f32.
pub(super) struct Rough {
    problem: Problem<f32>,
    gram: Vec<f32>,
    options: LassoOptions,
}

/// What a thread keeps from signal to signal.
pub(super) struct Solver<'a> {
    signal: Signal<'a, f32, AllRows<'a, f32>>,
    subset: Subset<f32, W>,
    options: &'a LassoOptions,
    a: Vec<f32>,
    c: Vec<f32>,
}

fn halved<T: Real>(x: &[T], to: &mut Vec<f32>) {
    to.clear();
    to.extend(x.iter().map(|x| x.to_f64() as f32));
}

impl Rough {
    /// Nothing where f32 would not help, or does not have the range.
    pub(super) fn new<T: Real>(lasso: &Lasso, gram: &[T], penalties: &[T]) -> Result<Option<Self>> {
        let options = LassoOptions { tolerance: lasso.options.tolerance.max(GAP), ..lasso.options };
        if lasso.dtype != DType::F64 || options.method != LassoMethod::ActiveSet {
            return Ok(None);
        }
        let [mut in_f32, mut beta] = [const { vec![] }; 2];
        halved(gram, &mut in_f32);
        halved(penalties, &mut beta);
        if !(peak(&in_f32).1 && peak(&beta).1) {
            return Ok(None);
        }
        let problem = Problem::new::<W>(&in_f32, &beta, lasso.n, "")?;
        let gram = scaled(&problem, &in_f32);
        Ok(Some(Self { problem, gram, options }))
    }

    pub(super) fn solver(&self) -> Solver<'_> {
        let gram = AllRows { entries: &self.gram, stride: self.problem.padded };
        let signal = Signal::new(&self.problem, gram);
        Solver { signal, subset: Subset::new(self.problem.n), options: &self.options, a: vec![], c: vec![] }
    }
}

impl Solver<'_> {
    /// Writes a solution to the coefficients of the row, and returns the updates made; nothing
    /// where numbers are beyond the range of f32.
    pub(super) fn solve<T: Real>(&mut self, row: &mut Row<'_, T>) -> Option<u32> {
        let Self { signal, subset, options, a, c } = self;
        halved(row.c, c);
        match options.from_zeros {
            true => a.resize(c.len(), 0.),
            false => halved(row.a, a),
        }
        let (mut gap, mut updates) = (0., 0);
        let rough = Row { row: row.row, a, c, energy: row.energy, gap: &mut gap, updates: &mut updates };
        rough.solve::<_, W>(signal, subset, options, 0).ok()?;
        if !peak(a).1 {
            return None;
        }
        row.a.iter_mut().zip(a).for_each(|(to, a)| *to = T::from_f64(f64::from(*a)));
        Some(updates)
    }
}
