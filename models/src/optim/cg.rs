//! Nonlinear conjugate gradient by the formula of Polak and Ribière, with restarts.
//!
//! ```text
//! β = max(gₖ·(gₖ − gₖ₋₁) / gₖ₋₁·gₖ₋₁, 0)
//! pₖ = −gₖ + β pₖ₋₁                         p₀ = −g₀
//! restart: pₖ = −gₖ where |gₖ·gₖ₋₁| ≥ ν gₖ·gₖ, or where no step along pₖ was found
//! ```
//!
//! | symbol | where | shape |
//! |---|---|---|
//! | `ν` | [`ConjugateGradientConfig::restart`] | |
//! | `g`, `p` | of the [descent](super::descent) | `[n]` |
//!
//! The step satisfies the strong Wolfe conditions. The first one that is tried would lower the
//! value by as much as the last step did, were the function linear: `tₖ₋₁ gₖ₋₁·pₖ₋₁ / gₖ·pₖ`.
//!
//! Memory: four vectors beside the point, against `2m + 4` of L-BFGS. An iteration costs some
//! `40 n` FLOP beside its evaluations.
//!
//! Source: Nocedal and Wright, "Numerical Optimization", second edition, 2006: algorithm 5.4 with
//! equations 5.44 and 5.45, the restart of equation 5.52, the first step of section 3.5, equation
//! 3.59 of the search. Their `ν` is 0.1; 0.2 is that of Powell, "Restart procedures for the
//! conjugate gradient method", Mathematical Programming 12, 1977.
use super::ending::Ending;
use super::line_search::Rule;
use super::state::Past;
use crate::check::range;
use candle::Result;
use serde::{Deserialize, Serialize};

/// When a [descent](super::Descent) by conjugate gradients ends, and how it searches.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ConjugateGradientConfig {
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
    /// `c₂` of the second Wolfe condition, above `c₁` and below 1. Default 0.1: directions stay
    /// conjugate only where steps come close to the minimum along the line.
    pub curvature: f64,
    /// `ν`: the direction is against the gradient again where the cosine of two gradients in a row,
    /// times the ratio of their norms, is at least this; above 0. Default 0.2.
    pub restart: f64,
    /// Most evaluations along one direction, at least 1. Default 30.
    pub evaluations: usize,
}

impl Default for ConjugateGradientConfig {
    fn default() -> Self {
        Self {
            iterations: 1000,
            gradient_tolerance: 1e-6,
            decrease_tolerance: 0.,
            sufficient_decrease: 1e-4,
            curvature: 0.1,
            restart: 0.2,
            evaluations: 30,
        }
    }
}

impl ConjugateGradientConfig {
    /// # Errors
    /// When a field is out of its range; the message names it.
    pub fn validate(&self) -> Result<()> {
        const OP: &str = "ConjugateGradientConfig";
        self.ending().validate(OP)?;
        self.rule().validate(OP)?;
        range(OP, "restart", self.restart, "above 0", |x| x > 0.)
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

    /// The direction `−g + β p` as coefficients of the rows.
    pub(super) fn direction(&self, past: Past<'_>) -> Vec<f64> {
        let mut p = past.downhill();
        let Some(&(slot, _)) = past.state.pairs.last() else { return p };
        let (new, old, y) = (past.gradient(), past.other_gradient(), past.difference(slot));
        if past.product(new, old).abs() < self.restart * past.product(new, new) {
            // At a gradient of 0 there would have been no step.
            p[slot] = (past.product(new, y) / past.product(old, old)).max(0.);
        }
        p
    }
}

/// The first step to try, by the slope where the last step began; of that step the direction is
/// still in its row.
pub(super) fn first_step(past: Past<'_>, slope: f64) -> f64 {
    let scaled = past.state.pairs.last().map(|&(slot, step)| {
        let before = past.product(past.other_gradient(), slot);
        step * before / slope
    });
    scaled.filter(|step| step.is_finite() && *step > 0.).unwrap_or_else(|| Past::unscaled_step(slope))
}
