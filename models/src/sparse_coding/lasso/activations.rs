//! What a lasso gives.
use candle::{DType, Device, Result, Tensor};
use chandlery_ops::codes::SparseCodes;

/// Whether a signal reached the tolerance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Status {
    /// Its gap is at most the tolerance.
    Converged,
    /// It ended above the tolerance: at the cap on iterations, or where rounding errors stop the
    /// solver.
    Stopped,
}

/// Activations of signals, and how near they are to the minimum.
#[derive(Debug, Clone)]
pub struct Activations {
    /// `[m, n]`, mostly zeros, of the type and on the device of the signals.
    pub dense: Tensor,
    /// Relative duality gap of each signal, `[m]`.
    pub gaps: Tensor,
    pub(super) tolerance: f64,
}

impl Activations {
    /// Whether each signal reached the tolerance. Waits for the device.
    ///
    /// # Errors
    /// When the device fails.
    pub fn status(&self) -> Result<Vec<Status>> {
        // A gap at the tolerance in f32 may be above it in f64.
        let tolerance = match self.gaps.dtype() {
            DType::F32 => f64::from(self.tolerance as f32),
            _ => self.tolerance,
        };
        let of = |gap: f64| if gap <= tolerance { Status::Converged } else { Status::Stopped };
        Ok(self.gaps.to_dtype(DType::F64)?.to_vec1::<f64>()?.into_iter().map(of).collect())
    }

    /// The number of nonzero coefficients of each signal, u32 `[m]`.
    ///
    /// # Errors
    /// When the device fails.
    pub fn counts(&self) -> Result<Tensor> {
        self.dense.ne(0.)?.to_dtype(DType::U32)?.sum(1)
    }

    /// The same as sparse codes, entries in the order of the atoms, as wide as the longest code (at
    /// least 1), on the device of the activations. They pass through the host.
    ///
    /// # Errors
    /// When memory is short.
    pub fn to_sparse(&self) -> Result<SparseCodes> {
        let (m, n_atoms) = self.dense.dims2()?;
        let (dtype, device) = (self.dense.dtype(), self.dense.device());
        let rows = self.dense.to_device(&Device::Cpu)?.to_dtype(DType::F64)?.to_vec2::<f64>()?;
        let nonzero = |row: &[f64]| row.iter().filter(|x| **x != 0.).count();
        let width = rows.iter().map(|row| nonzero(row)).max().unwrap_or(0).max(1);
        let (mut indices, mut values, mut count) =
            (vec![0u32; m * width], vec![0f64; m * width], vec![0u32; m]);
        for (i, row) in rows.iter().enumerate() {
            let entries = row.iter().enumerate().filter(|(_, x)| **x != 0.);
            for (at, (j, &x)) in (i * width..).zip(entries) {
                (indices[at], values[at]) = (j as u32, x);
            }
            count[i] = nonzero(row) as u32;
        }
        Ok(SparseCodes {
            indices: Tensor::from_vec(indices, (m, width), device)?,
            values: Tensor::from_vec(values, (m, width), &Device::Cpu)?.to_dtype(dtype)?.to_device(device)?,
            count: Tensor::from_vec(count, m, device)?,
            n_atoms,
        })
    }
}
