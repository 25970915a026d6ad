//! How models and trainers take raw rows: through the [`Preparation`] of their configuration.
use candle::{Error, Result, Tensor};
use chandlery_datasets::{ImageShape, Preparation};

/// What a model reads of raw rows.
pub(crate) fn prepared(preparation: &Preparation, rows: &Tensor) -> Result<Tensor> {
    preparation.apply(rows).map_err(Error::wrap)
}

/// Rows and the factor that makes of them what a model reads. Raw rows that are only scaled are given back as they are, so that
/// loading them takes one kernel and no memory.
pub(crate) fn to_load(preparation: &Preparation, rows: &Tensor) -> Result<(Tensor, f32)> {
    match preparation.as_scale(rows.dtype()) {
        Some(scale) => Ok((rows.clone(), scale as f32)),
        None => Ok((prepared(preparation, rows)?.contiguous()?, 1.)),
    }
}

/// Values of a raw row for a model that reads `n_read`; `n_read` where the preparation is for another width, which
/// [`check_inputs`] refuses.
pub(crate) fn n_inputs(preparation: &Preparation, n_read: usize) -> usize {
    preparation.n_inputs(n_read).unwrap_or(n_read)
}

/// Values of a raw row for a model that reads `n_read`; refuses an image shape that raw rows do not have.
pub(crate) fn check_inputs(
    op: &str,
    preparation: &Preparation,
    n_read: usize,
    image: Option<ImageShape>,
) -> Result<usize> {
    let n_inputs = preparation.n_inputs(n_read).map_err(|e| Error::Msg(format!("{op}: {e}")))?;
    match image {
        Some(image) if image.n_features() != n_inputs => candle::bail!(
            "{op}: image must have as many values as a row, {n_inputs}, got {image} with {}",
            image.n_features()
        ),
        _ => Ok(n_inputs),
    }
}

/// A configuration with a preparation, whose fitted numbers are among the tensors of the model.
pub trait Prepares {
    /// What is done to raw rows.
    fn preparation(&mut self) -> &mut Preparation;
}

macro_rules! prepares {
    ($($config:ty),*) => {$(
        impl Prepares for $config {
            fn preparation(&mut self) -> &mut Preparation {
                &mut self.preparation
            }
        }
    )*};
}

prepares!(
    crate::rbm::RbmConfig,
    crate::dbn::DbnConfig,
    crate::labelled::LabelledDbnConfig,
    crate::feedforward::FeedforwardConfig,
    crate::dae::DaeConfig,
    crate::dae::StackedDaeConfig,
    crate::dictionary::DictionaryConfig,
    crate::sparse_autoencoder::SparseAutoencoderConfig,
    crate::sparse_coding::SparseCodingConfig,
    crate::tsne::TsneConfig
);
