//! Projection-based OMP: an atom is chosen by its coefficient when all candidates are fitted
//! together.
//!
//! ```text
//! J ← the s largest |α| outside of I            candidates
//! x ← least squares over I ∪ J
//! I ← I ∪ argmax_{j ∈ J} |xⱼ|
//! ```
use super::path::Path;
use super::problem::{Fit, Problem};

pub(super) fn pursue(problem: &Problem) -> Fit {
    let mut path = Path::new(problem);
    while !path.is_over() {
        let candidates = problem.most_correlated(path.corr(), path.support(), problem.s);
        let wider: Vec<usize> = path.support().iter().chain(&candidates).copied().collect();
        let fit = problem.fit(&wider);
        // The fit may have left out candidates that depend on others.
        let new = fit.atoms.iter().zip(&fit.x).skip_while(|(i, _)| path.support().contains(i));
        let mut best: Option<(usize, f64)> = None;
        for (&i, &x) in new {
            let better = |(j, most): (usize, f64)| x.abs() > most || x.abs() == most && i < j;
            if best.is_none_or(better) {
                best = Some((i, x.abs()));
            }
        }
        match best {
            Some((i, _)) if path.add(i) => {}
            _ => break,
        }
    }
    path.fit()
}
