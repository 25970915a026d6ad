//! What trainers that learn from minibatches have in common.
use candle::{Device, Result, Tensor};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::path::Path;

/// Learns a model from minibatches of raw rows.
///
/// A loop over epochs, with the order of the rows left to the caller:
///
/// ```
/// use candle::Device::Cpu;
/// use chandlery::rbm::{CdConfig, Rbm, RbmConfig, RbmTrainer};
/// use chandlery::{Philox, Trainer};
///
/// # fn main() -> candle::Result<()> {
/// let rbm = Rbm::init(RbmConfig::new(6, 4), Philox::new(0, 0), &Cpu)?;
/// let mut trainer = RbmTrainer::new(&rbm, CdConfig { batch: 8, ..CdConfig::default() }, Philox::new(0, 1))?;
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
pub trait Trainer: Sized {
    /// What is learned.
    type Model;
    /// What steps measure.
    type Metrics: Serialize;

    /// Sets learning rate, momentum and whatever else follows a schedule to their values in `epoch`, counted from 0.
    ///
    /// # Errors
    /// When the device fails.
    fn begin_epoch(&mut self, epoch: usize) -> Result<()>;

    /// One update from a minibatch of raw `rows`, `[batch, n_features]` u8 or f32, which go through the model's preparation, and for
    /// models with labels `labels` `[batch]` u32, both contiguous and on the trainer's device. Models without labels ignore `labels`.
    /// A minibatch may have fewer rows, at least 1, as the last of an epoch has; its gradient is the mean over these.
    ///
    /// On a GPU a step is queued; most trainers do not wait for it.
    ///
    /// # Errors
    /// When `rows` or `labels` have another shape, type or device, or a model with labels gets none.
    fn step(&mut self, rows: &Tensor, labels: Option<&Tensor>) -> Result<()>;

    /// The same for `n` minibatches, one after the other in `rows` and `labels`, of the same bits as `n` calls of [`step`](Self::step). Some
    /// trainers make many steps in less time than one by one.
    ///
    /// # Errors
    /// As [`step`](Self::step), and when `rows` are not `n` minibatches.
    fn steps_of(&mut self, rows: &Tensor, labels: Option<&Tensor>, n: usize) -> Result<()> {
        one_by_one(self, rows, labels, n)
    }

    /// How many minibatches [`steps_of`](Self::steps_of) takes best; 1 where it makes one step after the other.
    fn steps_at_once(&self) -> usize {
        1
    }

    /// Whether all that was learned so far is finite. Waits for the device, and leaves the metrics as they are.
    ///
    /// # Errors
    /// When training has diverged; the message says between which steps.
    fn check(&mut self) -> Result<()>;

    /// What the steps since the last call measured. Waits for the device.
    ///
    /// # Errors
    /// When no step was made since the last call, or training has diverged.
    fn metrics(&mut self) -> Result<Self::Metrics>;

    /// Steps made since training began; of a trainer with several stages or layers, in the one under way.
    fn steps(&self) -> u64;

    /// A copy of the model as trained so far.
    ///
    /// # Errors
    /// When memory is short.
    fn model(&self) -> Result<Self::Model>;

    /// Where the model is trained.
    fn device(&self) -> &Device;

    /// Writes everything that the rest of the training depends on to one file, with `progress`: the epoch, the place in the data,
    /// whatever the caller needs to resume. Waits for the device. The file appears whole.
    ///
    /// # Errors
    /// When the file is not writable.
    fn save_checkpoint(&self, path: &Path, progress: &impl Serialize) -> Result<()>;

    /// Reads what [`save_checkpoint`](Self::save_checkpoint) wrote: the trainer as it was, and the caller's progress.
    ///
    /// On the device that wrote the file the run continues bit for bit as if it had not stopped, once
    /// [`begin_epoch`](Self::begin_epoch) has been called for the epoch that it was in.
    ///
    /// # Errors
    /// When the file is missing, cut short, or the checkpoint of another trainer; the message names it.
    fn load_checkpoint<P: DeserializeOwned>(path: &Path, device: &Device) -> Result<(Self, P)>;
}

/// Checks that `rows` are a minibatch of 1 to `batch` raw rows of `n_inputs` values, and gives how many.
pub(crate) fn check_minibatch(trainer: &str, rows: &Tensor, batch: usize, n_inputs: usize) -> Result<usize> {
    match *rows.dims() {
        [n, width] if width == n_inputs && (1..=batch).contains(&n) => Ok(n),
        ref dims => candle::bail!(
            "{trainer}::step: rows must have shape [{batch}, {n_inputs}], or fewer rows, at least 1, got {dims:?}"
        ),
    }
}

/// A [`step`](Trainer::step) for each of `n` minibatches.
///
/// # Errors
/// As the steps, and when `rows` cannot be parted.
pub(crate) fn one_by_one<T: Trainer>(
    trainer: &mut T,
    rows: &Tensor,
    labels: Option<&Tensor>,
    n: usize,
) -> Result<()> {
    let batch = rows.dim(0)?.checked_div(n).unwrap_or(0);
    if batch * n != rows.dim(0)? {
        candle::bail!("Trainer::steps_of: rows must be {n} minibatches, got {} of them", rows.dim(0)?)
    }
    for start in (0..n).map(|i| i * batch) {
        let labels = labels.map(|labels| labels.narrow(0, start, batch)).transpose()?;
        trainer.step(&rows.narrow(0, start, batch)?, labels.as_ref())?;
    }
    Ok(())
}
