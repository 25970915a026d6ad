//! Equal rows as one point that stands for all of them.
//!
//! The divergence is that of all `N` rows, made small over layouts in which equal rows have one
//! place. With `c_u` rows at point `u`:
//!
//! ```text
//! p_v|u = c_v exp(−β_u d_uv²) / S_u        of a row at u to all rows at v, one of the nearest points
//! p_u|u = (c_u − 1) / S_u                  to the other rows at u;   S_u = c_u − 1 + Σ_v c_v exp(−β_u d_uv²)
//! β_u:    ln S_u + β_u Σ_v p_v|u d_uv² = ln(perplexity)                     the entropy over rows
//! P_uv  = (c_u p_v|u + c_v p_u|v) / 2N,    P_uu = c_u p_u|u / N             sums of p_ij over the rows at both
//! Z     = Σ_u c_u (c_u − 1 + Σ_v≠u c_v w_uv)
//! KL    = Σ_uv P_uv ln(P_uv Z / w_uv) − Σ_uv P_uv ln m_uv                   m_uv = c_u c_v, m_uu = c_u (c_u − 1): pairs
//! 1/c_u ∂KL/∂y_u = 4 (Σ_v P_uv / c_u (y_u − y_v) / (1 + |y_u − y_v|²/α) − Σ_v c_v w_uv^(1 + 1/α) (y_u − y_v) / Z)
//! ```
//!
//! The last is the gradient that each row at `u` has in a descent of all rows, by which the point
//! moves: both descents are the same but for rounding, if they begin alike. Rate, mean and norm are
//! those of all rows too. `P_uu` is constant and pulls nothing.
//!
//! The `k` neighbours of a point are the nearest points, each with all its rows, and not the
//! nearest rows: of a row that is there more than `k` times these would be its copies alone, and
//! nothing would say where it belongs. A perplexity counts rows.
use super::distances::{Distances, Unlike};
use super::neighbours::{By, Found, search};
use super::{Affinities, GivenDistances, Neighbours, Recall, TsneConfig};
use crate::{Group, Philox};
use candle::{DType, Device, Result, Tensor};
use chandlery_ops::arrays::elementwise::{clamp, contiguous, mul};
use chandlery_ops::arrays::{gather_rows, gather_rows_by};
use rayon::prelude::*;

/// Points whose edges are added in one go.
const POINTS: usize = 4096;

/// The points that rows are at; some rows are equal.
#[derive(Debug, Clone)]
pub(super) struct Unique {
    /// The point of each row, in the order of their first rows: u32 `[n_rows]`.
    places: Tensor,
    /// The first row at each point.
    firsts: Vec<u32>,
    /// Rows at each point: f32 `[n]`.
    counts: Tensor,
}

impl Unique {
    /// Those of prepared rows, f32 `[n_rows, n_features]`, of a run on `device`; none where it does not ask for
    /// them, or no two rows are equal.
    pub(super) fn of_rows(
        group: &Group,
        config: &TsneConfig,
        rows: &Tensor,
        device: &Device,
    ) -> Result<Option<Self>> {
        match config.unique {
            true => Self::of(Distances::new(rows, config.metric)?.unlike()?, group, device),
            false => Ok(None),
        }
    }

    /// The same of distances of all pairs, which were looked at.
    pub(super) fn of_distances(
        config: &TsneConfig,
        distances: &GivenDistances<'_>,
        device: &Device,
    ) -> Result<Option<Self>> {
        match config.unique {
            true => Self::of(&Unlike::of_firsts(&distances.firsts()), &Group::single(), device),
            false => Ok(None),
        }
    }

    fn of(unlike: &Unlike, group: &Group, device: &Device) -> Result<Option<Self>> {
        Self::check(group)?;
        let is_repeated = unlike.firsts.len() < unlike.places.len();
        let places = || Tensor::from_slice(&unlike.places, unlike.places.len(), device);
        is_repeated.then(|| Self::of_places(places()?)).transpose()
    }

    /// From the point of each row, u32 `[n_rows]`.
    ///
    /// # Errors
    /// When points are not in the order of their first rows.
    pub(super) fn of_places(places: Tensor) -> Result<Self> {
        let host = places.to_device(&Device::Cpu)?.to_vec1::<u32>()?;
        let (mut firsts, mut counts) = (vec![], vec![]);
        for (row, &place) in (0u32..).zip(&host) {
            if place as usize == firsts.len() {
                firsts.push(row);
                counts.push(0u32);
            }
            match counts.get_mut(place as usize) {
                Some(count) => *count += 1,
                None => candle::bail!(
                    "its points must be in the order of their first rows, got {place} of row {row}, and {} before",
                    firsts.len()
                ),
            }
        }
        let counts: Vec<f32> = counts.into_iter().map(|count| count as f32).collect();
        let counts = Tensor::from_slice(&counts, counts.len(), places.device())?;
        Ok(Self { places, firsts, counts })
    }

    /// Refuses what only one process does.
    pub(super) fn check(group: &Group) -> Result<()> {
        match group.is_single() {
            true => Ok(()),
            false => candle::bail!(
                "Tsne: unique is for one process, got {}; leave it out, or take one process",
                group.world()
            ),
        }
    }

    pub(super) fn n_rows(&self) -> usize {
        self.places.elem_count()
    }

    /// Points.
    pub(super) fn n(&self) -> usize {
        self.firsts.len()
    }

    pub(super) fn places(&self) -> &Tensor {
        &self.places
    }

    /// The first row at each point.
    pub(super) fn firsts(&self) -> &[u32] {
        &self.firsts
    }

    /// Rows at each point, f32 `[n]`.
    pub(super) fn counts(&self) -> &Tensor {
        &self.counts
    }

    /// What each row has of what points have, `[n, ..]`: `[n_rows, ..]`.
    pub(super) fn spread(&self, of_points: &Tensor) -> Result<Tensor> {
        gather_rows_by(&contiguous(of_points)?, &self.places)
    }

    /// What the first row at each point has, of `[n_rows, ..]`: `[n, ..]`.
    pub(super) fn firsts_of(&self, of_rows: &Tensor) -> Result<Tensor> {
        if of_rows.dims().first() != Some(&self.n_rows()) {
            candle::bail!("Tsne: there must be {} rows, got {:?}", self.n_rows(), of_rows.dims())
        }
        gather_rows(&contiguous(of_rows)?, &self.firsts)
    }

    /// The points of a layout in which equal rows have one place, f32 `[n_rows, n_dims]`.
    pub(super) fn points_of(&self, layout: &Tensor) -> Result<Tensor> {
        let points = self.firsts_of(layout)?;
        let host = |t: &Tensor| t.flatten_all()?.to_vec1::<f32>();
        if host(&self.spread(&points)?)? != host(layout)? {
            candle::bail!(
                "Tsne: equal rows must have one place in a layout of unique rows; measure it without unique"
            )
        }
        Ok(points)
    }

    /// The neighbours of each point among all; of one alone there are none.
    pub(super) fn search(
        &self,
        by: By<'_>,
        config: &TsneConfig,
        philox: Philox,
        rows: &Tensor,
    ) -> Result<Found> {
        if self.n() == 1 {
            let neighbours = none(self.places.device())?;
            return Ok(Found { neighbours, recall: Recall::exact(1), unit: 1. });
        }
        search(by, config, philox, &self.firsts_of(rows)?)
    }

    /// Rows that are neighbours of each, at least, where points have `k` neighbours.
    pub(super) fn rows_of_neighbours(&self, k: usize) -> usize {
        if k + 1 < self.n() { k } else { self.n_rows() - 1 }
    }

    /// Neighbours with each point as one of its own, for the other rows at it, and how many rows
    /// each stands for: f32 `[n, k + 1]`.
    pub(super) fn with_own(&self, neighbours: &Neighbours) -> Result<(Neighbours, Tensor)> {
        let Neighbours { indices, distances } = neighbours;
        let ((n, k), device) = (indices.dims2()?, indices.device());
        let own = Tensor::arange(0, n as u32, device)?.unsqueeze(1)?;
        let others = (&self.counts - 1.)?.unsqueeze(1)?;
        if k == 0 {
            return Ok((Neighbours { indices: own, distances: others.zeros_like()? }, others));
        }
        // Where there are no others, nothing is nearer than the nearest.
        let nearest = distances.min_keepdim(1)?;
        let apart = mul(&nearest, &(1. - clamp(&others, 0., 1.)?)?)?;
        let counts = gather_rows_by(&self.counts, &contiguous(indices)?.flatten_all()?)?.reshape((n, k))?;
        let with = |of: &Tensor, own: &Tensor| contiguous(&Tensor::cat(&[of, own], 1)?);
        let near = Neighbours { indices: with(indices, &own)?, distances: with(distances, &apart)? };
        Ok((near, with(&counts, &others)?))
    }

    /// Affinities of a row at each point as `symmetrize` of `n` points makes `P` of them: times
    /// `c n / N`.
    pub(super) fn of_all_rows(&self, p: &Tensor) -> Result<Tensor> {
        let share = self.n() as f64 / self.n_rows() as f64;
        mul(p, &(&self.counts * share)?.unsqueeze(1)?)
    }

    /// `Σ_uv P_uv ln m_uv`
    pub(super) fn of_pairs(&self, affinities: &Affinities) -> Result<f64> {
        let host = |t: &Tensor| t.to_device(&Device::Cpu);
        let offsets = host(&affinities.offsets)?.to_vec1::<u32>()?;
        let columns = host(&affinities.columns)?.to_vec1::<u32>()?;
        let values = host(&affinities.values)?.to_vec1::<f32>()?;
        let counts = host(&self.counts)?.to_dtype(DType::F64)?.to_vec1::<f64>()?;
        let logs: Vec<f64> = counts.iter().map(|count| count.ln()).collect();
        if offsets.len() != counts.len() + 1 || columns.iter().any(|&j| j as usize >= counts.len()) {
            candle::bail!("Tsne: affinities must be of {} points, got {}", counts.len(), affinities.n())
        }
        let of_point = |u: usize| {
            let edges = (offsets[u] as usize..offsets[u + 1] as usize).filter(|&e| values[e] > 0.);
            let log = |v: usize| if u == v { (counts[u] - 1.).ln() } else { logs[v] };
            edges.map(|e| f64::from(values[e]) * (logs[u] + log(columns[e] as usize))).sum::<f64>()
        };
        let n = counts.len();
        let part = |first: usize| (first..n.min(first + POINTS)).map(of_point).sum();
        let parts: Vec<f64> = (0..n).into_par_iter().step_by(POINTS).map(part).collect();
        Ok(parts.iter().sum())
    }
}

/// The neighbours of the only point.
pub(super) fn none(device: &Device) -> Result<Neighbours> {
    let empty = |dtype| Tensor::zeros((1, 0), dtype, device);
    Ok(Neighbours { indices: empty(DType::U32)?, distances: empty(DType::F32)? })
}
