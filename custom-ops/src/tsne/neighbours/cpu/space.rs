//! Coordinates whose distances bound those of rows from below.
use super::basis::directions;
use super::vectors::{dot_in_f64, square};
use crate::layers::gemm::Order;
use crate::layers::gemm::cpu::{Operands, product};
use crate::tsne::curve_order::order_of;
use rayon::prelude::*;

/// Coordinates of the products, the last of them the length of the rest.
const COORDINATES: usize = 96;
/// Coordinates that are looked at next, the last of them the length of the rest.
const MORE: usize = 128;
/// Features and rows from which on a basis is worth its time.
const LEAST: (usize, usize) = (320, 2048);
/// What sums of products may lose, and their halves, where they are so small that f32 has few digits
/// for them: of rows a 1e18th as long as the longest.
const LOST: f64 = 128. * f32::MIN_POSITIVE as f64;
/// Share of the squares that the coordinates of the products must hold.
const SHARE: f64 = 0.6;

/// Rows or queries by their coordinates.
pub(super) struct Coordinates {
    /// `[n, depth]`
    all: Vec<f32>,
    /// `[n, MORE]`; none where `all` are all features.
    more: Vec<f32>,
    /// The last coordinate of each row by itself, where `all` are not all features.
    rests: Vec<f32>,
    /// Half of the square of each row's length, less what rounding of a product may amount to.
    pub halves: Vec<f32>,
}

/// The coordinates of the rows and how to make others'.
pub(super) struct Space {
    n_features: usize,
    depth: usize,
    mean: Vec<f32>,
    /// A power of two that brings the largest entry of the centred rows near 1, so that squares
    /// neither overflow nor vanish.
    scale: f32,
    /// `[COORDINATES − 1 + MORE − 1, n_features]`; none where the coordinates are all features.
    basis: Vec<f32>,
    pub rows: Coordinates,
    /// The row that each of the coordinates is of.
    pub order: Vec<u32>,
    /// Where each row is in `order`.
    places: Vec<u32>,
}

impl Space {
    /// The space of rows, `[n, n_features]`, and of queries for their range, of leading directions
    /// where that is worth it.
    pub(super) fn new(rows: &[f32], queries: &[f32], n: usize, n_features: usize) -> Self {
        let mut space = Self::with([rows, queries], n, n_features, true);
        if space.is_partial() {
            // Rows that follow each other are near each other, and have the same candidates: these
            // stay in the caches.
            let leading = |row: &[f32]| [row[0], row[1], row[2]];
            let leading: Vec<[f32; 3]> = space.rows.all.chunks_exact(COORDINATES).map(leading).collect();
            space.sort(order_of(&leading));
        }
        space
    }

    /// The space of all features, with the rows in the same order.
    pub(super) fn whole(&self, rows: &[f32], queries: &[f32]) -> Self {
        let mut space = Self::with([rows, queries], self.order.len(), self.n_features, false);
        space.sort(self.order.clone());
        space
    }

    fn sort(&mut self, order: Vec<u32>) {
        let rows = &self.rows;
        let of = |from: &[f32], width: usize| {
            let mut to = vec![0f32; from.len()];
            if width > 0 {
                to.par_chunks_mut(width).zip(&order).for_each(|(to, &i)| {
                    to.copy_from_slice(&from[i as usize * width..][..width]);
                });
            }
            to
        };
        let more = if rows.more.is_empty() { 0 } else { MORE };
        self.rows = Coordinates {
            all: of(&rows.all, self.depth),
            more: of(&rows.more, more),
            rests: of(&rows.rests, usize::from(more > 0)),
            halves: of(&rows.halves, usize::from(!rows.halves.is_empty())),
        };
        order.iter().enumerate().for_each(|(place, &row)| self.places[row as usize] = place as u32);
        self.order = order;
    }

    /// Where a row is among the coordinates.
    pub(super) fn place(&self, row: usize) -> usize {
        self.places[row] as usize
    }

    fn with([rows, queries]: [&[f32]; 2], n: usize, n_features: usize, partial: bool) -> Self {
        let none = Coordinates { all: vec![], more: vec![], rests: vec![], halves: vec![] };
        let mean: Vec<f32> = centre(rows, n_features).into_iter().map(|mean| mean as f32).collect();
        let scale = scale_of([rows, queries], &mean);
        let order: Vec<u32> = (0..n as u32).collect();
        let (basis, places) = (vec![], order.clone());
        let mut space = Self { n_features, depth: n_features, mean, scale, basis, rows: none, order, places };
        let centred = space.centred(rows);
        if partial && n_features >= LEAST.0 && n >= LEAST.1 {
            let count = COORDINATES + MORE - 2;
            let (basis, share) = directions(&centred, n_features, count, COORDINATES - 1);
            if share >= SHARE {
                (space.basis, space.depth) = (basis, COORDINATES);
            }
        }
        space.rows = space.of_centred(centred);
        space
    }

    /// Whether the coordinates are fewer than the features.
    pub(super) fn is_partial(&self) -> bool {
        !self.basis.is_empty()
    }

    /// The coordinates of `queries`, `[n, n_features]`.
    pub(super) fn of(&self, queries: &[f32]) -> Coordinates {
        self.of_centred(self.centred(queries))
    }

    /// `products[i, j]` of query `first + i` and row `j`.
    pub(super) fn products(&self, products: &mut [f32], queries: &Coordinates, first: usize) {
        let n = self.rows.halves.len();
        if self.depth == 0 || n == 0 {
            return products.fill(0.);
        }
        let operands = Operands::of(
            (&queries.all[first * self.depth..], Order::RowMajor { line: self.depth }),
            (&self.rows.all, Order::ColumnMajor { line: self.depth }),
            [products.len() / n, n, self.depth],
        );
        product(products, operands);
    }

    /// A lower bound of the square of the distance of query `i` and row `j`, from that of the
    /// products, which is lower.
    pub(super) fn tighter(&self, queries: &Coordinates, i: usize, j: usize, bound: f32) -> f32 {
        if !self.is_partial() {
            return bound;
        }
        let rests = queries.rests[i] - self.rows.rests[j];
        bound - rests * rests + square(&queries.more[i * MORE..][..MORE], &self.rows.more[j * MORE..][..MORE])
    }

    /// The square of a distance of rows as one of coordinates.
    pub(super) fn scaled(&self, square: f64) -> f64 {
        square * f64::from(self.scale).powi(2)
    }

    /// What rounding of coordinates and products may take from a bound, as a share of the squares
    /// of both lengths: half an eps for each term of a sum, and as much again for what is rounded
    /// once; four times for coordinates, which are such sums themselves.
    fn slack(&self) -> f64 {
        let sums = if self.is_partial() { 4. } else { 1. };
        sums * f64::from(f32::EPSILON) * (64. + self.n_features as f64)
    }

    fn centred(&self, rows: &[f32]) -> Vec<f32> {
        let mut centred = rows.to_vec();
        if self.n_features > 0 {
            centred.par_chunks_mut(self.n_features).for_each(|row| {
                row.iter_mut().zip(&self.mean).for_each(|(x, mean)| *x = *x * self.scale - mean * self.scale);
            });
        }
        centred
    }

    fn of_centred(&self, centred: Vec<f32>) -> Coordinates {
        let d = self.n_features;
        if d == 0 {
            return Coordinates { all: vec![], more: vec![], rests: vec![], halves: vec![] };
        }
        let shrink = 0.5 * (1. - self.slack());
        let lengths: Vec<f64> = centred.par_chunks(d).map(|row| dot_in_f64(row, row)).collect();
        if !self.is_partial() {
            let halves = lengths.iter().map(|square| (shrink * square - LOST) as f32).collect();
            return Coordinates { all: centred, more: vec![], rests: vec![], halves };
        }
        let (n, count) = (lengths.len(), self.basis.len() / d);
        let mut projected = vec![0f32; n * count];
        let operands = Operands::of(
            (&centred[..], Order::RowMajor { line: d }),
            (&self.basis[..], Order::ColumnMajor { line: d }),
            [n, count, d],
        );
        if n > 0 {
            product(&mut projected, operands);
        }
        let (mut all, mut more) = (vec![0f32; n * COORDINATES], vec![0f32; n * MORE]);
        let mut halves = vec![0f32; n];
        let rows = all.par_chunks_mut(COORDINATES).zip(more.par_chunks_mut(MORE)).zip(&mut halves);
        rows.zip(projected.par_chunks(count)).zip(&lengths).for_each(
            |((((all, more), half), from), square)| {
                let (leading, others) = from.split_at(COORDINATES - 1);
                all[..COORDINATES - 1].copy_from_slice(leading);
                more[..MORE - 1].copy_from_slice(others);
                let rest = (square - dot_in_f64(leading, leading)).max(0.);
                all[COORDINATES - 1] = rest.sqrt() as f32;
                more[MORE - 1] = (rest - dot_in_f64(others, others)).max(0.).sqrt() as f32;
                // Leading coordinates and the rest are as long as the row.
                *half = (dot_in_f64(all, all) * 0.5 - self.slack() * 0.5 * square - LOST) as f32;
            },
        );
        let rests = all.chunks_exact(COORDINATES).map(|row| row[COORDINATES - 1]).collect();
        Coordinates { all, more, rests, halves }
    }
}

/// The means of the columns, or their medians over some rows where the means are far from most of
/// these: few rows that are far from all others move a mean away from them, and bounds with it.
fn centre(rows: &[f32], d: usize) -> Vec<f64> {
    const SAMPLE: usize = 1024;
    /// In lengths of the median row.
    const FAR: f64 = 4.;
    let mean = column_means(rows, d);
    if d == 0 || rows.is_empty() {
        return mean;
    }
    let step = (rows.len() / d).div_ceil(SAMPLE);
    let some: Vec<&[f32]> = rows.chunks_exact(d).step_by(step).collect();
    let median = |mut x: Vec<f64>| {
        let middle = x.len() / 2;
        *x.select_nth_unstable_by(middle, f64::total_cmp).1
    };
    let column = |c: usize| median(some.iter().map(|row| row[c].into()).collect());
    let medians: Vec<f64> = (0..d).into_par_iter().map(column).collect();
    let square = |(x, m): (f64, f64)| (x - m) * (x - m);
    let from_medians =
        |row: &&[f32]| row.iter().map(|&x| x.into()).zip(medians.iter().copied()).map(square).sum();
    let usual = median(some.iter().map(from_medians).collect());
    let moved: f64 = mean.iter().copied().zip(medians.iter().copied()).map(square).sum();
    if moved <= FAR * FAR * usual { mean } else { medians }
}

fn scale_of([rows, queries]: [&[f32]; 2], mean: &[f32]) -> f32 {
    let d = mean.len().max(1);
    let each = rows.par_chunks(d).chain(queries.par_chunks(d));
    let largest = each
        .map(|row| row.iter().zip(mean).map(|(&x, &mean)| (0.5 * x - 0.5 * mean).abs()).fold(0., f32::max));
    let largest = largest.reduce(|| 0., f32::max);
    if largest > 0. { (-f64::from(largest).log2().ceil().clamp(-126., 126.)).exp2() as f32 } else { 1. }
}

/// The means of the columns of rows of `d`, in f64 over stretches of rows.
pub(in crate::tsne::neighbours) fn column_means(rows: &[f32], d: usize) -> Vec<f64> {
    /// Rows of a task.
    const ROWS: usize = 512;
    if d == 0 || rows.is_empty() {
        return vec![0.; d];
    }
    let add = |mut sums: Vec<f64>, row: &[f64]| {
        sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
        sums
    };
    let parts: Vec<Vec<f64>> = rows
        .par_chunks(ROWS * d)
        .map(|rows| {
            let mut sums = vec![0f64; d];
            for row in rows.chunks_exact(d) {
                sums.iter_mut().zip(row).for_each(|(sum, &x)| *sum += f64::from(x));
            }
            sums
        })
        .collect();
    let sums = parts.iter().fold(vec![0.; d], |sums, part| add(sums, part));
    sums.iter().map(|sum| sum / (rows.len() / d) as f64).collect()
}
