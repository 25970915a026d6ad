//! The inner loops: one pass over the atoms for each chosen one.
//!
//! Atoms are padded with zeros to blocks of `W`, which fill four vector registers. All arrays over
//! atoms have this layout: the basis is `[block][l][W]`, so that the data of a block is contiguous.
//!
//! An atom that must not be chosen again has the correlation NaN, which stays NaN and compares
//! false with everything.
#![expect(clippy::needless_range_loop, reason = "a lane is an index into several arrays of one length")]
use crate::core::fused::{fma, fused};
pub(in crate::codes::pursuit) use crate::core::real::Real;
use crate::core::real::peak;
use multiversion::multiversion;

/// What distinguishes the loops; constants, so that each kind has machine code of its own.
pub(super) trait Kind: Sync {
    /// Whether candidates are judged by `α²/e`.
    const OLS: bool;
    /// Whether only positive correlations are candidates.
    const POSITIVE: bool;
}

/// [`Kind`] from its constants.
pub(super) struct Of<const OLS: bool, const POSITIVE: bool>;

impl<const OLS: bool, const POSITIVE: bool> Kind for Of<OLS, POSITIVE> {
    const OLS: bool = OLS;
    const POSITIVE: bool = POSITIVE;
}

/// What a candidate's correlation counts for; a NaN gives what no comparison prefers.
#[inline(always)]
fn weight<T: Real, K: Kind>(corr: T) -> T {
    match K::POSITIVE {
        true if corr > T::zero() => corr,
        true => T::zero(),
        false => corr.magnitude(),
    }
}

/// The best candidate so far in each lane: `num / den` is largest. `den` stays 1 for OMP.
struct Best<T, const W: usize> {
    num: [T; W],
    den: [T; W],
}

impl<T: Real, const W: usize> Best<T, W> {
    #[inline(always)]
    fn new() -> Self {
        Self { num: [T::zero(); W], den: [T::one(); W] }
    }

    // By value: arrays that are only read or only written in a loop stay in registers.
    #[inline(always)]
    fn see<K: Kind>(self, corr: &[T; W]) -> Self {
        let mut num = [T::zero(); W];
        for i in 0..W {
            let weight = weight::<T, K>(corr[i]);
            num[i] = if weight > self.num[i] { weight } else { self.num[i] };
        }
        Self { num, den: self.den }
    }

    #[inline(always)]
    fn see_quotients<K: Kind>(self, corr: &[T; W], left: &[T; W], pivot: T) -> Self {
        let (mut num, mut den) = ([T::zero(); W], [T::zero(); W]);
        for i in 0..W {
            let weight = weight::<T, K>(corr[i]);
            // 0/1 for an atom that depends on those chosen.
            let (weight, left) = match left[i] > pivot {
                true => (weight * weight, left[i]),
                false => (T::zero(), T::one()),
            };
            let better = weight * self.den[i] > self.num[i] * left;
            num[i] = if better { weight } else { self.num[i] };
            den[i] = if better { left } else { self.den[i] };
        }
        Self { num, den }
    }

    /// The best of all lanes.
    #[inline(always)]
    fn weight(&self) -> T {
        T::of_bits(largest(&self.num))
    }

    /// The best of all lanes.
    // Without the number of a lane: an index into the arrays would keep them in memory for the
    // whole pass.
    #[inline(always)]
    fn quotient(&self) -> (T, T) {
        let mut quotient = [T::zero(); W];
        for i in 0..W {
            quotient[i] = self.num[i] / self.den[i];
        }
        let best = largest(&quotient);
        let (mut nums, mut dens) = ([T::zero(); W], [T::zero(); W]);
        for i in 0..W {
            dens[i] = if quotient[i].bits() == best { self.den[i] } else { T::zero() };
        }
        let den = largest(&dens);
        for i in 0..W {
            nums[i] = if dens[i].bits() == den { self.num[i] } else { T::zero() };
        }
        (T::of_bits(largest(&nums)), T::of_bits(den))
    }
}

#[inline(always)]
fn largest<T: Real, const W: usize>(x: &[T; W]) -> T::Bits {
    let mut largest = T::Bits::default();
    for i in 0..W {
        largest = largest.max(x[i].bits());
    }
    largest
}

/// The first lane of which it is true, or a number that is no lane.
#[inline(always)]
fn first<const W: usize>(is_it: impl Fn(usize) -> bool) -> u32 {
    let mut first = u32::MAX;
    for i in 0..W {
        first = first.min(if is_it(i) { i as u32 } else { u32::MAX });
    }
    first
}

/// The first atom whose weight is the best one, if that is better than nothing.
#[inline(always)]
fn find<T: Real, K: Kind, const W: usize>(best: T, corr: &[T]) -> Option<usize> {
    if best <= T::zero() {
        return None;
    }
    // Loops, not `find_map`: a closure that is not inlined would be compiled for any processor.
    for (b, corr) in corr.as_chunks::<W>().0.iter().enumerate() {
        let lane = first::<W>(|i| weight::<T, K>(corr[i]) == best);
        if lane != u32::MAX {
            return Some(b * W + lane as usize);
        }
    }
    None
}

/// The first atom whose quotient is the best one, if that is better than nothing.
#[inline(always)]
fn find_quotient<T: Real, K: Kind, const W: usize>(
    (num, den): (T, T),
    corr: &[T],
    left: &[T],
    pivot: T,
) -> Option<usize> {
    if num <= T::zero() {
        return None;
    }
    for (b, (corr, left)) in corr.as_chunks::<W>().0.iter().zip(left.as_chunks::<W>().0).enumerate() {
        let lane = first::<W>(|i| {
            let weight = weight::<T, K>(corr[i]);
            (weight * weight * den == num * left[i]) & (left[i] > pivot)
        });
        if lane != u32::MAX {
            return Some(b * W + lane as usize);
        }
    }
    None
}

/// `α ← scale · α`, and the first candidate.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+fma", "x86_64+avx2+fma"))]
pub(super) fn start<T: Real, K: Kind, const W: usize>(corr: &mut [T], scale: T) -> Option<usize> {
    let mut best = Best::<T, W>::new();
    for corr in corr.as_chunks_mut::<W>().0 {
        for i in 0..W {
            corr[i] *= scale;
        }
        best = best.see::<K>(corr);
    }
    find::<T, K, W>(best.weight(), corr)
}

/// One more direction of the basis.
pub(super) struct Step<'a, T> {
    /// `G_i`, `[n]`
    pub row: &'a [T],
    /// `w`, `[k]`
    pub w: &'a [T],
    /// `1/ρ`
    pub scale: T,
    /// What is taken from `α` along the new direction.
    pub z: T,
    /// `u`, `[n / W][capacity][W]`, `k < capacity`; entry `k` of each block is written
    pub basis: &'a mut [T],
    pub capacity: usize,
    /// `α`, `[n]`
    pub corr: &'a mut [T],
    /// `e`, `[n]`, for OLS; taken as 1 where `k` is 0
    pub left: &'a mut [T],
    /// `e` of a candidate must be above.
    pub pivot: T,
}

/// Adds a direction to the basis and returns the next candidate, if any is left.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+fma", "x86_64+avx2+fma"))]
pub(super) fn absorb<T: Real, K: Kind, const W: usize>(step: Step<'_, T>) -> Option<usize> {
    const FUSED: bool = fused!();
    let Step { row, w, scale, z, basis, capacity, corr, left, pivot } = step;
    let mut best = Best::<T, W>::new();
    let blocks = row.as_chunks::<W>().0.iter().zip(basis.chunks_exact_mut(capacity * W));
    for (b, ((row, basis), corr)) in blocks.zip(corr.as_chunks_mut::<W>().0).enumerate() {
        let basis = basis.as_chunks_mut::<W>().0;
        let mut u = *row;
        for (l, &w) in w.iter().enumerate() {
            let old = &basis[l];
            for i in 0..W {
                u[i] = fma::<T, FUSED>(-w, old[i], u[i]);
            }
        }
        for i in 0..W {
            u[i] *= scale;
            corr[i] = fma::<T, FUSED>(-z, u[i], corr[i]);
        }
        basis[w.len()] = u;
        if K::OLS {
            let left = &mut left.as_chunks_mut::<W>().0[b];
            for i in 0..W {
                let before = if w.is_empty() { T::one() } else { left[i] };
                left[i] = fma::<T, FUSED>(-u[i], u[i], before);
            }
            best = best.see_quotients::<K>(corr, left, pivot);
        } else {
            best = best.see::<K>(corr);
        }
    }
    if K::OLS {
        find_quotient::<T, K, W>(best.quotient(), corr, left, pivot)
    } else {
        find::<T, K, W>(best.weight(), corr)
    }
}

/// `α ← α − Σ shift_l u_l` over the directions so far, and the next candidate.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+fma", "x86_64+avx2+fma"))]
pub(super) fn shift<T: Real, K: Kind, const W: usize>(
    shift: &[T],
    basis: &[T],
    capacity: usize,
    corr: &mut [T],
    left: &[T],
    pivot: T,
) -> Option<usize> {
    const FUSED: bool = fused!();
    let mut best = Best::<T, W>::new();
    let blocks = basis.chunks_exact(capacity * W).zip(corr.as_chunks_mut::<W>().0);
    for (b, (basis, corr)) in blocks.enumerate() {
        for (u, &shift) in basis.as_chunks::<W>().0.iter().zip(shift) {
            for i in 0..W {
                corr[i] = fma::<T, FUSED>(-shift, u[i], corr[i]);
            }
        }
        best = match K::OLS {
            true => best.see_quotients::<K>(corr, &left.as_chunks::<W>().0[b], pivot),
            false => best.see::<K>(corr),
        };
    }
    if K::OLS {
        find_quotient::<T, K, W>(best.quotient(), corr, left, pivot)
    } else {
        find::<T, K, W>(best.weight(), corr)
    }
}

/// A power of two that brings the largest entry near 1, and `‖y‖²` in that scale; none when an
/// entry is not finite.
///
/// The scale keeps squares from over- and underflowing, and changes no bit of a mantissa.
pub(super) fn scale_and_energy<T: Real>(y: &[T]) -> Option<(f64, f64)> {
    let (peak, finite) = peak::<T>(y);
    if !finite {
        return None;
    }
    let limit = if T::DTYPE == candle::DType::F64 { 1000 } else { 120 };
    let exponent = (((peak.to_f64().to_bits() >> 52) & 0x7ff) as i64 - 1023).clamp(-limit, limit);
    let scale = f64::from_bits(((1023 - exponent) as u64) << 52);
    Some((scale, energy::<T>(y, scale)))
}

#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+fma", "x86_64+avx2+fma"))]
fn energy<T: Real>(y: &[T], scale: f64) -> f64 {
    const LANES: usize = 16;
    let mut sums = [0.; LANES];
    let (blocks, rest) = y.as_chunks::<LANES>();
    for y in blocks {
        for i in 0..LANES {
            let y = y[i].to_f64() * scale;
            sums[i] += y * y;
        }
    }
    for (sum, y) in sums.iter_mut().zip(rest) {
        let y = y.to_f64() * scale;
        *sum += y * y;
    }
    sums.iter().sum()
}
