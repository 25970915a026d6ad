//! The rules of look-ahead OLS: a way of each signal's pursuit, and where it ends.
use super::{Fits, Problems, Sets, as_number, choose, is_none, largest};
use crate::dictionary::pursuit::path::LEFT;
use crate::dictionary::pursuit::problem::{ERROR, PIVOT};
use candle::{DType, Result, Tensor};
use chandlery_ops::arrays::gather_rows_by;

/// The ways of some signals, which grow by a slot at a time. Names are those of
/// [`Path`](super::super::path::Path); columns are `[m, 1]`.
#[derive(Clone)]
struct Paths<'a> {
    problem: &'a Problems<'a>,
    /// The atom of each slot, and 1 where the slot is taken, else 0.
    slots: Vec<Sets>,
    /// 1 for atoms in a slot, `[m, n]`
    support: Tensor,
    /// `u_k`, `[m, n]` each
    directions: Vec<Tensor>,
    /// `α` and `e`, `[m, n]`
    corr: Tensor,
    left: Tensor,
    error: Tensor,
}

impl<'a> Paths<'a> {
    fn new(problem: &'a Problems<'a>) -> Result<Self> {
        let zeros = problem.corr.zeros_like()?;
        Ok(Self {
            problem,
            slots: vec![],
            left: zeros.affine(1., 1.)?,
            support: zeros,
            directions: vec![],
            corr: problem.corr.clone(),
            error: problem.energy.clone(),
        })
    }

    /// 1 for signals that leave too much.
    fn goes_on(&self) -> Result<Tensor> {
        self.problem.goes_on(&self.error)
    }

    /// The entry of each row that `atoms` name.
    fn at(x: &Tensor, atoms: &Tensor) -> Result<Tensor> {
        x.contiguous()?.gather(&atoms.to_dtype(DType::U32)?, 1)
    }

    /// The atom of each signal whose addition leaves least, where it is more than rounding.
    fn best_by_least_squares(&self) -> Result<Sets> {
        let is_left = as_number(&self.left.gt(LEFT)?)?;
        // 1 where nothing is left, which divides nothing by 0.
        let left = ((&self.left * &is_left)? + is_left.affine(-1., 1.)?)?;
        let gain = ((self.corr.sqr()? / left)? * is_left)?;
        let gain = self.support.ne(0f64)?.where_cond(&(gain.zeros_like()? - 1.)?, &gain)?;
        let best = largest(&gain, &self.problem.ids, &self.problem.least.zeros_like()?, 1)?;
        let is_more = as_number(&Self::at(&self.corr, &best.atoms)?.abs()?.gt(&self.problem.least)?)?;
        Ok(Sets { taken: (&best.taken * is_more)?, atoms: best.atoms })
    }

    /// Adds an atom to signals that have one in `next` and do not depend on it; returns 1 for
    /// those.
    fn add(&mut self, next: &Sets) -> Result<Tensor> {
        let weights = self.directions.iter().map(|u| Self::at(u, &next.atoms)).collect::<Result<Vec<_>>>()?;
        let mut pivot = self.error.ones_like()?;
        for w in &weights {
            pivot = (pivot - w.sqr()?)?;
        }
        let taken = (as_number(&pivot.gt(PIVOT)?)? * &next.taken)?;
        let rho = ((pivot * &taken)? + taken.affine(-1., 1.)?)?.sqrt()?;
        let scale = (&taken / rho)?;
        let z = (Self::at(&self.corr, &next.atoms)? * &scale)?;
        let flat = next.atoms.to_dtype(DType::U32)?.flatten_all()?;
        let mut u = gather_rows_by(self.problem.gram, &flat)?;
        for (w, earlier) in weights.iter().zip(&self.directions) {
            u = (u - earlier.broadcast_mul(w)?)?;
        }
        let u = u.broadcast_mul(&scale)?;
        self.error = (&self.error - z.sqr()?)?;
        self.corr = (&self.corr - u.broadcast_mul(&z)?)?;
        self.left = (&self.left - u.sqr()?)?;
        let is_it = as_number(&self.problem.ids.broadcast_eq(&next.atoms)?)?;
        self.support = (&self.support + is_it.broadcast_mul(&taken)?)?;
        self.directions.push(u);
        self.slots.push(Sets { atoms: next.atoms.clone(), taken: taken.clone() });
        Ok(taken)
    }

    /// OLS to the end, for signals of which `going` is 1.
    fn finish(mut self, mut going: Tensor) -> Result<End> {
        going = (going * self.goes_on()?)?;
        for _ in self.slots.len()..self.problem.s {
            if self.problem.to_error && is_none(&going)? {
                break;
            }
            let next = self.best_by_least_squares()?;
            let taken = self.add(&Sets { taken: (&next.taken * &going)?, ..next })?;
            going = ((going * taken)? * self.goes_on()?)?;
        }
        let mut sets = match self.slots.split_first() {
            Some((first, rest)) => rest.iter().try_fold(first.clone(), |sets, slot| sets.and(slot))?,
            None => self.problem.empty(1)?.sets,
        };
        let width = sets.width()?;
        if width < self.problem.s {
            sets = sets.and(&self.problem.empty(self.problem.s - width)?.sets)?;
        }
        // Without an error target, or short of it, every way is taken as long as the longest.
        let is_met = self.problem.is_met(&self.error)?;
        let short = is_met.affine(-(self.problem.s as f64 + 1.), self.problem.s as f64 + 1.)?;
        let length = ((sets.count()? * is_met)? + short)?;
        Ok(End { sets, length, error: self.error })
    }
}

/// Where ways end: `[m, s]` slots, and what tells the better of two.
#[derive(Clone)]
struct End {
    sets: Sets,
    length: Tensor,
    error: Tensor,
}

impl End {
    /// 1 where this one is better, for signals of these energies.
    fn is_better(&self, than: &Self, energy: &Tensor) -> Result<Tensor> {
        let shorter = as_number(&self.length.lt(&than.length)?)?;
        let as_long = as_number(&self.length.eq(&than.length)?)?;
        shorter + (as_long * as_number(&self.error.lt(&(&than.error - (energy * ERROR)?)?)?)?)?
    }

    /// These for the signals of which `is` is 1, else the others.
    fn or(&self, is: &Tensor, others: &Self) -> Result<Self> {
        Ok(Self {
            sets: self.sets.or(is, &others.sets)?,
            length: choose(is, &self.length, &others.length)?,
            error: choose(is, &self.error, &others.error)?,
        })
    }
}

pub(super) fn look_ahead(problem: &Problems) -> Result<Fits> {
    let mut path = Paths::new(problem)?;
    let mut going = path.goes_on()?;
    let mut best = path.clone().finish(going.clone())?;
    for t in 0..problem.s {
        if is_none(&going)? {
            break;
        }
        let candidates = problem.most_correlated(&path.corr, Some(&path.support), problem.s)?;
        let candidates = candidates.and(&path.best_by_least_squares()?)?;
        let mut chosen = best.sets.slot(t)?;
        for c in 0..candidates.width()? {
            let candidate = candidates.slot(c)?;
            let mut way = path.clone();
            let added = way.add(&Sets { taken: (&candidate.taken * &going)?, ..candidate.clone() })?;
            let end = way.finish(added.clone())?;
            let better = (end.is_better(&best, &problem.energy)? * added)?;
            best = end.or(&better, &best)?;
            chosen = candidate.or(&better, &chosen)?;
        }
        let added = path.add(&Sets { taken: (&chosen.taken * &going)?, ..chosen })?;
        going = ((going * added)? * path.goes_on()?)?;
    }
    problem.fit(&best.sets)
}
