//! Transforms of squares of `T · T` real numbers, one in each lane, and back.
//!
//! Two lines are one complex transform, `x₁ + i x₂`, and are taken apart by symmetry:
//!
//! ```text
//! 2 X₁(k) = Z(k) + conj Z(−k)        2 X₂(k) = −i (Z(k) − conj Z(−k))
//! ```
//!
//! then each of the columns `0..=T/2` is one. The halves are left out: spectra are twice what they
//! should be. Number `T · column + place` of a spectrum is at the place of [`Order`].
use super::fourier::{Order, Part, backward, forward, roots};
use crate::core::fused::fused;
use multiversion::multiversion;
use std::ops::Range;

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
        let Self { line, pixel, lane, .. } = *self;
        let mut at = self.origin + y as isize * line + self.columns.start as isize * pixel;
        let (first, n) = (self.lanes.start, self.lanes.len());
        for to in &mut to[self.columns.clone()] {
            if lane == 1 && n == L {
                to.copy_from_slice(&values[at as usize..][..L]);
            } else if lane == 1 {
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

/// Where the lanes of a square lie in memory: number `f` at `at + f · pitch`, its imaginary part
/// `imaginary` behind.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub at: usize,
    pub imaginary: usize,
    pub pitch: usize,
}

/// Columns of a square, real and imaginary parts.
pub(super) struct Columns<const L: usize, const T: usize>([Vec<Part<L, T>>; 2]);

impl<const L: usize, const T: usize> Columns<L, T> {
    pub(super) fn new() -> Self {
        Self([0, 1].map(|_| vec![[[0f32; L]; T]; T / 2 + 1]))
    }
}

/// Writes twice the spectrum of pieces of `values`.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+fma", "x86_64+avx2+fma"))]
pub(super) fn transform<const L: usize, const T: usize>(
    Columns([of_re, of_im]): &mut Columns<L, T>,
    values: &[f32],
    pieces: &[Piece],
    spectrum: &mut [f32],
    place: Place,
) {
    const FUSED: bool = fused!();
    let roots = roots();
    let start = pieces.iter().map(|piece| piece.lines.start).min().unwrap_or(0) & !1;
    let end = pieces.iter().map(|piece| piece.lines.end).max().unwrap_or(0).next_multiple_of(2);
    for column in of_re.iter_mut().chain(&mut *of_im) {
        column[..start.min(end)].fill([0.; L]);
        column[end..].fill([0.; L]);
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
        for k in 0..=T / 2 {
            let (a, b) = (Order::<T>::PLACES[k], Order::<T>::PLACES[(T - k) % T]);
            let (r, i, back_r, back_i) = (re[a], im[a], re[b], im[b]);
            let (to_re, to_im) = (&mut of_re[k], &mut of_im[k]);
            for l in 0..L {
                to_re[y][l] = r[l] + back_r[l];
                to_im[y][l] = i[l] - back_i[l];
                to_re[y + 1][l] = i[l] + back_i[l];
                to_im[y + 1][l] = back_r[l] - r[l];
            }
        }
    }
    let Place { mut at, imaginary, pitch } = place;
    for (re, im) in of_re.iter_mut().zip(of_im) {
        forward::<L, T, FUSED>(re, im, roots);
        for (re, im) in re.iter().zip(&*im) {
            spectrum[at..][..L].copy_from_slice(re);
            spectrum[at + imaginary..][..L].copy_from_slice(im);
            at += pitch;
        }
    }
}

/// Gives `write` the lines `lines` of the square of a spectrum, `T²` times.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+fma", "x86_64+avx2+fma"))]
pub(super) fn inverse<const L: usize, const T: usize, W: FnMut(usize, &Part<L, T>)>(
    Columns([of_re, of_im]): &mut Columns<L, T>,
    spectrum: &[f32],
    place: Place,
    lines: Range<usize>,
    write: &mut W,
) {
    const FUSED: bool = fused!();
    let roots = roots();
    let Place { mut at, imaginary, pitch } = place;
    for (re, im) in of_re.iter_mut().zip(&mut *of_im) {
        for (re, im) in re.iter_mut().zip(&mut *im) {
            re.copy_from_slice(&spectrum[at..][..L]);
            im.copy_from_slice(&spectrum[at + imaginary..][..L]);
            at += pitch;
        }
        backward::<L, T, FUSED>(re, im, roots);
    }
    let mut line = [[[0f32; L]; T]; 2];
    let [re, im] = &mut line;
    for y in lines.clone().step_by(2) {
        let below = (y + 1).min(T - 1);
        for k in 0..=T / 2 {
            let (r, i) = (of_re[k][y], of_im[k][y]);
            let (below_r, below_i) = (of_re[k][below], of_im[k][below]);
            let (a, b) = (Order::<T>::PLACES[k], Order::<T>::PLACES[(T - k) % T]);
            // First the number at −k, which for k = 0 and T/2 is the same.
            for l in 0..L {
                re[b][l] = r[l] + below_i[l];
                im[b][l] = below_r[l] - i[l];
            }
            for l in 0..L {
                re[a][l] = r[l] - below_i[l];
                im[a][l] = i[l] + below_r[l];
            }
        }
        backward::<L, T, FUSED>(re, im, roots);
        write(y, re);
        if y + 1 < lines.end {
            write(y + 1, im);
        }
    }
}
