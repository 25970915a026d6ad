//! Transforms of squares of `T · T` real numbers, one in each lane, and back: first of lines, then
//! of columns.
//!
//! Two lines are one complex transform, `x₁ + i x₂`, and are taken apart by symmetry:
//!
//! ```text
//! 2 X₁(k) = Z(k) + conj Z(−k)        2 X₂(k) = −i (Z(k) − conj Z(−k))
//! ```
//!
//! so that columns `0..=T/2` are what there is. The halves are left out: spectra are twice what
//! they should be. The numbers of a column are at the places of [`Order`].
use super::fourier::{Order, Part, backward, forward, roots};
use crate::core::fused::fused;
use multiversion::multiversion;
use std::ops::Range;

/// Real and imaginary parts of a column.
pub(super) type Column<const L: usize, const T: usize> = [Part<L, T>; 2];

/// Neighbouring lanes of a square, and what they hold within some lines and columns; zeros beside
/// it. Number `(y, x)` of lane `l` is `values[origin + y · line + x · pixel + l · lane]`.
#[derive(Debug, Clone)]
pub(super) struct Piece {
    pub lanes: Range<usize>,
    pub lines: Range<usize>,
    pub columns: Range<usize>,
    pub origin: isize,
    pub line: isize,
    pub pixel: isize,
    pub lane: isize,
}

impl Piece {
    /// Writes line `y` of these lanes.
    #[inline(always)]
    fn fill<const L: usize, const T: usize>(&self, values: &[f32], y: usize, to: &mut Part<L, T>) {
        /// Fewer numbers are not worth a call that copies.
        const FEW: usize = 4;
        let Self { line, pixel, lane, .. } = *self;
        let mut at = self.origin + y as isize * line + self.columns.start as isize * pixel;
        let (first, n) = (self.lanes.start, self.lanes.len());
        for to in &mut to[self.columns.clone()] {
            if lane == 1 && n == L {
                to.copy_from_slice(&values[at as usize..][..L]);
            } else if lane == 1 && n >= FEW {
                to[first..first + n].copy_from_slice(&values[at as usize..][..n]);
            } else {
                for (l, to) in to[first..first + n].iter_mut().enumerate() {
                    *to = values[(at + l as isize * lane) as usize];
                }
            }
            at += pixel;
        }
    }
}

#[inline(always)]
fn sum<const L: usize>(a: [f32; L], b: [f32; L]) -> [f32; L] {
    std::array::from_fn(|l| a[l] + b[l])
}

#[inline(always)]
fn difference<const L: usize>(a: [f32; L], b: [f32; L]) -> [f32; L] {
    std::array::from_fn(|l| a[l] - b[l])
}

/// Writes twice the transforms of the lines of a square, column by column.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+fma", "x86_64+avx2+fma"))]
pub(super) fn transform_lines<const L: usize, const T: usize>(
    values: &[f32],
    pieces: &[Piece],
    to: &mut [Column<L, T>],
) {
    const FUSED: bool = fused!();
    let (to, roots) = (&mut to[..T / 2 + 1], roots());
    let start = pieces.iter().map(|piece| piece.lines.start).min().unwrap_or(0) & !1;
    let end = pieces.iter().map(|piece| piece.lines.end).max().unwrap_or(0).next_multiple_of(2);
    for part in to.as_flattened_mut() {
        part[..start.min(end)].fill([0.; L]);
        part[end..].fill([0.; L]);
    }
    let whole = matches!(pieces, [piece] if piece.lanes.len() == L && piece.columns == (0..T));
    let mut line = [[[0f32; L]; T]; 2];
    let [re, im] = &mut line;
    for y in (start..end).step_by(2) {
        for (y, part) in [(y, &mut *re), (y + 1, &mut *im)] {
            if !whole || !pieces[0].lines.contains(&y) {
                part.fill([0.; L]);
            }
            for piece in pieces.iter().filter(|piece| piece.lines.contains(&y)) {
                piece.fill(values, y, part);
            }
        }
        forward::<L, T, FUSED>(re, im, roots);
        for (k, [to_re, to_im]) in to.iter_mut().enumerate() {
            let (a, b) = (Order::<T>::PLACES[k], Order::<T>::PLACES[(T - k) % T]);
            let (r, i, back_r, back_i) = (re[a], im[a], re[b], im[b]);
            (to_re[y], to_im[y]) = (sum(r, back_r), difference(i, back_i));
            (to_re[y + 1], to_im[y + 1]) = (sum(i, back_i), difference(back_r, r));
        }
    }
}

/// Where results of a square go: its number `(first[0] + y, first[1] + x)` of lane `l`, times
/// `scale`, to number `x · pixel + lanes.start + l` of line `y`.
pub(super) struct Results<'a, 'b> {
    pub lines: &'a mut [&'b mut [f32]],
    pub pixel: usize,
    pub lanes: Range<usize>,
    pub first: [usize; 2],
    pub scale: f32,
}

/// Writes results of a square of which there are the columns.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+fma", "x86_64+avx2+fma"))]
pub(super) fn lines_of<'a, const L: usize, const T: usize, C: Fn(usize) -> &'a Column<L, T>>(
    column: &C,
    to: Results<'_, '_>,
) {
    const FUSED: bool = fused!();
    let roots = roots();
    let mut line = [[[0f32; L]; T]; 2];
    let [re, im] = &mut line;
    let Results { lines, pixel, lanes, first: [top, left], scale } = to;
    for (y, lines) in (top..).step_by(2).zip(lines.chunks_mut(2)) {
        let below = (y + 1).min(T - 1);
        for k in 0..=T / 2 {
            let [of_re, of_im] = column(k);
            let (r, i, below_r, below_i) = (of_re[y], of_im[y], of_re[below], of_im[below]);
            let (a, b) = (Order::<T>::PLACES[k], Order::<T>::PLACES[(T - k) % T]);
            // First the number at −k, which for k = 0 and T/2 is the same.
            (re[b], im[b]) = (sum(r, below_i), difference(below_r, i));
            (re[a], im[a]) = (difference(r, below_i), sum(i, below_r));
        }
        backward::<L, T, FUSED>(re, im, roots);
        for (to, from) in lines.iter_mut().zip([&*re, &*im]) {
            for (to, from) in to.chunks_exact_mut(pixel).zip(&from[left..]) {
                let (to, from) = (&mut to[lanes.clone()], from.map(|from| scale * from));
                match to.first_chunk_mut::<L>() {
                    Some(to) => *to = from,
                    None => to.iter_mut().zip(from).for_each(|(to, from)| *to = from),
                }
            }
        }
    }
}

/// Where the lanes of a column lie among others: number `f` at `at + f · pitch`, its imaginary part
/// `imaginary` behind.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub at: usize,
    pub imaginary: usize,
    pub pitch: usize,
}

/// Writes the transform of a column.
#[inline(always)]
pub(super) fn transform_column<const L: usize, const T: usize, const FUSED: bool>(
    [re, im]: &Column<L, T>,
    to: &mut [f32],
    Place { at, imaginary, pitch }: Place,
) {
    let (mut re, mut im) = (*re, *im);
    forward::<L, T, FUSED>(&mut re, &mut im, roots());
    for (f, (re, im)) in re.iter().zip(&im).enumerate() {
        let at = at + f * pitch;
        to[at..at + L].copy_from_slice(re);
        to[at + imaginary..at + imaginary + L].copy_from_slice(im);
    }
}

/// Writes the column of a transform, `T` times.
#[inline(always)]
pub(super) fn column_of<const L: usize, const T: usize, const FUSED: bool>(
    from: &[f32],
    Place { at, imaginary, pitch }: Place,
    [re, im]: &mut Column<L, T>,
) {
    for (f, (re, im)) in re.iter_mut().zip(&mut *im).enumerate() {
        let at = at + f * pitch;
        re.copy_from_slice(&from[at..at + L]);
        im.copy_from_slice(&from[at + imaginary..at + imaginary + L]);
    }
    backward::<L, T, FUSED>(re, im, roots());
}

/// Writes the transforms of all columns of a square, one behind the other.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+fma", "x86_64+avx2+fma"))]
pub(super) fn transform_columns<const L: usize, const T: usize>(
    columns: &[Column<L, T>],
    to: &mut [f32],
    place: Place,
) {
    const FUSED: bool = fused!();
    for (k, column) in columns.iter().enumerate() {
        let place = Place { at: place.at + k * T * place.pitch, ..place };
        transform_column::<L, T, FUSED>(column, to, place);
    }
}

/// Writes all columns of transforms that lie one behind the other.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+fma", "x86_64+avx2+fma"))]
pub(super) fn columns_of<const L: usize, const T: usize>(
    from: &[f32],
    place: Place,
    columns: &mut [Column<L, T>],
) {
    const FUSED: bool = fused!();
    for (k, column) in columns.iter_mut().enumerate() {
        let place = Place { at: place.at + k * T * place.pitch, ..place };
        column_of::<L, T, FUSED>(from, place, column);
    }
}
