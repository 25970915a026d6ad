//! Greedy coordinate descent over all atoms, and Newton steps on those that were ever in the
//! support.
use super::cyclic;
use super::lanes::{Coordinates, Rows, descend};
use super::signal::{Progress, Signal};
use super::subset::Subset;
use crate::codes::lasso::LassoOptions;
use crate::core::real::Real;

/// Rounds in a row that may bring no progress.
const PATIENCE: usize = 5;
/// Moves of coordinates in the first round from zeros; later ones may make half as many more as
/// there are members.
const FIRST_MOVES: usize = 16;

/// Solves for the signal and returns its gap and the updates made. Where rounding errors keep
/// Newton steps from the gap, cyclic descent goes on.
pub(super) fn solve<T: Real, G: Rows<T>, const POSITIVE: bool, const W: usize>(
    signal: &mut Signal<'_, T, G>,
    subset: &mut Subset<T, W>,
    options: &LassoOptions,
) -> (f64, usize) {
    let problem = signal.problem;
    let least = signal.least_step(options.tolerance);
    subset.clear();
    signal.refresh::<W>(0..problem.n as u32);
    signal.support.iter().for_each(|&j| subset.add(j, &mut signal.gram));
    let mut updates = 0;
    let mut now = signal.certificate::<POSITIVE, W>();
    let mut progress = Progress::new(now, PATIENCE);
    let mut seen = vec![];
    // A start is often near the minimum already: Newton steps come first there.
    let mut is_descent = signal.support.is_empty();
    while now.gap > options.tolerance && updates < options.max_updates {
        seen.clear();
        let Signal { gram, q, a, .. } = signal;
        let on = Coordinates { q, a, beta: &problem.beta };
        let most = if is_descent { subset.len() / 2 + FIRST_MOVES } else { 0 };
        is_descent = true;
        updates += descend::<T, G, POSITIVE, W>(gram, on, most, least, &mut seen);
        seen.iter().for_each(|&j| subset.add(j, gram));
        subset.load(&signal.q, &signal.a, problem);
        updates += subset.solve::<POSITIVE>(least);
        subset.store(&mut signal.a);
        signal.refresh::<W>(subset.atoms());
        now = signal.certificate::<POSITIVE, W>();
        if progress.has_stopped(now, signal) {
            let left = options.max_updates.saturating_sub(updates);
            let (gap, more) =
                cyclic::solve::<T, G, POSITIVE, W>(signal, &LassoOptions { max_updates: left, ..*options });
            return (gap, updates + more);
        }
    }
    (now.gap, updates)
}
