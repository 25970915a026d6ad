//! A support that grows atom by atom, in the inverse Cholesky form of
//! [`chandlery_ops::codes::bomp`], in f64.
use super::problem::{CORRELATION, Fit, PIVOT, Problem, back_substitute};

/// Candidates of OLS must keep this of their norm beside the support: it is divided by.
pub(super) const LEFT: f64 = 1024. * f64::EPSILON;

/// The way of one signal's pursuit; a clone goes another way.
#[derive(Clone)]
pub(super) struct Path<'a> {
    problem: &'a Problem<'a>,
    support: Vec<usize>,
    /// `L` row by row
    rows: Vec<Vec<f64>>,
    z: Vec<f64>,
    /// `u_k`, `[n]` each
    directions: Vec<Vec<f64>>,
    /// `α`
    corr: Vec<f64>,
    /// `e`
    left: Vec<f64>,
    error: f64,
}

impl<'a> Path<'a> {
    pub(super) fn new(problem: &'a Problem<'a>) -> Self {
        Self {
            problem,
            support: vec![],
            rows: vec![],
            z: vec![],
            directions: vec![],
            corr: problem.corr.to_vec(),
            left: vec![1.; problem.gram.n],
            error: problem.energy,
        }
    }

    pub(super) fn support(&self) -> &[usize] {
        &self.support
    }

    pub(super) fn corr(&self) -> &[f64] {
        &self.corr
    }

    pub(super) fn error(&self) -> f64 {
        self.error
    }

    /// Whether it has all its atoms or leaves little enough.
    pub(super) fn is_over(&self) -> bool {
        self.support.len() == self.problem.s || self.error <= self.problem.target
    }

    /// The atom whose addition leaves least, the first of equal ones; none when only rounding is
    /// left.
    pub(super) fn best_by_least_squares(&self) -> Option<usize> {
        let mut best: Option<(usize, f64)> = None;
        for (j, (alpha, left)) in self.corr.iter().zip(&self.left).enumerate() {
            let gain = if *left > LEFT { alpha * alpha / left } else { 0. };
            if gain > best.map_or(0., |(_, gain)| gain) && !self.support.contains(&j) {
                best = Some((j, gain));
            }
        }
        let (j, _) = best?;
        (self.corr[j].abs() > CORRELATION * self.problem.energy.sqrt()).then_some(j)
    }

    /// Adds an atom; `false`, and nothing happens, when it depends on the support.
    pub(super) fn add(&mut self, i: usize) -> bool {
        let mut row: Vec<f64> = self.directions.iter().map(|u| u[i]).collect();
        let pivot = 1. - row.iter().map(|w| w * w).sum::<f64>();
        if pivot <= PIVOT {
            return false;
        }
        let rho = pivot.sqrt();
        let z = self.corr[i] / rho;
        self.error -= z * z;
        self.support.push(i);
        // The last atom's direction is of no more use.
        if !self.is_over() {
            let mut u = self.problem.gram.row(i).to_vec();
            for (w, earlier) in row.iter().zip(&self.directions) {
                u.iter_mut().zip(earlier).for_each(|(u, earlier)| *u -= w * earlier);
            }
            for ((u, corr), left) in u.iter_mut().zip(&mut self.corr).zip(&mut self.left) {
                *u /= rho;
                *corr -= z * *u;
                *left -= *u * *u;
            }
            self.directions.push(u);
        }
        row.push(rho);
        self.rows.push(row);
        self.z.push(z);
        true
    }

    pub(super) fn fit(&self) -> Fit {
        Fit { atoms: self.support.clone(), x: back_substitute(&self.rows, self.z.clone()), error: self.error }
    }
}
