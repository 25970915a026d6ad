//! Batch gradient descent: steps against the gradient of the whole function.
//!
//! ```text
//! p = −g
//! t = α                                                   fixed rate
//! t = the first of t₀, t₀/2, t₀/4, … with f(x + t p) ≤ f(x) − c₁ t g·g      backtracking; t₀ = 2 tₖ₋₁
//! ```
//!
//! | symbol | where | shape |
//! |---|---|---|
//! | `α` | [`GradientDescentConfig::rate`] | |
//! | `c₁` | [`GradientDescentConfig::sufficient_decrease`] | |
//! | `g`, `p` | of the [descent](super::descent) | `[n]` |
//!
//! With a fixed rate an iteration is one evaluation, and the value may rise; a rate that is too
//! large ends in a value that is not finite. Backtracking begins at twice the last step, so that
//! the step can grow again.
//!
//! Source: Nocedal and Wright, "Numerical Optimization", second edition, 2006, algorithm 3.1; the
//! fixed rate is that of Ng, "Sparse autoencoder", CS294A lecture notes, 2011, section 2.
use super::ending::Ending;
use super::state::Past;
use crate::check::{at_least_one, range};
use candle::Result;
use serde::{Deserialize, Serialize};

/// When a [descent](super::Descent) along the gradient ends, and how far its steps go.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GradientDescentConfig {
    /// Most iterations, at least 1. Default 1000.
    pub iterations: usize,
    /// The run has converged when the Euclidean norm of the gradient is at most this; at least 0.
    /// Default 1e-6.
    pub gradient_tolerance: f64,
    /// The run has converged when an iteration lowers `f` by at most this share of `max(|f|, 1)`;
    /// at least 0, and 0 for never. Default 0.
    pub decrease_tolerance: f64,
    /// `α`, the length of every step over that of the gradient, above 0. Default none: steps are
    /// found by backtracking.
    pub rate: Option<f64>,
    /// `c₁` of backtracking, in (0, 0.5). Default 1e-4.
    pub sufficient_decrease: f64,
    /// Most evaluations along one direction, at least 1. Default 30.
    pub evaluations: usize,
}

impl Default for GradientDescentConfig {
    fn default() -> Self {
        Self {
            iterations: 1000,
            gradient_tolerance: 1e-6,
            decrease_tolerance: 0.,
            rate: None,
            sufficient_decrease: 1e-4,
            evaluations: 30,
        }
    }
}

impl GradientDescentConfig {
    /// # Errors
    /// When a field is out of its range; the message names it.
    pub fn validate(&self) -> Result<()> {
        const OP: &str = "GradientDescentConfig";
        self.ending().validate(OP)?;
        at_least_one(OP, "evaluations", self.evaluations)?;
        range(OP, "rate", self.rate.unwrap_or(1.), "above 0", |x| x > 0.)?;
        range(OP, "sufficient_decrease", self.sufficient_decrease, "in (0, 0.5)", |x| x > 0. && x < 0.5)
    }

    pub(super) fn ending(&self) -> Ending {
        Ending {
            iterations: self.iterations,
            gradient_tolerance: self.gradient_tolerance,
            decrease_tolerance: self.decrease_tolerance,
        }
    }

    /// The first step to try: the rate, or twice the last step.
    pub(super) fn first_step(&self, past: Past<'_>, slope: f64) -> f64 {
        let grown = past.state.pairs.last().map(|&(_, step)| 2. * step).filter(|step| step.is_finite());
        self.rate.or(grown).unwrap_or_else(|| Past::unscaled_step(slope))
    }
}
