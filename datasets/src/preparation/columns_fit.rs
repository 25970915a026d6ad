//! Scales of columns, fitted to rows.
use super::chain::Preparation;
use super::columns::{ColumnKind, Columns, first_where};
use super::sparse::{Prepared, sparse_in_order};
use super::statistics::{blocks, in_order};
use crate::{Error, Result, Split};
use candle::{DType, Device, Tensor};

/// Values that are held for quartiles, at most: 512 MiB.
const MOST_VALUES: usize = 1 << 27;

impl Columns {
    /// Fits to the rows that `preparation` makes: all of them, or for quartiles those that
    /// [`blocks`] draws.
    pub(super) fn fit(kind: ColumnKind, split: &Split, preparation: &Preparation, seed: u64) -> Result<Self> {
        let n_features = preparation.n_outputs(split.n_features())?;
        let (centre, spread) = match kind {
            ColumnKind::Robust => quartiles(split, preparation, seed, n_features)?,
            _ => {
                let mut sums = Sums::new(n_features);
                match split.rows.is_sparse() && preparation.keeps_sparse() {
                    true => sparse_in_order(split, preparation, |rows| {
                        sums.add_sparse(rows);
                        Ok(())
                    })?,
                    false => in_order(split, preparation, |first, rows| sums.add(first, rows))?,
                }
                sums.scales(kind)
            }
        };
        let vector = |v: Vec<f64>| Tensor::from_vec(v, n_features, &Device::Cpu);
        Self::new(kind, vector(centre)?, vector(spread)?, &Device::Cpu)
    }
}

/// What one pass over the rows gathers of each column. Means and sums of squares of blocks are
/// joined as in [`Moments`](super::Moments).
struct Sums {
    n: f64,
    mean: Vec<f64>,
    /// `Σ (x - mean)²`
    squares: Vec<f64>,
    least: Vec<f64>,
    most: Vec<f64>,
}

impl Sums {
    fn new(n_features: usize) -> Self {
        let all = |x: f64| vec![x; n_features];
        Self {
            n: 0.,
            mean: all(0.),
            squares: all(0.),
            least: all(f64::INFINITY),
            most: all(f64::NEG_INFINITY),
        }
    }

    fn add(&mut self, first_row: usize, rows: &Tensor) -> Result<()> {
        finite(first_row, rows)?;
        let x = rows.to_dtype(DType::F64)?;
        let mean = x.mean(0)?;
        let squares = x.broadcast_sub(&mean)?.sqr()?.sum(0)?.to_vec1::<f64>()?;
        let (least, most) = (x.min(0)?.to_vec1::<f64>()?, x.max(0)?.to_vec1::<f64>()?);
        self.join(x.dim(0)? as f64, &mean.to_vec1::<f64>()?, &squares, &least, &most);
        Ok(())
    }

    /// The same of sparse rows, finite.
    fn add_sparse(&mut self, rows: &Prepared) {
        let (n, d) = (rows.block.n_samples(), rows.background.len());
        let background = |j: usize| f64::from(rows.background[j]);
        let mut block = Self::new(d);
        let mut counts = vec![0usize; d];
        for (j, x) in rows.block.entries().map(|(j, x)| (j, f64::from(x))) {
            counts[j] += 1;
            block.mean[j] += (x - background(j)) / n as f64;
            (block.least[j], block.most[j]) = (block.least[j].min(x), block.most[j].max(x));
        }
        for (j, &count) in counts.iter().enumerate() {
            block.mean[j] += background(j);
            if count < n {
                let x = background(j);
                block.squares[j] = (n - count) as f64 * (x - block.mean[j]).powi(2);
                (block.least[j], block.most[j]) = (block.least[j].min(x), block.most[j].max(x));
            }
        }
        for (j, x) in rows.block.entries() {
            block.squares[j] += (f64::from(x) - block.mean[j]).powi(2);
        }
        self.join(n as f64, &block.mean, &block.squares, &block.least, &block.most);
    }

    fn join(&mut self, n_b: f64, mean: &[f64], squares: &[f64], least: &[f64], most: &[f64]) {
        let n = self.n + n_b;
        for j in 0..self.mean.len() {
            let delta = mean[j] - self.mean[j];
            self.squares[j] += squares[j] + delta * delta * self.n * n_b / n;
            self.mean[j] += delta * n_b / n;
            self.least[j] = self.least[j].min(least[j]);
            self.most[j] = self.most[j].max(most[j]);
        }
        self.n = n;
    }

    fn scales(self, kind: ColumnKind) -> (Vec<f64>, Vec<f64>) {
        let Self { n, mean, squares, least, most } = self;
        // Rounding alone could make a constant column vary about its mean.
        let range: Vec<f64> = most.iter().zip(&least).map(|(most, least)| most - least).collect();
        match kind {
            ColumnKind::MinMax => (least, range),
            _ => {
                let stdev =
                    |(squares, range): (f64, &f64)| if *range > 0. { (squares / n).sqrt() } else { 0. };
                (mean, squares.into_iter().zip(&range).map(stdev).collect())
            }
        }
    }
}

/// The median and the distance of the quartiles of each column.
fn quartiles(
    split: &Split,
    preparation: &Preparation,
    seed: u64,
    n_features: usize,
) -> Result<(Vec<f64>, Vec<f64>)> {
    in_order(split, preparation, finite)?;
    let mut columns = vec![Vec::new(); n_features];
    let most = (MOST_VALUES / n_features.max(1)).max(1);
    blocks(split, preparation, seed, |rows| {
        if columns.first().is_some_and(|column| column.len() < most) {
            for (column, values) in columns.iter_mut().zip(rows.t()?.to_vec2::<f32>()?) {
                column.extend(values);
            }
        }
        Ok(())
    })?;
    let of = |mut column: Vec<f32>| {
        column.sort_unstable_by(f32::total_cmp);
        let at = |share: f64| {
            let place = share * (column.len() - 1) as f64;
            let (below, part) = (f64::from(column[place.floor() as usize]), place.fract());
            below + part * (f64::from(column[place.ceil() as usize]) - below)
        };
        let spread = at(0.75) - at(0.25);
        let constant = column.first() == column.last();
        (at(0.5), if spread > 0. || constant { spread } else { 1. })
    };
    Ok(columns.into_iter().map(of).unzip())
}

/// Refuses a NaN or an infinity in rows, the first of which is `first_row`.
fn finite(first_row: usize, rows: &Tensor) -> Result<()> {
    match first_where(rows, |x| !x.is_finite())? {
        Some((row, column, value)) => Err(Error::NotFinite {
            at: "Preparation".to_owned(),
            row: first_row + row,
            column,
            value: value as f32,
        }),
        None => Ok(()),
    }
}
