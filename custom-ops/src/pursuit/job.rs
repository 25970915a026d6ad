//! A pursuit whose operands were checked, and the one place where it goes to a device.
use super::{ErrorTarget, Pursuit, SparseCodes, cpu};
use crate::draw::same_device;
use candle::{DType, Device, Result, Tensor};

/// Which atom is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rule {
    /// The one most correlated with the residual.
    Omp,
    /// The one whose addition lowers the residual most.
    Ols,
}

/// What the pursuits of every device read; all tensors are contiguous, of shapes that fit, and on one device.
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
        let (m, p) = match signals.dims() {
            &[m, p] => (m, p),
            shape => candle::bail!("{op}: signals must be [n_samples, n_features], got shape {shape:?}"),
        };
        let n = match dictionary.dims() {
            &[n, features] if features == p => n,
            shape => candle::bail!(
                "{op}: dictionary must be [n_atoms, {p}] to go with signals {:?}, got {shape:?}",
                signals.dims()
            ),
        };
        let dtype = signals.dtype();
        if !matches!(dtype, DType::F32 | DType::F64) || dictionary.dtype() != dtype {
            candle::bail!(
                "{op}: signals and dictionary must both be f32 or both f64, got {dtype:?} and {:?}",
                dictionary.dtype()
            )
        }
        let s = pursuit.n_nonzero;
        if s == 0 || s > n {
            candle::bail!("{op}: n_nonzero must be in 1..={n}, the number of atoms, got {s}")
        }
        same_device(op, "dictionary", dictionary, signals.device())?;
        if let Some(mask) = mask {
            if mask.dims() != signals.dims() || mask.dtype() != DType::U8 {
                candle::bail!(
                    "{op}: mask must be u8 of shape [{m}, {p}] as the signals, got {:?} of shape {:?}",
                    mask.dtype(),
                    mask.dims()
                )
            }
            same_device(op, "mask", mask, signals.device())?;
        }
        Ok(Self {
            op,
            rule,
            signals: signals.contiguous()?,
            mask: mask.map(Tensor::contiguous).transpose()?,
            dictionary: dictionary.contiguous()?,
            target: Target::new(op, pursuit.error.as_ref(), signals, m)?,
            m,
            n,
            p,
            s,
            nonnegative: pursuit.nonnegative,
        })
    }

    /// The codes, from the device that the signals are on.
    pub(super) fn run(&self) -> Result<SparseCodes> {
        match self.signals.device() {
            Device::Cpu => cpu::run(self),
            #[cfg(feature = "cuda")]
            Device::Cuda(device) => super::cuda::run(self, device),
            device => candle::bail!("{}: no code for device {:?}; move signals to the CPU", self.op, device),
        }
    }
}

impl Target {
    fn new(op: &str, error: Option<&ErrorTarget>, signals: &Tensor, m: usize) -> Result<Self> {
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
                if epsilon.dims() != [m] || !matches!(epsilon.dtype(), DType::F32 | DType::F64) {
                    candle::bail!(
                        "{op}: error targets must be f32 or f64 of shape [{m}], one for each signal, got {:?} of shape {:?}",
                        epsilon.dtype(),
                        epsilon.dims()
                    )
                }
                same_device(op, "error targets", epsilon, signals.device())?;
                Self::PerSignal(epsilon.to_dtype(signals.dtype())?.contiguous()?)
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
