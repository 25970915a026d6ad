//! f32 or f64 in the inner loops of the CPU.
#![expect(clippy::needless_range_loop, reason = "a lane is an index into several arrays of one length")]
use crate::core::fused::Fused;
use multiversion::multiversion;

/// f32 or f64 in the inner loops.
pub(crate) trait Real: Fused + std::ops::Neg<Output = Self> {
    /// The bits of a number of at least 0 are ordered as the numbers are, and the largest of
    /// integers, unlike that of floats, is found by vectors.
    type Bits: Copy + Ord + Default;
    fn bits(self) -> Self::Bits;
    fn of_bits(bits: Self::Bits) -> Self;
    const NAN: Self;
    const INFINITY: Self;
    /// The distance from 1 to the next number.
    const EPSILON: f64;
    fn magnitude(self) -> Self;
    fn root(self) -> Self;
}

macro_rules! real {
    ($t:ident, $bits:ident) => {
        impl Real for $t {
            type Bits = $bits;
            #[inline(always)]
            fn bits(self) -> $bits {
                self.to_bits()
            }
            #[inline(always)]
            fn of_bits(bits: $bits) -> Self {
                Self::from_bits(bits)
            }
            const NAN: Self = $t::NAN;
            const INFINITY: Self = $t::INFINITY;
            const EPSILON: f64 = $t::EPSILON as f64;
            #[inline(always)]
            fn magnitude(self) -> Self {
                self.abs()
            }
            #[inline(always)]
            fn root(self) -> Self {
                self.sqrt()
            }
        }
    };
}
real!(f32, u32);
real!(f64, u64);

/// The largest magnitude of the entries, and whether all are finite.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+fma", "x86_64+avx2+fma"))]
pub(crate) fn peak<T: Real>(y: &[T]) -> (T, bool) {
    const LANES: usize = 16;
    let (mut peak, mut finite) = ([T::zero(); LANES], [true; LANES]);
    let mut see = |lane: usize, y: T| {
        let y = y.magnitude();
        peak[lane] = if y > peak[lane] { y } else { peak[lane] };
        // False for infinity, and for NaN.
        finite[lane] &= y < T::INFINITY;
    };
    let (blocks, rest) = y.as_chunks::<LANES>();
    for y in blocks {
        for i in 0..LANES {
            see(i, y[i]);
        }
    }
    rest.iter().enumerate().for_each(|(i, &y)| see(i, y));
    let largest = peak.iter().fold(T::zero(), |a, &b| if b > a { b } else { a });
    (largest, finite.iter().all(|&finite| finite))
}

/// The sum of some lanes, a power of two of them: the upper half is added to the lower until one is
/// left.
#[inline(always)]
pub(crate) fn halves<T: Real, const N: usize>(mut lanes: [T; N]) -> T {
    let mut half = N / 2;
    while half > 0 {
        for l in 0..half {
            lanes[l] += lanes[l + half];
        }
        half /= 2;
    }
    lanes[0]
}
