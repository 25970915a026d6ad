//! Products of small matrices on one thread, in tiles that stay in registers.
#![expect(clippy::needless_range_loop, reason = "a lane is an index into several arrays of one length")]
use crate::core::vector::Vector;

/// Entries to which lines are padded, so that they are whole vectors on every processor.
pub(super) const PAD: usize = 16;

/// A matrix whose entries are used one by one: entry `(i, k)` is at `i · row + k · step`.
#[derive(Clone, Copy)]
pub(super) struct Factors<'a> {
    pub of: &'a [f32],
    pub row: usize,
    pub step: usize,
}

/// `c ← c + a b` for `c` `[rows, width]`, `a` `[rows, depth]` and `b` `[depth, width]`, where lines
/// of `c` and `b` are `line` entries apart and `width` is rounded up to whole vectors. `N` vectors
/// of a line at a time.
#[inline(always)]
pub(super) fn add_product<V: Vector, const N: usize>(
    c: &mut [f32],
    (a, b): (Factors<'_>, &[f32]),
    (rows, width, depth): (usize, usize, usize),
    line: usize,
) {
    let end = width.next_multiple_of(V::LANES);
    let mut at = 0;
    while at + N * V::LANES <= end {
        add_columns::<V, N>(c, (a, b), (rows, depth), (line, at));
        at += N * V::LANES;
    }
    while at < end {
        add_columns::<V, 1>(c, (a, b), (rows, depth), (line, at));
        at += V::LANES;
    }
}

/// The same for `N` vectors from column `at` on.
#[inline(always)]
fn add_columns<V: Vector, const N: usize>(
    c: &mut [f32],
    (a, b): (Factors<'_>, &[f32]),
    (rows, depth): (usize, usize),
    (line, at): (usize, usize),
) {
    let mut row = 0;
    while row < rows {
        let c = &mut c[row * line..];
        let a = Factors { of: &a.of[row * a.row..], ..a };
        row += match rows - row {
            6.. => add_tile::<V, 6, N>(c, (a, b), depth, (line, at)),
            4.. => add_tile::<V, 4, N>(c, (a, b), depth, (line, at)),
            2.. => add_tile::<V, 2, N>(c, (a, b), depth, (line, at)),
            _ => add_tile::<V, 1, N>(c, (a, b), depth, (line, at)),
        };
    }
}

/// `R` rows of the same; returns `R`.
#[inline(always)]
fn add_tile<V: Vector, const R: usize, const N: usize>(
    c: &mut [f32],
    (a, b): (Factors<'_>, &[f32]),
    depth: usize,
    (line, at): (usize, usize),
) -> usize {
    let end = at + N * V::LANES;
    assert!(
        depth > 0 && end <= line && c.len() >= (R - 1) * line + end && b.len() >= (depth - 1) * line + end
    );
    assert!(a.of.len() > (R - 1) * a.row + (depth - 1) * a.step);
    let mut sums = [[V::splat(0.); N]; R];
    for k in 0..depth {
        // SAFETY: k is below depth, and the slices reach as far as the assertions say.
        unsafe {
            let b = b.as_ptr().add(k * line + at);
            for r in 0..R {
                let factor = V::splat(*a.of.as_ptr().add(r * a.row + k * a.step));
                for n in 0..N {
                    sums[r][n] = factor.fused(V::load(b.add(n * V::LANES)), sums[r][n]);
                }
            }
        }
    }
    for r in 0..R {
        for n in 0..N {
            // SAFETY: r is below R and n below N: within the line by the assertions.
            unsafe {
                let c = c.as_mut_ptr().add(r * line + at + n * V::LANES);
                V::splat(1.).fused(sums[r][n], V::load(c)).store(c);
            }
        }
    }
    R
}
