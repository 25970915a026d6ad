//! The pursuit of one signal, from its correlations to its code.
use super::factor::Factor;
use super::lanes::{self, Kind, Real};
use crate::codes::pursuit::job::{Rounding, Rule};

/// The state of one signal's pursuit; its memory serves one signal after the other.
pub(super) struct Track<T, const W: usize> {
    s: usize,
    rounding: Rounding,
    nonnegative: bool,
    /// The atoms chosen so far.
    support: Vec<u32>,
    factor: Factor,
    /// The candidate of the last pass.
    next: Option<usize>,
    /// `‖y‖²`, `‖r‖²` and `ε²` in the scale of the correlations.
    energy: f64,
    error: f64,
    target: f64,
    /// `[n / W][s - 1][W]`, the directions
    basis: Vec<T>,
    /// `[n]`, what the directions leave of each atom; OLS only
    left: Vec<T>,
    /// The new atom's inner products with the directions.
    w: Vec<T>,
    shift: Vec<T>,
    /// `ρ` and the part of `z` that `α` loses, of the atom whose row is wanted
    wanted: (f64, f64),
}

impl<T: Real, const W: usize> Track<T, W> {
    /// `n` is a multiple of `W`.
    pub(super) fn new<K: Kind>(n: usize, s: usize, nonnegative: bool) -> Self {
        let zeros = |n: usize| vec![T::zero(); n];
        Self {
            s,
            rounding: Rounding::of(if K::OLS { Rule::Ols } else { Rule::Omp }, T::DTYPE),
            nonnegative,
            support: Vec::with_capacity(s),
            factor: Factor::default(),
            next: None,
            energy: 0.,
            error: 0.,
            target: 0.,
            // The last atom needs no direction.
            basis: zeros(n * (s - 1)),
            left: zeros(if K::OLS { n } else { 0 }),
            w: Vec::with_capacity(s),
            shift: Vec::with_capacity(s),
            wanted: (1., 0.),
        }
    }

    /// A new signal of squared norm `energy`, to be left when the squared error is at most
    /// `target`; `corr` times `scale` are its correlations, in the scale of the two.
    pub(super) fn start<K: Kind>(&mut self, corr: &mut [T], scale: T, energy: f64, target: f64) {
        self.support.clear();
        self.factor.clear();
        (self.energy, self.error, self.target) = (energy, energy, target);
        self.next = match self.is_over() {
            true => None,
            false => lanes::start::<T, K, W>(corr, scale),
        };
    }

    fn is_over(&self) -> bool {
        self.support.len() == self.s || self.error <= self.target
    }

    /// Takes the candidate into the support. Its row of the Gram matrix is then wanted by
    /// [`Track::absorb`]; none when the pursuit is over.
    pub(super) fn choose(&mut self, corr: &mut [T]) -> Option<usize> {
        let i = self.next.take()?;
        let alpha = corr[i].to_f64();
        if alpha.abs() <= self.rounding.correlation * self.energy.sqrt() {
            return None;
        }
        let (k, capacity) = (self.support.len(), self.s - 1);
        self.w.clear();
        if k > 0 {
            let (block, lane) = (i / W, i % W);
            let history = self.basis[block * capacity * W..].as_chunks::<W>().0;
            self.w.extend(history[..k].iter().map(|u| u[lane]));
        }
        let taken: f64 = self.w.iter().map(|w| w.to_f64() * w.to_f64()).sum();
        let pivot = 1. - taken;
        if pivot <= self.rounding.pivot {
            return None;
        }
        let rho = pivot.sqrt();
        self.support.push(i as u32);
        corr[i] = T::NAN;
        let z = match self.nonnegative {
            false => {
                let z = alpha / rho;
                self.factor.push(self.w.iter().map(|w| w.to_f64()), rho, z);
                self.error -= z * z;
                z
            }
            true => self.fit_nonnegative(alpha, rho),
        };
        if self.is_over() {
            return None;
        }
        self.wanted = (rho, z);
        Some(i)
    }

    /// Fits the support with the new atom, and returns the part of the fit along its direction;
    /// `shift` is by how much the fit along the others changes.
    fn fit_nonnegative(&mut self, alpha: f64, rho: f64) -> f64 {
        let (z, c) = self.factor.coordinates();
        let missed = self.w.iter().zip(z.iter().zip(c)).map(|(w, (z, c))| w.to_f64() * (z - c));
        let new = (alpha - missed.sum::<f64>()) / rho;
        let before: Vec<f64> = c.to_vec();
        self.factor.push(self.w.iter().map(|w| w.to_f64()), rho, new);
        self.factor.solve_nonnegative();
        let (z, c) = self.factor.coordinates();
        let square = |x: f64| x * x;
        self.error = self.energy - z.iter().map(|&z| square(z)).sum::<f64>()
            + z.iter().zip(c).map(|(z, c)| square(z - c)).sum::<f64>();
        self.shift.clear();
        self.shift.extend(before.iter().zip(c).map(|(before, c)| T::from_f64(c - before)));
        c[before.len()]
    }

    /// Follows [`Track::choose`] with the row that it asked for.
    pub(super) fn absorb<K: Kind>(&mut self, row: &[T], corr: &mut [T]) {
        let (rho, z) = self.wanted;
        let capacity = self.s - 1;
        let pivot = T::from_f64(self.rounding.pivot);
        self.next = lanes::absorb::<T, K, W>(lanes::Step {
            row,
            w: &self.w,
            scale: T::from_f64(1. / rho),
            z: T::from_f64(z),
            basis: &mut self.basis,
            capacity,
            corr,
            left: &mut self.left,
            pivot,
        });
        if self.nonnegative && self.shift.iter().any(|&shift| shift != T::zero()) {
            self.next = lanes::shift::<T, K, W>(&self.shift, &self.basis, capacity, corr, &self.left, pivot);
        }
    }

    /// The atoms with their coefficients, in the scale of the correlations and for atoms of norm 1.
    pub(super) fn code(&mut self) -> impl Iterator<Item = (usize, f64)> {
        let nonnegative = self.nonnegative;
        let x = if nonnegative { self.factor.solve_nonnegative() } else { self.factor.solve() };
        let entries = self.support.iter().zip(x).map(|(&i, &x)| (i as usize, x));
        entries.filter(move |&(_, x)| !nonnegative || x > 0.)
    }
}
