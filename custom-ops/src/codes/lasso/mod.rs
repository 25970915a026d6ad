//! Sparse coding by the lasso: many signals, one dictionary, in terms of its Gram matrix.
//!
//! Each row of `c` is a problem of its own:
//!
//! ```text
//! P(a) = ½ ε − c·a + ½ aᵀ G a + Σ βⱼ |aⱼ|              the objective, minimised over a (or over a ≥ 0)
//!      = ½ ‖x − a B‖² + Σ βⱼ |aⱼ|                       for G = B Bᵀ, c = x Bᵀ, ε = ‖x‖²
//!
//! q = c − a G                                           correlations of the atoms with the residual r = x − a B
//! a minimises P   ⇔   |qⱼ| ≤ βⱼ, and qⱼ = βⱼ sign(aⱼ) where aⱼ ≠ 0
//!                     (a ≥ 0:  qⱼ ≤ βⱼ, and qⱼ = βⱼ where aⱼ > 0)
//!
//! a*ⱼ = soft(qⱼ + Gⱼⱼ aⱼ, βⱼ) / Gⱼⱼ                     minimises P over aⱼ alone
//! soft(z, β) = sign(z) max(|z| − β, 0)                  the soft threshold;  a ≥ 0: max(z − β, 0)
//!
//! ‖r‖² = ε − c·a − q·a
//! s = min(1, min over |qⱼ| > 0 of βⱼ / |qⱼ|)            s r is dual feasible;  a ≥ 0: only positive qⱼ count
//! D = s (ε − c·a) − ½ s² ‖r‖²                           D ≤ min P ≤ P(a)
//! gap = (P − D) / P
//! ```
//!
//! | symbol | argument | shape |
//! |---|---|---|
//! | `a` | `activations` | `[m, n]` f32 or f64, as is all else |
//! | `G` | `gram` | `[n, n]`, symmetric and positive semidefinite; or `[m, n, n]`, one for each signal |
//! | `c` | `correlations` | `[m, n]` |
//! | `ε` | `energies` | `[m]` |
//! | `β` | `penalties` | `[n]`, at least 0 |
//! | | [`LassoReport::gaps`] | `[m]` |
//!
//! Signals with missing samples have Gram matrices of their own: with `M` the diagonal of 1 for
//! each observed sample and 0 for the others, `½ ‖M (x − a B)‖² + Σ βⱼ |aⱼ|` is the problem with
//! `G = B M Bᵀ`, `c = x M Bᵀ` and `ε = ‖M x‖²`.
//!
//! An elastic net with the additional term `½ λ ‖a‖²` is this problem with `λ` added to the
//! diagonal of `G`.
//!
//! **The gap** bounds how far `P(a)` is above its minimum, relative to `P(a)`. It is 0 where `P` is
//! at most `16 eps ε`, which is rounding error. Atoms with `βⱼ = 0` do not count in `s`; their
//! optimality condition is `qⱼ = 0`, and the reported gap is at least `|qⱼ| / √(ε Gⱼⱼ)` of each
//! (`a ≥ 0`: of those with positive `qⱼ`). In f32 a gap cannot be resolved below about
//! `16 eps ε / P`. A solver that makes no progress any more stops; then the gap is above the
//! tolerance.
//!
//! **Zero atoms**, those with `Gⱼⱼ = 0`, are never used: their coefficients become 0.
//!
//! **[`LassoMethod::ActiveSet`]** repeats three steps for each signal:
//!
//! 1. Greedy coordinate descent over all atoms: the coordinate whose step lowers `P` most, measured
//!    by `√Gⱼⱼ |a*ⱼ − aⱼ|`, moves to its minimiser `a*ⱼ`; ties go to the lowest index. Some atoms
//!    enter the support.
//! 2. Newton steps on the support with the signs fixed, by Cholesky factors of its Gram matrix,
//!    each with an exact line search: along the direction `P` is quadratic between the points where
//!    a coefficient changes its sign. Where atoms depend on each other linearly (a pivot of at most
//!    64 eps `Gⱼⱼ`, which becomes that), the step goes along the direction in which `P` is linear,
//!    until a coefficient is 0.
//! 3. `q` and the gap are computed anew from `a`.
//!
//! Where rounding errors stop this before the tolerance (supports of almost as many atoms as there
//! are features, in f32), coordinate descent goes on.
//!
//! **[`LassoMethod::CoordinateDescent`]** sweeps over all coordinates in order, then over the
//! support until its steps are small, then over all again; each full sweep ends with the gap.
//!
//! Results do not depend on the number of threads.
//!
//! **On CUDA** one kernel runs whole solves, a block for each signal: `q` and `a` in registers. Its
//! first step lets many atoms join the support at once, those with the largest `|qⱼ| − βⱼ`, and its
//! second goes to the minimum on the support with the signs fixed and drops the atoms whose
//! coefficient then has another sign, until none has, by an inverse Cholesky factor that atoms join
//! and leave. Where `P` does not fall by that, the steps above go on. The factor is in shared
//! memory; signals whose support outgrows it go on in further launches, in the end with factors in
//! global memory, up to 1024 atoms, and without Newton steps above that. Few signals get blocks of
//! more threads and room; of up to 16,384 signals those that look hardest start first. There may be
//! up to 8192 atoms. A call waits for the device once, or once more for each launch with factors in
//! global memory, and cannot be part of a recorded step. Scratch memory: as much as `gram`, and for
//! such a launch at most 2 MiB (f32) for each multiprocessor. Results are the same bits in every
//! run.
//!
//! Sources: Tibshirani, "Regression shrinkage and selection via the lasso", J. Royal Statistical
//! Society B 58(1), 1996; Osborne, Presnell and Turlach, "A new approach to variable selection in
//! least squares problems", IMA J. Numerical Analysis 20(3), 2000 (the active set); Portugal,
//! Júdice and Vicente, "A comparison of block pivoting and interior-point algorithms for linear
//! least squares problems with nonnegative variables", Mathematics of Computation 63, 1994 (joining
//! and dropping many at once); Friedman, Hastie and Tibshirani, "Regularization paths for
//! generalized linear models via coordinate descent", J. Statistical Software 33(1), 2010; Li and
//! Osher, "Coordinate descent optimization for ℓ¹ minimization with application to compressed
//! sensing; a greedy algorithm", Inverse Problems and Imaging 3(3), 2009; Kim, Koh, Lustig, Boyd
//! and Gorinevsky, "An interior-point method for large-scale ℓ1-regularized least squares", IEEE J.
//! Selected Topics in Signal Processing 1(4), 2007 (the dual point).
//!
//! ```
//! use candle::{Device::Cpu, Tensor};
//! use chandlery_ops::codes::{LassoOptions, lasso_};
//! # fn main() -> candle::Result<()> {
//! // Two orthogonal atoms of length 1: each coefficient is its correlation, moved towards 0 by the penalty.
//! let gram = Tensor::new(&[[1f64, 0.], [0., 1.]], &Cpu)?;
//! let (correlations, energies) = (Tensor::new(&[[3f64, -0.5]], &Cpu)?, Tensor::new(&[9.25f64], &Cpu)?);
//! let penalties = Tensor::new(&[1f64, 1.], &Cpu)?;
//! let activations = correlations.zeros_like()?;
//! let report = lasso_(&activations, &gram, &correlations, &energies, &penalties, &LassoOptions::default())?;
//! assert_eq!(activations.to_vec2::<f64>()?, [[2., 0.]]);
//! assert!(report.gaps.to_vec1::<f64>()?[0] <= 1e-4);
//! # Ok(()) }
//! ```
mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
mod masked;
mod reference;
#[cfg(any(feature = "cuda", test))]
mod shape;
pub mod step;

pub use masked::{MaskedSignals, lasso_masked_};
pub use reference::{lasso_gaps_reference, lasso_reference};
pub use step::{LassoStep, LineSearch, lasso_step_, lasso_step_reference};

use crate::core::check::{expect, matrix};
use crate::core::op::{Io, Kernel, Operands, new_tensor, operands};
use candle::{CpuStorage, DType, Result, Tensor};

const OP: &str = "lasso_";

/// How a lasso is solved; see the [module](self).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum LassoMethod {
    /// Greedy coordinate descent and Newton steps on the support.
    #[default]
    ActiveSet,
    /// Cyclic coordinate descent.
    CoordinateDescent,
}

/// Options of [`lasso_`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LassoOptions {
    /// How problems are solved; default: [`LassoMethod::ActiveSet`].
    pub method: LassoMethod,
    /// Relative duality gap at which a signal is done, at least 0. Default 1e-4: `P` is within 0.01
    /// % of its minimum.
    pub tolerance: f64,
    /// The most updates of coefficients of one signal, at least 1; a Newton step on `k`
    /// coefficients counts as `k`. A signal ends with the round or sweep that exceeds it. Default
    /// 1,000,000, which only ill-conditioned problems reach.
    pub max_updates: usize,
    /// Whether every coefficient must be at least 0; default: no.
    pub nonnegative: bool,
    /// Whether all signals start from zeros and what `activations` holds is not read; default: no.
    pub from_zeros: bool,
}

impl Default for LassoOptions {
    fn default() -> Self {
        let (tolerance, max_updates) = (1e-4, 1_000_000);
        Self { method: LassoMethod::default(), tolerance, max_updates, nonnegative: false, from_zeros: false }
    }
}

/// How far the solver got, for each signal.
#[derive(Debug, Clone)]
pub struct LassoReport {
    /// Relative duality gap, `[m]` of the type of the activations: at most the tolerance where a
    /// signal converged.
    pub gaps: Tensor,
    /// Updates of coefficients, u32 `[m]`.
    pub updates: Tensor,
}

/// Solves a lasso for each row of `correlations`, all with one Gram matrix or each with its own.
///
/// `activations` `[m, n]` is the start and receives the solution: zeros, or activations of an
/// earlier call (a warm start). `gram` is `[n, n]` or, for each signal its own, `[m, n, n]`;
/// `correlations` `[m, n]`, `energies` `[m]` (at least 0) and `penalties` `[n]` (at least 0); all
/// are contiguous, f32 or f64, and finite; that `gram` is symmetric is not checked. With
/// `nonnegative`, negative entries of the start count as 0. See the [module](self) for the problem
/// and the methods.
///
/// Cost of the active set, for a solution of `k` atoms: about `3k` updates of `2n` FLOP, and 4 to
/// 10 Newton steps of at most `k³/3 + 2kn` FLOP. Memory: as much as `gram`, and `O(n + w²)` for
/// each worker, with `w` the atoms that were ever in the support of a signal.
///
/// # Errors
/// When shapes, types, layouts or devices do not fit, an option is out of range, or, on the CPU, a
/// number is not finite, an energy or a penalty is negative (the message names the row or atom);
/// then some activations may be solutions already.
pub fn lasso_(
    activations: &Tensor,
    gram: &Tensor,
    correlations: &Tensor,
    energies: &Tensor,
    penalties: &Tensor,
    options: &LassoOptions,
) -> Result<LassoReport> {
    let (m, n) = matrix(OP, "activations", "[n_samples, n_atoms]", activations, &[DType::F32, DType::F64])?;
    let dtype = activations.dtype();
    let own_gram = gram.rank() == 3;
    let grams = [m, n, n];
    expect(OP, "gram", gram, &[dtype], &grams[usize::from(!own_gram)..])?;
    expect(OP, "correlations", correlations, &[dtype], &[m, n])?;
    expect(OP, "energies", energies, &[dtype], &[m])?;
    expect(OP, "penalties", penalties, &[dtype], &[n])?;
    options.check()?;
    if n == 0 {
        candle::bail!("{OP}: gram must have at least one atom, got shape [0, 0]")
    }
    let report = LassoReport::new(OP, activations)?;
    if m > 0 {
        let written = report.operands(OP, activations);
        let read = written.read("gram", gram).read("correlations", correlations);
        read.read("energies", energies).read("penalties", penalties).run(&Lasso {
            n,
            own_gram,
            dtype,
            options: *options,
        })?;
    }
    Ok(report)
}

impl LassoReport {
    fn new(op: &'static str, activations: &Tensor) -> Result<Self> {
        let (m, dtype, device) = (activations.dim(0)?, activations.dtype(), activations.device());
        let (gaps, updates) = (new_tensor(op, m, dtype, device)?, new_tensor(op, m, DType::U32, device)?);
        Ok(Self { gaps, updates })
    }

    /// What a solver writes.
    fn operands<'a>(&'a self, op: &'static str, activations: &'a Tensor) -> Operands<'a> {
        let written = operands(op).write("activations", activations);
        written.write("gaps", &self.gaps).write("updates", &self.updates)
    }
}

impl LassoOptions {
    fn check(&self) -> Result<()> {
        if !(self.tolerance.is_finite() && self.tolerance >= 0.) {
            candle::bail!("{OP}: tolerance must be a finite number of at least 0, got {}", self.tolerance)
        }
        if self.max_updates == 0 {
            candle::bail!("{OP}: max_updates must be at least 1, got 0")
        }
        Ok(())
    }
}

/// Problems whose operands were checked.
#[derive(Debug)]
struct Lasso {
    n: usize,
    /// Whether each signal has a Gram matrix of its own.
    own_gram: bool,
    dtype: DType,
    options: LassoOptions,
}

impl Kernel for Lasso {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        match self.dtype {
            // Four registers of 64 bytes.
            DType::F64 => cpu::run::<f64, 32>(self, io),
            _ => cpu::run::<f32, 64>(self, io),
        }
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        match self.dtype {
            DType::F64 => cuda::run::<f64>(self, gpu, io),
            _ => cuda::run::<f32>(self, gpu, io),
        }
    }
}
