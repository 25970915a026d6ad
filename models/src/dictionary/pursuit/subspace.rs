//! Subspace pursuit: a support of fixed size whose atoms can be exchanged.
//!
//! ```text
//! I ← the s largest |α⁰|                        then, while the residual falls:
//! J ← I ∪ the s largest |α|                     candidates
//! I ← the s largest |x_J|, x_J least squares    prune
//! ```
use super::problem::{CORRELATION, Fit, Problem};

/// Rounds of exchange; two or three are usual, and each lowers the residual, so that the bound is
/// for rounding.
pub(super) const ROUNDS: usize = 100;

pub(super) fn pursue(problem: &Problem) -> Fit {
    if problem.target < 0. {
        return of_size(problem, problem.s);
    }
    // With an error target, the smallest support that meets it.
    let mut fit = Fit::default();
    for s in 1..=problem.s {
        fit = of_size(problem, s);
        if fit.error <= problem.target || fit.atoms.len() < s {
            break;
        }
    }
    fit
}

fn of_size(problem: &Problem, s: usize) -> Fit {
    let mut best = problem.fit(&problem.most_correlated(problem.corr, &[], s));
    for _ in 0..ROUNDS {
        let residual = problem.correlations(&best);
        let mut wider = best.atoms.clone();
        wider.extend(problem.most_correlated(&residual, &best.atoms, s));
        let all = problem.fit(&wider);
        let mut order: Vec<usize> = (0..all.atoms.len()).collect();
        let larger = |a: &usize, b: &usize| all.x[*b].abs().total_cmp(&all.x[*a].abs());
        order.sort_unstable_by(|a, b| larger(a, b).then(all.atoms[*a].cmp(&all.atoms[*b])));
        let kept: Vec<usize> = order.into_iter().take(s).map(|k| all.atoms[k]).collect();
        let next = problem.fit(&kept);
        // More atoms at equal error are no gain.
        if next.error >= best.error {
            break;
        }
        best = next;
    }
    // Of more atoms than a signal has, some are there for nothing.
    let least = CORRELATION * problem.energy.sqrt();
    let used = best.atoms.iter().zip(&best.x).filter(|(_, x)| x.abs() > least);
    let used: Vec<usize> = used.map(|(&i, _)| i).collect();
    if used.len() < best.atoms.len() { problem.fit(&used) } else { best }
}
