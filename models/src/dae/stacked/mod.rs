//! Denoising autoencoders on top of each other, each learning from the hidden units of the one
//! below.
//!
//! ```text
//! h⁰ = x                                       the prepared rows
//! hˡ = f(hˡ⁻¹ Wˡᵀ + bˡ) of autoencoder l       features, bottom up
//! ```
//!
//! | symbol | field | shape |
//! |---|---|---|
//! | `hˡ` | `features(rows, l)` | `[batch, n_hidden of layer l]` |
//! | autoencoder `l` | `layers()[l − 1]` | see [`Dae`] |
//!
//! [`Feedforward::from_stacked_dae`](crate::feedforward::Feedforward::from_stacked_dae) puts a
//! classifier on top, to fine-tune the whole.
//!
//! Source: Vincent, Larochelle, Lajoie, Bengio and Manzagol, "Stacked denoising autoencoders", JMLR
//! 11, 2010, section 3.5. Kumar and Giaquinto leave stacks to others (section 7); departures from
//! them within a layer are those of [`dae`](crate::dae).
//!
//! ```
//! use candle::{Device::Cpu, Module, Tensor};
//! use chandlery::{Decode, MinibatchTrainer, Trainer};
//! use chandlery::dae::{DaeTrainConfig, StackedDae, StackedDaeConfig, StackedDaeTrainer};
//! use chandlery_ops::Philox;
//! # fn main() -> candle::Result<()> {
//! let rows = Tensor::new(&[[1f32, 0., 1., 0.], [0., 1., 0., 1.]], &Cpu)?;
//! let stack = StackedDae::init(StackedDaeConfig::new(&[4, 8, 3]), Philox::new(1, 0), &Cpu)?;
//! let training = DaeTrainConfig { batch: 2, ..DaeTrainConfig::default() };
//! let mut trainer = StackedDaeTrainer::new(&stack, vec![training.clone(), training], Philox::new(1, 1))?;
//! loop {
//!     for _ in 0..500 {
//!         trainer.step(&rows, None)?;
//!     }
//!     if !trainer.next_layer()? {
//!         break;
//!     }
//! }
//! let stack = trainer.model()?;
//! assert_eq!(stack.forward(&rows)?.dims(), [2, 3]);
//! // It has learned its two rows by heart.
//! let off = (stack.reconstruct(&rows)? - &rows)?.abs()?.flatten_all()?.max(0)?;
//! assert!(off.to_scalar::<f32>()? < 0.3);
//! # Ok(()) }
//! ```
mod train;

pub use train::StackedDaeTrainer;

use super::{Dae, DaeConfig};
use crate::stack::{LayerStack, StackConfig};

/// What a [`StackedDae`] is: outputs of a layer must be able to reach what the layer below makes.
pub type StackedDaeConfig = StackConfig<DaeConfig>;

/// Denoising autoencoders on top of each other; see the [module](self) for the equations.
pub type StackedDae = LayerStack<Dae>;
