//! Filling in missing pixels by sparse codes of what is there.
//!
//! ```text
//! μ_i = mean of the known pixels of R_i y
//! x_i = argmin ‖x‖₀  with  ‖M_i (R_i y − μ_i − D x)‖₂ ≤ ε √(known pixels of patch i)     masked pursuit
//! s = Σ_i w_i R_iᵀ(μ_i + D x_i),   c = Σ_i w_i R_iᵀ 1,   w_i = known pixels of patch i / p
//! ŷ = s / c                        where the pixel is missing
//! ŷ = (y + β σ s) / (1 + β σ c)    where it is known; y itself without noise
//! ```
//!
//! | symbol | field | |
//! |---|---|---|
//! | `y`, `M` | `image`, `mask` | `[height, width]`, mask 0 where a pixel is missing |
//! | `ε` | `tolerance`, or `gain · sigma` where that is more | root mean square error of known pixels, in grey levels |
//! | `σ`, `β` | `sigma`, `blend` | as for [denoising](super::denoise) |
//! | `D` | `dictionary` | `[n_atoms, side²]`; a flat atom is added where there is none |
//!
//! The mean of the known pixels is not that of the patch: the flat atom corrects it.
//!
//! A hole that is larger than a patch is filled from its rim: patches with known pixels give their missing ones, which count as known in the next
//! pass, until none is missing.
//!
//! Source: Elad, Starck, Querre and Donoho 2005 and Mairal, Elad and Sapiro, "Sparse representation for color image
//! restoration", IEEE Transactions on Image Processing 17(1), 2008, section III-B. Departures: patches weigh by what is known of them (there: all
//! alike); the dictionary is learned by filling in and training in turns ([`ImageTrainer::filled`](super::ImageTrainer::filled)), the EM form of their
//! weighted K-SVD.
use super::denoise::{Restored, atoms_of, plane_grid};
use super::patches::{BandSum, PatchGrid};
use crate::check::{at_least_one, range};
use crate::dictionary::pursuit::{PursuitMethod, SparseCoder};
use candle::{DType, Device, Result, Tensor};
use chandlery_ops::{ErrorTarget, Pursuit, bomp_masked};

/// Patches that are coded at once.
const BAND: usize = 65_536;

/// How missing pixels are filled in; see the [module](self).
#[derive(Debug, Clone, PartialEq)]
pub struct Inpaint {
    /// Height and width of a patch, 2 or more. Default 10: .5 to 1.5 dB better than 8.
    pub side: usize,
    /// Pixels from patch to patch, 1 to `side`. Default 1.
    pub step: usize,
    /// `ε`: root mean square error that known pixels may be left with, in grey levels, at least 0. Default 3.
    pub tolerance: f64,
    /// `σ`: standard deviation of the noise on known pixels, in grey levels, at least 0. Default 0: they are kept as they are.
    pub sigma: f64,
    /// Atoms that a patch may take, at least 1. Default 10.
    pub n_nonzero: usize,
    /// Known pixels that an atom must rest on, at least 1: a patch with k of them takes at most `k / known_per_atom` atoms, and one in any
    /// case. Default 4; with fewer, atoms fit what is known and invent the rest.
    pub known_per_atom: usize,
}

impl Default for Inpaint {
    fn default() -> Self {
        Self { side: 10, step: 1, tolerance: 3., sigma: 0., n_nonzero: 10, known_per_atom: 4 }
    }
}

/// As for denoising; see [`super::Denoise`].
const GAIN: f64 = 1.15;
const BLEND: f64 = 0.034;

impl Inpaint {
    /// # Errors
    /// When a field is out of its range; the message names it.
    pub fn validate(&self) -> Result<()> {
        const OP: &str = "Inpaint";
        range(OP, "tolerance", self.tolerance, "at least 0", |x| x >= 0.)?;
        range(OP, "sigma", self.sigma, "at least 0", |x| x >= 0.)?;
        at_least_one(OP, "n_nonzero", self.n_nonzero)?;
        at_least_one(OP, "known_per_atom", self.known_per_atom)?;
        if self.side < 2 {
            candle::bail!("{OP}: side must be at least 2, got {}; a single pixel has no structure", self.side)
        }
        Ok(())
    }

    /// The pursuit of a patch of which everything is known.
    pub(super) fn coder(&self, n_atoms: usize) -> SparseCoder {
        SparseCoder {
            method: PursuitMethod::Omp,
            n_nonzero: self.n_nonzero.min(n_atoms),
            error: Some(ErrorTarget::Absolute(self.error() * self.side as f64)),
            nonnegative: false,
        }
    }

    /// Root mean square error of a known pixel.
    fn error(&self) -> f64 {
        self.tolerance.max(GAIN * self.sigma)
    }
}

/// Fills in the missing pixels of one plane with a given dictionary.
///
/// `image` is `[height, width]` f32 in grey levels; `mask` is u8 of that shape, 0 where a pixel is missing, whose value is then never looked at;
/// `dictionary` is `[n_atoms, side²]`; all on one device. Cost: one masked pursuit a patch.
///
/// # Errors
/// When a shape or a setting is out of range, no pixel is known, a known one is NaN, or memory is short.
pub fn inpaint(image: &Tensor, mask: &Tensor, dictionary: &Tensor, settings: &Inpaint) -> Result<Restored> {
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
    let mut mean_count = None;
    loop {
        let pass = pass(&grid, &now, &known, dictionary, settings)?;
        mean_count.get_or_insert(pass.mean_count);
        let reached = pass.cover.gt(0f32)?;
        let filled = reached.where_cond(&(&pass.sum / pass.cover.clamp(1e-6, f32::MAX)?)?, &pass.sum)?;
        now = known.where_cond(&now, &filled)?;
        if !all_zero(&reached.eq(0u8)?)? {
            // The hole is larger than a patch: go on from what has been filled.
            known = (known + reached)?.ne(0u8)?;
            continue;
        }
        let weight = BLEND * settings.sigma;
        let blended = ((image + (pass.sum * weight)?)? / ((pass.cover * weight)? + 1.)?)?;
        let image = given.where_cond(&blended, &now)?;
        return Ok(Restored { image, mean_count: mean_count.unwrap_or(0.) });
    }
}

/// All patches coded once.
struct Pass {
    /// `s` and `c`.
    sum: Tensor,
    cover: Tensor,
    mean_count: f64,
}

fn pass(
    grid: &PatchGrid,
    image: &Tensor,
    known: &Tensor,
    dictionary: &Tensor,
    settings: &Inpaint,
) -> Result<Pass> {
    let (mut sums, mut covers, mut atoms) = (BandSum::default(), BandSum::default(), 0f64);
    let known = known.to_dtype(DType::F32)?;
    for band in grid.bands(BAND) {
        let rows = grid.rows(image, band.clone())?;
        let mask = grid.rows(&known, band.clone())?;
        let n_known = mask.sum_keepdim(1)?;
        let mean = ((&rows * &mask)?.sum_keepdim(1)? / n_known.clamp(1f32, f32::MAX)?)?;
        let job = Masked { rows: rows.broadcast_sub(&mean)?, mask, n_known: n_known.squeeze(1)? };
        let (estimate, count) = job.estimate(dictionary, settings)?;
        atoms += count;
        let weight = (n_known / grid.n_features() as f64)?;
        let estimate = estimate.broadcast_add(&mean)?.broadcast_mul(&weight)?;
        sums.add(grid, &band, grid.sum(&estimate, band.clone())?)?;
        let weight = weight.broadcast_as(rows.shape())?.contiguous()?;
        covers.add(grid, &band, grid.sum(&weight, band.clone())?)?;
    }
    Ok(Pass { sum: sums.image()?, cover: covers.image()?, mean_count: atoms / grid.n_patches() as f64 })
}

/// Patches of a band without their means, which pixels of them are known, and how many.
struct Masked {
    rows: Tensor,
    mask: Tensor,
    n_known: Tensor,
}

impl Masked {
    /// What the patches' codes stand for, `[n, side²]`, and how many atoms that took.
    fn estimate(&self, dictionary: &Tensor, settings: &Inpaint) -> Result<(Tensor, f64)> {
        let most = settings.n_nonzero.min(dictionary.dim(0)?);
        let target = (self.n_known.sqrt()? * settings.error())?;
        let mask = self.mask.to_dtype(DType::U8)?;
        // A pursuit has one limit for all its signals: patches are coded by groups of one limit each.
        let mut groups = vec![Vec::new(); most];
        for (i, n) in self.n_known.to_vec1::<f32>()?.into_iter().enumerate() {
            groups[(n as usize / settings.known_per_atom).clamp(1, most) - 1].push(i as u32);
        }
        let (mut estimates, mut order, mut count) = (Vec::new(), Vec::new(), 0f64);
        for (limit, group) in groups.into_iter().enumerate().filter(|(_, group)| !group.is_empty()) {
            let index = Tensor::new(group.as_slice(), self.rows.device())?;
            let pursuit = Pursuit {
                n_nonzero: limit + 1,
                error: Some(ErrorTarget::PerSignal(target.index_select(&index, 0)?)),
                nonnegative: false,
            };
            let (rows, mask) = (self.rows.index_select(&index, 0)?, mask.index_select(&index, 0)?);
            let codes = bomp_masked(&rows, &mask, dictionary, &pursuit)?;
            count += codes.count.to_dtype(DType::F64)?.sum_all()?.to_scalar::<f64>()?;
            estimates.push(codes.reconstruct(dictionary)?);
            order.extend(group);
        }
        let mut place = vec![0u32; order.len()];
        for (at, patch) in order.into_iter().enumerate() {
            place[patch as usize] = at as u32;
        }
        let place = Tensor::new(place, self.rows.device())?;
        Ok((Tensor::cat(&estimates, 0)?.index_select(&place, 0)?, count))
    }
}

/// The dictionary with a flat atom before the others, unless one of them is flat: a mean of known pixels is not that of the patch, and
/// a dictionary learned from patches without means cannot say so.
fn with_flat_atom(dictionary: &Tensor) -> Result<Tensor> {
    let p = dictionary.dim(1)?;
    let sums = dictionary.sum(1)?.abs()?;
    let lengths = (dictionary.sqr()?.sum(1)? * p as f64)?.sqrt()?;
    let is_flat = sums.ge(&(lengths * 0.999)?)?;
    if !all_zero(&(is_flat * sums.gt(0f32)?)?)? {
        return Ok(dictionary.clone());
    }
    let flat = (Tensor::ones((1, p), dictionary.dtype(), dictionary.device())? / (p as f64).sqrt())?;
    Tensor::cat(&[&flat, dictionary], 0)
}

fn all_zero(mask: &Tensor) -> Result<bool> {
    Ok(mask.to_device(&Device::Cpu)?.flatten_all()?.to_vec1::<u8>()?.iter().all(|&m| m == 0))
}
