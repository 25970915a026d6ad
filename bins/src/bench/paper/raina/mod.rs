//! Raina, Madhavan and Ng, "Large-scale deep unsupervised learning using graphics processors", ICML
//! 2009: its four tables, the experiments in the text of sections 2 and 5, and its speed-ups by
//! size.
//!
//! Its figures 1 and 2 are drawings of a GPU and of overlapping patches; they have nothing to
//! measure.
mod convolve;
mod images;
mod printed;
mod products;
mod rbm;
mod rows;
mod sparse;

use super::Paper;
use crate::bench::timing::time;
use anyhow::Result;
use candle::Device;
use std::time::Instant;

/// Its tables, experiments and figures.
pub(super) const SECTIONS: &[&str] =
    &["table-1", "section-2", "table-2", "figure-speed-up", "table-3", "convolution", "table-4"];

/// What the paper's GPU is compared with.
const PAPER_GPU: &str = "GTX 280";

pub(super) fn run(paper: &mut Paper) -> Result<()> {
    rbm::table1(paper)?;
    products::section2(paper)?;
    rbm::tables(paper)?;
    convolve::convolution(paper)?;
    sparse::table4(paper)
}

/// A call that takes longer on a CPU is made once after the first; seconds.
const SLOW: f64 = 0.2;
/// Calls in a run on a GPU, at least, as steps are recorded in groups; fewer where they take more
/// than a second.
const LEAST: usize = 64;

/// Seconds of one of `calls`, which makes so many: the median of `repeats` runs of about 0.2 s, or
/// on a CPU one call where that takes longer. The first call is not counted.
fn seconds_of_one(device: &Device, repeats: u32, mut calls: impl FnMut(usize) -> Result<()>) -> Result<f64> {
    let mut once = |n| {
        let start = Instant::now();
        calls(n)?;
        device.synchronize()?;
        anyhow::Ok(start.elapsed().as_secs_f64())
    };
    once(1)?;
    let one = once(1)?;
    if device.is_cpu() && one >= SLOW {
        return Ok(one);
    }
    let least = if device.is_cpu() { 1 } else { ((1. / one) as usize).clamp(1, LEAST) };
    let n = ((SLOW / one.max(1e-9)).ceil() as usize).clamp(least, 100_000);
    Ok(time(device, repeats, || calls(n))?.median / n as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_call_is_made_twice_and_a_fast_one_often() -> Result<()> {
        let mut made = 0;
        let wait = std::time::Duration::from_secs_f64(1.5 * SLOW);
        let seconds = seconds_of_one(&Device::Cpu, 3, |n| {
            made += n;
            std::thread::sleep(wait);
            Ok(())
        })?;
        assert!(made == 2 && seconds >= wait.as_secs_f64());
        let mut made = 0;
        seconds_of_one(&Device::Cpu, 1, |n| {
            made += n;
            Ok(())
        })?;
        assert!(made > 1000, "{made}");
        Ok(())
    }
}
