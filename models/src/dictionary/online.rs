//! Learning from minibatches, for signals that do not fit into memory or arrive as a stream.
//!
//! Each batch is coded and its statistics are added to those of earlier batches, which decay; then
//! each atom moves to the minimum given these statistics:
//!
//! ```text
//! A ← β A + XᵀX,  B ← β B + XᵀY           β = (1 − 1/t)^ρ for batch t
//! d_j ← d_j + (b_j − a_j D) / A_jj,  normalised, j = 0, 1, …      `sweeps` times
//! ```
//!
//! [Nonnegative atoms](super::DictionaryConfig::nonnegative_atoms) have their numbers below 0 set
//! to 0 before they are normalised, each before the next one moves.
//!
//! This lowers `½ Σ β… ‖Y − X D‖²` over all batches, each with the codes that were computed for it.
//!
//! | symbol | field | shape |
//! |---|---|---|
//! | `Y` | argument `batch` | `[batch, n_features]` |
//! | `ρ` | [`OnlineDictionaryTrainConfig::forgetting`] | |
//! | `A`, `B` | statistics | `[n_atoms, n_atoms]`, `[n_atoms, n_features]` |
//!
//! Source: Mairal, Bach, Ponce and Sapiro, "Online learning for matrix factorization and sparse
//! coding", JMLR 11, 2010, algorithms 1 and 2 and section 3.4; codes are those of a greedy pursuit
//! instead of the lasso, and atoms have length 1 instead of at most 1.
//!
//! ```
//! use candle::{Device::Cpu, Tensor};
//! use chandlery::dictionary::{Dictionary, DictionaryConfig, OnlineDictionaryTrainConfig, OnlineDictionaryTrainer};
//! use chandlery_ops::Philox;
//! # fn main() -> candle::Result<()> {
//! // Two signals along (3, 4) and two along the first axis; one atom each.
//! let batch = Tensor::new(&[[3f32, 4.], [6., 8.], [2., 0.], [-1., 0.]], &Cpu)?;
//! let atoms = Tensor::new(&[[0.8f32, 0.6], [1., 0.]], &Cpu)?;
//! let dictionary = Dictionary::from_tensor(DictionaryConfig::new(2, 2, 1), atoms)?;
//! let mut trainer = OnlineDictionaryTrainer::new(dictionary, OnlineDictionaryTrainConfig::default(), Philox::new(7, 0))?;
//! trainer.partial_fit(&batch)?;
//! // b₀ = 4.8 (3, 4) + 9.6 (6, 8), along (3, 4); a₀₁ = 0: no signal uses both.
//! let atoms = trainer.dictionary().atoms().to_vec2::<f32>()?;
//! assert!((atoms[0][0] - 0.6).abs() < 1e-6 && (atoms[0][1] - 0.8).abs() < 1e-6);
//! # Ok(()) }
//! ```
use super::replace_atoms::{Care, compares, draws_of_batch};
use super::scaling::{longest, most_square, outgrows, scale_of, scaled};
use super::statistics::{Idle, Statistics, kept};
use super::{Dictionary, OnlineDictionaryTrainConfig, SparseCoder, nonnegative};
use crate::model::Model;
use crate::share::{Share, joined_, of_first};
use crate::trainer::{MinibatchTrainer, Trainer};
use candle::{DType, Device, Result, Tensor};
use chandlery_ops::codes::{
    AtomLength, AtomUses, Bounds, FIGURE_PARTS, SparseCodes, StatisticsStep, atom_coherence_, code_figures_,
    codes_statistics_, descend_atoms_,
};
use chandlery_ops::{Group, Philox};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::Path;

/// Learns a [`Dictionary`] batch by batch; see the [module](self) for the equations.
pub struct OnlineDictionaryTrainer {
    pub(super) config: OnlineDictionaryTrainConfig,
    /// How signals are coded.
    pub(super) coder: SparseCoder,
    pub(super) philox: Philox,
    /// Ranks that have rows of each batch.
    pub(super) group: Group,
    pub(super) dictionary: Dictionary,
    /// `A` and `B`.
    pub(super) statistics: Statistics,
    pub(super) idle: Idle,
    pub(super) batches: usize,
    /// What statistics multiply signals and codes by, so that no sum of squares leaves the range of
    /// its type; none before a signal that is not zero.
    pub(super) scale: Option<f64>,
    /// What is read back of a batch: the figures of its codes, then how much each new atom is like
    /// one before it.
    pub(super) report: Tensor,
    pub(super) gathered: Gathered,
}

/// Sums over the signals since the last report.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(super) struct Gathered {
    steps: u64,
    signals: u64,
    /// Squared errors over the features of a signal.
    squares: f64,
    atoms: f64,
    replaced: u64,
    /// Of the last batch.
    used: usize,
}

impl Gathered {
    fn add(&mut self, step: &OnlineStep, signals: usize) {
        self.steps += 1;
        self.signals += signals as u64;
        self.squares += step.rmse * step.rmse * signals as f64;
        self.atoms += step.mean_count * signals as f64;
        self.replaced += step.replaced as u64;
        self.used = step.used;
    }
}

/// Metrics of the batches since the last report.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct OnlineMetrics {
    /// Batches since the last report.
    pub steps: u64,
    /// `‖Y − X D‖_F / √(signals · n_features)`, with the codes of each batch over the dictionary
    /// from before the batch.
    pub rmse: f64,
    /// Mean number of atoms of these codes.
    pub mean_count: f64,
    /// Atoms that at least one code of the last batch uses.
    pub used: usize,
    /// Atoms that were replaced.
    pub replaced: u64,
}

/// Metrics of one batch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OnlineStep {
    /// Batches learned from, including this one.
    pub batch: usize,
    /// `‖Y − X D‖_F / √(batch · n_features)` with its codes over the dictionary from before the
    /// batch.
    pub rmse: f64,
    /// Mean number of atoms of these codes.
    pub mean_count: f64,
    /// Atoms that at least one of these codes uses.
    pub used: usize,
    /// Atoms that were replaced.
    pub replaced: usize,
}

/// Room for what is read back of a batch, on the device of `like`.
pub(super) fn report(n_atoms: usize, like: &Tensor) -> Result<Tensor> {
    Tensor::zeros(2 * FIGURE_PARTS + 2 * n_atoms + 1, DType::F64, like.device())
}

/// A batch with its codes; `t` counts batches from 1.
struct Coded<'a> {
    t: usize,
    signals: &'a Tensor,
    codes: &'a SparseCodes,
    uses: &'a AtomUses,
}

/// What was learned from a batch.
struct Learned {
    statistics: Statistics,
    atoms: Tensor,
    /// The report.
    read: Vec<f64>,
}

impl OnlineDictionaryTrainer {
    /// Starts from a copy of `dictionary` with its atoms scaled to length 1. The configuration of
    /// the copy keeps its pursuit, unless [`OnlineDictionaryTrainConfig::coder`] is another.
    ///
    /// The draws of [`Replace::Random`](super::Replace::Random) start at `philox`; use its stream
    /// for nothing else.
    ///
    /// # Errors
    /// When `config` is out of range, memory is short, or a fixed atom is negative where atoms must
    /// not be.
    pub fn new(dictionary: Dictionary, config: OnlineDictionaryTrainConfig, philox: Philox) -> Result<Self> {
        let n = dictionary.config.n_atoms;
        config.validate(n)?;
        let atoms = nonnegative::start("OnlineDictionaryTrainer", &dictionary, config.n_fixed)?;
        let mut of_dictionary = dictionary.config;
        let coder = of_dictionary.take_coder(config.coder.as_ref());
        Ok(Self {
            config,
            coder,
            philox,
            group: Group::single(),
            statistics: Statistics::none(n, atoms.dim(1)?, atoms.dtype(), atoms.device())?,
            idle: Idle::new(n),
            batches: 0,
            scale: None,
            report: report(n, &atoms)?,
            gathered: Gathered::default(),
            dictionary: Dictionary { config: of_dictionary, atoms },
        })
    }

    /// Learns from one batch of raw rows, `[batch, n_inputs]` of any number, u8 or of the
    /// dictionary's type, on its device.
    ///
    /// A few numbers per atom are read back from the device once, or twice if the signals of the
    /// batch are far longer than all earlier ones. Cost besides the pursuits: `2n²p` FLOP per
    /// sweep, and `n²p` to find atoms that are too similar.
    ///
    /// # Errors
    /// When the batch has the wrong shape, type or device, is empty or is not finite; the trainer
    /// then does not change.
    pub fn partial_fit(&mut self, batch: &Tensor) -> Result<OnlineStep> {
        const OP: &str = "OnlineDictionaryTrainer::partial_fit";
        let m = crate::check::batch_of(OP, "batch", batch, self.dictionary.config.n_inputs())?;
        crate::check::at_least_one(OP, "signals of a batch", m)?;
        let share = Share::new(&self.group, m);
        let batch = self.dictionary.prepare(&share.own(batch)?)?.contiguous()?;
        let (n, p) = self.statistics.signals.dims2()?;
        let t = self.batches + 1;
        let codes = self.coder.encode(&batch, &self.dictionary.atoms)?;
        let uses = AtomUses::of(&codes)?;
        let error = codes.residual(&batch, &self.dictionary.atoms)?;
        let of_codes = self.report.narrow(0, 0, 2 * FIGURE_PARTS + n + 1)?;
        let squares = code_figures_(&of_codes, &error, &batch, &uses)?;
        joined_(&self.group, &of_codes, FIGURE_PARTS..2 * FIGURE_PARTS)?;
        let rmse_of = |read: &[f64]| (read[..FIGURE_PARTS].iter().sum::<f64>() / (m * p) as f64).sqrt();

        let figures = self.report.narrow(0, 0, 2 * FIGURE_PARTS)?;
        let coded = Coded { t, signals: &batch, codes: &codes, uses: &uses };
        // All squares finite, and in the unit of the statistics: then the device need not wait for
        // an answer, and learns. If not, what it learned is thrown away, the statistics are as they
        // were, and the answer is found here.
        let bounds = self.scale.map(|scale| Bounds {
            figures: &figures,
            most_error: f64::MAX / FIGURE_PARTS as f64,
            most_square: most_square(scale),
        });
        let learned = match (self.scale, bounds) {
            (Some(scale), Some(bounds)) => {
                let learned = self.learn_from(&coded, scale, Some(bounds))?;
                bounds.hold(&learned.read).then_some(learned)
            }
            _ => None,
        };
        let Learned { statistics, atoms, read } = match learned {
            Some(learned) => learned,
            None => {
                let read = self.report.to_vec1::<f64>()?;
                let rmse = rmse_of(&read);
                if !rmse.is_finite() {
                    candle::bail!(
                        "{OP}: the RMSE became {rmse} in batch {t}; signals must be finite and their squares too"
                    )
                }
                let largest = read[FIGURE_PARTS..2 * FIGURE_PARTS].iter().fold(0., |a: f64, &b| a.max(b));
                let scale = self.scale_for(longest(&self.group, &batch, largest)?, batch.dtype())?;
                self.learn_from(&coded, scale, None)?
            }
        };

        self.statistics = statistics;
        let (offsets, like) = read[2 * FIGURE_PARTS..].split_at(n + 1);
        let used: Vec<bool> = offsets.windows(2).map(|o| o[1] > o[0]).collect();
        self.idle = self.idle.after(&used, m);
        let care = Care {
            nonnegative: self.dictionary.config.nonnegative_atoms,
            replace: self.config.replace,
            max_coherence: self.config.max_coherence,
            n_fixed: self.config.n_fixed,
            share: &share,
            signals: &batch,
            squares: &squares,
            philox: draws_of_batch(self.philox, t as u64),
        };
        let cared_for =
            care.take_after_batch(atoms, like, &mut self.idle, self.config.max_idle, &self.statistics)?;
        self.dictionary.atoms = cared_for.atoms;
        self.batches = t;
        let step = OnlineStep {
            batch: t,
            rmse: rmse_of(&read),
            mean_count: offsets.last().map_or(0., |uses| uses / m as f64),
            used: used.iter().filter(|&&used| used).count(),
            replaced: cared_for.replaced.len(),
        };
        self.gathered.add(&step, m);
        Ok(step)
    }

    /// Lets a batch join the statistics, where its figures are within the bounds, and moves the
    /// atoms. A lone rank's statistics are written where they are, those of several in a copy.
    fn learn_from(&self, coded: &Coded<'_>, scale: f64, bounds: Option<Bounds<'_>>) -> Result<Learned> {
        let beta = kept(&self.group, coded.t, self.config.forgetting);
        let step = StatisticsStep { beta, scale, bounds };
        let statistics =
            if self.group.is_single() { self.statistics.clone() } else { self.statistics.copy()? };
        let Statistics { gram, signals } = &statistics;
        codes_statistics_(gram, signals, coded.codes, coded.uses, coded.signals, step)?;
        statistics.sum_over(&self.group)?;
        // Whoever has the dictionary of before keeps it.
        let mut atoms = self.dictionary.atoms.copy()?;
        for _ in 0..self.config.sweeps {
            match self.dictionary.config.nonnegative_atoms {
                true => atoms = nonnegative::sweep(&atoms, gram, signals, self.config.n_fixed, 1, 0., true)?,
                false => descend_atoms_(&atoms, gram, signals, self.config.n_fixed, AtomLength::One)?,
            }
        }
        if compares(self.config.replace, self.config.max_coherence) {
            let n = atoms.dim(0)?;
            atom_coherence_(&self.report.narrow(0, 2 * FIGURE_PARTS + n + 1, n)?, &atoms)?;
        }
        Ok(Learned { atoms, read: self.report.to_vec1()?, statistics })
    }

    /// The scale for statistics that signals of this length join; those so far are brought to it.
    fn scale_for(&mut self, longest: f64, dtype: DType) -> Result<f64> {
        match self.scale {
            Some(scale) if outgrows(longest, scale) => {
                let new = scale_of(longest, dtype);
                for sums in [&mut self.statistics.gram, &mut self.statistics.signals] {
                    *sums = scaled(&scaled(sums, new / scale)?, new / scale)?;
                }
                self.scale = Some(new);
                Ok(new)
            }
            Some(scale) => Ok(scale),
            None => {
                let scale = scale_of(longest, dtype);
                self.scale = (longest > 0.).then_some(scale);
                Ok(scale)
            }
        }
    }

    /// The current dictionary; later batches do not change a clone of it.
    pub fn dictionary(&self) -> &Dictionary {
        &self.dictionary
    }

    /// Batches seen.
    pub fn batches(&self) -> usize {
        self.batches
    }

    /// How the dictionary is learned.
    pub fn config(&self) -> &OnlineDictionaryTrainConfig {
        &self.config
    }
}

impl Trainer for OnlineDictionaryTrainer {
    type Model = Dictionary;
    type Metrics = OnlineMetrics;

    fn metrics(&mut self) -> Result<OnlineMetrics> {
        let Gathered { steps, signals, squares, atoms, replaced, used } = self.gathered;
        crate::check::at_least_one(
            "OnlineDictionaryTrainer::metrics",
            "steps since the last call",
            steps as usize,
        )?;
        self.gathered = Gathered::default();
        let mean = |sum: f64| sum / signals as f64;
        Ok(OnlineMetrics { steps, rmse: mean(squares).sqrt(), mean_count: mean(atoms), used, replaced })
    }

    fn steps(&self) -> u64 {
        self.batches as u64
    }

    /// Learns with the other ranks of a group: each codes its own rows of every batch,
    /// [`Group::rows`], and all have the statistics of their sum, so that all have the same atoms to
    /// the bit: those of one rank up to the order of sums.
    ///
    /// All ranks make the same trainer or load the same checkpoint, begin with the atoms and the
    /// statistics of rank 0, and make the same calls of [`step`](MinibatchTrainer::step), each with all
    /// rows of the batch. Figures are those of all rows on each rank. A batch costs an all-reduce of
    /// `n_atoms · (n_atoms + n_features)` numbers of the type of the atoms and an all-gather of `n_atoms + 257` f64 for
    /// each rank; where atoms are replaced, also 8 bytes a row and the rows that may replace them.
    ///
    /// # Errors
    /// When memory is short or a rank is gone.
    fn in_group(mut self, group: &Group) -> Result<Self> {
        self.dictionary.atoms = of_first(group, &self.dictionary.atoms)?;
        self.statistics = self.statistics.of_first(group)?;
        self.group = group.clone();
        Ok(self)
    }

    fn model(&self) -> Result<Dictionary> {
        Ok(self.dictionary.clone())
    }

    fn device(&self) -> &Device {
        self.dictionary.atoms.device()
    }

    fn save(&self, path: &Path, progress: &Value) -> Result<()> {
        self.store(path, progress)
    }
}

impl MinibatchTrainer for OnlineDictionaryTrainer {
    /// [`partial_fit`](OnlineDictionaryTrainer::partial_fit), whose figures
    /// [`metrics`](Trainer::metrics) gathers. Waits for the device.
    fn step(&mut self, rows: &Tensor, _labels: Option<&Tensor>) -> Result<()> {
        self.partial_fit(rows).map(drop)
    }

    fn rows_group(&self) -> Group {
        self.group.clone()
    }

    fn load(path: &Path, device: &Device) -> Result<(Self, Value)> {
        Self::restored(path, device)
    }
}
