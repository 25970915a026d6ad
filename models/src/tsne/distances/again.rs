//! Ranks of rows as seen from others.
//!
//! Bounds about the mean of all rows say much of most data, and little where a few rows are far
//! from all others, or groups are much tighter than they are apart; and rows that equal one that is
//! ranked are all in doubt. Where they leave many rows in doubt, the query is looked at again: equal
//! rows are compared once, and bounds are about a query that is near.
use super::super::ranks::{Query, Rank};
use super::Distances;
use super::bounds::{Among, Bounds};
use candle::{Result, Tensor};
use chandlery_ops::arrays::gather_rows;
use chandlery_ops::tsne::ExactRows;
use rayon::prelude::*;

/// The share of all rows of which as many may be in doubt before the query is looked at again.
const SHARE: usize = 16;
/// Queries that are looked at again together, of which those that are near each other share bounds.
const TOGETHER: usize = 4096;
/// Queries are near one if half of the square of their distance is at most this times that of the
/// farthest row that is ranked: bounds are then off by few millionths of that.
const NEAR: f64 = 64.;
/// Fewer queries than this are compared in f64 with all rows that bounds about the mean leave in
/// doubt, which is cheaper.
const FEW: usize = 4;

impl Distances {
    /// For each row of `own` the ranks of the rows that `of` gives for its place, as many for each,
    /// among all others.
    pub(in super::super) fn ranks<'a>(
        &self,
        own: &[u32],
        of: impl Fn(usize) -> &'a [u32] + Sync,
    ) -> Result<Vec<Vec<Rank>>> {
        let bounds = self.bounds()?;
        let ranked: Vec<u32> = (0..own.len()).flat_map(&of).copied().collect();
        let (distances, k) = (self.of_pairs(own, &ranked)?, ranked.len() / own.len().max(1));
        let query = |at: usize| {
            let each = distances[at * k..][..k].to_vec();
            Query::new(own[at] as usize, each, self.tolerance())
        };
        let among = Among { bounds, exact: self.exact_rows(), unlike: None };
        let mut ranks: Vec<Option<Vec<Rank>>> = vec![None; own.len()];
        let (mut again, height) = (vec![], among.height()?);
        for first in (0..own.len()).step_by(height) {
            let places = first..own.len().min(first + height);
            // Where most were in doubt so far, the others are.
            if 2 * again.len() > first {
                again.extend(places);
                continue;
            }
            let queries: Vec<Query> = places.clone().into_par_iter().map(query).collect();
            let queries: Vec<&Query> = queries.iter().collect();
            for (at, found) in places.zip(self.ranks_among(&among, &queries, self.n / SHARE)?) {
                if found.is_none() {
                    again.push(at);
                }
                ranks[at] = found;
            }
        }
        for places in again.chunks(TOGETHER) {
            let queries: Vec<Query> = places.par_iter().map(|&at| query(at)).collect();
            for (&at, found) in places.iter().zip(self.ranks_again(&queries)?) {
                ranks[at] = Some(found);
            }
        }
        Ok(ranks.into_iter().flatten().collect())
    }

    /// The same for queries of which too many rows were in doubt.
    fn ranks_again(&self, queries: &[Query]) -> Result<Vec<Vec<Rank>>> {
        let (unlike, host, device) = (self.unlike()?, self.host()?, self.rows.device());
        let counts = Tensor::from_slice(&unlike.counts, unlike.counts.len(), device)?;
        let rows = gather_rows(&self.rows, &unlike.firsts)?;
        let angles = self.angles.as_ref().map(|angles| gather_rows(angles, &unlike.firsts)).transpose()?;
        let exact = ExactRows { rows: &rows, angles: angles.as_ref(), metric: self.metric };
        let mut ranks: Vec<Option<Vec<Rank>>> = vec![None; queries.len()];
        let mut among = |bounds: &Bounds, places: &[usize]| -> Result<()> {
            let among = Among { bounds, exact, unlike: Some((unlike, &counts)) };
            for places in places.chunks(among.height()?) {
                let some: Vec<&Query> = places.iter().map(|&at| &queries[at]).collect();
                let found = self.ranks_among(&among, &some, unlike.firsts.len())?;
                places.iter().zip(found).for_each(|(&at, found)| ranks[at] = found);
            }
            Ok(())
        };
        let mut left: Vec<usize> = (0..queries.len()).collect();
        let mut few = vec![];
        if matches!(self.bounds()?, Bounds::Distances { .. }) {
            among(&Bounds::Distances { rows: rows.clone() }, &std::mem::take(&mut left))?;
        }
        while let Some(&first) = left.first() {
            let centre = queries[first].own;
            let is_near = |&at: &usize| {
                let query = &queries[at];
                at == first || host.exact(centre, query.own) <= NEAR * query.farthest()
            };
            let (near, others): (Vec<usize>, Vec<usize>) = left.into_par_iter().partition(is_near);
            left = others;
            match near.len() < FEW {
                true => few.extend(near),
                false => among(&self.bounds_about(centre, unlike)?, &near)?,
            }
        }
        if !few.is_empty() {
            among(&self.bounds_of(unlike)?, &few)?;
        }
        Ok(ranks.into_iter().flatten().collect())
    }
}
