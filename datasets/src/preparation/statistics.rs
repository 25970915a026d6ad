//! Mean, spread and range of rows.
use super::chain::Preparation;
use crate::{Feed, FeedConfig, Result, Split};
use candle::{DType, Device, Tensor};

/// Rows that statistics are taken over; more would not change their third digit.
pub(super) const MOST_ROWS: usize = 65_536;

/// Rows of `n_features` that are read at once: 64 MiB or less of them.
pub(super) fn block_rows(n_features: usize) -> usize {
    ((1 << 24) / n_features.max(1)).clamp(1, 1000)
}

/// What rows look like when they are prepared.
#[derive(Debug, Clone, PartialEq)]
pub struct RowStatistics {
    /// Mean of each feature.
    pub mean: Vec<f32>,
    /// Smallest and largest value of each feature.
    pub least: Vec<f32>,
    /// See `least`.
    pub most: Vec<f32>,
    /// Standard deviation over all rows and features, about each feature's own mean.
    pub stdev: f64,
    /// Smallest value.
    pub min: f32,
    /// Largest value.
    pub max: f32,
}

impl RowStatistics {
    /// Of at most 65,536 rows, drawn with `seed` where there are more; one pass, in f64 on the CPU.
    ///
    /// # Errors
    /// When a row cannot be read or the preparation is for other rows.
    pub fn of(split: &Split, preparation: &Preparation, seed: u64) -> Result<Self> {
        let n_features = preparation.n_outputs(split.n_features())?;
        let (mut sum, mut squares) = (vec![0f64; n_features], vec![0f64; n_features]);
        let (mut least, mut most) = (vec![f32::INFINITY; n_features], vec![f32::NEG_INFINITY; n_features]);
        let mut n = 0;
        blocks(split, preparation, seed, |rows| {
            for row in rows.to_dtype(DType::F32)?.to_vec2::<f32>()? {
                let ranges = least.iter_mut().zip(&mut most);
                for (((x, sum), squares), (min, max)) in
                    row.into_iter().zip(&mut sum).zip(&mut squares).zip(ranges)
                {
                    (*min, *max) = (min.min(x), max.max(x));
                    *sum += f64::from(x);
                    *squares += f64::from(x) * f64::from(x);
                }
                n += 1;
            }
            Ok(())
        })?;
        let n = n as f64;
        let variance = |(sum, squares): (&f64, &f64)| (squares / n - (sum / n).powi(2)).max(0.);
        let total: f64 = sum.iter().zip(&squares).map(variance).sum();
        Ok(Self {
            mean: sum.iter().map(|sum| (sum / n) as f32).collect(),
            stdev: (total / n_features as f64).sqrt(),
            min: least.iter().copied().fold(f32::INFINITY, f32::min),
            max: most.iter().copied().fold(f32::NEG_INFINITY, f32::max),
            least,
            most,
        })
    }
}

/// Gives prepared rows to `f` a block at a time, on the CPU: at most 65,536, drawn with `seed`
/// where there are more.
pub(super) fn blocks(
    split: &Split,
    preparation: &Preparation,
    seed: u64,
    mut f: impl FnMut(&Tensor) -> Result<()>,
) -> Result<()> {
    let config = FeedConfig {
        resident_bytes: None,
        chunk_bytes: 8 << 20,
        ..FeedConfig::new(block_rows(split.n_features()), seed)
    };
    let mut feed = Feed::new(split, &Device::Cpu, config)?;
    feed.start_epoch(0, 0)?;
    let mut n = 0;
    while n < MOST_ROWS
        && let Some(minibatch) = feed.next()?
    {
        n += minibatch.rows.dim(0)?;
        f(&preparation.apply_as(&minibatch.rows, DType::F32)?)?;
    }
    Ok(())
}

/// Gives all prepared rows to `f` a block at a time in the order of the source, on the CPU, with
/// the number of the first row.
pub(super) fn in_order(
    split: &Split,
    preparation: &Preparation,
    mut f: impl FnMut(usize, &Tensor) -> Result<()>,
) -> Result<()> {
    let config = FeedConfig {
        resident_bytes: None,
        chunk_bytes: 8 << 20,
        ..FeedConfig::in_order(block_rows(split.n_features()))
    };
    let mut feed = Feed::new(split, &Device::Cpu, config)?;
    feed.start_epoch(0, 0)?;
    let mut n = 0;
    while let Some(minibatch) = feed.next()? {
        let done = preparation.apply_at(n, &minibatch.rows, DType::F32).and_then(|rows| f(n, &rows));
        done.map_err(|e| e.of_row(|row| split.rows.origin(row)))?;
        n += minibatch.rows.dim(0)?;
    }
    Ok(())
}
