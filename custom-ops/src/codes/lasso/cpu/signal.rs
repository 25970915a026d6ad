//! One signal: its coefficients, its correlations, and the gap.
use super::super::OP;
use super::Problem;
use super::lanes::{Rows, largest, subtract_rows, subtract_rows_in_f64};
use crate::core::real::{Real, peak};
use candle::Result;

/// The state of a signal, in coordinates that give atoms length 1; its memory serves one signal
/// after the other.
pub(super) struct Signal<'a, T, G> {
    pub problem: &'a Problem<T>,
    pub gram: G,
    /// `ε`
    energy: f64,
    /// `ĉ`, `q̂` and `â`, `[padded]`
    pub c: Vec<T>,
    pub q: Vec<T>,
    pub a: Vec<T>,
    /// The atoms with `â ≠ 0` in order, as of the last [`refresh`](Self::refresh).
    pub support: Vec<u32>,
    /// Where the rows of the support are, and its coefficients.
    places: Vec<u32>,
    values: Vec<T>,
    /// Whether `q̂` is summed in f64.
    is_exact: bool,
}

/// `P`, and the relative gap.
#[derive(Debug, Clone, Copy)]
pub(in crate::codes::lasso) struct Certificate {
    pub objective: f64,
    pub gap: f64,
}

/// What the objective and the gap are made of.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::codes::lasso) struct Sums {
    /// `ε`, `c·a`, `q·a` and `Σ βⱼ |aⱼ|`
    pub energy: f64,
    pub ca: f64,
    pub qa: f64,
    pub absolute: f64,
    /// The largest `|qⱼ| / βⱼ` of the atoms with a penalty.
    pub excess: f64,
    /// The largest `|qⱼ| / √Gⱼⱼ` of the others.
    pub unpenalised: f64,
}

impl Sums {
    /// The objective and the gap by the formulas of the [op](super::super), for numbers of this
    /// precision.
    pub(in crate::codes::lasso) fn certificate(self, epsilon: f64) -> Certificate {
        let Self { energy, ca, qa, absolute, excess, unpenalised } = self;
        // Comparisons are written so that a NaN stays.
        let left = energy - ca - qa;
        let left = if left < 0. { 0. } else { left };
        let objective = 0.5 * left + absolute;
        let s = if excess > 1. { 1. / excess } else { 1. };
        let dual = s * (energy - ca) - 0.5 * s * s * left;
        let unpenalised = if energy > 0. { unpenalised / energy.sqrt() } else { 0. };
        let gap = match objective <= 16. * epsilon * energy {
            true => unpenalised,
            false if objective.is_finite() && dual.is_finite() => {
                ((objective - dual) / objective).max(unpenalised).max(0.)
            }
            false => f64::NAN,
        };
        Certificate { objective, gap }
    }
}

impl<'a, T: Real, G: Rows<T>> Signal<'a, T, G> {
    pub(super) fn new(problem: &'a Problem<T>, gram: G) -> Self {
        let zeros = || vec![T::zero(); problem.padded];
        let (c, q, a) = (zeros(), zeros(), zeros());
        let (support, places, values) = (vec![], vec![], vec![]);
        Self { problem, gram, energy: 0., c, q, a, support, places, values, is_exact: false }
    }

    /// Takes up the signal of row `row` with its start `a`, or zeros, correlations `c` and energy.
    pub(super) fn start(
        &mut self,
        row: usize,
        a: Option<&[T]>,
        c: &[T],
        energy: f64,
        nonnegative: bool,
    ) -> Result<()> {
        for (name, x) in [("activations", a.unwrap_or_default()), ("correlations", c)] {
            if !peak(x).1 {
                candle::bail!("{OP}: {name} must be finite, got NaN or infinity in row {row}")
            }
        }
        if !(energy.is_finite() && energy >= 0.) {
            candle::bail!("{OP}: energies must be finite numbers of at least 0, got {energy} for row {row}")
        }
        (self.energy, self.is_exact) = (energy, false);
        let inverse = &self.problem.inverse;
        self.c.iter_mut().zip(c).zip(inverse).for_each(|((to, &c), &by)| *to = c * by);
        match a {
            None => self.a.fill(T::zero()),
            Some(a) => self.a.iter_mut().zip(a).zip(inverse).for_each(|((to, &a), &by)| {
                let is_used = a != T::zero() && by > T::zero() && !(nonnegative && a < T::zero());
                *to = if is_used { a / by } else { T::zero() };
            }),
        }
        Ok(())
    }

    /// The coefficients of the atoms as given.
    pub(super) fn finish(&self, a: &mut [T]) {
        a.iter_mut().zip(&self.a).zip(&self.problem.inverse).for_each(|((to, &a), &by)| *to = a * by);
    }

    /// Below this a step of a coordinate is not worth taking for a gap of `tolerance`, or is
    /// rounding error.
    pub(super) fn least_step(&self, tolerance: f64) -> T {
        let unit = match self.problem.least_beta {
            0. => self.energy.sqrt(),
            beta => beta,
        };
        T::from_f64((0.25 * tolerance * unit).max(4. * T::EPSILON * self.energy.sqrt()))
    }

    /// Finds the support among `atoms` and computes `q̂` anew, without the rounding errors of the
    /// updates.
    pub(super) fn refresh<const W: usize>(&mut self, atoms: impl Iterator<Item = u32>) {
        self.support.clear();
        self.places.clear();
        self.values.clear();
        for j in atoms {
            let a = self.a[j as usize];
            if a != T::zero() {
                self.support.push(j);
                self.places.push(self.gram.place(j as usize) as u32);
                self.values.push(a);
            }
        }
        let Self { gram, c, q, places, values, .. } = self;
        let subtract = if self.is_exact { subtract_rows_in_f64::<T, W> } else { subtract_rows::<T, W> };
        subtract(q, c, gram.entries(), gram.stride(), places, values);
    }

    /// The objective and the gap by `q̂`; see the formulas of the [op](super::super).
    pub(super) fn certificate<const POSITIVE: bool, const W: usize>(&self) -> Certificate {
        let (mut ca, mut qa, mut absolute) = (0., 0., 0.);
        for (j, &a) in self.support.iter().map(|&j| (j as usize, &self.a[j as usize])) {
            let a = a.to_f64();
            ca += self.c[j].to_f64() * a;
            qa += self.q[j].to_f64() * a;
            absolute += self.problem.beta[j].to_f64() * a.abs();
        }
        let energy = self.energy;
        let excess = largest::<T, POSITIVE, W>(&self.q, &self.problem.scale).to_f64();
        let unpenalised = match self.problem.free.as_slice() {
            [] => 0.,
            free => largest::<T, POSITIVE, W>(&self.q, free).to_f64(),
        };
        Sums { energy, ca, qa, absolute, excess, unpenalised }.certificate(T::EPSILON)
    }
}

/// Whether a solver still gets nearer to the minimum, or sees rounding errors only.
pub(super) struct Progress {
    best: Certificate,
    idle: usize,
    /// Certificates in a row that may be without progress.
    patience: usize,
}

impl Progress {
    pub(super) fn new(first: Certificate, patience: usize) -> Self {
        Self { best: first, idle: 0, patience }
    }

    /// Takes note of the next certificate of the signal; true where the last ones were no better
    /// than those before. Sums in f64 are what is tried first then.
    pub(super) fn has_stopped<T: Real, G>(
        &mut self,
        now: Certificate,
        signal: &mut Signal<'_, T, G>,
    ) -> bool {
        let is_better =
            now.gap < 0.9 * self.best.gap || now.objective < self.best.objective * (1. - 4. * T::EPSILON);
        self.idle = if is_better { 0 } else { self.idle + 1 };
        self.best.gap = self.best.gap.min(now.gap);
        self.best.objective = self.best.objective.min(now.objective);
        if self.idle <= self.patience {
            return false;
        }
        self.idle = 0;
        std::mem::replace(&mut signal.is_exact, true)
    }
}
