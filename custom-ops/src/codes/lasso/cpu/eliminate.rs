//! Symmetric elimination for a Newton step: `A d = b` with `A = Uᵀ diag(1/u) U`, the same as
//! Cholesky's method.
//!
//! Four rows at a time are taken from four later ones at a time, so that a number that is loaded is
//! used four times.
use crate::core::fused::{fma, fused};
use crate::core::real::{Real, halves};
use multiversion::multiversion;

/// Rows that are taken from as many later ones at once.
const TILE: usize = 4;
/// The least pivot of atoms of length 1, in eps. An atom that depends linearly on earlier ones gets
/// this one: `d` then goes far in the direction in which `A` vanishes, along which the objective is
/// linear and the line search ends where a coefficient is 0.
const LEAST_PIVOT: f64 = 64.;

/// `A d = b` of `k` unknowns in memory: rows of `A` from the diagonal on, then `b` in column
/// `rows`. Rows and columns from `k` on are 0.
pub(super) struct System<T, const V: usize> {
    /// `k` rounded up to tiles
    rows: usize,
    /// `rows + 1` rounded up to blocks of `V`
    width: usize,
    /// `[rows, width]`; entries before the diagonal are scratch
    entries: Vec<T>,
    /// Four rows of `U`, each divided by its pivot: `[TILE, width]`
    quotients: Vec<T>,
    /// `1/u_jj`, `[rows]`
    inverse_pivots: Vec<T>,
    /// `d`, zeros from `k` on: `[width]`
    solution: Vec<T>,
}

impl<T: Real, const V: usize> System<T, V> {
    pub(super) fn new() -> Self {
        let [entries, quotients, inverse_pivots, solution] = [const { vec![] }; 4];
        Self { rows: 0, width: 0, entries, quotients, inverse_pivots, solution }
    }

    /// Makes room for `k` unknowns, and returns the rows to fill in, from the diagonal on, and the
    /// column of `b`.
    pub(super) fn rows_mut(&mut self, k: usize) -> (impl Iterator<Item = &mut [T]>, usize) {
        self.rows = k.next_multiple_of(TILE);
        self.width = (self.rows + 1).next_multiple_of(V);
        let fill = |x: &mut Vec<T>, len: usize| {
            x.clear();
            x.resize(len, T::zero());
        };
        fill(&mut self.entries, self.rows * self.width);
        fill(&mut self.quotients, TILE * self.width);
        fill(&mut self.inverse_pivots, self.rows);
        fill(&mut self.solution, self.width);
        (self.entries.chunks_exact_mut(self.width).take(k), self.rows)
    }

    /// `d`
    pub(super) fn solve(&mut self) -> &[T] {
        eliminate::<T, V>(self);
        back_substitute::<T, V>(self);
        &self.solution
    }
}

/// `by · line + rest`. By value: the arrays are registers.
#[inline(always)]
fn sum<T: Real, const FUSED: bool, const V: usize>(by: T, line: [T; V], rest: [T; V]) -> [T; V] {
    let mut sum = [T::zero(); V];
    for i in 0..V {
        sum[i] = fma::<T, FUSED>(by, line[i], rest[i]);
    }
    sum
}

#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+fma", "x86_64+avx2+fma"))]
fn eliminate<T: Real, const V: usize>(system: &mut System<T, V>) {
    const FUSED: bool = fused!();
    let System { width, entries, quotients, inverse_pivots, .. } = system;
    let mut rest: &mut [T] = entries;
    for (first, inverses) in inverse_pivots.as_chunks_mut::<TILE>().0.iter_mut().enumerate() {
        let first = first * TILE;
        let (panel, later) = rest.split_at_mut(TILE * *width);
        factor_panel::<T, FUSED, V>(first, panel, quotients, inverses);
        for (t, tile) in later.chunks_exact_mut(TILE * *width).enumerate() {
            subtract_panel::<T, FUSED, V>(first + (t + 1) * TILE, tile, panel, quotients);
        }
        rest = later;
    }
}

/// Eliminates among the rows of `panel`, of which `first` is the first, and writes their inverse
/// pivots and quotients.
#[inline(always)]
fn factor_panel<T: Real, const FUSED: bool, const V: usize>(
    first: usize,
    panel: &mut [T],
    quotients: &mut [T],
    inverses: &mut [T; TILE],
) {
    let (width, start) = (panel.len() / TILE, first / V);
    let least = T::from_f64(LEAST_PIVOT * T::EPSILON);
    for j in 0..TILE {
        let (earlier, row) = panel.split_at_mut(j * width);
        let row = row[..width].as_chunks_mut::<V>().0;
        for (l, earlier) in earlier.chunks_exact(width).enumerate() {
            let by = earlier[first + j] * inverses[l];
            for (row, earlier) in row[start..].iter_mut().zip(&earlier.as_chunks::<V>().0[start..]) {
                *row = sum::<T, FUSED, V>(-by, *earlier, *row);
            }
        }
        let pivot = row[(first + j) / V][(first + j) % V];
        inverses[j] = T::one() / if pivot > least { pivot } else { least };
        let quotients = quotients[j * width..][..width].as_chunks_mut::<V>().0;
        for (quotient, row) in quotients[start..].iter_mut().zip(&row[start..]) {
            *quotient = row.map(|row| row * inverses[j]);
        }
    }
}

/// Takes the rows of `panel` from those of `tile`, of which `at` is the first.
#[inline(always)]
fn subtract_panel<T: Real, const FUSED: bool, const V: usize>(
    at: usize,
    tile: &mut [T],
    panel: &[T],
    quotients: &[T],
) {
    let (width, start) = (panel.len() / TILE, at / V);
    let lines: [&[[T; V]]; TILE] = std::array::from_fn(|l| panel[l * width..][..width].as_chunks::<V>().0);
    let mut by = [[T::zero(); TILE]; TILE];
    for l in 0..TILE {
        for j in 0..TILE {
            by[l][j] = -quotients[l * width + at + j];
        }
    }
    let (r0, tile) = tile.split_at_mut(width);
    let (r1, tile) = tile.split_at_mut(width);
    let (r2, r3) = tile.split_at_mut(width);
    let [r0, r1, r2, r3] = [r0, r1, r2, r3].map(|row| &mut row.as_chunks_mut::<V>().0[start..]);
    let rows = r0.iter_mut().zip(r1).zip(r2).zip(r3);
    for (b, (((r0, r1), r2), r3)) in (start..).zip(rows) {
        let (mut s0, mut s1, mut s2, mut s3) = (*r0, *r1, *r2, *r3);
        for l in 0..TILE {
            let line = lines[l][b];
            s0 = sum::<T, FUSED, V>(by[l][0], line, s0);
            s1 = sum::<T, FUSED, V>(by[l][1], line, s1);
            s2 = sum::<T, FUSED, V>(by[l][2], line, s2);
            s3 = sum::<T, FUSED, V>(by[l][3], line, s3);
        }
        (*r0, *r1, *r2, *r3) = (s0, s1, s2, s3);
    }
}

#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+fma", "x86_64+avx2+fma"))]
fn back_substitute<T: Real, const V: usize>(system: &mut System<T, V>) {
    const FUSED: bool = fused!();
    let System { rows, width, entries, inverse_pivots, solution, .. } = system;
    let rows = *rows;
    for (j, row) in entries.chunks_exact(*width).enumerate().rev() {
        let mut sums = [T::zero(); V];
        // The entry of `d` beside `b` is 0.
        let (row, known) = (row.as_chunks::<V>().0, solution.as_chunks::<V>().0);
        let start = j / V;
        for i in 0..V {
            sums[i] = if i > j % V { row[start][i] * known[start][i] } else { T::zero() };
        }
        for (row, known) in row[start + 1..].iter().zip(&known[start + 1..]) {
            for i in 0..V {
                sums[i] = fma::<T, FUSED>(row[i], known[i], sums[i]);
            }
        }
        solution[j] = (row[rows / V][rows % V] - halves(sums)) * inverse_pivots[j];
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// The largest of `|A d − b|` for `A = M Mᵀ`.
    fn residual(k: usize) -> f64 {
        let m = |i: usize, j: usize| ((i * 37 + j * 101 + 13 * i * j) % 97) as f64 / 97. - 0.5;
        let a = |i: usize, j: usize| (0..k + 60).map(|t| m(i, t) * m(j, t)).sum::<f64>();
        let b: Vec<f64> = (0..k).map(|i| 1. + i as f64).collect();
        let mut system = System::<f64, 16>::new();
        let (rows, last) = system.rows_mut(k);
        for (i, row) in rows.enumerate() {
            (i..k).for_each(|j| row[j] = a(i, j));
            row[last] = b[i];
        }
        let d = system.solve()[..k].to_vec();
        let off = |i: usize| ((0..k).map(|j| a(i, j) * d[j]).sum::<f64>() - b[i]).abs();
        (0..k).map(off).fold(0., f64::max)
    }

    #[test]
    fn systems_around_tiles_and_blocks_are_solved() {
        for k in [1, 2, 3, 4, 5, 15, 16, 17, 31, 33, 50] {
            // b is at most 50, and a pivot above 1e-3.
            let worst = residual(k);
            assert!(worst < 1e-9, "{k}: {worst}");
        }
    }

    #[test]
    fn a_dependent_row_gives_a_direction_in_which_the_matrix_vanishes() {
        // Two equal atoms with different right sides: no solution, but (1, −1) keeps A d and
        // changes b·d.
        let mut system = System::<f64, 16>::new();
        let (mut rows, last) = system.rows_mut(2);
        let (first, second) = (rows.next().unwrap(), rows.next().unwrap());
        (first[0], first[1], first[last]) = (1., 1., 0.);
        (second[1], second[last]) = (1., 0.5);
        drop(rows);
        let d = &system.solve()[..2];
        assert!(d[1] > 1e12 && d[0] == -d[1], "{d:?}");
    }
}
