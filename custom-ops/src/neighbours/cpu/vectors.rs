//! Sums over the entries of one or two vectors, in lanes.
use crate::fused::{fma, fused};
use multiversion::multiversion;

const LANES: usize = 16;

/// `Σ term(a, b)`, each lane from first to last and then the lanes.
macro_rules! sum {
    ($number:ty, $a:expr, $b:expr, |$sum:ident, $x:ident, $y:ident| $term:expr) => {{
        let mut lanes = [0 as $number; LANES];
        let ((a, a_rest), (b, b_rest)) = ($a.as_chunks::<LANES>(), $b.as_chunks::<LANES>());
        for (a, b) in a.iter().zip(b) {
            for l in 0..LANES {
                let ($sum, $x, $y) = (lanes[l], <$number>::from(a[l]), <$number>::from(b[l]));
                lanes[l] = $term;
            }
        }
        for (l, (a, b)) in a_rest.iter().zip(b_rest).enumerate() {
            let ($sum, $x, $y) = (lanes[l], <$number>::from(*a), <$number>::from(*b));
            lanes[l] = $term;
        }
        lanes.iter().sum()
    }};
}

/// `|a − b|²`
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+fma", "x86_64+avx2+fma"))]
pub(super) fn square_in_f64(a: &[f32], b: &[f32]) -> f64 {
    const FUSED: bool = fused!();
    sum!(f64, a, b, |sum, x, y| fma::<f64, FUSED>(x - y, x - y, sum))
}

/// `a · b`
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+fma", "x86_64+avx2+fma"))]
pub(super) fn dot_in_f64(a: &[f32], b: &[f32]) -> f64 {
    const FUSED: bool = fused!();
    sum!(f64, a, b, |sum, x, y| fma::<f64, FUSED>(x, y, sum))
}

/// `|a − b|²` in f32.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+fma", "x86_64+avx2+fma"))]
pub(super) fn square(a: &[f32], b: &[f32]) -> f32 {
    const FUSED: bool = fused!();
    sum!(f32, a, b, |sum, x, y| fma::<f32, FUSED>(x - y, x - y, sum))
}

/// `a · b` in f32.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+fma", "x86_64+avx2+fma"))]
pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    const FUSED: bool = fused!();
    sum!(f32, a, b, |sum, x, y| fma::<f32, FUSED>(x, y, sum))
}
