//! Values in f64 as rows of f32: what is subtracted before they are rounded, and what rounding
//! costs.
//!
//! ```text
//! row_c = f32(x_c − centre_c)
//! cost  = max_c deviation(row_c − (x_c − centre_c)) / deviation(x_c)
//! ```
//!
//! Where a column lies far from 0 and varies little (times in seconds since 1970, say), f32 has few
//! values or one for all of its rows. What compares rows by their differences loses nothing by a
//! centre.
use crate::sink::RowSink;
use crate::source::check_read;
use crate::{Result, Rounding, RowType, Source};
use serde::{Deserialize, Serialize};
use std::sync::{Arc, OnceLock};

/// Values from which centres are found.
const FIRST_VALUES: usize = 1 << 16;
/// A column is centred that lies so many of its deviations from 0: f32 then keeps 14 bits of a
/// deviation or fewer.
const FAR: f64 = 1024.;
/// The cost that is told.
const TOLD: f64 = 1e-4;

/// What is subtracted from the columns of f64 data before rounding. The first data that are read
/// with it decide, unless it is given; a column that f32 holds well gets 0. Clones share it, so
/// that all splits of a data set have the same.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(from = "Option<Vec<f64>>", into = "Option<Vec<f64>>")]
pub struct Centre(Arc<OnceLock<Vec<f64>>>);

impl Centre {
    /// These numbers, one for each column.
    pub fn new(values: Vec<f64>) -> Self {
        Self(Arc::new(OnceLock::from(values)))
    }

    /// The numbers, one for each column; none before data in f64 were read, or where all are 0.
    pub fn values(&self) -> Option<&[f64]> {
        self.0.get().map(Vec::as_slice).filter(|values| values.iter().any(|&x| x != 0.))
    }
}

impl From<Option<Vec<f64>>> for Centre {
    fn from(values: Option<Vec<f64>>) -> Self {
        values.map_or_else(Self::default, Self::new)
    }
}

impl From<Centre> for Option<Vec<f64>> {
    fn from(centre: Centre) -> Self {
        centre.0.get().cloned()
    }
}

impl PartialEq for Centre {
    /// Whether they are one.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Centre {}

/// Rows that know of it.
#[derive(Debug)]
struct Rounded {
    rows: Arc<dyn Source>,
    rounding: Rounding,
}

impl Source for Rounded {
    fn n_samples(&self) -> usize {
        self.rows.n_samples()
    }

    fn n_features(&self) -> usize {
        self.rows.n_features()
    }

    fn row_type(&self) -> RowType {
        self.rows.row_type()
    }

    fn read_rows(&self, indices: &[u32], out: &mut [u8]) -> Result<()> {
        check_read(self, indices, out)?;
        self.rows.read_rows(indices, out)
    }

    fn rounding(&self) -> Option<&Rounding> {
        Some(&self.rounding)
    }
}

/// Sums over a column, of values minus the first one and of errors.
#[derive(Debug, Clone, Copy, Default)]
struct Sums {
    first: f64,
    values: [f64; 2],
    errors: [f64; 2],
}

impl Sums {
    fn add(&mut self, x: f64, error: f64) {
        let apart = x - self.first;
        self.values = [self.values[0] + apart, self.values[1] + apart * apart];
        self.errors = [self.errors[0] + error, self.errors[1] + error * error];
    }

    fn deviation([sum, squares]: [f64; 2], n: f64) -> f64 {
        (squares / n - (sum / n).powi(2)).max(0.).sqrt()
    }
}

/// Takes values in f64, in row-major order, and ends as a [`Source`] of f32.
#[derive(Debug)]
pub(crate) struct RoundedSink {
    sink: RowSink<f32>,
    centre: Option<Centre>,
    /// Values before the centre is known.
    first: Vec<f64>,
    sums: Vec<Sums>,
    n_rows: usize,
    is_begun: bool,
    block: Vec<f32>,
}

impl RoundedSink {
    /// An empty sink that keeps up to `limit_bytes` in memory.
    pub(crate) fn new(limit_bytes: usize, centre: Option<Centre>) -> Self {
        let (sink, first, sums, block) = (RowSink::new(limit_bytes), vec![], vec![], vec![]);
        Self { sink, centre, first, sums, n_rows: 0, is_begun: false, block }
    }

    /// Appends whole rows of `n_features` values.
    pub(crate) fn push(&mut self, values: &[f64], n_features: usize) -> Result<()> {
        if self.is_begun {
            return self.round(values, n_features);
        }
        self.first.extend_from_slice(values);
        if self.first.len() < FIRST_VALUES { Ok(()) } else { self.begin(n_features) }
    }

    /// Finds the centre, and takes the values that waited for it.
    fn begin(&mut self, n_features: usize) -> Result<()> {
        let first = std::mem::take(&mut self.first);
        self.is_begun = true;
        if let Some(centre) = &self.centre {
            centre.0.get_or_init(|| centre_of(&first, n_features));
        }
        self.sums = first.iter().take(n_features).map(|&first| Sums { first, ..Sums::default() }).collect();
        self.round(&first, n_features)
    }

    fn round(&mut self, values: &[f64], n_features: usize) -> Result<()> {
        let centre = self.centre.as_ref().and_then(Centre::values).filter(|of| of.len() == n_features);
        self.block.clear();
        for row in values.chunks_exact(n_features.max(1)) {
            self.n_rows += 1;
            for (c, (&x, sums)) in row.iter().zip(&mut self.sums).enumerate() {
                let wanted = x - centre.map_or(0., |centre| centre[c]);
                let got = wanted as f32;
                sums.add(x, f64::from(got) - wanted);
                self.block.push(got);
            }
        }
        self.sink.push(&self.block)
    }

    /// The rows; `at` names their origin in errors.
    pub(crate) fn finish(mut self, at: &str, n_features: usize) -> Result<Arc<dyn Source>> {
        if !self.is_begun {
            self.begin(n_features)?;
        }
        let n = self.n_rows as f64;
        let costs = self.sums.iter().map(|sums| {
            let deviation = Sums::deviation(sums.values, n);
            if deviation > 0. { Sums::deviation(sums.errors, n) / deviation } else { 0. }
        });
        let most = costs.enumerate().fold((0, 0.), |most, cost| if cost.1 > most.1 { cost } else { most });
        let centre = self.centre.as_ref().and_then(Centre::values).filter(|of| of.len() == n_features);
        let rounding = Rounding {
            centre: centre.unwrap_or_default().to_vec(),
            cost: Some(most).filter(|&(_, cost)| cost > TOLD),
        };
        let rows = self.sink.finish(at, n_features)?;
        match rounding.centre.is_empty() && rounding.cost.is_none() {
            true => Ok(rows),
            false => Ok(Arc::new(Rounded { rows, rounding })),
        }
    }
}

/// For each column its mean where it lies far from 0 and f32 does not hold its values, else 0.
fn centre_of(values: &[f64], n_features: usize) -> Vec<f64> {
    let n = (values.len() / n_features.max(1)) as f64;
    let of_column = |c: usize| {
        let column = || values.iter().skip(c).step_by(n_features).copied();
        let mut sums = Sums { first: values[c], ..Sums::default() };
        column().for_each(|x| sums.add(x, 0.));
        let mean = sums.first + sums.values[0] / n;
        let deviation = Sums::deviation(sums.values, n);
        let is_far = deviation > 0. && mean.abs() > FAR * deviation;
        let is_rounded = || column().any(|x| f64::from(x as f32) != x);
        if is_far && is_rounded() { mean } else { 0. }
    };
    (0..n_features.min(values.len())).map(of_column).collect()
}
