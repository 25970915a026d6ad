//! Dictionary updates from sparse codes: the update of the atoms, and the sums and lists that it
//! needs.
//!
//! Codes stay sparse throughout. Row `i` of `X` has the entries `(indices[i, k], values[i, k])`,
//! `k < count[i]`. The update of an atom reads the entries with its index; [`AtomUses`] lists them,
//! sorted on the device.
//!
//! ```text
//! I_j = { i : x_ij in the code of i }                     the signals that use atom j          AtomUses
//! E   = Y − X D                                           the error                            SparseCodes::residual
//! F   = E_I + x_j d_j                                     the error without atom j             update_atoms
//! d_j ← F·x_j − 2γ Σ_{l≠j} (d_l·d_j) d_l,  normalised     one step;  x_j ← F·d_j, or x_j stays
//! A   = βA + XᵀX,   B = βB + XᵀY                          statistics                           codes_statistics_
//! d_j ← d_j + (b_j − a_j D) / A_jj,  length 1 or at most 1  descent on ½ tr(DᵀAD) − tr(DᵀB)      descend_atoms_
//! ```
//!
//! | symbol | argument | shape |
//! |---|---|---|
//! | `D` | `dictionary` | `[n_atoms, n_features]`, f32 or f64, as is all else |
//! | `X` | `codes` | [`SparseCodes`] |
//! | `Y` | `signals` | `[n_samples, n_features]` |
//! | `γ` | [`AtomUpdate::coherence_penalty`] | |
//!
//! On one device, every sum has a fixed order that does not depend on the number of threads, so the
//! same input gives the same bits.
//!
//! Sources: Rubinstein, Zibulevsky and Elad, "Efficient implementation of the K-SVD algorithm using
//! batch orthogonal matching pursuit", Technion CS-2008-08; Irofti, "Efficient dictionary learning
//! implementation on the GPU using OpenCL", 2016, section 3; Dumitrescu and Irofti, "Dictionary
//! learning algorithms and applications", Springer 2018, chapters 3 and 4 (the penalty); Mairal,
//! Bach, Ponce and Sapiro, "Online learning for matrix factorization and sparse coding", JMLR 11,
//! 2010 (the statistics).
mod coherence;
mod descend;
mod figures;
mod reference;
mod squares;
mod statistics;
mod sweep;
mod update;
mod uses;

pub use coherence::{atom_coherence, atom_coherence_, atom_coherence_reference};
pub use descend::{AtomLength, descend_atoms_, descend_atoms_reference};
pub use figures::{FIGURE_PARTS, code_figures_};
pub use reference::update_atoms_reference;
pub use squares::row_squares;
pub use statistics::{Bounds, StatisticsStep, codes_statistics_};
pub use update::update_atoms;
pub use uses::AtomUses;

use crate::codes::SparseCodes;
use crate::core::check::{expect, matrix};
use crate::core::fused::{Fused, fma, fused};
use crate::core::limits::Limits;
use candle::{DType, Result, Tensor, WithDType};
use figures::figures_hold;
use multiversion::multiversion;
use rayon::prelude::*;

/// Options of [`update_atoms`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AtomUpdate {
    /// Atoms updated at once from one error matrix (ñ). 1 is the classic sequential sweep;
    /// `n_atoms` or more updates all atoms at once. Default 1.
    pub group: usize,
    /// The most steps of the power method for an atom and its coefficients. 1 is AK-SVD, many steps
    /// are K-SVD; with 0 the coefficients do not change and the atom is the best one for them
    /// (SGK). Default 1.
    pub power_steps: usize,
    /// The power method stops when a step moves the atom, which has length 1, by at most this.
    /// Default 1e-5.
    pub tolerance: f64,
    /// Number of first atoms that do not change. Default 0.
    pub n_fixed: usize,
    /// `γ` of the penalty `γ Σ_{i≠j} (d_i·d_j)²` that is added to `‖Y − X D‖²`, at least 0, in
    /// squared units of the signals. Where it outweighs `x_j·x_j`, power steps may not converge and
    /// stop at [`power_steps`](Self::power_steps). Default 0.
    pub coherence_penalty: f64,
}

impl Default for AtomUpdate {
    fn default() -> Self {
        Self { group: 1, power_steps: 1, tolerance: 1e-5, n_fixed: 0, coherence_penalty: 0. }
    }
}

/// Features that a sum keeps in registers.
const TILE: usize = 64;
/// Lanes of a dot product.
const LANES: usize = 16;
/// Rows that are summed by themselves before they join the sum: what is added stays of the size of
/// what it is added to.
const BLOCK: usize = 256;
/// Numbers below which other threads are not worth waking.
const GRAIN: usize = 32 * 1024;
/// The same in products of two numbers that the cache holds.
const PRODUCTS: usize = 4 << 20;

/// Types of numbers that atoms may have.
const FLOATS: [DType; 2] = [DType::F32, DType::F64];
/// Of kernels/codes/atoms.cuh: warps of a block, and columns that each sums at a time.
const WARPS: usize = 16;
const COLUMNS: usize = 128;

/// Blocks of a cluster that work on one atom, where atoms have so many uses on average that each
/// block has work.
fn team(limits: Limits, uses: usize, n_atoms: usize) -> usize {
    /// The most that every GPU with clusters can run.
    const MOST: usize = 8;
    /// Mean uses from which on a block has more than a few entries a warp.
    const USES: usize = 1024;
    if limits.has_clusters() && uses / n_atoms.max(1) >= USES { MOST } else { 1 }
}

/// Codes with contiguous tensors that fit each other and values of type `dtype`, and `[m, s]`.
fn check_codes(op: &str, codes: &SparseCodes, dtype: DType) -> Result<(SparseCodes, [usize; 2])> {
    let codes = SparseCodes {
        indices: codes.indices.contiguous()?,
        values: codes.values.contiguous()?,
        count: codes.count.contiguous()?,
        n_atoms: codes.n_atoms,
    };
    let (m, s) = matrix(op, "codes.indices", "[n_samples, width]", &codes.indices, &[DType::U32])?;
    if !FLOATS.contains(&dtype) {
        candle::bail!("{op}: codes.values must be f32 or f64, got {dtype:?}")
    }
    expect(op, "codes.values", &codes.values, &[dtype], &[m, s])?;
    expect(op, "codes.count", &codes.count, &[DType::U32], &[m])?;
    if m as u64 * s as u64 > u64::from(u32::MAX) {
        candle::bail!(
            "{op}: codes must have fewer than 2^32 entries, got {m} × {s}; take fewer signals at a time"
        )
    }
    Ok((codes, [m, s]))
}

/// `(n_atoms, n_features)` of a contiguous dictionary.
fn check_dictionary(op: &str, dictionary: &Tensor) -> Result<(usize, usize)> {
    let (n, p) = matrix(op, "dictionary", "[n_atoms, n_features]", dictionary, &FLOATS)?;
    if n == 0 || p == 0 {
        candle::bail!("{op}: dictionary must have at least one atom and one feature, got shape [{n}, {p}]")
    }
    Ok((n, p))
}

/// `out[c] = Σ_k weights[k] · rows[list[k], c]`: entries in order, [`BLOCK`] of them by themselves,
/// then the blocks in order.
pub(super) fn weighted_sum<T: Fused>(rows: &[T], list: &[u32], weights: &[T], out: &mut [T]) {
    let p = out.len();
    out.fill(T::zero());
    if list.len() > BLOCK && list.len() * p >= 2 * GRAIN {
        let parts: Vec<Vec<T>> = list
            .par_chunks(BLOCK)
            .zip(weights.par_chunks(BLOCK))
            .map(|(list, weights)| {
                let mut part = vec![T::zero(); p];
                add_block(rows, p, list, weights, &mut part);
                part
            })
            .collect();
        for part in parts {
            out.iter_mut().zip(part).for_each(|(out, part)| *out += part);
        }
    } else {
        for (list, weights) in list.chunks(BLOCK).zip(weights.chunks(BLOCK)) {
            add_block(rows, p, list, weights, out);
        }
    }
}

/// Adds the sum of a block to `out`: the first columns of rows that are `stride` long.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+fma", "x86_64+avx2+fma"))]
fn add_block<T: Fused>(rows: &[T], stride: usize, list: &[u32], weights: &[T], out: &mut [T]) {
    const FUSED: bool = fused!();
    for (tile, out) in out.chunks_mut(TILE).enumerate() {
        let mut sum = [T::zero(); TILE];
        let at = tile * TILE;
        if out.len() == TILE {
            for (&row, &weight) in list.iter().zip(weights) {
                let row = &rows[row as usize * stride + at..][..TILE];
                for (sum, &x) in sum.iter_mut().zip(row) {
                    *sum = fma::<T, FUSED>(weight, x, *sum);
                }
            }
        } else {
            for (&row, &weight) in list.iter().zip(weights) {
                let row = &rows[row as usize * stride + at..][..out.len()];
                for (sum, &x) in sum.iter_mut().zip(row) {
                    *sum = fma::<T, FUSED>(weight, x, *sum);
                }
            }
        }
        out.iter_mut().zip(sum).for_each(|(out, sum)| *out += sum);
    }
}

/// `out[k] = rows[list[k]] · d`, in [`LANES`] lanes that are added in halves.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+fma", "x86_64+avx2+fma"))]
pub(super) fn dots<T: Fused>(rows: &[T], list: &[u32], d: &[T], out: &mut [T]) {
    const FUSED: bool = fused!();
    let p = d.len();
    for (&row, out) in list.iter().zip(out) {
        *out = dot_lanes::<T, FUSED>(&rows[row as usize * p..][..p], d);
    }
}

#[inline(always)]
fn dot_lanes<T: Fused, const FUSED: bool>(a: &[T], b: &[T]) -> T {
    let mut sum = [T::zero(); LANES];
    let (a_chunks, b_chunks) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let (a_rest, b_rest) = (a_chunks.remainder(), b_chunks.remainder());
    for (a, b) in a_chunks.zip(b_chunks) {
        for l in 0..LANES {
            sum[l] = fma::<T, FUSED>(a[l], b[l], sum[l]);
        }
    }
    for ((sum, &a), &b) in sum.iter_mut().zip(a_rest).zip(b_rest) {
        *sum = fma::<T, FUSED>(a, b, *sum);
    }
    let halves: [T; 8] = std::array::from_fn(|l| sum[l] + sum[l + 8]);
    let quarters: [T; 4] = std::array::from_fn(|l| halves[l] + halves[l + 4]);
    let pair = [quarters[0] + quarters[2], quarters[1] + quarters[3]];
    pair[0] + pair[1]
}

/// `a · b`.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+fma", "x86_64+avx2+fma"))]
pub(super) fn dot<T: Fused>(a: &[T], b: &[T]) -> T {
    const FUSED: bool = fused!();
    dot_lanes::<T, FUSED>(a, b)
}

/// `y ← y + a x`.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+fma", "x86_64+avx2+fma"))]
fn axpy<T: Fused>(a: T, x: &[T], y: &mut [T]) {
    const FUSED: bool = fused!();
    for (y, &x) in y.iter_mut().zip(x) {
        *y = fma::<T, FUSED>(a, x, *y);
    }
}

/// Scales to unit length; without one (zero, or a number that is not finite) the row is left and
/// the answer is no.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl+fma", "x86_64+avx2+fma"))]
pub(super) fn normalize<T: WithDType>(row: &mut [T]) -> bool {
    let norm = squares_of(row).sqrt();
    let good = norm > f64::from(f32::MIN_POSITIVE) && norm.is_finite();
    if good {
        let scale = 1. / norm;
        row.iter_mut().for_each(|x| *x = T::from_f64(x.to_f64() * scale));
    }
    good
}

/// `Σ x²` in f64, in [`LANES`] lanes that are added in order.
#[inline(always)]
fn squares_of<T: WithDType>(row: &[T]) -> f64 {
    let mut sum = [0f64; LANES];
    let whole = row.chunks_exact(LANES);
    for (sum, x) in sum.iter_mut().zip(whole.remainder()) {
        *sum += x.to_f64() * x.to_f64();
    }
    for x in whole {
        for l in 0..LANES {
            sum[l] += x[l].to_f64() * x[l].to_f64();
        }
    }
    sum.iter().sum()
}
