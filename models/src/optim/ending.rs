//! When a descent ends, and why.
use crate::check::{at_least_one, range};
use candle::Result;
use serde::{Deserialize, Serialize};

/// When a run has converged, or is long enough.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Ending {
    pub iterations: usize,
    pub gradient_tolerance: f64,
    pub decrease_tolerance: f64,
}

impl Ending {
    /// Refuses what is out of range, in the name of the configuration `op`.
    pub fn validate(&self, op: &str) -> Result<()> {
        at_least_one(op, "iterations", self.iterations)?;
        range(op, "gradient_tolerance", self.gradient_tolerance, "at least 0", |x| x >= 0.)?;
        range(op, "decrease_tolerance", self.decrease_tolerance, "at least 0", |x| x >= 0.)
    }
}

/// Why a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// The gradient is within its tolerance.
    Gradient,
    /// The last iteration lowered the value by no more than its tolerance.
    Decrease,
    /// All iterations were made.
    Iterations,
    /// No step along the gradient satisfies the conditions of the line search: rounding hides the
    /// decrease, or the gradient is not that of the function.
    LineSearch,
    /// The value or the gradient is NaN or infinite where the run began, or at all steps that were
    /// tried.
    NonFinite {
        /// The evaluation that gave it first, counted from 1.
        evaluation: u64,
    },
    /// The caller ended it.
    Stopped,
}

/// What an iteration has reached.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Iteration {
    /// Iterations made, from 1.
    pub iteration: usize,
    /// Evaluations made since the run began.
    pub evaluations: u64,
    /// The value of the function.
    pub value: f64,
    /// The Euclidean norm of the gradient.
    pub gradient_norm: f64,
    /// The step length along the direction, `t`.
    pub step: f64,
    /// The derivative along the direction, where the step began and where it ended.
    pub slopes: [f64; 2],
}
