//! Activations of signals, and what they leave unexplained.
use super::SparseCoding;
use super::lasso::Activations;
use crate::share::joined_;
use candle::{DType, Device, Result, Tensor};
use chandlery_ops::arrays::column_sums_;
use chandlery_ops::arrays::elementwise::{abs, equal};
use chandlery_ops::codes::row_squares;
use chandlery_ops::layers::{Factors, gemm_};
use chandlery_ops::{Group, Precision};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Signals with their activations.
pub(super) struct Coded {
    /// `[m, n_atoms]`.
    pub activations: Tensor,
    /// Relative duality gaps, `[m]`.
    gaps: Tensor,
    /// `‖x − a B‖²`, f64 `[m]`.
    pub squares: Tensor,
}

/// Numbers of a [report](Coded::report) before the uses of each atom.
pub(super) const TOTALS: usize = 3;
/// Those of them that are the largest of some; the others are sums.
pub(super) const MOST: Range<usize> = 2..3;

impl Coded {
    /// Activations of the signals `x`, `[m, n_features]`, contiguous, and what they leave of the
    /// signals.
    pub(super) fn of(model: &SparseCoding, x: &Tensor) -> Result<Self> {
        let Activations { dense: activations, gaps, .. } = model.activations_prepared(x)?;
        let (error, factors) = (x.copy()?, Factors::Host { alpha: -1., beta: 1. });
        if x.dim(0)? > 0 {
            gemm_(&error, &activations, &model.basis, factors, Precision::F32)?;
        }
        Ok(Self { activations, gaps, squares: row_squares(&error)? })
    }

    /// `Σ ‖x − a B‖²`, `Σ |a|` and the largest relative gap; then for each atom the signals that
    /// use it: f64 `[TOTALS + n_atoms]`, on the device.
    pub(super) fn report(&self) -> Result<Tensor> {
        let ((m, n), device) = (self.activations.dims2()?, self.activations.device());
        if m == 0 {
            return Tensor::zeros(TOTALS + n, DType::F64, device);
        }
        let wide = |t: Tensor| t.to_dtype(DType::F64)?.reshape(1);
        let magnitudes = abs(&self.activations)?.sum(1)?.to_dtype(DType::F64)?.sum_all()?;
        let uses = Tensor::zeros(n, DType::F32, device)?;
        let unused = equal(&self.activations, &self.activations.zeros_like()?)?;
        column_sums_(&uses, &unused.affine(-1., 1.)?.to_dtype(DType::F32)?)?;
        let totals = [wide(self.squares.sum_all()?)?, wide(magnitudes)?, wide(self.gaps.max(0)?)?];
        Tensor::cat(&[&totals[0], &totals[1], &totals[2], &uses.to_dtype(DType::F64)?], 0)
    }
}

/// Sums over signals.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(super) struct Sums {
    pub(super) signals: u64,
    squares: f64,
    magnitudes: f64,
    nonzero: f64,
    most_gap: f64,
}

impl Sums {
    /// Those of `m` signals, from their [report](Coded::report).
    pub(super) fn of(report: &[f64], m: usize) -> Self {
        let (totals, uses) = report.split_at(TOTALS);
        Self {
            signals: m as u64,
            squares: totals[0],
            magnitudes: totals[1],
            nonzero: uses.iter().sum(),
            most_gap: totals[2],
        }
    }

    pub(super) fn add(&mut self, more: &Self) {
        self.signals += more.signals;
        self.squares += more.squares;
        self.magnitudes += more.magnitudes;
        self.nonzero += more.nonzero;
        self.most_gap = self.most_gap.max(more.most_gap);
    }

    /// Those of the signals of all ranks.
    pub(super) fn joined(self, group: &Group, device: &Device) -> Result<Self> {
        let Self { signals, squares, magnitudes, nonzero, most_gap } = self;
        let numbers = Tensor::new(&[signals as f64, squares, magnitudes, nonzero, most_gap], device)?;
        joined_(group, &numbers, 4..5)?;
        let [signals, squares, magnitudes, nonzero, most_gap] = numbers.to_vec1::<f64>()?[..] else {
            candle::bail!("Sums: must be five numbers, got {numbers}")
        };
        Ok(Self { signals: signals as u64, squares, magnitudes, nonzero, most_gap })
    }

    pub(super) fn figures(&self, model: &SparseCoding) -> Figures {
        let config = &model.config;
        let m = self.signals as f64;
        Figures {
            objective: (0.5 * self.squares + config.beta * self.magnitudes) / m,
            rmse: (self.squares / (m * config.n_features as f64)).sqrt(),
            nonzero_fraction: self.nonzero / (m * config.n_atoms as f64),
            max_relative_gap: self.most_gap,
        }
    }
}

/// How well activations represent signals.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Figures {
    /// Mean over the signals of `½ ‖x − a B‖² + β Σ |a_j|`.
    pub objective: f64,
    /// Square root of the mean over all values of `(x − a B)²`.
    pub rmse: f64,
    /// Share of the activations that are not 0.
    pub nonzero_fraction: f64,
    /// The largest relative duality gap of a signal: its objective is at most this share above the
    /// least there is.
    pub max_relative_gap: f64,
}
