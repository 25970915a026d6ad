//! The rows that excite each latent most, and how often each is active: in one pass over codes.
//!
//! ```text
//! density_j = rows in which latent j is active / rows
//! ```
//!
//! Of rows with equal values the one with the smaller number goes first, so that the result depends
//! on nothing but the codes. Memory: 8 bytes for each row that is kept, and 12 a latent.
use super::{Sae, unit_rows};
use crate::check::at_least_one;
use crate::io::save_tensors;
use candle::{DType, Device, Result, Tensor};
use chandlery_ops::Group;
use chandlery_ops::codes::{SparseCodes, top_k};
use std::collections::HashMap;
use std::path::Path;

/// Products that are held at a time, in values.
const MOST_PRODUCTS: usize = 1 << 25;

/// What is known of latents after the rows so far.
#[derive(Debug, Clone)]
pub struct TopRows {
    n_kept: usize,
    n_rows: usize,
    /// Rows that are kept of each latent, `n_kept` places each, the most exciting first.
    rows: Vec<u32>,
    values: Vec<f32>,
    count: Vec<u32>,
    uses: Vec<u64>,
}

impl TopRows {
    /// Of no rows yet; `n_kept` rows of each latent are to be kept, or 0 for counts alone.
    ///
    /// # Errors
    /// When there are no latents.
    pub fn new(n_latents: usize, n_kept: usize) -> Result<Self> {
        at_least_one("TopRows", "n_latents", n_latents)?;
        let places = n_latents * n_kept;
        Ok(Self {
            n_kept,
            n_rows: 0,
            rows: vec![0; places],
            values: vec![0.; places],
            count: vec![0; n_latents],
            uses: vec![0; n_latents],
        })
    }

    /// Adds the codes of the rows that follow those so far: a latent is active where its value is
    /// above 0. Waits for the device.
    ///
    /// # Errors
    /// When the codes are of other latents, or rows are too many to be numbered by u32.
    pub fn add(&mut self, codes: &SparseCodes) -> Result<()> {
        if codes.n_atoms != self.uses.len() {
            candle::bail!("TopRows::add: codes must be of {} latents, got {}", self.uses.len(), codes.n_atoms)
        }
        let m = codes.count.elem_count();
        if self.n_rows + m > u32::MAX as usize {
            candle::bail!("TopRows::add: rows must be fewer than 2^32, got {}", self.n_rows + m)
        }
        let width = codes.width().max(1);
        let indices = codes.indices.flatten_all()?.to_vec1::<u32>()?;
        let values = codes.values.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?;
        let count = codes.count.to_vec1::<u32>()?;
        let rows = indices.chunks_exact(width).zip(values.chunks_exact(width)).zip(count);
        for (row, ((indices, values), count)) in (self.n_rows as u32..).zip(rows) {
            for (&latent, &value) in indices.iter().zip(values).take(count as usize) {
                if value > 0. {
                    self.see(latent as usize, row, value);
                }
            }
        }
        self.n_rows += m;
        Ok(())
    }

    /// The counts of the rows of all ranks of a group, each of which has added its own, on every
    /// rank; `device` is that of the rank. For counts alone: no rows may be kept. Waits for the
    /// device.
    ///
    /// # Errors
    /// When rows are kept, ranks count other latents, or one is gone.
    pub fn joined(mut self, group: &Group, device: &Device) -> Result<Self> {
        if self.n_kept > 0 {
            candle::bail!("TopRows::joined: n_kept must be 0, for counts alone, got {}", self.n_kept)
        }
        let counts = std::iter::once(self.n_rows as u64).chain(self.uses.iter().copied());
        let counts = Tensor::new(counts.map(|count| count as i64).collect::<Vec<_>>(), device)?;
        group.all_reduce_(&counts)?;
        let mut counts = counts.to_vec1::<i64>()?.into_iter();
        self.n_rows = counts.next().unwrap_or_default() as usize;
        self.uses = counts.map(|count| count as u64).collect();
        Ok(self)
    }

    /// A latent that is active in a row, which comes after all before.
    fn see(&mut self, latent: usize, row: u32, value: f32) {
        let (Some(uses), Some(count)) = (self.uses.get_mut(latent), self.count.get_mut(latent)) else {
            return;
        };
        *uses += 1;
        let places = latent * self.n_kept..(latent + 1) * self.n_kept;
        let (Some(rows), Some(values)) = (self.rows.get_mut(places.clone()), self.values.get_mut(places))
        else {
            return;
        };
        let kept = *count as usize;
        let place = values.get(..kept).unwrap_or_default().partition_point(|&other| other >= value);
        if place == self.n_kept {
            return;
        }
        let last = kept.min(self.n_kept - 1);
        if let (Some(rows), Some(values)) = (rows.get_mut(place..=last), values.get_mut(place..=last)) {
            rows.rotate_right(1);
            values.rotate_right(1);
            if let (Some(first), Some(of_first)) = (rows.first_mut(), values.first_mut()) {
                (*first, *of_first) = (row, value);
            }
        }
        *count = (kept + 1).min(self.n_kept) as u32;
    }

    /// Rows so far.
    pub fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// In how many rows each latent was active.
    pub fn uses(&self) -> &[u64] {
        &self.uses
    }

    /// In what share of rows each latent was active; NaN before the first row.
    pub fn densities(&self) -> Vec<f64> {
        self.uses.iter().map(|&uses| uses as f64 / self.n_rows as f64).collect()
    }

    /// The mean number of active latents of a row.
    pub fn l0(&self) -> f64 {
        self.uses.iter().sum::<u64>() as f64 / self.n_rows as f64
    }

    /// Latents that were never active.
    pub fn n_dead(&self) -> usize {
        self.uses.iter().filter(|&&uses| uses == 0).count()
    }

    /// The rows that are kept of a latent and its values there, the most exciting first; none of a
    /// latent that there is not.
    pub fn of(&self, latent: usize) -> impl Iterator<Item = (u32, f32)> + '_ {
        let first = latent * self.n_kept;
        let places = first..first + self.count.get(latent).map_or(0, |&count| count as usize);
        let rows = self.rows.get(places.clone()).unwrap_or_default();
        rows.iter().copied().zip(self.values.get(places).unwrap_or_default().iter().copied())
    }

    /// Writes `indices`, the numbers of rows, u32 `[n_latents, n_kept]`; `values` there, f32; `count`,
    /// u32 `[n_latents]`, beyond which both are 0; and `uses`, i64 `[n_latents]`; with `n_rows` in the
    /// header.
    ///
    /// # Errors
    /// When the disk refuses; the message names the file.
    pub fn save(&self, path: &Path) -> Result<()> {
        let shape = (self.count.len(), self.n_kept);
        let uses: Vec<i64> = self.uses.iter().map(|&uses| uses as i64).collect();
        let tensors = [
            ("indices", Tensor::from_slice(&self.rows, shape, &Device::Cpu)?),
            ("values", Tensor::from_slice(&self.values, shape, &Device::Cpu)?),
            ("count", Tensor::from_slice(&self.count, shape.0, &Device::Cpu)?),
            ("uses", Tensor::from_vec(uses, shape.0, &Device::Cpu)?),
        ];
        let tensors = tensors.into_iter().map(|(name, t)| (name.to_owned(), t));
        save_tensors(path, tensors, HashMap::from([("n_rows".to_owned(), self.n_rows.to_string())]))
    }
}

/// A latent and the cosine of its decoder row with that of another.
pub type Neighbour = (u32, f32);

impl Sae {
    /// For each of `latents` the others whose decoder rows have the largest cosines with its own,
    /// `k` of them or as many as have one above 0, the nearest first; of equal cosines the smaller
    /// number. One product of `latents` with all latents.
    ///
    /// # Errors
    /// When `k` is 0 or a number names no latent.
    pub fn decoder_neighbours(&self, latents: &[u32], k: usize) -> Result<Vec<Vec<Neighbour>>> {
        at_least_one("Sae::decoder_neighbours", "k", k)?;
        let n = self.config.n_latents;
        if let Some(bad) = latents.iter().find(|&&latent| latent as usize >= n) {
            candle::bail!("Sae::decoder_neighbours: latents must be below {n}, got {bad}")
        }
        let units = unit_rows(&self.decoder.to_dtype(DType::F32)?)?;
        let (of_all, zero) = (units.t()?, Tensor::zeros(n, DType::F32, units.device())?);
        let mut neighbours = Vec::with_capacity(latents.len());
        for block in latents.chunks((MOST_PRODUCTS / n).max(1)) {
            let rows = units.index_select(&Tensor::new(block, units.device())?, 0)?;
            let codes = top_k(&rows.matmul(&of_all)?, &zero, (k + 1).min(n), None)?;
            let (indices, values) = (codes.indices.to_vec2::<u32>()?, codes.values.to_vec2::<f32>()?);
            let counts = codes.count.to_vec1::<u32>()?;
            for (((&own, indices), values), count) in block.iter().zip(indices).zip(values).zip(counts) {
                let pairs = indices.into_iter().zip(values).take(count as usize);
                let mut others: Vec<Neighbour> = pairs.filter(|&(other, _)| other != own).collect();
                others.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
                others.truncate(k);
                neighbours.push(others);
            }
        }
        Ok(neighbours)
    }
}
