//! The pursuits in textbook form, in f64. Tests compare the fast versions with them.
//!
//! They share only the checks of the operands and the stopping rules with the fast versions.
use super::codes::Rows;
use super::job::{Job, Rounding, Rule, Target};
use super::{Pursuit, SparseCodes};
use candle::{DType, Device, Result, Tensor};

/// Orthogonal matching pursuit in f64, one signal after the other, computed from the residual
/// itself.
///
/// Arguments and result are those of [`bomp`](super::bomp); the result is on the CPU.
///
/// # Errors
/// As for [`bomp`](super::bomp).
pub fn omp_reference(signals: &Tensor, dictionary: &Tensor, pursuit: &Pursuit) -> Result<SparseCodes> {
    run(&Job::new("omp_reference", Rule::Omp, signals, None, dictionary, pursuit)?)
}

/// Orthogonal least squares in f64: computes the residual with each atom in turn.
///
/// # Errors
/// As for [`ols`](super::ols).
pub fn ols_reference(signals: &Tensor, dictionary: &Tensor, pursuit: &Pursuit) -> Result<SparseCodes> {
    run(&Job::new("ols_reference", Rule::Ols, signals, None, dictionary, pursuit)?)
}

/// [`omp_reference`] on the observed samples only.
///
/// # Errors
/// As for [`bomp_masked`](super::bomp_masked).
pub fn bomp_masked_reference(
    signals: &Tensor,
    mask: &Tensor,
    dictionary: &Tensor,
    pursuit: &Pursuit,
) -> Result<SparseCodes> {
    run(&Job::new("bomp_masked_reference", Rule::Omp, signals, Some(mask), dictionary, pursuit)?)
}

/// [`ols_reference`] on the observed samples only.
///
/// # Errors
/// As for [`ols_masked`](super::ols_masked).
pub fn ols_masked_reference(
    signals: &Tensor,
    mask: &Tensor,
    dictionary: &Tensor,
    pursuit: &Pursuit,
) -> Result<SparseCodes> {
    run(&Job::new("ols_masked_reference", Rule::Ols, signals, Some(mask), dictionary, pursuit)?)
}

pub(super) fn run(job: &Job) -> Result<SparseCodes> {
    for_float!(job.signals.dtype(), |T| run_as::<T>(job))
}

fn run_as<T: candle::WithDType>(job: &Job) -> Result<SparseCodes> {
    let rows = |x: &Tensor| x.to_device(&Device::Cpu)?.to_dtype(DType::F64)?.to_vec2::<f64>();
    let (signals, dictionary) = (rows(&job.signals)?, rows(&job.dictionary)?);
    let mask = job.mask.as_ref().map(|mask| mask.to_device(&Device::Cpu)?.to_vec2::<u8>()).transpose()?;
    let targets = match &job.target {
        Target::PerSignal(epsilon) => epsilon.to_device(&Device::Cpu)?.to_dtype(DType::F64)?.to_vec1()?,
        _ => vec![],
    };
    let mut codes = Rows::<T>::new(job.m, job.s);
    for (row, y) in signals.iter().enumerate() {
        let observed = |x: &[f64]| match &mask {
            Some(mask) => x.iter().zip(&mask[row]).filter(|(_, m)| **m != 0).map(|(x, _)| *x).collect(),
            None => x.to_vec(),
        };
        let y = observed(y);
        if !dot(&y, &y).is_finite() {
            candle::bail!("{}: signals must be finite, got NaN or infinity in row {row}", job.op)
        }
        let mut atoms: Vec<Vec<f64>> = dictionary.iter().map(|d| observed(d)).collect();
        let norms: Vec<f64> = atoms.iter().map(|d| norm(d)).collect();
        for (j, (d, norm)) in atoms.iter_mut().zip(&norms).enumerate() {
            if !norm.is_finite() {
                candle::bail!("{}: dictionary must be finite, got NaN or infinity in atom {j}", job.op)
            }
            d.iter_mut().for_each(|d| *d = if *norm > 0. { *d / norm } else { 0. });
        }
        let target = match &job.target {
            Target::None => -1.,
            Target::Absolute(epsilon) => *epsilon,
            Target::Relative(epsilon) => epsilon * norm(&y),
            Target::PerSignal(_) => targets[row],
        };
        let (support, x) = pursue(job, &y, &atoms, target);
        let entries: Vec<_> = support.iter().zip(x).filter(|(_, x)| !job.nonnegative || *x > 0.).collect();
        codes.push(&entries.iter().map(|&(&i, x)| (i, x / norms[i])).collect::<Vec<_>>());
    }
    codes.finish(job.n)
}

/// The support and its coefficients for one signal and atoms of norm 1 (or 0).
fn pursue(job: &Job, y: &[f64], atoms: &[Vec<f64>], target: f64) -> (Vec<usize>, Vec<f64>) {
    let rounding = Rounding::of(job.rule, job.signals.dtype());
    let (mut support, mut x, mut residual) = (vec![], vec![], y.to_vec());
    // An orthonormal basis of the chosen atoms.
    let mut basis: Vec<Vec<f64>> = vec![];
    while support.len() < job.s && norm(&residual) > target {
        let mut best: Option<(usize, f64)> = None;
        for (j, atom) in atoms.iter().enumerate().filter(|(j, _)| !support.contains(j)) {
            let correlation = dot(atom, &residual);
            let score = match job.rule {
                Rule::Omp => correlation.abs(),
                Rule::Ols => {
                    let left = norm(&orthogonal_part(atom, &basis));
                    if left * left <= rounding.pivot {
                        continue;
                    }
                    correlation.abs() / left
                }
            };
            let wanted = correlation > 0. || !job.nonnegative && correlation < 0.;
            if wanted && best.is_none_or(|(_, best)| score > best) {
                best = Some((j, score));
            }
        }
        let Some((i, _)) = best else { break };
        let left = orthogonal_part(&atoms[i], &basis);
        let pivot = dot(&left, &left);
        if dot(&atoms[i], &residual).abs() <= rounding.correlation * norm(y) || pivot <= rounding.pivot {
            break;
        }
        basis.push(left.iter().map(|q| q / pivot.sqrt()).collect());
        support.push(i);
        let chosen: Vec<&[f64]> = support.iter().map(|&i| atoms[i].as_slice()).collect();
        x = if job.nonnegative { nonnegative_least_squares(&chosen, y) } else { least_squares(&chosen, y) };
        residual = without(y, &chosen, &x);
    }
    (support, x)
}

/// `y − Σ xᵢ dᵢ`
fn without(y: &[f64], atoms: &[&[f64]], x: &[f64]) -> Vec<f64> {
    let mut residual = y.to_vec();
    for (atom, x) in atoms.iter().zip(x) {
        residual.iter_mut().zip(*atom).for_each(|(r, d)| *r -= x * d);
    }
    residual
}

/// What the basis leaves of an atom; projected twice, so that the result is orthogonal to rounding.
fn orthogonal_part(atom: &[f64], basis: &[Vec<f64>]) -> Vec<f64> {
    let mut left = atom.to_vec();
    for q in basis.iter().chain(basis) {
        let along = dot(q, &left);
        left.iter_mut().zip(q).for_each(|(l, q)| *l -= along * q);
    }
    left
}

/// `argmin ‖y − Σ xᵢ dᵢ‖` for independent atoms: each row of R and coordinate of y from an
/// orthonormal basis, then back substitution.
fn least_squares(atoms: &[&[f64]], y: &[f64]) -> Vec<f64> {
    let mut basis: Vec<Vec<f64>> = vec![];
    for atom in atoms {
        let left = orthogonal_part(atom, &basis);
        let length = norm(&left);
        basis.push(left.iter().map(|l| l / length).collect());
    }
    let mut x = vec![0.; atoms.len()];
    for k in (0..atoms.len()).rev() {
        let later: f64 = (k + 1..atoms.len()).map(|l| dot(&basis[k], atoms[l]) * x[l]).sum();
        x[k] = (dot(&basis[k], y) - later) / dot(&basis[k], atoms[k]);
    }
    x
}

/// `argmin ‖y − Σ xᵢ dᵢ‖` over `x ≥ 0` for independent atoms, by the active set method of Lawson
/// and Hanson, "Solving least squares problems", 1974, chapter 23.
fn nonnegative_least_squares(atoms: &[&[f64]], y: &[f64]) -> Vec<f64> {
    let mut x = vec![0.; atoms.len()];
    let mut free = vec![false; atoms.len()];
    loop {
        let residual = without(y, atoms, &x);
        let gradients = atoms.iter().map(|d| dot(d, &residual)).enumerate();
        let steepest = gradients.filter(|(k, _)| !free[*k]).max_by(|a, b| a.1.total_cmp(&b.1));
        match steepest {
            Some((k, gradient)) if gradient > 1e-13 * norm(y) => free[k] = true,
            _ => return x,
        }
        loop {
            let members: Vec<usize> = (0..atoms.len()).filter(|&k| free[k]).collect();
            let solution = least_squares(&members.iter().map(|&k| atoms[k]).collect::<Vec<_>>(), y);
            // As far towards the solution as no coefficient turns negative.
            let blocked = |(&k, &to): (&usize, &f64)| if to <= 0. { x[k] / (x[k] - to) } else { 1. };
            let way = members.iter().zip(&solution).map(blocked).fold(1., f64::min);
            for (&k, &to) in members.iter().zip(&solution) {
                x[k] += way * (to - x[k]);
            }
            if way == 1. {
                break;
            }
            for (&k, &to) in members.iter().zip(&solution) {
                if to <= 0. && x[k] <= 1e-15 * norm(y) {
                    (x[k], free[k]) = (0., false);
                }
            }
        }
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn norm(a: &[f64]) -> f64 {
    dot(a, a).sqrt()
}
