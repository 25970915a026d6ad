//! Signals with missing samples: a Gram matrix for each set of observed samples.
//!
//! ```text
//! G = B M Bᵀ,   Gⱼₗ = Σ over observed samples t of Bⱼₜ Bₗₜ      a row of one product, of the mask with the products of all pairs of atoms
//! ```
use super::problem::{Part, Problem};
use super::{Activations, Lasso, OP, Solver};
use candle::{DType, Device, Result, Tensor};
use chandlery_ops::{Factors, Precision, gather_rows, gemm_, row_squares};
use std::collections::HashMap;

/// Signals that must miss the same samples to be a problem of their own.
const ALIKE: usize = 16;
/// Entries of Gram matrices that are held at once: 64 MiB in f32, and 256 MiB on a GPU, which has a block for each signal.
const ENTRIES: usize = 1 << 24;
const ENTRIES_ON_GPU: usize = 1 << 26;

/// See [`Lasso::solve_masked`].
pub(super) fn solve(
    lasso: &Lasso,
    signals: &Tensor,
    mask: &Tensor,
    dictionary: &Tensor,
) -> Result<Activations> {
    if !matches!(lasso.solver, Solver::ActiveSet | Solver::CoordinateDescent) {
        candle::bail!(
            "{OP}: missing samples are for the solvers ActiveSet and CoordinateDescent, got {:?}",
            lasso.solver
        )
    }
    if mask.dims() != signals.dims() || mask.dtype() != DType::U8 {
        candle::bail!(
            "{OP}: mask must be u8 of the shape of the signals, {:?}, got {:?} {:?}",
            signals.dims(),
            mask.dtype(),
            mask.dims()
        )
    }
    // A value that is not there may be NaN, and NaN · 0 is NaN.
    let observed = mask.ne(0u8)?.where_cond(signals, &signals.zeros_like()?)?;
    let masked = Masked { problem: Problem::new(lasso, &observed, dictionary)?, mask };
    let (shared, own) = groups(mask)?;
    let (mut order, mut parts) = (vec![], vec![]);
    for rows in shared {
        parts.push(masked.alike(&rows)?);
        order.extend(rows);
    }
    if !own.is_empty() {
        parts.extend(masked.each(&own)?);
        order.extend(own);
    }
    gathered(&masked.problem, &order, &parts)
}

/// Rows that have the same mask as many others, by mask, and those that have not; in the order of the rows.
fn groups(mask: &Tensor) -> Result<(Vec<Vec<u32>>, Vec<u32>)> {
    let masks = mask.ne(0u8)?.to_device(&Device::Cpu)?.to_vec2::<u8>()?;
    let (mut places, mut all) = (HashMap::new(), Vec::<Vec<u32>>::new());
    for (row, mask) in masks.iter().enumerate() {
        let place = *places.entry(mask).or_insert(all.len());
        if place == all.len() {
            all.push(vec![]);
        }
        all[place].push(row as u32);
    }
    let (shared, rare): (Vec<_>, Vec<_>) = all.into_iter().partition(|rows| rows.len() >= ALIKE);
    Ok((shared, rare.concat()))
}

/// Activations by part, in the order of the signals: part `i` begins with row `order[0]`.
fn gathered(problem: &Problem<'_>, order: &[u32], parts: &[Activations]) -> Result<Activations> {
    if order.is_empty() {
        return problem.solve(problem.lasso.beta, None);
    }
    let mut places = vec![0u32; order.len()];
    order.iter().enumerate().for_each(|(place, &row)| places[row as usize] = place as u32);
    let back = |of: fn(&Activations) -> &Tensor| {
        gather_rows(&Tensor::cat(&parts.iter().map(of).collect::<Vec<_>>(), 0)?, &places)
    };
    Ok(Activations {
        dense: back(|part| &part.dense)?,
        gaps: back(|part| &part.gaps)?,
        tolerance: problem.lasso.tolerance,
    })
}

/// Signals whose missing samples are 0, and which samples they have.
struct Masked<'a> {
    problem: Problem<'a>,
    mask: &'a Tensor,
}

impl Masked<'_> {
    /// Those of rows that miss the same samples: the lasso over a dictionary without these.
    fn alike(&self, rows: &[u32]) -> Result<Activations> {
        let Problem { lasso, signals, dictionary, .. } = &self.problem;
        let mask = self.mask.get(rows[0] as usize)?.ne(0u8)?.to_dtype(signals.dtype())?;
        let signals = gather_rows(&signals.contiguous()?, rows)?;
        let part = Problem::new(lasso, &signals, &dictionary.broadcast_mul(&mask)?)?;
        part.solve(lasso.beta, None)
    }

    /// Those of rows that each have a Gram matrix.
    fn each(&self, rows: &[u32]) -> Result<Vec<Activations>> {
        let Problem { lasso, signals, dictionary, weights, .. } = &self.problem;
        let (n, p) = dictionary.dims2()?;
        let (dtype, device) = (signals.dtype(), signals.device());
        // [p, n²]
        let columns = dictionary.t()?.contiguous()?;
        let pairs = columns.unsqueeze(2)?.broadcast_mul(&columns.unsqueeze(1)?)?.reshape((p, n * n))?;
        let ridge = (Tensor::eye(n, dtype, device)? * lasso.ridge)?;
        let penalties = (weights * lasso.beta)?;
        let at_once = (if device.is_cuda() { ENTRIES_ON_GPU } else { ENTRIES } / (n * n)).max(1);
        let some = |rows: &[u32]| {
            let m = rows.len();
            let mask = gather_rows(&self.mask.contiguous()?, rows)?.ne(0u8)?.to_dtype(dtype)?;
            let signals = gather_rows(&signals.contiguous()?, rows)?;
            let gram = Tensor::zeros((m, n * n), dtype, device)?;
            gemm_(&gram, &mask, &pairs, Factors::OVERWRITE, Precision::F32)?;
            let gram = gram.reshape((m, n, n))?;
            let gram = if lasso.ridge > 0. { gram.broadcast_add(&ridge)? } else { gram };
            let correlations = Tensor::zeros((m, n), dtype, device)?;
            gemm_(&correlations, &signals, &columns, Factors::OVERWRITE, Precision::F32)?;
            let energies = row_squares(&signals)?.to_dtype(dtype)?;
            let penalties = penalties.clone();
            let part = Part { lasso, dictionary, gram: &gram, correlations, energies, penalties };
            let dense = Tensor::zeros((m, n), dtype, device)?;
            let gaps = part.solve(&dense)?;
            Ok(Activations { dense, gaps, tolerance: lasso.tolerance })
        };
        rows.chunks(at_once).map(some).collect()
    }
}
