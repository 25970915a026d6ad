//! The search in cells.
//!
//! ```text
//! |q − x|² / 2 = |q − c|² / 2 + |x − c|² / 2 − (q − c)·(x − c)        c: the centre of the cell of x
//! ```
//!
//! Rows lie in the order of their cells, less the centres. Rows of one cell are searched together:
//! of each cell that some of them look at, a product of these and the cell's rows gives the right
//! side, and those below the limit of a query enter its list. The distances of the best in f64
//! decide between them.
use super::super::approximate::{Partition, Scores};
use super::scan::Query;
use super::vectors::{distance_in_f64, dot, dot_in_f64, square};
use super::{Knn, Metric, Pair};
use crate::core::op::{Io, Kernel, operands};
use crate::group::Group;
use crate::layers::gemm::Order;
use crate::layers::gemm::cpu::{Operands, product_alone};
use crate::tsne::neighbours::approximate::Tile;
use crate::tsne::neighbours::divided::{joined_, lists};
use crate::tsne::neighbours::{Neighbours, OP};
use candle::{CpuStorage, Result, Tensor};
use multiversion::multiversion;
use rayon::prelude::*;

/// Queries of a tile.
const QUERIES: usize = 512;
/// Products that are made at once: 256 KiB.
const PRODUCTS: usize = 64 << 10;
/// Their columns.
const COLUMNS: std::ops::RangeInclusive<usize> = 128..=2048;
/// Columns that are compared with a limit at once.
const CHUNK: usize = 32;
/// Tiles for each thread between two writes of results.
const TILES: usize = 8;

impl Knn<'_> {
    /// The neighbours of each of `rows` in the `n_cells` cells nearest to it, or of each of the
    /// queries that follow the rows; `points` are what has cells. Each rank of a group searches for
    /// its part of them.
    pub(in super::super) fn visit(
        &self,
        group: &Group,
        rows: &Tensor,
        points: &Tensor,
        partition: &Partition,
        n_cells: usize,
    ) -> Result<Neighbours> {
        #[cfg(feature = "cuda")]
        if rows.device().is_cuda() {
            return self.visit_on_gpu(group, rows, points, partition, n_cells);
        }
        let found = lists(self.n, self.k, rows)?;
        let io = operands(OP).write("indices", &found.indices).write("distances", &found.distances);
        let io = io.read("rows", rows).read("points", points).read("centres", &partition.centres);
        io.run(&Visit { knn: self, group, partition, n_cells: n_cells.min(partition.n_cells()) })?;
        joined_(group, &found)?;
        Ok(found)
    }
}

struct Visit<'a> {
    knn: &'a Knn<'a>,
    group: &'a Group,
    partition: &'a Partition,
    n_cells: usize,
}

impl Kernel for Visit<'_> {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let ([indices, distances], [rows, points, centres]) = io.parts()?;
        let (indices, distances) = (indices.elements::<u32>()?, distances.elements::<f32>()?);
        let search = Search::new(self, rows.elements()?, points.elements()?, centres.elements()?);
        let (k, order) = (self.knn.k, &self.partition.order);
        let mut tiles = self.partition.tiles(QUERIES);
        let own = self.group.part(tiles.len());
        tiles.truncate(own.end);
        tiles.drain(..own.start);
        // The tiles that are searched before results are written; which ones changes nothing.
        for tiles in tiles.chunks(TILES * rayon::current_num_threads()) {
            let found: Vec<(Vec<u32>, Vec<f32>)> = tiles
                .par_iter()
                .map_init(Scratch::default, |scratch, tile| search.tile(scratch, tile))
                .collect();
            for (tile, (found, far)) in tiles.iter().zip(&found) {
                let each = found.chunks_exact(k).zip(far.chunks_exact(k));
                for (&row, (found, far)) in order[tile.queries.clone()].iter().zip(each) {
                    let at = row as usize * k;
                    indices[at..at + k].copy_from_slice(found);
                    distances[at..at + k].copy_from_slice(far);
                }
            }
        }
        Ok(())
    }
}

/// What all tiles share.
struct Search<'a> {
    knn: &'a Knn<'a>,
    partition: &'a Partition,
    n_cells: usize,
    pair: Pair<'a>,
    points: &'a [f32],
    scores: Scores,
    /// Points by cell, scaled, less the centres where products are taken: `[n, d]`.
    by_cell: Vec<f32>,
    /// Half of the square of the length of each; infinite for zero rows under the cosine, which are
    /// not found by cell.
    halves: Vec<f32>,
    /// The first zero rows under the cosine, which are at distance 1 from all.
    zeros: Vec<u32>,
}

/// What a thread works in.
#[derive(Default)]
struct Scratch {
    queries: Vec<f32>,
    scores: Vec<f32>,
    order: Vec<f32>,
    limits: Vec<f32>,
    lists: Vec<List>,
    picks: Vec<u32>,
    /// The queries that look at a cell, less its centre, and half of the square of their lengths.
    moved: Vec<f32>,
    own: Vec<f32>,
    products: Vec<f32>,
    below: Vec<u32>,
    query: Query,
}

/// The best rows of a query so far.
#[derive(Default)]
struct List {
    /// The bits of half of a squared distance, or of a distance, and the row.
    entries: Vec<u64>,
    /// What an entry must be below.
    limit: u64,
}

fn entry(key: f32, row: u32) -> u64 {
    u64::from(key.max(0.).to_bits()) << 32 | u64::from(row)
}

impl List {
    fn clear(&mut self) {
        self.entries.clear();
        self.limit = entry(f32::INFINITY, u32::MAX);
    }

    /// What a key may be at most.
    fn most(&self) -> f32 {
        f32::from_bits((self.limit >> 32) as u32)
    }

    /// Takes an entry; of `room` the best `keep` stay.
    fn add(&mut self, entry: u64, keep: usize, room: usize) {
        if entry < self.limit {
            self.entries.push(entry);
            if self.entries.len() >= room {
                self.best(keep);
            }
        }
    }

    fn best(&mut self, keep: usize) {
        if self.entries.len() > keep {
            self.limit = *self.entries.select_nth_unstable(keep - 1).1;
            self.entries.truncate(keep);
        }
    }
}

impl<'a> Search<'a> {
    fn new(visit: &Visit<'a>, rows: &'a [f32], points: &'a [f32], centres: &[f32]) -> Self {
        let Visit { knn, partition, n_cells, .. } = *visit;
        let (d, is_cosine) = (knn.n_features, knn.metric == Metric::Cosine);
        let by_product = !knn.metric.has_no_product();
        let scores = Scores::new(centres, d, partition.n_cells(), points);
        let lengths: Vec<f64> = match is_cosine {
            true => rows.par_chunks(d.max(1)).map(|row| dot_in_f64(row, row).sqrt()).collect(),
            false => vec![],
        };
        let (mut by_cell, mut halves) = (vec![0f32; knn.n * d], vec![0f32; knn.n]);
        let cells = partition.cell_of_places();
        let each = by_cell.par_chunks_mut(d.max(1)).zip(&mut halves).zip(&partition.order).zip(&cells);
        each.for_each(|(((to, half), &row), &cell)| {
            let (row, about) = (row as usize, &scores.centres[cell as usize * d..][..d]);
            for ((to, x), about) in to.iter_mut().zip(&points[row * d..(row + 1) * d]).zip(about) {
                *to = x * scores.scale - if by_product { *about } else { 0. };
            }
            *half = match is_cosine && lengths[row] == 0. {
                true => f32::INFINITY,
                false if by_product => (0.5 * dot_in_f64(to, to)) as f32,
                false => 0.,
            };
        });
        let is_zero = |row: &u32| lengths.get(*row as usize) == Some(&0.);
        let zeros = (0..partition.n_rows() as u32).filter(is_zero).take(knn.k + 1).collect();
        let pair = Pair {
            is_cosine,
            n_features: d,
            given: [rows, rows],
            lengths: [lengths.clone(), lengths],
            queries: points.into(),
            rows: points.into(),
        };
        Self { knn, partition, n_cells, pair, points, scores, by_cell, halves, zeros }
    }

    /// Entries of a list that stay: more than `k`, for what rounding to f32 may exchange.
    fn keep(&self) -> usize {
        self.knn.k + self.knn.k / 16 + 6
    }

    /// The neighbours of the rows of a tile, in their order.
    fn tile(&self, scratch: &mut Scratch, tile: &Tile) -> (Vec<u32>, Vec<f32>) {
        let (k, d, order) = (self.knn.k, self.knn.n_features, &self.partition.order);
        let rows = &order[tile.queries.clone()];
        let count = rows.len();
        scratch.queries.clear();
        for &row in rows {
            scratch.queries.extend_from_slice(&self.points[row as usize * d..][..d]);
        }
        self.scores.of(&mut scratch.scores, &scratch.queries, count, tile.cell);
        scratch.queries.iter_mut().for_each(|x| *x *= self.scores.scale);
        scratch.lists.resize_with(scratch.lists.len().max(count), List::default);
        scratch.lists[..count].iter_mut().for_each(List::clear);
        let n_cells = self.partition.n_cells();
        scratch.limits.clear();
        for scores in scratch.scores.chunks_exact(n_cells) {
            scratch.order.clear();
            scratch.order.extend_from_slice(scores);
            scratch.limits.push(*scratch.order.select_nth_unstable_by(self.n_cells - 1, f32::total_cmp).1);
        }
        for cell in self.nearest_first(tile.cell) {
            let looks = |&query: &u32| {
                scratch.scores[query as usize * n_cells + cell] <= scratch.limits[query as usize]
            };
            scratch.picks = (0..count as u32).filter(looks).collect();
            let places = if cell == tile.cell { tile.own.clone() } else { self.partition.visible(cell) };
            self.look_at(scratch, cell, places, tile.queries.start);
        }
        let (mut indices, mut distances) = (vec![0; count * k], vec![0f32; count * k]);
        let each = indices.chunks_exact_mut(k).zip(distances.chunks_exact_mut(k));
        for ((query, &row), (indices, distances)) in rows.iter().enumerate().zip(each) {
            self.rank(&mut scratch.lists[query], &mut scratch.query, row, indices, distances);
        }
        (indices, distances)
    }

    /// All cells, by the distance of their centres from that of one.
    fn nearest_first(&self, own: usize) -> Vec<usize> {
        let d = self.knn.n_features;
        let centre = |cell: usize| &self.scores.centres[cell * d..(cell + 1) * d];
        let far: Vec<f32> = (0..self.partition.n_cells())
            .map(|cell| if cell == own { -1. } else { square(centre(own), centre(cell)) })
            .collect();
        let mut cells: Vec<usize> = (0..far.len()).collect();
        cells.sort_by(|&a, &b| far[a].total_cmp(&far[b]).then(a.cmp(&b)));
        cells
    }

    /// Puts the rows at `places`, of one cell, into the lists of the queries that look at it.
    fn look_at(&self, scratch: &mut Scratch, cell: usize, places: std::ops::Range<usize>, first: usize) {
        let (d, picks) = (self.knn.n_features, &scratch.picks);
        if picks.is_empty() {
            return;
        }
        let centre = &self.scores.centres[cell * d..(cell + 1) * d];
        let by_product = !self.knn.metric.has_no_product();
        scratch.moved.clear();
        scratch.own.clear();
        for (i, &pick) in picks.iter().enumerate() {
            let query = scratch.queries[pick as usize * d..][..d].iter().zip(centre);
            scratch.moved.extend(query.map(|(x, centre)| if by_product { x - centre } else { *x }));
            let moved = &scratch.moved[i * d..];
            scratch.own.push(if by_product { 0.5 * dot(moved, moved) } else { 0. });
        }
        let (keep, room) = (self.keep(), 4 * self.keep());
        let width = (PRODUCTS / picks.len()).clamp(*COLUMNS.start(), *COLUMNS.end());
        for start in places.clone().step_by(width) {
            let end = places.end.min(start + width);
            scratch.products.clear();
            scratch.products.resize(picks.len() * (end - start), 0.);
            self.fill(&mut scratch.products, &scratch.moved, &self.by_cell[start * d..end * d], end - start);
            let halves = &self.halves[start..end];
            let each = picks.iter().zip(&scratch.own).zip(scratch.products.chunks(end - start));
            for ((&pick, &own), products) in each {
                let list = &mut scratch.lists[pick as usize];
                below(&mut scratch.below, products, halves, list.most() - own);
                let place = first + pick as usize;
                for &column in &scratch.below {
                    let (at, column) = (start + column as usize, column as usize);
                    // Zero rows under the cosine have another way.
                    if at != place && halves[column] < f32::INFINITY {
                        let key = own + (halves[column] - products[column]);
                        list.add(entry(key, self.partition.order[at]), keep, room);
                    }
                }
            }
        }
    }

    /// Products of queries and rows, or their distances, negative.
    fn fill(&self, products: &mut [f32], queries: &[f32], rows: &[f32], n: usize) {
        let d = self.knn.n_features;
        if self.knn.metric.has_no_product() {
            Knn { n, ..*self.knn }.measure_all(products, queries, rows);
            products.iter_mut().for_each(|x| *x = -*x);
        } else if d > 0 {
            let operands = Operands::of(
                (queries, Order::RowMajor { line: d }),
                (rows, Order::ColumnMajor { line: d }),
                [products.len() / n, n, d],
            );
            product_alone(products, operands);
        }
    }

    /// Writes the nearest of a list by their distances in f64.
    fn rank(&self, list: &mut List, query: &mut Query, row: u32, indices: &mut [u32], distances: &mut [f32]) {
        let (i, d) = (row as usize, self.knn.n_features);
        if self.pair.is_zero(i) {
            let others = (0..self.partition.n_rows() as u32).filter(|&j| j != row);
            indices.iter_mut().zip(others).for_each(|(index, j)| *index = j);
            distances.fill(1.);
            return;
        }
        list.best(self.keep());
        let at = |j: usize| &self.pair.given[0][j * d..(j + 1) * d];
        let distance = |j: usize| match self.knn.metric {
            metric if metric.has_no_product() => distance_in_f64(metric, at(i), at(j)),
            _ => self.pair.distance(i, j),
        };
        query.keys.clear();
        let rows = list.entries.iter().map(|&entry| entry as u32);
        query.keys.extend(rows.map(|j| (distance(j as usize).to_bits(), j)));
        query.keys.extend(self.zeros.iter().map(|&j| (1f64.to_bits(), j)));
        query.write(indices, distances, self.knn.metric == Metric::Euclidean);
    }
}

/// Finds the columns of which `half − product` is at most `most`.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
fn below(found: &mut Vec<u32>, products: &[f32], halves: &[f32], most: f32) {
    found.clear();
    let ((chunks, rest), (halves, rest_halves)) =
        (products.as_chunks::<CHUNK>(), halves.as_chunks::<CHUNK>());
    for (c, (products, halves)) in chunks.iter().zip(halves).enumerate() {
        let mut any = false;
        for l in 0..CHUNK {
            any |= halves[l] - products[l] <= most;
        }
        if any {
            let is_below = |l: &usize| halves[*l] - products[*l] <= most;
            found.extend((0..CHUNK).filter(is_below).map(|l| (c * CHUNK + l) as u32));
        }
    }
    let first = chunks.len() * CHUNK;
    for (l, (product, half)) in rest.iter().zip(rest_halves).enumerate() {
        if half - product <= most {
            found.push((first + l) as u32);
        }
    }
}
