//! The coordinate-parallel algorithm: one product with the Gram matrix and one [`lasso_step_`] an
//! iteration; or that for one block of coordinates after the other, with one product in all for an
//! iteration over the blocks.
use super::active::ActiveSignals;
use super::part::Part;
use candle::{Result, Tensor};
use chandlery_ops::Precision;
use chandlery_ops::codes::{LassoStep, LineSearch, lasso_step_};
use chandlery_ops::layers::{Factors, gemm_};

/// How coordinates move.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Search {
    pub line_search: LineSearch,
    /// So many coordinates at once; none: all.
    pub block: Option<usize>,
}

/// So many iterations, and the figures of the result.
pub(super) fn iterate(
    going: &ActiveSignals,
    part: &Part<'_>,
    diagonal: &Tensor,
    search: Search,
    iterations: usize,
) -> Result<()> {
    let a = &going.activations;
    // q = c − a G; the first step goes nowhere and finds the direction.
    let residual_correlations = going.correlations.copy()?;
    let subtract = Factors::Host { alpha: -1., beta: 1. };
    gemm_(&residual_correlations, a, part.gram, subtract, Precision::F32)?;
    let (mut directions, products) = (a.zeros_like()?, a.zeros_like()?);
    let step = LassoStep {
        diagonal,
        correlations: &going.correlations,
        energies: &going.energies,
        penalties: &part.penalties,
        line_search: search.line_search,
        nonnegative: part.lasso.nonnegative,
    };
    let advance = |directions: &Tensor| {
        lasso_step_(a, &residual_correlations, directions, &going.figures, &products, &step)
    };
    advance(&directions)?;
    let n = diagonal.dim(0)?;
    let block = search.block.map_or(n, |block| block.min(n));
    for iteration in 0..iterations {
        if iteration + 1 == iterations {
            going.before.slice_set(&going.figures, 0, 0)?;
        }
        for from in (0..n).step_by(block) {
            let here = block.min(n - from);
            if here < n {
                directions = within(&directions, from, here)?;
            }
            let (d, gram) = (directions.narrow(1, from, here)?, part.gram.narrow(0, from, here)?);
            gemm_(&products, &d, &gram, Factors::OVERWRITE, Precision::F32)?;
            advance(&directions)?;
        }
    }
    Ok(())
}

/// The directions with 0 for all but some columns.
fn within(directions: &Tensor, from: usize, columns: usize) -> Result<Tensor> {
    let within = directions.zeros_like()?;
    within.slice_set(&directions.narrow(1, from, columns)?.contiguous()?, 1, from)?;
    Ok(within)
}
