//! The search on the CPU.
//!
//! ```text
//! |q − x|² ≥ |C q − C x|²     C: coordinates along the leading directions of the rows, and the length of what they leave
//! ```
//!
//! Products of blocks give the right side for all pairs. The true distances of the rows with the
//! least of it bound the distance of the `k`-th neighbour, and every row whose bound does not
//! exceed that one is looked at: first with more coordinates, then with all features in f32, and
//! those that may be among the `k` in f64. The result is exact whatever the rows are; how many are
//! looked at depends on them. Where the leading directions hold too little, or too many rows are
//! looked at, the coordinates are all features.
//!
//! Rows, and queries that are rows, are taken in the order of a curve through their first three
//! coordinates: the candidates of a query are those of the one before it, and still in the caches.
//!
//! Rows are centred, and of length 1 for the cosine: then `1 − cos = |q − x|² / 2`.
//!
//! The Manhattan, Chebyshev, Hamming and Jaccard distances have no such bound: all pairs are
//! measured in f32.
mod basis;
mod every;
mod scan;
mod space;
mod vectors;
mod visit;

use super::{Entries, Knn, Metric, not_finite};
use candle::Result;
use rayon::prelude::*;
use scan::{Query, Scan};
use space::Space;
pub(super) use space::column_means;
use vectors::{dot_in_f64, square, square_in_f64};

/// Numbers in a block of products.
const BLOCK: usize = 8 << 20;
/// Queries of a block.
const QUERIES: std::ops::RangeInclusive<usize> = 16..=128;
/// Where more than this share of the rows is looked at for the mean query, products of all features
/// are cheaper.
const LOOKED_AT: f64 = 0.1;

impl Knn<'_> {
    pub(super) fn search(
        &self,
        indices: &mut [u32],
        distances: &mut [f32],
        queries: &[f32],
        rows: &[f32],
    ) -> Result<()> {
        if self.entries == Entries::Unknown {
            self.refuse_not_finite("rows", rows)?;
            self.refuse_not_finite("queries", queries)?;
        }
        if self.metric.has_no_product() {
            self.search_every(indices, distances, queries, rows);
            return Ok(());
        }
        let same = std::ptr::eq(queries, rows);
        let pair = Pair::new(self, queries, rows, same);
        let mut space = Space::new(&pair.rows, pair.others(), self.n, self.n_features);
        let mut coordinates = (!same).then(|| space.of(&pair.queries));
        let n_queries = indices.len() / self.k;
        let height = (BLOCK / self.n).clamp(*QUERIES.start(), *QUERIES.end()).min(n_queries.max(1));
        let mut products = vec![0f32; height * self.n];
        let mut found = (vec![0u32; height * self.k], vec![0f32; height * self.k]);
        for first in (0..n_queries).step_by(height) {
            let count = height.min(n_queries - first);
            let products = &mut products[..count * self.n];
            let from = coordinates.as_ref().unwrap_or(&space.rows);
            space.products(products, from, first);
            let scan = Scan { knn: self, pair: &pair, space: &space, queries: from, are_rows: same };
            let each = products.par_chunks_mut(self.n).zip(found.0.par_chunks_mut(self.k));
            let looked_at: usize = each
                .zip(found.1.par_chunks_mut(self.k))
                .enumerate()
                .map_init(Query::default, |query, (i, ((products, indices), distances))| {
                    scan.nearest(query, first + i, products, indices, distances)
                })
                .sum();
            for i in 0..count {
                let (from, to) = (i * self.k..(i + 1) * self.k, scan.query(first + i) * self.k);
                indices[to..to + self.k].copy_from_slice(&found.0[from.clone()]);
                distances[to..to + self.k].copy_from_slice(&found.1[from]);
            }
            let share = looked_at as f64 / (products.len() as f64);
            if space.is_partial() && share > LOOKED_AT {
                space = space.whole(&pair.rows, pair.others());
                coordinates = (!same).then(|| space.of(&pair.queries));
            }
        }
        Ok(())
    }

    fn refuse_not_finite(&self, name: &str, all: &[f32]) -> Result<()> {
        match all.par_iter().position_first(|x| !x.is_finite()) {
            Some(at) => Err(not_finite(name, at / self.n_features, at % self.n_features, all[at])),
            None => Ok(()),
        }
    }
}

/// Queries and rows as they came and as the bounds see them.
struct Pair<'a> {
    /// Whether the distance is the cosine, not the Euclidean one.
    is_cosine: bool,
    n_features: usize,
    given: [&'a [f32]; 2],
    /// Of the cosine, the lengths of both.
    lengths: [Vec<f64>; 2],
    queries: std::borrow::Cow<'a, [f32]>,
    rows: std::borrow::Cow<'a, [f32]>,
}

impl<'a> Pair<'a> {
    fn new(knn: &Knn<'_>, queries: &'a [f32], rows: &'a [f32], same: bool) -> Self {
        let (is_cosine, n_features) = (knn.metric == Metric::Cosine, knn.n_features);
        let given = [queries, rows];
        if !is_cosine || n_features == 0 {
            let lengths = [vec![], vec![]];
            return Self {
                is_cosine,
                n_features,
                given,
                lengths,
                queries: queries.into(),
                rows: rows.into(),
            };
        }
        let (of_rows, unit_rows) = units(rows, n_features);
        let (of_queries, unit_queries) =
            if same { (of_rows.clone(), vec![]) } else { units(queries, n_features) };
        let lengths = [of_queries, of_rows];
        Self { is_cosine, n_features, given, lengths, queries: unit_queries.into(), rows: unit_rows.into() }
    }

    /// The queries that are no rows.
    fn others(&self) -> &[f32] {
        if std::ptr::eq(&*self.queries, &*self.rows) { &[] } else { &self.queries }
    }

    /// The distance of query `i` and row `j`, squared for the Euclidean one.
    fn distance(&self, i: usize, j: usize) -> f64 {
        let [q, x] =
            [(0, i), (1, j)].map(|(of, row)| &self.given[of][row * self.n_features..][..self.n_features]);
        if !self.is_cosine {
            return square_in_f64(q, x);
        }
        let lengths = self.lengths[0].get(i).unwrap_or(&0.) * self.lengths[1].get(j).unwrap_or(&0.);
        if lengths > 0. { (1. - dot_in_f64(q, x) / lengths).max(0.) } else { 1. }
    }

    /// The square of the distance of query `i` and row `j`, of unit rows for the cosine, in f32. A
    /// zero row counts as far as one at a right angle, where its cosine is.
    fn square(&self, i: usize, j: usize) -> f32 {
        if self.is_cosine && self.lengths[1].get(j) == Some(&0.) {
            return 2.;
        }
        let [queries, rows] = match self.is_cosine {
            false => self.given,
            // Queries that are rows are there once.
            true if self.queries.is_empty() => [&*self.rows; 2],
            true => [&*self.queries, &*self.rows],
        };
        let at = |i: usize| i * self.n_features..(i + 1) * self.n_features;
        square(&queries[at(i)], &rows[at(j)])
    }

    /// What no square in f32 exceeds where the true one does not exceed that of a row with this
    /// square, and the other way round.
    fn at_most(&self, square: f32) -> f32 {
        // Each lane adds a sixteenth of the terms; unit rows are rounded.
        let share = 4. * f32::EPSILON * (16. + self.n_features as f32 / 16.);
        let rounded = if self.is_cosine { 16. * f32::EPSILON } else { 0. };
        (square.sqrt() + rounded).powi(2) * (1. + share) + 64. * f32::MIN_POSITIVE
    }

    /// Whether all rows are at distance 1 from query `i`.
    fn is_zero(&self, i: usize) -> bool {
        self.is_cosine && self.lengths[0].get(i).is_none_or(|&length| length == 0.)
    }
}

/// The lengths of rows, and the rows over them; zero rows stay.
pub(super) fn units(rows: &[f32], n_features: usize) -> (Vec<f64>, Vec<f32>) {
    let mut units = vec![0f32; rows.len()];
    let each = units.par_chunks_mut(n_features).zip(rows.par_chunks(n_features));
    let lengths = each.map(|(unit, row)| {
        let length = dot_in_f64(row, row).sqrt();
        if length > 0. {
            unit.iter_mut().zip(row).for_each(|(unit, &x)| *unit = (f64::from(x) / length) as f32);
        }
        length
    });
    (lengths.collect(), units)
}
