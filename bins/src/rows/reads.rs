//! What models say of the rows that they are for, and blocks of such rows.
use super::in_turn;
use crate::ranks::Ranks;
use anyhow::{Context, Result, ensure};
use candle::{Device, Tensor};
use chandlery::dae::StackedDaeConfig;
use chandlery::dbn::DbnConfig;
use chandlery::feedforward::{Activation, FeedforwardConfig};
use chandlery::labelled::LabelledDbnConfig;
use chandlery::sparse_autoencoder::SparseAutoencoderConfig;
use chandlery::sparse_autoencoder::sae::SaeConfig;
use chandlery::sparse_coding::SparseCodingConfig;
use chandlery_datasets::{Feed, FeedConfig, ImageShape, Preparation, RowType, Split};

/// Rows that go through a network at once when it is used.
pub const BLOCK: usize = 1000;

/// How far outside of [0, 1] a value may be by rounding.
const TOLERANCE: f32 = 1e-5;

/// What a network says of the rows that it is for.
#[derive(Debug, Clone, PartialEq)]
pub struct Reads {
    /// Values in a raw row.
    pub n_inputs: usize,
    /// How the values of a raw row make an image.
    pub image: Option<ImageShape>,
    /// Whether the units that hold rows are real-valued.
    pub gaussian: bool,
    /// What is done to raw rows.
    pub preparation: Preparation,
}

/// Of each configuration, whether the units that hold rows are real-valued.
macro_rules! reads {
    ($($config:ty: $gaussian:expr;)+) => {$(
        impl From<&$config> for Reads {
            fn from(config: &$config) -> Self {
                let gaussian: fn(&$config) -> bool = $gaussian;
                Self {
                    n_inputs: config.n_inputs(),
                    image: config.image,
                    gaussian: gaussian(config),
                    preparation: config.preparation.clone(),
                }
            }
        }
    )+};
}

reads! {
    DbnConfig: |config| config.layers.first().is_some_and(|layer| layer.visible.is_gaussian());
    // All units are binary.
    LabelledDbnConfig: |_| false;
    FeedforwardConfig: |config| config.visible.is_gaussian();
    StackedDaeConfig: |config| config.layers.first().is_some_and(|layer| layer.output != Activation::Sigmoid);
    // A squared error takes any numbers.
    SparseAutoencoderConfig: |_| true;
    SaeConfig: |_| true;
    SparseCodingConfig: |_| true;
}

/// Blocks of a split's raw rows on a device, in the order of the source.
pub struct Blocks {
    /// None where other ranks have all.
    feed: Option<Feed>,
    /// What rows go through where it may refuse them, and whether the result must lie between 0 and
    /// 1: binary units that are given floats.
    checked: Option<(Preparation, bool)>,
    /// This rank, and of how many.
    place: (usize, usize),
    /// Blocks that it has had.
    seen: usize,
}

impl Blocks {
    /// For a network with this configuration.
    pub fn new(split: &Split, network: impl Into<Reads>, device: &Device) -> Result<Self> {
        Self::of_rank(&Ranks::default(), split, network, device)
    }

    /// The same of this rank alone: ranks take blocks in turn.
    pub fn of_rank(ranks: &Ranks, split: &Split, network: impl Into<Reads>, device: &Device) -> Result<Self> {
        let Reads { n_inputs, gaussian, preparation, .. } = network.into();
        ensure!(
            split.n_features() == n_inputs,
            "--data: rows must have {n_inputs} values for this network, got {}",
            split.n_features()
        );
        let own = in_turn::own(ranks, split, BLOCK)?;
        let feed = own.map(|own| in_order(&own, device, BLOCK)).transpose()?;
        // Bytes over 255 are such.
        let safe = gaussian || split.row_type() == RowType::U8 && preparation.is_default();
        let checked = (!safe || !preparation.takes_all_values()).then_some((preparation, !safe));
        Ok(Self { feed, checked, place: ranks.place(), seen: 0 })
    }

    /// The next rows, `[_, n_inputs]` u8 or f32, at most [`BLOCK`] of them.
    pub fn next(&mut self) -> Result<Option<Tensor>> {
        let Some(feed) = &mut self.feed else { return Ok(None) };
        let Some(rows) = feed.next()?.map(|minibatch| minibatch.rows) else {
            return Ok(None);
        };
        self.seen += 1;
        let first = self.first();
        let Some((preparation, unit)) = &self.checked else { return Ok(Some(rows)) };
        let read = preparation.apply_from(first, &rows).context("--data")?;
        if *unit {
            let (min, max) = (read.min_all()?.to_scalar::<f32>()?, read.max_all()?.to_scalar::<f32>()?);
            // Whatever was fitted to other rows may leave the range by a rounding.
            ensure!(
                min >= -TOLERANCE && max <= 1. + TOLERANCE,
                "--data: rows must lie between 0 and 1 for this network, got {min} to {max}; scale them as its training rows were{}, or train with \
                 --prepare minmax",
                if min >= 0. && max <= 255. { " (bytes, numpy's uint8, are read over 255)" } else { "" }
            );
        }
        Ok(Some(rows))
    }

    /// Where the last block began among the rows of all ranks.
    pub fn first(&self) -> usize {
        let (rank, world) = self.place;
        (self.seen.saturating_sub(1) * world + rank) * BLOCK
    }
}

/// The raw rows of a split once, in the order of the source, `block` at a time.
pub fn in_order(split: &Split, device: &Device, block: usize) -> Result<Feed> {
    // Used once and front to back: no need to copy it to the device as a whole.
    let config = FeedConfig { resident_bytes: None, ..FeedConfig::in_order(block) };
    let mut feed = Feed::new(split, device, config)?;
    feed.start_epoch(0, 0)?;
    Ok(feed)
}

/// All raw rows of a split, `[n_samples, n_inputs]` u8 or f32.
pub fn all(split: &Split, network: impl Into<Reads>, device: &Device) -> Result<Tensor> {
    // A block lies in memory that the next one is written to.
    through(split, network, device, Tensor::copy)
}

/// What `f` makes of all raw rows of a split, a block at a time, one below the other.
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn rows_stay_as_they_are_stored_and_must_fit_the_network() {
        let config = DbnConfig::new(&[2, 3]);
        let bytes = Split::from_u8(vec![0, 255, 51, 102], 2, None).unwrap();
        let read = all(&bytes, &config, &Device::Cpu).unwrap().to_vec2::<u8>().unwrap();
        assert_eq!(read, [[0, 255], [51, 102]]);
        let levels = Split::from_f32(vec![0., 255.], 2, None).unwrap();
        let err = all(&levels, &config, &Device::Cpu).unwrap_err();
        assert_eq!(
            err.to_string(),
            "--data: rows must lie between 0 and 1 for this network, got 0 to 255; scale them as its training rows were (bytes, numpy's uint8, are read over 255), or train with --prepare minmax"
        );
        let wide = Split::from_u8(vec![0; 6], 3, None).unwrap();
        let err = all(&wide, &config, &Device::Cpu).unwrap_err();
        assert_eq!(err.to_string(), "--data: rows must have 2 values for this network, got 3");
    }
}
