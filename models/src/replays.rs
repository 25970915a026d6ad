//! The step of a trainer, recorded alone and as several steps in one.
//!
//! The start of a recording, and the load before it, wait for all that ran before and take as long
//! as a small kernel; within a recording a kernel begins while the one before still runs.
use crate::prepare::to_load;
use candle::{Device, Result, Tensor};
use chandlery_datasets::Preparation;
use chandlery_ops::core::Replay;

/// Recordings of as many steps as are best made at once, of half as many and so on down to one.
pub(crate) struct Replays(Vec<(usize, Replay)>);

impl Replays {
    /// `run(n)` makes `n` steps from what is loaded, `n` being at most `most`. Its tensors are used
    /// on this device and its clones alone.
    pub fn new(
        device: &Device,
        most: usize,
        run: impl Fn(usize) -> Result<()> + Clone + Send + Sync + 'static,
    ) -> Self {
        let replay = |n| {
            let run = run.clone();
            (n, Replay::new(device, move || run(n)).unshared())
        };
        let halves = std::iter::successors(Some(most.max(1)), |n| Some(n / 2));
        Self(halves.take_while(|&n| n > 0).map(replay).collect())
    }

    /// The same for one step that makes tensors.
    pub fn unrecorded(device: &Device, run: impl Fn(usize) -> Result<()> + Send + Sync + 'static) -> Self {
        Self(vec![(1, Replay::unrecorded(device, move || run(1)))])
    }

    /// Makes a step of each of `n` minibatches of raw rows for `trainer`, by the longest recordings
    /// that fit; rows of a minibatch may be none. Before each, `load(first, rows, scale)` puts `scale · rows` where its steps read
    /// them, from minibatch `first` of the recording on.
    pub fn run(
        &mut self,
        trainer: &str,
        n: usize,
        rows: &Tensor,
        preparation: &Preparation,
        mut load: impl FnMut(usize, &Tensor, f32) -> Result<()>,
    ) -> Result<()> {
        let batch = rows.dim(0)? / n.max(1);
        // Raw rows that are only scaled are loaded together. Others are a minibatch at a time: sums
        // over many rows at once may be of other bits.
        let scaled = preparation.as_scale(rows.dtype()).is_some();
        let mut done = 0;
        for (of, replay) in &mut self.0 {
            let together = if scaled { *of } else { 1 };
            while n - done >= *of {
                for first in (0..*of).step_by(together).filter(|_| batch > 0) {
                    let rows = rows.narrow(0, (done + first) * batch, together * batch)?;
                    let (rows, scale) = to_load(trainer, preparation, &rows)?;
                    load(first, &rows, scale)?;
                }
                replay.run()?;
                done += *of;
            }
        }
        Ok(())
    }
}
