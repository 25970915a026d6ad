//! Distances of all pairs of rows, computed elsewhere.
use super::alike;
use super::given::check_distance;
use super::ranks::{Query, Rank, Tolerance};
use super::{CheckedNeighbours, Draw, GivenNeighbours, WrongNeighbours};
use crate::Philox;
use rayon::prelude::*;
use std::hash::{DefaultHasher, Hasher};

/// The distances of each row to all, line by line of `n`, not squared.
///
/// They need not be symmetric: a line says how far others are from its own row. What stands in the
/// place of a row itself is not looked at.
#[derive(Debug, Clone, Copy)]
pub struct GivenDistances<'a> {
    /// `[n, n]`
    pub all: &'a [f64],
    /// Rows.
    pub n: usize,
}

impl GivenDistances<'_> {
    /// The `k` nearest others of each row; between rows that are equally far a draw decides, as in
    /// a search.
    ///
    /// Cost: `O(n²)`.
    ///
    /// # Errors
    /// When there are not `n²` distances, `k` is not in `1..n`, or a distance is negative, infinite
    /// or NaN; the message names row and column, counted from 0.
    pub fn nearest(
        &self,
        k: usize,
        philox: Philox,
    ) -> std::result::Result<CheckedNeighbours, WrongNeighbours> {
        let &Self { all, n } = self;
        self.check()?;
        if k == 0 || k >= n {
            let what = format!("must be in 1..={} for {n} rows, got {k} of each", n.saturating_sub(1));
            return Err(WrongNeighbours::Indices(what));
        }
        let of_row = |(i, line): (usize, &[f64])| {
            let philox = Philox { offset: (i as u64) << 32, ..Draw::Ties.of(philox) };
            let mut near: Vec<(f64, u32, u32)> =
                others(i, line).map(|(j, d)| (d, philox.bits(j.into()), j)).collect();
            let order = |a: &(f64, u32, u32), b: &(f64, u32, u32)| {
                a.0.total_cmp(&b.0).then((a.1, a.2).cmp(&(b.1, b.2)))
            };
            near.select_nth_unstable_by(k - 1, order);
            near.truncate(k);
            near.sort_unstable_by(order);
            near
        };
        let near: Vec<_> = all.par_chunks(n.max(1)).enumerate().map(of_row).collect();
        let (indices, distances): (Vec<i64>, Vec<f64>) =
            near.into_iter().flatten().map(|(d, _, j)| (i64::from(j), d)).unzip();
        GivenNeighbours { indices: &indices, distances: &distances, k }.checked()
    }

    /// Refuses what are no distances of all pairs.
    pub(super) fn check(&self) -> std::result::Result<(), WrongNeighbours> {
        let &Self { all, n } = self;
        if n.checked_mul(n) != Some(all.len()) {
            let what =
                format!("must be those of all pairs of {n} rows, {}, got {}", n.saturating_mul(n), all.len());
            return Err(WrongNeighbours::Distances(what));
        }
        let check = |(i, line): (usize, &[f64])| {
            others(i, line).try_for_each(|(j, d)| check_distance(d, i, j as usize))
        };
        // The first of several that are wrong, whichever thread comes to it.
        let wrong = |(i, line)| check((i, line)).err();
        match all.par_chunks(n.max(1)).enumerate().find_map_first(wrong) {
            Some(wrong) => Err(wrong),
            None => Ok(()),
        }
    }

    /// For each row the first that equals it: at distance 0 from each other, and as far from all
    /// others, seen from both. All are distances.
    ///
    /// Cost: `O(n²)`.
    pub(super) fn firsts(&self) -> Vec<u32> {
        let at = |i: u32, j: u32| match i == j {
            true => 0.,
            // -0 equals 0.
            false => self.all[i as usize * self.n + j as usize] + 0.,
        };
        let all = || 0..self.n as u32;
        let hash = |i: u32| {
            let mut hasher = DefaultHasher::new();
            all().for_each(|j| hasher.write_u64(at(i, j).to_bits()));
            hasher.finish()
        };
        let equal = |a: u32, b: u32| all().all(|j| at(a, j) == at(b, j) && at(j, a) == at(j, b));
        alike::firsts(self.n as u32, hash, equal)
    }

    /// The distances between some of the rows, line by line.
    pub(super) fn among(&self, rows: &[u32]) -> Vec<f64> {
        let line = |&i: &u32| rows.iter().map(move |&j| self.all[i as usize * self.n + j as usize]);
        rows.iter().flat_map(line).collect()
    }

    /// For each row of `own` the ranks of the rows that `of` gives for its place among all others.
    /// All are distances.
    pub(super) fn ranks<'a>(&self, own: &[u32], of: impl Fn(usize) -> &'a [u32] + Sync) -> Vec<Vec<Rank>> {
        let ranks = |(at, &own): (usize, &u32)| {
            let (own, ranked) = (own as usize, of(at));
            let line = &self.all[own * self.n..][..self.n];
            let each = ranked.iter().map(|&j| line[j as usize]).collect();
            let query = Query::new(own, each, Tolerance::default());
            let reached = others(own, line).filter(|&(_, d)| d <= query.farthest());
            query.ranks(reached.map(|(_, d)| d))
        };
        own.par_iter().enumerate().map(ranks).collect()
    }
}

/// The other rows of the line of row `i`, with their distances.
fn others(i: usize, line: &[f64]) -> impl Iterator<Item = (u32, f64)> {
    (0..).zip(line.iter().copied()).filter(move |&(j, _)| j as usize != i)
}
