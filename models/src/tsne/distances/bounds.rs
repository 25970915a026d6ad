//! Bounds on distances, and what they tell of ranks.
use super::super::Metric;
use super::super::ranks::{Query, Rank};
use super::Distances;
use super::unlike::Unlike;
use candle::{DType, Result, Tensor};
use chandlery_ops::Precision;
use chandlery_ops::arrays::gather_rows;
use chandlery_ops::layers::{Factors, gemm_};
use chandlery_ops::tsne::{Bound, ExactRows, RowsAboutMean, count_nearer, row_distances, rows_about_mean};
use rayon::prelude::*;

/// Numbers in a block of products, about.
const BLOCK: usize = 16 << 20;
/// Rows of a block.
const ROWS: std::ops::RangeInclusive<usize> = 16..=256;
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
    pub exact: ExactRows<'a>,
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
}

impl Distances {
    /// The ranks of each query, of all of which as many are ranked; none where bounds leave more rows
    /// than `most` in doubt.
    pub(super) fn ranks_among(
        &self,
        among: &Among<'_>,
        queries: &[&Query],
        most: usize,
    ) -> Result<Vec<Option<Vec<Rank>>>> {
        let places: Vec<u32> = queries.iter().map(|query| among.place(query.own)).collect();
        let values = self.block(among.bounds, &places)?;
        let edges: Vec<f64> =
            queries.iter().flat_map(|query| query.edges()).flat_map(|&(near, far)| [near, far]).collect();
        let edges = Tensor::from_vec(edges, (queries.len(), (), 2), values.device())?;
        let (halves, unit) = match among.bounds {
            Bounds::Products { halves, square_of_scale, .. } => (Some(halves), 1. / square_of_scale),
            Bounds::Distances { .. } => (None, 1.),
        };
        let lost = self.n_features as f64 * (-120f64).exp2();
        let bound = Bound { share: share(self.n_features), lost, unit };
        let weights = among.unlike.map(|(_, counts)| counts);
        let (exact, most) = (among.exact, most.max(1));
        let counts = count_nearer(&values, halves, weights, &places, &edges, &bound, exact, most)?;
        let (between, as_far) = (counts.between.to_vec2::<u32>()?, counts.as_far.to_vec2::<u32>()?);
        let n_doubtful = counts.n_doubtful.to_vec1::<u32>()?;
        let ranks = |at: usize| {
            let known = n_doubtful[at] as usize <= most;
            known.then(|| queries[at].ranks_of_counts(&between[at], &as_far[at]))
        };
        Ok((0..queries.len()).into_par_iter().map(ranks).collect())
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

    /// Bounds of all rows, which are kept.
    pub(super) fn bounds(&self) -> Result<&Bounds> {
        match self.bounds.get() {
            Some(bounds) => Ok(bounds),
            None => {
                let bounds = self.new_bounds()?;
                Ok(self.bounds.get_or_init(|| bounds))
            }
        }
    }

    fn new_bounds(&self) -> Result<Bounds> {
        match self.metric {
            Metric::Manhattan | Metric::Chebyshev | Metric::Hamming | Metric::Jaccard => {
                Ok(Bounds::Distances { rows: self.rows.clone() })
            }
            Metric::Cosine | Metric::Correlation => {
                let halves = Tensor::full(0.5f64, self.n, self.rows.device())?;
                Ok(Bounds::Products { rows: self.units()?, halves, square_of_scale: 1. })
            }
            Metric::Euclidean => {
                let RowsAboutMean { rows, halves, scale } = rows_about_mean(&self.rows)?;
                Ok(Bounds::Products { rows, halves, square_of_scale: scale * scale })
            }
        }
    }

    /// Rows at length 1, less their means for the correlation; 0 where there is no length.
    fn units(&self) -> Result<Tensor> {
        let Some(angles) = &self.angles else { return Ok(self.rows.clone()) };
        let units = self.rows.zeros_like()?;
        let height = (BLOCK / self.n_features.max(1)).max(1);
        for first in (0..if self.n_features > 0 { self.n } else { 0 }).step_by(height) {
            let len = height.min(self.n - first);
            let [mean, inverse] = [0, 1].map(|side| angles.narrow(0, first, len)?.narrow(1, side, 1));
            let apart = self.rows.narrow(0, first, len)?.to_dtype(DType::F64)?.broadcast_sub(&mean?)?;
            units.slice_set(&apart.broadcast_mul(&inverse?)?.to_dtype(DType::F32)?, 0, first)?;
        }
        Ok(units)
    }

    /// Those of [`bounds`](Self::bounds) of the rows that differ.
    pub(super) fn bounds_of(&self, unlike: &Unlike) -> Result<Bounds> {
        let firsts = Tensor::from_slice(&unlike.firsts, unlike.firsts.len(), self.rows.device())?;
        let of = |rows: &Tensor| gather_rows(rows, &unlike.firsts);
        Ok(match self.bounds()? {
            Bounds::Distances { rows } => Bounds::Distances { rows: of(rows)? },
            Bounds::Products { rows, halves, square_of_scale } => Bounds::Products {
                rows: of(rows)?,
                halves: halves.index_select(&firsts, 0)?,
                square_of_scale: *square_of_scale,
            },
        })
    }

    /// Bounds of the rows that differ about the row `centre`: tight for what is near it.
    pub(super) fn bounds_about(&self, centre: usize, unlike: &Unlike) -> Result<Bounds> {
        let (d, host) = (self.n_features, self.host()?);
        // What products take: rows, or those of length 1; none where there is no length.
        let seen = |row: usize| {
            let [mean, inverse] = host.angle(row);
            (inverse != 0.).then(|| host.row(row).iter().map(move |&x| (f64::from(x) - mean) * inverse))
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
