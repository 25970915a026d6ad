//! Sparse rows: the entries that are not 0, by row (CSR).
//!
//! ```text
//! row i: columns[offsets[i] .. offsets[i+1]] ascending, values beside them; all other values are 0
//! ```
//!
//! | symbol    | type  | shape           |
//! |-----------|-------|-----------------|
//! | `offsets` | usize | `[n + 1]`       |
//! | `columns` | u32   | `[n_entries]`   |
//! | `values`  | f32   | `[n_entries]`   |
//!
//! | file                                   | what                                                                      |
//! |----------------------------------------|---------------------------------------------------------------------------|
//! | `.npz` of `scipy.sparse.save_npz`      | csr, csc, coo, bsr, dia                                                   |
//! | `.mtx`, `.mtx.gz`                      | Matrix Market, coordinate or array                                        |
//! | a folder of 10x Genomics               | `matrix.mtx`, `genes.tsv` or `features.tsv`, `barcodes.tsv`, each perhaps `.gz`: a row for each barcode |
//! | `.h5ad`, `.h5` (feature `hdf5`)        | AnnData's `X`, dense or sparse; 10x Genomics' matrix                      |
//!
//! A minibatch is dense. What a [`Preparation`](crate::Preparation) does to each value, and
//! principal components, is done to the entries: see there. Entries that come more than once are
//! summed. Counts stay counts: bytes are not divided by 255.
pub(crate) mod block;
#[cfg(feature = "hdf5")]
pub(crate) mod hdf5;
pub(crate) mod market;
pub(crate) mod scipy;
pub(crate) mod tenx;

pub use block::SparseBlock;

use crate::mapped::{MappedFile, check_extent};
use crate::source::{check_indices, check_read};
use crate::{Error, Result, RowType, Source, Split, count};
use candle::{DType, Device, Tensor};
use chandlery_ops::codes::SparseCodes;
use rayon::prelude::*;
use std::sync::Arc;

/// A data set of sparse rows, in memory or in a temporary file; see the [module](self).
#[derive(Clone)]
pub struct SparseRows {
    n_features: usize,
    offsets: Vec<usize>,
    /// Words in native order.
    columns: MappedFile,
    values: MappedFile,
}

impl std::fmt::Debug for SparseRows {
    /// Says what they are, not the entries.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SparseRows")
            .field("n_samples", &self.n_samples())
            .field("n_features", &self.n_features)
            .field("n_entries", &self.n_entries())
            .finish()
    }
}

/// Columns that a matrix may have: a row becomes dense when a model reads it.
const MAX_FEATURES: usize = 1 << 24;
/// Rows, and columns, that a matrix may have whatever it holds …
const FREE: usize = 1 << 16;
/// … and how many rows, and columns, for each entry of a larger one, so that a damaged header takes
/// no memory.
const PER_ENTRY: [usize; 2] = [64, 4096];

/// What takes entries of a matrix: row, column and value.
pub(crate) type Take<'a> = dyn FnMut(u64, u64, f64) -> Result<()> + 'a;

/// The size of a matrix, and how much of it is wanted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Extent {
    pub n_rows: usize,
    pub n_features: usize,
    /// Rows from the first on.
    pub keep: usize,
    /// Bytes that columns, or values, may take in memory.
    pub limit_bytes: usize,
}

impl SparseRows {
    /// Gathers entries in any order; `each` gives all of them, and is called two or three times.
    /// `at` names their origin in errors.
    pub(crate) fn gather(
        at: &str,
        extent: Extent,
        mut each: impl FnMut(&mut Take<'_>) -> Result<()>,
    ) -> Result<Self> {
        let Extent { n_rows, n_features, keep, limit_bytes } = extent;
        check_extent(at, n_rows, n_features)?;
        if n_features > MAX_FEATURES {
            let what = format!("has {n_features} columns, more than {MAX_FEATURES}");
            return Err(Error::format(at, what, "leave out columns without entries"));
        }
        if n_rows.max(n_features) > FREE {
            let mut n_entries = 0;
            each(&mut |_, _, _| {
                n_entries += 1;
                Ok(())
            })?;
            for (n, of, per_entry) in [(n_rows, "row", PER_ENTRY[0]), (n_features, "column", PER_ENTRY[1])] {
                if n > FREE && n / per_entry > n_entries {
                    let what = format!("says that it has {}, and has {n_entries} entries", count(n, of));
                    return Err(Error::format(at, what, format!("leave out {of}s without entries")));
                }
            }
        }
        let n = n_rows.min(keep);
        let mut offsets = vec![0usize; n + 1];
        each(&mut |i, j, x| {
            if i >= n_rows as u64 || j >= n_features as u64 {
                return Err(Error::format(
                    at,
                    format!(
                        "has an entry at row {i}, column {j} (counted from 0), outside of {} and {}",
                        count(n_rows, "row"),
                        count(n_features, "column")
                    ),
                    "copy or make the file again",
                ));
            }
            let (row, column) = (i as usize, j as usize);
            if !(x as f32).is_finite() {
                return Err(Error::NotFinite { at: at.to_owned(), row, column, value: x as f32 });
            }
            if row < n {
                offsets[row + 1] += 1;
            }
            Ok(())
        })?;
        for i in 0..n {
            offsets[i + 1] += offsets[i];
        }
        let n_entries = offsets.last().copied().unwrap_or(0);
        let mut values = None;
        // Where the next entry of each row goes.
        let mut next = offsets.clone();
        let columns = MappedFile::of_words(n_entries, limit_bytes, |columns| {
            values = Some(MappedFile::of_words(n_entries, limit_bytes, |values| {
                each(&mut |i, j, x| {
                    if let Some(next) = next.get_mut(i as usize).filter(|_| (i as usize) < n)
                        && let (Some(column), Some(value)) = (columns.get_mut(*next), values.get_mut(*next))
                    {
                        (*column, *value) = (j as u32, (x as f32).to_bits());
                        *next += 1;
                    }
                    Ok(())
                })?;
                tidy(at, &mut offsets, columns, values)
            })?);
            Ok(())
        })?;
        // `of_words` calls what fills it once.
        let values = values.map_or_else(|| MappedFile::of_words(0, 0, |_| Ok(())), Ok)?;
        Ok(Self { n_features, offsets, columns, values })
    }

    /// Of entries that are at hand.
    fn of_entries(
        n_rows: usize,
        n_features: usize,
        entries: impl Iterator<Item = (u64, u64, f64)> + Clone,
    ) -> Result<Self> {
        let extent = Extent { n_rows, n_features, keep: n_rows, limit_bytes: usize::MAX };
        Self::gather("SparseRows", extent, |take| entries.clone().try_for_each(|(i, j, x)| take(i, j, x)))
    }

    /// Number of entries.
    pub fn n_entries(&self) -> usize {
        self.offsets.last().copied().unwrap_or(0)
    }

    /// Columns and values, as bits, of row `i`, which is there.
    fn row(&self, i: usize) -> impl Iterator<Item = (u32, u32)> + '_ {
        let place = self.offsets[i] * 4..self.offsets[i + 1] * 4;
        let (columns, _) = self.columns.bytes()[place.clone()].as_chunks::<4>();
        let (values, _) = self.values.bytes()[place].as_chunks::<4>();
        columns.iter().zip(values).map(|(j, x)| (u32::from_ne_bytes(*j), u32::from_ne_bytes(*x)))
    }
}

/// The entries of dense rows, `[n_samples, n_features]` f16, bf16 or f32, that are not 0.
impl TryFrom<&Tensor> for SparseRows {
    type Error = Error;

    fn try_from(rows: &Tensor) -> Result<Self> {
        let (n_rows, n_features) = rows.dims2()?;
        if !matches!(rows.dtype(), DType::F16 | DType::BF16 | DType::F32) {
            return Err(Error::Argument(format!(
                "SparseRows: rows must be f16, bf16 or f32, got {:?}; convert them first",
                rows.dtype()
            )));
        }
        let values: Vec<f32> = rows.flatten_all()?.to_dtype(DType::F32)?.to_vec1()?;
        let entries = (0u64..).zip(&values).filter(|(_, x)| **x != 0.);
        let width = n_features as u64;
        Self::of_entries(n_rows, n_features, entries.map(|(i, &x)| (i / width, i % width, f64::from(x))))
    }
}

/// The codes of f32 as rows of `n_atoms` values.
impl TryFrom<&SparseCodes> for SparseRows {
    type Error = Error;

    fn try_from(codes: &SparseCodes) -> Result<Self> {
        let (indices, values): (Vec<Vec<u32>>, Vec<Vec<f32>>) =
            (codes.indices.to_vec2()?, codes.values.to_vec2()?);
        let entries = (0u64..).zip(indices.iter().zip(&values)).flat_map(|(i, (columns, values))| {
            columns
                .iter()
                .zip(values)
                .filter(|(_, x)| **x != 0.)
                .map(move |(&j, &x)| (i, u64::from(j), f64::from(x)))
        });
        Self::of_entries(indices.len(), codes.n_atoms, entries)
    }
}

/// The rows as a matrix `[n_samples, n_features]` f32 on the CPU, mostly zeros.
impl TryFrom<&SparseRows> for Tensor {
    type Error = Error;

    fn try_from(rows: &SparseRows) -> Result<Self> {
        Split::new(Arc::new(rows.clone()), None)?.raw(&Device::Cpu)
    }
}

/// Brings the entries of each row into the order of their columns, and sums those that come more
/// than once.
fn tidy(at: &str, offsets: &mut [usize], columns: &mut [u32], values: &mut [u32]) -> Result<()> {
    let mut row: Vec<(u32, f32)> = Vec::new();
    let mut end = 0;
    for i in 0..offsets.len().saturating_sub(1) {
        let place = offsets[i]..offsets[i + 1];
        offsets[i] = end;
        if columns[place.clone()].is_sorted_by(|a, b| a < b) {
            if end < place.start {
                columns.copy_within(place.clone(), end);
                values.copy_within(place.clone(), end);
            }
            end += place.len();
            continue;
        }
        row.clear();
        row.extend(
            columns[place.clone()].iter().copied().zip(values[place].iter().map(|&x| f32::from_bits(x))),
        );
        // Stable, so that equal columns are summed in the order of the file.
        row.sort_by_key(|entry| entry.0);
        for same in row.chunk_by(|a, b| a.0 == b.0) {
            let sum: f64 = same.iter().map(|&(_, x)| f64::from(x)).sum();
            if !(sum as f32).is_finite() {
                let (row, column) = (i, same[0].0 as usize);
                return Err(Error::NotFinite { at: at.to_owned(), row, column, value: sum as f32 });
            }
            (columns[end], values[end]) = (same[0].0, (sum as f32).to_bits());
            end += 1;
        }
    }
    if let Some(last) = offsets.last_mut() {
        *last = end;
    }
    Ok(())
}

impl Source for SparseRows {
    fn n_samples(&self) -> usize {
        self.offsets.len().saturating_sub(1)
    }

    fn n_features(&self) -> usize {
        self.n_features
    }

    fn row_type(&self) -> RowType {
        RowType::F32
    }

    fn read_rows(&self, indices: &[u32], out: &mut [u8]) -> Result<()> {
        check_read(self, indices, out)?;
        out.par_chunks_exact_mut(self.n_features * 4).zip(indices).for_each(|(out, &i)| {
            out.fill(0);
            let (out, _) = out.as_chunks_mut::<4>();
            for (j, x) in self.row(i as usize) {
                if let Some(value) = out.get_mut(j as usize) {
                    *value = x.to_ne_bytes();
                }
            }
        });
        Ok(())
    }

    fn read_entries(&self, indices: &[u32]) -> Result<Option<SparseBlock>> {
        check_indices(self, indices)?;
        let mut offsets = Vec::with_capacity(indices.len() + 1);
        offsets.push(0);
        let mut n = 0;
        for &i in indices {
            n += self.offsets[i as usize + 1] - self.offsets[i as usize];
            offsets.push(n);
        }
        let (mut columns, mut values) = (Vec::with_capacity(n), Vec::with_capacity(n));
        for (j, x) in indices.iter().flat_map(|&i| self.row(i as usize)) {
            columns.push(j);
            values.push(f32::from_bits(x));
        }
        Ok(Some(SparseBlock { n_features: self.n_features, offsets, columns, values }))
    }

    fn is_sparse(&self) -> bool {
        true
    }
}
