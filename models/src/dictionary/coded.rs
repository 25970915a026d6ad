//! Codes of signals over a dictionary in training, and how good they are.
use super::SparseCoder;
use crate::share::Share;
use candle::{Result, Tensor};
use chandlery_ops::arrays::elementwise::mul;
use chandlery_ops::arrays::gather_rows_by;
use chandlery_ops::codes::{AtomUses, SparseCodes, row_squares};

/// Codes of the signals over a dictionary, and what an update reads of them.
pub(super) struct Coded {
    pub codes: SparseCodes,
    pub uses: AtomUses,
    /// Of all ranks.
    pub counts: Vec<u32>,
    pub error: Tensor,
    pub squares: Tensor,
    pub quality: Quality,
}

/// How good codes are, and with them the dictionary.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Quality {
    pub rmse: f64,
    pub mean_count: f64,
}

impl Quality {
    /// Whether these are better than `others`: to an error target those of fewer atoms, else those
    /// of the lower error.
    pub(super) fn beats(&self, others: &Self, to_error: bool) -> bool {
        if to_error && self.mean_count != others.mean_count {
            return self.mean_count < others.mean_count;
        }
        self.rmse < others.rmse
    }
}

impl Coded {
    /// Atoms that at least one signal uses.
    pub(super) fn used(&self) -> usize {
        self.counts.iter().filter(|&&uses| uses > 0).count()
    }
}

/// Codes in which these atoms have the coefficient 0: an atom that is new did not have those of the
/// one before it.
pub(super) fn without(codes: SparseCodes, atoms: &[usize]) -> Result<SparseCodes> {
    if atoms.is_empty() {
        return Ok(codes);
    }
    let mut keep = vec![1f32; codes.n_atoms];
    atoms.iter().for_each(|&j| keep[j] = 0.);
    let keep = Tensor::new(keep, codes.values.device())?.to_dtype(codes.values.dtype())?;
    let keep = gather_rows_by(&keep, &codes.indices.flatten_all()?)?.reshape(codes.indices.shape())?;
    Ok(SparseCodes { values: mul(&codes.values, &keep)?, ..codes })
}

/// The codes of this rank's signals; their figures are those of all ranks, to the bit.
pub(super) fn code(
    coder: &SparseCoder,
    share: &Share,
    signals: &Tensor,
    atoms: &Tensor,
    iteration: usize,
) -> Result<Coded> {
    let codes = coder.encode(signals, atoms)?;
    let uses = AtomUses::of(&codes)?;
    let error = codes.residual(signals, atoms)?;
    let squares = row_squares(&error)?;
    let sum = share.gathered(&squares)?.sum_all()?.to_scalar::<f64>()?;
    let rmse = (sum / (share.of() * error.dim(1)?) as f64).sqrt();
    if !rmse.is_finite() {
        candle::bail!(
            "DictionaryTrainer: the RMSE became {rmse} in iteration {iteration}; signals must be finite and their squares too"
        )
    }
    let mut counts = uses.counts()?;
    if !share.group().is_single() {
        let sums = Tensor::new(counts, signals.device())?;
        share.group().all_reduce_(&sums)?;
        counts = sums.to_vec1()?;
    }
    let mean_count = counts.iter().map(|&uses| f64::from(uses)).sum::<f64>() / share.of() as f64;
    Ok(Coded { codes, uses, counts, error, squares, quality: Quality { rmse, mean_count } })
}
