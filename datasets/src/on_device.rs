//! Rows of a tensor, where it is.
use crate::source::check_read;
use crate::{Error, Result, RowType, Source};
use candle::{DType, Tensor};
use chandlery_ops::arrays::{all_finite, gather_rows};

/// Rows that are on a device. To read them on the host copies them there.
#[derive(Debug)]
pub(crate) struct OnDevice {
    /// Contiguous, u8 or f32.
    rows: Tensor,
    n_samples: usize,
    n_features: usize,
    row_type: RowType,
}

impl OnDevice {
    /// # Errors
    /// When `rows` are not `[n_samples, n_features]` of a type of rows, or a value is not finite.
    pub(crate) fn new(rows: &Tensor) -> Result<Self> {
        let refused = |got: &dyn std::fmt::Debug| {
            Error::Argument(format!(
                "Feed::resident: rows must have shape [n_samples, n_features] and be u8, bf16, f16 or f32, got {got:?}"
            ))
        };
        let &[n_samples, n_features] = rows.dims() else { return Err(refused(&rows.dims())) };
        if n_features == 0 {
            return Err(refused(&rows.dims()));
        }
        let (row_type, rows) = match rows.dtype() {
            DType::U8 => (RowType::U8, rows.contiguous()?),
            DType::BF16 | DType::F16 | DType::F32 => (RowType::F32, rows.to_dtype(DType::F32)?.contiguous()?),
            other => return Err(refused(&other)),
        };
        if !all_finite(&rows)? {
            return Err(Error::Argument(
                "Feed::resident: rows must be finite, got NaN or infinity".to_owned(),
            ));
        }
        Ok(Self { rows, n_samples, n_features, row_type })
    }

    /// The rows, contiguous.
    pub(crate) fn rows(&self) -> &Tensor {
        &self.rows
    }
}

impl Source for OnDevice {
    fn n_samples(&self) -> usize {
        self.n_samples
    }

    fn n_features(&self) -> usize {
        self.n_features
    }

    fn row_type(&self) -> RowType {
        self.row_type
    }

    fn read_rows(&self, indices: &[u32], out: &mut [u8]) -> Result<()> {
        check_read(self, indices, out)?;
        let rows = gather_rows(&self.rows, indices)?.flatten_all()?;
        match self.row_type {
            RowType::U8 => out.copy_from_slice(&rows.to_vec1::<u8>()?),
            _ => out.copy_from_slice(bytemuck::cast_slice(&rows.to_vec1::<f32>()?)),
        }
        Ok(())
    }
}
