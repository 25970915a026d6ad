//! The step of a trainer, recorded alone and as several steps in one.
//!
//! The start of a recording, and the load before it, wait for all that ran before and take as long as a small kernel; within a recording a kernel
//! begins while the one before still runs.
use candle::{Device, Result};
use chandlery_ops::Replay;

/// Recordings of as many steps as are best made at once, of half as many and so on down to one.
pub(crate) struct Replays(Vec<(usize, Replay)>);

impl Replays {
    /// `run(n)` makes `n` steps from what is loaded, `n` being at most `most`. Its tensors are used on this device and its clones alone.
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

    /// Makes `n` steps, by the longest recordings that fit: before each, `load(done, so_many)` loads what so many steps read, after those done.
    pub fn run(&mut self, n: usize, mut load: impl FnMut(usize, usize) -> Result<()>) -> Result<()> {
        let mut done = 0;
        for (of, replay) in &mut self.0 {
            while n - done >= *of {
                load(done, *of)?;
                replay.run()?;
                done += *of;
            }
        }
        Ok(())
    }
}
