//! Restricted Boltzmann machine of overlapping patches: square windows on a grid of visible units,
//! each fully connected to hidden units of its own. No weights are shared.
//!
//! ```text
//! E(v, h) = −b·v − c·h − Σ_p h_p W_p v[π_p]ᵀ             π_p: the window of patch p
//! p(h_p = 1 | v) = sigmoid(W_p v[π_p] + c_p)
//! p(v_u = 1 | h) = sigmoid(Σ_p (h_p W_p)_i + b_u)         over the windows that cover u, where it is entry i
//! ```
//!
//! | symbol | field | shape |
//! |---|---|---|
//! | `v` | argument | `[batch, planes · height · width · depth]` |
//! | `h` | argument | `[batch, n_patches · hidden]`, the units of a patch next to each other |
//! | `W` | `weight` | `[n_patches, hidden, planes · window · window · depth]` |
//! | `b`, `c` | `visible_bias`, `bias` | `[n_visible]`, `[n_hidden]` |
//!
//! It is an [`Rbm`] whose [`patches`](RbmConfig::patches) say where the windows lie: trainer,
//! checkpoints, sparsity, real-valued units, likelihoods and files are those of any RBM. The hidden
//! units form a grid of positions with `hidden` values each, on which the windows of a next layer
//! lie ([`RbmConfig::hidden_grid`]), so that a [`Dbn`](crate::dbn::Dbn) can hold patches and dense
//! layers.
//!
//! The same network with one matrix would have `n_patches` times as many weights, nearly all of
//! them 0.
//!
//! Departures from the paper: its figure 2 has visible biases of each patch, here every visible
//! unit has one; all patches of a layer are one grouped product. Its stacks and sizes are those of
//! `bench patch-rbm`.
//!
//! Source: Raina, Madhavan and Ng, "Large-scale deep unsupervised learning using graphics
//! processors", ICML 2009, section 5 and figure 2; sparsity as in Lee, Ekanadham and Ng, "Sparse
//! deep belief net model for visual area V2", 2007.
//!
//! ```
//! use candle::{Device::Cpu, Module};
//! use chandlery::datasets::ImageShape;
//! use chandlery::Decode;
//! use chandlery::patch_rbm::{PatchGrid, PatchRbm};
//! use chandlery::rbm::RbmConfig;
//! use chandlery_ops::Philox;
//! use chandlery_ops::core::uniform;
//! # fn main() -> candle::Result<()> {
//! // 3 x 3 windows of 4 x 4 pixels, every 2 pixels on 8 x 8, with 5 hidden units each.
//! let config = RbmConfig::patches(PatchGrid::of_image(ImageShape::grey(8, 8), 4, 2), 5)?;
//! assert_eq!(config.weight_shape(), [9, 5, 16]);
//! let rbm = PatchRbm::init(config, Philox::new(0, 0), &Cpu)?;
//! let rows = uniform((7, 64), &Cpu, Philox::new(0, 1))?;
//! assert_eq!(rbm.forward(&rows)?.dims(), [7, 45]);
//! assert_eq!(rbm.reconstruct(&rows)?.dims(), [7, 64]);
//! // The next layer sees windows of 2 x 2 of these positions.
//! let next = RbmConfig::patches(rbm.config().hidden_grid(2, 1).unwrap(), 3)?;
//! assert_eq!(next.weight_shape(), [4, 3, 2 * 2 * 5]);
//! # Ok(()) }
//! ```
mod bands;
mod cells;

pub(crate) use bands::{Band, Lines, Seams};
pub(crate) use cells::Cells;
pub use chandlery_ops::images::PatchGrid;

use crate::rbm::{Rbm, RbmConfig, RbmConnections};
use candle::Result;

/// An [`Rbm`] whose configuration has [`patches`](RbmConfig::patches).
pub type PatchRbm = Rbm;

impl RbmConfig {
    /// Hidden units, `hidden` for each window of `grid`.
    ///
    /// # Errors
    /// When the windows do not tile the grid; the message names the nearest sizes that fit.
    pub fn patches(grid: PatchGrid, hidden: usize) -> Result<Self> {
        grid.validate("RbmConfig")?;
        let config = Self {
            connections: RbmConnections::Patches(grid),
            ..Self::new(grid.n_values(), grid.n_patches() * hidden)
        };
        config.validate()?;
        Ok(config)
    }

    /// Windows of `window` places every `stride` on the grid that the hidden units of patches or of
    /// a convolution form. None for an RBM with neither.
    pub fn hidden_grid(&self, window: usize, stride: usize) -> Option<PatchGrid> {
        self.hidden_places().map(|[height, width, depth]| PatchGrid {
            planes: 1,
            height,
            width,
            depth,
            window,
            stride,
        })
    }
}
