//! How new rows are placed in a layout.
use super::config::largest_perplexity;
use crate::check::{at_least_one, range};
use candle::Result;
use serde::{Deserialize, Serialize};

pub(super) const OP: &str = "Embedding::transform";

/// How new rows get their places.
///
/// ```text
/// p_j|i        over the nearest training rows of new row i, at this perplexity
/// y_i          begins at the median of the y_j, weighted by p_j|i, in each coordinate
/// gradient_i = 4 (exaggeration Σ_j p_j|i (y_i − y_j)/(1 + |y_i − y_j|²/α) − Σ_j w_ij^(1+1/α) (y_i − y_j) / Σ_j w_ij)
/// ```
///
/// Poličar, Stražar and Zupan, "Embedding to reference t-SNE space addresses batch effects in
/// single-cell classification", 2021.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TransformConfig {
    /// At least 1. Default 5. It is lowered to a third of the training rows where these are few,
    /// but not below 1 ([`lowered`](Self::lowered)).
    pub perplexity: f64,
    /// Default 250.
    pub iterations: usize,
    /// The factor on the attraction, above 0. Default 1.5.
    pub exaggeration: f64,
    /// Above 0. Default 0.1.
    pub learning_rate: f64,
    /// In `[0, 1)`. Default 0.8.
    pub momentum: f64,
    /// The gradient of a point is shortened to this norm, above 0. Default 0.25.
    pub largest_gradient: f64,
}

impl Default for TransformConfig {
    fn default() -> Self {
        Self {
            perplexity: 5.,
            iterations: 250,
            exaggeration: 1.5,
            learning_rate: 0.1,
            momentum: 0.8,
            largest_gradient: 0.25,
        }
    }
}

impl TransformConfig {
    /// The same for an embedding of `n` rows, with a perplexity that these have: at most
    /// `(n − 1) / 3`, but not below 1.
    #[must_use]
    pub fn lowered(&self, n: usize) -> Self {
        Self { perplexity: self.perplexity.min(largest_perplexity(n)), ..self.clone() }
    }

    pub(super) fn validate(&self) -> Result<()> {
        range(OP, "perplexity", self.perplexity, "at least 1", |x| x >= 1.)?;
        at_least_one(OP, "iterations", self.iterations)?;
        range(OP, "exaggeration", self.exaggeration, "above 0", |x| x > 0.)?;
        range(OP, "learning_rate", self.learning_rate, "above 0", |x| x > 0.)?;
        range(OP, "momentum", self.momentum, "in [0, 1)", |x| (0. ..1.).contains(&x))?;
        range(OP, "largest_gradient", self.largest_gradient, "above 0", |x| x > 0.)
    }
}
