//! Means over rows.
use serde::Serialize;

/// The normal distribution is within so many deviations in 95 % of cases.
const DEVIATIONS: f64 = 1.96;

/// A mean over rows, of all or of some that stand for all.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Estimate {
    /// The mean.
    pub value: f64,
    /// Half of the width of its 95 % interval; 0 where all rows were looked at.
    pub error: f64,
}

impl Estimate {
    /// What all rows gave.
    pub fn exact(value: f64) -> Self {
        Self { value, error: 0. }
    }

    /// The mean of what some of `n` rows gave.
    pub(super) fn of(values: &[f64], n: usize) -> Self {
        let m = values.len() as f64;
        let value = values.iter().sum::<f64>() / m;
        let squares: f64 = values.iter().map(|x| (x - value) * (x - value)).sum();
        let left_out = (1. - m / n as f64).max(0.);
        Self { value, error: DEVIATIONS * (left_out * squares / ((m - 1.).max(1.) * m)).sqrt() }
    }
}

/// `m` of `n` rows, evenly spaced; all where `m` is `n` or more.
pub(super) fn spaced(n: usize, m: usize) -> Vec<u32> {
    let m = m.clamp(1, n.max(1));
    (0..m.min(n)).map(|i| (i as u128 * n as u128 / m as u128) as u32).collect()
}
