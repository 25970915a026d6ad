//! The neighbours of one query, from its row of products.
use super::space::{Coordinates, Space};
use super::{Knn, Pair};
use multiversion::multiversion;

/// Rows whose least bound stands for them.
const CHUNK: usize = 16;

/// A call, a space, and the coordinates of its queries, which are rows in the order of the space or
/// others in their own.
pub(super) struct Scan<'a> {
    pub knn: &'a Knn<'a>,
    pub pair: &'a Pair<'a>,
    pub space: &'a Space,
    pub queries: &'a Coordinates,
    pub are_rows: bool,
}

/// The bits of a distance, which is not negative, and its row.
pub(super) type Key = (u64, u32);

/// Memory of a query.
#[derive(Default)]
pub(super) struct Query {
    /// The least `half − product` of each chunk of rows: half of the bound's square, but for the
    /// query's own part.
    least: Vec<f32>,
    order: Vec<f32>,
    /// Rows to look at.
    pub rows: Vec<u32>,
    /// The squares of their distances, or these, in f32, and the rows.
    pub near: Vec<(f32, u32)>,
    /// Distances in f64 and rows, in the order of both.
    pub keys: Vec<Key>,
}

impl Scan<'_> {
    /// The query whose coordinates are the `i`-th.
    pub(super) fn query(&self, i: usize) -> usize {
        if self.are_rows { self.space.order[i] as usize } else { i }
    }

    /// Writes the neighbours of the `i`-th query, whose products are given, and returns how many
    /// rows were looked at.
    pub(super) fn nearest(
        &self,
        query: &mut Query,
        i: usize,
        products: &mut [f32],
        indices: &mut [u32],
        distances: &mut [f32],
    ) -> usize {
        let k = self.knn.k;
        let given = self.query(i);
        let left_out = self.knn.left_out.of(given);
        if self.pair.is_zero(given) {
            let others = (0..self.knn.n).filter(|&j| left_out != Some(j));
            indices.iter_mut().zip(others).for_each(|(index, j)| *index = j as u32);
            distances.fill(1.);
            return 0;
        }
        let own = left_out.map_or(usize::MAX, |row| self.space.place(row));
        if let Some(product) = products.get_mut(own) {
            *product = f32::NEG_INFINITY;
        }
        halves_less_products(products, &self.space.rows.halves, &mut query.least);
        let first = query.threshold(k + k / 2);
        query.rows_in(products, f32::NEG_INFINITY, first);
        query.rows.retain(|&j| j as usize != own);
        let mut looked_at = query.rows.len();
        query.near.clear();
        self.measure(query, i);
        looked_at += self.look_further(query, i, products, first);
        self.rank(query, given);
        query.write(indices, distances, !self.pair.is_cosine);
        looked_at
    }

    /// Looks at all rows beyond `first` whose bound does not exceed the distance of the `k`-th
    /// nearest so far.
    fn look_further(&self, query: &mut Query, i: usize, halves: &[f32], first: f32) -> usize {
        let own = self.queries.halves.get(i).copied().unwrap_or(0.);
        let square = self.space.scaled(self.pair.at_most(query.farthest(self.knn.k)).into());
        // The query itself has an infinite half.
        query.rows_in(halves, first, (0.5 * square - f64::from(own)).min(f32::MAX.into()) as f32);
        let looked_at = query.rows.len();
        query.rows.retain(|&j| {
            let bound = 2. * (halves[j as usize] + own);
            f64::from(self.space.tighter(self.queries, i, j as usize, bound)) <= square
        });
        self.measure(query, i);
        looked_at
    }

    /// Adds the rows to look at to those that are near, with the squares of their distances.
    fn measure(&self, query: &mut Query, i: usize) {
        let i = self.query(i);
        let near = |&j: &u32| {
            let j = self.space.order[j as usize];
            (self.pair.square(i, j as usize), j)
        };
        query.near.extend(query.rows.iter().map(near));
    }

    /// Finds the distances of the near rows that may be among the nearest.
    fn rank(&self, query: &mut Query, i: usize) {
        let most = self.pair.at_most(query.farthest(self.knn.k));
        let key = |&(_, j): &(f32, u32)| (self.pair.distance(i, j as usize).to_bits(), j);
        query.keys.clear();
        query.keys.extend(query.near.iter().filter(|(square, _)| *square <= most).map(key));
    }
}

impl Query {
    /// Writes the nearest of the rows that have keys, at least as many as there is room for;
    /// `are_squares` tells of the distances in keys.
    pub(super) fn write(&mut self, indices: &mut [u32], distances: &mut [f32], are_squares: bool) {
        let k = indices.len();
        self.keys.select_nth_unstable(k - 1);
        self.keys.truncate(k);
        self.keys.sort_unstable();
        for ((index, distance), &(bits, row)) in indices.iter_mut().zip(distances).zip(&self.keys) {
            let key = f64::from_bits(bits);
            (*index, *distance) = (row, if are_squares { key.sqrt() } else { key } as f32);
        }
    }

    /// Takes the least of each chunk of numbers that stand in the place of halves.
    pub(super) fn least_of(&mut self, x: &[f32]) {
        self.least.clear();
        self.least.extend(x.chunks(CHUNK).map(|chunk| chunk.iter().copied().fold(f32::INFINITY, f32::min)));
    }

    /// A number that at least `count` of the halves do not exceed, infinite where there are too few
    /// chunks to tell.
    pub(super) fn threshold(&mut self, count: usize) -> f32 {
        if self.least.len() <= count {
            return f32::INFINITY;
        }
        self.order.clone_from(&self.least);
        *self.order.select_nth_unstable_by(count - 1, f32::total_cmp).1
    }

    /// The `k`-th of the squares.
    pub(super) fn farthest(&mut self, k: usize) -> f32 {
        self.near.select_nth_unstable_by(k - 1, |a, b| a.0.total_cmp(&b.0)).1.0
    }

    /// Finds the rows whose halves are above `above` and at most `most`; none has one below both.
    pub(super) fn rows_in(&mut self, halves: &[f32], above: f32, most: f32) {
        self.rows.clear();
        for (chunk, (halves, least)) in halves.chunks(CHUNK).zip(&self.least).enumerate() {
            if *least > most {
                continue;
            }
            let (mut found, mut count) = ([0u32; CHUNK], 0);
            for (j, &half) in halves.iter().enumerate() {
                // Written without a branch, which would be mispredicted.
                found[count % CHUNK] = (chunk * CHUNK + j) as u32;
                count += usize::from((half > above) & (half <= most));
            }
            self.rows.extend_from_slice(&found[..count]);
        }
    }
}

/// `x ← half − x`, and the least of each chunk.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
fn halves_less_products(x: &mut [f32], halves: &[f32], least: &mut Vec<f32>) {
    least.resize(x.len().div_ceil(CHUNK), 0.);
    let ((chunks, rest), (halves, halves_rest)) = (x.as_chunks_mut::<CHUNK>(), halves.as_chunks::<CHUNK>());
    for ((x, half), least) in chunks.iter_mut().zip(halves).zip(least.iter_mut()) {
        let mut smallest = [0f32; CHUNK];
        for l in 0..CHUNK {
            x[l] = half[l] - x[l];
            smallest[l] = x[l];
        }
        let mut width = CHUNK / 2;
        while width > 0 {
            for l in 0..width {
                smallest[l] =
                    if smallest[l + width] < smallest[l] { smallest[l + width] } else { smallest[l] };
            }
            width /= 2;
        }
        *least = smallest[0];
    }
    if let Some(least) = least.last_mut().filter(|_| !rest.is_empty()) {
        *least = f32::INFINITY;
        for (x, half) in rest.iter_mut().zip(halves_rest) {
            *x = half - *x;
            *least = least.min(*x);
        }
    }
}
