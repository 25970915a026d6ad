//! The ops on the CPU: products of gathered windows, a tile at a time.
//!
//! ```text
//! maps             tile of y = windows(x) wᵀ
//! to the images    for a row of h: products h w, whose rows are added to the image where they lie
//! to the weights   part += hᵀ windows(x), tile after tile; then the parts are added
//! ```
//!
//! A window is the `size² · channels` pixels that a filter sees at a position. Tiles are those of
//! one image and stay in the cache of one thread; they and the order of every sum depend on the
//! sizes only, so that the result is the same bits on any number of threads.
use super::ConvolutionShape;
use crate::layers::gemm::Order;
use crate::layers::gemm::cpu::{Operands, product_alone};
use candle::WithDType;
use multiversion::multiversion;
use rayon::prelude::*;
use std::ops::Range;

/// Entries of the windows of a tile.
const TILE: usize = 256 * 1024;
/// Fewest and most positions of a tile.
const POSITIONS: Range<usize> = 16..384;
/// FLOP that are worth a task.
const GRAIN: usize = 2_000_000;
/// Partial sums of the weights' gradient: threads that can work on it.
pub(super) const PARTS: usize = 32;
/// Tasks of the images' gradient, where there are as many rows.
const TASKS: usize = 64;
/// Weights whose parts are added by one task.
const STRETCH: usize = 4096;

/// Positions of a tile.
fn positions(shape: ConvolutionShape) -> usize {
    (TILE / shape.filter_len()).clamp(POSITIONS.start, POSITIONS.end).min(shape.n_positions())
}

/// Partial sums of the weights' gradient, at least 1.
pub(super) fn places(shape: ConvolutionShape, batch: usize) -> usize {
    (batch * shape.n_positions().div_ceil(positions(shape))).clamp(1, PARTS)
}

/// The part of `n` that lies at one of so many places.
pub(super) fn share_of(n: usize, place: usize, places: usize) -> Range<usize> {
    n * place / places..n * (place + 1) / places
}

/// Tasks of `flop` that are worth waking a thread for.
pub(super) fn at_least(flop: usize) -> usize {
    GRAIN.div_ceil(flop.max(1))
}

/// Copies the windows of positions `at` of an image to rows of `windows`, zeros for what lies
/// beyond the image.
fn gather<T: WithDType>(shape: ConvolutionShape, windows: &mut Vec<T>, x: &[T], at: Range<usize>) {
    let ConvolutionShape { height, width, channels, size, stride, .. } = shape;
    let (pad, line) = (shape.pad(), shape.filter_row());
    windows.resize(at.len() * shape.filter_len(), T::zero());
    for (window, position) in windows.chunks_exact_mut(shape.filter_len()).zip(at) {
        let (oy, ox) = (position / shape.out_width() * stride, position % shape.out_width() * stride);
        // The columns of the window within the image.
        let (first, end) = (pad.saturating_sub(ox), size.min(width + pad - ox));
        let from = (ox + first - pad) * channels;
        for (dy, row) in window.chunks_exact_mut(line).enumerate() {
            let y = (oy + dy).wrapping_sub(pad);
            if y >= height {
                row.fill(T::zero());
                continue;
            }
            row[..first * channels].fill(T::zero());
            row[end * channels..].fill(T::zero());
            let inside = &mut row[first * channels..end * channels];
            inside.copy_from_slice(&x[y * width * channels + from..][..inside.len()]);
        }
    }
}

/// Writes the maps of all images.
pub(super) fn forward<T: WithDType>(shape: ConvolutionShape, maps: &mut [T], x: &[T], w: &[T]) {
    let (tile, n_filters, depth) = (positions(shape), shape.n_filters, shape.filter_len());
    let one = |windows: &mut Vec<T>, image: usize, i: usize, maps: &mut [T]| {
        let rows = maps.len() / n_filters;
        gather(shape, windows, &x[image * shape.n_visible()..], i * tile..i * tile + rows);
        product_alone(
            maps,
            Operands::of(
                (windows, Order::RowMajor { line: depth }),
                (w, Order::ColumnMajor { line: depth }),
                [rows, n_filters, depth],
            ),
        );
    };
    let images = maps.par_chunks_mut(shape.n_hidden()).enumerate().with_min_len(at_least(shape.flop()));
    let least = at_least(2 * tile * n_filters * depth);
    images.for_each(|(image, maps)| {
        let tiles = maps.par_chunks_mut(tile * n_filters).enumerate().with_min_len(least);
        tiles.for_each_init(Vec::new, |windows, (i, maps)| one(windows, image, i, maps));
    });
}

/// Writes the gradient to all images.
pub(super) fn input_gradient<T: WithDType>(shape: ConvolutionShape, images: &mut [T], hidden: &[T], w: &[T]) {
    let batch = images.len() / shape.n_visible();
    let line = shape.width * shape.channels;
    let rows = shape.height.div_ceil(TASKS.div_ceil(batch)).max(shape.size.min(shape.height));
    let tasks = shape.height.div_ceil(rows);
    let least = at_least(shape.flop() / tasks);
    let of_images = images.par_chunks_mut(shape.n_visible()).enumerate().with_min_len(least.div_ceil(tasks));
    of_images.for_each(|(image, v)| {
        let h = &hidden[image * shape.n_hidden()..][..shape.n_hidden()];
        let blocks = v.par_chunks_mut(rows * line).enumerate().with_min_len(least);
        blocks.for_each_init(Vec::new, |products, (i, v)| rows_of_image(shape, products, v, i * rows, h, w));
    });
}

/// Writes the rows of an image from `start` on.
fn rows_of_image<T: WithDType>(
    shape: ConvolutionShape,
    products: &mut Vec<T>,
    v: &mut [T],
    start: usize,
    h: &[T],
    w: &[T],
) {
    let (pad, line, n_filters) = (shape.pad(), shape.filter_row(), shape.n_filters);
    let (end, stride) = (start + v.len() / (shape.width * shape.channels), shape.stride);
    v.fill(T::zero());
    // Row `oy` of the maps reaches row y of the image through row `y + pad − stride · oy` of the
    // filters.
    let first = (start + pad + 1).saturating_sub(shape.size).div_ceil(stride);
    for oy in first..shape.out_height().min((end + pad).div_ceil(stride)) {
        let top = oy * stride;
        let of_filter = (start + pad).saturating_sub(top)..shape.size.min(end + pad - top);
        let cols = of_filter.len() * line;
        products.resize(shape.out_width() * cols, T::zero());
        product_alone(
            products,
            Operands::of(
                (&h[oy * shape.out_width() * n_filters..], Order::RowMajor { line: n_filters }),
                (&w[of_filter.start * line..], Order::RowMajor { line: shape.filter_len() }),
                [shape.out_width(), cols, n_filters],
            ),
        );
        scatter(
            shape,
            &mut v[(top + of_filter.start - pad - start) * shape.width * shape.channels..],
            products,
            cols,
        );
    }
}

/// Adds each row of `products`, some rows of filters, to the rows of an image where its position
/// lies.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
fn scatter<T: WithDType>(shape: ConvolutionShape, v: &mut [T], products: &[T], cols: usize) {
    let ConvolutionShape { width, channels, size, stride, .. } = shape;
    let (pad, line) = (shape.pad(), shape.filter_row());
    for (ox, products) in products.chunks_exact(cols).enumerate() {
        let ox = ox * stride;
        let (first, end) = (pad.saturating_sub(ox), size.min(width + pad - ox));
        let to = (ox + first - pad) * channels;
        for (v, products) in v.chunks_mut(width * channels).zip(products.chunks_exact(line)) {
            let products = &products[first * channels..end * channels];
            let v = &mut v[to..to + products.len()];
            for (v, product) in v.iter_mut().zip(products) {
                *v += *product;
            }
        }
    }
}

/// Writes the partial sums of the gradient to the weights: those of equal shares of the tiles.
pub(super) fn weight_parts<T: WithDType>(
    shape: ConvolutionShape,
    places: usize,
    parts: &mut [T],
    x: &[T],
    hidden: &[T],
) {
    let (tile, n_filters, depth) = (positions(shape), shape.n_filters, shape.filter_len());
    let of_image = shape.n_positions().div_ceil(tile);
    let tiles = x.len() / shape.n_visible() * of_image;
    let one = |windows: &mut Vec<T>, place: usize, part: &mut [T]| {
        let mut beta = T::zero();
        for i in share_of(tiles, place, places) {
            let (image, start) = (i / of_image, i % of_image * tile);
            let at = start..shape.n_positions().min(start + tile);
            gather(shape, windows, &x[image * shape.n_visible()..], at.clone());
            product_alone(
                part,
                Operands {
                    beta,
                    ..Operands::of(
                        (
                            &hidden[image * shape.n_hidden() + start * n_filters..],
                            Order::ColumnMajor { line: n_filters },
                        ),
                        (windows, Order::RowMajor { line: depth }),
                        [n_filters, depth, at.len()],
                    )
                },
            );
            beta = T::one();
        }
        if beta == T::zero() {
            part.fill(beta);
        }
    };
    let parts = parts[..places * n_filters * depth].par_chunks_mut(n_filters * depth).enumerate();
    let least = at_least(x.len() / shape.n_visible() * shape.flop() / places);
    parts.with_min_len(least).for_each_init(Vec::new, |windows, (place, part)| one(windows, place, part));
}

/// `gradient ← alpha · Σ parts + beta · gradient`, the parts from first to last.
pub(super) fn add_parts<T: WithDType>(gradient: &mut [T], parts: &[T], places: usize, alpha: T, beta: T) {
    let len = gradient.len();
    gradient.par_chunks_mut(STRETCH).enumerate().for_each(|(i, gradient)| {
        let mut sum = [T::zero(); STRETCH];
        for part in parts.chunks_exact(len).take(places) {
            for (sum, part) in sum.iter_mut().zip(&part[i * STRETCH..][..gradient.len()]) {
                *sum += *part;
            }
        }
        for (gradient, sum) in gradient.iter_mut().zip(sum) {
            *gradient = if beta == T::zero() { alpha * sum } else { alpha * sum + beta * *gradient };
        }
    });
}
