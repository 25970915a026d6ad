//! Denoising by sparse codes of all overlapping patches (Elad and Aharon 2006).
//!
//! ```text
//! R_i y = μ_i + D x_i + noise                     a patch: its mean, a few atoms, and noise that few atoms cannot represent
//! x_i   = argmin ‖x‖₀  with  ‖R_i y − μ_i − D x‖₂ ≤ C σ √p          by a greedy pursuit, at most `n_nonzero` atoms
//! ŷ     = (y + β σ Σ_i R_iᵀ(μ_i + D x_i)) / (1 + β σ Σ_i R_iᵀ 1)    the average of the patches and, with small weight, the noisy image
//! ```
//!
//! | symbol | field | |
//! |---|---|---|
//! | `y`, `ŷ` | `noisy`, result | `[height, width]`, in grey levels |
//! | `σ` | `sigma` | standard deviation of the noise, in grey levels |
//! | `p` | `side²` | |
//! | `C` | `gain` | 1.15: of 8×8 patches of pure noise, without their means, 96 % are shorter than `1.15 σ √64` and take no atom |
//! | `β` | `blend` | 0.034 for each grey level of σ |
//! | `D` | `dictionary` | `[n_atoms, p]` |
//! | `κ` | `penalty` | none: pursuits |
//!
//! With a penalty `κ`, `x_i = argmin ½ ‖R_i y − μ_i − D x‖² + κ σ Σ |x_j|` in place of the pursuit,
//! by the [lasso](crate::sparse_coding::lasso).
//!
//! Source: Elad and Aharon, "Image denoising via sparse and redundant representations over learned
//! dictionaries", IEEE Transactions on Image Processing 15(12), 2006. Its equation weighs the noisy
//! image by λ = 30/σ against patches of weight 1; divided by λ that is β σ = σ/30 = .033 σ; the
//! program of the published figures has .034. The mean of each patch is subtracted before coding
//! and added after it, as in that program: the mean of 64 pixels has an eighth of their noise, and
//! each patch needs one atom less.
//!
//! The dictionary is best learned from the noisy image itself
//! ([`ImageTrainer`](super::ImageTrainer)): coding to the error target removes most of the noise of
//! a patch, and the atoms average over thousands of patches.
use super::coder::PatchCoder;
use super::patches::{BandSum, PatchGrid};
use crate::check::{at_least_one, range};
use crate::dictionary::pursuit::{PursuitMethod, SparseCoder};
use crate::sparse_coding::lasso::Lasso;
use candle::{DType, Result, Tensor};
use chandlery_ops::codes::ErrorTarget;

/// Patches that are coded at once: their rows, codes and estimates take some 60 MB at 8×8 pixels.
pub(super) const BAND: usize = 65_536;
/// The defaults of [`Denoise::gain`] and [`Denoise::blend`].
pub(super) const GAIN: f64 = 1.15;
pub(super) const BLEND: f64 = 0.034;

/// Settings of denoising; see the [module](self).
#[derive(Debug, Clone, PartialEq)]
pub struct Denoise {
    /// Standard deviation of the noise in grey levels, above 0.
    pub sigma: f64,
    /// Height and width of a patch, 2 or more. Default 8.
    pub side: usize,
    /// Pixels from patch to patch, 1 to `side`. Default 1, all of them; 2 takes a quarter of the
    /// time and loses about .1 dB.
    pub step: usize,
    /// `C`, above 0: the code of a patch stops growing when its residual is at most
    /// `gain · sigma · side`. Default 1.15.
    pub gain: f64,
    /// `β`, above 0: weight of a patch relative to the noisy image, per grey level of `sigma`.
    /// Default 0.034.
    pub blend: f64,
    /// Largest number of atoms per patch, at least 1. Default `side² / 2`, as in the authors'
    /// program; few patches reach it.
    pub n_nonzero: usize,
    /// How the atoms are chosen.
    pub method: PursuitMethod,
    /// `κ`, at least 0: patches have penalised coefficients in place of a limited number of atoms.
    /// Default none: with the best `κ`, about 2, penalised coefficients are 1 dB worse than
    /// pursuits (Barbara and House, σ 25, atoms learned from the noisy image by pursuits).
    pub penalty: Option<f64>,
}

impl Denoise {
    /// The published settings for noise of deviation `sigma`, with 8×8 patches.
    pub fn new(sigma: f64) -> Self {
        Self::with_side(sigma, 8)
    }

    /// The published settings with patches of another side.
    pub fn with_side(sigma: f64, side: usize) -> Self {
        Self {
            sigma,
            side,
            step: 1,
            gain: GAIN,
            blend: BLEND,
            n_nonzero: (side * side / 2).max(1),
            method: PursuitMethod::Omp,
            penalty: None,
        }
    }

    /// # Errors
    /// When a field is out of its range; the message names it.
    pub fn validate(&self) -> Result<()> {
        const OP: &str = "Denoise";
        range(OP, "sigma", self.sigma, "above 0", |x| x > 0.)?;
        range(OP, "gain", self.gain, "above 0", |x| x > 0.)?;
        range(OP, "blend", self.blend, "above 0", |x| x > 0.)?;
        at_least_one(OP, "n_nonzero", self.n_nonzero)?;
        range(OP, "penalty", self.penalty.unwrap_or(0.), "at least 0", |x| x >= 0.)?;
        if self.side < 2 {
            candle::bail!("{OP}: side must be at least 2, got {}; a single pixel has no structure", self.side)
        }
        Ok(())
    }

    /// The pursuit of a patch without its mean.
    pub fn coder(&self, n_atoms: usize) -> SparseCoder {
        SparseCoder {
            error: Some(ErrorTarget::Absolute(self.gain * self.sigma * self.side as f64)),
            ..SparseCoder::new(self.method, self.n_nonzero.min(n_atoms))
        }
    }

    /// What codes the patches of the result.
    fn patch_coder(&self, n_atoms: usize) -> PatchCoder {
        match self.penalty {
            None => PatchCoder::Pursuit(self.coder(n_atoms)),
            Some(penalty) => PatchCoder::Lasso(Lasso::new(penalty * self.sigma)),
        }
    }
}

/// A restored image.
#[derive(Debug, Clone)]
pub struct Restored {
    /// `[height, width]` f32, in grey levels; neither rounded nor clipped to 0 and 255.
    pub image: Tensor,
    /// Mean number of atoms per coded patch.
    pub mean_count: f64,
}

/// Denoises one plane with a given dictionary.
///
/// `noisy` is `[height, width]` f32 in grey levels, `dictionary` `[n_atoms, side²]` on its device.
/// Cost: one pursuit per patch; with a step of 1 there are about as many patches as pixels.
///
/// # Errors
/// When a shape or a setting is out of range, the image holds a NaN, or memory is short.
pub fn denoise(noisy: &Tensor, dictionary: &Tensor, settings: &Denoise) -> Result<Restored> {
    denoise_with_progress(noisy, dictionary, settings, &mut |_, _| {})
}

/// [`denoise`] that tells `progress` how many of how many patches are coded.
///
/// # Errors
/// As [`denoise`].
pub fn denoise_with_progress(
    noisy: &Tensor,
    dictionary: &Tensor,
    settings: &Denoise,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Restored> {
    settings.validate()?;
    let grid = plane_grid("denoise", noisy, settings.side, settings.step)?;
    let coder = settings.patch_coder(atoms_of("denoise", dictionary, grid.n_features())?);
    let (mut patches, mut atoms) = (BandSum::default(), 0f64);
    let mut done = 0;
    for band in grid.bands(band_of(settings.penalty)) {
        let rows = grid.rows(noisy, band.clone())?;
        let mean = rows.mean_keepdim(1)?;
        let estimate = coder.estimate(&rows.broadcast_sub(&mean)?, None, dictionary)?;
        atoms += estimate.count;
        let estimate = estimate.patches.broadcast_add(&mean)?;
        patches.add(&grid, &band, grid.sum(&estimate, band.clone())?)?;
        done += rows.dim(0)?;
        progress(done, grid.n_patches());
    }
    let weight = settings.blend * settings.sigma;
    let sum = ((patches.image()? * weight)? + noisy)?;
    let image = (sum / ((grid.cover(noisy.device())? * weight)? + 1.)?)?;
    Ok(Restored { image, mean_count: atoms / grid.n_patches() as f64 })
}

/// Patches that are coded at once: fewer by a lasso, which takes far longer for each.
pub(super) fn band_of(penalty: Option<f64>) -> usize {
    if penalty.is_some() { BAND / 16 } else { BAND }
}

/// The patches of a plane.
pub(super) fn plane_grid(op: &str, plane: &Tensor, side: usize, step: usize) -> Result<PatchGrid> {
    match *plane.dims() {
        [height, width] if plane.dtype() == DType::F32 => PatchGrid::new(height, width, side, step),
        _ => candle::bail!(
            "{op}: image must be F32 of shape [height, width], got {:?} of {:?}; give the planes of a colour image one by one",
            plane.dtype(),
            plane.dims()
        ),
    }
}

/// The number of atoms of a dictionary for patches of `n_features` values.
pub(super) fn atoms_of(op: &str, dictionary: &Tensor, n_features: usize) -> Result<usize> {
    match *dictionary.dims() {
        [n_atoms, features] if features == n_features && n_atoms > 0 => Ok(n_atoms),
        _ => candle::bail!(
            "{op}: dictionary must be [n_atoms, {n_features}] for these patches, got {:?}",
            dictionary.dims()
        ),
    }
}
