//! The ops on the CPU in f32 by Fourier transforms of tiles, see [`tiles`](super::tiles).
//!
//! ```text
//! lines of squares        images, or maps, to half-made transforms, a task for some lanes of a square
//! columns, products       of one column of some squares: transforms, products with those of filters, and back
//! lines of results        to maps, or images
//! ```
//!
//! A filter that lies turned in its square gives the conjugate of its transform but for a shift,
//! so that all three ops are plain products: results of the first two begin at `size − 1`, those
//! of the third at `step − 1`. Lanes are numbers side by side: channels, or filters. Squares are
//! taken in chunks of as much memory as caches hold. Chunks, groups and the order of every sum
//! depend on the sizes only: the same bits on any number of threads.
use super::ConvolutionShape;
use super::cpu::at_least;
use super::tiles::Tiles;
use crate::core::vector::is_widest;
use plan::{Op, side};
use products::{Filters, Room, filter_column, sum_column};
use rayon::prelude::*;
use squares::{Column, Piece, Place, Results, columns_of, lines_of, transform_columns, transform_lines};
use std::ops::Range;

mod fourier;
mod plan;
mod products;
mod squares;
#[cfg(test)]
mod tests;

/// Complex numbers of the squares that are worked on at once, and of a column of a group of them,
/// which lies in the cache of a thread.
const CHUNK: usize = 1 << 18;
const GROUP: usize = 1 << 15;
/// Fewest squares of a group: spectra of filters are read for each.
const FEWEST: usize = 12;

/// Images or maps under tiles.
#[derive(Clone, Copy)]
struct Sheet<'a> {
    values: &'a [f32],
    height: usize,
    width: usize,
    channels: usize,
}

impl Sheet<'_> {
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
    /// Lines and columns by which the first begins before the image.
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

    /// Transforms the lines of squares `at`, in groups of `group`: `[group, block, T/2 + 1]`, a
    /// block for `L` numbers of a group.
    fn in_numbers<const L: usize, const T: usize>(
        &self,
        to: &mut [Column<L, T>],
        at: Range<usize>,
        group: usize,
    ) {
        let channels = self.sheet.channels;
        let of_group = (group * channels).div_ceil(L);
        let blocks = to.par_chunks_mut(T / 2 + 1).take(at.len().div_ceil(group) * of_group).enumerate();
        blocks.with_min_len(at_least(of_square(T) * L)).for_each_init(Vec::new, |pieces, (i, to)| {
            let first = at.start + i / of_group * group;
            let numbers = group.min(at.end - first) * channels;
            let start = i % of_group * L;
            let (mut number, end) = (start, numbers.min(start + L));
            pieces.clear();
            while number < end {
                let (square, channel) = (number / channels, number % channels);
                let n = (channels - channel).min(end - number);
                let lanes = number - start..number - start + n;
                pieces.push(self.piece(first + square, (lanes, channel)));
                number += n;
            }
            transform_lines::<L, T>(self.sheet.values, pieces, to);
        });
    }

    /// The same, a block for each vector of lanes of a square: `[square, vector, T/2 + 1]`.
    fn in_lanes<const L: usize, const T: usize>(&self, to: &mut [Column<L, T>], at: Range<usize>) {
        let channels = self.sheet.channels;
        let vectors = channels.div_ceil(L);
        let blocks = to.par_chunks_mut(T / 2 + 1).take(at.len() * vectors).enumerate();
        blocks.with_min_len(at_least(of_square(T) * L)).for_each(|(i, to)| {
            let (square, v) = (i / vectors, i % vectors);
            let lanes = 0..L.min(channels - v * L);
            let pieces = [self.piece(at.start + square, (lanes, v * L))];
            transform_lines::<L, T>(self.sheet.values, &pieces, to);
        });
    }
}

/// FLOP of the transform of a square, about.
fn of_square(side: usize) -> usize {
    5 * side * side * side.ilog2() as usize
}

/// Columns that are not yet set.
fn columns<const L: usize, const T: usize>(n: usize) -> Vec<Column<L, T>> {
    vec![[[[0f32; L]; T]; 2]; n]
}

/// Filters that are laid over images.
struct Bank<'a> {
    values: &'a [f32],
    shape: ConvolutionShape,
    /// Whether sums are over filters, and lanes are channels; filters are not turned then.
    transposed: bool,
}

impl Bank<'_> {
    /// The spectra of all, `[term, vector of results]`.
    fn spectra<const L: usize, const T: usize>(&self, terms: usize, vectors: usize) -> Filters<L> {
        let mut filters = Filters::<L>::new(terms, vectors, T * (T / 2 + 1));
        let mut values = std::mem::take(&mut filters.values);
        let each = values.par_chunks_mut(filters.of_vector()).enumerate();
        each.for_each_init(
            || columns::<L, T>(T / 2 + 1),
            |columns, (i, to)| {
                let (group, v) = (i / vectors, i % vectors);
                let to = to.as_flattened_mut().as_flattened_mut();
                for (i, term) in filters.of_group(group).enumerate() {
                    transform_lines(self.values, &[self.piece::<L>(term, v)], columns);
                    transform_columns(columns, to, filters.place(i));
                }
            },
        );
        filters.values = values;
        filters
    }

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
    bank: &Bank<'_>,
) {
    let (depth, vectors, of_square) = (squares.sheet.channels, channels.div_ceil(L), T / 2 + 1);
    let w = bank.spectra::<L, T>(depth, vectors);
    let mut tiles = in_tiles(out, [height, width, channels], squares.tiles);
    let [most, group] = shares(tiles.len(), T, depth + vectors * L);
    let (of_group, groups) = ((group * depth).div_ceil(L) * of_square, most.div_ceil(group));
    let mut lines = columns::<L, T>(groups * of_group);
    // `[column, square, vector]`
    let mut results = columns::<L, T>(of_square * groups * group * vectors);
    let (scale, offset) = (1. / (4 * T * T) as f32, bank.shape.size - 1);
    for (start, tiles) in (0..).step_by(most).zip(tiles.chunks_mut(most)) {
        let n = tiles.len();
        squares.in_numbers(&mut lines, start..start + n, group);
        let each = results.par_chunks_mut(group * vectors).enumerate();
        let each = each.with_min_len(at_least(8 * T * group * depth * vectors * L));
        each.for_each_init(Room::default, |room, (i, to)| {
            let (k, i) = (i / groups, i % groups);
            let squares = group.min(n.saturating_sub(i * group));
            if squares > 0 {
                filter_column(room, (k, squares), &lines[i * of_group..][..of_group], &w, to);
            }
        });
        let each = tiles.par_iter_mut().enumerate().with_min_len(at_least(self::of_square(T) * vectors * L));
        each.for_each(|(square, to)| {
            for v in 0..vectors {
                let column = |k: usize| &results[(k * groups * group + square) * vectors + v];
                let lanes = v * L..channels.min((v + 1) * L);
                let first = [offset, offset];
                lines_of(&column, Results { lines: to, pixel: channels, lanes, first, scale });
            }
        });
    }
}

/// Squares that are worked on at once, of so many, and those of a group, for `numbers` of each
/// place of a square.
fn shares(squares: usize, side: usize, numbers: usize) -> [usize; 2] {
    let even = |n: usize, most: usize| n.div_ceil(n.div_ceil(most.max(FEWEST).min(n)));
    let most = even(squares, CHUNK / (side * (side / 2 + 1) * numbers));
    [most, even(most, GROUP / (side * numbers))]
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

/// Writes the gradient to the weights from `count` squares.
fn gradient<const L: usize, const T: usize>(
    out: &mut [f32],
    shape: ConvolutionShape,
    x: Squares<'_>,
    hidden: Squares<'_>,
    count: usize,
) {
    let ConvolutionShape { n_filters, channels, size, .. } = shape;
    let (vectors, of_square) = (n_filters.div_ceil(L), T / 2 + 1);
    let [most, group] = shares(count, T, channels + vectors * L);
    let (of_group, groups) = ((group * channels).div_ceil(L) * of_square, most.div_ceil(group));
    let mut of_x = columns::<L, T>(groups * of_group);
    let mut of_hidden = columns::<L, T>(most * vectors * of_square);
    // `[frequency, vector, channel]`, and one more to keep frequencies apart.
    let of_frequency = (vectors * channels) | 1;
    let mut sums = vec![[[0f32; L]; 2]; T * of_square * of_frequency];
    for start in (0..count).step_by(most) {
        let at = start..count.min(start + most);
        x.in_numbers(&mut of_x, at.clone(), group);
        hidden.in_lanes(&mut of_hidden, at.clone());
        let each = sums.par_chunks_mut(T * of_frequency).enumerate();
        let each = each.with_min_len(at_least(8 * T * at.len() * channels * vectors * L));
        each.for_each_init(Room::default, |room, (k, to)| {
            for (i, first) in (0..at.len()).step_by(group).enumerate() {
                let squares = group.min(at.len() - first);
                let h = &of_hidden[first * vectors * of_square..];
                sum_column(room, (k, squares, channels, vectors), &of_x[i * of_group..][..of_group], h, to);
            }
        });
    }
    let values = sums.as_flattened().as_flattened();
    let offset = x.tiles.step - 1;
    let scale = 1. / (4 * T * T) as f32;
    let mut filters = vec![[0f32; L]; vectors * channels * size * size];
    let each = filters.par_chunks_mut(size * size).enumerate().with_min_len(at_least(self::of_square(T) * L));
    each.for_each_init(
        || columns::<L, T>(of_square),
        |columns, (i, to)| {
            columns_of(values, Place { at: 2 * L * i, imaginary: L, pitch: 2 * L * of_frequency }, columns);
            let mut lines: Vec<&mut [f32]> = to.as_flattened_mut().chunks_exact_mut(size * L).collect();
            let first = [offset, offset];
            lines_of(
                &|k: usize| &columns[k],
                Results { lines: &mut lines, pixel: L, lanes: 0..L, first, scale },
            );
        },
    );
    // `[vector, channel, place]` of lanes to `[filter, place, channel]`.
    let depth = shape.filter_len();
    out.par_chunks_mut(depth).enumerate().for_each(|(o, to)| {
        let from = &filters[o / L * depth..][..depth];
        for (place, to) in to.chunks_exact_mut(channels).enumerate() {
            for (c, to) in to.iter_mut().enumerate() {
                *to = from[c * size * size + place][o % L];
            }
        }
    });
}

/// Calls a function for the lanes of this processor and a side of tiles.
macro_rules! with_side {
    ($function:ident, $side:expr, $($argument:expr),*) => {
        match ($side, is_widest()) {
            (16, true) => $function::<16, 16>($($argument),*),
            (16, false) => $function::<8, 16>($($argument),*),
            (_, true) => $function::<16, 32>($($argument),*),
            (_, false) => $function::<8, 32>($($argument),*),
        }
    };
}

/// Tiles of an op for a batch, where transforms are for these sizes.
fn tiles(op: Op, shape: ConvolutionShape, batch: usize) -> Option<Tiles> {
    let side = side(op, shape, batch, if is_widest() { 16 } else { 8 })?;
    match op {
        Op::Maps | Op::Weights => Tiles::of_maps(shape, side),
        Op::Images => Tiles::of_images(shape, side),
    }
}

/// Images, and the maps.
fn sheets<'a>(shape: ConvolutionShape, x: &'a [f32], hidden: &'a [f32]) -> [Sheet<'a>; 2] {
    let ConvolutionShape { height, width, channels, n_filters, .. } = shape;
    let maps = [shape.out_height(), shape.out_width(), n_filters];
    [(x, [height, width, channels]), (hidden, maps)].map(|(values, [height, width, channels])| Sheet {
        values,
        height,
        width,
        channels,
    })
}

/// Writes the maps of all images; `false` where these sizes are not for it.
pub(super) fn forward(shape: ConvolutionShape, maps: &mut [f32], x: &[f32], w: &[f32]) -> bool {
    let Some(tiles) = tiles(Op::Maps, shape, x.len() / shape.n_visible()) else { return false };
    with_side!(forward_by, tiles.side, shape, tiles, maps, x, w);
    true
}

fn forward_by<const L: usize, const T: usize>(
    shape: ConvolutionShape,
    tiles: Tiles,
    maps: &mut [f32],
    x: &[f32],
    w: &[f32],
) {
    let [sheet, _] = sheets(shape, x, &[]);
    let squares = Squares { sheet, tiles, before: shape.pad(), side: T, turned: false };
    let bank = Bank { values: w, shape, transposed: false };
    let size = [shape.out_height(), shape.out_width(), shape.n_filters];
    correlate::<L, T>(maps, size, squares, &bank);
}

/// Writes the gradient to all images; `false` where these sizes are not for it.
pub(super) fn input_gradient(shape: ConvolutionShape, images: &mut [f32], hidden: &[f32], w: &[f32]) -> bool {
    let Some(tiles) = tiles(Op::Images, shape, hidden.len() / shape.n_hidden()) else { return false };
    with_side!(input_gradient_by, tiles.side, shape, tiles, images, hidden, w);
    true
}

fn input_gradient_by<const L: usize, const T: usize>(
    shape: ConvolutionShape,
    tiles: Tiles,
    images: &mut [f32],
    hidden: &[f32],
    w: &[f32],
) {
    let [_, sheet] = sheets(shape, &[], hidden);
    let squares = Squares { sheet, tiles, before: shape.size - 1 - shape.pad(), side: T, turned: false };
    let bank = Bank { values: w, shape, transposed: true };
    correlate::<L, T>(images, [shape.height, shape.width, shape.channels], squares, &bank);
}

/// Partial sums of the weights' gradient: one; none where these sizes are not for it.
pub(super) fn places(shape: ConvolutionShape, batch: usize) -> Option<usize> {
    tiles(Op::Weights, shape, batch).map(|_| 1)
}

/// Writes the only partial sum of the gradient to the weights; `false` where these sizes are not
/// for it.
pub(super) fn weight_parts(shape: ConvolutionShape, parts: &mut [f32], x: &[f32], hidden: &[f32]) -> bool {
    let Some(tiles) = tiles(Op::Weights, shape, x.len() / shape.n_visible()) else { return false };
    let part = &mut parts[..shape.n_filters * shape.filter_len()];
    with_side!(weights_by, tiles.side, shape, tiles, part, x, hidden);
    true
}

fn weights_by<const L: usize, const T: usize>(
    shape: ConvolutionShape,
    tiles: Tiles,
    out: &mut [f32],
    x: &[f32],
    hidden: &[f32],
) {
    let count = x.len() / shape.n_visible() * tiles.count();
    let [sheet, maps] = sheets(shape, x, hidden);
    let x = Squares { sheet, tiles, before: shape.pad(), side: T, turned: false };
    let hidden = Squares { sheet: maps, tiles, before: 0, side: tiles.step, turned: true };
    gradient::<L, T>(out, shape, x, hidden, count);
}
