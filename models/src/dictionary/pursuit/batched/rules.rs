//! The rules of subspace pursuit and of projection-based OMP.
use super::super::subspace::ROUNDS;
use super::{Fits, Problems, Sets, as_number, is_none, largest};
use candle::{DType, Result, Tensor};

pub(super) fn subspace(problem: &Problems) -> Result<Fits> {
    let mut best = problem.empty(problem.s)?;
    let mut going = problem.goes_on(&best.error)?;
    // With an error target, the smallest support that meets it.
    let first = if problem.to_error { 1 } else { problem.s };
    for s in first..=problem.s {
        if is_none(&going)? {
            break;
        }
        let fits = of_size(problem, s)?;
        best = fits.widened(problem.s)?.or(&going, &best)?;
        let full = as_number(&best.sets.count()?.ge(s as f64)?)?;
        going = ((going * full)? * problem.goes_on(&best.error)?)?;
    }
    Ok(best)
}

fn of_size(problem: &Problems, s: usize) -> Result<Fits> {
    let mut best = problem.fit(&problem.most_correlated(&problem.corr, None, s)?)?;
    let mut going = best.error.ones_like()?;
    let nothing = problem.least.zeros_like()?.affine(1., -0.5)?;
    for _ in 0..ROUNDS {
        let chosen = problem.dense(&best.sets, &best.sets.taken)?;
        let new = problem.most_correlated(&problem.correlations(&best)?, Some(&chosen), s)?;
        let all = problem.fit(&best.sets.and(&new)?)?;
        let scores = choose_entries(&all.sets.taken, &all.x.abs()?, -1.)?;
        let kept = largest(&scores, &unlike(&all.sets)?, &nothing, s)?;
        let next = problem.fit(&kept)?;
        // More atoms at equal error are no gain.
        going = (going * as_number(&next.error.lt(&best.error)?)?)?;
        if is_none(&going)? {
            break;
        }
        best = next.or(&going, &best)?;
    }
    // Of more atoms than a signal has, some are there for nothing.
    let used = as_number(&best.x.abs()?.broadcast_gt(&problem.least)?)?;
    let used = Sets { atoms: best.sets.atoms.clone(), taken: (&best.sets.taken * used)? };
    let fewer = as_number(&used.count()?.lt(&best.sets.count()?)?)?;
    if is_none(&fewer)? { Ok(best) } else { problem.fit(&used)?.or(&fewer, &best) }
}

pub(super) fn projection(problem: &Problems) -> Result<Fits> {
    let mut fits: Option<Fits> = None;
    let mut going = problem.goes_on(&problem.energy)?;
    for k in 0..problem.s {
        if is_none(&going)? {
            break;
        }
        let (corr, chosen) = match &fits {
            None => (problem.corr.clone(), None),
            Some(fits) => (problem.correlations(fits)?, Some(problem.dense(&fits.sets, &fits.sets.taken)?)),
        };
        let candidates = problem.most_correlated(&corr, chosen.as_ref(), problem.s)?;
        let width = candidates.width()?;
        let wider = fits.as_ref().map_or(Ok(candidates.clone()), |fits| fits.sets.and(&candidates))?;
        let all = problem.fit(&wider)?;
        let new = |x: &Tensor| x.narrow(1, k, width)?.contiguous();
        let sets = Sets { atoms: new(&all.sets.atoms)?, taken: new(&all.sets.taken)? };
        let scores = choose_entries(&sets.taken, &new(&all.x)?.abs()?, -1.)?;
        let nothing = problem.least.zeros_like()?.affine(1., -0.5)?;
        let best = largest(&scores, &unlike(&sets)?, &nothing, 1)?;
        let best = Sets { taken: (&best.taken * &going)?, ..best };
        let grown = fits.as_ref().map_or(Ok(best.clone()), |fits| fits.sets.and(&best))?;
        going = (going * &best.taken)?;
        let next = problem.fit(&grown)?;
        going = (going * problem.goes_on(&next.error)?)?;
        fits = Some(next);
    }
    fits.map_or_else(|| problem.empty(problem.s), |fits| fits.widened(problem.s))
}

/// The entries where `is` is 1, else `other`.
fn choose_entries(is: &Tensor, x: &Tensor, other: f64) -> Result<Tensor> {
    is.to_dtype(DType::U8)?.where_cond(x, &(x.zeros_like()? + other)?)
}

/// The atoms, and numbers unlike those of atoms in empty slots.
fn unlike(sets: &Sets) -> Result<Tensor> {
    choose_entries(&sets.taken, &sets.atoms, -1.)
}
