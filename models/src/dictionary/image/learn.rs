//! Learning a dictionary from the image that it will restore.
//!
//! Learning starts from the overcomplete cosine transform, whose flat first atom does not change.
//! Patches are coded without their means, to the error target of the restoration. Two rules matter
//! more than the choice of the update rule, and are not in Elad and Aharon 2006:
//!
//! - An atom that few patches use fits their noise, so it is replaced, although it lowers the
//!   training error.
//! - A new atom is a noisy patch until it has been updated a few times, so the last iterations add
//!   none.
use super::denoise::Denoise;
use super::inpaint::Inpaint;
use super::sample::random_patches;
use crate::check::at_least_one;
use crate::dictionary::{
    Dictionary, DictionaryConfig, DictionaryTrainConfig, DictionaryTrainer, Iteration, Replace, SparseCoder,
    UpdateRule, overcomplete_dct,
};
use crate::trainer::FullBatchTrainer;
use candle::{DType, Device, Error, Result, Tensor};
use chandlery_datasets::ImageShape;
use chandlery_datasets::preparation::{Preparation, StepConfig};
use chandlery_ops::Philox;
use chandlery_ops::codes::SparseCodes;

/// Patches that must use an atom: the noise of an atom falls with the root of their number.
const MIN_USES: usize = 50;
/// The last iterations, which replace no atom.
const SETTLING: usize = 3;

/// Settings of learning a dictionary from the image that it will restore.
#[derive(Debug, Clone, PartialEq)]
pub struct ImageTraining {
    /// Number of atoms, at least 1. Default 256, four times the number of values of an 8×8 patch.
    pub n_atoms: usize,
    /// Iterations. Default 10.
    pub iterations: usize,
    /// Largest number of patches to learn from, drawn at random, at least 1. Default 40,000.
    pub n_patches: usize,
    /// Rule that updates the atoms. Default AK-SVD.
    pub rule: UpdateRule,
    /// Atoms updated at once (`ñ` of Irofti 2016), at least 1; `n_atoms` or more are all. Default
    /// all.
    pub group: usize,
}

impl Default for ImageTraining {
    fn default() -> Self {
        Self { n_atoms: 256, iterations: 10, n_patches: 40_000, rule: UpdateRule::AkSvd, group: usize::MAX }
    }
}

/// What makes the signals of these dictionaries of raw pixels: grey levels from 0 to 255, each
/// patch without its mean.
fn grey_levels_without_mean() -> Result<Preparation> {
    Preparation::of(&[StepConfig::Scale(255.), StepConfig::RowMean]).map_err(Error::wrap)
}

/// Learns a dictionary from the planes that it will restore; see the [module](self).
pub struct ImageTrainer {
    trainer: DictionaryTrainer,
    iterations: usize,
    made: usize,
}

impl ImageTrainer {
    /// A trainer on noisy planes, for denoising them with the same settings.
    ///
    /// `planes` are `[height, width]` f32 in grey levels, of any sizes; the patches are drawn by
    /// `philox`.
    ///
    /// # Errors
    /// When there is no plane, a shape or a setting is out of range, a plane holds a NaN, or memory
    /// is short.
    pub fn noisy(
        planes: &[Tensor],
        settings: &Denoise,
        training: &ImageTraining,
        philox: Philox,
    ) -> Result<Self> {
        settings.validate()?;
        let device = planes.first().map_or(&Device::Cpu, Tensor::device);
        let atoms = cosines(training.n_atoms, settings.side, device)?;
        Self::new(planes, &atoms, settings.side, settings.coder(training.n_atoms), training, philox)
    }

    /// A trainer on planes whose missing pixels were filled in, which starts from the `atoms` that
    /// filled them. The result fills them in again, more accurately.
    ///
    /// # Errors
    /// As [`noisy`](Self::noisy), and when `atoms` are not `[n_atoms, side²]`.
    pub fn filled(
        planes: &[Tensor],
        atoms: &Tensor,
        settings: &Inpaint,
        training: &ImageTraining,
        philox: Philox,
    ) -> Result<Self> {
        settings.validate()?;
        Self::new(planes, atoms, settings.side, settings.coder(training.n_atoms), training, philox)
    }

    fn new(
        planes: &[Tensor],
        atoms: &Tensor,
        side: usize,
        coder: SparseCoder,
        training: &ImageTraining,
        philox: Philox,
    ) -> Result<Self> {
        let patches = random_patches(planes, side, training.n_patches, philox)?;
        let patches = patches.broadcast_sub(&patches.mean_keepdim(1)?)?;
        let config = DictionaryConfig {
            image: Some(ImageShape::grey(side, side)),
            preparation: grey_levels_without_mean()?,
            ..DictionaryConfig::new(training.n_atoms, side * side, coder.n_nonzero)
        };
        let dictionary = Dictionary::from_tensor(config, atoms.clone())?;
        // Few patches have few that use an atom.
        let min_uses = MIN_USES.min(patches.dim(0)? / training.n_atoms);
        let config = DictionaryTrainConfig {
            rule: training.rule,
            group: training.group,
            iterations: training.iterations,
            coder: Some(coder),
            n_fixed: 1,
            replace: Replace::WorstRepresented,
            min_uses,
            ..DictionaryTrainConfig::default()
        };
        // Its draws are not those of the patches.
        let own = Philox { stream: philox.stream ^ (1 << 62), ..philox };
        let trainer = DictionaryTrainer::of_signals(dictionary, &patches, config, own)?;
        Ok(Self { trainer, iterations: training.iterations, made: 0 })
    }

    /// Runs the next of the [`ImageTraining::iterations`]; returns none when all are done.
    ///
    /// # Errors
    /// When the device fails.
    pub fn step(&mut self) -> Result<Option<Iteration>> {
        if self.made == self.iterations {
            return Ok(None);
        }
        self.made += 1;
        if self.made + SETTLING > self.iterations {
            self.trainer.config.replace = Replace::None;
        }
        self.trainer.step()
    }

    /// The newest dictionary. All codes meet the error target and learning only reduces their
    /// length, so the RMSE does not rank dictionaries.
    pub fn dictionary(&self) -> &Dictionary {
        self.trainer.current()
    }

    /// The codes of the training patches over the newest dictionary.
    pub fn codes(&self) -> &SparseCodes {
        self.trainer.codes()
    }
}

/// The overcomplete cosine transform as atoms, `[n_atoms, side²]` f32; the first is flat.
///
/// # Errors
/// When a size is 0 or memory is short.
pub fn cosines(n_atoms: usize, side: usize, device: &Device) -> Result<Tensor> {
    at_least_one("ImageTraining", "n_atoms", n_atoms)?;
    overcomplete_dct(n_atoms, side)?.to_dtype(DType::F32)?.to_device(device)
}
