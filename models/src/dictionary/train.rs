//! Learning from signals that fit into memory: sparse coding and updates of the atoms alternate.
//!
//! An iteration updates the dictionary with the current codes, replaces bad atoms, and codes all
//! signals again. With `E = Y − X D` and `F = E_I + x_j d_j` the error without atom `j` over the
//! signals `I` that use it:
//!
//! ```text
//! K-SVD    d_j, x_j ← the best rank-one approximation of F            power method to convergence
//! AK-SVD   d_j ← F·x_j normalised,  x_j ← F·d_j                       one step of the power method
//! SGK      d_j ← F·x_j normalised                                     min ‖F − x_j d_j‖ over ‖d_j‖ = 1; x_j stays
//! NSGK     SGK with X' for X and Z = Y + X' D − X D for Y             X': the codes of the iteration before
//! MOD      D ← (XᵀX)⁻¹XᵀY, normalised                                 all atoms at once
//!
//! with a penalty γ Σ_{i≠j} (d_i·d_j)²:  d_j ← F·x_j − 2γ Σ_{l≠j} (d_l·d_j) d_l normalised
//! ```
//!
//! | symbol | field of [`DictionaryTrainConfig`] |
//! |---|---|
//! | `ñ`: atoms updated from one `E` | `group` |
//! | `γ` | `coherence_penalty` |
//!
//! NSGK assumes that both factors change little, `X D⁺ ≈ X' D⁺ + X D − X' D`, and solves
//! `min_{D⁺} ‖Y + X' D − X D − X' D⁺‖` (Sadeghi et al. 2013); its error matrix `Z − X' D = Y − X D`
//! is the current one. Irofti 2016 prints `Z = Y + D⁽ᵏ⁾X⁽ᵏ⁻¹⁾ − D⁽ᵏ⁻¹⁾X⁽ᵏ⁻¹⁾` (signals as columns)
//! in equation 10. Read literally, with the dictionaries of two iterations and the codes of the
//! second, that form does not learn (at 20 dB it recovers 21 % of a known dictionary, against 93 %
//! here), so we assume that the factors were exchanged in print.
//!
//! Sources: Aharon, Elad and Bruckstein 2006 (K-SVD); Rubinstein, Zibulevsky and Elad 2008
//! (AK-SVD); Sahoo and Makur, "Dictionary training for sparse representation as generalization of
//! k-means clustering", IEEE SPL 20(6), 2013 (SGK); Sadeghi, Babaie-Zadeh and Jutten, "Dictionary
//! learning for sparse representation: a novel approach", IEEE SPL 20(12), 2013 (NSGK); Engan, Aase
//! and Hakon Husøy 1999 (MOD); Irofti and Dumitrescu, "GPU parallel implementation of the
//! approximate K-SVD algorithm using OpenCL", EUSIPCO 2014 (groups).
//!
//! ```
//! use candle::{Device::Cpu, Tensor};
//! use chandlery::FullBatchTrainer;
//! use chandlery::dictionary::{Dictionary, DictionaryConfig, DictionaryTrainer, DictionaryTrainConfig};
//! use chandlery_ops::Philox;
//! # fn main() -> candle::Result<()> {
//! // Two signals along (3, 4) and two along the first axis; one atom each.
//! let signals = Tensor::new(&[[3f32, 4.], [6., 8.], [2., 0.], [-1., 0.]], &Cpu)?;
//! let atoms = Tensor::new(&[[0.8f32, 0.6], [1., 0.]], &Cpu)?;
//! let config = DictionaryConfig::new(2, 2, 1);
//! let training = DictionaryTrainConfig { min_uses: 1, ..DictionaryTrainConfig::default() };
//! let dictionary = Dictionary::from_tensor(config, atoms)?;
//! let mut trainer = DictionaryTrainer::new(dictionary, &signals, training, Philox::new(7, 0))?;
//! // The first atom serves the first two signals, and turns to where both lie.
//! assert!(trainer.step()?.is_some_and(|made| made.rmse < 1e-6));
//! let atoms = trainer.best().atoms().to_vec2::<f32>()?;
//! assert!((atoms[0][0] - 0.6).abs() < 1e-6 && (atoms[0][1] - 0.8).abs() < 1e-6);
//! # Ok(()) }
//! ```
use super::coded::{Coded, Quality, code, without};
use super::least_squares::optimal_directions;
use super::replace_atoms::Care;
use super::scaling::{largest_square, longest, scale_of, scaled, scaled_codes, unit_rows};
use super::statistics::Statistics;
use super::{
    Dictionary, DictionaryConfig, DictionaryTrainConfig, Init, SparseCoder, UpdateRule, init, nonnegative,
};
use crate::check::{at_least_one, batch_of};
use crate::model::Model;
use crate::prepare::prepared;
use crate::share::Share;
use crate::trainer::{FullBatchTrainer, Trainer};
use candle::{DType, Device, Error, Result, Tensor};
use chandlery_ops::codes::{
    AtomUpdate, AtomUses, SparseCodes, StatisticsStep, codes_statistics_, update_atoms,
};
use chandlery_ops::{Group, Philox};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::Path;

/// The most steps of K-SVD's power method, and the movement of an atom at which it has converged.
const KSVD: (usize, f64) = (100, 1e-5);

/// Metrics after an iteration.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Iteration {
    /// Number of completed iterations; 0 is the initial dictionary.
    pub iteration: usize,
    /// `‖Y − X D‖_F / √(n_samples · n_features)` with new codes over the new dictionary.
    pub rmse: f64,
    /// Mean number of atoms of a code.
    pub mean_count: f64,
    /// Atoms that at least one signal uses.
    pub used: usize,
    /// Atoms that were replaced in this iteration.
    pub replaced: usize,
    /// The largest `|d_i·d_j|` of two atoms.
    pub coherence: f64,
}

/// What NSGK remembers: the codes of the iteration before, sorted.
pub(super) struct Previous {
    pub codes: SparseCodes,
    pub uses: AtomUses,
}

/// Learns a [`Dictionary`] from signals; see the [module](self) for the equations.
pub struct DictionaryTrainer {
    pub(super) config: DictionaryTrainConfig,
    /// How signals are coded.
    pub(super) coder: SparseCoder,
    pub(super) philox: Philox,
    /// Which of the signals this rank has.
    pub(super) share: Share,
    /// Those, prepared.
    pub(super) signals: Tensor,
    /// What updates multiply signals and codes by, so that no sum of squares leaves the range of
    /// its type.
    scale: f64,
    pub(super) current: Dictionary,
    pub(super) best: Dictionary,
    pub(super) best_quality: Quality,
    pub(super) coded: Coded,
    pub(super) previous: Option<Previous>,
    pub(super) last: Iteration,
    /// What of all ranks a checkpoint holds, as it was gathered last.
    pub(super) of_all: Option<OfAll>,
}

/// What a checkpoint holds of each signal.
#[derive(Clone)]
pub(super) struct OfAll {
    /// Codes that NSGK remembers of the iteration before.
    pub previous: Option<SparseCodes>,
    /// Error targets.
    pub targets: Option<Tensor>,
}

impl DictionaryTrainer {
    /// Starts from `dictionary` with its atoms scaled to length 1, and codes the signals over it by
    /// its own pursuit, or by [`DictionaryTrainConfig::coder`] where there is one, which then
    /// becomes that of the dictionary's configuration.
    ///
    /// `rows` are raw, `[n_samples, n_inputs]`, u8 or of the type of the dictionary, on its device.
    /// The draws of [`Replace::Random`](super::Replace::Random) start at `philox`; use its stream
    /// for nothing else.
    ///
    /// # Errors
    /// When `config` is out of range, the rule does not keep [nonnegative
    /// atoms](super::DictionaryConfig::nonnegative_atoms) so, or the rows have the wrong shape,
    /// type or device, are empty or are not finite.
    pub fn new(
        dictionary: Dictionary,
        rows: &Tensor,
        config: DictionaryTrainConfig,
        philox: Philox,
    ) -> Result<Self> {
        batch_of("DictionaryTrainer", "rows", rows, dictionary.config.n_inputs())?;
        let signals = dictionary.prepare(rows)?;
        Self::of_signals(dictionary, &signals, config, philox)
    }

    /// The same with signals, which rows become by the dictionary's preparation.
    pub(super) fn of_signals(
        dictionary: Dictionary,
        signals: &Tensor,
        config: DictionaryTrainConfig,
        philox: Philox,
    ) -> Result<Self> {
        let atoms = nonnegative::start("DictionaryTrainer", &dictionary, config.n_fixed)?;
        let unit = Dictionary::from_tensor(dictionary.config.clone(), atoms)?;
        let coherence = unit.mutual_coherence()?;
        let last = Iteration { iteration: 0, rmse: 0., mean_count: 0., used: 0, replaced: 0, coherence };
        Self::resume(unit, signals, config, philox, last)
    }

    /// Begins with atoms that have length 1 already.
    pub(super) fn resume(
        mut dictionary: Dictionary,
        signals: &Tensor,
        config: DictionaryTrainConfig,
        philox: Philox,
        last: Iteration,
    ) -> Result<Self> {
        config.validate(dictionary.config.n_atoms)?;
        if dictionary.config.nonnegative_atoms {
            nonnegative::check_rule("DictionaryTrainer", config.rule)?;
        }
        let coder = dictionary.config.take_coder(config.coder.as_ref());
        let n_features = dictionary.config.n_features;
        if batch_of("DictionaryTrainer", "signals", signals, n_features)? == 0 {
            candle::bail!("DictionaryTrainer: signals must be at least one, got none")
        }
        let signals = signals.contiguous()?;
        let group = Group::single();
        let longest = longest(&group, &signals, largest_square(&group, &signals)?)?;
        let share = Share::new(&group, signals.dim(0)?);
        let coded = code(&coder, &share, &signals, &dictionary.atoms, last.iteration)?;
        let (quality, used) = (coded.quality, coded.used());
        let Quality { rmse, mean_count } = quality;
        Ok(Self {
            config,
            coder,
            philox,
            scale: scale_of(longest, signals.dtype()),
            share,
            signals,
            best: dictionary.clone(),
            best_quality: quality,
            current: dictionary,
            coded,
            previous: None,
            last: Iteration { rmse, mean_count, used, ..last },
            of_all: None,
        })
    }

    /// One iteration: update the atoms, replace bad ones, code the signals.
    fn iterate(&mut self) -> Result<Iteration> {
        let iteration = self.last.iteration + 1;
        let updated = self.updated()?;
        let care = Care {
            nonnegative: self.current.config.nonnegative_atoms,
            replace: self.config.replace,
            max_coherence: self.config.max_coherence,
            n_fixed: self.config.n_fixed,
            share: &self.share,
            signals: &self.signals,
            squares: &self.coded.squares,
            // Each iteration draws from a stretch of its own.
            philox: Philox {
                offset: self.philox.offset.wrapping_add((iteration as u64) << 32),
                ..self.philox
            },
        };
        let counts = &self.coded.counts;
        let cared_for = care.take(updated, |j| (counts[j] as usize) < self.config.min_uses)?;
        let coded = code(&self.coder, &self.share, &self.signals, &cared_for.atoms, iteration)?;
        let before = std::mem::replace(&mut self.coded, coded);
        if self.config.rule == UpdateRule::Nsgk {
            let codes = without(before.codes, &cared_for.replaced)?;
            self.previous = Some(Previous { codes, uses: before.uses });
        }
        self.current.atoms = cared_for.atoms;
        let quality = self.coded.quality;
        self.last = Iteration {
            iteration,
            rmse: quality.rmse,
            mean_count: quality.mean_count,
            used: self.coded.used(),
            replaced: cared_for.replaced.len(),
            coherence: cared_for.coherence.map_or_else(|| self.current.mutual_coherence(), Ok)?,
        };
        if quality.beats(&self.best_quality, self.coder.error.is_some()) {
            (self.best, self.best_quality) = (self.current.clone(), quality);
        }
        Ok(self.last)
    }

    /// The atoms after the rule's update, of length 1.
    fn updated(&self) -> Result<Tensor> {
        let Self { config, coded, signals, scale, .. } = self;
        let (scale, group) = (*scale, self.share.group());
        let Coded { codes, uses, error, .. } = coded;
        let atoms = &self.current.atoms;
        let update = AtomUpdate {
            group: config.group,
            power_steps: 0,
            tolerance: 0.,
            n_fixed: config.n_fixed,
            coherence_penalty: (config.coherence_penalty * scale * scale).min(f64::MAX),
        };
        let update = match config.rule {
            UpdateRule::Ksvd => AtomUpdate { power_steps: KSVD.0, tolerance: KSVD.1, ..update },
            UpdateRule::AkSvd => AtomUpdate { power_steps: 1, ..update },
            UpdateRule::Sgk | UpdateRule::Nsgk => update,
            UpdateRule::Mod => {
                let (codes, signals) = (scaled_codes(codes, scale)?, scaled(signals, scale)?);
                let solved = optimal_directions(atoms, &codes, uses, &signals, config.n_fixed, group)?;
                return unit_rows(&solved);
            }
        };
        let (codes, uses) = match (&self.previous, config.rule) {
            (Some(previous), UpdateRule::Nsgk) => (&previous.codes, &previous.uses),
            _ => (codes, uses),
        };
        let (codes, error) = (scaled_codes(codes, scale)?, scaled(error, scale)?);
        let nonnegative = self.current.config.nonnegative_atoms;
        if nonnegative || !group.is_single() {
            // What the codes stand for and what they leave: Y for SGK, Z for NSGK.
            let wanted = (error + codes.reconstruct(atoms)?)?;
            let sums = Statistics::none(atoms.dim(0)?, atoms.dim(1)?, atoms.dtype(), atoms.device())?;
            let Statistics { gram, signals } = &sums;
            codes_statistics_(gram, signals, &codes, uses, &wanted, StatisticsStep::default())?;
            sums.sum_over(group)?;
            let (n_fixed, penalty) = (config.n_fixed, update.coherence_penalty);
            return nonnegative::sweep(atoms, gram, signals, n_fixed, config.group, penalty, nonnegative);
        }
        Ok(update_atoms(atoms, &codes, uses, &error, &update)?.0)
    }

    /// The current dictionary.
    pub fn current(&self) -> &Dictionary {
        &self.current
    }

    /// The best dictionary so far. It is the one with the lowest RMSE or, with an error target,
    /// which fixes the RMSE, the one with the fewest atoms per code (ties go to the lowest RMSE).
    pub fn best(&self) -> &Dictionary {
        &self.best
    }

    /// The RMSE of the best dictionary.
    pub fn best_rmse(&self) -> f64 {
        self.best_quality.rmse
    }

    /// The mean number of atoms per code over the best dictionary.
    pub fn best_mean_count(&self) -> f64 {
        self.best_quality.mean_count
    }

    /// The codes of this rank's signals over the [current](Self::current) dictionary.
    pub fn codes(&self) -> &SparseCodes {
        &self.coded.codes
    }

    /// The number of signals that use each atom of the [current](Self::current) dictionary.
    pub fn uses(&self) -> &[u32] {
        &self.coded.counts
    }

    /// Metrics of the last iteration; before the first step, those of the initial dictionary.
    pub fn last(&self) -> Iteration {
        self.last
    }

    /// How the dictionary is learned.
    pub fn config(&self) -> &DictionaryTrainConfig {
        &self.config
    }
}

impl Trainer for DictionaryTrainer {
    type Model = Dictionary;
    type Metrics = Iteration;

    /// Iterations made.
    fn steps(&self) -> u64 {
        self.last.iteration as u64
    }

    /// Those of the last iteration.
    fn metrics(&mut self) -> Result<Iteration> {
        at_least_one("DictionaryTrainer::metrics", "iterations", self.last.iteration)?;
        Ok(self.last)
    }

    /// Learns with the other ranks of a group, each from its own signals, [`Group::rows`]: it codes
    /// them, and all update the atoms from sums over all signals, so that all have the same atoms to
    /// the bit: those of one rank up to the order of sums. Figures are those of all signals.
    ///
    /// All ranks make the same trainer, each with all rows, or load the same checkpoint with them; they
    /// have coded all of them once by then. Afterwards they make the same calls of
    /// [`step`](crate::FullBatchTrainer::step), and of `gather` before `save`.
    ///
    /// An iteration costs an all-reduce of `n_atoms · (n_atoms + n_features)` numbers of the type of
    /// the atoms and of `4 n_atoms` bytes, and an all-gather of 8 bytes a signal; where atoms are
    /// replaced, also of these bytes once more and of the signals that may replace them.
    ///
    /// # Errors
    /// For the rules K-SVD, and AK-SVD in groups of fewer than all atoms: there each atom, or group,
    /// follows from coefficients and errors that those before it have changed. When the trainer is in a
    /// group already, memory is short or a rank is gone.
    fn in_group(self, group: &Group) -> Result<Self> {
        self.divided(group)
    }

    fn gather(&mut self) -> Result<()> {
        if !self.share.group().is_single() {
            self.of_all = Some(self.gathered()?);
        }
        Ok(())
    }

    /// The [best](Self::best) dictionary so far.
    fn model(&self) -> Result<Dictionary> {
        Ok(self.best.clone())
    }

    fn device(&self) -> &Device {
        self.signals.device()
    }

    fn save(&self, path: &Path, progress: &Value) -> Result<()> {
        self.store(path, progress)
    }
}

impl FullBatchTrainer for DictionaryTrainer {
    /// One iteration: updates the atoms, replaces bad ones, codes the signals. None after
    /// [`DictionaryTrainConfig::iterations`]. Reads a few numbers for each atom back from the
    /// device.
    fn step(&mut self) -> Result<Option<Iteration>> {
        if self.last.iteration >= self.config.iterations {
            return Ok(None);
        }
        self.of_all = None;
        self.iterate().map(Some)
    }

    fn set_iterations(&mut self, iterations: usize) -> Result<()> {
        at_least_one("DictionaryTrainer", "iterations", iterations)?;
        self.config.iterations = iterations;
        Ok(())
    }

    /// The codes are found again, which takes one coding, and which rows are others is told by
    /// them.
    fn load(path: &Path, rows: &Tensor, device: &Device) -> Result<(Self, Value)> {
        Self::restored(path, rows, device)
    }
}

impl Dictionary {
    /// Learns a dictionary from raw `rows`, `[n_samples, n_inputs]`: f64 atoms from f64 rows, else
    /// f32 ones. It begins with distinct signals that are drawn at random, at `philox`, and gives
    /// the best dictionary of [`DictionaryTrainConfig::iterations`]; draws of the training are
    /// those of the next stream.
    ///
    /// ```
    /// # use candle::Device::Cpu;
    /// # use chandlery::{Encode, Philox};
    /// # use chandlery::dictionary::{Dictionary, DictionaryConfig, DictionaryTrainConfig};
    /// # fn main() -> candle::Result<()> {
    /// let rows = chandlery_ops::core::uniform((500, 9), &Cpu, Philox::new(1, 0))?;
    /// let config = DictionaryConfig::new(16, 9, 3);
    /// let dictionary = Dictionary::fit(config, &rows, DictionaryTrainConfig::default(), Philox::new(7, 0))?;
    /// assert!(dictionary.encode(&rows)?.width() <= 3);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// When a configuration is out of range, or rows have the wrong shape, are none or are not
    /// finite.
    pub fn fit(
        mut config: DictionaryConfig,
        rows: &Tensor,
        training: DictionaryTrainConfig,
        philox: Philox,
    ) -> Result<Self> {
        config.validate()?;
        training.validate(config.n_atoms)?;
        batch_of("Dictionary::fit", "rows", rows, config.n_inputs())?;
        config.preparation = config.preparation.to_device(rows.device()).map_err(Error::wrap)?;
        let dtype = if rows.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
        let signals = prepared("Dictionary::fit", &config.preparation, rows, dtype)?;
        let atoms = init(&Init::RandomSignals, config.n_atoms, &signals, philox)?;
        let first = Self::from_tensor(config, atoms)?;
        let philox = Philox { stream: philox.stream.wrapping_add(1), ..philox };
        let mut trainer = DictionaryTrainer::of_signals(first, &signals, training, philox)?;
        trainer.fit()?;
        trainer.model()
    }
}
