//! Spectra of many squares, and their products: one of matrices of complex numbers for each
//! frequency.
//!
//! ```text
//! y[m, lanes] = Σ_k a[m, k] · b[k, lanes]        ROWS rows m and one or two vectors of lanes in registers
//! ```
use super::squares::Place;
use crate::core::fused::{fma, fused};
use multiversion::multiversion;
use multiversion::target::target_cfg_f;

/// Rows of a product that are made at once.
pub(super) const ROWS: usize = 6;
/// f32 numbers of a line of the cache.
const LINE: usize = 16;

/// Real parts of some lanes, and imaginary parts.
pub(super) type Complex<const L: usize> = [[f32; L]; 2];

/// Lines of the cache for so many numbers, an odd count: those of neighbouring frequencies are then
/// not all kept in one place of the cache.
fn odd_lines(numbers: usize) -> usize {
    (numbers.div_ceil(LINE) | 1) * LINE
}

/// Spectra of squares whose numbers are factors of lanes, in groups of squares: `[group, frequency,
/// 2, squares · channels]`.
pub(super) struct Factors {
    pub values: Vec<f32>,
    /// Squares of a group.
    pub group: usize,
    pub channels: usize,
    imaginary: usize,
    pitch: usize,
    frequencies: usize,
}

impl Factors {
    pub(super) fn new(squares: usize, group: usize, channels: usize, frequencies: usize) -> Self {
        let imaginary = (group * channels).next_multiple_of(LINE);
        let pitch = odd_lines(2 * imaginary);
        let values = vec![0.; squares.div_ceil(group) * frequencies * pitch];
        Self { values, group, channels, imaginary, pitch, frequencies }
    }

    /// Numbers of a group.
    pub(super) fn of_group(&self) -> usize {
        self.frequencies * self.pitch
    }

    /// Where lanes from `number` on of a group lie.
    pub(super) fn place(&self, number: usize) -> Place {
        Place { at: number, imaginary: self.imaginary, pitch: self.pitch }
    }

    /// Real and imaginary parts of a frequency, from `number` on.
    fn of(&self, group: usize, f: usize, number: usize) -> [&[f32]; 2] {
        let at = group * self.of_group() + f * self.pitch + number;
        [0, self.imaginary].map(|part| &self.values[at + part..][..self.imaginary - number])
    }
}

/// Spectra of squares in vectors of lanes, in groups of squares: `[group, vector, frequency,
/// square]`.
pub(super) struct Lanes<const L: usize> {
    pub values: Vec<Complex<L>>,
    /// Squares, and those of a group.
    pub squares: usize,
    pub group: usize,
    pub vectors: usize,
    pitch: usize,
    frequencies: usize,
}

impl<const L: usize> Lanes<L> {
    pub(super) fn new(squares: usize, group: usize, vectors: usize, frequencies: usize) -> Self {
        let pitch = odd_lines(2 * L * group) / (2 * L).min(LINE);
        let pitch = if 2 * L > LINE { pitch.div_ceil(2 * L / LINE) } else { pitch };
        let values = vec![[[0.; L]; 2]; squares.div_ceil(group) * vectors * frequencies * pitch];
        Self { values, squares, group, vectors, pitch, frequencies }
    }

    /// Vectors of numbers of a group and vector of lanes.
    pub(super) fn of_vector(&self) -> usize {
        self.frequencies * self.pitch
    }

    /// Where the lanes of a square of a group lie.
    pub(super) fn place(&self, square: usize) -> Place {
        Place { at: 2 * L * square, imaginary: L, pitch: 2 * L * self.pitch }
    }

    /// Squares of group `group`.
    pub(super) fn in_group(&self, group: usize) -> usize {
        self.group.min(self.squares - group * self.group)
    }

    fn of(&self, group: usize, f: usize, v: usize) -> &[Complex<L>] {
        let at = (group * self.vectors + v) * self.of_vector() + f * self.pitch;
        &self.values[at..][..self.in_group(group)]
    }

    fn groups(&self) -> usize {
        self.squares.div_ceil(self.group)
    }
}

/// Spectra that are made: `[frequency, vector, row]`.
pub(super) struct Products<const L: usize> {
    pub values: Vec<Complex<L>>,
    pitch: usize,
}

impl<const L: usize> Products<L> {
    pub(super) fn new(rows: usize, vectors: usize, frequencies: usize) -> Self {
        let pitch = (rows * vectors) | 1;
        Self { values: vec![[[0.; L]; 2]; frequencies * pitch], pitch }
    }

    /// Vectors of numbers of a frequency.
    pub(super) fn of_frequency(&self) -> usize {
        self.pitch
    }

    pub(super) fn place_of(&self, rows: usize, row: usize, v: usize) -> Place {
        Place { at: 2 * L * (v * rows + row), imaginary: L, pitch: 2 * L * self.pitch }
    }
}

/// Writes the products of frequency `f` of so many squares `a` with filters `b`: rows are squares,
/// and the sums are over channels.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+fma", "x86_64+avx2+fma"))]
pub(super) fn filtered<const L: usize>(
    to: &mut [Complex<L>],
    squares: usize,
    f: usize,
    a: &Factors,
    b: &Lanes<L>,
) {
    const FUSED: bool = fused!();
    const TWO: bool = target_cfg_f!(target_feature = "avx512f");
    let mut v = 0;
    while v < b.vectors {
        for start in (0..squares).step_by(a.group) {
            let rows = a.group.min(squares - start);
            let numbers = |i: usize| a.of(start / a.group, f, i * b.group);
            let steps = [1, a.channels];
            if TWO && v + 1 < b.vectors {
                let (one, two) = to[v * squares..].split_at_mut(squares);
                let each = (0..b.groups()).map(|i| (numbers(i), [b.of(i, f, v), b.of(i, f, v + 1)]));
                some_rows::<L, 2, FUSED, false>([&mut one[start..], &mut two[start..]], rows, steps, each);
            } else {
                let each = (0..b.groups()).map(|i| (numbers(i), [b.of(i, f, v)]));
                let to = [&mut to[v * squares + start..]];
                some_rows::<L, 1, FUSED, false>(to, rows, steps, each);
            }
        }
        v += if TWO { 2 } else { 1 };
    }
}

/// Adds the products of frequency `f` of squares `a` and `b`: rows are channels, and the sums are
/// over squares, in equal groups.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+fma", "x86_64+avx2+fma"))]
pub(super) fn summed<const L: usize>(to: &mut [Complex<L>], f: usize, a: &Factors, b: &Lanes<L>) {
    const FUSED: bool = fused!();
    const TWO: bool = target_cfg_f!(target_feature = "avx512f");
    let channels = a.channels;
    let mut v = 0;
    while v < b.vectors {
        for start in (0..channels).step_by(ROWS) {
            let rows = ROWS.min(channels - start);
            let steps = [channels, 1];
            if TWO && v + 1 < b.vectors {
                let (one, two) = to[v * channels..].split_at_mut(channels);
                let each = (0..b.groups()).map(|i| (a.of(i, f, start), [b.of(i, f, v), b.of(i, f, v + 1)]));
                some_rows::<L, 2, FUSED, true>([&mut one[start..], &mut two[start..]], rows, steps, each);
            } else {
                let each = (0..b.groups()).map(|i| (a.of(i, f, start), [b.of(i, f, v)]));
                some_rows::<L, 1, FUSED, true>([&mut to[v * channels + start..]], rows, steps, each);
            }
        }
        v += if TWO { 2 } else { 1 };
    }
}

/// [`some`] rows of 1 to [`ROWS`].
#[inline(always)]
fn some_rows<'a, const L: usize, const N: usize, const FUSED: bool, const ADD: bool>(
    to: [&mut [Complex<L>]; N],
    rows: usize,
    steps: [usize; 2],
    each: impl Iterator<Item = ([&'a [f32]; 2], [&'a [Complex<L>]; N])>,
) {
    match rows {
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
