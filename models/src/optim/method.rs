//! The methods of a descent, and what each does at a place of it.
use super::cg::{self, ConjugateGradientConfig};
use super::ending::Ending;
use super::gd::GradientDescentConfig;
use super::lbfgs::{self, LbfgsConfig};
use super::line_search::{Point, backtrack, search};
use super::state::Past;
use candle::Result;
use serde::{Deserialize, Serialize};

/// How a [`Descent`](super::Descent) finds its directions and steps.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// A quasi-Newton method of limited memory; see [`lbfgs`](super::lbfgs).
    Lbfgs(LbfgsConfig),
    /// Nonlinear conjugate gradient; see [`cg`](super::cg).
    ConjugateGradient(ConjugateGradientConfig),
    /// Batch gradient descent; see [`gd`](super::gd).
    GradientDescent(GradientDescentConfig),
}

impl From<LbfgsConfig> for Method {
    fn from(config: LbfgsConfig) -> Self {
        Self::Lbfgs(config)
    }
}

impl From<ConjugateGradientConfig> for Method {
    fn from(config: ConjugateGradientConfig) -> Self {
        Self::ConjugateGradient(config)
    }
}

impl From<GradientDescentConfig> for Method {
    fn from(config: GradientDescentConfig) -> Self {
        Self::GradientDescent(config)
    }
}

impl Method {
    /// # Errors
    /// When a field of the configuration is out of its range; the message names it.
    pub fn validate(&self) -> Result<()> {
        match self {
            Self::Lbfgs(config) => config.validate(),
            Self::ConjugateGradient(config) => config.validate(),
            Self::GradientDescent(config) => config.validate(),
        }
    }

    /// What errors call it.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Lbfgs(_) => "Lbfgs",
            Self::ConjugateGradient(_) => "ConjugateGradient",
            Self::GradientDescent(_) => "GradientDescent",
        }
    }

    pub(super) fn ending(&self) -> Ending {
        match self {
            Self::Lbfgs(config) => config.ending(),
            Self::ConjugateGradient(config) => config.ending(),
            Self::GradientDescent(config) => config.ending(),
        }
    }

    pub(super) fn set_iterations(&mut self, iterations: usize) {
        match self {
            Self::Lbfgs(config) => config.iterations = iterations,
            Self::ConjugateGradient(config) => config.iterations = iterations,
            Self::GradientDescent(config) => config.iterations = iterations,
        }
    }

    /// Steps that are kept.
    pub(super) fn history(&self) -> usize {
        match self {
            Self::Lbfgs(config) => config.history,
            Self::ConjugateGradient(_) | Self::GradientDescent(_) => 1,
        }
    }

    /// Rows for directions, and as many for differences of gradients. L-BFGS has one more than it
    /// keeps, for the step that is being tried; the others write over the last.
    pub(super) fn slots(&self) -> usize {
        match self {
            Self::Lbfgs(config) => config.history.saturating_add(1),
            Self::ConjugateGradient(_) | Self::GradientDescent(_) => 1,
        }
    }

    /// The direction as coefficients of the rows.
    pub(super) fn direction(&self, past: Past<'_>) -> Vec<f64> {
        match self {
            Self::Lbfgs(_) => lbfgs::direction(past),
            Self::ConjugateGradient(config) => config.direction(past),
            Self::GradientDescent(_) => past.downhill(),
        }
    }

    /// The first step to try along a direction of this slope.
    pub(super) fn first_step(&self, past: Past<'_>, slope: f64) -> f64 {
        match self {
            Self::Lbfgs(_) => lbfgs::first_step(past, slope),
            Self::ConjugateGradient(_) => cg::first_step(past, slope),
            Self::GradientDescent(config) => config.first_step(past, slope),
        }
    }

    /// Searches along the line: the point that was evaluated last, if it will do.
    pub(super) fn search(
        &self,
        start: Point,
        first: f64,
        mut at: impl FnMut(f64) -> Result<Point>,
    ) -> Result<Option<Point>> {
        match self {
            Self::Lbfgs(config) => search(start, first, config.rule(), at),
            Self::ConjugateGradient(config) => search(start, first, config.rule(), at),
            Self::GradientDescent(config) if config.rate.is_some() => {
                Ok(Some(at(first)?).filter(Point::is_finite))
            }
            Self::GradientDescent(config) => {
                backtrack(start, first, config.sufficient_decrease, config.evaluations, at)
            }
        }
    }

    /// Whether an accepted step is kept.
    pub(super) fn keeps(&self, past: Past<'_>, step: f64) -> bool {
        match self {
            Self::Lbfgs(_) => lbfgs::keeps(past, step),
            Self::ConjugateGradient(_) => true,
            Self::GradientDescent(config) => config.rate.is_none(),
        }
    }
}
