//! Learning from minibatches.
use super::Trainer;
use crate::early_stopping::{Best, Convergence, Converging, EarlyStopping};
use candle::{Device, Error, Result, Tensor};
use chandlery_datasets::Feed;
use chandlery_ops::Group;
use serde_json::Value;
use std::ops::{ControlFlow, Range};
use std::path::Path;

/// Learns a model from minibatches of raw rows.
///
/// [`fit`](Self::fit) makes epochs; whoever has an order of rows of their own writes the loop:
///
/// ```
/// use candle::Device::Cpu;
/// use chandlery::rbm::{RbmTrainConfig, Rbm, RbmConfig, RbmTrainer};
/// use chandlery::{MinibatchTrainer, Philox, Trainer};
///
/// # fn main() -> candle::Result<()> {
/// let rbm = Rbm::init(RbmConfig::new(6, 4), Philox::new(0, 0), &Cpu)?;
/// let mut trainer = RbmTrainer::new(&rbm, RbmTrainConfig { batch: 8, ..RbmTrainConfig::default() }, Philox::new(0, 1))?;
/// let rows = chandlery_ops::core::uniform((32, 6), &Cpu, Philox::new(0, 2))?;
/// for epoch in 0..3 {
///     trainer.begin_epoch(epoch)?;
///     for minibatch in rows.chunk(4, 0)? {
///         trainer.step(&minibatch, None)?;
///     }
///     let metrics = trainer.metrics()?;
///     assert_eq!(metrics.steps, 4);
/// }
/// let rbm = trainer.model()?;
/// # assert_eq!(rbm.config().n_hidden, 4);
/// # Ok(()) }
/// ```
pub trait MinibatchTrainer: Trainer {
    /// Sets learning rate, momentum and whatever else follows a schedule to their values in
    /// `epoch`, counted from 0.
    ///
    /// # Errors
    /// When the device fails.
    fn begin_epoch(&mut self, epoch: usize) -> Result<()> {
        self.follow(epoch as f64)
    }

    /// The same where so many epochs are done, whole ones and a part, see
    /// [`Schedule::within`](crate::schedule::Schedule::within): for schedules by step. By default
    /// nothing follows one.
    ///
    /// # Errors
    /// When the device fails.
    fn follow(&mut self, _epochs: f64) -> Result<()> {
        Ok(())
    }

    /// One update from a minibatch of raw `rows`, `[batch, n_features]` u8 or f32, which go through
    /// the model's preparation, and for models with labels `labels` `[batch]` u32, both on the
    /// trainer's device. Models without labels ignore `labels`. A minibatch may have fewer rows, at
    /// least 1, as the last of an epoch has; its gradient is the mean over these.
    ///
    /// On a GPU a step is queued; most trainers do not wait for it.
    ///
    /// # Errors
    /// When `rows` or `labels` have another shape, type or device, or a model with labels gets
    /// none.
    fn step(&mut self, rows: &Tensor, labels: Option<&Tensor>) -> Result<()>;

    /// The same for `n` minibatches, one after the other in `rows` and `labels`, of the same bits
    /// as `n` calls of [`step`](Self::step). Some trainers make many steps in less time than one by
    /// one.
    ///
    /// # Errors
    /// As [`step`](Self::step), and when `rows` are not `n` minibatches.
    fn steps_of(&mut self, rows: &Tensor, labels: Option<&Tensor>, n: usize) -> Result<()> {
        one_by_one(self, rows, labels, n)
    }

    /// The group whose ranks take rows of their own of each minibatch and look at no others, so
    /// that these need not be read; see [`Feed::start_epoch_of`]. That of one rank by default: each
    /// takes all rows.
    fn rows_group(&self) -> Group {
        Group::single()
    }

    /// How many minibatches [`steps_of`](Self::steps_of) takes best; 1 where it makes one step
    /// after the other.
    fn steps_at_once(&self) -> usize {
        1
    }

    /// Trains `epochs`, a number or a range of them, on the minibatches of `feed`, and returns the
    /// metrics of each.
    ///
    /// ```
    /// # use candle::Device::Cpu;
    /// # use chandlery::datasets::{Feed, FeedConfig, Split};
    /// # use chandlery::rbm::{RbmTrainConfig, Rbm, RbmConfig, RbmTrainer};
    /// # use chandlery::{MinibatchTrainer, Philox};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let rows = Split::from_tensors(&chandlery_ops::core::uniform((500, 6), &Cpu, Philox::new(0, 2))?, None)?;
    /// let rbm = Rbm::init(RbmConfig::new(6, 4), Philox::new(0, 0), &Cpu)?;
    /// let mut feed = Feed::new(&rows, &Cpu, FeedConfig::new(100, 7))?;
    /// let metrics = RbmTrainer::new(&rbm, RbmTrainConfig::default(), Philox::new(0, 1))?.fit(&mut feed, 60)?;
    /// # assert_eq!((metrics.len(), metrics[0].steps), (60, 5));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// When a minibatch cannot be read or is refused, or training diverges.
    fn fit(&mut self, feed: &mut Feed, epochs: impl Into<Epochs>) -> Result<Vec<Self::Metrics>>
    where
        Self: Sized,
    {
        self.fit_with(feed, epochs, |_| Ok(ControlFlow::Continue(())))
    }

    /// The same with a look at the trainer after each step or few and after each epoch, which can
    /// save it, or end the training with [`ControlFlow::Break`].
    ///
    /// ```
    /// # use candle::Device::Cpu;
    /// # use chandlery::datasets::{Feed, FeedConfig, Split};
    /// # use chandlery::rbm::{RbmTrainConfig, Rbm, RbmConfig, RbmTrainer};
    /// # use chandlery::{Event, MinibatchTrainer, Philox, Trainer};
    /// # use std::ops::ControlFlow;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let rows = Split::from_tensors(&chandlery_ops::core::uniform((500, 6), &Cpu, Philox::new(0, 2))?, None)?;
    /// # let rbm = Rbm::init(RbmConfig::new(6, 4), Philox::new(0, 0), &Cpu)?;
    /// # let mut feed = Feed::new(&rows, &Cpu, FeedConfig::new(100, 7))?;
    /// # let mut trainer = RbmTrainer::new(&rbm, RbmTrainConfig::default(), Philox::new(0, 1))?;
    /// # let path = std::env::temp_dir().join(format!("chandlery-fit-{}.safetensors", std::process::id()));
    /// trainer.fit_with(&mut feed, 60, |event| {
    ///     if let Event::Epoch { epoch, metrics, trainer } = event {
    ///         trainer.save(&path, &serde_json::json!(epoch + 1))?;
    ///         if metrics.reconstruction_error < 0.5 {
    ///             return Ok(ControlFlow::Break(()));
    ///         }
    ///     }
    ///     Ok(ControlFlow::Continue(()))
    /// })?;
    /// // In another process: on from the epoch after the last one that was saved.
    /// let (mut trainer, done) = RbmTrainer::load(&path, &Cpu)?;
    /// trainer.fit(&mut feed, done.as_u64().unwrap_or(0) as usize..60)?;
    /// # std::fs::remove_file(&path)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`fit`](Self::fit), and when `each` fails.
    fn fit_with(
        &mut self,
        feed: &mut Feed,
        epochs: impl Into<Epochs>,
        mut each: impl FnMut(Event<'_, Self>) -> Result<ControlFlow<()>>,
    ) -> Result<Vec<Self::Metrics>>
    where
        Self: Sized,
    {
        let Epochs { epochs, minibatches: mut done, earlier, by_step } = epochs.into();
        let n = feed.n_batches() as f64;
        let mut all = Vec::with_capacity(epochs.len());
        for epoch in epochs {
            self.begin_epoch(epoch)?;
            let group = self.rows_group();
            feed.start_epoch_of(&group, (earlier + epoch) as u64, done).map_err(Error::wrap)?;
            let most = if by_step { 1 } else { self.steps_at_once() };
            while let Some(minibatch) = feed.next_of(most).map_err(Error::wrap)? {
                if by_step {
                    self.follow(epoch as f64 + done as f64 / n)?;
                }
                let n = minibatch.rows.dim(0)?.div_ceil(feed.config().batch);
                self.steps_of(&minibatch.rows, minibatch.labels.as_ref(), n)?;
                done += n;
                if each(Event::Steps { epoch, minibatches: done, trainer: self })?.is_break() {
                    return Ok(all);
                }
            }
            done = 0;
            let metrics = self.metrics()?;
            let ends = each(Event::Epoch { epoch, metrics: &metrics, trainer: self })?.is_break();
            all.push(metrics);
            if ends {
                break;
            }
        }
        self.check()?;
        Ok(all)
    }

    /// Trains until `figure`, which is to fall, such as an error of held-out rows, was no better
    /// for `patience` epochs in a row, or all `epochs` are made; returns the model of the best
    /// epoch.
    ///
    /// ```
    /// # use candle::{Device::Cpu, Tensor};
    /// # use chandlery::datasets::{Feed, FeedConfig, Split};
    /// # use chandlery::rbm::{RbmTrainConfig, Rbm, RbmConfig, RbmTrainer};
    /// # use chandlery::{Decode, MinibatchTrainer, Philox};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let rows = Split::from_tensors(&chandlery_ops::core::uniform((500, 6), &Cpu, Philox::new(0, 2))?, None)?;
    /// # let held_out = chandlery_ops::core::uniform((50, 6), &Cpu, Philox::new(0, 3))?;
    /// # let rbm = Rbm::init(RbmConfig::new(6, 4), Philox::new(0, 0), &Cpu)?;
    /// # let mut feed = Feed::new(&rows, &Cpu, FeedConfig::new(100, 7))?;
    /// let mut trainer = RbmTrainer::new(&rbm, RbmTrainConfig::default(), Philox::new(0, 1))?;
    /// let best = trainer.fit_best(&mut feed, 60, 10, |rbm| rbm.reconstruction_error(&held_out))?;
    /// println!("{} after epoch {}", best.figure, best.epoch + 1);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`fit`](Self::fit), when `figure` fails, and when it never gave a number.
    fn fit_best(
        &mut self,
        feed: &mut Feed,
        epochs: impl Into<Epochs>,
        patience: usize,
        mut figure: impl FnMut(&Self::Model) -> Result<f64>,
    ) -> Result<Best<Self::Model>>
    where
        Self: Sized,
    {
        let mut stopping = EarlyStopping::new(patience);
        self.fit_with(feed, epochs, |event| {
            let Event::Epoch { epoch, trainer, .. } = event else { return Ok(ControlFlow::Continue(())) };
            let model = trainer.model()?;
            let figure = figure(&model)?;
            Ok(if stopping.observe(epoch, figure, || Ok(model))? {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            })
        })?;
        stopping.into_best()
    }

    /// Trains until the loss that `loss` reads from an epoch's metrics has
    /// [converged](Convergence), or all `epochs` are made, and returns the metrics of each.
    ///
    /// ```
    /// # use candle::Device::Cpu;
    /// # use chandlery::datasets::{Feed, FeedConfig, Split};
    /// # use chandlery::dae::{Dae, DaeConfig, DaeTrainConfig, DaeTrainer};
    /// # use chandlery::{Convergence, MinibatchTrainer, Philox};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let rows = Split::from_tensors(&chandlery_ops::core::uniform((200, 6), &Cpu, Philox::new(0, 2))?, None)?;
    /// let dae = Dae::init(DaeConfig::new(6, 4), Philox::new(0, 0), &Cpu)?;
    /// let mut feed = Feed::new(&rows, &Cpu, FeedConfig::new(8, 7))?;
    /// let mut trainer = DaeTrainer::new(&dae, DaeTrainConfig::default(), Philox::new(0, 1))?;
    /// let rule = Convergence { tolerance: 0.01, patience: 2 };
    /// let metrics = trainer.fit_until(&mut feed, 200, rule, |epoch| epoch.loss)?;
    /// assert!(metrics.len() < 200);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`fit`](Self::fit), and when `rule` is out of its range.
    fn fit_until(
        &mut self,
        feed: &mut Feed,
        epochs: impl Into<Epochs>,
        rule: Convergence,
        mut loss: impl FnMut(&Self::Metrics) -> f64,
    ) -> Result<Vec<Self::Metrics>>
    where
        Self: Sized,
    {
        rule.validate()?;
        let mut converging = Converging::default();
        self.fit_with(feed, epochs, |event| match event {
            Event::Epoch { metrics, .. } if converging.observe(loss(metrics), rule) => {
                Ok(ControlFlow::Break(()))
            }
            _ => Ok(ControlFlow::Continue(())),
        })
    }

    /// Reads what [`save`](Trainer::save) wrote: the trainer as it was, and the caller's progress.
    ///
    /// On the device that wrote the file the run continues bit for bit as if it had not stopped,
    /// once [`begin_epoch`](Self::begin_epoch) has been called for the epoch that it was in.
    ///
    /// # Errors
    /// When the file is missing, cut short, or the checkpoint of another trainer; the message names
    /// it.
    fn load(path: &Path, device: &Device) -> Result<(Self, Value)>
    where
        Self: Sized;
}

/// Which epochs a [`MinibatchTrainer`] makes: a number of them, a range such as `30..60`, or from
/// within one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Epochs {
    /// Counted from 0.
    pub epochs: Range<usize>,
    /// Minibatches of the first of these that are made already.
    pub minibatches: usize,
    /// Epochs on the same rows before epoch 0, of layers below or of another stage: each has an
    /// order of its own.
    pub earlier: usize,
    /// Whether schedules are followed from step to step, which are then made one by one, in place
    /// of from epoch to epoch.
    pub by_step: bool,
}

impl From<usize> for Epochs {
    fn from(n: usize) -> Self {
        (0..n).into()
    }
}

impl From<Range<usize>> for Epochs {
    fn from(epochs: Range<usize>) -> Self {
        Self { epochs, minibatches: 0, earlier: 0, by_step: false }
    }
}

/// What [`MinibatchTrainer::fit_with`] shows of a training.
#[derive(Debug)]
pub enum Event<'a, T: Trainer> {
    /// Steps were made, one or a few.
    Steps {
        /// The epoch under way, counted from 0.
        epoch: usize,
        /// Its minibatches that are done.
        minibatches: usize,
        /// What learns.
        trainer: &'a mut T,
    },
    /// An epoch is done.
    Epoch {
        /// Counted from 0.
        epoch: usize,
        /// What its steps measured.
        metrics: &'a T::Metrics,
        /// What learns.
        trainer: &'a mut T,
    },
}

/// Checks that `rows` are a minibatch of 1 to `batch` raw rows of `n_inputs` values, and gives how
/// many.
pub(crate) fn check_minibatch(trainer: &str, rows: &Tensor, batch: usize, n_inputs: usize) -> Result<usize> {
    match *rows.dims() {
        [n, width] if width == n_inputs && (1..=batch).contains(&n) => Ok(n),
        ref dims => candle::bail!(
            "{trainer}::step: rows must have shape [{batch}, {n_inputs}], or fewer rows, at least 1, got {dims:?}"
        ),
    }
}

/// A [`step`](MinibatchTrainer::step) for each of `n` minibatches.
///
/// # Errors
/// As the steps, and when `rows` cannot be parted.
pub(crate) fn one_by_one<T: MinibatchTrainer + ?Sized>(
    trainer: &mut T,
    rows: &Tensor,
    labels: Option<&Tensor>,
    n: usize,
) -> Result<()> {
    let batch = rows.dim(0)?.checked_div(n).unwrap_or(0);
    if batch * n != rows.dim(0)? {
        candle::bail!(
            "MinibatchTrainer::steps_of: rows must be {n} minibatches, got {} of them",
            rows.dim(0)?
        )
    }
    for start in (0..n).map(|i| i * batch) {
        let labels = labels.map(|labels| labels.narrow(0, start, batch)).transpose()?;
        trainer.step(&rows.narrow(0, start, batch)?, labels.as_ref())?;
    }
    Ok(())
}
