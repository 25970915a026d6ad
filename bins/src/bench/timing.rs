//! The median of several runs that end with the device idle.
use candle::Device;
use std::time::Instant;

/// Seconds of several runs of the same work.
#[derive(Debug, Clone, Copy)]
pub struct Seconds {
    /// The middle one.
    pub median: f64,
    /// The fastest.
    pub min: f64,
    /// The slowest.
    pub max: f64,
}

impl Seconds {
    /// Of runs, in any order; NaN where there is none.
    pub fn of(mut runs: Vec<f64>) -> Self {
        runs.sort_by(f64::total_cmp);
        let at = |i: usize| runs.get(i).copied().unwrap_or(f64::NAN);
        Self { median: at(runs.len() / 2), min: at(0), max: at(runs.len().saturating_sub(1)) }
    }

    /// The same for another amount of work.
    pub fn times(self, factor: f64) -> Self {
        Self { median: self.median * factor, min: self.min * factor, max: self.max * factor }
    }
}

/// Runs `work` once unseen, then `repeats` times, and waits for the device at the end of each.
///
/// # Errors
/// What `work` returns, and what the device reports when it is waited for.
pub fn time(
    device: &Device,
    repeats: u32,
    work: impl FnMut() -> anyhow::Result<()>,
) -> anyhow::Result<Seconds> {
    Ok(Seconds::of(runs(device, repeats, work)?))
}

/// The seconds of each run of [`time`], at least one.
fn runs(
    device: &Device,
    repeats: u32,
    mut work: impl FnMut() -> anyhow::Result<()>,
) -> anyhow::Result<Vec<f64>> {
    work()?;
    device.synchronize()?;
    let timed = |_| {
        let start = Instant::now();
        work()?;
        device.synchronize()?;
        Ok(start.elapsed().as_secs_f64())
    };
    (0..repeats.max(1)).map(timed).collect()
}

/// Seconds of one call, from runs of as many as take `seconds`, at least `least`: long against the
/// clock and against waiting for the device at the end. `calls` makes so many.
///
/// # Errors
/// As [`time`].
pub fn time_of_one(
    device: &Device,
    repeats: u32,
    long: (f64, usize),
    calls: impl FnMut(usize) -> anyhow::Result<()>,
) -> anyhow::Result<Seconds> {
    Ok(Seconds::of(slices_of_one(device, repeats, long, calls)?))
}

/// The seconds of one call in each run of [`time_of_one`], at least one.
///
/// # Errors
/// As [`time`].
pub fn slices_of_one(
    device: &Device,
    repeats: u32,
    (seconds, least): (f64, usize),
    mut calls: impl FnMut(usize) -> anyhow::Result<()>,
) -> anyhow::Result<Vec<f64>> {
    // The first calls of a number may record what later ones replay, which takes as long as many of
    // them: a run is as long as a second one says, once that is a good part of it.
    let mut n = least;
    let taken = loop {
        let taken: f64 = runs(device, 1, || calls(n))?.into_iter().sum();
        if 4. * taken >= seconds {
            break taken;
        }
        n *= 2;
    };
    let n = ((n as f64 * seconds / taken).ceil() as usize).max(least);
    Ok(runs(device, repeats, || calls(n))?.into_iter().map(|run| run / n as f64).collect())
}
