//! A quantity that changes from epoch to epoch, or from step to step.
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

/// Rows of a minibatch and epochs of a training, by the number of rows.
///
/// Few rows in minibatches that suit many make a handful of updates and learn nothing. So an epoch
/// of `n` rows gets at least [`LEAST_STEPS`](Self::LEAST_STEPS) minibatches, as far as these then
/// have [`LEAST_ROWS`](Self::LEAST_ROWS) rows, and there are as many epochs as make `least_steps`
/// updates:
///
/// ```text
/// batch'  = n / 40, at most batch, at least 10 (or batch, where that is less)
/// epochs' = max(epochs, least_steps / ⌈n / batch'⌉)          both divisions: down for rows, up for epochs
/// ```
///
/// ```
/// use chandlery::schedule::Plan;
/// let plan = Plan { batch: 100, epochs: 60, least_steps: 2400 };
/// assert_eq!(plan.for_rows(59_000), plan); // from 4,000 rows on nothing changes
/// assert_eq!(plan.for_rows(1_200), Plan { batch: 30, ..plan }); // 40 updates an epoch
/// assert_eq!(plan.for_rows(150), Plan { batch: 10, epochs: 160, ..plan }); // 15 updates an epoch
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Rows of a minibatch for many rows, at least 1.
    pub batch: usize,
    /// Epochs for many rows, at least 1.
    pub epochs: usize,
    /// Updates below which more epochs are made.
    pub least_steps: usize,
}

impl Plan {
    /// Minibatches that an epoch has at least, where they can have so many rows.
    pub const LEAST_STEPS: usize = 40;
    /// Rows that a minibatch is not made smaller than for that.
    pub const LEAST_ROWS: usize = 10;

    /// The plan for `n_rows` rows.
    #[must_use]
    pub fn for_rows(self, n_rows: usize) -> Self {
        let batch = (n_rows / Self::LEAST_STEPS).clamp(Self::LEAST_ROWS.min(self.batch), self.batch.max(1));
        Self { batch, ..self }.epochs_for_rows(n_rows)
    }

    /// The plan for `n_rows` rows in minibatches of `batch`: the epochs alone.
    #[must_use]
    pub fn epochs_for_rows(self, n_rows: usize) -> Self {
        let steps = n_rows.div_ceil(self.batch.max(1)).max(1);
        Self { epochs: self.epochs.max(self.least_steps.div_ceil(steps)), ..self }
    }
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
        self.within(epoch as f64)
    }

    /// The value where so many epochs are done, whole ones and a part: a linear schedule goes on
    /// from step to step.
    ///
    /// ```
    /// use chandlery::schedule::Schedule;
    /// assert_eq!(Schedule::linear(1.0, 0.0, 2).within(0.5), 0.75);
    /// assert_eq!(Schedule::steps([(0, 0.5), (1, 0.9)]).within(0.5), 0.5);
    /// ```
    pub fn within(&self, epochs: f64) -> f64 {
        match self {
            Self::Constant(value) => *value,
            Self::Steps(steps) => {
                let reached = steps.iter().rev().find(|(first, _)| *first as f64 <= epochs).or(steps.first());
                reached.map_or(0., |(_, value)| *value)
            }
            Self::Linear { from, to, over } => {
                let way = (epochs / (*over).max(1) as f64).min(1.);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_rows_get_enough_updates_and_many_keep_the_plan() {
        for plan in [
            Plan { batch: 100, epochs: 60, least_steps: 2400 },
            Plan { batch: 8, epochs: 5, least_steps: 2500 },
            Plan { batch: 100, epochs: 100, least_steps: 2000 },
        ] {
            for n in 1..5000 {
                let of = plan.for_rows(n);
                let steps = n.div_ceil(of.batch);
                assert!((1..=plan.batch).contains(&of.batch), "{n}: {of:?}");
                assert!(of.epochs * steps >= plan.least_steps && of.epochs >= plan.epochs, "{n}: {of:?}");
                // One epoch less would be too few, or there are no more than usual.
                let spare = (of.epochs - 1) * steps < plan.least_steps;
                assert!(spare || of.epochs == plan.epochs, "{n}: {of:?}");
                assert!(steps >= Plan::LEAST_STEPS || of.batch <= Plan::LEAST_ROWS, "{n}: {of:?}");
                // More rows never get fewer to a minibatch, nor more epochs.
                let more = plan.for_rows(n + 1);
                assert!(more.batch >= of.batch, "{n}: {of:?}, then {more:?}");
            }
            for n in [4000, 4750, 59_000, 10_000_000] {
                assert_eq!(plan.for_rows(n), plan, "{n}");
            }
        }
    }
}
