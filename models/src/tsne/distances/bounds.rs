//! Bounds on distances, and what they tell of ranks.
use super::super::Metric;
use super::super::ranks::{Query, Rank};
use super::Distances;
use super::unlike::Unlike;
use candle::{DType, Result, Tensor};
use chandlery_ops::Precision;
use chandlery_ops::arrays::gather_rows;
use chandlery_ops::layers::{Factors, gemm_};
use chandlery_ops::tsne::{Bound, RowsAboutMean, count_nearer, row_distances, rows_about_mean};
use rayon::prelude::*;

/// Numbers in a block of products, about.
const BLOCK: usize = 16 << 20;
/// Rows of a block.
const ROWS: std::ops::RangeInclusive<usize> = 16..=256;
/// Rows in doubt of a query for which there is room at first.
const ROOM: usize = 256;
/// The binary exponent that rows about one of them are brought to: their squares are far from the
/// largest of f32, and those of the nearest rows far from the least.
const ABOUT: f64 = 50.;

/// What bounds the distances of queries from rows, `[n, n_features]`.
pub(super) enum Bounds {
    Products { rows: Tensor, halves: Tensor, square_of_scale: f64 },
    Distances { rows: Tensor },
}

impl Bounds {
    fn rows(&self) -> &Tensor {
        match self {
            Self::Products { rows, .. } | Self::Distances { rows } => rows,
        }
    }
}

/// Rows that queries, which are among them, are compared with.
pub(super) struct Among<'a> {
    pub bounds: &'a Bounds,
    /// Where they are not all: those that differ, and the number that each stands for, u32 `[n]`.
    pub unlike: Option<(&'a Unlike, &'a Tensor)>,
}

impl Among<'_> {
    /// How many they are.
    fn n(&self) -> Result<usize> {
        self.bounds.rows().dim(0)
    }

    /// How many queries are compared at once.
    pub(super) fn height(&self) -> Result<usize> {
        Ok((BLOCK / self.n()?.max(1)).clamp(*ROWS.start(), *ROWS.end()))
    }

    /// Where a row is among them.
    fn place(&self, row: usize) -> u32 {
        self.unlike.map_or(row as u32, |(unlike, _)| unlike.places[row])
    }

    /// The row at a place, and how many others than `own` it stands for.
    fn at(&self, place: u32, own: usize) -> (usize, u32) {
        match self.unlike {
            None => (place as usize, u32::from(place as usize != own)),
            Some((unlike, _)) => {
                let own = u32::from(unlike.places[own] == place);
                (unlike.firsts[place as usize] as usize, unlike.counts[place as usize] - own)
            }
        }
    }
}

impl Distances {
    /// The ranks of each query, of all of which as many are ranked; none where more rows than
    /// `most` are in doubt.
    pub(super) fn ranks_among(
        &self,
        among: &Among<'_>,
        queries: &[&Query],
        most: usize,
    ) -> Result<Vec<Option<Vec<Rank>>>> {
        let places: Vec<u32> = queries.iter().map(|query| among.place(query.own)).collect();
        let values = self.block(among.bounds, &places)?;
        let room = ROOM.min(most.max(1));
        let mut ranks = self.ranks_of(among, &values, queries, room)?;
        let is_next = |in_doubt: &usize| (room + 1..=most).contains(in_doubt);
        let next: Vec<u32> = (0..)
            .zip(&ranks)
            .filter(|(_, of)| of.as_ref().err().is_some_and(is_next))
            .map(|(at, _)| at)
            .collect();
        // Many rows may be in doubt: few queries at a time.
        for some in next.chunks((BLOCK / most.max(1)).max(1)) {
            let again: Vec<&Query> = some.iter().map(|&at| queries[at as usize]).collect();
            let found = self.ranks_of(among, &gather_rows(&values, some)?, &again, most)?;
            some.iter().zip(found).for_each(|(&at, found)| ranks[at as usize] = found);
        }
        Ok(ranks.into_iter().map(|of| of.ok()).collect())
    }

    /// The ranks of each query, from what bounds its distances, `[m, n]`; how many rows are in doubt
    /// where they are more than `room`.
    fn ranks_of(
        &self,
        among: &Among<'_>,
        values: &Tensor,
        queries: &[&Query],
        room: usize,
    ) -> Result<Vec<std::result::Result<Vec<Rank>, usize>>> {
        let (m, device) = (queries.len(), values.device());
        let own: Vec<u32> = queries.iter().map(|query| among.place(query.own)).collect();
        let edges: Vec<f64> =
            queries.iter().flat_map(|query| query.edges()).flat_map(|&(near, far)| [near, far]).collect();
        let edges = Tensor::from_vec(edges, (m, (), 2), device)?;
        let (halves, unit) = match among.bounds {
            Bounds::Products { halves, square_of_scale, .. } => (Some(halves), 1. / square_of_scale),
            Bounds::Distances { .. } => (None, 1.),
        };
        let lost = self.n_features as f64 * (-120f64).exp2();
        let bound = Bound { share: share(self.n_features), lost, unit };
        let weights = among.unlike.map(|(_, counts)| counts);
        let counts = count_nearer(values, halves, weights, &own, &edges, &bound, room)?;
        let between = counts.between.to_vec2::<u32>()?;
        let (doubtful, n_doubtful) = (counts.doubtful.to_vec2::<u32>()?, counts.n_doubtful.to_vec1::<u32>()?);
        let ranks = |at: usize| {
            let (query, n_doubtful) = (queries[at], n_doubtful[at] as usize);
            let doubtful = doubtful[at].get(..n_doubtful).ok_or(n_doubtful)?;
            let far = |&place: &u32| {
                let (row, count) = among.at(place, query.own);
                (self.up_to(query.own, row, query.farthest()), count)
            };
            Ok(query.ranks(&between[at], doubtful.iter().map(far)))
        };
        Ok((0..m).into_par_iter().map(ranks).collect())
    }

    /// The ranks of a query from the distances of all rows that differ.
    pub(super) fn ranks_of_all(&self, query: &Query, unlike: &Unlike) -> Vec<Rank> {
        let own = unlike.places[query.own] as usize;
        let far = |(place, (&row, &count)): (usize, (&u32, &u32))| {
            (self.up_to(query.own, row as usize, query.farthest()), count - u32::from(place == own))
        };
        let all = unlike.firsts.iter().zip(&unlike.counts).enumerate().map(far);
        query.ranks(&vec![0; query.edges().len()], all)
    }

    /// What bounds the distances of rows from all, `[m, n]`.
    fn block(&self, bounds: &Bounds, places: &[u32]) -> Result<Tensor> {
        let all = bounds.rows();
        let own = gather_rows(all, places)?;
        match bounds {
            Bounds::Distances { .. } => row_distances(&own, all, self.metric),
            Bounds::Products { .. } => {
                let out = Tensor::zeros((places.len(), all.dim(0)?), DType::F32, all.device())?;
                if self.n_features > 0 {
                    gemm_(&out, &own, &all.t()?, Factors::OVERWRITE, Precision::F32)?;
                }
                Ok(out)
            }
        }
    }

    /// Bounds of all rows.
    pub(super) fn bounds(&self) -> Result<Bounds> {
        let d = self.n_features;
        match self.metric {
            Metric::Manhattan | Metric::Chebyshev | Metric::Hamming | Metric::Jaccard => {
                Ok(Bounds::Distances { rows: self.rows.clone() })
            }
            Metric::Cosine | Metric::Correlation => {
                let mut units = self.host.clone();
                if d > 0 {
                    units.par_chunks_mut(d).zip(&self.angles).for_each(|(row, &(mean, inverse))| {
                        row.iter_mut().for_each(|x| *x = ((f64::from(*x) - mean) * inverse) as f32);
                    });
                }
                let device = self.rows.device();
                let halves = Tensor::full(0.5f64, self.n, device)?;
                let rows = Tensor::from_vec(units, (self.n, d), device)?;
                Ok(Bounds::Products { rows, halves, square_of_scale: 1. })
            }
            Metric::Euclidean => {
                let RowsAboutMean { rows, halves, scale } = rows_about_mean(&self.rows)?;
                Ok(Bounds::Products { rows, halves, square_of_scale: scale * scale })
            }
        }
    }

    /// Bounds of the rows that differ about the row `centre`: tight for what is near it.
    pub(super) fn bounds_about(&self, centre: usize, unlike: &Unlike) -> Result<Bounds> {
        let d = self.n_features;
        // What products take: rows, or those of length 1; none where there is no length.
        let seen = |row: usize| {
            let (mean, inverse) = self.angles.get(row).copied().unwrap_or((0., 1.));
            (inverse != 0.).then(|| self.row(row).iter().map(move |&x| (f64::from(x) - mean) * inverse))
        };
        let centre: Vec<f64> = seen(centre).map_or_else(|| vec![0.; d], Iterator::collect);
        let apart = |row: u32| seen(row as usize).map(|seen| seen.zip(&centre).map(|(x, c)| x - c));
        let largest = |&row: &u32| apart(row).map_or(0., |y| y.fold(0f64, |most, y| most.max(y.abs())));
        let largest = unlike.firsts.par_iter().map(largest).reduce(|| 0., f64::max);
        let scale = if largest > 0. { (ABOUT - largest.log2().ceil()).exp2() } else { 1. };
        let n = unlike.firsts.len();
        // A row without length is in doubt for all.
        let (mut about, mut halves) = (vec![0f32; n * d], vec![f64::INFINITY; n]);
        let each = about.par_chunks_mut(d.max(1)).zip(&mut halves).zip(&unlike.firsts);
        each.for_each(|((about, half), &row)| {
            if let Some(apart) = apart(row) {
                about.iter_mut().zip(apart).for_each(|(about, y)| *about = (y * scale) as f32);
                *half = 0.5 * about.iter().map(|&y| f64::from(y) * f64::from(y)).sum::<f64>();
            }
        });
        let device = self.rows.device();
        Ok(Bounds::Products {
            rows: Tensor::from_vec(about, (n, d), device)?,
            halves: Tensor::from_vec(halves, n, device)?,
            square_of_scale: scale * scale,
        })
    }
}

/// γ + 8 u for so many features; more than any distance needs where γ bounds nothing.
fn share(n_features: usize) -> f64 {
    let unit = f64::from(f32::EPSILON) / 2.;
    let sum = (n_features + 1) as f64 * unit;
    if sum < 0.5 { sum / (1. - sum) + 8. * unit } else { 1e30 }
}
