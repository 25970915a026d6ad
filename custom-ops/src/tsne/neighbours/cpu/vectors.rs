//! Sums and maxima over the entries of two vectors, in lanes.
use crate::core::fused::{fma, fused};
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

/// The distances in f32 of `q` and four rows that follow each other in `rows`: `Σ |q − x|`, or the
/// largest of these where `LARGEST`.
///
/// The largest is rounded once: it is the f32 nearest to the true distance.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+fma", "x86_64+avx2+fma"))]
pub(super) fn four_distances<const LARGEST: bool>(q: &[f32], rows: &[f32]) -> [f32; 4] {
    let d = q.len();
    let join = |so_far: f32, q: f32, x: f32| {
        let apart = (q - x).abs();
        match LARGEST {
            true if apart > so_far => apart,
            true => so_far,
            false => so_far + apart,
        }
    };
    let (q, q_rest) = q.as_chunks::<LANES>();
    let rows: [&[f32]; 4] = std::array::from_fn(|r| &rows[r * d..(r + 1) * d]);
    let chunks = rows.map(|row| &row.as_chunks::<LANES>().0[..q.len()]);
    let mut lanes = [[0f32; LANES]; 4];
    for (c, q) in q.iter().enumerate() {
        for (lanes, row) in lanes.iter_mut().zip(&chunks) {
            let x = &row[c];
            for l in 0..LANES {
                lanes[l] = join(lanes[l], q[l], x[l]);
            }
        }
    }
    for (lanes, row) in lanes.iter_mut().zip(rows) {
        for (l, (&q, &x)) in q_rest.iter().zip(row.as_chunks::<LANES>().1).enumerate() {
            lanes[l] = join(lanes[l], q, x);
        }
    }
    lanes.map(|lanes| match LARGEST {
        true => lanes.into_iter().fold(0., f32::max),
        false => lanes.iter().sum(),
    })
}

/// `Σ |a − b|`
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+fma", "x86_64+avx2+fma"))]
pub(super) fn manhattan_in_f64(a: &[f32], b: &[f32]) -> f64 {
    sum!(f64, a, b, |sum, x, y| sum + (x - y).abs())
}

/// The largest `|a − b|`.
pub(super) fn chebyshev_in_f64(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(&a, &b)| (f64::from(a) - f64::from(b)).abs()).fold(0., f64::max)
}
