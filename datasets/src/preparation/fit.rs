//! Fitting a preparation, step by step: each to the rows as the steps before it leave them.
use super::chain::Preparation;
use super::columns::{ColumnKind, Columns};
use super::krylov;
use super::moments::Moments;
use super::normalize::TutorialRescale;
use super::pca::{Pca, Principal, by_rows, check_components};
use super::sparse::{self, sparse_in_order};
use super::statistics::{MOST_ROWS, RowStatistics, blocks, in_order};
use super::step::{Mean, Step, StepConfig};
use super::whitening::Whitening;

use crate::{Error, Result, Split};
use candle::{DType, Device, Tensor};

impl Preparation {
    /// Of steps that need no fitting: scale, row sum, row mean, contrast and log1p.
    ///
    /// # Errors
    /// When a step must be fitted, or a number is out of its range.
    pub fn of(steps: &[StepConfig]) -> Result<Self> {
        Self::of_steps(None, steps, 0)
    }

    /// Fits `steps` to the raw rows of a split, in their order: one pass over the rows for each
    /// step that is fitted, over all of them for standardise, minmax and log1p, and for other steps
    /// over at most 65,536 of them, drawn with `seed` where there are more.
    ///
    /// Principal components and whitening cost `n_samples·n_features²` multiplications, and some
    /// `10·n_features³`, or `500·n_features²` where few are kept; few of sparse rows,
    /// and of more than 1,024 features (4,096 where the rows take more than 1 GiB of f64), cost some
    /// hundred to thousand multiplications an entry, in three passes over the rows, or in 20 to 100
    /// where they take more than that.
    ///
    /// # Errors
    /// When a row cannot be read, a number of a step is out of range, or the rows do not vary where
    /// they must.
    pub fn fit(split: &Split, steps: &[StepConfig], seed: u64) -> Result<Self> {
        Self::of_steps(Some(split), steps, seed)
    }

    fn of_steps(split: Option<&Split>, steps: &[StepConfig], seed: u64) -> Result<Self> {
        let mut fitted = Self::default();
        for step in steps {
            step.validate()?;
            let step = fitted.next_step(split, step, seed)?;
            fitted.steps.push(step);
        }
        Ok(fitted)
    }

    /// The same for raw rows in memory, `[n_samples, n_features]` u8 or f32.
    ///
    /// # Errors
    /// As [`fit`](Self::fit), and when `rows` has another shape or type, or a value is NaN or
    /// infinite.
    pub fn fit_tensor(rows: &Tensor, steps: &[StepConfig], seed: u64) -> Result<Self> {
        Self::fit(&Split::from_tensors(rows, None)?, steps, seed)?.to_device(rows.device())
    }

    fn next_step(&self, split: Option<&Split>, step: &StepConfig, seed: u64) -> Result<Step> {
        let split = || {
            split.ok_or_else(|| {
                Error::Argument(format!("Preparation: {step} must be fitted to rows; use Preparation::fit"))
            })
        };
        let moments = || -> Result<Moments> {
            let mut moments = Moments::new(self.n_outputs(split()?.n_features())?, &Device::Cpu)?;
            blocks(split()?, self, seed, |rows| moments.add(rows))?;
            Ok(moments)
        };
        let principal = |n_components: Option<usize>| -> Result<Principal> {
            let n_features = self.n_outputs(split()?.n_features())?;
            check_components("Pca", n_components, n_features)?;
            let k = n_components.unwrap_or(n_features);
            let few = krylov::is_faster(n_features, k);
            match split()? {
                split if few && split.rows.is_sparse() && self.keeps_sparse() => {
                    sparse::pca(split, self, k, seed)
                }
                split if by_rows(split.n_samples().min(MOST_ROWS), n_features, k) => {
                    Principal::of_rows(n_features, k, &Device::Cpu, |f| blocks(split, self, seed, f))
                }
                _ => Principal::of(&moments()?, n_components),
            }
        };
        Ok(match *step {
            StepConfig::Scale(factor) => Step::Scale(factor),
            StepConfig::RowSum { total } => Step::RowSum { total },
            StepConfig::RowMean => Step::RowMean,
            StepConfig::Contrast { regulariser } => Step::Contrast { regulariser },
            StepConfig::UnitVariance => {
                let RowStatistics { stdev, min, .. } = RowStatistics::of(split()?, self, seed)?;
                if stdev <= 0. {
                    return Err(Error::Argument(format!(
                        "Preparation: rows must vary to be given unit variance, got {min} everywhere"
                    )));
                }
                Step::Scale(1. / stdev)
            }
            StepConfig::MeanNorm => {
                let (mut lengths, mut n) = (0., 0);
                blocks(split()?, self, seed, |rows| {
                    lengths +=
                        rows.to_dtype(DType::F64)?.sqr()?.sum(1)?.sqrt()?.sum_all()?.to_scalar::<f64>()?;
                    n += rows.dim(0)?;
                    Ok(())
                })?;
                let mean = lengths / n as f64;
                if !(mean.is_finite() && mean > 0.) {
                    return Err(Error::Argument(format!(
                        "Preparation: rows must have a length to be given a mean one, got {mean} on average"
                    )));
                }
                Step::Scale((self.n_outputs(split()?.n_features())? as f64).sqrt() / mean)
            }
            StepConfig::Center => {
                let mean = RowStatistics::of(split()?, self, seed)?.mean;
                let mean: Vec<f64> = mean.into_iter().map(f64::from).collect();
                Step::Center(Mean::new(Tensor::new(mean, &Device::Cpu)?, &Device::Cpu)?)
            }
            StepConfig::Standardise | StepConfig::MinMax | StepConfig::Robust => {
                let kind = match step {
                    StepConfig::MinMax => ColumnKind::MinMax,
                    StepConfig::Robust => ColumnKind::Robust,
                    _ => ColumnKind::Standardise,
                };
                Step::Columns(Columns::fit(kind, split()?, self, seed)?)
            }
            StepConfig::Log1p => {
                // Every row has a logarithm, or the first that has none is named.
                if let Ok(split) = split()
                    && split.rows.is_sparse()
                    && self.keeps_sparse()
                {
                    let with = Self { steps: [&self.steps[..], &[Step::Log1p]].concat(), ..self.clone() };
                    sparse_in_order(split, &with, |_| Ok(()))?;
                } else if let Ok(split) = split() {
                    in_order(split, self, |first, rows| Step::Log1p.apply(first, rows).map(drop))?;
                }
                Step::Log1p
            }
            StepConfig::Rescale => {
                let (mut squares, mut n_values) = (0., 0);
                blocks(split()?, self, seed, |rows| {
                    squares += TutorialRescale::squares(rows)?;
                    n_values += rows.elem_count();
                    Ok(())
                })?;
                Step::Rescale(TutorialRescale::of(squares, n_values)?)
            }
            StepConfig::Pca { n_components } => {
                Step::Pca(Pca::on(principal(Some(n_components))?, &Device::Cpu)?)
            }
            StepConfig::Whiten(config) => {
                config.validate(self.n_outputs(split()?.n_features())?)?;
                Step::Whiten(Whitening::of(principal(config.n_components)?, &config)?)
            }
        })
    }
}
