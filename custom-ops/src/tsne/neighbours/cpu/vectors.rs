//! Sums and maxima over the entries of two vectors, in lanes.
use super::Metric;
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

/// How two features enter the distance of rows.
trait Join {
    /// The distance of some features with one more, or the largest of two such parts.
    fn join(so_far: f32, q: f32, x: f32) -> f32;
    /// The distance of all lanes and so many features.
    fn end(lanes: [f32; LANES], _d: usize) -> f32 {
        lanes.iter().sum()
    }
}

struct Manhattan;
struct Chebyshev;
struct Hamming;

impl Join for Manhattan {
    #[inline(always)]
    fn join(so_far: f32, q: f32, x: f32) -> f32 {
        so_far + (q - x).abs()
    }
}

/// Rounded once: it is the f32 nearest to the true distance.
impl Join for Chebyshev {
    #[inline(always)]
    fn join(so_far: f32, q: f32, x: f32) -> f32 {
        let apart = (q - x).abs();
        if apart > so_far { apart } else { so_far }
    }

    fn end(lanes: [f32; LANES], _d: usize) -> f32 {
        lanes.into_iter().fold(0., f32::max)
    }
}

impl Join for Hamming {
    #[inline(always)]
    fn join(so_far: f32, q: f32, x: f32) -> f32 {
        so_far + if q == x { 0. } else { 1. }
    }

    fn end(lanes: [f32; LANES], d: usize) -> f32 {
        lanes.iter().sum::<f32>() / d.max(1) as f32
    }
}

/// The distances in f32 of a row and four rows that follow each other, of one that no product
/// gives.
pub(super) fn four_distances_of(metric: Metric) -> fn(&[f32], &[f32]) -> [f32; 4] {
    match metric {
        Metric::Chebyshev => four_distances::<Chebyshev>,
        Metric::Hamming => four_distances::<Hamming>,
        Metric::Jaccard => four_jaccard,
        _ => four_distances::<Manhattan>,
    }
}

/// The distance in f64 that no product gives.
pub(super) fn distance_in_f64(metric: Metric, a: &[f32], b: &[f32]) -> f64 {
    match metric {
        Metric::Chebyshev => chebyshev_in_f64(a, b),
        Metric::Hamming => differing(a, b) / a.len().max(1) as f64,
        Metric::Jaccard => jaccard(a, b),
        _ => manhattan_in_f64(a, b),
    }
}

/// Chunks of a row and of each of four rows, and what is left of them.
#[inline(always)]
fn four(rows: &[f32], d: usize) -> ([&[[f32; LANES]]; 4], [&[f32]; 4]) {
    let rows: [&[f32]; 4] = std::array::from_fn(|r| &rows[r * d..(r + 1) * d]);
    (rows.map(|row| &row.as_chunks::<LANES>().0[..d / LANES]), rows.map(|row| row.as_chunks::<LANES>().1))
}

#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+fma", "x86_64+avx2+fma"))]
fn four_distances<J: Join>(q: &[f32], rows: &[f32]) -> [f32; 4] {
    let d = q.len();
    let (q, q_rest) = q.as_chunks::<LANES>();
    let (chunks, rests) = four(rows, d);
    let mut lanes = [[0f32; LANES]; 4];
    for (c, q) in q.iter().enumerate() {
        for (lanes, row) in lanes.iter_mut().zip(&chunks) {
            let x = &row[c];
            for l in 0..LANES {
                lanes[l] = J::join(lanes[l], q[l], x[l]);
            }
        }
    }
    for (lanes, rest) in lanes.iter_mut().zip(rests) {
        for (l, (&q, &x)) in q_rest.iter().zip(rest).enumerate() {
            lanes[l] = J::join(lanes[l], q, x);
        }
    }
    lanes.map(|lanes| J::end(lanes, d))
}

/// Jaccard distances: columns that are in one of two sets, over those in any. Both are whole
/// numbers, which f32 holds below 2^24.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+fma", "x86_64+avx2+fma"))]
fn four_jaccard(q: &[f32], rows: &[f32]) -> [f32; 4] {
    let d = q.len();
    let (q, q_rest) = q.as_chunks::<LANES>();
    let (chunks, rests) = four(rows, d);
    let is_in = |x: f32| if x == 0. { 0f32 } else { 1. };
    let (mut in_one, mut in_any) = ([[0f32; LANES]; 4], [[0f32; LANES]; 4]);
    for (c, q) in q.iter().enumerate() {
        for r in 0..4 {
            let x = &chunks[r][c];
            for l in 0..LANES {
                let (q, x) = (is_in(q[l]), is_in(x[l]));
                in_one[r][l] += (q - x).abs();
                in_any[r][l] += q.max(x);
            }
        }
    }
    for (r, rest) in rests.into_iter().enumerate() {
        for (l, (&q, &x)) in q_rest.iter().zip(rest).enumerate() {
            let (q, x) = (is_in(q), is_in(x));
            in_one[r][l] += (q - x).abs();
            in_any[r][l] += q.max(x);
        }
    }
    std::array::from_fn(|r| in_one[r].iter().sum::<f32>() / in_any[r].iter().sum::<f32>().max(1.))
}

/// The number of features in which rows differ.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+fma", "x86_64+avx2+fma"))]
fn differing(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| u64::from(a != b)).sum::<u64>() as f64
}

#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+fma", "x86_64+avx2+fma"))]
fn jaccard(a: &[f32], b: &[f32]) -> f64 {
    let (mut in_one, mut in_any) = (0u64, 0u64);
    for (&a, &b) in a.iter().zip(b) {
        let (a, b) = (a != 0., b != 0.);
        in_one += u64::from(a != b);
        in_any += u64::from(a | b);
    }
    in_one as f64 / in_any.max(1) as f64
}

/// `Σ |a − b|`
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+fma", "x86_64+avx2+fma"))]
fn manhattan_in_f64(a: &[f32], b: &[f32]) -> f64 {
    sum!(f64, a, b, |sum, x, y| sum + (x - y).abs())
}

/// The largest `|a − b|`.
fn chebyshev_in_f64(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(&a, &b)| (f64::from(a) - f64::from(b)).abs()).fold(0., f64::max)
}
