//! L-BFGS: a quasi-Newton method that keeps the last few steps in place of a matrix.
//!
//! ```text
//! sᵢ = xᵢ₊₁ − xᵢ,   yᵢ = gᵢ₊₁ − gᵢ                        the last m pairs
//! p = −H g,         H from γ I,  γ = s·y / y·y            by the two loops over the pairs
//! ```
//!
//! | symbol | where | shape |
//! |---|---|---|
//! | `m` | [`LbfgsConfig::history`] | |
//! | `g`, `p` | of the [descent](super::descent) | `[n]` |
//!
//! The step satisfies the strong Wolfe conditions, and a step of length 1 is tried first. The two
//! loops run over coefficients of the rows that the descent keeps, with inner products that are all
//! known. An iteration costs `16 (m + 2) n` FLOP beside its evaluations.
//!
//! Sources: Nocedal, "Updating quasi-Newton matrices with limited storage", Mathematics of
//! Computation 35, 1980; Nocedal and Wright, "Numerical Optimization", second edition, 2006,
//! algorithm 7.5; the loops over coefficients are those of Chen, Wang and Zhou, "Large-scale L-BFGS
//! using MapReduce", NIPS 2014.
use super::ending::Ending;
use super::line_search::Rule;
use super::state::Past;
use crate::check::at_least_one;
use candle::Result;
use serde::{Deserialize, Serialize};

/// When a [descent](super::Descent) by L-BFGS ends, and how it searches.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LbfgsConfig {
    /// Pairs of steps and differences of gradients that are kept, at least 1. Default 10; more help
    /// little beyond 30.
    pub history: usize,
    /// Most iterations, at least 1. Default 1000.
    pub iterations: usize,
    /// The run has converged when the Euclidean norm of the gradient is at most this; at least 0.
    /// Default 1e-6.
    pub gradient_tolerance: f64,
    /// The run has converged when an iteration lowers `f` by at most this share of `max(|f|, 1)`;
    /// at least 0, and 0 for never. Default 0.
    pub decrease_tolerance: f64,
    /// `c₁` of the first Wolfe condition, in (0, 0.5). Default 1e-4.
    pub sufficient_decrease: f64,
    /// `c₂` of the second Wolfe condition, above `c₁` and below 1. Default 0.9.
    pub curvature: f64,
    /// Most evaluations along one direction, at least 1. Default 30.
    pub evaluations: usize,
}

impl Default for LbfgsConfig {
    fn default() -> Self {
        Self {
            history: 10,
            iterations: 1000,
            gradient_tolerance: 1e-6,
            decrease_tolerance: 0.,
            sufficient_decrease: 1e-4,
            curvature: 0.9,
            evaluations: 30,
        }
    }
}

impl LbfgsConfig {
    /// # Errors
    /// When a field is out of its range; the message names it.
    pub fn validate(&self) -> Result<()> {
        const OP: &str = "LbfgsConfig";
        at_least_one(OP, "history", self.history)?;
        self.ending().validate(OP)?;
        self.rule().validate(OP)
    }

    pub(super) fn ending(&self) -> Ending {
        Ending {
            iterations: self.iterations,
            gradient_tolerance: self.gradient_tolerance,
            decrease_tolerance: self.decrease_tolerance,
        }
    }

    pub(super) fn rule(&self) -> Rule {
        Rule { decrease: self.sufficient_decrease, curvature: self.curvature, evaluations: self.evaluations }
    }
}

/// The direction `−H g` as coefficients of the rows.
pub(super) fn direction(past: Past<'_>) -> Vec<f64> {
    let mut q = vec![0.; past.count()];
    if let Some(of_gradient) = q.get_mut(past.gradient()) {
        *of_gradient = 1.;
    }
    // s = step · p; s·y of a pair is above 0, by `keeps`.
    let scaled =
        |&(slot, step): &(usize, f64)| (slot, step, step * past.product(slot, past.difference(slot)));
    let pairs: Vec<(usize, f64, f64)> = past.state.pairs.iter().map(scaled).collect();
    let mut taken = vec![0.; pairs.len()];
    for (taken, &(slot, step, curvature)) in taken.iter_mut().zip(&pairs).rev() {
        *taken = step * past.along(&q, slot) / curvature;
        q[past.difference(slot)] -= *taken;
    }
    if let Some(&(slot, _, curvature)) = pairs.last() {
        let y = past.difference(slot);
        let scale = curvature / past.product(y, y);
        q.iter_mut().for_each(|q| *q *= scale);
    }
    for (taken, &(slot, step, curvature)) in taken.iter().zip(&pairs) {
        let given = past.along(&q, past.difference(slot)) / curvature;
        q[slot] += step * (taken - given);
    }
    q.iter_mut().for_each(|q| *q = -*q);
    q
}

/// The first step to try. The first one of a run has no scale to go by.
pub(super) fn first_step(past: Past<'_>, slope: f64) -> f64 {
    if past.state.pairs.is_empty() { Past::unscaled_step(slope) } else { 1. }
}

/// Whether the pair of an accepted step is of use. Rounding alone can make the curvature vanish:
/// the second Wolfe condition gives it its sign.
pub(super) fn keeps(past: Past<'_>, step: f64) -> bool {
    let (next, y) = (past.state.next, past.difference(past.state.next));
    step * past.product(next, y) > f64::EPSILON * past.product(y, y)
}
