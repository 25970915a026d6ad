//! Minibatches without end, for timing.
use anyhow::{Context, Result};
use chandlery::Trainer;
use chandlery_datasets::{Feed, Split};
use chandlery_ops::Philox;

/// One epoch after the other.
pub(super) struct Stream<'a> {
    feed: &'a mut Feed,
    epoch: u64,
}

impl<'a> Stream<'a> {
    pub(super) fn new(feed: &'a mut Feed) -> Result<Self> {
        feed.start_epoch(0, 0)?;
        Ok(Self { feed, epoch: 0 })
    }

    /// Makes so many steps, as many at a time as the trainer takes best.
    pub(super) fn train<T: Trainer>(&mut self, trainer: &mut T, steps: usize) -> Result<()> {
        let mut left = steps;
        while left > 0 {
            let most = trainer.steps_at_once().min(left);
            let rows = match self.feed.next_of(most)? {
                Some(batch) => batch.rows,
                None => {
                    self.epoch += 1;
                    self.feed.start_epoch(self.epoch, 0)?;
                    self.feed.next_of(most)?.context("an epoch without minibatches")?.rows
                }
            };
            let n = rows.dim(0)? / self.feed.config().batch;
            trainer.steps_of(&rows, None, n)?;
            left -= n;
        }
        Ok(())
    }
}

/// Random bytes: their content does not change the time, but zeros would.
pub(super) fn synthetic_rows(n_samples: usize, n_visible: usize) -> Result<Split> {
    let philox = Philox::new(192, 0);
    let n = n_samples * n_visible;
    let bytes = (0..n.div_ceil(16) as u64).flat_map(|block| philox.block(block)).flat_map(u32::to_ne_bytes);
    Ok(Split::from_u8(bytes.take(n).collect(), n_visible, None)?)
}
