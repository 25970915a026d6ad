//! A pursuit with checked operands, and its dispatch to a device.
use super::{ErrorTarget, Pursuit, SparseCodes, cpu};
use crate::core::check::{expect, matrix};
use crate::core::op::{Io, Kernel, operands};
use candle::{CpuStorage, DType, Result, Tensor};
use std::sync::{Mutex, PoisonError};

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
        let mask = mask.map(Tensor::contiguous).transpose()?;
        if let Some(mask) = &mask {
            expect(op, "mask", mask, &[DType::U8], &[m, p])?;
        }
        let target = Target::new(op, pursuit.error.as_ref(), &signals)?;
        Ok(Self { op, rule, signals, mask, dictionary, target, m, n, p, s, nonnegative: pursuit.nonnegative })
    }

    /// The codes, from the device that the operands are on.
    pub(super) fn run(&self) -> Result<SparseCodes> {
        self.run_with(cpu::run)
    }

    /// The same, on the CPU by `on_cpu`.
    pub(super) fn run_with(&self, on_cpu: OnCpu) -> Result<SparseCodes> {
        let coding = Coding { job: self, on_cpu, codes: Mutex::new(None) };
        let operands = operands(self.op).read("signals", &self.signals).read("dictionary", &self.dictionary);
        let targets = match &self.target {
            Target::PerSignal(targets) => Some(targets),
            _ => None,
        };
        operands.maybe("mask", self.mask.as_ref()).maybe("error targets", targets).run(&coding)?;
        match coding.codes.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(codes) => Ok(codes),
            None => candle::bail!("{}: nothing ran", self.op),
        }
    }

    #[cfg(feature = "cuda")]
    pub(super) fn sizes(&self) -> super::plan::Sizes {
        let &Self { rule, m, n, p, s, nonnegative, .. } = self;
        let bytes = self.signals.dtype().size_in_bytes();
        super::plan::Sizes { rule, m, n, p, s, bytes, nonnegative, masked: self.mask.is_some() }
    }
}

/// Makes the codes of a job from its operands: signals, dictionary, mask and error targets.
pub(super) type OnCpu = fn(&Job, Io<'_, CpuStorage>) -> Result<SparseCodes>;

/// A job as a kernel: its results are new, and made once the operands are known to be on one device.
struct Coding<'a> {
    job: &'a Job,
    on_cpu: OnCpu,
    codes: Mutex<Option<SparseCodes>>,
}

impl Coding<'_> {
    fn made(&self, codes: SparseCodes) {
        *self.codes.lock().unwrap_or_else(PoisonError::into_inner) = Some(codes);
    }
}

impl Kernel for Coding<'_> {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        self.made((self.on_cpu)(self.job, io)?);
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        self.made(super::cuda::run(self.job, gpu, io)?);
        Ok(())
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
