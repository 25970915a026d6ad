//! A lasso in terms of its Gram matrix, and the solution in parts.
use super::batch::{self, Method, Stop};
use super::parallel::Search;
use super::part::Part;
use super::{Activations, Lasso, LineSearch, OP, Solver};
use candle::{D, DType, Device, Result, Tensor};
use chandlery_ops::Precision;
use chandlery_ops::arrays::elementwise::{abs, mul};
use chandlery_ops::codes::{LassoMethod, LassoOptions, lasso_, row_squares};
use chandlery_ops::layers::{Factors, gemm_};

/// Correlations that are computed at once on a GPU: enough to keep it busy, and 64 MiB in f32.
const AT_ONCE: usize = 1 << 24;
/// The same on the CPU: memory that is used again and stays in a cache.
const AT_ONCE_ON_CPU: usize = 1 << 20;

/// Signals and dictionary that fit, and what does not depend on `β`.
pub(super) struct Problem<'a> {
    pub lasso: &'a Lasso,
    /// `[m, p]` and `[n, p]`, contiguous
    pub signals: Tensor,
    pub dictionary: Tensor,
    /// `B Bᵀ + λ I`, `[n, n]`
    gram: Tensor,
    /// `[n]`
    pub weights: Tensor,
}

impl<'a> Problem<'a> {
    pub(super) fn new(lasso: &'a Lasso, signals: &Tensor, dictionary: &Tensor) -> Result<Self> {
        let (signals, dictionary) = (signals.contiguous()?, dictionary.contiguous()?);
        let (dtype, device) = (signals.dtype(), signals.device());
        let n = match (signals.dims(), dictionary.dims()) {
            (&[_, p], &[n, features]) if features == p && n > 0 && p > 0 => n,
            (signals, dictionary) => candle::bail!(
                "{OP}: signals must be [n_samples, n_features] and dictionary [n_atoms, n_features], got {signals:?} and {dictionary:?}"
            ),
        };
        if !matches!(dtype, DType::F32 | DType::F64) || dictionary.dtype() != dtype {
            candle::bail!(
                "{OP}: signals and dictionary must both be f32 or both f64, got {dtype:?} and {:?}",
                dictionary.dtype()
            )
        }
        let weights = match &lasso.weights {
            Some(weights) if weights.dims() == [n] => weights.to_dtype(dtype)?,
            Some(weights) => candle::bail!("{OP}: weights must have shape [{n}], got {:?}", weights.dims()),
            None => Tensor::ones(n, dtype, device)?,
        };
        let gram = match lasso.ridge {
            0. => Tensor::zeros((n, n), dtype, device)?,
            ridge => (Tensor::eye(n, dtype, device)? * ridge)?,
        };
        gemm_(&gram, &dictionary, &dictionary.t()?, Factors::Host { alpha: 1., beta: 1. }, Precision::F32)?;
        Ok(Self { lasso, signals, dictionary, gram, weights })
    }

    pub(super) fn solve(&self, beta: f64, start: Option<&Tensor>) -> Result<Activations> {
        let (m, n) = (self.signals.dim(0)?, self.dictionary.dim(0)?);
        let dtype = self.signals.dtype();
        let dense = match start {
            Some(start) if start.dims() == [m, n] && start.dtype() == dtype => start.copy()?,
            Some(start) => candle::bail!(
                "{OP}: start must be [{m}, {n}] {dtype:?}, got {:?} {:?}",
                start.dims(),
                start.dtype()
            ),
            None => Tensor::zeros((m, n), dtype, self.signals.device())?,
        };
        let penalties = (&self.weights * beta)?;
        let mut gaps = vec![Tensor::zeros(0, dtype, self.signals.device())?];
        for (first, rows) in self.parts()? {
            let part = Part {
                lasso: self.lasso,
                dictionary: &self.dictionary,
                gram: &self.gram,
                correlations: self.correlations(first, rows)?,
                energies: row_squares(&self.signals.narrow(0, first, rows)?)?.to_dtype(dtype)?,
                penalties: penalties.clone(),
            };
            gaps.push(part.solve(&dense.narrow(0, first, rows)?, start.is_none())?);
        }
        Ok(Activations { dense, gaps: Tensor::cat(&gaps, 0)?, tolerance: self.lasso.tolerance })
    }

    pub(super) fn lambda_max(&self) -> Result<f64> {
        let weights = self.weights.to_device(&Device::Cpu)?;
        let weighs = weights.gt(0.)?;
        let divisors = weighs.where_cond(&weights, &weights.ones_like()?)?;
        let factors = (weighs.to_dtype(weights.dtype())? / divisors)?.to_device(self.weights.device())?;
        let mut largest = 0f64;
        for (first, rows) in self.parts()? {
            let correlations = mul(&self.correlations(first, rows)?, &factors)?;
            let sizes = if self.lasso.nonnegative { correlations } else { abs(&correlations)? };
            largest = largest.max(sizes.max_all()?.to_dtype(DType::F64)?.to_scalar()?);
        }
        Ok(largest)
    }

    /// First rows and numbers of rows of the parts.
    fn parts(&self) -> Result<impl Iterator<Item = (usize, usize)>> {
        let (m, n) = (self.signals.dim(0)?, self.dictionary.dim(0)?);
        let at_once = if self.signals.device().is_cpu() { AT_ONCE_ON_CPU } else { AT_ONCE };
        let len = (at_once / n).max(1);
        Ok((0..m).step_by(len).map(move |first| (first, len.min(m - first))))
    }

    /// `x Bᵀ`
    fn correlations(&self, first: usize, rows: usize) -> Result<Tensor> {
        let signals = self.signals.narrow(0, first, rows)?;
        let correlations = Tensor::zeros((rows, self.dictionary.dim(0)?), signals.dtype(), signals.device())?;
        gemm_(&correlations, &signals, &self.dictionary.t()?, Factors::OVERWRITE, Precision::F32)?;
        Ok(correlations)
    }
}

impl Lasso {
    /// For the solvers of single signals, over `n` atoms, from what is given or from zeros.
    pub(super) fn options(&self, n: usize, from_zeros: bool) -> Result<LassoOptions> {
        let method = match self.solver {
            Solver::ActiveSet => LassoMethod::ActiveSet,
            Solver::CoordinateDescent => LassoMethod::CoordinateDescent,
            solver => {
                candle::bail!("{OP}: the solver must be ActiveSet or CoordinateDescent, got {solver:?}")
            }
        };
        let Self { tolerance, max_iterations, nonnegative, .. } = *self;
        let max_updates = max_iterations.saturating_mul(n);
        Ok(LassoOptions { method, tolerance, max_updates, nonnegative, from_zeros })
    }
}

impl Part<'_> {
    /// Solves from `activations`, which may be zeros, in place; returns the gaps.
    pub(super) fn solve(&self, activations: &Tensor, from_zeros: bool) -> Result<Tensor> {
        match self.lasso.solver {
            Solver::ActiveSet | Solver::CoordinateDescent => {}
            Solver::CoordinateParallel { line_search, stop } => {
                let search = Search { line_search, block: None };
                return batch::solve(self, activations, &Method::Parallel(search), stop);
            }
            Solver::CoordinateBlocks { block } => {
                let search = Search { line_search: LineSearch::Exact, block: Some(block) };
                return batch::solve(self, activations, &Method::Parallel(search), Stop::Gap);
            }
            Solver::Fista => return batch::solve(self, activations, &Method::Fista, Stop::Gap),
        }
        let options = self.lasso.options(self.gram.dim(D::Minus1)?, from_zeros)?;
        let Self { gram, correlations, energies, penalties, .. } = self;
        Ok(lasso_(activations, gram, correlations, energies, penalties, &options)?.gaps)
    }
}
