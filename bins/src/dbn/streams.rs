//! Places in the random sequence of a run's seed, one for each use. The rows' order has its own
//! ([`chandlery_datasets::feed::ORDER_STREAM`]).
/// Initial weights.
pub const WEIGHTS: u64 = 1 << 32;
/// Units of layer `l`: this plus `l`.
pub const UNITS: u64 = 2 << 32;
/// Chains of samples.
pub const SAMPLES: u64 = 4 << 32;
/// Units that the pseudo-likelihood flips.
pub const FLIPS: u64 = 5 << 32;
/// Binary rows from grey levels, and the units above them: test, training and middle rows, and the
/// draws of a bound.
pub const BINARIZE: u64 = 6 << 32;
/// Chains of the annealing forward, and (this plus 1) back.
pub const ANNEALING: u64 = 7 << 32;
/// Units of the up-down algorithm, stage `s`: this plus `s`.
pub const UP_DOWN: u64 = 16 << 32;
