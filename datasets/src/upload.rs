//! Chunks of rows on their way to a device.
use crate::Result;
use crate::source::copy;
use candle::{DType, Device, Tensor};
use chandlery_ops::core::ChunkUpload;
use std::collections::VecDeque;

/// Sends chunks while the device computes.
#[derive(Debug)]
pub(crate) enum Upload {
    /// Bytes and f32, through memory that is locked for it.
    Staged(ChunkUpload),
    /// Floats of 16 bits, by a plain copy.
    Copied {
        /// Where they go.
        device: Device,
        /// The stored type.
        dtype: DType,
        /// Values in a row.
        n_features: usize,
        /// Chunks that were not received.
        sent: VecDeque<Tensor>,
    },
}

impl Upload {
    /// For chunks of up to `max_rows` rows of `n_features` values.
    pub(crate) fn new(device: &Device, dtype: DType, max_rows: usize, n_features: usize) -> Result<Self> {
        Ok(match dtype {
            DType::BF16 | DType::F16 => {
                Self::Copied { device: device.clone(), dtype, n_features, sent: VecDeque::new() }
            }
            _ => Self::Staged(ChunkUpload::new(device, dtype, max_rows, n_features)?),
        })
    }

    /// Sends `n_rows` rows, which `bytes` are.
    pub(crate) fn send(&mut self, n_rows: usize, bytes: &[u8]) -> Result<()> {
        match self {
            Self::Staged(upload) => Ok(upload.send(n_rows, &mut |staging: &mut [u8]| {
                copy(bytes, staging);
                Ok(())
            })?),
            Self::Copied { device, dtype, n_features, sent } => {
                sent.push_back(Tensor::from_raw_buffer(bytes, *dtype, &[n_rows, *n_features], device)?);
                Ok(())
            }
        }
    }

    /// The oldest chunk that was sent and not received, `[n_rows, n_features]` of the stored type.
    pub(crate) fn receive(&mut self) -> Result<Tensor> {
        match self {
            Self::Staged(upload) => Ok(upload.receive()?),
            Self::Copied { sent, .. } => {
                sent.pop_front().ok_or_else(|| crate::Error::Argument("Feed: no chunk was sent".to_owned()))
            }
        }
    }

    /// Chunks that were sent and not received.
    pub(crate) fn waiting(&self) -> usize {
        match self {
            Self::Staged(upload) => upload.waiting(),
            Self::Copied { sent, .. } => sent.len(),
        }
    }
}
