//! Unsupervised models for [candle](https://github.com/huggingface/candle), on the CPU and on
//! NVIDIA GPUs.
//!
//! | you want | read |
//! |---|---|
//! | features of rows, for a classifier or a network of your own | [`dbn`], [`dae`] |
//! | a classifier or a deep autoencoder from few labels | [`feedforward`] |
//! | a picture of a data set | [`tsne`] |
//! | photographs without noise, or with missing pixels filled in | [`dictionary::image`] |
//! | sparse codes | [`dictionary`], [`sparse_coding`] |
//! | features of a neural network's activations | [`sparse_autoencoder::sae`] |
//! | samples and likelihoods | [`rbm`], [`dbn`], [`labelled`], [`evaluation`] |
//! | a minimum of a smooth function | [`optim`] |
//! | recipes, and names of scikit-learn, PyTorch and openTSNE beside those of here | [`guide`] |
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
//! | [`sparse_autoencoder`] | sparse autoencoder | features that are rarely active, learned over all rows |
//! | [`sparse_autoencoder::sae`] | sparse autoencoders of today | many latents, of which few are active in a row, learned by minibatches |
//! | [`sparse_coding`] | sparse coding | activations over a basis, few of them not 0 by a penalty |
//! | [`tsne`] | t-SNE | a picture of the rows in one to three dimensions |
//! | [`optim`] | L-BFGS, conjugate gradient, gradient descent | minimise any smooth function of one vector |
//! | [`softmax`] | multinomial logistic regression | the linear read-out that tells how good features are |
//!
//! Beside them: [`evaluation`] says what a trained model is worth, [`filters`] what its units look
//! for, [`codes`] are files of sparse codes, and `pictures`, with the feature of that name, draws
//! all of it.
//!
//! # What every model has
//!
//! | | takes | gives |
//! |---|---|---|
//! | **[`Model`]** | | all of them |
//! | `init` | configuration, [`Philox`], device | a new model in f32, the same bits for the same place |
//! | `new` | configuration, `VarBuilder` at any prefix | the model of these parameters, of the type and on the device of the builder |
//! | `from_pretrained` | folder or hub id, [`LoadOptions`] | the model that `save_pretrained` wrote |
//! | `save_pretrained` | folder | `config.json` and `model.safetensors` of one model, see [`pretrained`] |
//! | `store_in` | `VarMap`, prefix | the model with variables as parameters, for candle's optimisers |
//! | `to_device` `to_dtype` `to` | device, type | a copy, its preparation with it |
//! | `tensors` | | parameters by the names that `new` looks for |
//! | `prepare` | raw rows | what the model reads |
//! | **[`Encode`]** | | all but the read-out |
//! | `encode` `encode_prepared` | raw rows, prepared rows | features or codes; of an [`Embedding`](tsne::Embedding) places |
//! | `encode_all` | [`Feed`](datasets::Feed), sink | the same minibatch by minibatch, for rows that do not fit in memory |
//! | **[`Decode`]** | | all but these two |
//! | `decode` | codes | prepared rows |
//! | `reconstruct` `reconstruct_prepared` | raw rows, prepared rows | what comes back of them, of the same shape and unit |
//! | `reconstruction_error` | raw rows | mean over rows of the squared error, summed over the values read, in their unit; f64 |
//! | **[`Layered`]** | | [`Dbn`](dbn::Dbn), [`StackedDae`](dae::StackedDae), [`LabelledDbn`](labelled::LabelledDbn), [`Feedforward`](feedforward::Feedforward) |
//! | `features` `all_features` | raw rows, layer | one layer's, or all of them side by side |
//! | **[`candle_nn::Module`]** | raw rows | what is encoded, or of a network and the read-out the outputs, where gradients flow through it |
//!
//! [`Rbm`](rbm::Rbm) and [`Dbn`](dbn::Dbn) have `score_samples` besides: the log-likelihood of each
//! raw row, or a bound on it, in f64.
//!
//! **Rows go in raw**, as a data set stores them, bytes (which count as 0 to 1) or floats of any
//! type: each model has a [`Preparation`] in its configuration, which is fitted once, saved and
//! moved with it. What takes prepared rows says so in its name (`…_prepared`, or a parameter `x`);
//! methods of an RBM with a parameter `v` take values of its units. The lowest layer of a stack has
//! the stack's preparation.
//!
//! **Types**: parameters are f32, f64, f16 or bf16; of dictionaries, sparse coding and autoencoders
//! with latents f32 or f64, of embeddings f32.
//!
//! **Configurations**: `…Config` is what a model is. Sizes are the arguments of its `new`,
//! everything else has a default; fields may be added, so write
//! `RbmConfig { hidden, ..RbmConfig::new(784, 500) }`. All have `serde`, and files may lack what
//! has a default.
//!
//! ```
//! use candle::{Device, Tensor};
//! use chandlery::dbn::{Dbn, DbnConfig};
//! use chandlery::{Encode, LoadOptions, Model, Philox};
//!
//! # fn main() -> candle::Result<()> {
//! # let folder = std::env::temp_dir().join(format!("chandlery-doc-{}", std::process::id()));
//! let dbn = Dbn::init(DbnConfig::new(&[784, 500, 500]), Philox::new(7, 0), &Device::Cpu)?;
//! dbn.save_pretrained(&folder)?;
//! let dbn = Dbn::from_pretrained(&folder, &LoadOptions::default())?; // or a hub id, "owner/name"
//! let rows = Tensor::zeros((32, 784), candle::DType::U8, &Device::Cpu)?;
//! assert_eq!(dbn.encode(&rows)?.dims(), [32, 500]);
//! # std::fs::remove_dir_all(&folder).map_err(candle::Error::wrap)?;
//! # Ok(()) }
//! ```
//!
//! Random draws come from a [`Philox`] that the caller passes: the same seed gives the same run,
//! and the CPU and the GPU make the same draws. Nothing here prints.
#[macro_use]
mod ensure;

/// Recipes by task, and names of other libraries beside those of this one.
#[cfg(feature = "image")]
#[doc = include_str!("../README.md")]
pub mod guide {}

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
mod flat;
pub mod io;
pub mod labelled;
pub mod layers;
pub mod layerwise;
mod losses;
mod masters;
pub mod model;
pub mod optim;
mod padding;
pub mod patch_rbm;
#[cfg(feature = "pictures")]
pub mod pictures;
mod pieces;
mod prepare;
pub mod pretrained;
pub mod rbm;
mod replays;
pub mod schedule;
mod share;
mod side_sums;
pub mod softmax;
pub mod sparse_autoencoder;
pub mod sparse_coding;
mod split;
pub mod stack;
mod trainer;
pub mod tsne;
mod unit_range;

pub use chandlery_datasets as datasets;
pub use chandlery_datasets::{ImageShape, Preparation};
pub use chandlery_ops::{Group, Philox, Precision};
pub use early_stopping::{Best, Convergence, Converging, EarlyStopping};
pub use model::{Decode, Encode, Layered, Model, ModelConfig};
pub use pretrained::{LoadOptions, ModelType};
pub use share::Share;
pub use trainer::{Epochs, Event, FullBatchTrainer, MinibatchTrainer, Trainer};
pub use unit_range::in_unit_interval;
