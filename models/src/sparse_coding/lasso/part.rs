//! Some signals of a problem.
use super::Lasso;
use candle::{Result, Tensor};
use chandlery_ops::codes::row_squares;

/// Some signals of a problem, as the solvers take them; their activations are updated in place.
pub(super) struct Part<'a> {
    pub lasso: &'a Lasso,
    pub dictionary: &'a Tensor,
    /// `[n, n]`; for solvers of single signals also one for each, `[rows, n, n]`
    pub gram: &'a Tensor,
    /// `[rows, n]`, `[rows]` and `[n]`
    pub correlations: Tensor,
    pub energies: Tensor,
    pub penalties: Tensor,
}

impl Part<'_> {
    /// That of the Gram matrix, `[n]`.
    pub(super) fn diagonal(&self) -> Result<Tensor> {
        row_squares(self.dictionary)?.affine(1., self.lasso.ridge)?.to_dtype(self.gram.dtype())
    }
}
