//! The same network with one matrix of weights.
use super::{Rbm, RbmConfig, RbmConnections};
use crate::check::room_for;
use candle::{Result, Tensor};
use chandlery_ops::images::{PatchDirection, convolution_transposed, patch_product};

impl Rbm {
    /// The same network with one matrix of weights, `[n_hidden, n_visible]`, in which those outside
    /// the windows of patches or the places of filters are 0; itself for an RBM that has one. For
    /// small networks: the matrix has `n_patches` times as many weights as patches or more, and as
    /// many times those of filters as they have places.
    ///
    /// # Errors
    /// When units are pooled, or memory is short.
    pub fn dense(&self) -> Result<Self> {
        let config = RbmConfig { connections: RbmConnections::Dense, ..self.config().clone() };
        if config == *self.config() {
            return Ok(self.clone());
        }
        if let Some(grid) = self.config().filter_grid().filter(|grid| grid.pool > 1) {
            candle::bail!("Rbm::dense: hidden units must not be pooled, got blocks of {p}x{p}", p = grid.pool)
        }
        let (n_visible, n_hidden) = (config.n_visible, config.n_hidden);
        let values = n_hidden as f64 * (n_visible + n_hidden) as f64;
        let what = format!("a matrix of {n_hidden} hidden by {n_visible} visible units");
        room_for("Rbm::dense", &what, values, self.weight().device())?;
        // What each hidden unit alone gives to the visible ones.
        let each = Tensor::eye(n_hidden, self.weight().dtype(), self.weight().device())?;
        let log_variance = self.log_variance().cloned();
        let (weight, bias) = match &self.config().connections {
            RbmConnections::Patches(grid) => {
                (patch_product(&each, self.weight(), grid, PatchDirection::Down)?, self.bias().clone())
            }
            RbmConnections::Filters(grid) => {
                let weight = convolution_transposed(&each, self.weight(), grid.shape())?;
                let bias = self.bias().broadcast_left(grid.n_positions())?.contiguous()?.flatten_all()?;
                (grid.planes_first(&weight)?, bias)
            }
            RbmConnections::Dense => (self.weight().clone(), self.bias().clone()),
        };
        Self::from_tensors(config, weight, bias, self.bias_of_each_visible()?, log_variance)
    }
}
