//! Seeded minibatches on the device.
//!
//! An epoch's order is `Philox { seed, stream: ORDER_STREAM + epoch }.permutation(n_samples)`: a
//! function of the seed and the epoch's number alone. With [`FeedConfig::mix`] it is one that reads
//! whole pieces of rows, each from front to back. Rows travel as stored (a byte stays a byte) in
//! large chunks of that order:
//!
//! - a split that fits [`FeedConfig::resident_bytes`] is copied to the device once, and chunks are
//!   gathered there; so are those of rows that are there already, see [`Feed::resident`];
//! - any other is gathered by a thread of its own and crosses through
//!   [`chandlery_ops::core::ChunkUpload`] (pinned memory and a copy stream on CUDA), the next chunk while the present one is in use; in shuffled epochs the
//!   first chunk of the next epoch follows the last one.
//!
//! Both give the same minibatches in the same order. A minibatch is a view of its chunk: `next`
//! copies nothing.
//!
//! The ranks of a group have one order. Where each takes rows of its own of every minibatch,
//! [`Feed::start_epoch_of`] reads these alone, so that a streamed epoch is read once by all ranks
//! together. A split that stays on the device is read once by each.
use crate::ahead::{Ahead, Part};
use crate::on_device::OnDevice;
pub use crate::order::ORDER_STREAM;
use crate::order::Orders;
use crate::source::row_bytes;
use crate::{Error, Result, Split};
use candle::{DType, Device, Tensor};
use chandlery_ops::Group;
use chandlery_ops::arrays::gather_rows;
use chandlery_ops::core::ChunkUpload;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// How a [`Feed`] cuts a split into minibatches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FeedConfig {
    /// Rows of a minibatch, at least 1; the last of an epoch has what is left, so that an epoch has
    /// every row once.
    pub batch: usize,
    /// Seed of the order.
    pub seed: u64,
    /// Whether each epoch has an order of its own; without, rows come as the source has them.
    pub shuffle: bool,
    /// Rows of a buffer from which minibatches are drawn, at least 1, in place of an order over all
    /// rows: for rows in files larger than memory, which are read in pieces of a sixteenth of it,
    /// taken from anywhere. It should hold many times a minibatch, and fit into memory. None, the
    /// default, for an order over all rows, which takes 4 bytes a row.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mix: Option<usize>,
    /// Bytes of a chunk, rounded down to whole minibatches, at least one. The default, 64 MiB,
    /// takes about 3 ms to cross PCIe 4: long against the cost of starting a copy, short against an
    /// epoch.
    pub chunk_bytes: usize,
    /// A split of at most so many bytes stays on the device; `None` streams always. Default 2 GiB.
    pub resident_bytes: Option<usize>,
}

impl FeedConfig {
    /// Shuffled minibatches of `batch` rows; everything else as documented on the fields.
    pub const fn new(batch: usize, seed: u64) -> Self {
        Self { batch, seed, shuffle: true, mix: None, chunk_bytes: 64 << 20, resident_bytes: Some(2 << 30) }
    }

    /// Every row once, in the order of the source: for evaluation.
    pub const fn in_order(batch: usize) -> Self {
        Self { shuffle: false, ..Self::new(batch, 0) }
    }
}

/// Some rows on the device.
///
/// The tensors are views: they hold these rows until the next call of [`Feed::next`] or
/// [`Feed::start_epoch`], after which their memory may be written again. Copy what must live
/// longer.
#[derive(Debug, Clone)]
pub struct Minibatch {
    /// `[b, n_features]` in the stored type, `b` being `batch`, or less in an epoch's last.
    pub rows: Tensor,
    /// `[b]`, u32, when the split has labels.
    pub labels: Option<Tensor>,
}

/// A stream of minibatches; see the [module](self).
#[derive(Debug)]
pub struct Feed {
    split: Split,
    device: Device,
    config: FeedConfig,
    orders: Orders,
    chunk_rows: usize,
    store: Store,
    epoch: Option<Epoch>,
}

/// Where chunks come from.
#[derive(Debug)]
enum Store {
    /// The whole split on the device.
    Resident(Tensor),
    /// Gathered on the host, sent through staging memory.
    Streamed(Box<Ahead>),
}

#[derive(Debug)]
struct Epoch {
    number: u64,
    /// Of a resident split: what is in no chunk yet.
    rest: Option<Part>,
    /// The chunk in use and the first of its rows not handed out.
    current: Option<(Chunk, usize)>,
}

#[derive(Debug)]
struct Chunk {
    rows: Tensor,
    labels: Option<Tensor>,
    n_rows: usize,
}

impl Feed {
    /// Prepares a feed; copies the split to the device if it is to stay there.
    ///
    /// # Errors
    /// When `batch` or `mix` is 0 or there are no rows; when rows cannot be read; when memory is
    /// short.
    pub fn new(split: &Split, device: &Device, config: FeedConfig) -> Result<Self> {
        split.check_labels()?;
        let fits = config.resident_bytes.is_some_and(|limit| split.size_bytes() <= limit);
        let batch = config.batch;
        Self::with_store(split, device, config, |orders, chunk_rows| {
            if fits {
                return Ok(Store::Resident(copy_to_device(split, device, chunk_rows)?));
            }
            let dtype = split.row_type().dtype();
            let upload = ChunkUpload::new(device, dtype, chunk_rows, split.n_features())?;
            let sizes = (batch, chunk_rows);
            Ok(Store::Streamed(Box::new(Ahead::new(split.rows.clone(), upload, orders, sizes)?)))
        })
    }

    /// Prepares a feed of rows that are on a device, `[n_samples, n_features]` u8, bf16, f16 or
    /// f32, where they stay; without labels. bf16 and f16 become f32.
    ///
    /// ```
    /// use candle::{Device, Tensor};
    /// use chandlery_datasets::{Feed, FeedConfig};
    /// # fn main() -> chandlery_datasets::Result<()> {
    /// let rows = Tensor::new(&[[1f32, 2.], [3., 4.]], &Device::Cpu)?;
    /// let mut feed = Feed::resident(&rows, FeedConfig::in_order(2))?;
    /// feed.start_epoch(0, 0)?;
    /// assert_eq!(feed.next()?.map(|batch| batch.rows.dims().to_vec()), Some(vec![2, 2]));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// When `batch` or `mix` is 0; when `rows` have another shape or type, or none, or a value is
    /// not finite; when memory is short.
    pub fn resident(rows: &Tensor, config: FeedConfig) -> Result<Self> {
        let source = OnDevice::new(rows)?;
        let rows = source.rows().clone();
        let split = Split::new(Arc::new(source), None)?;
        Self::with_store(&split, rows.device(), config, |_, _| Ok(Store::Resident(rows.clone())))
    }

    fn with_store(
        split: &Split,
        device: &Device,
        config: FeedConfig,
        store: impl FnOnce(Orders, usize) -> Result<Store>,
    ) -> Result<Self> {
        let n_samples = split.n_samples();
        if config.batch == 0 || n_samples == 0 {
            return Err(Error::Argument(format!(
                "Feed: batch and the number of rows must be at least 1, got {} for {}",
                config.batch,
                crate::count(n_samples, "row")
            )));
        }
        if config.mix == Some(0) {
            return Err(Error::Argument("Feed: mix must be at least 1, got 0".to_owned()));
        }
        let row_bytes = row_bytes(split.rows.as_ref());
        let batches_per_chunk = (config.chunk_bytes / row_bytes / config.batch).max(1);
        let chunk_rows = batches_per_chunk.saturating_mul(config.batch).min(n_samples);
        let FeedConfig { seed, shuffle, mix, .. } = config;
        let orders = Orders { n_samples, seed, shuffle, mix };
        Ok(Self {
            split: split.clone(),
            device: device.clone(),
            config,
            orders,
            chunk_rows,
            store: store(orders, chunk_rows)?,
            epoch: None,
        })
    }

    /// Minibatches of an epoch.
    pub fn n_batches(&self) -> usize {
        self.n_rows().div_ceil(self.config.batch)
    }

    /// Rows of an epoch.
    pub fn n_rows(&self) -> usize {
        self.orders.n_samples
    }

    /// Values in a row.
    pub fn n_features(&self) -> usize {
        self.split.n_features()
    }

    /// What a kernel multiplies stored values by: 1/255 for bytes, 1 for floats.
    pub fn scale(&self) -> f64 {
        self.split.row_type().scale()
    }

    /// Whether the split stays on the device.
    pub fn is_resident(&self) -> bool {
        matches!(self.store, Store::Resident(_))
    }

    /// The same minibatches of what `make` makes of the rows, f32 `[n, n_features]` of `[n, …]`,
    /// which is computed once, as many rows at a time as a minibatch has, and stays on the device.
    /// None where that takes more than `most_bytes`.
    ///
    /// # Errors
    /// Those of `make`, and when rows cannot be read or memory is short.
    pub fn through(
        &self,
        n_features: usize,
        most_bytes: usize,
        make: impl Fn(&Tensor) -> candle::Result<Tensor>,
    ) -> Result<Option<Self>> {
        let (n, batch) = (self.n_rows(), self.config.batch);
        if n.saturating_mul(n_features).saturating_mul(size_of::<f32>()) > most_bytes {
            return Ok(None);
        }
        let made = Tensor::zeros((n, n_features), DType::F32, &self.device)?;
        let mut streamed = match self.store {
            Store::Resident(_) => None,
            Store::Streamed(_) => {
                let config = FeedConfig { resident_bytes: None, ..FeedConfig::in_order(batch) };
                let mut feed = Self::new(&self.split, &self.device, config)?;
                feed.start_epoch(0, 0)?;
                Some(feed)
            }
        };
        for start in (0..n).step_by(batch) {
            let rows = match (&self.store, &mut streamed) {
                (Store::Resident(rows), _) => Some(rows.narrow(0, start, batch.min(n - start))?),
                (_, Some(feed)) => feed.next()?.map(|minibatch| minibatch.rows),
                _ => None,
            };
            rows.map_or(Ok(()), |rows| made.slice_set(&make(&rows)?, 0, start))?;
        }
        let feed = Self::resident(&made, self.config.clone())?;
        Ok(Some(Self { split: Split { labels: self.split.labels.clone(), ..feed.split }, ..feed }))
    }

    /// The configuration.
    pub fn config(&self) -> &FeedConfig {
        &self.config
    }

    /// Begins epoch `epoch` after its first `skip_batches` minibatches, as if they had been taken:
    /// how a run resumes.
    ///
    /// What was left of another epoch is dropped.
    ///
    /// # Errors
    /// When `skip_batches` is above [`Feed::n_batches`], or an earlier read failed for good.
    pub fn start_epoch(&mut self, epoch: u64, skip_batches: usize) -> Result<()> {
        self.start_epoch_of(&Group::single(), epoch, skip_batches)
    }

    /// The same for a rank that takes its own rows of each minibatch alone, [`Group::rows`]: where
    /// rows are streamed, the others are not read, and are 0. Minibatches have the shapes, the
    /// order and the labels of those of one rank.
    ///
    /// ```
    /// use candle::{Device::Cpu, Tensor};
    /// use chandlery_datasets::{Feed, FeedConfig, Split};
    /// use chandlery_ops::Group;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let rows = Split::from_tensors(&Tensor::arange(1f32, 9., &Cpu)?.reshape((8, 1))?, None)?;
    /// let config = FeedConfig { resident_bytes: None, ..FeedConfig::in_order(8) };
    /// let made = Group::on_threads(Group::threads(2), |group| -> chandlery_datasets::Result<_> {
    ///     let mut feed = Feed::new(&rows, &Cpu, config.clone())?;
    ///     feed.start_epoch_of(group, 0, 0)?;
    ///     Ok(feed.next()?.map(|minibatch| minibatch.rows.flatten_all()?.to_vec1::<f32>()).transpose()?)
    /// });
    /// let [first, second] = made.try_into().map_err(|_| "two ranks")?;
    /// assert_eq!(first?, Some(vec![1., 2., 3., 4., 0., 0., 0., 0.]));
    /// assert_eq!(second?, Some(vec![0., 0., 0., 0., 5., 6., 7., 8.]));
    /// # Ok(()) }
    /// ```
    ///
    /// A minibatch of too few rows to give each rank some is read whole by all.
    ///
    /// # Errors
    /// As [`start_epoch`](Self::start_epoch).
    pub fn start_epoch_of(&mut self, group: &Group, epoch: u64, skip_batches: usize) -> Result<()> {
        if skip_batches > self.n_batches() {
            return Err(Error::Argument(format!(
                "Feed: skip_batches must be at most the {} of an epoch, got {skip_batches}",
                self.n_batches()
            )));
        }
        self.epoch = None;
        let start = (skip_batches * self.config.batch).min(self.n_rows());
        let n_rows = self.n_rows();
        let rest = match &mut self.store {
            Store::Resident(_) => Some(Part { epoch, order: self.orders.of(epoch), range: start..n_rows }),
            Store::Streamed(ahead) => {
                ahead.begin(epoch, start, group)?;
                None
            }
        };
        self.epoch = Some(Epoch { number: epoch, rest, current: None });
        Ok(())
    }

    /// The next minibatch of the epoch, `None` at its end.
    ///
    /// # Errors
    /// Before the first [`Feed::start_epoch`]; when rows cannot be read or copied. After an error
    /// the epoch is over.
    #[allow(clippy::should_implement_trait)] // An iterator's items could not be views that the next call ends.
    pub fn next(&mut self) -> Result<Option<Minibatch>> {
        self.next_of(1)
    }

    /// The next minibatches of the epoch, one after the other in the rows of one: as many as are on
    /// the device together, up to `most`. One that is not full comes alone.
    ///
    /// # Errors
    /// As [`next`](Self::next).
    pub fn next_of(&mut self, most: usize) -> Result<Option<Minibatch>> {
        let Some(mut epoch) = self.epoch.take() else {
            return Err(Error::Argument("Feed: no epoch is under way; call start_epoch first".to_owned()));
        };
        let minibatch = self.take_from(&mut epoch, most.max(1))?;
        self.epoch = Some(epoch);
        Ok(minibatch)
    }

    fn take_from(&mut self, epoch: &mut Epoch, most: usize) -> Result<Option<Minibatch>> {
        let spent = |(chunk, taken): &(Chunk, usize)| *taken >= chunk.n_rows;
        if epoch.current.as_ref().is_none_or(spent) {
            epoch.current = self.advance(epoch)?.map(|chunk| (chunk, 0));
        }
        let Some((chunk, taken)) = &mut epoch.current else {
            return Ok(None);
        };
        let (batch, left) = (self.config.batch, chunk.n_rows - *taken);
        let n = if left < batch { left } else { batch * most.min(left / batch) };
        let view = |t: &Tensor| t.narrow(0, *taken, n);
        let minibatch =
            Minibatch { rows: view(&chunk.rows)?, labels: chunk.labels.as_ref().map(view).transpose()? };
        *taken += n;
        Ok(Some(minibatch))
    }

    /// The chunk to use now.
    fn advance(&mut self, epoch: &mut Epoch) -> Result<Option<Chunk>> {
        let (rows, part) = match &mut self.store {
            Store::Resident(all) => {
                let part = epoch.rest.as_mut().map(|rest| rest.take(self.chunk_rows));
                let Some(part) = part.filter(|part| !part.range.is_empty()) else { return Ok(None) };
                (gather_rows(all, &part.rows())?, part)
            }
            Store::Streamed(ahead) => match ahead.receive(epoch.number)? {
                Some(chunk) => chunk,
                None => return Ok(None),
            },
        };
        Ok(Some(Chunk { rows, labels: self.labels_of(&part)?, n_rows: part.range.len() }))
    }

    fn labels_of(&self, part: &Part) -> Result<Option<Tensor>> {
        let Some(labels) = self.split.labels.as_deref() else {
            return Ok(None);
        };
        let labels: Vec<u32> = part.rows().iter().map(|&i| labels[i as usize]).collect();
        Ok(Some(Tensor::from_vec(labels, part.range.len(), &self.device)?))
    }
}

/// All rows of `split`, `[n_samples, n_features]`, with no more than `chunk_rows` of them on the
/// host at a time.
fn copy_to_device(split: &Split, device: &Device, chunk_rows: usize) -> Result<Tensor> {
    let n_samples = split.n_samples();
    let shape = (n_samples, split.n_features());
    let all = Tensor::zeros(shape, split.row_type().dtype(), device)?;
    for start in (0..n_samples).step_by(chunk_rows) {
        let end = n_samples.min(start + chunk_rows);
        let indices: Vec<u32> = (start as u32..end as u32).collect();
        all.slice_set(&split.gather(&indices, device)?, 0, start)?;
    }
    Ok(all)
}
