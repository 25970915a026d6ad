//! Solvers that advance all signals of a part at once; signals that are done leave.
use super::active::ActiveSignals;
use super::fista::{self, Momentum};
use super::parallel::{self, Search};
use super::part::Part;
use candle::{Result, Tensor};
use serde::{Deserialize, Serialize};

/// Iterations between two looks at the signals, when those that are done leave and rounding errors
/// of running sums are made good.
const ITERATIONS: usize = 10;
/// The share of itself by which an objective falls at least in an iteration, unless that was the
/// last one.
const FALL: f64 = 1e-6;

/// What an iteration is.
pub(super) enum Method {
    /// Moves of coordinates in parallel.
    Parallel(Search),
    /// Steps of FISTA.
    Fista,
}

/// When a signal is done, beside the cap on iterations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stop {
    /// Its relative duality gap is at most the tolerance.
    #[default]
    Gap,
    /// Its objective fell by less than 1e-6 of itself in an iteration, whatever the gap: the
    /// paper's. Every tenth iteration is looked at.
    Fall,
}

/// Solves from `activations` `[rows, n]`, in place; returns the gaps `[rows]`.
pub(super) fn solve(part: &Part<'_>, activations: &Tensor, method: &Method, stop: Stop) -> Result<Tensor> {
    let (m, dtype, device) = (activations.dim(0)?, activations.dtype(), activations.device());
    if m == 0 {
        return Tensor::zeros(0, dtype, device);
    }
    let diagonal = part.diagonal()?;
    let start = start(part, &diagonal, activations)?;
    let (momentum, lipschitz) = match method {
        Method::Fista => (Some(Momentum::none(&start)?), fista::lipschitz(part.gram)?),
        Method::Parallel(_) => (None, f64::NAN),
    };
    let figures = Tensor::zeros((m, 2), dtype, device)?;
    let mut going = ActiveSignals {
        rows: Tensor::arange(0, m as u32, device)?,
        activations: start,
        correlations: part.correlations.clone(),
        energies: part.energies.clone(),
        before: figures.copy()?,
        figures,
        momentum,
    };
    let mut gaps = vec![f64::NAN; m];
    let mut made = 0;
    loop {
        let most = ITERATIONS.min(part.lasso.max_iterations - made);
        match (method, going.momentum.as_mut()) {
            (Method::Parallel(search), _) => parallel::iterate(&going, part, &diagonal, *search, most)?,
            (Method::Fista, Some(momentum)) => {
                let of = (&going.activations, &going.correlations);
                going.activations = fista::iterate(part, of, momentum, lipschitz, most)?;
                parallel::iterate(&going, part, &diagonal, Search::default(), 0)?;
            }
            (Method::Fista, None) => candle::bail!("{}: FISTA must have a momentum, got none", super::OP),
        }
        made += most;
        let [objectives, now] = going.read(&going.figures)?;
        let [before, _] = going.read(&going.before)?;
        let rows = going.rows.to_vec1::<u32>()?;
        rows.iter().zip(&now).for_each(|(&row, &gap)| gaps[row as usize] = gap);
        let is_last = made >= part.lasso.max_iterations;
        let is_done = |i: usize| match stop {
            Stop::Gap => now[i] <= part.lasso.tolerance,
            Stop::Fall => {
                let falls = before[i] - objectives[i] >= FALL * objectives[i];
                // An objective of 0, and one that is not a number, end here too.
                !falls || now[i] == 0.
            }
        };
        let (done, rest): (Vec<u32>, Vec<u32>) =
            (0..now.len() as u32).partition(|&i| is_last || is_done(i as usize));
        for &i in &done {
            let row = going.activations.narrow(0, i as usize, 1)?;
            activations.slice_set(&row, 0, rows[i as usize] as usize)?;
        }
        if rest.is_empty() {
            break;
        }
        if !done.is_empty() {
            going = going.keep(&rest)?;
        }
    }
    Tensor::from_vec(gaps, m, device)?.to_dtype(dtype)
}

/// A start that the problem allows: no coefficients of zero atoms and, with `nonnegative`, none
/// below 0.
fn start(part: &Part<'_>, diagonal: &Tensor, activations: &Tensor) -> Result<Tensor> {
    let used = diagonal.gt(0.)?.to_dtype(activations.dtype())?;
    let start = activations.broadcast_mul(&used)?;
    if part.lasso.nonnegative { start.maximum(0.) } else { Ok(start) }
}
