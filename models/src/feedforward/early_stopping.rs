//! Early stopping: ends training when the error of held-out rows no longer falls, and keeps the best network.
use super::Feedforward;
use crate::model::Model;
use candle::Result;
use serde::{Deserialize, Serialize};

/// Watches a figure that should fall from epoch to epoch, such as the error of held-out rows.
///
/// ```
/// # use candle::Device::Cpu;
/// # use chandlery::feedforward::{EarlyStopping, Feedforward, FeedforwardConfig};
/// # use chandlery_ops::Philox;
/// # fn main() -> candle::Result<()> {
/// # let network = Feedforward::init(FeedforwardConfig::classifier(&[2, 2]), Philox::new(0, 0), &Cpu)?;
/// let mut stopping = EarlyStopping::new(2);
/// assert!(!stopping.observe(0, 0.5, &network)?);
/// assert!(!stopping.observe(1, 0.4, &network)?);
/// assert!(!stopping.observe(2, 0.4, &network)?); // no better
/// assert!(stopping.observe(3, 0.6, &network)?); // for two epochs
/// assert_eq!(stopping.best_epoch(), Some(1));
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct EarlyStopping {
    patience: usize,
    /// Epoch and figure.
    at: Option<(usize, f64)>,
    #[serde(skip)]
    best: Option<Feedforward>,
}

impl EarlyStopping {
    /// Stops after `patience` epochs in a row without a better figure; 0 counts as 1.
    pub fn new(patience: usize) -> Self {
        Self { patience: patience.max(1), at: None, best: None }
    }

    /// Records the figure of an epoch and, if it is the best so far, a copy of the network. Returns `true` if training should
    /// stop.
    ///
    /// A NaN is never better.
    ///
    /// # Errors
    /// When the device is out of memory.
    pub fn observe(&mut self, epoch: usize, figure: f64, network: &Feedforward) -> Result<bool> {
        if figure < self.at.map_or(f64::INFINITY, |(_, best)| best) {
            self.at = Some((epoch, figure));
            let dtype = network.layers().first().map_or(candle::DType::F32, |(weight, _)| weight.dtype());
            self.best = Some(network.to(dtype, network.device())?);
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

    /// A copy of the network from the best epoch.
    pub fn best(&self) -> Option<&Feedforward> {
        self.best.as_ref()
    }

    pub(super) fn set_best(&mut self, network: Feedforward) {
        self.best = Some(network);
    }
}
