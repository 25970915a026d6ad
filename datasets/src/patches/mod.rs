//! Patches of natural images: drawn, normalised, whitened.
//!
//! ```text
//! ImageSet ──PatchSampler──▶ x [n, k²] ──remove_mean / normalize_contrast / TutorialRescale──▶ ──Whitening──▶ y
//! ```
//!
//! | step                     | what it does                                   | fitted | source                       |
//! |--------------------------|------------------------------------------------|--------|------------------------------|
//! | [`PatchSampler`]         | seeded k×k windows, every position as likely   | no     |                              |
//! | [`remove_mean`]          | `x - mean(x)`, a patch at a time               | no     | Ng et al., UFLDL             |
//! | [`normalize_contrast`]   | `(x - mean(x)) / √(var(x) + c)`                | no     | Coates & Ng 2012, section 2  |
//! | [`TutorialRescale`]      | mean removed, ±3σ clipped, onto [0.1, 0.9]     | yes    | Ng, CS294A 2011; UFLDL       |
//! | [`Whitening`]            | PCA or ZCA: unit covariance                    | yes    | Bell & Sejnowski 1997; UFLDL |
//!
//! A [`PatchSampler`] is a [`Source`](crate::Source), so a [`Feed`](crate::Feed) streams patches that nobody stored. What
//! is fitted gives its numbers as named tensors, to be saved with the model and loaded again.
//!
//! ```
//! use candle::Device;
//! use chandlery_datasets::patches::{PatchSampler, Whitening, WhiteningConfig, remove_mean};
//! use chandlery_datasets::embedded::natural_images;
//! # fn main() -> chandlery_datasets::Result<()> {
//! let sampler = PatchSampler::new(natural_images()?, 8, 2000, 1)?;
//! let patches = remove_mean(&sampler.draw(0..2000, &Device::Cpu)?)?;
//! let zca = Whitening::fit(&patches, &WhiteningConfig::default())?;
//! let white = zca.transform(&patches)?;
//! assert_eq!(white.dims(), [2000, 64]);
//! # Ok(()) }
//! ```
mod image_set;
mod moments;
mod normalize;
mod sampler;
mod whitening;

pub use image_set::{GreyImage, ImageSet};
pub use moments::Moments;
pub use normalize::{CONTRAST_REGULARISER, TutorialRescale, normalize_contrast, remove_mean};
pub use sampler::{PatchPlace, PatchSampler};
pub use whitening::{Whitening, WhiteningConfig, WhiteningKind};

use crate::{Error, Result};
use candle::{DType, Device, Tensor};
use std::collections::HashMap;

/// The one check of rows: `name` must be `[n, n_features]` of f32, returned as `(n, n_features)`.
fn rows_of(at: &str, name: &str, rows: &Tensor, n_features: Option<usize>) -> Result<(usize, usize)> {
    let fits = match *rows.dims() {
        [n, f] if f > 0 && n_features.is_none_or(|want| want == f) => Some((n, f)),
        _ => None,
    };
    match fits {
        Some(dims) if rows.dtype() == DType::F32 => Ok(dims),
        _ => {
            let width = n_features.map_or_else(|| "n_features".to_owned(), |f| f.to_string());
            Err(Error::Argument(format!(
                "{at}: {name} must be f32 of shape [n_samples, {width}], got {:?} of shape {:?}",
                rows.dtype(),
                rows.dims()
            )))
        }
    }
}

/// The stored tensor `{prefix}.{name}`: f64, finite, of `dims` where they are given; on the CPU.
fn stored(
    tensors: &HashMap<String, Tensor>,
    prefix: &str,
    name: &str,
    dims: &[Option<usize>],
) -> Result<Tensor> {
    let full = format!("{prefix}.{name}");
    let Some(tensor) = tensors.get(&full) else {
        return Err(Error::missing(prefix, "tensor", &full, tensors.keys()));
    };
    let fits = tensor.rank() == dims.len()
        && tensor.elem_count() > 0
        && tensor.dims().iter().zip(dims).all(|(&got, want)| want.is_none_or(|want| want == got));
    let refused = |what: String| Error::format(&full, what, "load what `tensors` gave, unchanged");
    if !fits || tensor.dtype() != DType::F64 {
        let want: Vec<_> =
            dims.iter().map(|d| d.map_or_else(|| "any".to_owned(), |d| d.to_string())).collect();
        return Err(refused(format!(
            "must be F64 of shape [{}], got {:?} of shape {:?}",
            want.join(", "),
            tensor.dtype(),
            tensor.dims()
        )));
    }
    let tensor = tensor.to_device(&Device::Cpu)?;
    match tensor.flatten_all()?.to_vec1::<f64>()?.iter().find(|v| !v.is_finite()) {
        Some(value) => Err(refused(format!("must be finite, holds {value}"))),
        None => Ok(tensor),
    }
}

/// The stored number `{prefix}.{name}`, at least 0.
fn stored_number(tensors: &HashMap<String, Tensor>, prefix: &str, name: &str) -> Result<f64> {
    let values = stored(tensors, prefix, name, &[Some(1)])?.to_vec1::<f64>()?;
    match values.first() {
        Some(&value) if value >= 0. => Ok(value),
        _ => Err(Error::format(
            format!("{prefix}.{name}"),
            format!("must be at least 0, got {values:?}"),
            "load what `tensors` gave, unchanged",
        )),
    }
}
