//! A quantity that changes from epoch to epoch.
use crate::check::range;
use candle::Result;
use serde::{Deserialize, Serialize};

/// A value for each epoch: constant, piecewise constant, or linear.
///
/// ```
/// use chandlery::schedule::Schedule;
/// let momentum = Schedule::steps([(0, 0.5), (5, 0.9)]);
/// assert_eq!([momentum.at(0), momentum.at(4), momentum.at(5)], [0.5, 0.5, 0.9]);
/// let rate = Schedule::linear(0.1, 0.0, 10);
/// assert_eq!([rate.at(0), rate.at(5), rate.at(10), rate.at(11)], [0.1, 0.05, 0.0, 0.0]);
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Schedule {
    /// The same in every epoch.
    Constant(f64),
    /// `(first epoch, value)` in ascending order; the first value also applies before its epoch.
    Steps(Vec<(usize, f64)>),
    /// From one value to another over a number of epochs, constant after it.
    Linear {
        /// Value in epoch 0.
        from: f64,
        /// Value from epoch `over` on.
        to: f64,
        /// Number of epochs of the change, at least 1.
        over: usize,
    },
}

impl Schedule {
    /// The same in every epoch.
    pub fn constant(value: f64) -> Self {
        Self::Constant(value)
    }

    /// Each value from its epoch on.
    pub fn steps(steps: impl Into<Vec<(usize, f64)>>) -> Self {
        Self::Steps(steps.into())
    }

    /// From `from` in epoch 0 to `to` in epoch `over`, and constant after it.
    pub fn linear(from: f64, to: f64, over: usize) -> Self {
        Self::Linear { from, to, over }
    }

    /// The value in `epoch`, counted from 0.
    pub fn at(&self, epoch: usize) -> f64 {
        match self {
            Self::Constant(value) => *value,
            Self::Steps(steps) => {
                let reached = steps.iter().rev().find(|(first, _)| *first <= epoch).or(steps.first());
                reached.map_or(0., |(_, value)| *value)
            }
            Self::Linear { from, to, over } => {
                let way = (epoch as f64 / (*over).max(1) as f64).min(1.);
                from + (to - from) * way
            }
        }
    }

    /// Checks every value that the schedule can take.
    pub(crate) fn validate(
        &self,
        op: &str,
        name: &str,
        must: &str,
        holds: impl Fn(f64) -> bool,
    ) -> Result<()> {
        match self {
            Self::Constant(value) => range(op, name, *value, must, holds),
            Self::Steps(steps) => {
                if steps.is_empty() || !steps.is_sorted_by(|a, b| a.0 < b.0) {
                    candle::bail!(
                        "{op}: {name} must have at least one step, in ascending epochs, got {steps:?}"
                    )
                }
                steps.iter().try_for_each(|(_, value)| range(op, name, *value, must, &holds))
            }
            Self::Linear { from, to, over } => {
                crate::check::at_least_one(op, &format!("{name}.over"), *over)?;
                range(op, name, *from, must, &holds)?;
                range(op, name, *to, must, holds)
            }
        }
    }
}

impl From<f64> for Schedule {
    fn from(value: f64) -> Self {
        Self::Constant(value)
    }
}
