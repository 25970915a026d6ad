//! Tiles of products on the CPU, of matrices as they lie: a few rows of the result by a few vectors
//! are in registers over the sum, and nothing is packed.
//!
//! ```text
//! add_rows    c[r, j] ← keep · c[r, j] + scale · Σ_k a[k, r] b[k, j]      j: neighbours in b and c
//! dots        c[r, j] = Σ_k a[r, k] b[j, k]                               k: neighbours in a and b
//! ```
//!
//! Where a result has few rows, or a sum few terms, packing an operand takes as long as the
//! product. A sum has one order, whatever the tile that it lies in. The functions are compiled into
//! callers that enable the instructions of the vectors.
#![expect(clippy::needless_range_loop, reason = "a lane is an index into several arrays of one length")]
use crate::core::vector::Vector;

/// Factors of sums: that of term `k` and row `r` is entry `k · term + r · row`.
#[derive(Clone, Copy)]
pub(crate) struct Across<'a, T> {
    pub entries: &'a [T],
    pub term: usize,
    pub row: usize,
}

impl<T> Across<'_, T> {
    /// Those of the rows from `row` on and the terms from `term` on.
    #[inline(always)]
    pub(crate) fn from(self, row: usize, term: usize) -> Self {
        Self { entries: &self.entries[row * self.row + term * self.term..], ..self }
    }
}

/// `R` rows and `N` vectors of a result at `c`, whose lines are `line` apart; lines of `b`, one a
/// term, are `b_line` apart. A `keep` of 0 overwrites, NaN included.
///
/// # Safety
/// So many rows of `c` can be read and written, and no other thread does.
#[inline(always)]
pub(crate) unsafe fn add_tile<V: Vector, const R: usize, const N: usize>(
    (c, line): (*mut V::Number, usize),
    a: Across<'_, V::Number>,
    (b, b_line): (&[V::Number], usize),
    depth: usize,
    (keep, scale): (V::Number, V::Number),
) {
    assert!(depth > 0 && b.len() >= (depth - 1) * b_line + N * V::LANES);
    assert!(a.entries.len() > (depth - 1) * a.term + (R - 1) * a.row);
    let mut sums = [[V::zeros(); N]; R];
    for k in 0..depth {
        for r in 0..R {
            // SAFETY: k is below depth and r below R, and the slices reach as far as the
            // assertions say.
            unsafe {
                let factor = V::splat(*a.entries.as_ptr().add(k * a.term + r * a.row));
                for n in 0..N {
                    let b = V::load(b.as_ptr().add(k * b_line + n * V::LANES));
                    sums[r][n] = factor.fused(b, sums[r][n]);
                }
            }
        }
    }
    let factors = (V::splat(keep), V::splat(scale));
    for r in 0..R {
        for n in 0..N {
            // SAFETY: what the caller answers for.
            unsafe {
                let c = c.add(r * line + n * V::LANES);
                match keep == V::ZERO {
                    true => factors.1.times(sums[r][n]).store(c),
                    false => factors.1.fused(sums[r][n], factors.0.times(V::load(c))).store(c),
                }
            }
        }
    }
}

/// `R` rows of `width` entries at `c`, see [`add_tile`]; returns `R`.
///
/// # Safety
/// As [`add_tile`].
#[inline(always)]
pub(crate) unsafe fn add_rows<V: Vector, const R: usize, const N: usize>(
    (c, line): (*mut V::Number, usize),
    a: Across<'_, V::Number>,
    (b, b_line): (&[V::Number], usize),
    (width, depth): (usize, usize),
    factors: (V::Number, V::Number),
) -> usize {
    let mut at = 0;
    // SAFETY: the tiles lie one beside the other within the rows.
    unsafe {
        while at + N * V::LANES <= width {
            add_tile::<V, R, N>((c.add(at), line), a, (&b[at..], b_line), depth, factors);
            at += N * V::LANES;
        }
        while at + V::LANES <= width {
            add_tile::<V, R, 1>((c.add(at), line), a, (&b[at..], b_line), depth, factors);
            at += V::LANES;
        }
        while at < width {
            add_tile::<V::Number, R, 1>((c.add(at), line), a, (&b[at..], b_line), depth, factors);
            at += 1;
        }
    }
    R
}

/// `Σ_k a[r, k] b[j, k]` for `R` rows of `a` and `J` of `b`; rows are `a_line` and `b_line` apart.
#[inline(always)]
pub(crate) fn dots<V: Vector, const R: usize, const J: usize>(
    (a, a_line): (&[V::Number], usize),
    (b, b_line): (&[V::Number], usize),
    depth: usize,
) -> [[V::Number; J]; R] {
    assert!(a.len() >= (R - 1) * a_line + depth && b.len() >= (J - 1) * b_line + depth);
    let mut sums = [[V::zeros(); J]; R];
    let mut k = 0;
    while k + V::LANES <= depth {
        // SAFETY: the vectors are within the rows, which the slices hold by the assertion.
        unsafe {
            let mut of_b = [V::zeros(); J];
            for j in 0..J {
                of_b[j] = V::load(b.as_ptr().add(j * b_line + k));
            }
            for r in 0..R {
                let a = V::load(a.as_ptr().add(r * a_line + k));
                for j in 0..J {
                    sums[r][j] = a.fused(of_b[j], sums[r][j]);
                }
            }
        }
        k += V::LANES;
    }
    let mut out = [[V::ZERO; J]; R];
    for r in 0..R {
        for j in 0..J {
            let rest = (k..depth).fold(V::ZERO, |sum, k| a[r * a_line + k].fused(b[j * b_line + k], sum));
            out[r][j] = sums[r][j].sum() + rest;
        }
    }
    out
}
