//! Distances that no product gives: every pair in f32, and those that may be among the nearest in
//! f64.
use super::Knn;
use super::scan::Query;
use super::vectors::{distance_in_f64, four_distances_of};
use rayon::prelude::*;

/// Queries of a task: rows that are in the caches serve them all.
const QUERIES: usize = 8;
/// Numbers in a block of rows, 128 KiB.
const BLOCK: usize = 32 << 10;

impl Knn<'_> {
    /// Writes the neighbours of finite `queries` among finite `rows`.
    pub(super) fn search_every(
        &self,
        indices: &mut [u32],
        distances: &mut [f32],
        queries: &[f32],
        rows: &[f32],
    ) {
        let (k, d) = (self.k, self.n_features);
        let tasks = indices.par_chunks_mut(QUERIES * k).zip(distances.par_chunks_mut(QUERIES * k));
        tasks.enumerate().for_each_init(
            || (vec![0f32; QUERIES * self.n], Query::default()),
            |(all, query), (task, (indices, distances))| {
                let (first, count) = (task * QUERIES, indices.len() / k);
                let queries = &queries[first * d..(first + count) * d];
                let all = &mut all[..count * self.n];
                self.measure_all(all, queries, rows);
                let each = all.chunks_exact(self.n).zip(indices.chunks_exact_mut(k));
                for (i, ((all, indices), distances)) in each.zip(distances.chunks_exact_mut(k)).enumerate() {
                    self.select(query, all, first + i, &queries[i * d..(i + 1) * d], rows);
                    query.write(indices, distances, false);
                }
            },
        );
    }

    /// The distances of all pairs in f32, `[queries, n]`, by blocks of rows.
    pub(in super::super) fn measure_all(&self, all: &mut [f32], queries: &[f32], rows: &[f32]) {
        let (n, d) = (self.n, self.n_features);
        let height = (BLOCK / d.max(1)).max(4).next_multiple_of(4);
        let four = four_distances_of(self.metric);
        // The last rows are compared with as many that are none.
        let mut padded = rows[n / 4 * 4 * d..].to_vec();
        padded.resize(4 * d, 0.);
        for start in (0..n).step_by(height) {
            let end = n.min(start + height);
            for (i, all) in all.chunks_exact_mut(n).enumerate() {
                let query = &queries[i * d..(i + 1) * d];
                let (fours, rest) = all[start..end].as_chunks_mut::<4>();
                for (f, to) in fours.iter_mut().enumerate() {
                    let from = start + 4 * f;
                    *to = four(query, &rows[from * d..(from + 4) * d]);
                }
                if !rest.is_empty() {
                    rest.iter_mut().zip(four(query, &padded)).for_each(|(to, last)| *to = last);
                }
            }
        }
    }

    /// Finds the `k` nearest rows of query `i`, from its distances in f32.
    fn select(&self, query: &mut Query, all: &[f32], i: usize, own: &[f32], rows: &[f32]) {
        let (k, d) = (self.k, self.n_features);
        let left_out = self.left_out.of(i);
        let is_other = |&j: &u32| left_out != Some(j as usize);
        query.least_of(all);
        // One more, because the row itself may count.
        let first = query.threshold(k + 1);
        query.near.clear();
        let add = |query: &mut Query, above: f32, most: f32| {
            query.rows_in(all, above, most);
            query.rows.retain(is_other);
            query.near.extend(query.rows.iter().map(|&j| (all[j as usize], j)));
        };
        add(query, f32::NEG_INFINITY, first);
        let most = self.at_most_in_f32(query.farthest(k));
        if most > first {
            add(query, first, most);
        }
        query.keys.clear();
        for &(_, j) in query.near.iter().filter(|(distance, _)| *distance <= most) {
            let row = &rows[j as usize * d..(j as usize + 1) * d];
            query.keys.push((distance_in_f64(self.metric, own, row).to_bits(), j));
        }
    }

    /// What no distance in f32 exceeds where the true one does not exceed that of a row with this
    /// distance.
    fn at_most_in_f32(&self, distance: f32) -> f32 {
        // Each lane adds a sixteenth of the terms, and then the lanes are added.
        let share = 4. * f32::EPSILON * (16. + self.n_features as f32 / 16.);
        distance * (1. + share) + 64. * f32::MIN_POSITIVE
    }
}
