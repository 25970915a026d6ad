//! How models and trainers take raw rows: through the [`Preparation`] of their configuration.
use candle::{DType, Error, Result, Tensor};
use chandlery_datasets::{ImageShape, Preparation};

/// What the model `op`, whose weights are of type `dtype`, reads of raw rows of bytes or of any
/// float type: the one place where rows are cast.
pub(crate) fn prepared(op: &str, preparation: &Preparation, rows: &Tensor, dtype: DType) -> Result<Tensor> {
    preparation.apply_as(rows, dtype).map_err(|e| Error::Msg(format!("{op}: {e}")))
}

/// Rows, u8 or f32, and the factor that makes of them what the trainer `op` reads. Raw rows of
/// these types that are only scaled are given back as they are, so that loading them takes one
/// kernel and no memory.
pub(crate) fn to_load(op: &str, preparation: &Preparation, rows: &Tensor) -> Result<(Tensor, f32)> {
    match (rows.dtype(), preparation.as_scale(rows.dtype())) {
        (DType::U8 | DType::F32, Some(scale)) => Ok((rows.contiguous()?, scale as f32)),
        _ => Ok((prepared(op, preparation, rows, DType::F32)?.contiguous()?, 1.)),
    }
}

/// Values of a raw row for a model that reads `n_read`; `n_read` where the preparation is for
/// another width, which [`check_inputs`] refuses.
pub(crate) fn n_inputs(preparation: &Preparation, n_read: usize) -> usize {
    preparation.n_inputs(n_read).unwrap_or(n_read)
}

/// Values of a raw row for a model that reads `n_read`; refuses an image shape that raw rows do not
/// have.
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
