//! Rows as a network reads them.
use anyhow::{Context, Result, ensure};
use candle::{DType, Device, Tensor};
use chandlery::dbn::DbnConfig;
use chandlery::feedforward::FeedforwardConfig;
use chandlery::labelled::LabelledDbnConfig;
use chandlery_datasets::{Dataset, Feed, FeedConfig, Split};
use clap::ValueEnum;

/// Rows that statistics are taken over; more would not change their third digit.
const STATISTICS_ROWS: usize = 65_536;

/// Rows that go through a network at once when it is used.
pub const BLOCK: usize = 1000;

/// What the rows of a split look like, in their natural unit: bytes over 255, floats as they are.
#[derive(Debug, Clone, PartialEq)]
pub struct Statistics {
    /// Mean of each feature, `[n_features]` on the CPU, f32.
    pub mean: Vec<f32>,
    /// Standard deviation over all rows and features, about each feature's own mean.
    pub stdev: f64,
    /// Smallest value.
    pub min: f32,
    /// Largest value.
    pub max: f32,
}

impl Statistics {
    /// Of a seeded choice of rows, or all where they are few; one pass, in f64.
    pub fn of(split: &Split, seed: u64) -> Result<Self> {
        let config = FeedConfig {
            drop_last: false,
            resident_bytes: None,
            chunk_bytes: 8 << 20,
            ..FeedConfig::new(BLOCK, seed)
        };
        let mut feed = Feed::new(split, &Device::Cpu, config)?;
        feed.start_epoch(0, 0)?;
        let n_features = split.n_features();
        let (mut sum, mut squares) = (vec![0f64; n_features], vec![0f64; n_features]);
        let (mut min, mut max, mut n) = (f32::INFINITY, f32::NEG_INFINITY, 0);
        while n < STATISTICS_ROWS
            && let Some(minibatch) = feed.next()?
        {
            let rows = minibatch.rows.to_dtype(DType::F32)?.affine(feed.scale(), 0.)?;
            for row in rows.to_vec2::<f32>()? {
                for ((x, sum), squares) in row.into_iter().zip(&mut sum).zip(&mut squares) {
                    (min, max) = (min.min(x), max.max(x));
                    *sum += f64::from(x);
                    *squares += f64::from(x) * f64::from(x);
                }
                n += 1;
            }
        }
        let n = n as f64;
        let variance = |(sum, squares): (&f64, &f64)| (squares / n - (sum / n).powi(2)).max(0.);
        let total: f64 = sum.iter().zip(&squares).map(variance).sum();
        Ok(Self {
            mean: sum.iter().map(|sum| (sum / n) as f32).collect(),
            stdev: (total / n_features as f64).sqrt(),
            min,
            max,
        })
    }

    /// What rows in their natural unit are multiplied by before the network reads them.
    ///
    /// 1 for binary units, whose rows must be probabilities; one over the standard deviation for real-valued.
    pub fn gain(&self, gaussian: bool) -> Result<f64> {
        if gaussian {
            ensure!(self.stdev > 0., "--visible gaussian: rows must vary, got {} everywhere", self.min);
            return Ok(1. / self.stdev);
        }
        ensure!(
            self.min >= 0. && self.max <= 1.,
            "--visible bernoulli: rows must lie between 0 and 1, got {} to {}; rescale them, or use --visible gaussian",
            self.min,
            self.max
        );
        Ok(1.)
    }
}

/// How a network reads rows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reads {
    /// Values in a row.
    pub n_inputs: usize,
    /// What stored values are multiplied by for real-valued units, so that rows must be stored as those were that it was trained on;
    /// none for a network of binary units, which takes rows in their natural unit, so that bytes and floats in `[0, 1]` serve alike.
    pub scale: Option<f64>,
    /// Height, width and channels of rows that are images.
    pub image: Option<[usize; 3]>,
}

impl From<&DbnConfig> for Reads {
    fn from(config: &DbnConfig) -> Self {
        let lowest = config.layers.first();
        let gaussian = lowest.is_some_and(|layer| layer.visible.is_gaussian());
        Self {
            n_inputs: lowest.map_or(0, |layer| layer.n_visible),
            scale: gaussian.then_some(config.input_scale),
            image: config.image,
        }
    }
}

/// All units are binary.
impl From<&LabelledDbnConfig> for Reads {
    fn from(config: &LabelledDbnConfig) -> Self {
        Self { n_inputs: config.sizes.first().copied().unwrap_or(0), scale: None, image: config.image }
    }
}

impl From<&FeedforwardConfig> for Reads {
    fn from(config: &FeedforwardConfig) -> Self {
        Self {
            n_inputs: config.n_inputs(),
            scale: config.visible.is_gaussian().then_some(config.input_scale),
            image: config.image,
        }
    }
}

/// Blocks of a split's rows on a device, as a network reads them, in the order of the source.
pub struct Blocks {
    feed: Feed,
    factor: f64,
}

impl Blocks {
    /// For a network with this configuration.
    pub fn new(split: &Split, network: impl Into<Reads>, device: &Device) -> Result<Self> {
        let Reads { n_inputs, scale, .. } = network.into();
        ensure!(
            split.n_features() == n_inputs,
            "--data: rows must have {n_inputs} values for this network, got {}",
            split.n_features()
        );
        // Used once and front to back: no need to copy it to the device as a whole.
        let feed_config = FeedConfig { resident_bytes: None, ..FeedConfig::in_order(BLOCK) };
        let mut feed = Feed::new(split, device, feed_config)?;
        feed.start_epoch(0, 0)?;
        let factor = scale.unwrap_or(feed.scale());
        Ok(Self { feed, factor })
    }

    /// The next rows, `[_, n_inputs]` f32, at most [`BLOCK`] of them.
    pub fn next(&mut self) -> Result<Option<Tensor>> {
        let Some(minibatch) = self.feed.next()? else {
            return Ok(None);
        };
        Ok(Some(minibatch.rows.to_dtype(DType::F32)?.affine(self.factor, 0.)?))
    }
}

/// All rows of a split as a network reads them, `[n_samples, n_inputs]` f32.
pub fn all(split: &Split, network: impl Into<Reads>, device: &Device) -> Result<Tensor> {
    through(split, network, device, |rows| Ok(rows.clone()))
}

/// What `f` makes of all rows of a split, a block at a time, one below the other.
pub fn through(
    split: &Split,
    network: impl Into<Reads>,
    device: &Device,
    f: impl Fn(&Tensor) -> candle::Result<Tensor>,
) -> Result<Tensor> {
    let mut blocks = Blocks::new(split, network, device)?;
    let mut made = Vec::new();
    while let Some(rows) = blocks.next()? {
        made.push(f(&rows)?);
    }
    Ok(Tensor::cat(&made, 0)?)
}

/// Which rows of a data set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SplitArg {
    /// Rows to learn from.
    Train,
    /// Rows that the data set keeps for tests.
    Test,
}

/// One split of a data set.
pub fn split_of(dataset: Dataset, split: SplitArg) -> Result<Split> {
    match split {
        SplitArg::Train => Ok(dataset.train),
        SplitArg::Test => dataset
            .test
            .with_context(|| format!("--split test: {} has no test rows; use --split train", dataset.name)),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn statistics_are_those_of_the_rows_in_their_natural_unit() {
        // Feature 0: 0, 51, 102 → 0, 0.2, 0.4. Feature 1: always 255 → 1.
        let split = Split::from_u8(vec![0, 255, 51, 255, 102, 255], 2, None).unwrap();
        let statistics = Statistics::of(&split, 3).unwrap();
        assert!((statistics.mean[0] - 0.2).abs() < 1e-6);
        assert_eq!((statistics.mean[1], statistics.min, statistics.max), (1., 0., 1.));
        // Variances 0.08/3 and 0; their mean is 0.04/3.
        assert!((statistics.stdev - (0.04f64 / 3.).sqrt()).abs() < 1e-6);
        assert_eq!(statistics.gain(false).unwrap(), 1.);
        assert!((statistics.gain(true).unwrap() - (75f64).sqrt()).abs() < 1e-3);
    }

    #[test]
    fn rows_that_units_cannot_hold_are_refused() {
        let split = Split::from_f32(vec![0., -2., 1., 0.5], 2, None).unwrap();
        let err = Statistics::of(&split, 0).unwrap().gain(false).unwrap_err();
        assert_eq!(
            err.to_string(),
            "--visible bernoulli: rows must lie between 0 and 1, got -2 to 1; rescale them, or use --visible gaussian"
        );
        let flat = Split::from_f32(vec![3.; 4], 2, None).unwrap();
        let err = Statistics::of(&flat, 0).unwrap().gain(true).unwrap_err();
        assert_eq!(err.to_string(), "--visible gaussian: rows must vary, got 3 everywhere");
    }

    #[test]
    fn bytes_and_floats_reach_a_binary_network_alike() {
        let config = DbnConfig { input_scale: 1. / 255., ..DbnConfig::new(&[2, 3]) };
        let bytes = Split::from_u8(vec![0, 255, 51, 102], 2, None).unwrap();
        let floats = Split::from_f32(vec![0., 1., 0.2, 0.4], 2, None).unwrap();
        let read = |split| all(split, &config, &Device::Cpu).unwrap().to_vec2::<f32>().unwrap();
        for (a, b) in read(&bytes).concat().iter().zip(read(&floats).concat()) {
            assert!((a - b).abs() < 1e-6, "{a} {b}");
        }
        let wide = Split::from_u8(vec![0; 6], 3, None).unwrap();
        let err = all(&wide, &config, &Device::Cpu).unwrap_err();
        assert_eq!(err.to_string(), "--data: rows must have 2 values for this network, got 3");
    }
}
