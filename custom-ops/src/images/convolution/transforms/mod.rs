//! The ops on the CPU in f32 by Fourier transforms of tiles.
use super::ConvolutionShape;
use super::cpu::at_least;
use super::tiles::Tiles;
use crate::core::vector::is_widest;
use products::{Factors, Lanes, Products, ROWS, filtered, summed};
use rayon::prelude::*;
use squares::{Columns, Piece, inverse, transform};
use std::ops::Range;

mod fourier;
mod products;
mod squares;

/// Squares or channels in a group of those that are summed over.
const TERMS: usize = 16;
/// Numbers of the spectra that are made at once.
const CHUNK: usize = 1 << 20;

/// Images or maps under tiles.
#[derive(Clone, Copy)]
struct Sheet<'a> {
    values: &'a [f32],
    height: usize,
    width: usize,
    channels: usize,
}

impl<'a> Sheet<'a> {
    /// Channels from `first` on of a square that begins `top` lines and `left` columns into image
    /// `image`, of which `side` places are taken; `turned`, the last is first.
    fn piece(
        &self,
        image: usize,
        [top, left]: [isize; 2],
        side: usize,
        turned: bool,
        (lanes, first): (Range<usize>, usize),
    ) -> Piece {
        let within = |from: isize, n: usize| {
            let [start, end] = [-from, n as isize - from].map(|at| at.clamp(0, side as isize) as usize);
            if turned { side - end..side - start } else { start..end }
        };
        let (line, pixel) = ((self.width * self.channels) as isize, self.channels as isize);
        let of_image = (image * self.height * self.width * self.channels + first) as isize;
        let origin = of_image + top * line + left * pixel;
        let (lines, columns) = (within(top, self.height), within(left, self.width));
        let piece = Piece { lanes, lines, columns, origin, line, pixel, lane: 1 };
        if turned {
            let last = side as isize - 1;
            return Piece { origin: origin + last * (line + pixel), line: -line, pixel: -pixel, ..piece };
        }
        piece
    }
}

/// The squares under the tiles of all images.
#[derive(Clone, Copy)]
struct Squares<'a> {
    sheet: Sheet<'a>,
    tiles: Tiles,
    /// Lines by which the first begins before the image.
    before: usize,
    /// Places of a square that are taken.
    side: usize,
    turned: bool,
}

impl Squares<'_> {
    /// Channels from `first` on of square `i`.
    fn piece(&self, i: usize, lanes: (Range<usize>, usize)) -> Piece {
        let Tiles { step, across, .. } = self.tiles;
        let (image, at) = (i / self.tiles.count(), i % self.tiles.count());
        let corner = [at / across, at % across].map(|at| (at * step) as isize - self.before as isize);
        self.sheet.piece(image, corner, self.side, self.turned, lanes)
    }

    /// Writes the spectra of squares `at` in groups.
    fn factors<const L: usize, const T: usize>(&self, to: &mut Factors, at: Range<usize>) {
        let (channels, of_group, group) = (to.channels, to.of_group(), to.group);
        let mut values = std::mem::take(&mut to.values);
        let groups = values.par_chunks_mut(of_group).take(at.len().div_ceil(group)).enumerate();
        let room = || (Columns::<L, T>::new(), vec![]);
        groups.for_each_init(room, |(columns, pieces), (i, values)| {
            let first = at.start + i * group;
            let numbers = group.min(at.end - first) * channels;
            for start in (0..numbers).step_by(L) {
                let (mut number, end) = (start, numbers.min(start + L));
                pieces.clear();
                while number < end {
                    let (square, channel) = (number / channels, number % channels);
                    let n = (channels - channel).min(end - number);
                    let lanes = number - start..number - start + n;
                    pieces.push(self.piece(first + square, (lanes, channel)));
                    number += n;
                }
                transform::<L, T>(columns, self.sheet.values, pieces, values, to.place(start));
            }
        });
        to.values = values;
    }

    /// Writes those of squares `at` in vectors of lanes.
    fn lanes<const L: usize, const T: usize>(&self, to: &mut Lanes<L>, at: Range<usize>) {
        let channels = self.sheet.channels;
        spectra::<L, T>(to, self.sheet.values, |square, v| {
            let lanes = 0..L.min(channels - v * L);
            self.piece(at.start + square, (lanes, v * L))
        });
    }
}

/// Writes spectra in vectors of lanes; `piece` gives that of a square and a vector.
fn spectra<const L: usize, const T: usize>(
    to: &mut Lanes<L>,
    values: &[f32],
    piece: impl Fn(usize, usize) -> Piece + Sync,
) {
    let (of_vector, vectors) = (to.of_vector(), to.vectors);
    let mut all = std::mem::take(&mut to.values);
    let chunks = all.par_chunks_mut(of_vector).enumerate().take(to.squares.div_ceil(to.group) * vectors);
    chunks.for_each_init(Columns::<L, T>::new, |columns, (i, spectrum)| {
        let (group, v) = (i / vectors, i % vectors);
        for square in 0..to.in_group(group) {
            let pieces = [piece(group * to.group + square, v)];
            let spectrum = spectrum.as_flattened_mut().as_flattened_mut();
            transform::<L, T>(columns, values, &pieces, spectrum, to.place(square));
        }
    });
    to.values = all;
}

/// Filters of `size` lines that are laid over images.
struct Filters<'a> {
    values: &'a [f32],
    shape: ConvolutionShape,
    /// Whether sums are over filters, and lanes are channels; filters are not turned then.
    transposed: bool,
}

impl Filters<'_> {
    /// Vector `v` of the results that channel `k` of the images has a part in.
    fn piece<const L: usize>(&self, k: usize, v: usize) -> Piece {
        let ConvolutionShape { size, channels, n_filters, .. } = self.shape;
        let depth = self.shape.filter_len();
        let (line, pixel) = ((size * channels) as isize, channels as isize);
        let (lines, columns) = (0..size, 0..size);
        if self.transposed {
            let (origin, lanes) = ((k * depth + v * L) as isize, 0..L.min(channels - v * L));
            return Piece { lanes, lines, columns, origin, line, pixel, lane: 1 };
        }
        let last = (size - 1) as isize * (line + pixel);
        let (origin, lanes) = ((v * L * depth + k) as isize + last, 0..L.min(n_filters - v * L));
        Piece { lanes, lines, columns, origin, line: -line, pixel: -pixel, lane: depth as isize }
    }
}

/// Writes the results of all tiles, images of `height · width` pixels of `channels`.
fn correlate<const L: usize, const T: usize>(
    out: &mut [f32],
    [height, width, channels]: [usize; 3],
    squares: Squares<'_>,
    filters: &Filters<'_>,
) {
    let (frequencies, depth) = (squares.tiles.frequencies(), squares.sheet.channels);
    let (vectors, offset) = (channels.div_ceil(L), filters.shape.size - 1);
    let mut w = Lanes::<L>::new(depth, TERMS, vectors, frequencies);
    spectra::<L, T>(&mut w, filters.values, |k, v| filters.piece::<L>(k, v));
    let w = w;
    let mut results = in_tiles(out, [height, width, channels], squares.tiles);
    let count = results.len();
    let most = (CHUNK / (frequencies * (depth + vectors * L))).max(ROWS);
    let most = count.div_ceil(count.div_ceil(most)).next_multiple_of(ROWS).min(count);
    let mut products = Products::<L>::new(most, vectors, frequencies);
    let scale = 1. / (4 * T * T) as f32;
    let group = most.div_ceil(most.div_ceil(ROWS));
    let mut spectra = Factors::new(most, group, depth, frequencies);
    for (start, results) in (0..).step_by(most).zip(results.chunks_mut(most)) {
        let n = results.len();
        squares.factors::<L, T>(&mut spectra, start..start + n);
        let pitch = products.of_frequency();
        let each = products.values.par_chunks_mut(pitch).enumerate();
        let each = each.with_min_len(at_least(8 * n * depth * vectors * L));
        each.for_each(|(f, to)| filtered(to, n, f, &spectra, &w));
        let values = products.values.as_flattened().as_flattened();
        let products = &products;
        results.par_iter_mut().enumerate().for_each_init(Columns::<L, T>::new, |columns, (row, to)| {
            for v in 0..vectors {
                let lanes = v * L..channels.min((v + 1) * L);
                let lines = offset..offset + to.len();
                inverse(columns, values, products.place_of(n, row, v), lines, &mut |y, from: &[[f32; L]; T]| {
                    let pixels = to[y - offset].chunks_exact_mut(channels);
                    for (to, from) in pixels.zip(&from[offset..]) {
                        for (to, from) in to[lanes.clone()].iter_mut().zip(from) {
                            *to = scale * from;
                        }
                    }
                });
            }
        });
    }
}

/// The lines of each tile of the results.
fn in_tiles(out: &mut [f32], [height, width, channels]: [usize; 3], tiles: Tiles) -> Vec<Vec<&mut [f32]>> {
    let mut all = vec![];
    for image in out.chunks_mut(height * width * channels) {
        for lines in image.chunks_mut(tiles.step * width * channels) {
            let first = all.len();
            all.extend((0..tiles.across).map(|_| Vec::with_capacity(tiles.step)));
            for line in lines.chunks_mut(width * channels) {
                let parts = line.chunks_mut(tiles.step * channels);
                all[first..].iter_mut().zip(parts).for_each(|(tile, part)| tile.push(part));
            }
        }
    }
    all
}

/// Writes the gradient to the weights.
fn gradient<const L: usize, const T: usize>(
    out: &mut [f32],
    shape: ConvolutionShape,
    x: Squares<'_>,
    hidden: Squares<'_>,
    count: usize,
) {
    let ConvolutionShape { n_filters, channels, size, .. } = shape;
    let (frequencies, vectors) = (x.tiles.frequencies(), n_filters.div_ceil(L));
    let most = (CHUNK / (frequencies * (channels + vectors * L))).max(TERMS);
    let most = count.div_ceil(count.div_ceil(most)).next_multiple_of(TERMS).min(count);
    let mut sums = Products::<L>::new(channels, vectors, frequencies);
    let pitch = sums.of_frequency();
    let group = TERMS.min(most);
    let mut of_x = Factors::new(most, group, channels, frequencies);
    let mut of_hidden = Lanes::<L>::new(most, group, vectors, frequencies);
    for start in (0..count).step_by(most) {
        let at = start..count.min(start + most);
        of_hidden.squares = at.len();
        x.factors::<L, T>(&mut of_x, at.clone());
        hidden.lanes::<L, T>(&mut of_hidden, at.clone());
        let each = sums.values.par_chunks_mut(pitch).enumerate();
        let each = each.with_min_len(at_least(8 * at.len() * channels * vectors * L));
        each.for_each(|(f, to)| summed(to, f, &of_x, &of_hidden));
    }
    let values = sums.values.as_flattened().as_flattened();
    let offset = x.tiles.step - 1;
    let scale = 1. / (4 * T * T) as f32;
    let mut filters = vec![[0f32; L]; vectors * channels * size * size];
    let each = filters.par_chunks_mut(size * size).enumerate();
    each.for_each_init(Columns::<L, T>::new, |columns, (i, to)| {
        let place = sums.place_of(channels, i % channels, i / channels);
        inverse(columns, values, place, offset..offset + size, &mut |y, from: &[[f32; L]; T]| {
            to[(y - offset) * size..][..size].copy_from_slice(&from[offset..][..size]);
        });
    });
    // `[vector, channel, place]` of lanes to `[filter, place, channel]`.
    let depth = shape.filter_len();
    out.par_chunks_mut(depth).enumerate().for_each(|(o, to)| {
        let from = &filters[o / L * depth..][..depth];
        for (place, to) in to.chunks_exact_mut(channels).enumerate() {
            for (c, to) in to.iter_mut().enumerate() {
                *to = scale * from[c * size * size + place][o % L];
            }
        }
    });
}

pub(super) fn forward_with<const L: usize, const T: usize>(shape: ConvolutionShape, maps: &mut [f32], x: &[f32], w: &[f32]) {
    let ConvolutionShape { height, width, channels, n_filters, .. } = shape;
    let Some(tiles) = Tiles::of_maps(shape, T) else { return };
    let sheet = Sheet { values: x, height, width, channels };
    let squares = Squares { sheet, tiles, before: shape.pad(), side: T, turned: false };
    let filters = Filters { values: w, shape, transposed: false };
    correlate::<L, T>(maps, [shape.out_height(), shape.out_width(), n_filters], squares, &filters);
}

pub(super) fn input_with<const L: usize, const T: usize>(shape: ConvolutionShape, images: &mut [f32], hidden: &[f32], w: &[f32]) {
    let ConvolutionShape { height, width, channels, n_filters, size, .. } = shape;
    let Some(tiles) = Tiles::of_images(shape, T) else { return };
    let sheet = Sheet { values: hidden, height: shape.out_height(), width: shape.out_width(), channels: n_filters };
    let squares = Squares { sheet, tiles, before: size - 1 - shape.pad(), side: T, turned: false };
    let filters = Filters { values: w, shape, transposed: true };
    correlate::<L, T>(images, [height, width, channels], squares, &filters);
}

pub(super) fn weights_with<const L: usize, const T: usize>(shape: ConvolutionShape, out: &mut [f32], x: &[f32], hidden: &[f32]) {
    let ConvolutionShape { height, width, channels, n_filters, .. } = shape;
    let Some(tiles) = Tiles::of_maps(shape, T) else { return };
    let count = x.len() / shape.n_visible() * tiles.count();
    let sheet = Sheet { values: x, height, width, channels };
    let x = Squares { sheet, tiles, before: shape.pad(), side: T, turned: false };
    let sheet = Sheet { values: hidden, height: shape.out_height(), width: shape.out_width(), channels: n_filters };
    let hidden = Squares { sheet, tiles, before: 0, side: tiles.step, turned: true };
    gradient::<L, T>(out, shape, x, hidden, count);
}
