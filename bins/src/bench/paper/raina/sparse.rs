//! Table 4: updates of sparse coding, activations and basis, by sparsity.
use super::super::{Cell, Paper, Table};
use super::printed::TABLE4;
use super::rows::{ByPlace, at, ends, factor, headline, of_paper, of_places, over, speed_ups, with_gpu};
use crate::bench::place::Place;
use crate::bench::sparse_coding::work::{Update, directions, nonzero, patches, penalty};
use crate::bench::timing::time;
use anyhow::{Context, Result};
use candle::{DType, Device, Tensor};
use chandlery::sparse_coding::basis::{BasisMethod, BasisUpdate, Statistics};
use chandlery::sparse_coding::lasso::{Lasso, Solver};
use chandlery_datasets::embedded;
use std::sync::Arc;
use std::time::Instant;

/// Signals, atoms and the side of a patch.
const SIGNALS: usize = 5000;
const ATOMS: usize = 1024;
const SIDE: usize = 32;
/// Signals of a minibatch.
const BATCH: usize = 1000;
/// Iterations of the printed update of the basis.
const ITERATIONS: usize = 30;
/// Forgets all minibatches but the last: `(1 − 1/t)` to this power is 0.
const AT_ONCE: f64 = 1e12;
/// Signals that are measured on one thread, on all cores, and in a quick run.
const MEASURED: [usize; 2] = [200, BATCH];
const QUICK: usize = 12;

/// As printed: all coordinates at once with fixed steps and the stop at a fall of 1e-6, then
/// projected gradient for the minibatch alone.
fn printed() -> Update {
    Update {
        solver: Solver::PRINTED,
        basis: BasisUpdate { method: BasisMethod::ProjectedGradient, iterations: ITERATIONS },
        batch: BATCH,
        forgetting: AT_ONCE,
    }
}

/// What is measured of an update of all signals.
#[derive(Debug, Clone, Copy)]
struct Measured {
    seconds: f64,
    /// Of the first minibatch, whose basis is the start.
    nonzero: f64,
    objective: f64,
}

/// Half the mean squared error of the signals, plus the penalty.
fn objective(signals: &Tensor, atoms: &Tensor, activations: &Tensor, beta: f64) -> Result<f64> {
    let wide = |t: &Tensor| t.to_dtype(DType::F64)?.sum_all()?.to_scalar::<f64>();
    let rest = (signals - activations.matmul(atoms)?)?;
    Ok((0.5 * wide(&rest.sqr()?)? + beta * wide(&activations.abs()?)?) / signals.dim(0)? as f64)
}

/// On a GPU a pass over all signals; on a CPU activations of `some` signals, scaled to all of them,
/// and the update of the basis for each minibatch.
fn measure(
    update: &Update,
    (signals, atoms): (&Tensor, &Tensor),
    (beta, some, repeats): (f64, usize, u32),
    device: &Device,
) -> Result<Measured> {
    let (signals, atoms) = (signals.to_device(device)?, atoms.to_device(device)?);
    let some = if device.is_cpu() { some } else { BATCH };
    let first = signals.narrow(0, 0, some)?.contiguous()?;
    let lasso = Lasso { solver: update.solver, ..Lasso::new(beta) };
    let start = Instant::now();
    let found = lasso.solve(&first, &atoms, None)?;
    device.synchronize()?;
    let activations = start.elapsed().as_secs_f64();
    let seconds = match device.is_cpu() {
        false => time(device, repeats, || update.pass(&signals, &atoms, beta).map(drop))?.median,
        true => {
            let (n, p) = atoms.dims2()?;
            let start = Instant::now();
            let statistics = Statistics::none(n, p, DType::F32, device)?.after(&found.dense, &first, 0.)?;
            update.basis.apply(&atoms, &statistics)?;
            let basis = start.elapsed().as_secs_f64();
            activations * SIGNALS as f64 / some as f64 + basis * (SIGNALS / BATCH) as f64
        }
    };
    let objective = objective(&first, &atoms, &found.dense, beta)?;
    Ok(Measured { seconds, nonzero: nonzero(&found)?, objective })
}

/// The measures of both forms: by column, by place.
type All = Vec<Vec<Option<Measured>>>;

fn seconds(all: &All) -> ByPlace {
    all.iter().map(|column| column.iter().map(|one| one.map(|one| one.seconds)).collect()).collect()
}

/// A figure of the last place in each column.
fn last(name: &str, all: &All, of: fn(&Measured) -> f64, decimals: usize) -> Vec<Cell> {
    let cells = all.iter().map(|column| {
        let one = column.iter().rev().copied().flatten().next();
        Cell::or_none(one, |one| Cell::number(of(&one), decimals))
    });
    [Cell::text(name)].into_iter().chain(cells).collect()
}

/// The table.
pub(super) fn table4(paper: &mut Paper) -> Result<()> {
    if !paper.wants("table-4") {
        return Ok(());
    }
    let places = paper.places()?;
    let images = Arc::new(embedded::natural_images()?);
    let (m, repeats) = (if paper.quick() { BATCH } else { SIGNALS }, paper.repeats());
    let signals = patches(&images, SIDE, m, 10, &Device::Cpu)?;
    let atoms = directions(ATOMS, SIDE * SIDE, &Device::Cpu)?;
    let columns = if paper.quick() { 1 } else { TABLE4.len() };
    let (mut faithful, mut best) = (All::new(), All::new());
    for (i, (percent, _)) in TABLE4.iter().enumerate() {
        if i >= columns {
            faithful.push(vec![None; places.len()]);
            best.push(vec![None; places.len()]);
            continue;
        }
        let searched = if paper.quick() { signals.narrow(0, 0, QUICK)? } else { signals.clone() };
        let beta = penalty(&searched, &atoms, percent / 100.)?;
        for (update, into) in [(printed(), &mut faithful), (Update::usual(), &mut best)] {
            let one = |(at, place): (usize, &Place)| {
                let some = if paper.quick() { QUICK } else { MEASURED[at.min(1)] };
                let numbers = (beta, some, repeats);
                place.run(|| measure(&update, (&signals, &atoms), numbers, &place.device)).map(Some)
            };
            let column: Result<_> = places.iter().enumerate().map(one).collect();
            into.push(column.with_context(|| format!("{percent} %"))?);
        }
    }
    let (end, before) = ends(&places);
    let (slow, fast) = (at(&seconds(&faithful), before), at(&seconds(&faithful), end));
    let fastest = at(&seconds(&best), end);
    let heads: Vec<String> = TABLE4.iter().map(|(percent, _)| format!("{percent} % nonzero")).collect();
    let heads: Vec<&str> = [""].into_iter().chain(heads.iter().map(String::as_str)).collect();
    let mut table = Table::new(
        "Table 4: an update of sparse coding from 5000 patches of 32x32, 1024 atoms, minibatches of 1000",
        &heads,
    );
    let mut rows = of_paper(&TABLE4.map(|(_, printed)| printed));
    rows.extend(of_places("as printed", &places, &seconds(&faithful)));
    rows.push(speed_ups(&format!("speed-up: {}", over(&places)), &fast, &slow));
    rows.extend(of_places("best", &places, &seconds(&best)));
    rows.push(speed_ups("best over as printed, both on the last place", &fastest, &fast));
    rows.push(last("nonzero % as printed", &faithful, |one| 100. * one.nonzero, 2));
    rows.push(last("nonzero % best", &best, |one| 100. * one.nonzero, 2));
    rows.push(last("objective as printed", &faithful, |one| one.objective, 4));
    rows.push(last("objective best", &best, |one| one.objective, 4));
    rows.into_iter().for_each(|row| table.row(row));
    table.note(format!(
        "As printed: all coordinates at once, steps 1, 1/2, … 2^-10, until the objective falls by less than 1e-6 of itself; then {ITERATIONS} \
         iterations of projected gradient on the minibatch alone. The paper says neither its steps nor its iterations."
    ));
    table.note(
        "Best: active set to a duality gap of 1e-4, one sweep of block coordinate descent on the statistics of all minibatches.",
    );
    table.note(
        "Atoms start as random directions; penalties are searched for the shares of nonzeros. The paper's CPU rows are the code of Lee et al. \
         (feature-sign search and Lagrange dual).",
    );
    table.note(format!(
        "CPU rows: the activations of some signals ({} on one thread, {} on all cores, {QUICK} in a quick run), scaled to {SIGNALS}, and five \
         updates of the basis; GPU rows: a whole pass. Nonzeros and objective are of the first signals with the starting atoms.",
        MEASURED[0], MEASURED[1]
    ));
    paper.table(table)?;
    let end = |times: &[Option<f64>]| times.last().copied().flatten().filter(|_| with_gpu(&places));
    let of = |fast: &[Option<f64>]| factor(end(fast), end(&slow));
    let claim = "Sparse coding at 10 %: GPU over the fastest CPU";
    paper.headline(headline(claim, TABLE4[2].1.speedup, of(&fast), of(&fastest)));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_find_the_same_objective() -> Result<()> {
        let signals = chandlery_ops::core::normal((40, 30), &Device::Cpu, chandlery_ops::Philox::new(3, 0))?;
        let atoms = directions(50, 30, &Device::Cpu)?;
        let found = |update: &Update| -> Result<f64> {
            let lasso = Lasso { solver: update.solver, ..Lasso::new(0.8) };
            objective(&signals, &atoms, &lasso.solve(&signals, &atoms, None)?.dense, 0.8)
        };
        let (a, b) = (found(&printed())?, found(&Update::usual())?);
        assert!((a / b - 1.).abs() < 2e-4, "{a} and {b}");
        // Of earlier minibatches nothing is left: A is that of the last one.
        let update = Update { batch: 20, ..printed() };
        let last = update.pass(&signals, &atoms, 0.8)?;
        let first = update.pass(&signals.narrow(0, 0, 20)?, &atoms, 0.8)?;
        let x = signals.narrow(0, 20, 20)?;
        let lasso = Lasso { solver: update.solver, ..Lasso::new(0.8) };
        let a = lasso.solve(&x, first.current().basis(), None)?.dense;
        let apart = (last.statistics().gram() - a.t()?.matmul(&a)?)?.abs()?.max_all()?.to_scalar::<f32>()?;
        assert!(apart < 1e-3, "{apart}");
        Ok(())
    }
}
