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
    mut work: impl FnMut() -> anyhow::Result<()>,
) -> anyhow::Result<Seconds> {
    work()?;
    device.synchronize()?;
    let mut seconds = Vec::with_capacity(repeats as usize);
    for _ in 0..repeats.max(1) {
        let start = Instant::now();
        work()?;
        device.synchronize()?;
        seconds.push(start.elapsed().as_secs_f64());
    }
    seconds.sort_by(f64::total_cmp);
    Ok(Seconds { median: seconds[seconds.len() / 2], min: seconds[0], max: seconds[seconds.len() - 1] })
}

/// Seconds of one call, from runs of as many as take `seconds`, at least `least`: long against the
/// clock and against waiting for the device at the end. `calls` makes so many.
///
/// # Errors
/// As [`time`].
pub fn time_of_one(
    device: &Device,
    repeats: u32,
    (seconds, least): (f64, usize),
    mut calls: impl FnMut(usize) -> anyhow::Result<()>,
) -> anyhow::Result<Seconds> {
    calls(least)?;
    device.synchronize()?;
    let start = Instant::now();
    calls(least)?;
    device.synchronize()?;
    let one = start.elapsed().as_secs_f64() / least as f64;
    let n = ((seconds / one).ceil() as usize).max(least);
    Ok(time(device, repeats, || calls(n))?.times(1. / n as f64))
}
