//! Unsupervised models for [candle](https://github.com/huggingface/candle), on the CPU and on NVIDIA GPUs.
//!
//! | module | model | layer above the data |
//! |---|---|---|
//! | [`rbm`] | restricted Boltzmann machine | one layer of features, learned by contrastive divergence |
//! | [`conv_rbm`] | RBM of filters that lie at every place of an image, with pooled maps | features that do not depend on the place |
//! | [`patch_rbm`] | RBM of overlapping patches | features of windows of an image, each window with weights of its own |
//! | [`dbn`] | deep belief network | a stack of them, trained layer by layer |
//! | [`feedforward`] | classifier or deep autoencoder | that stack, fine-tuned as a whole by backpropagation |
//! | [`labelled`] | deep belief network with label units | generative weights and labels, learned by the up-down algorithm |
//! | [`dae`] | denoising autoencoder | one layer of features, learned by giving back rows from corrupted ones |
//! | [`dae::StackedDae`] | stacked denoising autoencoders | a stack of them, trained layer by layer |
//! | [`dictionary`] | dictionary learning | sparse codes over atoms learned by K-SVD and related methods, or online |
//! | [`sparse_autoencoder`] | sparse autoencoder | features that are rarely active, learned over all rows by L-BFGS |
//! | [`sparse_coding`] | sparse coding | activations over a basis, few of them not 0 by a penalty |
//! | [`tsne`] | t-SNE | a picture of the rows in two or three dimensions |
//! | [`optim`] | L-BFGS | minimises any smooth function of one vector |
//! | [`softmax`] | multinomial logistic regression | the linear read-out that tells how good features are |
//!
//! Beside them: [`evaluation`] says what a trained model is worth, [`filters`] what its units look for, [`codes`] are files of sparse codes, and
//! `pictures`, with the feature of that name, draws all of it.
//!
//! A trained encoder is a [`candle_nn::Module`] from rows to features, and its weights load as
//! [`candle_nn::Linear`]:
//!
//! ```
//! use candle::{Device, Module, Tensor};
//! use chandlery::dbn::{Dbn, DbnConfig};
//! use chandlery_ops::Philox;
//!
//! # fn main() -> candle::Result<()> {
//! # let folder = std::env::temp_dir().join(format!("chandlery-doc-{}", std::process::id()));
//! let dbn = Dbn::init(DbnConfig::new(&[784, 500, 500]), Philox::new(7, 0), &Device::Cpu)?;
//! dbn.save_pretrained(&folder)?;
//! let dbn = Dbn::from_pretrained(&folder.display().to_string(), &Device::Cpu)?; // or a hub id, "owner/name"
//! let rows = Tensor::zeros((32, 784), candle::DType::F32, &Device::Cpu)?;
//! assert_eq!(dbn.forward(&rows)?.dims(), [32, 500]);
//! # std::fs::remove_dir_all(&folder).map_err(candle::Error::wrap)?;
//! # Ok(()) }
//! ```
//!
//! Every model but the read-out has `save_pretrained` and `from_pretrained`; [`pretrained`] says which one a folder holds.
//!
//! Rows go in raw, as a data set stores them (bytes or floats): each model has a [`Preparation`] in its configuration, which is fitted
//! once and saved with it. Methods with a parameter `rows` prepare them; those of an RBM with a parameter `v` take values of its units.
//!
//! Random draws come from a [`Philox`] that the caller passes: the same seed gives the same run, and the
//! CPU and the GPU make the same draws. Nothing here prints.
#[macro_use]
mod ensure;

mod check;
pub mod checkpoint;
pub mod codes;
pub mod conv_rbm;
pub mod dae;
pub mod dbn;
pub mod dictionary;
mod early_stopping;
pub mod evaluation;
pub mod feedforward;
pub mod filters;
pub mod io;
pub mod labelled;
pub mod layers;
pub mod layerwise;
mod losses;
pub mod optim;
pub mod patch_rbm;
#[cfg(feature = "pictures")]
pub mod pictures;
mod prepare;
pub mod pretrained;
pub mod rbm;
mod replays;
pub mod schedule;
pub mod softmax;
pub mod sparse_autoencoder;
pub mod sparse_coding;
mod trainer;
pub mod tsne;
mod unit_range;

pub use chandlery_datasets as datasets;
pub use chandlery_datasets::{ImageShape, Preparation};
pub use chandlery_ops::{Philox, Precision};
pub use early_stopping::{Best, EarlyStopping};
pub use trainer::{Epochs, Event, FullBatchTrainer, MinibatchTrainer, Trainer};
pub use unit_range::in_unit_interval;
