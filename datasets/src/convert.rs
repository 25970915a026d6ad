//! Values of other types: rows to f32, labels to whole numbers.
use crate::options::DataOptions;
use crate::rounded::RoundedSink;
use crate::{Result, Source};
use std::sync::Arc;

/// Rows of `SIZE`-byte values as f32, by blocks, so that no second copy of the whole is made; at most `max_rows` of them.
pub(crate) fn convert<const SIZE: usize>(
    at: &str,
    bytes: &[u8],
    n_features: usize,
    options: &DataOptions,
    to_f64: impl Fn(&[u8; SIZE]) -> f64,
) -> Result<Arc<dyn Source>> {
    const VALUES_PER_BLOCK: usize = 1 << 16;
    let (values, _) = bytes.as_chunks::<SIZE>();
    let keep = options.rows_of(values.len() / n_features) * n_features;
    let mut sink = RoundedSink::new(options.memory_limit(), options.centre.clone());
    let rows_per_block = (VALUES_PER_BLOCK / n_features.max(1)).max(1);
    for block in values[..keep].chunks(rows_per_block * n_features) {
        sink.push(&block.iter().map(&to_f64).collect::<Vec<f64>>(), n_features)?;
    }
    sink.finish(at, n_features)
}

/// `SIZE`-byte whole numbers.
pub(crate) fn numbers<const SIZE: usize>(bytes: &[u8], number: impl Fn(&[u8; SIZE]) -> i64) -> Vec<i64> {
    bytes.as_chunks::<SIZE>().0.iter().map(number).collect()
}
