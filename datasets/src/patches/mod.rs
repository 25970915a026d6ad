//! Patches of images, drawn at random.
//!
//! A [`PatchSampler`] is a [`Source`](crate::Source), so a [`Feed`](crate::Feed) streams patches
//! that nobody stored. What is usually done to patches before a model reads them is in
//! [`preparation`](crate::preparation).
//!
//! ```
//! use candle::Device;
//! use chandlery_datasets::embedded::natural_images;
//! use chandlery_datasets::patches::PatchSampler;
//! use chandlery_datasets::preparation::{Whitening, WhiteningConfig, remove_mean};
//! # fn main() -> chandlery_datasets::Result<()> {
//! let sampler = PatchSampler::new(natural_images()?, 8, 2000, 1)?;
//! let patches = remove_mean(&sampler.draw(0..2000, &Device::Cpu)?)?;
//! let zca = Whitening::fit(&patches, &WhiteningConfig::default())?;
//! let white = zca.transform(&patches)?;
//! assert_eq!(white.dims(), [2000, 64]);
//! # Ok(()) }
//! ```
mod crops;
pub(crate) mod image_set;
mod open;
mod sampler;
mod size;

pub use image_set::{Image, ImageSet};
pub use sampler::{PatchPlace, PatchSampler};
pub use size::PatchSize;
