//! `.npz` of `scipy.sparse.save_npz`: the arrays of one matrix, and `format`, which says what they
//! are.
//!
//! | format     | arrays                                                             |
//! |------------|--------------------------------------------------------------------|
//! | csr, csc   | `indptr [n + 1]`, `indices [e]`, `data [e]`, of rows or of columns |
//! | bsr        | the same of blocks, `data [e, height, width]`                      |
//! | coo        | `row [e]`, `col [e]`, `data [e]`, or `coords [2, e]`               |
//! | dia        | `offsets [d]`, `data [d, length]`: `data[k, j]` lies at row `j - offsets[k]`, column `j` |
use super::{Extent, SparseRows, Take};
use crate::named::Named;
use crate::named::Rows;
use crate::npy::{Array, Flat, with_labels};
use crate::npz::Archive;
use crate::options::DataOptions;
use crate::{Dataset, Error, Result};
use std::sync::Arc;

const REMEDY: &str = "write the file again with scipy.sparse.save_npz";

/// Whether arrays of these names are a matrix.
pub(crate) fn is_matrix(names: &[String]) -> bool {
    ["format", "shape", "data"].iter().all(|want| names.iter().any(|name| name == want))
}

/// Opens the matrix.
pub(crate) fn open(archive: &Archive<'_>, options: &DataOptions) -> Result<Dataset> {
    let at = archive.at();
    options.refuse_columns(at, "it holds one sparse matrix")?;
    let refused = |what: String| Error::format(at, what, REMEDY);
    let format = archive.array("format")?.text().unwrap_or_default();
    let shape: Vec<i64> = archive.array("shape")?.wholes()?.iter().collect();
    let &[n_rows, n_features] = shape.as_slice() else {
        return Err(refused(format!("has a matrix of shape {shape:?}, want [n_samples, n_features]")));
    };
    let size = |n: i64| usize::try_from(n).map_err(|_| refused(format!("has a matrix of shape {shape:?}")));
    let (n_rows, n_features) = (size(n_rows)?, size(n_features)?);
    let limit_bytes = options.memory_limit();
    let extent = Extent { n_rows, n_features, keep: options.rows_of(n_rows), limit_bytes };
    let data = archive.array("data")?;
    let rows = match format.as_str() {
        "csr" | "csc" | "bsr" => {
            let (indptr, indices) = (archive.array("indptr")?, archive.array("indices")?);
            let matrix =
                Compressed { at, indptr: indptr.wholes()?, indices: indices.wholes()?, data: data.floats()? };
            let block = block_of(at, &format, &data)?;
            let majors = if format == "csc" { n_features } else { n_rows / block.0 };
            if n_rows % block.0 != 0 || n_features % block.1 != 0 {
                return Err(refused(format!("has blocks of {block:?}, which do not fill {shape:?}")));
            }
            matrix.check(majors, block.0 * block.1)?;
            SparseRows::gather(at, extent, |take| matrix.each(format == "csc", block, take))?
        }
        "coo" => {
            let coords = |name: &str, part: usize| match archive.names().iter().any(|known| known == name) {
                true => archive.array(name).map(|array| (array, 0)),
                false => archive.array("coords").map(|array| (array, part)),
            };
            let ((rows, first), (columns, second)) = (coords("row", 0)?, coords("col", 1)?);
            let (rows, columns, data) = (rows.wholes()?, columns.wholes()?, data.floats()?);
            let n = data.len();
            let place = |part: usize| part * n..(part + 1) * n;
            let ends = [(&rows, place(first).end), (&columns, place(second).end)];
            if let Some((got, want)) = ends.iter().find(|(of, want)| of.len() < *want) {
                return Err(refused(format!("has {} coordinates for {want}", got.len())));
            }
            SparseRows::gather(at, extent, |take| {
                let entries = rows.at(place(first)).zip(columns.at(place(second))).zip(data.iter());
                entries.into_iter().try_for_each(|((i, j), x)| take(number(i), number(j), x))
            })?
        }
        "dia" => {
            let (offsets, &[_, length]) = (archive.array("offsets")?, data.shape()) else {
                return Err(refused(format!("has diagonals of shape {:?}", data.shape())));
            };
            let (offsets, data) = (offsets.wholes()?, data.floats()?);
            SparseRows::gather(at, extent, |take| {
                for (k, offset) in offsets.iter().enumerate() {
                    let columns = (0i64..).take(n_features).zip(data.at(k * length..(k + 1) * length));
                    for (j, x) in columns.filter(|(_, x)| *x != 0.) {
                        let i = j.saturating_sub(offset);
                        // What lies beyond the corners is padding.
                        if (0..n_rows as i64).contains(&i) {
                            take(i as u64, j as u64, x)?;
                        }
                    }
                }
                Ok(())
            })?
        }
        other => {
            return Err(refused(format!("has a matrix of format '{other}', want csr, csc, coo, bsr or dia")));
        }
    };
    with_labels(at, Rows { rows: Arc::new(rows), n_rows, image: None }, options)
}

/// Negative numbers are beyond all rows and columns.
fn number(i: i64) -> u64 {
    u64::try_from(i).unwrap_or(u64::MAX)
}

/// Rows and columns of a block.
fn block_of(at: &str, format: &str, data: &Array) -> Result<(usize, usize)> {
    match (format, data.shape()) {
        ("bsr", &[_, height, width]) if height > 0 && width > 0 => Ok((height, width)),
        ("csr" | "csc", [_]) => Ok((1, 1)),
        (_, shape) => Err(Error::format(at, format!("has {format} data of shape {shape:?}"), REMEDY)),
    }
}

/// A matrix by rows or columns of blocks.
pub(super) struct Compressed<'a, P = Flat<'a, i64>, X = Flat<'a, f64>> {
    pub(super) at: &'a str,
    pub(super) indptr: P,
    pub(super) indices: P,
    pub(super) data: X,
}

impl Compressed<'_> {
    /// Refuses pointers that do not ascend from 0 to the number of indices, and other data than
    /// there are indices.
    fn check(&self, majors: usize, block: usize) -> Result<()> {
        let n = self.indices.len();
        let refused = |what: String| Err(Error::format(self.at, what, REMEDY));
        if self.indptr.len() != majors + 1 {
            return refused(format!("has {} pointers, want {}", self.indptr.len(), majors + 1));
        }
        let ends = (self.indptr.iter().next(), self.indptr.iter().last());
        if ends != (Some(0), Some(n as i64)) || !self.indptr.iter().is_sorted() {
            return refused(format!("has pointers that do not ascend from 0 to its {n} indices"));
        }
        if Some(self.data.len()) != n.checked_mul(block) {
            return refused(format!("has {} values for {n} indices", self.data.len()));
        }
        Ok(())
    }

    /// Gives all entries; `turned` where the pointers are those of columns.
    fn each(&self, turned: bool, (height, width): (usize, usize), take: &mut Take<'_>) -> Result<()> {
        let mut data = self.data.iter();
        let mut indices = self.indices.iter();
        let counts = self.indptr.iter().zip(self.indptr.iter().skip(1)).map(|(a, b)| b - a);
        for (major, count) in counts.enumerate() {
            for index in indices.by_ref().take(count as usize) {
                for (a, b) in (0..height).flat_map(|a| (0..width).map(move |b| (a, b))) {
                    let Some(x) = data.next() else { return Ok(()) };
                    let (i, j) = (
                        major * height + a,
                        number(index).saturating_mul(width as u64).saturating_add(b as u64),
                    );
                    // Zeros that fill blocks are no entries.
                    if height * width > 1 && x == 0. {
                        continue;
                    }
                    if turned { take(j, i as u64, x)? } else { take(i as u64, j, x)? }
                }
            }
        }
        Ok(())
    }
}
