//! Rows, and what is near in their layout.
use super::super::neighbours::{in_unit, unit_of};
use super::super::ranks::Rank;
use super::super::{Metric, Neighbours};
use super::TrueDistances;
use super::estimate::{Estimate, spaced};
use super::truth::{OfRows, Source, nearest_others};
use candle::{Result, Tensor};
use chandlery_ops::arrays::gather_rows;
use rayon::prelude::*;

/// The nearest points of points of a layout.
pub(crate) struct NearestPoints {
    k: usize,
    n: usize,
    /// The points that are looked at, ascending, and the nearest of each.
    own: Vec<u32>,
    indices: Vec<u32>,
}

impl NearestPoints {
    /// The `k` nearest others of `sample` evenly spaced points of a layout, f32 `[n, n_dims]`; of
    /// all where `sample` is `n` or more.
    pub(crate) fn of(layout: &Tensor, k: usize, sample: usize) -> Result<Self> {
        let layout = in_unit(&layout.contiguous()?, unit_of(layout, Metric::Euclidean)?)?;
        let (n, own) = (layout.dim(0)?, spaced(layout.dim(0)?, sample));
        let indices = nearest_others(&layout, &own, k, Metric::Euclidean)?.indices.flatten_all()?;
        Ok(Self { k, n, own, indices: indices.to_vec1()? })
    }

    /// The `k` nearest of the point at place `at`, of which there are so many at least.
    fn first(&self, at: usize, k: usize) -> &[u32] {
        &self.indices[at * self.k..][..k]
    }

    /// See [`knn_label_accuracy`](super::knn_label_accuracy).
    pub(crate) fn label_accuracy(&self, labels: &[u32], k: usize) -> Result<Estimate> {
        let n = self.n;
        if labels.len() != n {
            candle::bail!("knn_label_accuracy: labels must be {n}, one for each point, got {}", labels.len())
        }
        let is_right = |(at, &own): (usize, &u32)| {
            let voted = majority(self.first(at, k).iter().map(|&j| labels[j as usize]));
            if voted == Some(labels[own as usize]) { 1. } else { 0. }
        };
        let right: Vec<f64> = self.own.par_iter().enumerate().map(is_right).collect();
        Ok(Estimate::of(&right, n))
    }
}

/// Rows whose distances are compared with what is near in their layout.
pub(crate) struct Compared<'a> {
    points: NearestPoints,
    of: Source<'a>,
}

impl<'a> Compared<'a> {
    /// A layout, f32 `[n, n_dims]`, of which up to `k` nearest points of `sample` points are looked
    /// at, or of all. `op` asks.
    pub(crate) fn new(
        op: &str,
        of: TrueDistances<'a>,
        layout: &Tensor,
        k: usize,
        sample: usize,
    ) -> Result<Self> {
        let of = Source::new(op, of, layout.dim(0)?)?;
        Ok(Self { points: NearestPoints::of(layout, k, sample)?, of })
    }

    /// What is near in the layout.
    pub(crate) fn points(&self) -> &NearestPoints {
        &self.points
    }

    /// See [`trustworthiness`](super::trustworthiness); over `sample` of the rows that are looked
    /// at.
    pub(crate) fn trustworthiness(&self, k: usize, sample: usize) -> Result<Estimate> {
        let NearestPoints { n, own, .. } = &self.points;
        let places = spaced(own.len(), sample);
        let rows: Vec<u32> = places.iter().map(|&at| own[at as usize]).collect();
        let ranks = self.of.ranks(&rows, |at| self.points.first(places[at] as usize, k))?;
        let (n_rows, k) = (*n as f64, k as f64);
        let of_row = |ranks: &Vec<Rank>| {
            let excess: f64 = ranks.iter().map(|rank| (rank.mean() - k).max(0.)).sum();
            1. - 2. * excess / (k * (2. * n_rows - 3. * k - 1.))
        };
        Ok(Estimate::of(&ranks.iter().map(of_row).collect::<Vec<_>>(), *n))
    }

    /// See [`knn_recall`](super::knn_recall). `nearest` are the nearest rows of each row, as an exact
    /// search found them; without them, or with too few, there is another search.
    pub(crate) fn knn_recall(&self, k: usize, nearest: Option<&Neighbours>) -> Result<Estimate> {
        let kept = match &self.of {
            Source::Rows(rows) => self.kept(rows, k, nearest)?,
            // A look at a line tells all ranks.
            Source::Matrix(given) => {
                let ranks = given.ranks(&self.points.own, |at| self.points.first(at, k));
                ranks.iter().map(|ranks| ranks.iter().map(|rank| rank.among(k)).sum()).collect()
            }
        };
        let kept: Vec<f64> = kept.into_iter().map(|kept| kept / k as f64).collect();
        Ok(Estimate::of(&kept, self.points.n))
    }

    /// How many of the `k` nearest points of each that is looked at are among its nearest rows.
    fn kept(&self, rows: &OfRows<'_>, k: usize, nearest: Option<&Neighbours>) -> Result<Vec<f64>> {
        let NearestPoints { n, own, .. } = &self.points;
        let (n, m, distances) = (*n, own.len(), &rows.distances);
        // One more, which tells whether the last is as far as others.
        let more = if k + 1 < n { k + 1 } else { k };
        let found = match nearest {
            Some(nearest) if nearest.indices.dim(1)? >= more => {
                let first = nearest.first(more)?;
                let of_own = |t: &Tensor| if m < n { gather_rows(t, own) } else { Ok(t.clone()) };
                Neighbours { indices: of_own(&first.indices)?, distances: of_own(&first.distances)? }
            }
            _ => rows.nearest(own, more)?,
        };
        let nearest = found.indices.flatten_all()?.to_vec1::<u32>()?;
        if nearest.len() != m * more || nearest.iter().any(|&j| j as usize >= n) {
            candle::bail!("knn_recall: nearest must be rows below {n}, for each of {n}")
        }
        // Of a place among those that are looked at.
        let of = |at: usize| (own[at] as usize, &nearest[at * more..][..more], self.points.first(at, k));
        let in_doubt: Vec<usize> = match more == k {
            true => vec![],
            false => {
                let last = found.distances.narrow(1, k - 1, 2)?.to_vec2::<f32>()?;
                (0..m).zip(&last).filter(|(_, last)| rows.may_be_one(last)).map(|(at, _)| at).collect()
            }
        };
        // The distances of the last two of each.
        let doubted: Vec<u32> = in_doubt.iter().map(|&at| own[at]).collect();
        let last: Vec<u32> = in_doubt.iter().flat_map(|&at| &of(at).1[k - 1..]).copied().collect();
        let far = distances.of_pairs(&doubted, &last)?;
        let far = in_doubt.iter().zip(far.as_chunks::<2>().0);
        let tied: Vec<(usize, f64)> =
            far.filter(|(_, [a, b])| distances.equal(*a, *b)).map(|(&at, far)| (at, far[1])).collect();
        let kept_of_plain = |at: usize| {
            let (_, nearest, points) = of(at);
            points.iter().filter(|&j| nearest[..k].contains(j)).count() as f64
        };
        let mut kept: Vec<f64> = (0..m).into_par_iter().map(kept_of_plain).collect();
        // Of rows that more than `k` others equal, those are the nearest, each as likely.
        let places = |at_zero: bool| -> Vec<usize> {
            tied.iter().filter(|(_, far)| (*far == 0.) == at_zero).map(|&(at, _)| at).collect()
        };
        let (equal, mut others) = (places(true), places(false));
        match self.equal_rows(rows, &equal)? {
            Some(as_far) => {
                let rows: Vec<u32> = equal.iter().map(|&at| own[at]).collect();
                let points: Vec<u32> = equal.iter().flat_map(|&at| of(at).2).copied().collect();
                let far = distances.of_pairs(&rows, &points)?;
                for ((&at, as_far), far) in equal.iter().zip(as_far).zip(far.chunks(k)) {
                    let rank = Rank { nearer: 0, as_far };
                    kept[at] = far.iter().filter(|&&far| far == 0.).count() as f64 * rank.among(k);
                }
            }
            None => others = tied.iter().map(|&(at, _)| at).collect(),
        }
        if !others.is_empty() {
            let own: Vec<u32> = others.iter().map(|&at| own[at]).collect();
            let ranks = distances.ranks(&own, |e| of(others[e]).2)?;
            for (&at, ranks) in others.iter().zip(ranks) {
                kept[at] = ranks.iter().map(|rank| rank.among(k)).sum();
            }
        }
        Ok(kept)
    }

    /// How many others equal the row at each of `places`, more than one of which others equal; none
    /// where a distance of 0 is that of an angle, not of equal rows.
    fn equal_rows(&self, of: &OfRows<'_>, places: &[usize]) -> Result<Option<Vec<u64>>> {
        if places.is_empty() {
            return Ok(Some(vec![]));
        }
        if !of.distances.equal_at_0() {
            return Ok(None);
        }
        let unlike = of.distances.unlike()?;
        let place = |&at: &usize| unlike.places[self.points.own[at] as usize];
        Ok(Some(places.iter().map(|at| u64::from(unlike.counts[place(at) as usize]) - 1).collect()))
    }
}

/// The most frequent label, the lowest of several.
fn majority(labels: impl Iterator<Item = u32>) -> Option<u32> {
    let mut labels: Vec<u32> = labels.collect();
    labels.sort_unstable();
    // The last of equals wins in `max_by_key`: labels descend.
    labels.chunk_by(|a, b| a == b).rev().max_by_key(|same| same.len()).map(|same| same[0])
}
