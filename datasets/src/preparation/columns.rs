//! Scaling of each column by numbers of its own, and the logarithm.
//!
//! ```text
//! y = (x - c) / s          c, s of each column; y = 0 where the column is constant
//! ```
//!
//! | kind          | `c`     | `s`                                    | after it                        |
//! |---------------|---------|----------------------------------------|---------------------------------|
//! | `Standardise` | mean    | standard deviation, divisor `n`        |                                 |
//! | `MinMax`      | least   | largest - least                        | clipped to [0, 1]               |
//! | `Robust`      | median  | third quartile - first, 1 if that is 0 |                                 |
//!
//! Quartiles lie between two values in proportion (method 7 of Hyndman and Fan, "Sample quantiles in statistical packages", 1996). All
//! is computed in f64.
use super::sparse::{Prepared, sparse_in_order};
use super::statistics::{blocks, in_order};
use super::{Preparation, stored};
use crate::{Error, Result, Split};
use candle::{DType, Device, Tensor};
use std::collections::HashMap;

/// What each column is scaled by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ColumnKind {
    Standardise,
    MinMax,
    Robust,
}

/// Fitted scales of columns; see the [module](self).
#[derive(Debug, Clone)]
pub(super) struct Columns {
    kind: ColumnKind,
    /// `c` and `s`, `[n_features]`, f64 on the CPU; `s` is 0 where the column is constant.
    centre: Tensor,
    spread: Tensor,
    /// `c`, and one over `s` or 0, on the device of the rows.
    applied: [Tensor; 2],
}

/// Values that are held for quartiles, at most: 512 MiB.
const MOST_VALUES: usize = 1 << 27;

impl Columns {
    /// Fits to the rows that `preparation` makes: all of them, or for quartiles those that [`blocks`] draws.
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

    fn new(kind: ColumnKind, centre: Tensor, spread: Tensor, device: &Device) -> Result<Self> {
        let inverse = |s: f64| if s > 0. { 1. / s } else { 0. };
        let scale: Vec<f64> = spread.to_vec1::<f64>()?.into_iter().map(inverse).collect();
        let scale = Tensor::from_vec(scale, spread.dims(), device)?;
        Ok(Self { kind, applied: [centre.to_device(device)?, scale], centre, spread })
    }

    pub(super) fn to_device(&self, device: &Device) -> Result<Self> {
        Self::new(self.kind, self.centre.clone(), self.spread.clone(), device)
    }

    pub(super) fn device(&self) -> &Device {
        self.applied[0].device()
    }

    pub(super) fn kind(&self) -> ColumnKind {
        self.kind
    }

    pub(super) fn n_features(&self) -> usize {
        self.centre.elem_count()
    }

    /// `y` of rows of f64.
    pub(super) fn apply(&self, x: &Tensor) -> candle::Result<Tensor> {
        let [centre, scale] = &self.applied;
        let y = x.broadcast_sub(centre)?.broadcast_mul(scale)?;
        if self.kind == ColumnKind::MinMax { y.clamp(0f64, 1f64) } else { Ok(y) }
    }

    /// `y` of a column's number and its `x`.
    pub(super) fn by_value(&self) -> candle::Result<impl Fn(usize, f64) -> f64> {
        let [centre, scale] = &self.applied;
        let (centre, scale) = (centre.to_vec1::<f64>()?, scale.to_vec1::<f64>()?);
        let clips = self.kind == ColumnKind::MinMax;
        Ok(move |j: usize, x: f64| {
            let y = (x - centre[j]) * scale[j];
            if clips { y.clamp(0., 1.) } else { y }
        })
    }

    /// `x` of rows of f64; a constant column is what it was.
    pub(super) fn inverse(&self, y: &Tensor) -> candle::Result<Tensor> {
        let spread = self.spread.to_device(y.device())?;
        y.broadcast_mul(&spread)?.broadcast_add(&self.applied[0])
    }

    pub(super) fn tensors(&self, prefix: &str) -> HashMap<String, Tensor> {
        let named = [("centre", &self.centre), ("spread", &self.spread)];
        named.map(|(name, t)| (format!("{prefix}.{name}"), t.clone())).into()
    }

    pub(super) fn load(
        kind: ColumnKind,
        n_features: usize,
        tensors: &HashMap<String, Tensor>,
        prefix: &str,
        device: &Device,
    ) -> Result<Self> {
        let centre = stored(tensors, prefix, "centre", &[Some(n_features)])?;
        let spread = stored(tensors, prefix, "spread", &[Some(n_features)])?;
        if let Some(s) = spread.to_vec1::<f64>()?.into_iter().find(|s| *s < 0.) {
            let at = format!("{prefix}.spread");
            return Err(Error::format(
                at,
                format!("must be at least 0, holds {s}"),
                "load what `tensors` gave, unchanged",
            ));
        }
        Self::new(kind, centre, spread, device)
    }
}

/// What one pass over the rows gathers of each column. Means and sums of squares of blocks are joined as in [`Moments`](super::Moments).
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

/// `ln(1 + x)` of rows of f64, of which `first_row` is the first.
pub(super) fn log1p(first_row: usize, x: &Tensor) -> Result<Tensor> {
    // NaN passes: whoever reads the rows reports it.
    if x.elem_count() > 0
        && x.min_all()?.to_scalar::<f64>()? <= -1.
        && let Some((row, column, value)) = first_where(x, |x| x <= -1.)?
    {
        return Err(Error::OutOfDomain { row: first_row + row, column, value });
    }
    Ok((x + 1.)?.log()?)
}

/// Row, column and value of the first entry for which `f` holds.
fn first_where(rows: &Tensor, f: impl Fn(f64) -> bool) -> Result<Option<(usize, usize, f64)>> {
    let width = rows.dim(1)?;
    let values = rows.to_dtype(DType::F64)?.flatten_all()?.to_vec1::<f64>()?;
    let place = values.iter().position(|&x| f(x));
    Ok(place.map(|i| (i / width, i % width, values[i])))
}
