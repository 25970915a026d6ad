//! What is done to one patch at a time, and the tutorial's rescaling.
use super::checks::{applied_rows, rows_of, stored_number};
use crate::{Error, Result};
use candle::{DType, Device, Tensor};
use std::collections::HashMap;

/// The variance that [`normalize_contrast`] adds by custom: 10 on a scale of 0..=255 (Coates & Ng
/// 2012, section 2.1), for patches on a scale of 0..=1.
pub const CONTRAST_REGULARISER: f64 = 10. / (255. * 255.);

/// Rows that are held as f64 at a time.
const BLOCK_ROWS: usize = 8192;

/// `x - mean(x)`, each patch its own mean: brightness goes, the flat patch becomes exactly zero.
///
/// `patches` is `[n, n_features]` f32, and so is the result. Means are taken in f64. Source: Ng et
/// al., "Unsupervised feature learning and deep learning" (UFLDL), "Data preprocessing: per-example
/// mean subtraction".
///
/// # Errors
/// When `patches` has another shape or type.
pub fn remove_mean(patches: &Tensor) -> Result<Tensor> {
    rows_of("remove_mean", "patches", patches, None)?;
    without_row_mean(patches)
}

/// The same for rows of any float type, which the result has too.
pub(super) fn without_row_mean(rows: &Tensor) -> Result<Tensor> {
    by_blocks(rows, centred)
}

/// `T x / Σ |x|` of each row; rows of zeros stay.
pub(super) fn of_row_sum(rows: &Tensor, total: f64) -> Result<Tensor> {
    by_blocks(rows, |rows| {
        let rows = rows.to_dtype(DType::F64)?;
        let sums = rows.abs()?.sum_keepdim(1)?;
        let is_zero = sums.eq(0f64)?.to_dtype(DType::F64)?;
        rows.broadcast_mul(&((sums + is_zero)?.recip()? * total)?)
    })
}

/// `(x - mean(x)) / √(var(x) + regulariser)`, each patch its own mean and variance: brightness and
/// contrast go.
///
/// `patches` is `[n, n_features]` f32, and so is the result. The variance has divisor `n_features`;
/// `regulariser` ([`CONTRAST_REGULARISER`] for patches in [0, 1]) keeps nearly flat patches from
/// becoming noise at full contrast. Source: Coates & Ng, "Learning feature representations with
/// k-means", 2012, section 2.1.
///
/// # Errors
/// When `patches` has another shape or type, or `regulariser` is not a finite number above 0.
pub fn normalize_contrast(patches: &Tensor, regulariser: f64) -> Result<Tensor> {
    rows_of("normalize_contrast", "patches", patches, None)?;
    if !(regulariser.is_finite() && regulariser > 0.) {
        return Err(Error::Argument(format!(
            "normalize_contrast: regulariser must be a finite number above 0, got {regulariser}"
        )));
    }
    contrast_normalized(patches, regulariser)
}

/// The same for rows of any float type, which the result has too.
pub(super) fn contrast_normalized(rows: &Tensor, regulariser: f64) -> Result<Tensor> {
    by_blocks(rows, |rows| {
        let centred = centred(rows)?;
        let variance = centred.sqr()?.mean_keepdim(1)?;
        centred.broadcast_div(&(variance + regulariser)?.sqrt()?)
    })
}

/// `x - mean(x)` in f64, counted from each patch's first pixel: so a flat patch is zero whatever
/// `mean` rounds.
fn centred(patches: &Tensor) -> candle::Result<Tensor> {
    let patches = patches.to_dtype(DType::F64)?;
    let from_first = patches.broadcast_sub(&patches.narrow(1, 0, 1)?)?;
    from_first.broadcast_sub(&from_first.mean_keepdim(1)?)
}

/// `f` of blocks of rows, joined, in the type of the rows: bounds what is held in f64.
pub(super) fn by_blocks(rows: &Tensor, f: impl Fn(&Tensor) -> candle::Result<Tensor>) -> Result<Tensor> {
    let n = rows.dim(0)?;
    let blocks = (0..n)
        .step_by(BLOCK_ROWS)
        .map(|start| f(&rows.narrow(0, start, BLOCK_ROWS.min(n - start))?)?.to_dtype(rows.dtype()))
        .collect::<candle::Result<Vec<_>>>()?;
    match blocks.as_slice() {
        [] => Ok(rows.clone()),
        [one] => Ok(one.clone()),
        several => Ok(Tensor::cat(several, 0)?),
    }
}

/// The sparse-autoencoder tutorial's normalisation, onto [0.1, 0.9], where sigmoid units can
/// follow.
///
/// ```text
/// z = x - mean(x)                        each patch its own mean
/// σ = √(Σ z² / (N - 1))                  over all N values of all patches fitted on
/// y = 0.4 clip(z, -3σ, 3σ) / 3σ + 0.5
/// ```
/// Source: Ng, "Sparse autoencoder", CS294A lecture notes, 2011, and the function `normalizeData`
/// of its exercise. Departure: the σ of the patches fitted on is kept, so that new patches are
/// scaled alike.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TutorialRescale {
    deviation: f64,
}

impl TutorialRescale {
    /// Measures `σ` on `patches`, `[n, n_features]` f32.
    ///
    /// # Errors
    /// When `patches` has another shape or type, holds fewer than two values, or one that is not
    /// finite.
    pub fn fit(patches: &Tensor) -> Result<Self> {
        let (n, n_features) = rows_of("TutorialRescale::fit", "patches", patches, None)?;
        let mut squares = 0.;
        for start in (0..n).step_by(BLOCK_ROWS) {
            squares += Self::squares(&patches.narrow(0, start, BLOCK_ROWS.min(n - start))?)?;
        }
        Self::of(squares, n * n_features)
    }

    /// `Σ z²` of a block of patches.
    pub(super) fn squares(patches: &Tensor) -> Result<f64> {
        Ok(centred(patches)?.sqr()?.sum_all()?.to_scalar()?)
    }

    /// Of `Σ z²` and `N`.
    pub(super) fn of(squares: f64, n_values: usize) -> Result<Self> {
        if n_values < 2 {
            return Err(Error::Argument(format!(
                "TutorialRescale::fit: patches must hold at least 2 values, got {n_values}"
            )));
        }
        if !squares.is_finite() {
            return Err(Error::Argument(
                "TutorialRescale::fit: patches must be finite, got NaN or infinity; find and drop it"
                    .to_owned(),
            ));
        }
        Self::new((squares / (n_values - 1) as f64).sqrt())
    }

    /// With a `σ` that is known.
    ///
    /// # Errors
    /// When `deviation` is negative or not finite.
    pub fn new(deviation: f64) -> Result<Self> {
        if !(deviation.is_finite() && deviation >= 0.) {
            return Err(Error::Argument(format!(
                "TutorialRescale: deviation must be a finite number of at least 0, got {deviation}"
            )));
        }
        Ok(Self { deviation })
    }

    /// `σ`, at least 0; 0 when all patches were flat.
    pub fn deviation(&self) -> f64 {
        self.deviation
    }

    /// `y` of `patches`, both `[n, n_features]` f32 or f64; `y` is in [0.1, 0.9], a flat patch 0.5
    /// throughout.
    ///
    /// # Errors
    /// When `patches` has another shape or type.
    pub fn transform(&self, patches: &Tensor) -> Result<Tensor> {
        applied_rows("TutorialRescale.transform", "patches", patches, None)?;
        let limit = 3. * self.deviation;
        let slope = if limit > 0. { 0.4 / limit } else { 0. };
        by_blocks(patches, |patches| centred(patches)?.clamp(-limit, limit)?.affine(slope, 0.5))
    }

    /// `z` of `y`, but for what was clipped; the patch's own mean is gone.
    ///
    /// # Errors
    /// When `rescaled` is not `[n, n_features]` f32 or f64.
    pub fn inverse(&self, rescaled: &Tensor) -> Result<Tensor> {
        applied_rows("TutorialRescale.inverse", "rescaled", rescaled, None)?;
        let slope = 3. * self.deviation / 0.4;
        Ok(rescaled.affine(slope, -0.5 * slope)?)
    }

    /// What to save with a model: `{prefix}.deviation`, `[1]`, f64.
    ///
    /// # Errors
    /// Only when memory is short.
    pub fn tensors(&self, prefix: &str) -> Result<HashMap<String, Tensor>> {
        let deviation = Tensor::new(&[self.deviation], &Device::Cpu)?;
        Ok(HashMap::from([(format!("{prefix}.deviation"), deviation)]))
    }

    /// Back from [`TutorialRescale::tensors`].
    ///
    /// # Errors
    /// When the tensor is missing, or not one finite f64 of at least 0.
    pub fn from_tensors(tensors: &HashMap<String, Tensor>, prefix: &str) -> Result<Self> {
        let deviation = stored_number(tensors, prefix, "deviation")?;
        Ok(Self { deviation })
    }
}
