//! Deep belief network: restricted Boltzmann machines on top of each other, each learning from the
//! one below.
//!
//! ```text
//! h⁰ = v                                       the data
//! hˡ = p(h = 1 | hˡ⁻¹) of RBM l                features, bottom up
//! p(v, h¹ … hᴸ) = p(hᴸ⁻¹, hᴸ) Π p(hˡ⁻¹ | hˡ)   the top two layers are an RBM, the others generate downwards
//! ```
//!
//! | symbol | field | shape |
//! |---|---|---|
//! | `hˡ` | `features(rows, l)` | `[batch, sizes[l]]` |
//! | RBM `l` | `layers()[l − 1]` | weights `[sizes[l], sizes[l − 1]]` |
//!
//! Sources: Hinton, Osindero and Teh, "A fast learning algorithm for deep belief nets", Neural
//! Computation 18, 2006; Raina, Madhavan and Ng, "Large-scale deep unsupervised learning using
//! graphics processors", ICML 2009. Departure: upper RBMs learn from the hidden means of the lower,
//! not from draws (Hinton 2010, section 3).
//!
//! ```
//! use candle::{Device::Cpu, Module, Tensor};
//! use chandlery::dbn::{Dbn, DbnConfig};
//! use chandlery::rbm::RbmTrainConfig;
//! use chandlery::{Decode, MinibatchTrainer, Trainer};
//! use chandlery::dbn::DbnTrainer;
//! use chandlery_ops::Philox;
//! # fn main() -> candle::Result<()> {
//! // Four units, of which the right two always copy the left two.
//! let rows = Tensor::new(&[[1f32, 0., 1., 0.], [0., 1., 0., 1.]], &Cpu)?;
//! let dbn = Dbn::init(DbnConfig::new(&[4, 8, 3]), Philox::new(1, 0), &Cpu)?;
//! let training = RbmTrainConfig { batch: 2, ..RbmTrainConfig::default() };
//! let mut trainer = DbnTrainer::new(&dbn, vec![training.clone(), training], Philox::new(1, 1))?;
//! loop {
//!     for _ in 0..500 {
//!         trainer.step(&rows, None)?;
//!     }
//!     if !trainer.next_layer()? {
//!         break;
//!     }
//! }
//! let dbn = trainer.model()?;
//! assert_eq!(dbn.forward(&rows)?.dims(), [2, 3]);
//! // It has learned its two rows by heart.
//! assert!(dbn.reconstruction_error(&rows)? < 0.2);
//! # Ok(()) }
//! ```
mod bound;
mod train;

pub use bound::Bound;
pub use train::DbnTrainer;

use crate::check::batch_of;
use crate::model::Layered;
use crate::rbm::{Rbm, RbmConfig};
use crate::stack::{LayerStack, StackConfig};
use candle::{Result, Tensor};
use chandlery_ops::Philox;
use chandlery_ops::core::bernoulli;

/// What a [`Dbn`] is: an upper layer's visible units must be of the kind of the hidden units below.
pub type DbnConfig = StackConfig<RbmConfig>;

/// A deep belief network; see the [module](self) for the equations.
pub type Dbn = LayerStack<Rbm>;

impl Dbn {
    /// Draws `n` rows from the model: `steps` Gibbs steps in the top RBM from fair coins, then the
    /// means downwards. `[n, n_visible]`.
    ///
    /// # Errors
    /// When the device is out of memory.
    pub fn sample(&self, n: usize, steps: usize, philox: Philox) -> Result<Tensor> {
        let top = self.top()?;
        let size = top.config().n_visible;
        let half = Tensor::full(0.5f32, (n, size), top.weight().device())?;
        let start = bernoulli(&half, philox)?.to_dtype(top.weight().dtype())?;
        self.down_from_top(&start, steps, philox.advanced(n * size))
    }

    /// The same with the chains begun at the features of raw rows, `[n, n_inputs]`: variations on
    /// given rows.
    ///
    /// # Errors
    /// When `rows` are not `[n, n_inputs]`.
    pub fn sample_from(&self, rows: &Tensor, steps: usize, philox: Philox) -> Result<Tensor> {
        batch_of("Dbn::sample_from", "rows", rows, self.config().n_inputs())?;
        self.down_from_top(&self.features(rows, self.layers().len() - 1)?, steps, philox)
    }

    fn down_from_top(&self, start: &Tensor, steps: usize, philox: Philox) -> Result<Tensor> {
        let states = self.top()?.gibbs(start, steps, philox)?;
        self.layers().iter().rev().skip(1).try_fold(states, |h, rbm| rbm.visible_mean(&h))
    }

    fn top(&self) -> Result<&Rbm> {
        // A network has a layer: every constructor validates its configuration.
        self.layers().last().ok_or_else(|| candle::Error::Msg("Dbn: no layer".into()))
    }
}
