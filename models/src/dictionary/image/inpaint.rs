//! Inpainting: missing pixels are filled in from sparse codes of the known pixels.
//!
//! ```text
//! μ_i = mean of the known pixels of R_i y
//! x_i = argmin ‖x‖₀  with  ‖M_i (R_i y − μ_i − D x)‖₂ ≤ ε √(known pixels of patch i)     masked pursuit
//! s = Σ_i w_i R_iᵀ(μ_i + D x_i),   c = Σ_i w_i R_iᵀ 1,   w_i = known pixels of patch i / p
//! ŷ = s / c                        for missing pixels
//! ŷ = (y + β σ s) / (1 + β σ c)    for known pixels; y itself without noise
//! ```
//!
//! | symbol | field | |
//! |---|---|---|
//! | `y`, `M` | `image`, `mask` | `[height, width]`, mask 0 where a pixel is missing |
//! | `ε` | the larger of `tolerance` and 1.15 `sigma` | root mean square error of known pixels, in grey levels |
//! | `σ`, `β` | `sigma`, .034 | as for [denoising](super::denoise()) |
//! | `D` | `dictionary` | `[n_atoms, side²]`; a flat atom is added if there is none |
//! | `κ` | `penalty` | none: pursuits |
//!
//! With a penalty `κ`, `x_i = argmin ½ ‖M_i (R_i y − μ_i − D x)‖² + κ ε Σ |x_j|`, the sum over
//! atoms that are not flat, in place of the pursuit, by the
//! [lasso](crate::sparse_coding::lasso::Lasso::solve_masked). An atom of which a patch shows little
//! then counts little, and neither the number of atoms nor the error is bounded.
//!
//! The mean of the known pixels differs from that of the patch; the flat atom corrects the
//! difference.
//!
//! A hole larger than a patch is filled from its border inwards: each pass fills in the missing
//! pixels of patches that have known pixels, and the filled pixels count as known in the next pass.
//!
//! Source: Elad, Starck, Querre and Donoho 2005 and Mairal, Elad and Sapiro, "Sparse representation
//! for color image restoration", IEEE Transactions on Image Processing 17(1), 2008, section III-B.
//! Departures: patches are weighted by their share of known pixels (all equally in the paper); the
//! dictionary is learned by alternating inpainting and training
//! ([`ImageTrainer::filled`](super::ImageTrainer::filled)), the EM form of their weighted K-SVD.
use super::coder::PatchCoder;
use super::denoise::{BLEND, GAIN, Restored, atoms_of, band_of, plane_grid};
use super::patches::{BandSum, PatchGrid};
use crate::check::{at_least_one, range};
use crate::dictionary::pursuit::{PursuitMethod, SparseCoder};
use crate::sparse_coding::lasso::Lasso;
use candle::{DType, Device, Result, Tensor};
use chandlery_ops::arrays::gather_rows;
use chandlery_ops::codes::ErrorTarget;

/// Settings of inpainting; see the [module](self).
#[derive(Debug, Clone, PartialEq)]
pub struct Inpaint {
    /// Height and width of a patch, 2 or more. Default 10, which gives .5 to 1.5 dB more than 8.
    pub side: usize,
    /// Pixels from patch to patch, 1 to `side`. Default 1.
    pub step: usize,
    /// `ε`: root mean square error of a patch's known pixels at which its code stops growing, in
    /// grey levels, at least 0. Default 3.
    pub tolerance: f64,
    /// `σ`: standard deviation of the noise on known pixels, in grey levels, at least 0. Default 0:
    /// known pixels do not change.
    pub sigma: f64,
    /// Largest number of atoms per patch, at least 1. Default 10.
    pub n_nonzero: usize,
    /// Known pixels needed per atom, at least 1: a patch with k known pixels takes at most
    /// `k / known_per_atom` atoms, but may always take one. Default 4; with fewer, codes overfit
    /// the known pixels and predict the missing ones badly.
    pub known_per_atom: usize,
    /// The pursuit, OMP or OLS. Default OMP.
    pub method: PursuitMethod,
    /// `κ`, at least 0: patches have penalised coefficients in place of a limited number of atoms.
    /// Default none.
    pub penalty: Option<f64>,
}

impl Default for Inpaint {
    fn default() -> Self {
        Self {
            side: 10,
            step: 1,
            tolerance: 3.,
            sigma: 0.,
            n_nonzero: 10,
            known_per_atom: 4,
            method: PursuitMethod::Omp,
            penalty: None,
        }
    }
}

impl Inpaint {
    /// # Errors
    /// When a field is out of its range; the message names it.
    pub fn validate(&self) -> Result<()> {
        const OP: &str = "Inpaint";
        range(OP, "tolerance", self.tolerance, "at least 0", |x| x >= 0.)?;
        range(OP, "sigma", self.sigma, "at least 0", |x| x >= 0.)?;
        range(OP, "penalty", self.penalty.unwrap_or(0.), "at least 0", |x| x >= 0.)?;
        at_least_one(OP, "n_nonzero", self.n_nonzero)?;
        at_least_one(OP, "known_per_atom", self.known_per_atom)?;
        if !matches!(self.method, PursuitMethod::Omp | PursuitMethod::Ols) {
            candle::bail!(
                "{OP}: method must be omp or ols, which support missing samples, got {}",
                self.method.name()
            )
        }
        if self.side < 2 {
            candle::bail!("{OP}: side must be at least 2, got {}; a single pixel has no structure", self.side)
        }
        Ok(())
    }

    /// The pursuit of a patch of which everything is known.
    pub(super) fn coder(&self, n_atoms: usize) -> SparseCoder {
        SparseCoder {
            error: Some(ErrorTarget::Absolute(self.error() * self.side as f64)),
            ..SparseCoder::new(self.method, self.n_nonzero.min(n_atoms))
        }
    }

    /// Root mean square error of a known pixel.
    fn error(&self) -> f64 {
        self.tolerance.max(GAIN * self.sigma)
    }
}

/// Fills in the missing pixels of one plane with a given dictionary.
///
/// `image` is `[height, width]` f32 in grey levels; `mask` is u8 of that shape, 0 where a pixel is
/// missing; the values of missing pixels are never read; `dictionary` is `[n_atoms, side²]`; all on
/// one device. Cost: one masked pursuit, or with a penalty one lasso with its own Gram matrix, for
/// each patch with a missing pixel, or for every patch if `sigma` is above 0.
///
/// # Errors
/// When a shape or a setting is out of range, no pixel is known, a known one is NaN, or memory is
/// short.
pub fn inpaint(image: &Tensor, mask: &Tensor, dictionary: &Tensor, settings: &Inpaint) -> Result<Restored> {
    inpaint_with_progress(image, mask, dictionary, settings, &mut |_, _| {})
}

/// [`inpaint`] that tells `progress` how many of how many patches are done; it begins again where a
/// hole is larger than a patch.
///
/// # Errors
/// As [`inpaint`].
pub fn inpaint_with_progress(
    image: &Tensor,
    mask: &Tensor,
    dictionary: &Tensor,
    settings: &Inpaint,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Restored> {
    settings.validate()?;
    let grid = plane_grid("inpaint", image, settings.side, settings.step)?;
    atoms_of("inpaint", dictionary, grid.n_features())?;
    let dictionary = &with_flat_atom(dictionary)?;
    if mask.dims() != image.dims() || mask.dtype() != DType::U8 {
        candle::bail!(
            "inpaint: mask must be U8 of the image's shape {:?}, got {:?} of {:?}",
            image.dims(),
            mask.dtype(),
            mask.dims()
        )
    }
    let given = mask.ne(0u8)?;
    let mut known = given.clone();
    // A value that is not there may be NaN, and NaN · 0 is NaN.
    let mut now = given.where_cond(image, &image.zeros_like()?)?;
    if all_zero(&known)? {
        candle::bail!("inpaint: at least 1 pixel must be known, got none; 0 in the mask means missing")
    }
    // Without noise a patch of which all is known has nothing to say.
    let denoises = settings.sigma > 0.;
    let first = Pass::over(&grid, &now, &known, dictionary, settings, denoises, progress)?;
    let mut pass = first.clone();
    loop {
        let reached = pass.cover.gt(0f32)?;
        let mean = (&pass.sum / pass.cover.clamp(1e-6, f32::MAX)?)?;
        now = known.where_cond(&now, &mean)?;
        let grown = (&known + &reached)?.ne(0u8)?;
        if all_zero(&grown.eq(0u8)?)? {
            break;
        }
        if all_zero(&grown.ne(&known)?)? {
            candle::bail!(
                "inpaint: patches must reach into holes from their rims, but none does at step {}; take a smaller step",
                settings.step
            )
        }
        // The hole is larger than a patch: go on from what has been filled.
        known = grown;
        pass = Pass::over(&grid, &now, &known, dictionary, settings, false, progress)?;
    }
    let weight = BLEND * settings.sigma;
    let blended = ((image + (first.sum * weight)?)? / ((first.cover * weight)? + 1.)?)?;
    let image = given.where_cond(&blended, &now)?;
    Ok(Restored { image, mean_count: first.count / first.coded.max(1) as f64 })
}

/// Patches coded once.
#[derive(Clone)]
struct Pass {
    /// `s` and `c`, `[height, width]`.
    sum: Tensor,
    cover: Tensor,
    /// Patches that were coded, and atoms in their codes.
    coded: usize,
    count: f64,
}

impl Pass {
    /// Codes the patches that know something, and unless `all` lack something.
    fn over(
        grid: &PatchGrid,
        image: &Tensor,
        known: &Tensor,
        dictionary: &Tensor,
        settings: &Inpaint,
        all: bool,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Self> {
        let (mut sums, mut covers, mut coded, mut count) = (BandSum::default(), BandSum::default(), 0, 0.);
        let (known, p) = (known.to_dtype(DType::F32)?, grid.n_features());
        let mut done = 0;
        for band in grid.bands(band_of(settings.penalty)) {
            let mask = grid.rows(&known, band.clone())?;
            let n_known: Vec<usize> =
                mask.sum(1)?.to_vec1::<f32>()?.into_iter().map(|n| n as usize).collect();
            let wanted = |n: usize| n > 0 && (all || n < p);
            let rows = grid.rows(image, band.clone())?;
            let job = Masked { rows: &rows, mask: &mask, n_known: &n_known };
            let (estimate, atoms) = job.estimate(dictionary, settings, wanted)?;
            let weight: Vec<f32> =
                n_known.iter().map(|&n| if wanted(n) { n as f32 / p as f32 } else { 0. }).collect();
            coded += weight.iter().filter(|&&w| w > 0.).count();
            count += atoms;
            let weight = Tensor::from_vec(weight, (n_known.len(), 1), image.device())?;
            sums.add(grid, &band, grid.sum(&estimate.broadcast_mul(&weight)?, band.clone())?)?;
            let weight = weight.broadcast_as(rows.shape())?.contiguous()?;
            covers.add(grid, &band, grid.sum(&weight, band.clone())?)?;
            done += n_known.len();
            progress(done, grid.n_patches());
        }
        Ok(Self { sum: sums.image()?, cover: covers.image()?, coded, count })
    }
}

/// Patches of a band, which pixels of them are known, and how many.
struct Masked<'a> {
    rows: &'a Tensor,
    mask: &'a Tensor,
    n_known: &'a [usize],
}

impl Masked<'_> {
    /// What the codes of the wanted patches stand for with their means, `[n, side²]`, zeros for the
    /// others; and how many atoms that took.
    fn estimate(
        &self,
        dictionary: &Tensor,
        settings: &Inpaint,
        wanted: impl Fn(usize) -> bool,
    ) -> Result<(Tensor, f64)> {
        let most = settings.n_nonzero.min(dictionary.dim(0)?);
        // A pursuit has one limit for all its signals: patches are coded by groups of one limit
        // each. A lasso has none.
        let limit = |n: usize| match settings.penalty {
            None => (n / settings.known_per_atom).clamp(1, most),
            Some(_) => most,
        };
        let mut groups = vec![Vec::new(); most];
        for (i, &n) in self.n_known.iter().enumerate().filter(|&(_, &n)| wanted(n)) {
            groups[limit(n) - 1].push(i as u32);
        }
        let zeros = Tensor::zeros((1, self.rows.dim(1)?), DType::F32, self.rows.device())?;
        let (mut estimates, mut count) = (vec![zeros], 0.);
        // Where a patch's estimate stands below the zeros.
        let (mut place, mut filled) = (vec![0u32; self.n_known.len()], 1);
        for (limit, group) in groups.into_iter().enumerate().filter(|(_, group)| !group.is_empty()) {
            let of = |x: &Tensor| gather_rows(&x.contiguous()?, &group);
            let (rows, mask) = (of(self.rows)?, of(self.mask)?);
            let n_known = mask.sum_keepdim(1)?;
            let mean = ((&rows * &mask)?.sum_keepdim(1)? / &n_known)?;
            let coder = match settings.penalty {
                None => PatchCoder::Pursuit(SparseCoder {
                    error: Some(ErrorTarget::PerSignal((n_known.sqrt()? * settings.error())?.squeeze(1)?)),
                    ..SparseCoder::new(settings.method, limit + 1)
                }),
                Some(penalty) => PatchCoder::Lasso(Lasso {
                    weights: Some(is_flat(dictionary)?.eq(0u8)?.to_dtype(DType::F32)?),
                    ..Lasso::new(penalty * settings.error())
                }),
            };
            let signals = rows.broadcast_sub(&mean)?;
            let estimate = coder.estimate(&signals, Some(&mask.to_dtype(DType::U8)?), dictionary)?;
            count += estimate.count;
            estimates.push(estimate.patches.broadcast_add(&mean)?);
            for patch in group {
                place[patch as usize] = filled;
                filled += 1;
            }
        }
        Ok((gather_rows(&Tensor::cat(&estimates, 0)?, &place)?, count))
    }
}

/// The dictionary with a flat atom before the others, unless one of them is flat: a mean of known
/// pixels is not that of the patch, and a dictionary learned from patches without means cannot say
/// so.
fn with_flat_atom(dictionary: &Tensor) -> Result<Tensor> {
    if !all_zero(&is_flat(dictionary)?)? {
        return Ok(dictionary.clone());
    }
    let p = dictionary.dim(1)?;
    let flat = (Tensor::ones((1, p), dictionary.dtype(), dictionary.device())? / (p as f64).sqrt())?;
    Tensor::cat(&[&flat, dictionary], 0)
}

/// Whether each atom has nearly one value, u8 `[n_atoms]`.
fn is_flat(dictionary: &Tensor) -> Result<Tensor> {
    let p = dictionary.dim(1)?;
    let sums = dictionary.sum(1)?.abs()?;
    let lengths = (dictionary.sqr()?.sum(1)? * p as f64)?.sqrt()?;
    sums.ge(&(lengths * 0.999)?)? * sums.gt(0f32)?
}

fn all_zero(mask: &Tensor) -> Result<bool> {
    Ok(mask.to_device(&Device::Cpu)?.flatten_all()?.to_vec1::<u8>()?.iter().all(|&m| m == 0))
}
