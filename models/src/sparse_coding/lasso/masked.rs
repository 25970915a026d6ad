//! Signals with missing samples: a Gram matrix for each set of observed samples.
//!
//! ```text
//! G = B M Bᵀ,   Gⱼₗ = Σ over observed samples t of Bⱼₜ Bₗₜ
//! ```
//!
//! On the CPU a solver makes those rows of it that it comes to need. On a GPU it is a row of one
//! product, of the mask with the products of all pairs of atoms, or where these need too much
//! memory `(B M)(B M)ᵀ`.
use super::part::Part;
use super::problem::Problem;
use super::{Activations, Lasso, OP, Solver};
use candle::{DType, Device, Result, Tensor};
use chandlery_ops::Precision;
use chandlery_ops::arrays::gather_rows;
use chandlery_ops::codes::{MaskedSignals, lasso_masked_, row_squares};
use chandlery_ops::layers::{Factors, gemm_};
use std::collections::HashMap;

/// Signals that must miss the same samples to be a problem of their own.
const ALIKE: usize = 16;
/// Entries of Gram matrices that are held at once on a GPU, and at most as many of what they are
/// made from: 256 MiB in f32.
const ENTRIES: usize = 1 << 26;

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

/// Rows that have the same mask as many others, by mask, and those that have not; in the order of
/// the rows.
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
        let penalties = (weights * lasso.beta)?;
        let (n, dtype, device) = (dictionary.dim(0)?, signals.dtype(), signals.device());
        let grams = Grams::of(dictionary, lasso.ridge)?;
        let some = |rows: &[u32]| {
            let m = rows.len();
            let [signals, mask] = [signals, self.mask].map(|t| gather_rows(&t.contiguous()?, rows));
            let (signals, mask) = (signals?, mask?);
            let dense = Tensor::zeros((m, n), dtype, device)?;
            let gaps = match &grams {
                None => {
                    let of = MaskedSignals { dictionary, signals: &signals, mask: &mask, ridge: lasso.ridge };
                    let options = lasso.options(n, true)?;
                    lasso_masked_(&dense, of, &penalties, &options)?.gaps
                }
                Some(grams) => {
                    let gram = grams.of_masks(&mask.ne(0u8)?.to_dtype(dtype)?)?;
                    let correlations = Tensor::zeros((m, n), dtype, device)?;
                    gemm_(&correlations, &signals, &dictionary.t()?, Factors::OVERWRITE, Precision::F32)?;
                    let energies = row_squares(&signals)?.to_dtype(dtype)?;
                    let penalties = penalties.clone();
                    Part { lasso, dictionary, gram: &gram, correlations, energies, penalties }
                        .solve(&dense, true)?
                }
            };
            Ok(Activations { dense, gaps, tolerance: lasso.tolerance })
        };
        let at_once = grams.as_ref().map_or(rows.len(), |grams| grams.at_once);
        rows.chunks(at_once.max(1)).map(some).collect()
    }
}

/// Makes the Gram matrices of many masks, on a GPU, where a block takes each signal.
struct Grams<'a> {
    dictionary: &'a Tensor,
    /// The products of all pairs of atoms, `[p, n²]`, where there is room for them.
    pairs: Option<Tensor>,
    /// `λ I`, unless that is 0.
    ridge: Option<Tensor>,
    /// Masks that there is room for.
    at_once: usize,
}

impl<'a> Grams<'a> {
    /// None on the CPU, where [`lasso_masked_`] needs few rows of them.
    fn of(dictionary: &'a Tensor, ridge: f64) -> Result<Option<Self>> {
        let (n, p) = dictionary.dims2()?;
        let (dtype, device) = (dictionary.dtype(), dictionary.device());
        if device.is_cpu() {
            return Ok(None);
        }
        let has_room = p.saturating_mul(n * n) <= ENTRIES;
        let columns = dictionary.t()?.contiguous()?;
        let pairs = || columns.unsqueeze(2)?.broadcast_mul(&columns.unsqueeze(1)?)?.reshape((p, n * n));
        Ok(Some(Self {
            dictionary,
            pairs: has_room.then(pairs).transpose()?,
            ridge: (ridge > 0.).then(|| Tensor::eye(n, dtype, device)? * ridge).transpose()?,
            // Without pairs the masked atoms of every signal stand beside its matrix.
            at_once: (ENTRIES / (n * (n + if has_room { 0 } else { p }))).max(1),
        }))
    }

    /// `[m, n, n]` of masks of 0 and 1, `[m, p]`.
    fn of_masks(&self, masks: &Tensor) -> Result<Tensor> {
        let (m, n) = (masks.dim(0)?, self.dictionary.dim(0)?);
        let gram = match &self.pairs {
            Some(pairs) => {
                let gram = Tensor::zeros((m, n * n), masks.dtype(), masks.device())?;
                gemm_(&gram, masks, pairs, Factors::OVERWRITE, Precision::F32)?;
                gram.reshape((m, n, n))?
            }
            None => {
                let shown = self.dictionary.unsqueeze(0)?.broadcast_mul(&masks.unsqueeze(1)?)?;
                shown.matmul(&shown.transpose(1, 2)?)?
            }
        };
        self.ridge.as_ref().map_or(Ok(gram.clone()), |ridge| gram.broadcast_add(ridge))
    }
}
