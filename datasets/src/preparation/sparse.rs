//! Preparation of sparse rows, which stay sparse as long as steps work on each value of a column
//! alone.
//!
//! ```text
//! x_ij = value of entry (i, j) where there is one, else b_j        b the background, 0 in raw rows
//! step:  entries and background alike                              scale, center, standardise, minmax, robust, log1p
//!        entries, by the sum of their row                          row-sum, while the background is 0
//! (x_i − μ) V = Σ_entries (x_ij − b_j) V_j + (b − μ) V             a product with principal directions V, μ the mean
//! ```
//!
//! So nothing is lost by centring, and a row costs its entries. In the column of which every row
//! has an entry, `b_j` is on no row and counts as `μ_j`: sums then lose nothing where the column
//! lies far from 0.
//!
//! Principal components are found by products with the covariance ([`krylov`](super::krylov)), each
//! a pass over the same rows that dense ones are fitted to. A step of each row's own (row mean,
//! contrast) makes the rows dense, block by block.
use super::chain::Preparation;
use super::krylov;
use super::pca::{PASSES_TOLERANCE, Pca, Principal};
use super::statistics::{MOST_ROWS, block_rows, in_order};
use super::step::Step;
use crate::order::Orders;
use crate::{Error, Result, SparseBlock, Split};
use candle::{DType, Device, Tensor};
use rayon::prelude::*;

/// Rows that are read at once.
const BLOCK: usize = 1024;
/// Parts of a pass, each with sums of its own; whatever the number of threads, so that sums do not
/// depend on it.
const PARTS: usize = 8;

/// Sparse rows over a background.
#[derive(Debug, Clone)]
pub(super) struct Prepared {
    pub block: SparseBlock,
    pub background: Vec<f32>,
}

impl Prepared {
    fn raw(block: SparseBlock) -> Self {
        Self { background: vec![0.; block.n_features()], block }
    }

    /// `f` of column and value of all entries and of the background; errors name the row, counted
    /// from `first_row`.
    fn map(&mut self, first_row: usize, f: impl Fn(usize, f32) -> Result<f32>) -> Result<()> {
        for (i, column, x) in self.block.entries_mut() {
            let row = first_row + i;
            *x = f(column, *x).map_err(|e| e.of_row(|_| row))?;
            if !x.is_finite() {
                return Err(Error::NotFinite { at: "Preparation".to_owned(), row, column, value: *x });
            }
        }
        for (j, x) in self.background.iter_mut().enumerate() {
            *x = f(j, *x)?;
        }
        Ok(())
    }

    /// The rows, f32 `[n, n_features]`.
    pub(super) fn dense(&self) -> Result<Tensor> {
        let (n, width) = (self.block.n_samples(), self.block.n_features());
        let mut values = Vec::with_capacity(n * width);
        for i in 0..n {
            let first = values.len();
            values.extend_from_slice(&self.background);
            let (columns, entries) = self.block.row(i);
            columns.iter().zip(entries).for_each(|(&j, &x)| values[first + j as usize] = x);
        }
        Ok(Tensor::from_vec(values, (n, width), &Device::Cpu)?)
    }
}

impl Step {
    /// Whether it works on each value of a column alone.
    fn is_by_value(&self) -> bool {
        matches!(self, Self::Scale(_) | Self::Center(_) | Self::Columns(_) | Self::Log1p)
    }

    /// The same of sparse rows; of such a step.
    fn apply_sparse(&self, first_row: usize, rows: &mut Prepared) -> Result<()> {
        match self {
            Self::Scale(factor) => rows.map(first_row, |_, x| Ok(x * *factor as f32)),
            Self::Log1p => rows.map(first_row, |column, x| match f64::from(x) {
                x if x > -1. => Ok((x + 1.).ln() as f32),
                value => Err(Error::OutOfDomain { row: 0, column, value }),
            }),
            Self::Center(mean) => {
                check_width(rows, mean.fitted.elem_count())?;
                let mean: Vec<f32> = mean.fitted.to_dtype(DType::F32)?.to_vec1()?;
                rows.map(first_row, |j, x| Ok(x - mean[j]))
            }
            Self::Columns(columns) => {
                check_width(rows, columns.n_features())?;
                let of_column = columns.by_value()?;
                rows.map(first_row, |j, x| Ok(of_column(j, x.into()) as f32))
            }
            Self::RowSum { total } => {
                let mut sums = vec![0f64; rows.block.n_samples()];
                rows.block.entries_mut().for_each(|(i, _, x)| sums[i] += f64::from(x.abs()));
                for (i, _, x) in rows.block.entries_mut().filter(|(i, ..)| sums[*i] > 0.) {
                    *x = (f64::from(*x) * (total / sums[i])) as f32;
                }
                Ok(())
            }
            _ => Err(Error::Argument("Preparation: a step of whole rows was given entries".to_owned())),
        }
    }
}

fn check_width(rows: &Prepared, want: usize) -> Result<()> {
    match rows.block.n_features() {
        got if got == want => Ok(()),
        got => Err(Error::Argument(format!("Preparation: rows must have {want} values, got {got}"))),
    }
}

impl Preparation {
    /// Whether sparse rows stay so through all of its steps.
    pub(super) fn keeps_sparse(&self) -> bool {
        self.n_sparse() == self.steps.len()
    }

    /// The first steps through which sparse rows stay so.
    fn n_sparse(&self) -> usize {
        // Whether the background is 0.
        let mut is_zero = true;
        let stays = |step: &&Step| {
            let stays = step.is_by_value() || matches!(step, Step::RowSum { .. }) && is_zero;
            is_zero &= matches!(step, Step::Scale(_) | Step::Log1p | Step::RowSum { .. });
            stays
        };
        self.steps.iter().take_while(stays).count()
    }

    /// Sparse rows after its first steps, `first_row` the first of them, and how many steps that
    /// were.
    fn sparse(&self, first_row: usize, block: SparseBlock) -> Result<(Prepared, usize)> {
        let mut rows = Prepared::raw(block);
        let n = self.n_sparse();
        let mut factor = 1.;
        for step in &self.steps[..n] {
            match step {
                // Factors in a row are one in f64, as of dense rows.
                Step::Scale(c) => factor *= c,
                step => {
                    scale(&mut rows, std::mem::replace(&mut factor, 1.))?;
                    step.apply_sparse(first_row, &mut rows)?;
                }
            }
        }
        scale(&mut rows, factor)?;
        Ok((rows, n))
    }

    /// What a model reads of all rows of a split: `[n_samples, n_outputs]`, f32 on `device`. Sparse
    /// rows become dense after the steps that keep them sparse, a block at a time, so that those
    /// before principal components take no memory.
    ///
    /// # Errors
    /// When a row cannot be read, has no logarithm where one is taken, or does not fit the steps;
    /// or memory is short.
    pub fn apply_split(&self, split: &Split, device: &Device) -> Result<Tensor> {
        let mut done = Vec::new();
        if !split.rows.is_sparse() {
            in_order(split, self, |_, rows| {
                done.push(rows.force_contiguous()?.to_dtype(DType::F32)?);
                Ok(())
            })?;
        } else {
            let block = |&first: &usize| -> Result<Tensor> {
                let (rows, n) = self.sparse(first, read(split, first)?)?;
                let (x, n) = match self.steps.get(n) {
                    Some(Step::Pca(pca)) => (coordinates(pca, &rows)?, n + 1),
                    _ => (rows.dense()?, n),
                };
                let rest = Self { steps: self.steps[n..].to_vec(), ..self.clone() };
                rest.apply_from(first, &x)
            };
            let firsts: Vec<usize> = (0..split.n_samples()).step_by(BLOCK).collect();
            for some in firsts.chunks(2 * rayon::current_num_threads()) {
                let blocks: Result<Vec<_>> = some.par_iter().map(block).collect();
                done.extend(blocks.map_err(|e| e.of_row(|row| split.rows.origin(row)))?);
            }
        }
        Ok(Tensor::cat(&done, 0)?.to_device(device)?)
    }
}

fn scale(rows: &mut Prepared, factor: f64) -> Result<()> {
    if factor == 1. { Ok(()) } else { rows.map(0, |_, x| Ok(x * factor as f32)) }
}

/// The entries of the rows from `first` on.
fn read(split: &Split, first: usize) -> Result<SparseBlock> {
    let end = split.n_samples().min(first + BLOCK);
    entries(split, &(first as u32..end as u32).collect::<Vec<_>>())
}

fn entries(split: &Split, indices: &[u32]) -> Result<SparseBlock> {
    let block = split.rows.read_entries(indices)?;
    block.ok_or_else(|| Error::Argument("Source: is_sparse without entries".to_owned()))
}

/// Gives all sparse rows of a split, prepared, to `f` in order; of a preparation that keeps them
/// sparse.
pub(super) fn sparse_in_order(
    split: &Split,
    preparation: &Preparation,
    mut f: impl FnMut(&Prepared) -> Result<()>,
) -> Result<()> {
    for first in (0..split.n_samples()).step_by(BLOCK) {
        let done = read(split, first).and_then(|block| preparation.sparse(first, block));
        f(&done.map_err(|e| e.of_row(|row| split.rows.origin(row)))?.0)?;
    }
    Ok(())
}

/// Coordinates of sparse rows along principal directions, f32 `[n, n_components]`.
fn coordinates(pca: &Pca, rows: &Prepared) -> Result<Tensor> {
    check_width(rows, pca.n_features())?;
    let k = pca.n_components();
    // Differences to the mean are small where the background is the mean.
    let mean: Vec<f64> = pca.mean().to_vec1()?;
    let directions: Vec<f64> = pca.components().t()?.flatten_all()?.to_vec1()?;
    let mut away = vec![0f64; k];
    for ((&b, mean), direction) in rows.background.iter().zip(&mean).zip(directions.chunks_exact(k)) {
        add(&mut away, f64::from(b) - mean, direction);
    }
    let mut out = Vec::with_capacity(rows.block.n_samples() * k);
    for i in 0..rows.block.n_samples() {
        let mut y = away.clone();
        let (columns, values) = rows.block.row(i);
        for (&j, &x) in columns.iter().zip(values) {
            let j = j as usize;
            add(&mut y, f64::from(x) - f64::from(rows.background[j]), &directions[j * k..(j + 1) * k]);
        }
        out.extend(y.into_iter().map(|y| y as f32));
    }
    Ok(Tensor::from_vec(out, (rows.block.n_samples(), k), &Device::Cpu)?)
}

fn add(y: &mut [f64], factor: f64, x: &[f64]) {
    y.iter_mut().zip(x).for_each(|(y, x)| *y += factor * x);
}

/// The principal components of sparse rows, prepared by steps that keep them so: of those rows that
/// [`blocks`](super::statistics::blocks) draws.
pub(super) fn pca(
    split: &Split,
    preparation: &Preparation,
    n_components: usize,
    seed: u64,
) -> Result<Principal> {
    let n_samples = split.n_samples();
    let most = MOST_ROWS.next_multiple_of(block_rows(split.n_features()));
    let drawn = Orders { n_samples, seed, shuffle: true, mix: None }.of(0).rows(0..n_samples.min(most));
    let prepare = |rows: &[u32]| -> Result<SparseBlock> {
        let prepared = preparation.sparse(0, entries(split, rows)?);
        let place = |row: usize| split.rows.origin(rows.get(row).map_or(row, |&row| row as usize));
        Ok(prepared.map_err(|e| e.of_row(place))?.0.block)
    };
    let blocks: Vec<SparseBlock> = drawn.par_chunks(BLOCK).map(prepare).collect::<Result<_>>()?;
    let background = preparation.sparse(0, entries(split, &[])?)?.0.background;
    Covariance::new(blocks, &background)?.principal(n_components)
}

/// Products with the covariance of sparse rows.
struct Covariance {
    blocks: Vec<SparseBlock>,
    n: f64,
    mean: Vec<f64>,
    /// `b`.
    background: Vec<f64>,
    /// `Σ λ`.
    total: f64,
}

impl Covariance {
    fn new(blocks: Vec<SparseBlock>, background: &[f32]) -> Result<Self> {
        let n: usize = blocks.iter().map(SparseBlock::n_samples).sum();
        if n < 2 {
            return Err(Error::Argument(format!("Pca: a covariance needs at least 2 rows, got {n}")));
        }
        let d = background.len();
        let mut background: Vec<f64> = background.iter().map(|&b| b.into()).collect();
        let (mut counts, mut sums) = (vec![0usize; d], vec![0f64; d]);
        for (j, x) in blocks.iter().flat_map(SparseBlock::entries) {
            counts[j] += 1;
            sums[j] += f64::from(x) - background[j];
        }
        let of_n = n as f64;
        let mean: Vec<f64> = sums.iter().zip(&background).map(|(sum, b)| b + sum / of_n).collect();
        for j in (0..d).filter(|&j| counts[j] == n) {
            background[j] = mean[j];
        }
        let mut squares = vec![0f64; d];
        for (j, x) in blocks.iter().flat_map(SparseBlock::entries) {
            squares[j] += (f64::from(x) - mean[j]).powi(2);
        }
        let rest = |j: usize| (n - counts[j]) as f64 * (background[j] - mean[j]).powi(2);
        let total = (0..d).map(|j| squares[j] + rest(j)).sum::<f64>() / (of_n - 1.);
        Ok(Self { blocks, n: of_n, mean, background, total })
    }

    fn principal(&self, n_components: usize) -> Result<Principal> {
        let d = self.mean.len();
        let (variance, directions) = krylov::leading(d, n_components, PASSES_TOLERANCE, |v| self.product(v))?;
        let mean = Tensor::from_slice(&self.mean, d, &Device::Cpu)?;
        Principal::found(mean, variance, directions.flatten_all()?.to_vec1()?, self.total)
    }

    /// `V C` of `V`, `[b, d]` f64.
    fn product(&self, v: &Tensor) -> Result<Tensor> {
        let (b, d) = v.dims2()?;
        // A direction's values for a feature lie together.
        let v: Vec<f64> = v.t()?.flatten_all()?.to_vec1()?;
        let mut away = vec![0f64; b];
        for ((bg, mean), v) in self.background.iter().zip(&self.mean).zip(v.chunks_exact(b)) {
            add(&mut away, bg - mean, v);
        }
        let parts: Vec<(Vec<f64>, Vec<f64>)> = self
            .blocks
            .par_chunks(self.blocks.len().div_ceil(PARTS).max(1))
            .map(|blocks| self.part(blocks, &v, &away))
            .collect();
        let (mut sum, mut along) = (vec![0f64; d * b], vec![0f64; b]);
        for (part, of_part) in parts {
            add(&mut sum, 1., &part);
            add(&mut along, 1., &of_part);
        }
        for ((bg, mean), sum) in self.background.iter().zip(&self.mean).zip(sum.chunks_exact_mut(b)) {
            add(sum, bg - mean, &along);
        }
        sum.iter_mut().for_each(|x| *x /= self.n - 1.);
        Ok(Tensor::from_vec(sum, (d, b), &Device::Cpu)?.t()?.contiguous()?)
    }

    /// `Σ_i Σ_entries (x_ij − b_j) y_i`, `[d, b]`, and `Σ_i y_i` with `y_i = (x_i − μ) V` over some
    /// rows.
    fn part(&self, blocks: &[SparseBlock], v: &[f64], away: &[f64]) -> (Vec<f64>, Vec<f64>) {
        let b = away.len();
        let (mut sum, mut along) = (vec![0f64; v.len()], vec![0f64; b]);
        let mut y = vec![0f64; b];
        for block in blocks {
            for i in 0..block.n_samples() {
                let (columns, values) = block.row(i);
                let entries = || {
                    let entry =
                        |(&j, &x): (&u32, &f32)| (j as usize, f64::from(x) - self.background[j as usize]);
                    columns.iter().zip(values).map(entry)
                };
                y.copy_from_slice(away);
                entries().for_each(|(j, x)| add(&mut y, x, &v[j * b..(j + 1) * b]));
                entries().for_each(|(j, x)| add(&mut sum[j * b..(j + 1) * b], x, &y));
                add(&mut along, 1., &y);
            }
        }
        (sum, along)
    }
}
