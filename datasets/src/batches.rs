//! Minibatches as iterators.
use crate::memory::no_labels;
use crate::{Feed, FeedConfig, Minibatch, Result, Split};
use candle::{DType, Device, Tensor};
use std::borrow::BorrowMut;

/// The minibatches of an epoch, each in tensors of its own, which live as long as they are wanted:
/// a copy on the device more than [`Feed::next`] makes. Ends after an error.
#[derive(Debug)]
pub struct Minibatches<F = Feed> {
    feed: F,
    is_over: bool,
}

impl<F: BorrowMut<Feed>> Minibatches<F> {
    fn own_next(&mut self) -> Result<Option<Minibatch>> {
        let Some(Minibatch { rows, labels }) = self.feed.borrow_mut().next()? else { return Ok(None) };
        let labels = labels.map(|labels| labels.force_contiguous()).transpose()?;
        Ok(Some(Minibatch { rows: rows.force_contiguous()?, labels }))
    }

    /// The same in the form of candle-datasets' `Batcher`: rows `[b, n_features]` f32, bytes over
    /// 255, and labels `[b]` u32. An error where there are no labels.
    pub fn pairs(self) -> impl Iterator<Item = candle::Result<(Tensor, Tensor)>> {
        let scale = self.feed.borrow().scale();
        self.map(move |minibatch| {
            let Minibatch { rows, labels } = minibatch.map_err(candle::Error::wrap)?;
            let labels = labels.ok_or_else(|| candle::Error::wrap(no_labels("Minibatches::pairs")))?;
            let rows = match rows.dtype() {
                DType::U8 => rows.to_dtype(DType::F32)?.affine(scale, 0.)?,
                _ => rows,
            };
            Ok((rows, labels))
        })
    }
}

impl<F: BorrowMut<Feed>> Iterator for Minibatches<F> {
    type Item = Result<Minibatch>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_over {
            return None;
        }
        let minibatch = self.own_next().transpose();
        self.is_over = !matches!(minibatch, Some(Ok(_)));
        minibatch
    }
}

impl Feed {
    /// The minibatches of an epoch as an iterator.
    ///
    /// # Errors
    /// Those of [`start_epoch`](Self::start_epoch); the items are those of [`next`](Self::next).
    pub fn epoch(&mut self, number: u64) -> Result<Minibatches<&mut Self>> {
        self.start_epoch(number, 0)?;
        Ok(Minibatches { feed: self, is_over: false })
    }
}

impl Split {
    /// Every row once and in order, `batch` at a time, on `device`; the last minibatch has what is
    /// left.
    ///
    /// ```
    /// use candle::{Device, Tensor};
    /// use chandlery_datasets::Split;
    /// # fn main() -> chandlery_datasets::Result<()> {
    /// let split = Split::from_tensors(&Tensor::new(&[[1f32], [2.], [3.]], &Device::Cpu)?, None)?;
    /// let sizes = split.batches(2, &Device::Cpu)?.map(|batch| Ok(batch?.rows.dim(0)?));
    /// assert_eq!(sizes.collect::<chandlery_datasets::Result<Vec<_>>>()?, [2, 1]);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Those of [`Feed::new`].
    pub fn batches(&self, batch: usize, device: &Device) -> Result<Minibatches> {
        let mut feed = Feed::new(self, device, FeedConfig::in_order(batch))?;
        feed.start_epoch(0, 0)?;
        Ok(Minibatches { feed, is_over: false })
    }
}
