//! Subspace pursuit, projection-based OMP and look-ahead OLS of many signals at once, from candle's
//! ops, in f64: the form for GPUs.
//!
//! The rules are those of `subspace`, `projection` and `look_ahead` one folder up, whose codes
//! these are but for rounding and the order of the atoms of a code; rounding also decides which
//! atoms of more candidates than a signal has values depend on others. Where those go from signal
//! to signal, each step here is one for all of them: the atoms of a signal are slots of a row, and
//! a slot can be empty.
//!
//! ```text
//! S = G_JJ;  for each slot j of J:  L_j = S_j / √S_jj,  z_j = r_j / √S_jj      or nothing, where S_jj is rounding
//!                                   S ← S − L_j L_jᵀ,  r ← r − z_j L_j         r = α⁰_J at first
//! Lᵀ x = z,   ‖y − x D̂‖² = ‖y‖² − ‖z‖²
//! ```
mod look_ahead;
mod rules;

use super::problem::{CORRELATION, Operands, PIVOT, operands};
use super::{PursuitMethod, SparseCoder};
use candle::{DType, Result, Tensor};
use chandlery_ops::arrays::gather_rows_by;
use chandlery_ops::codes::SparseCodes;

/// Correlations at a time, where nothing else is asked for: some arrays of so many numbers, 256 MiB
/// each.
const ENTRIES: usize = 1 << 25;

/// Whether this form is for the method, over this dictionary.
pub(super) fn is_for(method: PursuitMethod, dictionary: &Tensor) -> bool {
    // Entries of the Gram matrix are counted in 32 bits.
    let few = dictionary.dims().first().is_some_and(|&n| n < 1 << 16);
    !matches!(method, PursuitMethod::Omp | PursuitMethod::Ols) && few
}

/// Codes the signals on the device that they are on.
pub(super) fn encode(coder: &SparseCoder, signals: &Tensor, dictionary: &Tensor) -> Result<SparseCodes> {
    let device = signals.device();
    let Operands { rows, unit, lengths, energies, targets, m, n } =
        operands(coder, signals, dictionary, device)?;
    let turned = unit.t()?.contiguous()?;
    let gram = unit.matmul(&turned)?;
    let lengths = Tensor::new(lengths.as_slice(), device)?;
    // A way of look-ahead OLS has an array for each of its atoms.
    let arrays = if coder.method == PursuitMethod::LookAheadOls { coder.n_nonzero.div_ceil(4) } else { 1 };
    let at_once = coder.chunk.unwrap_or(ENTRIES / (n * arrays)).clamp(1, m.max(1));
    let mut parts = Vec::new();
    for start in (0..m).step_by(at_once) {
        let len = at_once.min(m - start);
        let column = |x: &[f64]| Tensor::new(&x[start..start + len], device)?.unsqueeze(1);
        let energy = column(&energies)?;
        let problem = Problems {
            gram: &gram,
            corr: rows.narrow(0, start, len)?.matmul(&turned)?,
            least: (energy.sqrt()? * CORRELATION)?,
            energy,
            target: column(&targets)?,
            to_error: coder.error.is_some(),
            ids: Tensor::arange(0f64, n as f64, device)?.unsqueeze(0)?,
            s: coder.n_nonzero,
        };
        let fits = match coder.method {
            PursuitMethod::ProjectionOmp => rules::projection(&problem)?,
            PursuitMethod::LookAheadOls => look_ahead::look_ahead(&problem)?,
            _ => rules::subspace(&problem)?,
        };
        parts.push(packed(&fits, &lengths, coder.n_nonzero, signals.dtype())?);
    }
    if parts.is_empty() {
        let s = coder.n_nonzero;
        return Ok(SparseCodes {
            indices: Tensor::zeros((m, s), DType::U32, device)?,
            values: Tensor::zeros((m, s), signals.dtype(), device)?,
            count: Tensor::zeros(m, DType::U32, device)?,
            n_atoms: n,
        });
    }
    let join = |of: fn(&[Tensor; 3]) -> &Tensor| Tensor::cat(&parts.iter().map(of).collect::<Vec<_>>(), 0);
    Ok(SparseCodes {
        indices: join(|p| &p[0])?,
        values: join(|p| &p[1])?,
        count: join(|p| &p[2])?,
        n_atoms: n,
    })
}

/// Some signals over the dictionary. Columns are `[m, 1]`.
struct Problems<'a> {
    /// `G`, `[n, n]`
    gram: &'a Tensor,
    /// `α⁰`, `[m, n]`
    corr: Tensor,
    /// `‖y‖²`, and below what a correlation is rounding
    energy: Tensor,
    least: Tensor,
    /// `ε²`, and whether there is one
    target: Tensor,
    to_error: bool,
    /// `0 … n − 1`, `[1, n]`
    ids: Tensor,
    /// The most atoms.
    s: usize,
}

/// Atoms of each signal in slots, `[m, k]`: their numbers, and 1 where a slot is taken, else 0.
#[derive(Clone)]
struct Sets {
    atoms: Tensor,
    taken: Tensor,
}

/// Sets with the coefficients that leave least; slots of atoms that depend on earlier ones are
/// empty.
#[derive(Clone)]
struct Fits {
    sets: Sets,
    /// `[m, k]`, 0 in empty slots
    x: Tensor,
    /// `‖r‖²`, `[m, 1]`
    error: Tensor,
}

/// 1 where it is true.
fn as_number(is: &Tensor) -> Result<Tensor> {
    is.to_dtype(DType::F64)
}

/// `one` where the column `is` is 1, else `other`.
fn choose(is: &Tensor, one: &Tensor, other: &Tensor) -> Result<Tensor> {
    is.to_dtype(DType::U8)?.broadcast_as(one.shape())?.contiguous()?.where_cond(one, other)
}

impl Sets {
    fn width(&self) -> Result<usize> {
        self.atoms.dim(1)
    }

    /// These slots, then those.
    fn and(&self, others: &Self) -> Result<Self> {
        Ok(Self {
            atoms: Tensor::cat(&[&self.atoms, &others.atoms], 1)?,
            taken: Tensor::cat(&[&self.taken, &others.taken], 1)?,
        })
    }

    /// One of the slots.
    fn slot(&self, at: usize) -> Result<Self> {
        let one = |x: &Tensor| x.narrow(1, at, 1)?.contiguous();
        Ok(Self { atoms: one(&self.atoms)?, taken: one(&self.taken)? })
    }

    /// These for the signals of which `is` is 1, else the others, which have as many slots.
    fn or(&self, is: &Tensor, others: &Self) -> Result<Self> {
        let taken = choose(is, &self.taken, &others.taken)?;
        Ok(Self { atoms: choose(is, &self.atoms, &others.atoms)?, taken })
    }

    fn count(&self) -> Result<Tensor> {
        self.taken.sum_keepdim(1)
    }
}

/// The `count` ids with the largest scores above `least`, the best first, of equal ones the lowest;
/// scores are at least 0, or −1 for what must not be chosen. `ids` are `[m, k]` or `[1, k]`.
fn largest(scores: &Tensor, ids: &Tensor, least: &Tensor, count: usize) -> Result<Sets> {
    let ids = ids.broadcast_as(scores.shape())?.contiguous()?;
    let (far, never) = ((scores.zeros_like()? + f64::MAX)?, (scores.zeros_like()? - 1.)?);
    let mut scores = scores.clone();
    let (mut atoms, mut taken) = (Vec::with_capacity(count), Vec::with_capacity(count));
    for _ in 0..count {
        let best = scores.max_keepdim(1)?;
        let id = scores.broadcast_eq(&best)?.where_cond(&ids, &far)?.min_keepdim(1)?;
        scores = ids.broadcast_eq(&id)?.where_cond(&never, &scores)?;
        let is_taken = as_number(&best.gt(least)?)?;
        // An empty slot has the number of some atom.
        atoms.push((id * &is_taken)?);
        taken.push(is_taken);
    }
    Ok(Sets { atoms: Tensor::cat(&atoms, 1)?, taken: Tensor::cat(&taken, 1)? })
}

impl Problems<'_> {
    fn n(&self) -> Result<usize> {
        self.gram.dim(0)
    }

    /// The atoms that `corr` is largest for, but those that are `dense`, `[m, n]`, where it is not
    /// 0.
    fn most_correlated(&self, corr: &Tensor, dense: Option<&Tensor>, count: usize) -> Result<Sets> {
        let scores = corr.abs()?;
        let scores = match dense {
            Some(dense) => dense.ne(0f64)?.where_cond(&(scores.zeros_like()? - 1.)?, &scores)?,
            None => scores,
        };
        largest(&scores, &self.ids, &self.least, count.min(self.n()?))
    }

    /// A number for each slot as a matrix over the atoms, `[m, n]`.
    fn dense(&self, sets: &Sets, values: &Tensor) -> Result<Tensor> {
        let values = (values * &sets.taken)?;
        let indices = (&sets.atoms * &sets.taken)?.to_dtype(DType::U32)?;
        let count = Tensor::full(sets.width()? as u32, values.dim(0)?, values.device())?;
        SparseCodes { indices, values, count, n_atoms: self.n()? }.to_dense()
    }

    /// `D̂ r` for the residuals of fits.
    fn correlations(&self, fits: &Fits) -> Result<Tensor> {
        &self.corr - self.dense(&fits.sets, &fits.x)?.matmul(self.gram)?
    }

    /// The coefficients that leave least; atoms that depend on earlier slots are left out.
    fn fit(&self, sets: &Sets) -> Result<Fits> {
        let (m, k) = sets.atoms.dims2()?;
        let n = self.n()?;
        let pairs = (sets.atoms.unsqueeze(2)? * n as f64)?.broadcast_add(&sets.atoms.unsqueeze(1)?)?;
        let pairs = pairs.to_dtype(DType::U32)?.flatten_all()?;
        let mut left = gather_rows_by(&self.gram.reshape((n * n, 1))?, &pairs)?.reshape((m, k, k))?;
        let mut right = self.corr.contiguous()?.gather(&sets.atoms.to_dtype(DType::U32)?.contiguous()?, 1)?;
        let (mut columns, mut roots, mut kept, mut z) = (vec![], vec![], vec![], vec![]);
        for j in 0..k {
            let column = left.narrow(2, j, 1)?.squeeze(2)?;
            let pivot = column.narrow(1, j, 1)?;
            let keep = (as_number(&pivot.gt(PIVOT)?)? * sets.taken.narrow(1, j, 1)?)?;
            // 1 in an empty slot, which divides nothing by 0.
            let root = ((&pivot * &keep)? + keep.affine(-1., 1.)?)?.sqrt()?;
            let below: Vec<f64> = (0..k).map(|row| if row < j { 0. } else { 1. }).collect();
            let below = Tensor::new(below, column.device())?.unsqueeze(0)?;
            let column = column.broadcast_mul(&below)?.broadcast_mul(&(&keep / &root)?)?;
            let along = (right.narrow(1, j, 1)? * (&keep / &root)?)?;
            right = (&right - column.broadcast_mul(&along)?)?;
            left = (&left - column.unsqueeze(2)?.broadcast_mul(&column.unsqueeze(1)?)?)?;
            columns.push(column);
            roots.push(root);
            kept.push(keep);
            z.push(along);
        }
        let mut rest = Tensor::cat(&z, 1)?;
        let error = (&self.energy - rest.sqr()?.sum_keepdim(1)?)?;
        let factor = Tensor::stack(&columns, 2)?;
        let mut x = vec![];
        for j in (0..k).rev() {
            let value = ((rest.narrow(1, j, 1)? * &kept[j])? / &roots[j])?;
            rest = (&rest - factor.narrow(1, j, 1)?.squeeze(1)?.broadcast_mul(&value)?)?;
            x.push(value);
        }
        x.reverse();
        let sets = Sets { atoms: sets.atoms.clone(), taken: Tensor::cat(&kept, 1)? };
        Ok(Fits { sets, x: Tensor::cat(&x, 1)?, error })
    }

    /// Fits of no atom, with `width` slots.
    fn empty(&self, width: usize) -> Result<Fits> {
        let none = Tensor::zeros((self.corr.dim(0)?, width), DType::F64, self.corr.device())?;
        let sets = Sets { atoms: none.clone(), taken: none.clone() };
        Ok(Fits { sets, x: none, error: self.energy.clone() })
    }

    /// 1 for signals that are small enough already.
    fn is_met(&self, error: &Tensor) -> Result<Tensor> {
        as_number(&error.le(&self.target)?)
    }

    /// 1 for the others.
    fn goes_on(&self, error: &Tensor) -> Result<Tensor> {
        self.is_met(error)?.affine(-1., 1.)
    }
}

impl Fits {
    /// These for the signals of which `is` is 1, else the others, which have as many slots.
    fn or(&self, is: &Tensor, others: &Self) -> Result<Self> {
        Ok(Self {
            sets: self.sets.or(is, &others.sets)?,
            x: choose(is, &self.x, &others.x)?,
            error: choose(is, &self.error, &others.error)?,
        })
    }

    /// The same with more slots, which are empty.
    fn widened(&self, width: usize) -> Result<Self> {
        let (m, k) = self.x.dims2()?;
        if k >= width {
            return Ok(self.clone());
        }
        let none = Tensor::zeros((m, width - k), DType::F64, self.x.device())?;
        let wider = |x: &Tensor| Tensor::cat(&[x, &none], 1);
        let sets = Sets { atoms: wider(&self.sets.atoms)?, taken: wider(&self.sets.taken)? };
        Ok(Self { sets, x: wider(&self.x)?, error: self.error.clone() })
    }
}

/// Whether the column is 0 for all signals.
fn is_none(column: &Tensor) -> Result<bool> {
    Ok(column.max_all()?.to_scalar::<f64>()? == 0.)
}

/// Indices, values and counts of codes, `[m, s]` and `[m]`: what slots hold, without empty ones
/// between.
fn packed(fits: &Fits, lengths: &Tensor, s: usize, dtype: DType) -> Result<[Tensor; 3]> {
    let Fits { sets, x, .. } = fits;
    let (m, k) = x.dims2()?;
    let device = x.device();
    let atoms = (&sets.atoms * &sets.taken)?;
    let flat = atoms.to_dtype(DType::U32)?.flatten_all()?;
    let of_atoms = gather_rows_by(&lengths.unsqueeze(1)?, &flat)?.reshape((m, k))?;
    let values = ((x / of_atoms)? * &sets.taken)?;
    // Of slot j: how many before it are taken.
    let before = (sets.taken.cumsum(1)? - &sets.taken)?;
    let places = Tensor::arange(0f64, s as f64, device)?.reshape((1, s, 1))?;
    let place = as_number(&before.unsqueeze(1)?.broadcast_eq(&places)?)?;
    let place = place.broadcast_mul(&sets.taken.unsqueeze(1)?)?;
    let at = |x: &Tensor| place.broadcast_mul(&x.unsqueeze(1)?)?.sum(2);
    Ok([
        at(&atoms)?.to_dtype(DType::U32)?,
        at(&values)?.to_dtype(dtype)?,
        sets.taken.sum(1)?.to_dtype(DType::U32)?,
    ])
}

#[cfg(test)]
mod tests;
