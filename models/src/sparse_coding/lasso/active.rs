//! Signals that a solver of many at once still works on.
use super::fista::Momentum;
use candle::{DType, Result, Tensor};
use chandlery_ops::arrays::gather_rows;

/// The signals that are not done.
pub(super) struct ActiveSignals {
    /// Their places in the part, u32 `[going]`
    pub rows: Tensor,
    pub activations: Tensor,
    pub correlations: Tensor,
    pub energies: Tensor,
    /// Objective and gap, `[going, 2]`, and those of the iteration before
    pub figures: Tensor,
    pub before: Tensor,
    pub momentum: Option<Momentum>,
}

impl ActiveSignals {
    /// Objectives and gaps.
    pub(super) fn read(&self, figures: &Tensor) -> Result<[Vec<f64>; 2]> {
        let wide = figures.to_dtype(DType::F64)?.t()?.contiguous()?;
        Ok([wide.get(0)?.to_vec1()?, wide.get(1)?.to_vec1()?])
    }

    /// Those of the signals at these places.
    pub(super) fn keep(&self, rest: &[u32]) -> Result<Self> {
        let of = |x: &Tensor| gather_rows(&x.contiguous()?, rest);
        let momentum = match &self.momentum {
            Some(Momentum { to, theta }) => Some(Momentum { to: of(to)?, theta: of(theta)? }),
            None => None,
        };
        Ok(Self {
            rows: of(&self.rows)?,
            activations: of(&self.activations)?,
            correlations: of(&self.correlations)?,
            energies: of(&self.energies)?,
            figures: of(&self.figures)?,
            before: of(&self.before)?,
            momentum,
        })
    }
}
