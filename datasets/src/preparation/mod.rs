//! What is done to raw rows before a model reads them.
//!
//! A [`Preparation`] is fitted once to the training rows and saved with the model, so that raw rows
//! go in at inference as in training:
//!
//! ```text
//! raw rows, u8 or float ──× 1/255 (bytes)──▶ step 1 ──▶ step 2 ──▶ … ──▶ what the model reads
//! ```
//!
//! | step                                      | what it does                                   | fitted | source                       |
//! |-------------------------------------------|------------------------------------------------|--------|------------------------------|
//! | [`Scale`](StepConfig::Scale)              | `c x`                                          | no     |                              |
//! | [`UnitVariance`](StepConfig::UnitVariance) | `x / σ`, one `σ` for all features             | yes    |                              |
//! | [`MeanNorm`](StepConfig::MeanNorm)        | `x √n / mean length of rows`, for `n` features | yes    | Conerly et al. 2024          |
//! | [`Center`](StepConfig::Center)            | `x - μ`, the mean of each feature              | yes    |                              |
//! | [`Standardise`](StepConfig::Standardise)  | each column to mean 0 and deviation 1          | yes    |                              |
//! | [`MinMax`](StepConfig::MinMax)            | each column onto [0, 1]                        | yes    |                              |
//! | [`Robust`](StepConfig::Robust)            | each column by its median and quartiles        | yes    |                              |
//! | [`Log1p`](StepConfig::Log1p)              | `ln(1 + x)`                                    | no     |                              |
//! | [`RowSum`](StepConfig::RowSum)            | `T x / Σ abs(x)`, each row its own sum         | no     | Luecken & Theis 2019         |
//! | [`RowMean`](StepConfig::RowMean)          | `x - mean(x)`, each row its own mean           | no     | Ng et al., UFLDL             |
//! | [`Contrast`](StepConfig::Contrast)        | `(x - mean(x)) / √(var(x) + c)`                | no     | Coates & Ng 2012, section 2  |
//! | [`Rescale`](StepConfig::Rescale)          | row mean removed, ±3σ clipped, onto [0.1, 0.9] | yes    | Ng, CS294A 2011; UFLDL       |
//! | [`Pca`](StepConfig::Pca)                  | coordinates along the directions of most variance | yes | Jolliffe 2002                |
//! | [`Whiten`](StepConfig::Whiten)            | PCA or ZCA: unit covariance                    | yes    | Bell & Sejnowski 1997; UFLDL |
//!
//! Each step is also there alone: [`Pca`], [`Whitening`], [`TutorialRescale`], [`remove_mean`],
//! [`normalize_contrast`].
//!
//! ```
//! use candle::Device::Cpu;
//! use chandlery_datasets::preparation::{Preparation, StepConfig, WhiteningConfig};
//! use chandlery_datasets::{Split, embedded};
//! # fn main() -> chandlery_datasets::Result<()> {
//! let digits = embedded::mnist_sample()?.train.take(500)?;
//! let preparation = Preparation::fit(&digits, &[StepConfig::RowMean, StepConfig::Pca { n_components: 20 }], 1)?;
//! let rows = digits.raw(&Cpu)?; // bytes
//! assert_eq!(preparation.apply(&rows)?.dims(), [500, 20]);
//! # Ok(()) }
//! ```
mod applied;
mod chain;
mod checks;
mod columns;
mod columns_fit;
mod fit;
mod krylov;
mod moments;
mod normalize;
mod notes;
mod pca;
mod sparse;
mod statistics;
mod step;
mod stored;
mod whitening;

pub use chain::Preparation;
pub use moments::Moments;
pub use normalize::{CONTRAST_REGULARISER, TutorialRescale, normalize_contrast, remove_mean};
pub use pca::Pca;
pub use statistics::RowStatistics;
pub use step::StepConfig;
pub use whitening::{Whitening, WhiteningConfig, WhiteningKind};
