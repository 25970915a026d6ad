//! Some sparse rows in memory.
use crate::{Error, Result};

/// Some sparse rows in memory; see the [module](super).
#[derive(Debug, Clone, PartialEq)]
pub struct SparseBlock {
    pub(super) n_features: usize,
    pub(super) offsets: Vec<usize>,
    pub(super) columns: Vec<u32>,
    pub(super) values: Vec<f32>,
}

impl SparseBlock {
    /// Rows of `n_features` values by their entries, as the [module](super) says.
    ///
    /// # Errors
    /// When the offsets do not ascend from 0 to the number of entries, columns of a row do not
    /// ascend below `n_features`, or a value is not finite.
    pub fn new(n_features: usize, offsets: Vec<usize>, columns: Vec<u32>, values: Vec<f32>) -> Result<Self> {
        let refused = |what: String| Err(Error::Argument(format!("SparseBlock: {what}")));
        if offsets.first() != Some(&0) || !offsets.is_sorted() || offsets.last() != Some(&columns.len()) {
            return refused(format!(
                "offsets must ascend from 0 to the number of entries, {}",
                columns.len()
            ));
        }
        if columns.len() != values.len() {
            return refused(format!(
                "columns and values must be as many, got {} and {}",
                columns.len(),
                values.len()
            ));
        }
        let block = Self { n_features, offsets, columns, values };
        for i in 0..block.n_samples() {
            let (columns, values) = block.row(i);
            if !columns.is_sorted_by(|a, b| a < b)
                || columns.last().is_some_and(|&c| c as usize >= n_features)
            {
                return refused(format!("columns of row {i} must ascend below n_features = {n_features}"));
            }
            if let Some(e) = values.iter().position(|v| !v.is_finite()) {
                let column = columns[e] as usize;
                return Err(Error::NotFinite {
                    at: "SparseBlock".to_owned(),
                    row: i,
                    column,
                    value: values[e],
                });
            }
        }
        Ok(block)
    }

    /// Number of rows.
    pub fn n_samples(&self) -> usize {
        self.offsets.len().saturating_sub(1)
    }

    /// Values in a row.
    pub fn n_features(&self) -> usize {
        self.n_features
    }

    /// Number of entries.
    pub fn n_entries(&self) -> usize {
        self.columns.len()
    }

    /// Columns and values of the entries of row `i`.
    ///
    /// # Panics
    /// When `i` is not below [`n_samples`](Self::n_samples).
    pub fn row(&self, i: usize) -> (&[u32], &[f32]) {
        let place = self.offsets[i]..self.offsets[i + 1];
        (&self.columns[place.clone()], &self.values[place])
    }

    /// The number of each entry's row, its column and the value, to be changed.
    pub(crate) fn entries_mut(&mut self) -> impl Iterator<Item = (usize, usize, &mut f32)> {
        let Self { offsets, columns, values, .. } = self;
        let rows = offsets.windows(2).enumerate();
        let rows = rows.flat_map(|(i, ends)| std::iter::repeat_n(i, ends[1].saturating_sub(ends[0])));
        rows.zip(columns.iter()).zip(values).map(|((i, &j), x)| (i, j as usize, x))
    }

    /// All entries: column and value.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (usize, f32)> {
        self.columns.iter().zip(&self.values).map(|(&j, &x)| (j as usize, x))
    }
}
