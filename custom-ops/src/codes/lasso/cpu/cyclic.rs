//! Cyclic coordinate descent.
use super::lanes::{Rows, minimiser, subtract_row};
use super::signal::{Progress, Signal};
use crate::codes::lasso::LassoOptions;
use crate::core::real::Real;

/// Full sweeps in a row that may bring no progress.
const PATIENCE: usize = 20;
/// Sweeps over the support between two full ones.
const SWEEPS: usize = 100;

/// Solves for the signal and returns its gap and the updates made.
pub(super) fn solve<T: Real, G: Rows<T>, const POSITIVE: bool, const W: usize>(
    signal: &mut Signal<'_, T, G>,
    options: &LassoOptions,
) -> (f64, usize) {
    let least = signal.least_step(options.tolerance);
    let all: Vec<u32> = (0..signal.problem.n as u32).collect();
    let mut updates = 0;
    signal.refresh::<W>(all.iter().copied());
    let mut now = signal.certificate::<POSITIVE, W>();
    let mut progress = Progress::new(now, PATIENCE);
    while now.gap > options.tolerance && updates < options.max_updates {
        updates += sweep::<T, G, POSITIVE, W>(signal, &all).0;
        signal.refresh::<W>(all.iter().copied());
        let support = std::mem::take(&mut signal.support);
        for _ in 0..SWEEPS {
            let (made, largest) = sweep::<T, G, POSITIVE, W>(signal, &support);
            updates += made;
            if largest <= least || updates >= options.max_updates {
                break;
            }
        }
        signal.support = support;
        signal.refresh::<W>(all.iter().copied());
        now = signal.certificate::<POSITIVE, W>();
        if progress.has_stopped(now, signal) {
            break;
        }
    }
    (now.gap, updates)
}

/// Moves each of `atoms` in turn to its minimiser. Returns the moves and the largest of them.
fn sweep<T: Real, G: Rows<T>, const POSITIVE: bool, const W: usize>(
    signal: &mut Signal<'_, T, G>,
    atoms: &[u32],
) -> (usize, T) {
    let (mut moves, mut largest) = (0, T::zero());
    let problem = signal.problem;
    for &j in atoms {
        let at = j as usize;
        let old = signal.a[at];
        let new = minimiser::<T, POSITIVE>(signal.q[at], old, problem.beta[at]);
        let by = new - old;
        if by.magnitude() > T::zero() {
            signal.a[at] = new;
            moves += 1;
            largest = if by.magnitude() > largest { by.magnitude() } else { largest };
            subtract_row::<T, W>(&mut signal.q, signal.gram.row(at), by);
        }
    }
    (moves, largest)
}
