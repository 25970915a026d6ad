//! Look-ahead OLS: an atom is judged by the final error of a pursuit that continues from it.
//!
//! ```text
//! J ← the s largest |α| outside of I            candidates
//! e(j) ← the final error of OLS from I ∪ {j}
//! I ← I ∪ argmin_{j ∈ J} e(j)
//! ```
//!
//! Departures: the next atom of OLS, and the next atom of the best code found so far, are also
//! candidates, so that the result is never worse than that of OLS. With an error target the code
//! with the fewest atoms is the best.
use super::path::Path;
use super::problem::{ERROR, Fit, Problem};

pub(super) fn pursue(problem: &Problem) -> Fit {
    let mut path = Path::new(problem);
    let mut best = to_its_end(path.clone());
    while !path.is_over() {
        let mut candidates = problem.most_correlated(path.corr(), path.support(), problem.s);
        let known = best.support().get(path.support().len()).copied();
        candidates.extend(path.best_by_least_squares().filter(|j| !candidates.contains(j)));
        let mut chosen = known;
        for j in candidates {
            let mut way = path.clone();
            // The way of the best end is known already.
            if Some(j) != known && way.add(j) {
                let end = to_its_end(way);
                if is_better(problem, &end, &best) {
                    (best, chosen) = (end, Some(j));
                }
            }
        }
        match chosen {
            Some(j) if path.add(j) => {}
            _ => break,
        }
    }
    best.fit()
}

/// OLS to the end.
fn to_its_end(mut path: Path) -> Path {
    while !path.is_over() {
        match path.best_by_least_squares() {
            Some(j) if path.add(j) => {}
            _ => break,
        }
    }
    path
}

fn is_better(problem: &Problem, a: &Path, b: &Path) -> bool {
    // Without an error target, or short of it, every way is taken as long as the longest.
    let length =
        |path: &Path| if path.error() <= problem.target { path.support().len() } else { problem.s + 1 };
    let (of_a, of_b) = (length(a), length(b));
    of_a < of_b || of_a == of_b && a.error() < b.error() - ERROR * problem.energy
}
