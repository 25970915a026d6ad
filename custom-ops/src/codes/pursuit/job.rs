//! A pursuit with checked operands.
use super::{ErrorTarget, Pursuit};
use crate::core::check::{expect, matrix};
use candle::{DType, Result, Tensor};

/// Which atom is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rule {
    /// The one most correlated with the residual.
    Omp,
    /// The one whose addition lowers the residual most.
    Ols,
}

/// What the pursuits of every device read; all tensors are contiguous, of shapes that fit, and on
/// one device.
#[derive(Debug)]
pub(super) struct Job {
    /// For messages.
    pub op: &'static str,
    pub rule: Rule,
    /// `[m, p]` f32 or f64
    pub signals: Tensor,
    /// `[m, p]` u8
    pub mask: Option<Tensor>,
    /// `[n, p]`, the type of `signals`
    pub dictionary: Tensor,
    pub target: Target,
    pub m: usize,
    pub n: usize,
    pub p: usize,
    /// The most atoms and the width of the codes, `1..=n`.
    pub s: usize,
    pub nonnegative: bool,
    /// The most signals at a time.
    pub chunk: Option<usize>,
}

/// [`ErrorTarget`] after its checks.
#[derive(Debug)]
pub(super) enum Target {
    /// Go on to the last atom.
    None,
    Absolute(f64),
    Relative(f64),
    /// `[m]` of the type of the signals
    PerSignal(Tensor),
}

impl Job {
    pub(super) fn new(
        op: &'static str,
        rule: Rule,
        signals: &Tensor,
        mask: Option<&Tensor>,
        dictionary: &Tensor,
        pursuit: &Pursuit,
    ) -> Result<Self> {
        const NUMBERS: [DType; 2] = [DType::F32, DType::F64];
        let (signals, dictionary) = (signals.contiguous()?, dictionary.contiguous()?);
        let (m, p) = matrix(op, "signals", "[n_samples, n_features]", &signals, &NUMBERS)?;
        let (n, features) =
            matrix(op, "dictionary", "[n_atoms, n_features]", &dictionary, &[signals.dtype()])?;
        if features != p {
            candle::bail!(
                "{op}: dictionary must be [n_atoms, {p}] to go with signals [{m}, {p}], got {:?}",
                dictionary.dims()
            )
        }
        let s = pursuit.n_nonzero;
        if s == 0 || s > n {
            candle::bail!("{op}: n_nonzero must be in 1..={n}, the number of atoms, got {s}")
        }
        if pursuit.chunk == Some(0) {
            candle::bail!("{op}: chunk must be at least 1, got 0")
        }
        let mask = mask.map(Tensor::contiguous).transpose()?;
        if let Some(mask) = &mask {
            expect(op, "mask", mask, &[DType::U8], &[m, p])?;
        }
        let target = Target::new(op, pursuit.error.as_ref(), &signals)?;
        let &Pursuit { nonnegative, chunk, .. } = pursuit;
        Ok(Self { op, rule, signals, mask, dictionary, target, m, n, p, s, nonnegative, chunk })
    }
}

impl Target {
    fn new(op: &str, error: Option<&ErrorTarget>, signals: &Tensor) -> Result<Self> {
        let at_least_0 = |epsilon: f64| match epsilon.is_finite() && epsilon >= 0. {
            true => Ok(epsilon),
            false => {
                candle::bail!("{op}: the error target must be a finite number of at least 0, got {epsilon}")
            }
        };
        Ok(match error {
            None => Self::None,
            Some(ErrorTarget::Absolute(epsilon)) => Self::Absolute(at_least_0(*epsilon)?),
            Some(ErrorTarget::Relative(epsilon)) => Self::Relative(at_least_0(*epsilon)?),
            Some(ErrorTarget::PerSignal(epsilon)) => {
                let epsilon = epsilon.contiguous()?;
                expect(op, "error targets", &epsilon, &[DType::F32, DType::F64], &signals.dims()[..1])?;
                Self::PerSignal(epsilon.to_dtype(signals.dtype())?)
            }
        })
    }
}

/// The numbers below which a pursuit sees rounding only; see "When a pursuit ends" in the module.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rounding {
    /// `|α_i|` must be above this times `‖y‖`.
    pub correlation: f64,
    /// `ρ²`, for OLS every candidate's `eⱼ`, must be above this.
    pub pivot: f64,
}

impl Rounding {
    pub(super) fn of(rule: Rule, dtype: DType) -> Self {
        let eps = if dtype == DType::F64 { f64::EPSILON } else { f64::from(f32::EPSILON) };
        let pivots = match rule {
            Rule::Omp => 64.,
            // It divides by eⱼ, which is known to a few eps: less than one per cent of this.
            Rule::Ols => 1024.,
        };
        Self { correlation: 16. * eps, pivot: pivots * eps }
    }
}
