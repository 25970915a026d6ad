//! Learning a basis from minibatches.
//!
//! ```text
//! a ← argmin ½ ‖x − a B‖² + β Σ_j |a_j|             for each signal of batch t, from a = 0
//! A ← γ A + aᵀa,  S ← γ S + aᵀx                      γ = (1 − 1/t)^ρ
//! B ← a better basis for A and S                     see [`basis`](super::basis)
//! ```
//!
//! | symbol | field |
//! |---|---|
//! | `ρ` | [`SparseCodingTrainConfig::forgetting`] |
//! | `A`, `S` | [`Statistics`] |
//!
//! Atoms that no signal has used for a while, and those nearly parallel to an earlier atom, become
//! the signals of the batch that are represented worst, and their statistics 0.
//!
//! Sources: Raina, Madhavan and Ng, ICML 2009, section 6; Mairal, Bach, Ponce and Sapiro, "Online
//! learning for matrix factorization and sparse coding", JMLR 11, 2010, for the statistics.
//!
//! ```
//! use candle::{Device::Cpu, Tensor};
//! use chandlery::Philox;
//! use chandlery::sparse_coding::{SparseCoding, SparseCodingConfig, SparseCodingTrainConfig, SparseCodingTrainer};
//! # fn main() -> candle::Result<()> {
//! // Signals along (3, 4); the atom turns there.
//! let batch = Tensor::new(&[[3f32, 4.], [-6., -8.]], &Cpu)?;
//! let basis = Tensor::new(&[[1f32, 0.]], &Cpu)?;
//! let model = SparseCoding::from_tensor(SparseCodingConfig::new(1, 2, 0.1), basis)?;
//! let mut trainer = SparseCodingTrainer::new(&model, SparseCodingTrainConfig::default(), Philox::new(7, 0))?;
//! trainer.partial_fit(&batch)?;
//! let atom = trainer.current().basis().to_vec2::<f32>()?;
//! assert!((atom[0][0] - 0.6).abs() < 1e-5 && (atom[0][1] - 0.8).abs() < 1e-5);
//! # Ok(()) }
//! ```
use super::coder::{Coded, MOST, Sums, TOTALS};
use super::{Figures, SparseCoding, SparseCodingConfig, SparseCodingTrainConfig};
use crate::check::{at_least_one, batch_of};
use crate::dictionary::replace_atoms::{Care, compares, draws_of_batch};
use crate::dictionary::statistics::{Idle, kept};
use crate::dictionary::{Init, Statistics};
use crate::model::Model;
use crate::prepare::prepared;
use crate::share::{Share, joined_, of_first};
use crate::trainer::{MinibatchTrainer, Trainer};
use candle::{DType, Device, Error, Result, Tensor};
use chandlery_datasets::Feed;
use chandlery_ops::codes::{atom_coherence, row_squares};
use chandlery_ops::{Group, Philox};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::Path;

/// Learns a [`SparseCoding`] batch by batch; see the [module](self) for the equations.
pub struct SparseCodingTrainer {
    pub(super) config: SparseCodingTrainConfig,
    pub(super) philox: Philox,
    /// Ranks that have rows of each batch.
    pub(super) group: Group,
    pub(super) model: SparseCoding,
    pub(super) statistics: Statistics,
    pub(super) idle: Idle,
    pub(super) batches: u64,
    pub(super) gathered: Gathered,
}

/// Sums since the last report.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(super) struct Gathered {
    steps: u64,
    sums: Sums,
    replaced: u64,
}

/// Metrics of the batches since the last report; activations are those over the basis from before
/// each batch.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Metrics {
    /// Batches since the last report.
    pub steps: u64,
    /// How well activations represent the signals.
    #[serde(flatten)]
    pub figures: Figures,
    /// Atoms that were replaced.
    pub replaced: u64,
}

/// Metrics of one batch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SparseCodingStep {
    /// Batches learned from, including this one.
    pub batch: u64,
    /// How well activations over the basis from before the batch represent its signals.
    pub figures: Figures,
    /// Atoms that at least one signal of the batch uses.
    pub used: usize,
    /// Atoms that were replaced.
    pub replaced: usize,
}

impl SparseCodingTrainer {
    /// Starts from a copy of `model` whose atoms that are longer than 1 are scaled to length 1.
    ///
    /// The draws of [`Replace::Random`](crate::dictionary::Replace::Random) start at `philox`; use
    /// its stream for nothing else.
    ///
    /// # Errors
    /// When `config` is out of range or memory is short.
    pub fn new(model: &SparseCoding, config: SparseCodingTrainConfig, philox: Philox) -> Result<Self> {
        config.validate()?;
        let basis = super::basis::shortened(&model.basis)?;
        let (n, p) = basis.dims2()?;
        Ok(Self {
            config,
            philox,
            group: Group::single(),
            statistics: Statistics::none(n, p, basis.dtype(), basis.device())?,
            idle: Idle::new(n),
            batches: 0,
            gathered: Gathered::default(),
            model: SparseCoding { config: model.config.clone(), basis },
        })
    }

    /// Learns from one batch of raw rows, `[batch, n_inputs]` of any number, u8 or of the type of
    /// the basis, on its device.
    ///
    /// Some numbers for each atom are read back from the device once; in a batch with atoms to
    /// replace, the errors of its signals too. Cost beside the activations:
    /// `2 · batch · n_atoms · (n_atoms + 2 n_features)` FLOP, and the update of the basis.
    ///
    /// # Errors
    /// When the batch has the wrong shape, type or device, is empty or is not finite, or what is
    /// learned from it is not; the trainer then does not change.
    pub fn partial_fit(&mut self, batch: &Tensor) -> Result<SparseCodingStep> {
        const OP: &str = "SparseCodingTrainer::partial_fit";
        let m = batch_of(OP, "batch", batch, self.model.config.n_inputs())?;
        at_least_one(OP, "signals of a batch", m)?;
        let share = Share::new(&self.group, m);
        let x = self.model.prepare(&share.own(batch)?)?.contiguous()?;
        let t = self.batches + 1;
        let coded = Coded::of(&self.model, &x).map_err(|e| e.context(format!("{OP}: batch {t}")))?;
        let beta = kept(&self.group, t as usize, self.config.forgetting);
        let statistics = match share.rows().is_empty() {
            true => self.statistics.zeros_like()?,
            false => self.statistics.after(&coded.activations, &x, beta)?,
        };
        statistics.sum_over(&self.group)?;
        let figures = coded.report()?;
        joined_(&self.group, &figures, MOST)?;
        let basis = self.config.basis.apply(&self.model.basis, &statistics)?;

        let n = basis.dim(0)?;
        let size = row_squares(&basis)?.sum_keepdim(0)?;
        let mut report = vec![figures, size];
        if compares(self.config.replace, self.config.max_coherence) {
            report.push(atom_coherence(&basis)?);
        }
        let read = Tensor::cat(&report, 0)?.to_vec1::<f64>()?;
        let (figures, rest) = read.split_at(TOTALS + n);
        let sums = Sums::of(figures, m);
        let (figures, size, like) = (sums.figures(&self.model), rest[0], &rest[1..]);
        for (what, x) in [("objective", figures.objective), ("sum of squares of the basis", size)] {
            if !x.is_finite() {
                candle::bail!("{OP}: the {what} became {x} in batch {t}; scale the signals to lengths near 1")
            }
        }

        let used: Vec<bool> = read[TOTALS..TOTALS + n].iter().map(|&uses| uses > 0.).collect();
        let mut idle = self.idle.after(&used, m);
        let care = Care {
            nonnegative: false,
            replace: self.config.replace,
            max_coherence: self.config.max_coherence,
            n_fixed: 0,
            share: &share,
            signals: &x,
            squares: &coded.squares,
            philox: draws_of_batch(self.philox, t),
        };
        let cared_for = care.take_after_batch(basis, like, &mut idle, self.config.max_idle, &statistics)?;
        self.model.basis = cared_for.atoms;
        (self.statistics, self.idle, self.batches) = (statistics, idle, t);
        let replaced = cared_for.replaced.len();
        self.gathered.steps += 1;
        self.gathered.sums.add(&sums);
        self.gathered.replaced += replaced as u64;
        let used = used.iter().filter(|&&used| used).count();
        Ok(SparseCodingStep { batch: t, figures, used, replaced })
    }

    /// The current model; later batches do not change a clone of it.
    pub fn current(&self) -> &SparseCoding {
        &self.model
    }

    /// What is kept of all batches.
    pub fn statistics(&self) -> &Statistics {
        &self.statistics
    }

    /// How the basis is learned.
    pub fn config(&self) -> &SparseCodingTrainConfig {
        &self.config
    }
}

/// Passes over the rows that [`SparseCoding::fit`] makes.
const PASSES: usize = 10;
/// Rows that first atoms are drawn from, at least, and for each atom: many a row is flat, or like
/// others.
const CANDIDATES: (usize, usize) = (1024, 16);

impl SparseCoding {
    /// Learns a basis from ten passes over a feed of raw rows, f64 from f64 rows, else f32, as
    /// [`SparseCodingTrainConfig::default`] says; another training is a [`SparseCodingTrainer`]'s.
    /// It begins with distinct signals among the first rows, drawn at `philox`.
    ///
    /// ```
    /// # use candle::Device::Cpu;
    /// # use chandlery::Philox;
    /// # use chandlery::datasets::{Feed, FeedConfig, Split};
    /// # use chandlery::sparse_coding::{SparseCoding, SparseCodingConfig};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let rows = Split::from_tensors(&chandlery_ops::core::uniform((200, 9), &Cpu, Philox::new(1, 0))?, None)?;
    /// let mut feed = Feed::new(&rows, &Cpu, FeedConfig::new(50, 7))?;
    /// let model = SparseCoding::fit(SparseCodingConfig::new(16, 9, 0.1), &mut feed, Philox::new(7, 0))?;
    /// # assert_eq!(model.basis().dims(), [16, 9]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// When `config` is out of range, or rows cannot be read, do not fit it or are not finite.
    pub fn fit(mut config: SparseCodingConfig, feed: &mut Feed, philox: Philox) -> Result<Self> {
        config.validate()?;
        let enough = CANDIDATES.0 + CANDIDATES.1 * config.n_atoms;
        feed.start_epoch(0, 0).map_err(Error::wrap)?;
        let (mut rows, mut n) = (vec![], 0);
        while let Some(minibatch) = feed.next().map_err(Error::wrap)?.filter(|_| n < enough) {
            n += minibatch.rows.dim(0)?;
            rows.push(minibatch.rows.force_contiguous()?);
        }
        let rows = Tensor::cat(&rows, 0)?;
        batch_of("SparseCoding::fit", "rows", &rows, config.n_inputs())?;
        config.preparation = config.preparation.to_device(rows.device()).map_err(Error::wrap)?;
        let dtype = if rows.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
        let signals = prepared("SparseCoding::fit", &config.preparation, &rows, dtype)?;
        let first = Self::start(config, &Init::RandomSignals, &signals, philox)?;
        let philox = Philox { stream: philox.stream.wrapping_add(1), ..philox };
        let mut trainer = SparseCodingTrainer::new(&first, SparseCodingTrainConfig::default(), philox)?;
        trainer.fit(feed, PASSES)?;
        trainer.model()
    }
}

impl Trainer for SparseCodingTrainer {
    type Model = SparseCoding;
    type Metrics = Metrics;

    fn metrics(&mut self) -> Result<Metrics> {
        let Gathered { steps, sums, replaced } = self.gathered;
        at_least_one("SparseCodingTrainer::metrics", "steps since the last call", steps as usize)?;
        self.gathered = Gathered::default();
        Ok(Metrics { steps, figures: sums.figures(&self.model), replaced })
    }

    fn steps(&self) -> u64 {
        self.batches
    }

    /// Learns with the other ranks of a group: each codes its own rows of every batch,
    /// [`Group::rows`], and all have the statistics of their sum, so that all have the same basis to
    /// the bit: that of one rank up to the order of sums.
    ///
    /// All ranks make the same trainer or load the same checkpoint, begin with the basis and the
    /// statistics of rank 0, and make the same calls of [`step`](MinibatchTrainer::step), each with all
    /// rows of the batch. Figures are those of all rows on each rank. A batch costs an all-reduce of
    /// `n_atoms · (n_atoms + n_features)` numbers of the type of the basis and an all-gather of `3 + n_atoms` f64 for
    /// each rank; where atoms are replaced, also 8 bytes a row and the rows that may replace them.
    ///
    /// # Errors
    /// When memory is short or a rank is gone.
    fn in_group(mut self, group: &Group) -> Result<Self> {
        self.model.basis = of_first(group, &self.model.basis)?;
        self.statistics = self.statistics.of_first(group)?;
        self.group = group.clone();
        Ok(self)
    }

    fn model(&self) -> Result<SparseCoding> {
        Ok(self.model.clone())
    }

    fn device(&self) -> &Device {
        self.model.basis.device()
    }

    fn save(&self, path: &Path, progress: &Value) -> Result<()> {
        self.store(path, progress)
    }
}

impl MinibatchTrainer for SparseCodingTrainer {
    /// [`partial_fit`](SparseCodingTrainer::partial_fit), whose figures
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
