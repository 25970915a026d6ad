//! The coordinate-parallel algorithm: one product with the Gram matrix and one [`lasso_step_`] an iteration.
use super::problem::Part;
use candle::{DType, Result, Tensor};
use chandlery_ops::{Factors, LassoStep, LineSearch, Precision, gemm_, lasso_step_};

/// Iterations between two looks at the gaps, when signals that are done leave and `q` is computed anew.
const ITERATIONS: usize = 10;

/// The signals that are not done.
struct Going {
    /// Their places in the part, u32 `[going]`
    rows: Tensor,
    activations: Tensor,
    correlations: Tensor,
    energies: Tensor,
    /// Objective and gap, `[going, 2]`
    figures: Tensor,
}

/// Solves from `activations` `[rows, n]`, in place; returns the gaps `[rows]`.
pub(super) fn solve(part: &Part<'_>, activations: &Tensor, line_search: LineSearch) -> Result<Tensor> {
    let (m, dtype, device) = (activations.dim(0)?, activations.dtype(), activations.device());
    if m == 0 {
        return Tensor::zeros(0, dtype, device);
    }
    let mut going = Going {
        rows: Tensor::arange(0, m as u32, device)?,
        activations: start(part, activations)?,
        correlations: part.correlations.clone(),
        energies: part.energies.clone(),
        figures: Tensor::zeros((m, 2), dtype, device)?,
    };
    let mut gaps = vec![f64::NAN; m];
    let mut made = 0;
    loop {
        let most = ITERATIONS.min(part.lasso.max_iterations - made);
        going.iterate(part, line_search, most)?;
        made += most;
        let now = going.figures.narrow(1, 1, 1)?.squeeze(1)?.to_dtype(DType::F64)?.to_vec1::<f64>()?;
        let rows = going.rows.to_vec1::<u32>()?;
        rows.iter().zip(&now).for_each(|(&row, &gap)| gaps[row as usize] = gap);
        let is_last = made >= part.lasso.max_iterations;
        let (done, rest): (Vec<u32>, Vec<u32>) =
            (0..now.len() as u32).partition(|&i| is_last || now[i as usize] <= part.lasso.tolerance);
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

/// A start that the problem allows: no coefficients of zero atoms and, with `nonnegative`, none below 0.
fn start(part: &Part<'_>, activations: &Tensor) -> Result<Tensor> {
    let used = part.diagonal.gt(0.)?.to_dtype(activations.dtype())?;
    let start = activations.broadcast_mul(&used)?;
    if part.lasso.nonnegative { start.maximum(0.) } else { Ok(start) }
}

impl Going {
    fn iterate(&self, part: &Part<'_>, line_search: LineSearch, iterations: usize) -> Result<()> {
        // q = c − a G; the first step goes nowhere and finds the direction.
        let residual_correlations = self.correlations.copy()?;
        let subtract = Factors::Host { alpha: -1., beta: 1. };
        gemm_(&residual_correlations, &self.activations, part.gram, subtract, Precision::F32)?;
        let (directions, products) = (self.activations.zeros_like()?, self.activations.zeros_like()?);
        let step = LassoStep {
            diagonal: part.diagonal,
            correlations: &self.correlations,
            energies: &self.energies,
            penalties: &part.penalties,
            line_search,
            nonnegative: part.lasso.nonnegative,
        };
        lasso_step_(&self.activations, &residual_correlations, &directions, &self.figures, &products, &step)?;
        for _ in 0..iterations {
            gemm_(&products, &directions, part.gram, Factors::OVERWRITE, Precision::F32)?;
            lasso_step_(
                &self.activations,
                &residual_correlations,
                &directions,
                &self.figures,
                &products,
                &step,
            )?;
        }
        Ok(())
    }

    /// Those of the signals at these places.
    fn keep(&self, rest: &[u32]) -> Result<Self> {
        let rest = Tensor::from_vec(rest.to_vec(), rest.len(), self.rows.device())?;
        let of = |x: &Tensor| x.index_select(&rest, 0)?.contiguous();
        Ok(Self {
            rows: of(&self.rows)?,
            activations: of(&self.activations)?,
            correlations: of(&self.correlations)?,
            energies: of(&self.energies)?,
            figures: of(&self.figures)?,
        })
    }
}
