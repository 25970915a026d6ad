//! What learners from minibatches keep of all signals so far.
use crate::check::batch_of;
use crate::checkpoint::Checkpoint;
use crate::share::of_first;
use candle::{DType, Device, Result, Tensor};
use chandlery_ops::arrays::elementwise::{mul, sub};
use chandlery_ops::layers::{Factors, gemm_};
use chandlery_ops::{Group, Precision};

/// `A = Σ aᵀa` and `S = Σ aᵀx` over signals `x` and their codes `a`, both rows: all that the best
/// atoms for these codes depend on.
///
/// `½ Σ ‖x − a B‖² = ½ tr(BᵀAB) − tr(BᵀS) + ½ Σ ‖x‖²` for atoms `B`, `[n_atoms, n_features]`.
#[derive(Debug, Clone)]
pub struct Statistics {
    /// `A`, `[n_atoms, n_atoms]`.
    pub(crate) gram: Tensor,
    /// `S`, `[n_atoms, n_features]`.
    pub(crate) signals: Tensor,
}

impl Statistics {
    /// Those of no signals; f32 or f64.
    ///
    /// # Errors
    /// When memory is short.
    pub fn none(n_atoms: usize, n_features: usize, dtype: DType, device: &Device) -> Result<Self> {
        let zeros = |columns| Tensor::zeros((n_atoms, columns), dtype, device);
        Ok(Self { gram: zeros(n_atoms)?, signals: zeros(n_features)? })
    }

    /// The statistics after a batch, `β A + aᵀa` and `β S + aᵀx`; `self` stays. With a `beta` of 0
    /// the old ones are not read.
    ///
    /// `activations` are `[batch, n_atoms]`, `signals` `[batch, n_features]`, contiguous, of the
    /// type and on the device of the statistics. Cost:
    /// `2 · batch · n_atoms · (n_atoms + n_features)` FLOP; nothing waits for the device.
    ///
    /// # Errors
    /// When shapes, types or devices do not fit, or the batch is empty.
    pub fn after(&self, activations: &Tensor, signals: &Tensor, beta: f64) -> Result<Self> {
        let (n, p) = self.signals.dims2()?;
        batch_of("Statistics::after", "activations", activations, n)?;
        batch_of("Statistics::after", "signals", signals, p)?;
        let after = self.copy()?;
        let (a, factors) = (activations.t()?, Factors::Host { alpha: 1., beta });
        gemm_(&after.gram, &a, activations, factors, Precision::F32)?;
        gemm_(&after.signals, &a, signals, factors, Precision::F32)?;
        Ok(after)
    }

    /// Those of no signals, of the same sizes.
    pub(crate) fn zeros_like(&self) -> Result<Self> {
        Ok(Self { gram: self.gram.zeros_like()?, signals: self.signals.zeros_like()? })
    }

    /// The same in memory of their own.
    pub(crate) fn copy(&self) -> Result<Self> {
        Ok(Self { gram: self.gram.copy()?, signals: self.signals.copy()? })
    }

    /// The sum of what all ranks have, in place. Cost: an all-reduce of
    /// `n_atoms · (n_atoms + n_features)` numbers.
    pub(crate) fn sum_over(&self, group: &Group) -> Result<()> {
        group.all_reduce_(&self.gram)?;
        group.all_reduce_(&self.signals)
    }

    /// Those of the first rank.
    pub(crate) fn of_first(&self, group: &Group) -> Result<Self> {
        Ok(Self { gram: of_first(group, &self.gram)?, signals: of_first(group, &self.signals)? })
    }

    /// `½ tr(BᵀAB) − tr(BᵀS)`, in f64: half the squared error of the signals less `½ Σ ‖x‖²`. Waits
    /// for the device.
    ///
    /// # Errors
    /// When `atoms` are not `[n_atoms, n_features]`.
    pub fn objective(&self, atoms: &Tensor) -> Result<f64> {
        let wide = |t: &Tensor| t.to_dtype(DType::F64);
        let (a, s, b) = (wide(&self.gram)?, wide(&self.signals)?, wide(atoms)?);
        mul(&sub(&(a.matmul(&b)? * 0.5)?, &s)?, &b)?.sum_all()?.to_scalar()
    }

    /// `A`, `[n_atoms, n_atoms]`.
    pub fn gram(&self) -> &Tensor {
        &self.gram
    }

    /// `S`, `[n_atoms, n_features]`.
    pub fn signals(&self) -> &Tensor {
        &self.signals
    }

    /// The tensors `gram` and `signals` of a checkpoint, for `[n_atoms, n_features]`.
    pub(crate) fn load(stored: &Checkpoint<'_>, idle: &Idle, [n, p]: [usize; 2]) -> Result<Self> {
        let (gram, signals) = (stored.get("gram")?, stored.get("signals")?);
        if gram.dims() != [n, n] || signals.dims() != [n, p] || idle.0.len() != n {
            return Err(stored.refused(&format!(
                "gram, signals and idle must have shapes [{n}, {n}], [{n}, {p}] and [{n}], got {:?}, {:?} and [{}]",
                gram.dims(),
                signals.dims(),
                idle.0.len()
            )));
        }
        Ok(Self { gram, signals })
    }

    /// Atoms that are new have no past.
    pub(crate) fn forget(&self, replaced: &[usize]) -> Result<()> {
        let (n, p) = self.signals.dims2()?;
        let zeros = |shape: (usize, usize)| Tensor::zeros(shape, self.gram.dtype(), self.gram.device());
        for &j in replaced {
            self.gram.slice_set(&zeros((1, n))?, 0, j)?;
            self.gram.slice_set(&zeros((n, 1))?, 1, j)?;
            self.signals.slice_set(&zeros((1, p))?, 0, j)?;
        }
        Ok(())
    }
}

/// `(1 − 1/t)^ρ`: what statistics of the batches before batch `t`, counted from 1, weigh beside it.
/// Where ranks [sum](Statistics::sum_over) theirs, all have those before, and the first adds them.
pub(crate) fn kept(group: &Group, t: usize, forgetting: f64) -> f64 {
    if group.rank() == 0 { (1. - 1. / t as f64).powf(forgetting) } else { 0. }
}

/// For each atom the signals since one used it.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub(crate) struct Idle(pub(crate) Vec<u64>);

impl Idle {
    pub(crate) fn new(n_atoms: usize) -> Self {
        Self(vec![0; n_atoms])
    }

    /// After a batch of `m` signals, some of which use the atoms for which `used` holds.
    pub(crate) fn after(&self, used: &[bool], m: usize) -> Self {
        let after = |(&idle, &used): (&u64, &bool)| if used { 0 } else { idle + m as u64 };
        Self(self.0.iter().zip(used).map(after).collect())
    }

    pub(crate) fn forget(&mut self, replaced: &[usize]) {
        replaced.iter().for_each(|&j| self.0[j] = 0);
    }
}
