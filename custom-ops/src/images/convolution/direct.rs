//! The ops on the CPU in f32, for filters side by side: no windows are copied.
//!
//! ```text
//! maps             y[j .. j + R, o .. o + L] += x[j + l, c] w[o .. o + L, k, l, c]         R · L sums in registers
//! to the images    the same of h, with zeros on both sides, and turned filters: lanes are channels
//! to the weights   g[o .. o + L, k, l .. l + R] += h[i, j, o .. o + L] x[i + k, j + l .. l + R]
//! ```
//!
//! Pixels of a line lie together, so that the windows of neighbouring positions overlap in memory:
//! that of the next begins `channels` numbers later. Filters are packed once, [`LANES`] in a
//! vector. Sums and their order depend on the sizes only: the same bits on any number of threads.
use super::ConvolutionShape;
use super::cpu::{PARTS, at_least, share_of};
use crate::core::fused::{fma, fused};
use multiversion::multiversion;
use multiversion::target::target_cfg_f;
use rayon::prelude::*;
use std::ops::Range;

/// Filters of a vector.
const LANES: usize = 16;
/// Positions of a band of lines, about: their maps stay in the cache.
const BAND: usize = 512;

type Lanes = [f32; LANES];

/// Filters in vectors, `[vectors, size, line]`, zeros beyond the last.
struct Bank {
    values: Vec<Lanes>,
    size: usize,
    /// Numbers of a line of a filter.
    line: usize,
    n_filters: usize,
}

impl Bank {
    fn zeros(n_filters: usize, size: usize, line: usize) -> Self {
        let values = vec![[0f32; LANES]; n_filters.div_ceil(LANES) * size * line];
        Self { values, size, line, n_filters }
    }

    /// `of` gives filter, line and place in the line.
    fn new(
        n_filters: usize,
        size: usize,
        line: usize,
        of: impl Fn(usize, usize, usize) -> f32 + Sync,
    ) -> Self {
        let mut bank = Self::zeros(n_filters, size, line);
        let lines = bank.values.par_chunks_mut(line).enumerate().with_min_len(at_least(2 * LANES * line));
        lines.for_each(|(i, values)| {
            let (first, k) = (i / size * LANES, i % size);
            for (t, lanes) in values.iter_mut().enumerate() {
                let there = first..n_filters.min(first + LANES);
                lanes.iter_mut().zip(there).for_each(|(lane, o)| *lane = of(o, k, t));
            }
        });
        bank
    }

    /// Writes the filters one behind the other, `[n_filters, size · line]`.
    fn unpack(&self, out: &mut [f32]) {
        /// Numbers of a filter that are written at once.
        const STRETCH: usize = 16;
        let len = self.size * self.line;
        for (filters, values) in out.chunks_mut(LANES * len).zip(self.values.chunks_exact(len)) {
            for (first, values) in (0..).step_by(STRETCH).zip(values.chunks(STRETCH)) {
                for (l, filter) in filters.chunks_exact_mut(len).enumerate() {
                    let to = filter[first..].iter_mut().zip(values);
                    to.for_each(|(to, lanes)| *to = lanes[l]);
                }
            }
        }
    }

    /// `N` vectors from `v` on.
    fn vectors<const N: usize>(&self, v: usize) -> [&[Lanes]; N] {
        let len = self.size * self.line;
        std::array::from_fn(|n| &self.values[(v + n) * len..][..len])
    }
}

/// Images, and the zeros around them.
#[derive(Clone, Copy)]
struct Frame {
    lines: usize,
    /// Numbers of a line, and zeros before and behind them.
    width: usize,
    sides: [usize; 2],
    /// Lines of zeros above.
    top: usize,
}

/// Lines of an image with zeros on both sides; those above and below are left out.
struct Lines<'a> {
    values: &'a [f32],
    /// Lines that are there, and those of zeros above.
    count: usize,
    top: usize,
    /// Numbers of a line.
    pitch: usize,
}

impl<'a> Lines<'a> {
    /// Lines `at` of an image; with zeros at the sides they are copied to `room`.
    fn new(room: &'a mut Vec<f32>, image: &'a [f32], frame: Frame, at: Range<usize>, top: usize) -> Self {
        let Frame { width, sides: [left, right], .. } = frame;
        let (values, pitch, count) =
            (&image[at.start * width..at.end * width], left + width + right, at.len());
        if pitch == width {
            return Self { values, count, top, pitch };
        }
        room.resize(count * pitch, 0.);
        for (to, line) in room.chunks_exact_mut(pitch).zip(values.chunks_exact(width)) {
            to[..left].fill(0.);
            to[left..left + width].copy_from_slice(line);
            to[left + width..].fill(0.);
        }
        Self { values: room, count, top, pitch }
    }

    /// The lines of filters of `size` that meet lines which are there, for position `y`.
    fn met(&self, y: usize, size: usize) -> Range<usize> {
        self.top.saturating_sub(y)..size.min((self.top + self.count).saturating_sub(y))
    }

    /// The line that line `k` of a filter at `y` meets.
    fn line(&self, y: usize, k: usize) -> &[f32] {
        &self.values[(y + k - self.top) * self.pitch..][..self.pitch]
    }
}

/// Images as filters see them, and maps as turned filters do.
fn frames(shape: ConvolutionShape) -> [Frame; 2] {
    let ConvolutionShape { height, width, channels, n_filters, size, .. } = shape;
    let (before, out_width) = (shape.pad(), shape.out_width());
    let behind = out_width + size - 1 - width - before;
    let sides = [before, behind].map(|columns| columns * channels);
    let image = Frame { lines: height, width: width * channels, sides, top: before };
    let sides = [before, behind].map(|columns| (size - 1 - columns) * n_filters);
    let (lines, width) = (shape.out_height(), out_width * n_filters);
    [image, Frame { lines, width, sides, top: size - 1 - before }]
}

/// Writes the maps of all images; `false` where these sizes are not for it.
pub(super) fn forward(shape: ConvolutionShape, maps: &mut [f32], x: &[f32], w: &[f32]) -> bool {
    if !serves_filters(shape) {
        return false;
    }
    let (line, depth, [frame, _]) = (shape.filter_row(), shape.filter_len(), frames(shape));
    let bank = Bank::new(shape.n_filters, shape.size, line, |o, k, t| w[o * depth + k * line + t]);
    correlate(&bank, shape.channels, (x, frame), maps, [shape.out_height(), shape.out_width()]);
    true
}

/// Writes the gradient to all images; `false` where these sizes are not for it.
pub(super) fn input_gradient(shape: ConvolutionShape, images: &mut [f32], hidden: &[f32], w: &[f32]) -> bool {
    let ConvolutionShape { height, width, size, channels, n_filters, .. } = shape;
    if !serves_channels(shape) {
        return false;
    }
    let (depth, [_, frame]) = (shape.filter_len(), frames(shape));
    let bank = Bank::new(channels, size, size * n_filters, |c, k, t| {
        let (l, o) = (t / n_filters, t % n_filters);
        w[o * depth + ((size - 1 - k) * size + size - 1 - l) * channels + c]
    });
    correlate(&bank, n_filters, (hidden, frame), images, [height, width]);
    true
}

/// Whether maps, and the gradient to the weights, are for it.
pub(super) fn serves_filters(shape: ConvolutionShape) -> bool {
    serves(shape, shape.n_filters, 1.)
}

/// Whether the gradient to images is for it.
pub(super) fn serves_channels(shape: ConvolutionShape) -> bool {
    serves(shape, shape.channels, shape.out_width() as f64 / shape.width as f64)
}

/// Whether filters fill vectors, and positions lie side by side; `share` of the products are not by
/// zeros.
fn serves(shape: ConvolutionShape, lanes: usize, share: f64) -> bool {
    /// The share of useful products from which this takes less time than copied windows.
    const LEAST: f64 = 0.85;
    let filled = lanes as f64 / lanes.next_multiple_of(LANES) as f64;
    shape.stride == 1 && filled * share >= LEAST
}

/// Writes maps of so many lines and columns of all images, whose pixels have `channels`.
fn correlate(
    bank: &Bank,
    channels: usize,
    (x, frame): (&[f32], Frame),
    out: &mut [f32],
    [height, width]: [usize; 2],
) {
    let (of_line, of_image) = (width * bank.n_filters, frame.lines * frame.width);
    let flop = 2 * of_line * bank.size * bank.line;
    let images = out.par_chunks_mut(height * of_line).zip(x.par_chunks(of_image));
    images.with_min_len(at_least(flop * height)).for_each_init(Vec::new, |room, (out, image)| {
        let lines = Lines::new(room, image, frame, 0..frame.lines, frame.top);
        let each = out.par_chunks_mut(of_line).enumerate().with_min_len(at_least(flop));
        each.for_each(|(y, out)| positions(bank, &lines, channels, y, out));
    });
}

/// Writes line `y` of the maps.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+fma", "x86_64+avx2+fma"))]
fn positions(bank: &Bank, lines: &Lines<'_>, channels: usize, y: usize, out: &mut [f32]) {
    const FUSED: bool = fused!();
    // As many sums as registers hold.
    const MANY: bool = target_cfg_f!(target_feature = "avx512f");
    let (vectors, width) = (bank.n_filters.div_ceil(LANES), out.len() / bank.n_filters);
    let mut v = 0;
    while v < vectors {
        let two = MANY && v + 1 < vectors;
        match (two, width) {
            (true, 12..) => stretch::<12, 2, FUSED>(bank, lines, channels, (y, v), out),
            (true, 4..) => stretch::<4, 2, FUSED>(bank, lines, channels, (y, v), out),
            (true, _) => stretch::<1, 2, FUSED>(bank, lines, channels, (y, v), out),
            (false, 12..) if MANY => stretch::<12, 1, FUSED>(bank, lines, channels, (y, v), out),
            (false, 6..) => stretch::<6, 1, FUSED>(bank, lines, channels, (y, v), out),
            (false, _) => stretch::<1, 1, FUSED>(bank, lines, channels, (y, v), out),
        }
        v += if two { 2 } else { 1 };
    }
}

/// The same for `N` vectors of filters from `v` on, `R` positions at a time. The last ones may be
/// made twice.
#[inline(always)]
fn stretch<const R: usize, const N: usize, const FUSED: bool>(
    bank: &Bank,
    lines: &Lines<'_>,
    channels: usize,
    (y, v): (usize, usize),
    out: &mut [f32],
) {
    let &Bank { size, line, n_filters, .. } = bank;
    let (w, width, met) = (bank.vectors::<N>(v), out.len() / n_filters, lines.met(y, size));
    let lanes = v * LANES..n_filters.min((v + N) * LANES);
    for start in (0..width).step_by(R) {
        let start = start.min(width - R);
        let mut sums = [[[0f32; LANES]; N]; R];
        let each = met.clone().map(|k| {
            let of_line = |n: usize| &w[n][k * line..][..line];
            (&lines.line(y, k)[start * channels..], std::array::from_fn(of_line))
        });
        add_products::<R, N, FUSED>(&mut sums, [1, channels], each);
        for (i, sums) in sums.iter().enumerate() {
            let to = &mut out[(start + i) * n_filters..][lanes.clone()];
            to.copy_from_slice(&sums.as_flattened()[..to.len()]);
        }
    }
}

/// `sums[i] += Σ_s x[s · step + i · beside] w[s]`, of each pair `x`, `w`.
#[inline(always)]
fn add_products<'a, const R: usize, const N: usize, const FUSED: bool>(
    sums: &mut [[Lanes; N]; R],
    [step, beside]: [usize; 2],
    each: impl Iterator<Item = (&'a [f32], [&'a [Lanes]; N])>,
) {
    // Copies, which stay in registers.
    let mut own = *sums;
    for (x, w) in each {
        let count = w[0].len();
        let (x, w) = (&x[..(count - 1) * step + (R - 1) * beside + 1], w.map(|w| &w[..count]));
        for s in 0..count {
            let w: [Lanes; N] = std::array::from_fn(|n| w[n][s]);
            for i in 0..R {
                let x = x[s * step + i * beside];
                for n in 0..N {
                    for l in 0..LANES {
                        own[i][n][l] = fma::<f32, FUSED>(x, w[n][l], own[i][n][l]);
                    }
                }
            }
        }
    }
    *sums = own;
}

/// Lines of maps in a band, and bands of an image.
fn bands(shape: ConvolutionShape) -> [usize; 2] {
    let band = (BAND / shape.out_width()).clamp(1, shape.out_height());
    [band, shape.out_height().div_ceil(band)]
}

/// Partial sums of the weights' gradient, at least 1; none where these sizes are not for it.
pub(super) fn places(shape: ConvolutionShape, batch: usize) -> Option<usize> {
    let [_, of_image] = bands(shape);
    serves_filters(shape).then(|| (batch * of_image).clamp(1, PARTS))
}

/// Writes the partial sums of the gradient to the weights, those of equal shares of the bands of
/// lines; `false` where these sizes are not for it.
pub(super) fn weight_parts(
    shape: ConvolutionShape,
    places: usize,
    parts: &mut [f32],
    x: &[f32],
    hidden: &[f32],
) -> bool {
    if !serves_filters(shape) {
        return false;
    }
    let (line, depth, n_filters) = (shape.filter_row(), shape.filter_len(), shape.n_filters);
    let (size, of_line, [frame, _]) = (shape.size, shape.out_width() * n_filters, frames(shape));
    let [band, of_image] = bands(shape);
    let batch = x.len() / shape.n_visible();
    let one = |(maps, room): &mut (Vec<Lanes>, Vec<f32>), place: usize, part: &mut [f32]| {
        let mut sums = Bank::zeros(n_filters, size, line);
        for i in share_of(batch * of_image, place, places) {
            let (image, first) = (i / of_image, i % of_image * band);
            let end = shape.out_height().min(first + band);
            // Lines of the image that positions of the band meet.
            let there =
                first.saturating_sub(frame.top)..shape.height.min((end + size - 1).saturating_sub(frame.top));
            let image_of = &x[image * shape.n_visible()..][..shape.n_visible()];
            let lines = Lines::new(room, image_of, frame, there, frame.top.saturating_sub(first));
            let of_band = image * shape.n_hidden() + first * of_line;
            in_vectors(maps, &hidden[of_band..][..(end - first) * of_line], n_filters);
            add_band(&mut sums, &lines, shape.channels, maps, end - first);
        }
        sums.unpack(part);
    };
    let parts = parts[..places * n_filters * depth].par_chunks_mut(n_filters * depth).enumerate();
    let least = at_least(batch * shape.flop() / places);
    let room = <(Vec<Lanes>, Vec<f32>)>::default;
    parts.with_min_len(least).for_each_init(room, |room, (place, part)| one(room, place, part));
    true
}

/// Maps, `[positions, n_filters]`, in vectors of filters: `[vectors, positions]`.
fn in_vectors(to: &mut Vec<Lanes>, maps: &[f32], n_filters: usize) {
    let n = maps.len() / n_filters;
    to.clear();
    to.resize(n_filters.div_ceil(LANES) * n, [0.; LANES]);
    for (v, to) in to.chunks_exact_mut(n).enumerate() {
        let lanes = v * LANES..n_filters.min((v + 1) * LANES);
        for (to, maps) in to.iter_mut().zip(maps.chunks_exact(n_filters)) {
            to[..lanes.len()].copy_from_slice(&maps[lanes.clone()]);
        }
    }
}

/// Adds the products of `rows` lines of maps with what they meet.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+fma", "x86_64+avx2+fma"))]
fn add_band(sums: &mut Bank, lines: &Lines<'_>, channels: usize, maps: &[Lanes], rows: usize) {
    const FUSED: bool = fused!();
    const MANY: bool = target_cfg_f!(target_feature = "avx512f");
    let vectors = sums.n_filters.div_ceil(LANES);
    let mut v = 0;
    while v < vectors {
        let two = MANY && v + 1 < vectors;
        for k in 0..sums.size {
            let mut t = 0;
            while t < sums.line {
                let (at, left) = ((v, k, t), sums.line - t);
                t += match (two, left) {
                    (true, _) if sums.line >= 12 => {
                        add_stretch::<12, 2, FUSED>(sums, lines, channels, maps, rows, at)
                    }
                    (true, 9..) => add_stretch::<9, 2, FUSED>(sums, lines, channels, maps, rows, at),
                    (true, 4..) => add_stretch::<4, 2, FUSED>(sums, lines, channels, maps, rows, at),
                    (true, _) => add_stretch::<1, 2, FUSED>(sums, lines, channels, maps, rows, at),
                    (false, _) if MANY && sums.line >= 12 => {
                        add_stretch::<12, 1, FUSED>(sums, lines, channels, maps, rows, at)
                    }
                    (false, 6..) => add_stretch::<6, 1, FUSED>(sums, lines, channels, maps, rows, at),
                    (false, _) => add_stretch::<1, 1, FUSED>(sums, lines, channels, maps, rows, at),
                }
            }
        }
        v += if two { 2 } else { 1 };
    }
}

/// The same for `N` vectors of filters from `v` on and `R` numbers of line `k` of theirs from `t`
/// on; returns how many. Where less than `R` are left, those before them are added up in vain.
#[inline(always)]
fn add_stretch<const R: usize, const N: usize, const FUSED: bool>(
    to: &mut Bank,
    lines: &Lines<'_>,
    channels: usize,
    maps: &[Lanes],
    rows: usize,
    (v, k, t): (usize, usize, usize),
) -> usize {
    let n = maps.len() / to.n_filters.div_ceil(LANES);
    let (width, first) = (n / rows, t.min(to.line - R));
    let (place, len) = (k * to.line + first, to.size * to.line);
    let mut sums = [[[0f32; LANES]; N]; R];
    for (n, of) in to.vectors::<N>(v).into_iter().enumerate() {
        sums.iter_mut().zip(&of[place..]).for_each(|(sums, of)| sums[n] = *of);
    }
    let each = (0..rows).filter(|&y| lines.met(y, to.size).contains(&k)).map(|y| {
        let of_line = |of: usize| &maps[(v + of) * n + y * width..][..width];
        (&lines.line(y, k)[first..], std::array::from_fn(of_line))
    });
    add_products::<R, N, FUSED>(&mut sums, [channels, 1], each);
    for (i, sums) in sums.iter().enumerate().skip(t - first) {
        for (n, sums) in sums.iter().enumerate() {
            to.values[(v + n) * len + place + i] = *sums;
        }
    }
    R - (t - first)
}
