//! Products of spectra: one of matrices of complex numbers for each frequency, a column of them at
//! a time.
//!
//! ```text
//! y[m, lanes] = Σ_k a[m, k] · b[k, lanes]        up to ROWS rows m and one or two vectors of lanes in registers
//! ```
use super::super::cpu::share_of;
use super::squares::{Column, Place, column_of, transform_column};
use crate::core::fused::{fma, fused};
use multiversion::multiversion;
use multiversion::target::target_cfg_f;
use std::ops::Range;

/// Rows of a product that are made at once.
const ROWS: usize = 6;
/// f32 numbers of a line of the cache.
const LINE: usize = 16;

/// Real parts of some lanes, and imaginary parts.
pub(super) type Complex<const L: usize> = [[f32; L]; 2];

/// So many vectors, and one more where that makes an odd number of lines of the cache: numbers of
/// neighbouring frequencies are then not all kept in one place of it.
fn odd(vectors: usize) -> usize {
    vectors | 1
}

/// Spectra of filters in vectors of lanes, in groups of terms: `[group, vector, frequency, term]`.
pub(super) struct Filters<const L: usize> {
    pub values: Vec<Complex<L>>,
    terms: usize,
    vectors: usize,
    /// Terms of a group, and vectors of a frequency.
    group: usize,
    pitch: usize,
    frequencies: usize,
}

impl<const L: usize> Filters<L> {
    pub(super) fn new(terms: usize, vectors: usize, frequencies: usize) -> Self {
        /// Most terms of a group.
        const GROUP: usize = 32;
        let group = terms.div_ceil(terms.div_ceil(GROUP));
        let (groups, pitch) = (terms.div_ceil(group), odd(group));
        let values = vec![[[0.; L]; 2]; groups * vectors * frequencies * pitch];
        Self { values, terms, vectors, group, pitch, frequencies }
    }

    /// What a group has of a vector.
    pub(super) fn of_vector(&self) -> usize {
        self.frequencies * self.pitch
    }

    /// Where term `i` of a group lies in that.
    pub(super) fn place(&self, i: usize) -> Place {
        Place { at: 2 * L * i, imaginary: L, pitch: 2 * L * self.pitch }
    }

    /// The terms of a group.
    pub(super) fn of_group(&self, group: usize) -> Range<usize> {
        group * self.group..self.terms.min((group + 1) * self.group)
    }

    fn of(&self, group: usize, f: usize, v: usize) -> &[Complex<L>] {
        let at = (group * self.vectors + v) * self.of_vector() + f * self.pitch;
        &self.values[at..][..self.of_group(group).len()]
    }
}

/// What a thread needs for the transforms of the same column of some squares.
#[derive(Default)]
pub(super) struct Room<const L: usize> {
    /// Numbers that are factors of lanes, `[frequency, 2, square · channel]`.
    factors: Vec<f32>,
    /// Vectors of lanes, `[frequency, vector, square]`.
    lanes: Vec<Complex<L>>,
}

impl<const L: usize> Room<L> {
    /// Memory for `numbers` factors and as many vectors of each of `T` frequencies, which is kept.
    fn resize(&mut self, frequencies: usize, numbers: usize, vectors: usize) -> [Place; 2] {
        let imaginary = numbers.next_multiple_of(LINE);
        let (of_factors, of_lanes) = (odd(2 * imaginary / LINE) * LINE, odd(vectors));
        self.factors.resize(frequencies * of_factors, 0.);
        self.lanes.resize(frequencies * of_lanes, [[0.; L]; 2]);
        let factors = Place { at: 0, imaginary, pitch: of_factors };
        [factors, Place { at: 0, imaginary: L, pitch: 2 * L * of_lanes }]
    }
}

/// Writes column `k` of the results, `[square, vector]`, of so many squares with filters `w`: those
/// of which `x` has the columns, `[block, T/2 + 1]` in blocks of `L` numbers.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+fma", "x86_64+avx2+fma"))]
pub(super) fn filter_column<const L: usize, const T: usize>(
    room: &mut Room<L>,
    (k, squares): (usize, usize),
    x: &[Column<L, T>],
    w: &Filters<L>,
    to: &mut [Column<L, T>],
) {
    const FUSED: bool = fused!();
    const TWO: bool = target_cfg_f!(target_feature = "avx512f");
    let (channels, vectors) = (w.terms, w.vectors);
    let [factors, lanes] = room.resize(T, (squares * channels).next_multiple_of(L), squares * vectors);
    let each = x.chunks_exact(T / 2 + 1).take((squares * channels).div_ceil(L));
    for (i, columns) in each.enumerate() {
        let place = Place { at: i * L, ..factors };
        transform_column::<L, T, FUSED>(&columns[k], &mut room.factors, place);
    }
    let groups = channels.div_ceil(w.group);
    let parts = squares.div_ceil(ROWS);
    for f in 0..T {
        let [re, im] = [0, factors.imaginary].map(|part| &room.factors[f * factors.pitch + part..]);
        let to = &mut room.lanes[f * (lanes.pitch / (2 * L))..];
        let mut v = 0;
        while v < vectors {
            let two = TWO && v + 1 < vectors;
            let (one, other) = to[v * squares..].split_at_mut(squares);
            for part in 0..parts {
                let rows = share_of(squares, part, parts);
                let numbers = |i: usize| {
                    let at = rows.start * channels + i * w.group;
                    [&re[at..], &im[at..]]
                };
                let of = |i: usize, v: usize| w.of(i, k * T + f, v);
                let (steps, one) = ([1, channels], &mut one[rows.clone()]);
                if two {
                    let to = [one, &mut other[rows.clone()]];
                    let each = (0..groups).map(|i| (numbers(i), [of(i, v), of(i, v + 1)]));
                    some_rows::<L, 2, FUSED, false>(to, steps, each);
                } else {
                    let each = (0..groups).map(|i| (numbers(i), [of(i, v)]));
                    some_rows::<L, 1, FUSED, false>([one], steps, each);
                }
            }
            v += if two { 2 } else { 1 };
        }
    }
    let from = room.lanes.as_flattened().as_flattened();
    for (i, to) in to[..squares * vectors].iter_mut().enumerate() {
        let at = 2 * L * (i % vectors * squares + i / vectors);
        column_of::<L, T, FUSED>(from, Place { at, ..lanes }, to);
    }
}

/// Adds the products of column `k` of squares of `channels` numbers, the columns of which `x` has,
/// with those of as many squares of vectors of lanes, `h`, to `to`, `[frequency, vector, channel]`.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+fma", "x86_64+avx2+fma"))]
pub(super) fn sum_column<const L: usize, const T: usize>(
    room: &mut Room<L>,
    (k, squares, channels, vectors): (usize, usize, usize, usize),
    x: &[Column<L, T>],
    h: &[Column<L, T>],
    to: &mut [Complex<L>],
) {
    const FUSED: bool = fused!();
    const TWO: bool = target_cfg_f!(target_feature = "avx512f");
    let [factors, lanes] = room.resize(T, (squares * channels).next_multiple_of(L), squares * vectors);
    let each = x.chunks_exact(T / 2 + 1).take((squares * channels).div_ceil(L));
    for (i, columns) in each.enumerate() {
        let place = Place { at: i * L, ..factors };
        transform_column::<L, T, FUSED>(&columns[k], &mut room.factors, place);
    }
    for (i, columns) in h.chunks_exact(T / 2 + 1).take(squares * vectors).enumerate() {
        let at = 2 * L * (i % vectors * squares + i / vectors);
        let to = room.lanes.as_flattened_mut().as_flattened_mut();
        transform_column::<L, T, FUSED>(&columns[k], to, Place { at, ..lanes });
    }
    let (parts, of_frequency) = (channels.div_ceil(ROWS), to.len() / T);
    for (f, to) in to.chunks_exact_mut(of_frequency).enumerate() {
        let [re, im] = [0, factors.imaginary].map(|part| &room.factors[f * factors.pitch + part..]);
        let of = |v: usize| &room.lanes[f * (lanes.pitch / (2 * L)) + v * squares..][..squares];
        let mut v = 0;
        while v < vectors {
            let two = TWO && v + 1 < vectors;
            let (one, other) = to[v * channels..].split_at_mut(channels);
            for part in 0..parts {
                let rows = share_of(channels, part, parts);
                let numbers = [&re[rows.start..], &im[rows.start..]];
                let (steps, one) = ([channels, 1], &mut one[rows.clone()]);
                if two {
                    let to = [one, &mut other[rows]];
                    let each = std::iter::once((numbers, [of(v), of(v + 1)]));
                    some_rows::<L, 2, FUSED, true>(to, steps, each);
                } else {
                    let each = std::iter::once((numbers, [of(v)]));
                    some_rows::<L, 1, FUSED, true>([one], steps, each);
                }
            }
            v += if two { 2 } else { 1 };
        }
    }
}

/// [`add_products`] of 1 to [`ROWS`] rows, all of `to`.
#[inline(always)]
fn some_rows<'a, const L: usize, const N: usize, const FUSED: bool, const ADD: bool>(
    to: [&mut [Complex<L>]; N],
    steps: [usize; 2],
    each: impl Iterator<Item = ([&'a [f32]; 2], [&'a [Complex<L>]; N])>,
) {
    match to[0].len() {
        1 => add_products::<L, 1, N, FUSED, ADD>(to, steps, each),
        2 => add_products::<L, 2, N, FUSED, ADD>(to, steps, each),
        3 => add_products::<L, 3, N, FUSED, ADD>(to, steps, each),
        4 => add_products::<L, 4, N, FUSED, ADD>(to, steps, each),
        5 => add_products::<L, 5, N, FUSED, ADD>(to, steps, each),
        _ => add_products::<L, ROWS, N, FUSED, ADD>(to, steps, each),
    }
}

/// `to[m] = Σ_k a[k · step + m · beside] b[k]` of each pair `a`, `b`, for `M` rows; with `ADD` that
/// is added.
#[inline(always)]
fn add_products<'a, const L: usize, const M: usize, const N: usize, const FUSED: bool, const ADD: bool>(
    to: [&mut [Complex<L>]; N],
    [step, beside]: [usize; 2],
    each: impl Iterator<Item = ([&'a [f32]; 2], [&'a [Complex<L>]; N])>,
) {
    let mut sums = [[[[0f32; L]; 2]; N]; M];
    if ADD {
        for (n, to) in to.iter().enumerate() {
            sums.iter_mut().zip(&to[..M]).for_each(|(sums, to)| sums[n] = *to);
        }
    }
    for (a, b) in each {
        let count = b[0].len();
        let [re, im] = a.map(|a| &a[..(count - 1) * step + (M - 1) * beside + 1]);
        let b = b.map(|b| &b[..count]);
        for k in 0..count {
            let b: [Complex<L>; N] = std::array::from_fn(|n| b[n][k]);
            for m in 0..M {
                let (re, im) = (re[k * step + m * beside], im[k * step + m * beside]);
                for n in 0..N {
                    for l in 0..L {
                        let [to_re, to_im] = [sums[m][n][0][l], sums[m][n][1][l]];
                        sums[m][n][0][l] = fma::<f32, FUSED>(re, b[n][0][l], to_re);
                        sums[m][n][1][l] = fma::<f32, FUSED>(re, b[n][1][l], to_im);
                    }
                    for l in 0..L {
                        let [to_re, to_im] = [sums[m][n][0][l], sums[m][n][1][l]];
                        sums[m][n][0][l] = fma::<f32, FUSED>(-im, b[n][1][l], to_re);
                        sums[m][n][1][l] = fma::<f32, FUSED>(im, b[n][0][l], to_im);
                    }
                }
            }
        }
    }
    for (n, to) in to.into_iter().enumerate() {
        sums.iter().zip(&mut to[..M]).for_each(|(sums, to)| *to = sums[n]);
    }
}
