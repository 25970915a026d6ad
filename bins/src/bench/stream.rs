//! Minibatches without end, for timing.
use anyhow::{Context, Result};
use candle::Tensor;
use chandlery::MinibatchTrainer;
use chandlery_datasets::{Feed, Split};
use chandlery_ops::Philox;
use rayon::prelude::*;

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

    /// Rows of at most so many minibatches; none at the end of an epoch, whose last rows may be
    /// fewer than a minibatch.
    fn next_of(&mut self, most: usize) -> Result<Option<Tensor>> {
        let Some(batch) = self.feed.next_of(most)? else { return Ok(None) };
        Ok((batch.rows.dim(0)? >= self.feed.config().batch).then_some(batch.rows))
    }

    /// Makes so many steps, as many at a time as the trainer takes best.
    pub(super) fn train<T: MinibatchTrainer>(&mut self, trainer: &mut T, steps: usize) -> Result<()> {
        let mut left = steps;
        while left > 0 {
            let most = trainer.steps_at_once().min(left);
            let rows = match self.next_of(most)? {
                Some(rows) => rows,
                None => {
                    self.epoch += 1;
                    self.feed.start_epoch(self.epoch, 0)?;
                    self.next_of(most)?.context("an epoch without full minibatches")?
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
    let mut bytes = vec![0; n_samples * n_visible];
    fill_randomly(&mut bytes, 0);
    Ok(Split::from_u8(bytes, n_visible, None)?)
}

/// Bytes of one Philox block.
const PHILOX_BYTES: usize = 16;

/// Fills `bytes` with those of the one endless random sequence that begin at place `start`, a
/// multiple of 16.
pub(super) fn fill_randomly(bytes: &mut [u8], start: usize) {
    const PART: usize = 1024 * PHILOX_BYTES;
    let philox = Philox::new(192, 0);
    bytes.par_chunks_mut(PART).enumerate().for_each(|(part, bytes)| {
        let first = (start + part * PART) / PHILOX_BYTES;
        for (block, bytes) in bytes.chunks_mut(PHILOX_BYTES).enumerate() {
            let random = philox.block((first + block) as u64).map(u32::to_ne_bytes);
            bytes.copy_from_slice(&random.as_flattened()[..bytes.len()]);
        }
    });
}
