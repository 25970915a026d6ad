//! What one point, or a cell of them, does to a group of points side by side.
#![expect(clippy::needless_range_loop, reason = "a lane is an index into several arrays of one length")]
use crate::core::fused::fma;
use crate::core::math;

/// Points of a group: the lanes of a vector.
pub(in crate::tsne) const LANES: usize = 16;

/// Up to [`LANES`] points, by coordinate; a short group repeats its last point.
#[derive(Clone, Copy)]
pub(super) struct Group<const D: usize>(pub [[f32; LANES]; D]);

impl<const D: usize> Group<D> {
    #[inline(always)]
    pub(super) fn new(points: &[[f32; D]]) -> Self {
        Self(std::array::from_fn(|k| std::array::from_fn(|l| points[l.min(points.len() - 1)][k])))
    }

    /// Differences from `to`, and their squares' sums.
    #[inline(always)]
    pub(super) fn differences<const FUSED: bool>(&self, to: &[f32; D]) -> ([[f32; LANES]; D], [f32; LANES]) {
        let (mut differences, mut squares) = ([[0.; LANES]; D], [0.; LANES]);
        for k in 0..D {
            for l in 0..LANES {
                differences[k][l] = self.0[k][l] - to[k];
                squares[l] = fma::<f32, FUSED>(differences[k][l], differences[k][l], squares[l]);
            }
        }
        (differences, squares)
    }
}

/// Sums of `w^(1 + 1/α) (y_i − y_j)` and of `w` for a group.
#[derive(Clone, Copy)]
pub(super) struct Sums<const D: usize> {
    pub forces: [[f32; LANES]; D],
    pub totals: [f32; LANES],
}

impl<const D: usize> Sums<D> {
    pub(super) const ZERO: Self = Self { forces: [[0.; LANES]; D], totals: [0.; LANES] };

    /// Adds so many points at these differences. `ONE` says that `alpha` is 1.
    #[inline(always)]
    pub(super) fn add<const ONE: bool, const FUSED: bool>(
        &mut self,
        differences: &[[f32; LANES]; D],
        squares: &[f32; LANES],
        masses: &[f32; LANES],
        alpha: f32,
    ) {
        let mut pushes = [0.; LANES];
        let inverse = 1. / alpha;
        for l in 0..LANES {
            let near = 1. / if ONE { 1. + squares[l] } else { fma::<f32, FUSED>(squares[l], inverse, 1.) };
            let w = masses[l] * if ONE { near } else { math::exp(alpha * math::ln(near)) };
            pushes[l] = w * near;
            self.totals[l] += w;
        }
        for k in 0..D {
            for l in 0..LANES {
                self.forces[k][l] = fma::<f32, FUSED>(pushes[l], differences[k][l], self.forces[k][l]);
            }
        }
    }

    /// Sum of the totals of the first `len` lanes.
    #[inline(always)]
    pub(super) fn total(&self, len: usize) -> f64 {
        self.totals[..len].iter().map(|&w| f64::from(w)).sum()
    }

    /// Sum of the totals of the first lanes, times weights.
    #[inline(always)]
    pub(super) fn weighted_total(&self, weights: &[f32]) -> f64 {
        self.totals.iter().zip(weights).map(|(&w, &by)| f64::from(by) * f64::from(w)).sum()
    }
}

/// `mass` for each lane, less 1 for those of a group from `first` on whose own place is in `range`:
/// no point pushes itself.
#[inline(always)]
pub(super) fn masses_for(first: usize, range: std::ops::Range<usize>, mass: f32) -> [f32; LANES] {
    std::array::from_fn(|l| mass - if range.contains(&(first + l)) { 1. } else { 0. })
}
