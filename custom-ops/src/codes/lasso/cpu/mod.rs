//! The lasso on the CPU: signals over all cores, atoms over the lanes of the vector unit.
//!
//! The problem is solved in coordinates that give every atom length 1, with `wⱼ = √Gⱼⱼ`:
//!
//! ```text
//! Ĝᵢⱼ = Gᵢⱼ / (wᵢ wⱼ)     ĉⱼ = cⱼ / wⱼ     β̂ⱼ = βⱼ / wⱼ     âⱼ = wⱼ aⱼ     q̂ⱼ = qⱼ / wⱼ
//! ```
mod active_set;
mod cyclic;
mod eliminate;
mod lanes;
pub(super) mod line_search;
mod masked;
mod rough;
mod rows;
pub(super) mod signal;
mod subset;

use super::{Lasso, LassoMethod, LassoOptions, OP};
use crate::core::op::Io;
use crate::core::real::{Real, peak};
use candle::{CpuStorage, Result};
use lanes::Rows;
use rayon::prelude::*;
use rough::Rough;
use rows::AllRows;
use signal::Signal;
use subset::Subset;

pub(super) use masked::{Masked, OP as MASKED};

/// Signals of a task.
const CHUNK: usize = 4;
/// Entries of a Gram matrix below which other threads are not worth waking.
const GRAIN: usize = 1 << 18;

/// Solves the problems; `W` is the width of a block of atoms.
pub(super) fn run<T: Real, const W: usize>(lasso: &Lasso, io: Io<'_, CpuStorage>) -> Result<()> {
    let ([activations, gaps, updates], [gram, correlations, energies, penalties]) = io.parts()?;
    let (n, options) = (lasso.n, &lasso.options);
    let (gram, penalties) = (gram.elements::<T>()?, penalties.elements::<T>()?);
    let (correlations, energies) = (correlations.elements::<T>()?, energies.elements::<T>()?);
    let (activations, gaps) = (activations.elements::<T>()?, gaps.elements::<T>()?);
    let updates = updates.elements::<u32>()?;
    let rows = activations.par_chunks_exact_mut(n).zip(correlations.par_chunks_exact(n));
    let rows = rows.zip(energies).zip(gaps).zip(updates).enumerate().with_min_len(CHUNK);
    let rows = rows.map(|(row, ((((a, c), energy), gap), updates))| {
        let energy = energy.to_f64();
        Row { row, a, c, energy, gap, updates }
    });
    if lasso.own_gram {
        return rows.zip(gram.par_chunks_exact(n * n)).try_for_each_init(
            || Subset::<T, W>::new(n),
            |subset, (row, gram)| {
                let of = format!(" of the matrix of signal {}", row.row);
                let problem = Problem::new::<W>(gram, penalties, n, &of)?;
                let gram = scaled(&problem, gram);
                let rows = AllRows { entries: &gram, stride: problem.padded };
                row.solve::<_, W>(&mut Signal::new(&problem, rows), subset, options, 0)
            },
        );
    }
    let problem = Problem::<T>::new::<W>(gram, penalties, n, "")?;
    let gram = scaled(&problem, gram);
    let rough = Rough::new(lasso, &problem, &gram)?;
    let gram = AllRows { entries: &gram, stride: problem.padded };
    let rough = rough.as_ref();
    let worker = || {
        let rough = rough.map(|rough| rough.solver(&problem.inverse));
        (Signal::new(&problem, gram), Subset::<T, W>::new(n), rough)
    };
    rows.try_for_each_init(worker, |(signal, subset, rough), mut row| {
        match rough.as_mut().and_then(|rough| rough.solve(&mut row, options.from_zeros)) {
            Some(made) => {
                let max_updates = options.max_updates.saturating_sub(made as usize);
                let options = LassoOptions { from_zeros: false, max_updates, ..*options };
                row.solve::<_, W>(signal, subset, &options, made)
            }
            None => row.solve::<_, W>(signal, subset, options, 0),
        }
    })
}

/// One signal and what is written for it.
struct Row<'a, T> {
    row: usize,
    a: &'a mut [T],
    c: &'a [T],
    energy: f64,
    gap: &'a mut T,
    updates: &'a mut u32,
}

impl<T: Real> Row<'_, T> {
    /// `before` are updates made earlier.
    fn solve<G: Rows<T>, const W: usize>(
        self,
        signal: &mut Signal<'_, T, G>,
        subset: &mut Subset<T, W>,
        options: &LassoOptions,
        before: u32,
    ) -> Result<()> {
        // Memory that is read before it is written costs a second page fault, and all threads a wait.
        let start = if options.from_zeros { None } else { Some(&*self.a) };
        signal.start(self.row, start, self.c, self.energy, options.nonnegative)?;
        let (reached, made) = match (options.method, options.nonnegative) {
            (LassoMethod::ActiveSet, false) => active_set::solve::<T, G, false, W>(signal, subset, options),
            (LassoMethod::ActiveSet, true) => active_set::solve::<T, G, true, W>(signal, subset, options),
            (LassoMethod::CoordinateDescent, false) => cyclic::solve::<T, G, false, W>(signal, options),
            (LassoMethod::CoordinateDescent, true) => cyclic::solve::<T, G, true, W>(signal, options),
        };
        (*self.gap, *self.updates) =
            (T::from_f64(reached), u32::try_from(made).unwrap_or(u32::MAX).saturating_add(before));
        signal.finish(self.a);
        Ok(())
    }
}

/// Lengths of atoms and penalties for atoms of length 1; arrays over atoms are padded to `padded`
/// entries.
struct Problem<T> {
    n: usize,
    padded: usize,
    /// `1 / wⱼ`, 0 for zero atoms and padding
    inverse: Vec<T>,
    /// `β̂ⱼ`, infinite for zero atoms and padding
    beta: Vec<T>,
    /// `1 / β̂ⱼ`, 0 where `β̂ⱼ` is 0 or infinite: for the dual point
    scale: Vec<T>,
    /// 1 where `β̂ⱼ` is 0: atoms with a condition of their own; empty where there are none
    free: Vec<T>,
    /// The smallest `β̂ⱼ` above 0, or 0
    least_beta: f64,
}

impl<T: Real> Problem<T> {
    /// `of` is what errors say of the matrix `gram` after the row.
    fn new<const W: usize>(gram: &[T], penalties: &[T], n: usize, of: &str) -> Result<Self> {
        let finite = |(row, gram): (usize, &[T])| match peak(gram).1 {
            true => Ok(()),
            false => candle::bail!("{OP}: gram must be finite, got NaN or infinity in row {row}{of}"),
        };
        let rows = GRAIN.div_ceil(n);
        gram.par_chunks_exact(n).enumerate().with_min_len(rows).try_for_each(finite)?;
        Self::of_squares::<W>(|j| gram[j * n + j], penalties)
    }

    /// For atoms whose lengths have these squares.
    fn of_squares<const W: usize>(squares: impl Fn(usize) -> T, penalties: &[T]) -> Result<Self> {
        let n = penalties.len();
        for (j, &beta) in penalties.iter().enumerate() {
            if !(beta >= T::zero() && beta < T::INFINITY) {
                candle::bail!("{OP}: penalties must be finite numbers of at least 0, got {beta} for atom {j}")
            }
        }
        let padded = n.next_multiple_of(W);
        let (mut inverse, mut beta) = (vec![T::zero(); padded], vec![T::INFINITY; padded]);
        for j in 0..n {
            let square = squares(j);
            if square > T::zero() {
                inverse[j] = T::one() / square.root();
                beta[j] = penalties[j] * inverse[j];
            }
        }
        let of = |value: fn(T) -> T| beta.iter().map(|&b| value(b)).collect::<Vec<T>>();
        let scale = of(|b| if b > T::zero() && b < T::INFINITY { T::one() / b } else { T::zero() });
        let free = of(|b| if b == T::zero() { T::one() } else { T::zero() });
        let free = if free.iter().any(|&f| f > T::zero()) { free } else { vec![] };
        let positive = beta.iter().map(|b| b.to_f64()).filter(|&b| b > 0. && b.is_finite());
        let least_beta = positive.fold(f64::INFINITY, f64::min);
        let least_beta = if least_beta.is_finite() { least_beta } else { 0. };
        Ok(Self { n, padded, inverse, beta, scale, free, least_beta })
    }
}

/// `Ĝ`, `[n, padded]`; rows and columns of zero atoms are 0.
fn scaled<T: Real>(problem: &Problem<T>, gram: &[T]) -> Vec<T> {
    let Problem { n, padded, inverse, .. } = problem;
    let (n, padded) = (*n, *padded);
    let mut scaled = vec![T::zero(); n * padded];
    let each = scaled.par_chunks_exact_mut(padded).zip(gram.par_chunks_exact(n)).zip(inverse);
    each.with_min_len(GRAIN.div_ceil(n)).for_each(|((scaled, gram), &by)| {
        scaled.iter_mut().zip(gram).zip(inverse).for_each(|((s, &g), &i)| *s = g * (by * i));
    });
    (0..n).filter(|&j| inverse[j] > T::zero()).for_each(|j| scaled[j * padded + j] = T::one());
    scaled
}
