//! Products of small matrices on one thread, in tiles that stay in registers.
use crate::core::vector::Vector;
use crate::layers::tiles::{Across, add_tile};

/// Entries to which lines are padded, so that they are whole vectors on every processor.
pub(super) const PAD: usize = 16;

/// `c ← c + a b` for `c` `[rows, width]`, `a` `[rows, depth]` and `b` `[depth, width]`, where lines
/// of `c` and `b` are `line` entries apart and `width` is rounded up to whole vectors. `N` vectors
/// of a line at a time.
#[inline(always)]
pub(super) fn add_product<V: Vector<Number = f32>, const N: usize>(
    c: &mut [f32],
    (a, b): (Across<'_, f32>, &[f32]),
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
fn add_columns<V: Vector<Number = f32>, const N: usize>(
    c: &mut [f32],
    (a, b): (Across<'_, f32>, &[f32]),
    (rows, depth): (usize, usize),
    (line, at): (usize, usize),
) {
    let mut row = 0;
    while row < rows {
        let c = &mut c[row * line..];
        let a = a.from(row, 0);
        row += match rows - row {
            6.. => add_rows::<V, 6, N>(c, (a, b), depth, (line, at)),
            4.. => add_rows::<V, 4, N>(c, (a, b), depth, (line, at)),
            2.. => add_rows::<V, 2, N>(c, (a, b), depth, (line, at)),
            _ => add_rows::<V, 1, N>(c, (a, b), depth, (line, at)),
        };
    }
}

/// `R` rows of the same; returns `R`.
#[inline(always)]
fn add_rows<V: Vector<Number = f32>, const R: usize, const N: usize>(
    c: &mut [f32],
    (a, b): (Across<'_, f32>, &[f32]),
    depth: usize,
    (line, at): (usize, usize),
) -> usize {
    let end = at + N * V::LANES;
    assert!(end <= line && c.len() >= (R - 1) * line + end);
    // SAFETY: the rows are within `c` by the assertion.
    unsafe { add_tile::<V, R, N>((c.as_mut_ptr().add(at), line), a, (&b[at..], line), depth, (1., 1.)) };
    R
}
