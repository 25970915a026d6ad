//! How long each stage of a run takes.
use candle::{Device, Result};
use serde::{Deserialize, Serialize};
use std::time::Instant;

/// Seconds that each stage took, of this process.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct StageSeconds {
    /// The search for neighbours.
    pub neighbours: f64,
    /// The search for the precision of each row that gives the perplexity.
    pub perplexity: f64,
    /// The symmetric graph.
    pub symmetrisation: f64,
    /// The first layout.
    pub start: f64,
    /// The iterations: forces and integration, which are one recorded step.
    pub descent: f64,
}

/// Runs `stage` and adds to `seconds` how long it took, with all that it queued on the device.
pub(super) fn timed<T>(seconds: &mut f64, device: &Device, stage: impl FnOnce() -> Result<T>) -> Result<T> {
    let begin = Instant::now();
    let done = stage()?;
    device.synchronize()?;
    *seconds += begin.elapsed().as_secs_f64();
    Ok(done)
}

impl StageSeconds {
    /// Seconds of all stages.
    pub fn total(self) -> f64 {
        self.neighbours + self.perplexity + self.symmetrisation + self.start + self.descent
    }
}

/// Those of two parts of one run.
impl std::ops::Add for StageSeconds {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            neighbours: self.neighbours + other.neighbours,
            perplexity: self.perplexity + other.perplexity,
            symmetrisation: self.symmetrisation + other.symmetrisation,
            start: self.start + other.start,
            descent: self.descent + other.descent,
        }
    }
}
