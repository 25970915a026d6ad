//! Early stopping: ends training when a figure of held-out rows no longer falls, and keeps the best
//! model.
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
