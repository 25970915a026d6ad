//! Convolutional restricted Boltzmann machine: filters that lie at every place of an image, and
//! maps of hidden units whose neighbours may be pooled.
//!
//! ```text
//! x = v ∗ W + c                                     pre-activations: at each place each filter's product with what lies under it
//! E(v, h) = −Σ h·x − b Σ v                          at most one hidden unit of a block of pool × pool places of a map is on
//! p(h_t = 1 | v) = e^x_t / (1 + Σ_s e^x_s)          over the units s of the block of t; sigmoid(x) without pooling
//! p(pooled = 1 | v) = Σ_t e^x_t / (1 + Σ_s e^x_s)   on where a unit of the block is: what the next layer reads
//! p(v_u = 1 | h) = sigmoid((h ∗ᵀ W)_u + b)          every unit that is on adds its filter where it lies
//! F(v) = −b Σ v − Σ_blocks ln(1 + Σ_t e^x_t)        free energy
//! ```
//!
//! | symbol | field | shape |
//! |---|---|---|
//! | `v` | argument | `[batch, planes · height · width · depth]` |
//! | pooled | argument | `[batch, height of a map/pool · width of a map/pool · n_filters]`, the maps of a place next to each other |
//! | `W` | `weight` | `[n_filters, size · size · channels]`, the channels of a pixel next to each other |
//! | `c`, `b` | `bias`, `visible_bias` | `[n_filters]`, `[channels]` |
//!
//! It is an [`Rbm`] whose [`convolution`](RbmConfig::convolution) says where the filters lie:
//! trainer, checkpoints, sparsity, real-valued visible units of deviation 1 and files are those of
//! any RBM. Its hidden units, as the rest of the library sees them, are the pooled ones. They form
//! a grid of places with `n_filters` values each, on which the filters of a next layer lie
//! ([`RbmConfig::hidden_conv_grid`]), so that a [`Dbn`](crate::dbn::Dbn) can hold convolutions,
//! patches and dense layers.
//!
//! Downwards from pooled units alone, the unit of a block that is on may be any of them: each has
//! `1/pool²` of the pooled unit's value. Reconstructions and Gibbs sampling in one RBM go through
//! the units of the maps.
//!
//! A gradient is the mean over the rows of a minibatch and over the places of a map (for the
//! visible biases, of the image), so that learning rates do not depend on the size of images.
//! Products are as exact as those of f32 numbers whatever the precision of a trainer is.
//!
//! With a [stride](ConvGrid::stride) filters lie at every such place in each direction. That is for
//! a CPU: trainers refuse it on a GPU.
//!
//! Source: Lee, Grosse, Ranganath and Ng, "Convolutional deep belief networks for scalable
//! unsupervised learning of hierarchical representations", ICML 2009, sections 3.2 to 3.4; Raina,
//! Madhavan and Ng, "Large-scale deep unsupervised learning using graphics processors", ICML 2009,
//! section 5. Departure: filters are not turned by 180°, see
//! [`convolution`](chandlery_ops::images::convolution()).
//!
//! ```
//! use candle::{Device::Cpu, Module};
//! use chandlery::Decode;
//! use chandlery::conv_rbm::{ConvGrid, ConvRbm};
//! use chandlery::datasets::ImageShape;
//! use chandlery::rbm::RbmConfig;
//! use chandlery_ops::Philox;
//! use chandlery_ops::core::uniform;
//! # fn main() -> candle::Result<()> {
//! // Five filters of 3 x 3 pixels on 8 x 8 give maps of 6 x 6, pooled to 3 x 3.
//! let grid = ConvGrid { pool: 2, ..ConvGrid::of_image(ImageShape::grey(8, 8), 3, 5) };
//! let rbm = ConvRbm::init(RbmConfig::convolution(grid)?, Philox::new(0, 0), &Cpu)?;
//! assert_eq!(rbm.weight().dims(), [5, 9]);
//! let rows = uniform((7, 64), &Cpu, Philox::new(0, 1))?;
//! assert_eq!(rbm.forward(&rows)?.dims(), [7, 3 * 3 * 5]);
//! assert_eq!(rbm.reconstruct(&rows)?.dims(), [7, 64]);
//! // The next layer's filters see 2 x 2 of these places and all five maps.
//! let next = RbmConfig::convolution(rbm.config().hidden_conv_grid(2, 4).unwrap())?;
//! assert_eq!(next.weight_shape(), [4, 2 * 2 * 5]);
//! # Ok(()) }
//! ```
mod grid;
mod step;
mod units;

pub use chandlery_ops::images::Padding;
pub use grid::ConvGrid;
pub(crate) use step::MapSteps;

use crate::rbm::{Rbm, RbmConfig, RbmConnections};
use candle::Result;

/// An [`Rbm`] whose configuration has a [`convolution`](RbmConfig::convolution).
pub type ConvRbm = Rbm;

impl RbmConfig {
    /// Maps of the filters of `grid`, pooled as it says.
    ///
    /// # Errors
    /// When filters do not fit the grid or blocks do not tile the maps; the message names the
    /// nearest sizes that fit.
    pub fn convolution(grid: ConvGrid) -> Result<Self> {
        grid.validate("RbmConfig")?;
        let config = Self {
            connections: RbmConnections::Filters(grid),
            ..Self::new(grid.n_values(), grid.n_pooled())
        };
        config.validate()?;
        Ok(config)
    }

    /// `n_filters` filters of `size` places on the grid that the hidden units of patches or of a
    /// convolution form; valid, without pooling. None for an RBM with neither.
    pub fn hidden_conv_grid(&self, size: usize, n_filters: usize) -> Option<ConvGrid> {
        self.hidden_places().map(|[height, width, depth]| ConvGrid {
            planes: 1,
            height,
            width,
            depth,
            size,
            n_filters,
            padding: Padding::Valid,
            stride: 1,
            pool: 1,
        })
    }
}
