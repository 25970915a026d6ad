//! Greedy sparse coding of many signals at once: Batch-OMP, orthogonal least squares, and their
//! variants.
//!
//! A signal `y` is approximated by a weighted sum of few atoms, chosen one by one. After each
//! choice the coefficients are the least-squares ones for all atoms chosen so far.
//!
//! ```text
//! d̂ⱼ = dⱼ / ‖dⱼ‖                              atoms need not be normalised; one of norm 0 is never chosen
//! αⱼ = d̂ⱼ · r                                 correlations with the residual r = y − x_I D_I, at first with y
//! i  = argmax |αⱼ|                            OMP;   argmax |αⱼ| / √eⱼ   OLS, which lowers ‖r‖ most
//!
//! w_l = u_l[i], l < k;  ρ² = 1 − Σ w_l²       what the chosen atoms leave of d̂_i
//! u_k = (G_i − Σ w_l u_l) / ρ                 G = D̂ D̂ᵀ;  u_k[j] = d̂ⱼ · q_k  for the new orthonormal direction q_k
//! z_k = α_i / ρ                               the coordinate of y along q_k
//! α ← α − z_k u_k;   ‖r‖² ← ‖r‖² − z_k²;   eⱼ ← eⱼ − u_k[j]²
//! Lᵀ x_I = z,  L's row k = (w, ρ)             once, at the end
//! ```
//!
//! This is the inverse Cholesky form: each step reads one row of `G` and combines it with `k`
//! earlier rows. It solves no system, and gives the error without computing the residual. Algorithm
//! 1 of Irofti 2016 has the Cholesky form, whose steps read `k` rows of `G` and solve two
//! triangular systems: [`bomp_cholesky`] is that, on the CPU.
//!
//! | symbol | argument | shape |
//! |---|---|---|
//! | `y` | `signals` | `[m, p]` f32 or f64 |
//! | `d` | `dictionary` | `[n, p]`, the type of `signals` |
//! | `s` | [`Pursuit::n_nonzero`] | |
//! | `ε` | [`Pursuit::error`] | |
//! | `I`, `x_I` | [`SparseCodes`] | `indices`, `values` `[m, s]`, `count` `[m]` |
//! | `u` | scratch | `[s, n]` for a signal |
//!
//! **A pursuit ends** at `s` atoms; when `‖r‖ ≤ ε`; when the chosen atom's `|α_i|` is at most 16
//! eps `‖y‖`, so that only rounding error is left; or when its `ρ²` is at most 64 eps, so that it
//! depends linearly on the atoms already chosen (OLS divides by `eⱼ` and considers only atoms with
//! `eⱼ` above 1024 eps). Ties go to the lowest index, and no atom is chosen twice. The recurrence
//! gives `‖r‖²` to within a few eps `‖y‖²`, so that an `ε` below about `√eps ‖y‖` (3e-4 in f32)
//! cannot be resolved.
//!
//! **Non-negative** codes (Bruckstein, Elad and Zibulevsky 2008): the largest *positive*
//! correlation is chosen and `x_I` solves `min ‖y − x_I D_I‖` over `x_I ≥ 0`. Atoms whose final
//! coefficient is 0 are removed from the codes. In the orthonormal basis the problem has `k`
//! unknowns: `min ‖z − Lᵀx‖`; then `c = Lᵀ x` replaces `z`: `α = α⁰ − Σ c_l u_l`, `z_k = (α_i − Σ
//! w_l (z_l − c_l)) / ρ` and `‖r‖² = ‖y‖² − ‖z‖² + ‖z − c‖²`. OLS then chooses by `α / √e` too.
//!
//! **Masked** signals have missing samples: norms, `G` and `α` are sums over the observed samples.
//!
//! **On CUDA** one kernel runs the whole pursuit of a signal: one warp or several with all data in
//! registers for small sizes; in f32, for up to 8192 atoms and 64 of them in a code, one block, or
//! a cluster of blocks, with the `u` in registers and shared memory; else one block with the `u` in
//! shared memory, or in global memory if they do not fit. f32 correlations are products of factors
//! in two f16 parts, as exact as f32 products. Codes are the same bits in every run. A call waits
//! for the device once, to check that all numbers were finite, and cannot be part of a recorded
//! step. Its scratch memory (at most 256 MiB of correlations and 1 GiB of `u`, and at most a
//! quarter of the free memory each) comes from candle's allocator, which keeps what is freed for
//! later calls, up to half of the device's memory.
//!
//! Sources: Pati, Rezaiifar and Krishnaprasad, "Orthogonal matching pursuit", Asilomar 1993; Chen,
//! Billings and Luo, "Orthogonal least squares methods and their application to non-linear system
//! identification", Int. J. Control 50(5), 1989; Rubinstein, Zibulevsky and Elad, "Efficient
//! implementation of the K-SVD algorithm using batch orthogonal matching pursuit", Technion
//! CS-2008-08; Zhu, Chen and Wu, "Efficient implementations for orthogonal matching pursuit",
//! Electronics 9(9), 2020 (the form `v0`); Irofti, "Efficient dictionary learning implementation on
//! the GPU using OpenCL", 2016 (groups of `m̃` signals, [`Pursuit::chunk`]); Bruckstein, Elad and
//! Zibulevsky, "On the uniqueness of nonnegative sparse solutions to underdetermined systems of
//! equations", IEEE Trans. Information Theory 54(11), 2008.
//!
//! ```
//! use candle::{Device::Cpu, Tensor};
//! use chandlery_ops::codes::{Pursuit, bomp};
//! # fn main() -> candle::Result<()> {
//! // Atoms along the axes, the second of length 2; a signal with 3 along the first and 4 along the second.
//! let dictionary = Tensor::new(&[[1f32, 0., 0.], [0., 2., 0.], [0., 0., 1.]], &Cpu)?;
//! let signals = Tensor::new(&[[3f32, 4., 0.], [0., 0., 0.]], &Cpu)?;
//! let codes = bomp(&signals, &dictionary, &Pursuit::new(2))?;
//! assert_eq!(codes.count.to_vec1::<u32>()?, [2, 0]);
//! assert_eq!(codes.indices.to_vec2::<u32>()?, [[1, 0], [0, 0]]);
//! assert_eq!(codes.values.to_vec2::<f32>()?, [[2., 3.], [0., 0.]]);
//! assert_eq!(codes.reconstruct(&dictionary)?.to_vec2::<f32>()?, signals.to_vec2::<f32>()?);
//! # Ok(()) }
//! ```
mod codes;
mod combine;
mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
mod job;
#[cfg(any(feature = "cuda", test))]
mod plan;
mod reference;
mod run;

pub use codes::{SparseCodes, stacked_entries};
pub use reference::{bomp_masked_reference, ols_masked_reference, ols_reference, omp_reference};

use candle::{Result, Tensor};
use job::{Job, Rule};

/// Error target at which a pursuit stops, in terms of the residual `r = y − x D`; every number is
/// at least 0.
#[derive(Debug, Clone)]
pub enum ErrorTarget {
    /// `‖r‖₂ ≤ ε` for every signal.
    Absolute(f64),
    /// `‖r‖₂ ≤ ε ‖y‖₂`.
    Relative(f64),
    /// `‖r‖₂ ≤ εᵢ`, with one `εᵢ` for each signal: `[m]` f32 or f64 on the device of the signals.
    PerSignal(Tensor),
}

/// Options of a pursuit: when it ends, and which coefficients are allowed.
#[derive(Debug, Clone)]
pub struct Pursuit {
    /// The most atoms of a signal, and the width of the codes: 1 to `n_atoms`.
    pub n_nonzero: usize,
    /// Error target that ends a pursuit before it has `n_nonzero` atoms; default: none.
    pub error: Option<ErrorTarget>,
    /// Whether every coefficient must be at least 0; default: no.
    pub nonnegative: bool,
    /// The most signals that are coded at a time (`m̃` of Irofti 2016), at least 1; their
    /// correlations are the memory that a pursuit needs besides its result. Default: none, as many
    /// as memory has room for. Codes depend on it by the rounding of correlations at most.
    pub chunk: Option<usize>,
}

impl Pursuit {
    /// Up to `n_nonzero` atoms, without an error target, coefficients of either sign.
    pub fn new(n_nonzero: usize) -> Self {
        Self { n_nonzero, error: None, nonnegative: false, chunk: None }
    }
}

/// Batch-OMP, orthogonal matching pursuit of many signals at once: codes each signal with at most
/// `pursuit.n_nonzero` atoms.
///
/// `signals` is `[m, p]` f32 or f64 and `dictionary` `[n, p]` of the same type; both may be views
/// of any layout. The codes have the type of the signals, and their coefficients apply to the atoms
/// as given, normalised or not. See the [module](self) for the rules.
///
/// Cost: `2mnp + n²p` FLOP for correlations and Gram matrix and `mns²` for the pursuits; memory
/// `n² + O(s·n)` per worker. For few signals (`m·s < n`) only the rows of the Gram matrix that they
/// need are computed.
///
/// # Errors
/// When shapes, types or devices do not fit, `n_nonzero` is not in `1..=n`, an error target is
/// negative, or a number is not finite (on the CPU the message names the row).
pub fn bomp(signals: &Tensor, dictionary: &Tensor, pursuit: &Pursuit) -> Result<SparseCodes> {
    Job::new("bomp", Rule::Omp, signals, None, dictionary, pursuit)?.run()
}

/// Batch-OMP in the Cholesky form of algorithm 1 of Irofti 2016 (Rubinstein, Zibulevsky and Elad
/// 2008), as it is printed, for comparison with [`bomp`]: each step solves for all coefficients and
/// computes all correlations anew from them.
///
/// Arguments and codes are those of [`bomp`] with `Pursuit::new(n_nonzero)`; all operands are on
/// the CPU. One signal after the other in each thread, in the type of the signals.
///
/// Cost: `2mnp + n²p` FLOP for correlations and Gram matrix and `mns²` for the pursuits, as of
/// [`bomp`], whose inner loops use the vector unit.
///
/// # Errors
/// As for [`bomp`], and when the operands are on a GPU.
pub fn bomp_cholesky(signals: &Tensor, dictionary: &Tensor, n_nonzero: usize) -> Result<SparseCodes> {
    let pursuit = Pursuit::new(n_nonzero);
    Job::new("bomp_cholesky", Rule::Omp, signals, None, dictionary, &pursuit)?.run_as_printed()
}

/// Orthogonal least squares: the same as [`bomp`], but each step chooses the atom that lowers the
/// residual most.
///
/// On natural images its residual is a few per cent lower than that of [`bomp`], and it takes about
/// a quarter longer.
///
/// # Errors
/// As for [`bomp`].
pub fn ols(signals: &Tensor, dictionary: &Tensor, pursuit: &Pursuit) -> Result<SparseCodes> {
    Job::new("ols", Rule::Ols, signals, None, dictionary, pursuit)?.run()
}

/// [`bomp`] of signals with missing samples: only samples where `mask` is not 0 are used.
///
/// `mask` is u8 `[m, p]`; entries of `signals` where it is 0 are never read and may be NaN. An
/// error target applies to the observed samples only: pass `ε = gain · σ √observed` as
/// [`ErrorTarget::PerSignal`]. A signal without observed samples has an empty code. The codes also
/// reconstruct the missing samples.
///
/// Cost: that of [`bomp`] plus `2mnps` FLOP: each step of each signal computes a row of that
/// signal's own Gram matrix.
///
/// # Errors
/// As for [`bomp`].
pub fn bomp_masked(
    signals: &Tensor,
    mask: &Tensor,
    dictionary: &Tensor,
    pursuit: &Pursuit,
) -> Result<SparseCodes> {
    Job::new("bomp_masked", Rule::Omp, signals, Some(mask), dictionary, pursuit)?.run()
}

/// [`ols`] of signals with missing samples: the same as [`bomp_masked`], but each step chooses the
/// atom that lowers the error on the observed samples most.
///
/// # Errors
/// As for [`bomp`].
pub fn ols_masked(
    signals: &Tensor,
    mask: &Tensor,
    dictionary: &Tensor,
    pursuit: &Pursuit,
) -> Result<SparseCodes> {
    Job::new("ols_masked", Rule::Ols, signals, Some(mask), dictionary, pursuit)?.run()
}
