//! Ends of training before its last epoch: early stopping, when a figure of held-out rows no longer
//! falls, which keeps the best model; and convergence, when the loss of training does not improve
//! any more, which keeps the last.
use crate::check::{at_least_one, range};
use candle::Result;
use serde::{Deserialize, Serialize};

/// Watches a figure that should fall from epoch to epoch, such as the error of held-out rows.
///
/// ```
/// # use chandlery::EarlyStopping;
/// # fn main() -> candle::Result<()> {
/// let mut stopping = EarlyStopping::new(2);
/// assert!(!stopping.observe(0, 0.5, || Ok("a model"))?);
/// assert!(!stopping.observe(1, 0.4, || Ok("a better one"))?);
/// assert!(!stopping.observe(2, 0.4, || Ok("no better"))?);
/// assert!(stopping.observe(3, 0.6, || Ok("for two epochs"))?);
/// assert_eq!(stopping.into_best()?.model, "a better one");
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(bound = "")]
pub struct EarlyStopping<M> {
    patience: usize,
    /// Epoch and figure.
    at: Option<(usize, f64)>,
    #[serde(skip)]
    best: Option<M>,
}

/// The best epoch of a training.
#[derive(Debug, Clone, PartialEq)]
pub struct Best<M> {
    /// Counted from 0.
    pub epoch: usize,
    /// Its figure.
    pub figure: f64,
    /// The model after it.
    pub model: M,
}

impl<M> EarlyStopping<M> {
    /// Stops after `patience` epochs in a row without a better figure; 0 counts as 1.
    pub fn new(patience: usize) -> Self {
        Self { patience: patience.max(1), at: None, best: None }
    }

    /// Records the figure of an epoch and, if it is the best so far, its model. Returns `true` if
    /// training should stop.
    ///
    /// A NaN is never better.
    ///
    /// # Errors
    /// When `model` fails.
    pub fn observe(&mut self, epoch: usize, figure: f64, model: impl FnOnce() -> Result<M>) -> Result<bool> {
        if figure < self.at.map_or(f64::INFINITY, |(_, best)| best) {
            (self.at, self.best) = (Some((epoch, figure)), Some(model()?));
        }
        let since = self.at.map_or(epoch + 1, |(best, _)| epoch.saturating_sub(best));
        Ok(since >= self.patience)
    }

    /// The epoch of the best figure.
    pub fn best_epoch(&self) -> Option<usize> {
        self.at.map(|(epoch, _)| epoch)
    }

    /// The best figure.
    pub fn best_figure(&self) -> Option<f64> {
        self.at.map(|(_, figure)| figure)
    }

    /// The model of the best epoch.
    pub fn best(&self) -> Option<&M> {
        self.best.as_ref()
    }

    /// The best epoch with its model.
    ///
    /// # Errors
    /// When no epoch had a figure that is a number.
    pub fn into_best(self) -> Result<Best<M>> {
        match (self.at, self.best) {
            (Some((epoch, figure)), Some(model)) => Ok(Best { epoch, figure, model }),
            _ => candle::bail!("EarlyStopping: the figure of an epoch must be a number, got none in any"),
        }
    }

    pub(crate) fn set_patience(&mut self, patience: usize) {
        self.patience = patience.max(1);
    }

    pub(crate) fn set_best(&mut self, model: M) {
        self.best = Some(model);
    }
}

/// When the loss of a training has converged: it improved by less than `tolerance` of itself in
/// each of `patience` epochs in a row.
///
/// ```text
/// improvement = (lowest loss so far − loss) / |lowest loss so far|
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Convergence {
    /// The least improvement that counts, as a share of the lowest loss so far, at least 0; with 0
    /// every lower loss counts. Default 0.001.
    pub tolerance: f64,
    /// Epochs in a row without one, at least 1. Default 3: the noise of an epoch is not taken for
    /// the end.
    pub patience: usize,
}

impl Default for Convergence {
    fn default() -> Self {
        Self { tolerance: 1e-3, patience: 3 }
    }
}

impl Convergence {
    /// # Errors
    /// When a field is out of its range; the message names it.
    pub fn validate(&self) -> Result<()> {
        const OP: &str = "Convergence";
        range(OP, "tolerance", self.tolerance, "a finite number of at least 0", |x| {
            x >= 0. && x.is_finite()
        })?;
        at_least_one(OP, "patience", self.patience)
    }
}

/// Watches a loss until it has [converged](Convergence).
///
/// ```
/// use chandlery::{Converging, Convergence};
/// let rule = Convergence { tolerance: 0.01, patience: 2 };
/// let mut converging = Converging::default();
/// // 10 to 9 is 10 %, 9 to 8.95 is 0.6 %, and 8.95 to 8.9 is 0.6 % again.
/// assert_eq!([10., 9., 8.95, 8.9].map(|loss| converging.observe(loss, rule)), [false, false, false, true]);
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Converging {
    lowest: Option<f64>,
    /// Epochs in a row without an improvement.
    since: usize,
    converged: bool,
}

impl Converging {
    /// Records the loss of an epoch; returns whether it has converged. A NaN is never lower.
    pub fn observe(&mut self, loss: f64, rule: Convergence) -> bool {
        let lower = self.lowest.is_none_or(|lowest| loss < lowest) && loss.is_finite();
        let enough = self.lowest.is_none_or(|lowest| lowest - loss >= rule.tolerance * lowest.abs());
        self.since = if lower && enough { 0 } else { self.since + 1 };
        if lower {
            self.lowest = Some(loss);
        }
        self.converged = self.since >= rule.patience.max(1);
        self.converged
    }

    /// Whether the last loss ended the training.
    pub fn converged(&self) -> bool {
        self.converged
    }

    /// Whether no loss was recorded yet.
    pub fn is_new(&self) -> bool {
        *self == Self::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The epoch, counted from 1, in which training ends.
    fn end(losses: &[f64], tolerance: f64, patience: usize) -> Option<usize> {
        let mut converging = Converging::default();
        let rule = Convergence { tolerance, patience };
        losses.iter().position(|&loss| converging.observe(loss, rule)).map(|at| at + 1)
    }

    #[test]
    fn a_loss_that_creeps_converges_and_one_that_falls_does_not() {
        let falls: Vec<f64> = (0..40).map(|i| 0.9f64.powi(i)).collect();
        assert_eq!((end(&falls, 0.05, 1), end(&falls, 0.1 + 1e-9, 1)), (None, Some(2)));
        // An epoch that improves begins the count anew.
        assert_eq!(end(&[4., 4., 4., 2., 2., 2., 2.], 0.01, 3), Some(7));
        // So do small steps not, though they add up to more than the tolerance.
        assert_eq!(end(&[1., 0.995, 0.99, 0.985, 0.98], 0.01, 3), Some(4));
    }

    #[test]
    fn without_a_tolerance_only_losses_that_are_not_lower_count() {
        assert_eq!(end(&[3., 2.999, 2.998, 2.997], 0., 1), None);
        assert_eq!(end(&[3., 3.], 0., 1), Some(2));
        // Below zero a share is of the magnitude.
        assert_eq!((end(&[-10., -11.], 0.05, 1), end(&[-10., -10.1], 0.05, 1)), (None, Some(2)));
    }

    #[test]
    fn what_is_no_number_is_no_improvement() {
        assert_eq!(end(&[f64::NAN, f64::INFINITY, f64::NAN], 0., 3), Some(3));
        assert_eq!(end(&[2., f64::NAN, 1., 0.5], 0., 2), None);
        assert!(Convergence { tolerance: f64::NAN, ..Convergence::default() }.validate().is_err());
        assert!(Convergence { patience: 0, ..Convergence::default() }.validate().is_err());
        assert!(Convergence::default().validate().is_ok());
    }
}
