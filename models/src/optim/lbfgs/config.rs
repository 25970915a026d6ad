//! How a run of L-BFGS searches and ends, and what it says of itself.
use crate::check::{at_least_one, range};
use crate::optim::line_search::Rule;
use candle::Result;
use serde::{Deserialize, Serialize};

/// When [`Lbfgs`](super::Lbfgs) ends, and how it searches.
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
        at_least_one(OP, "iterations", self.iterations)?;
        at_least_one(OP, "evaluations", self.evaluations)?;
        range(OP, "gradient_tolerance", self.gradient_tolerance, "at least 0", |x| x >= 0.)?;
        range(OP, "decrease_tolerance", self.decrease_tolerance, "at least 0", |x| x >= 0.)?;
        range(OP, "sufficient_decrease", self.sufficient_decrease, "in (0, 0.5)", |x| x > 0. && x < 0.5)?;
        let least = self.sufficient_decrease;
        range(OP, "curvature", self.curvature, "above sufficient_decrease and below 1", |x| {
            x > least && x < 1.
        })
    }

    pub(super) fn rule(&self) -> Rule {
        Rule { decrease: self.sufficient_decrease, curvature: self.curvature, evaluations: self.evaluations }
    }

    /// Rows for directions, and as many for differences: the last is for the step that is being
    /// tried.
    pub(super) fn slots(&self) -> usize {
        self.history + 1
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
    /// No step along the gradient satisfies the Wolfe conditions: rounding hides the decrease, or
    /// the gradient is not that of the function.
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
