//! Mean and covariance in f64, gathered a block at a time.
//!
//! ```text
//! μ = Σ x / n,   S = Σ (x - μ)(x - μ)ᵀ,   C = S / (n - 1)
//! δ = μ_b - μ_a: μ = μ_a + δ n_b/n,   S = S_a + S_b + δδᵀ n_a n_b/n      two parts a, b joined
//! ```
//! The join of Chan, Golub & LeVeque ("Updating formulae and a pairwise algorithm for computing
//! sample variances", 1979) has no cancellation between large sums, so that the result does not
//! depend on how far the data lie from 0.
use super::checks::applied_rows;
use crate::{Error, Result};
use candle::{DType, Device, Tensor};

/// Rows that are held as f64 at a time.
const BLOCK_ROWS: usize = 8192;

/// Mean and scatter of the rows seen so far; see the [module](super).
#[derive(Debug, Clone)]
pub struct Moments {
    n_samples: usize,
    n_features: usize,
    /// `μ`, `[n_features]`, f64.
    mean: Tensor,
    /// `S`, `[n_features, n_features]`, f64.
    scatter: Tensor,
}

impl Moments {
    /// Of no rows yet, on `device`.
    ///
    /// # Errors
    /// When `n_features` is 0 or the device has no room for its square.
    pub fn new(n_features: usize, device: &Device) -> Result<Self> {
        if n_features == 0 {
            return Err(Error::Argument("Moments: n_features must be at least 1, got 0".to_owned()));
        }
        Ok(Self {
            n_samples: 0,
            n_features,
            mean: Tensor::zeros(n_features, DType::F64, device)?,
            scatter: Tensor::zeros((n_features, n_features), DType::F64, device)?,
        })
    }

    /// Adds `rows`, `[n, n_features]` f32 or f64 on the same device; `n·n_features²` multiplications in
    /// f64.
    ///
    /// # Errors
    /// When `rows` has another shape or type, or holds a NaN or an infinity; then nothing was
    /// added.
    pub fn add(&mut self, rows: &Tensor) -> Result<()> {
        let (n, _) = applied_rows("Moments.add", "rows", rows, Some(self.n_features))?;
        let mut sum = self.clone();
        for start in (0..n).step_by(BLOCK_ROWS) {
            let block = rows.narrow(0, start, BLOCK_ROWS.min(n - start))?;
            let (mean, centred) = centre(&block, start)?;
            let scatter = centred.t()?.matmul(&centred)?;
            sum.join(centred.dim(0)?, &mean, &scatter)?;
        }
        *self = sum;
        Ok(())
    }

    fn join(&mut self, n_b: usize, mean_b: &Tensor, scatter_b: &Tensor) -> Result<()> {
        let (n_a, n) = (self.n_samples as f64, (self.n_samples + n_b) as f64);
        let n_b_f64 = n_b as f64;
        let delta = (mean_b - &self.mean)?;
        let outer = delta.unsqueeze(1)?.matmul(&delta.unsqueeze(0)?)?;
        self.scatter = ((&self.scatter + scatter_b)? + (outer * (n_a * n_b_f64 / n))?)?;
        self.mean = (&self.mean + (delta * (n_b_f64 / n))?)?;
        self.n_samples += n_b;
        Ok(())
    }

    /// Rows added so far.
    pub fn n_samples(&self) -> usize {
        self.n_samples
    }

    /// Values in a row.
    pub fn n_features(&self) -> usize {
        self.n_features
    }

    /// The mean, `[n_features]`, f64; zeros before the first row.
    pub fn mean(&self) -> &Tensor {
        &self.mean
    }

    /// The covariance with divisor `n_samples - 1`, `[n_features, n_features]`, f64.
    ///
    /// # Errors
    /// When fewer than two rows were added.
    pub fn covariance(&self) -> Result<Tensor> {
        if self.n_samples < 2 {
            return Err(Error::Argument(format!(
                "Moments: a covariance needs at least 2 rows, got {}",
                self.n_samples
            )));
        }
        Ok((&self.scatter * (1. / (self.n_samples - 1) as f64))?)
    }
}

/// Column means and centred rows in f64; names the first value that is not finite, `first_row`
/// being the block's.
fn centre(block: &Tensor, first_row: usize) -> Result<(Tensor, Tensor)> {
    let values = block.to_dtype(DType::F64)?;
    let mean = values.mean(0)?;
    if mean.to_vec1::<f64>()?.iter().any(|m| !m.is_finite()) {
        let n_features = block.dim(1)?;
        let values = values.flatten_all()?.to_vec1::<f64>()?;
        if let Some(i) = values.iter().position(|v| !v.is_finite()) {
            return Err(Error::NotFinite {
                at: "Moments.add".to_owned(),
                row: first_row + i / n_features,
                column: i % n_features,
                value: values[i] as f32,
            });
        }
    }
    let centred = values.broadcast_sub(&mean)?;
    Ok((mean, centred))
}
