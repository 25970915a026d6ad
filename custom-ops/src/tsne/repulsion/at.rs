//! What points of a layout do to points beside it.
use super::{LANES, OP, interactions};
use crate::core::check::{aligned_points, matrix};
use crate::core::op::{Io, Kernel, new_tensor, operands, same_device};
use candle::{CpuStorage, DType, Result, Tensor};
use rayon::prelude::*;

/// `Σ_j w_ij^(1 + 1/α) (q_i − y_j)`, f32 `[m, n_dims]`, and `Σ_j w_ij`, f32 `[m]`, for points
/// `queries`, f32 `[m, n_dims]`, and all points of `layout`, f32 `[n, n_dims]`, with
/// `w_ij = (1 + |q_i − y_j|²/α)^−α`. A point of the layout that lies on a query counts 1 in its
/// sum.
///
/// Cost: `m · n` pairs. The same bits in every run on one device.
///
/// # Errors
/// When a tensor has another shape, type or device, or a step is being recorded.
pub fn repulsion_at(queries: &Tensor, layout: &Tensor, degrees_of_freedom: f32) -> Result<(Tensor, Tensor)> {
    let (n, n_dims) = matrix(OP, "layout", "[n, n_dims]", layout, &[DType::F32])?;
    let (m, dims) = matrix(OP, "queries", "[m, n_dims]", queries, &[DType::F32])?;
    if !(2..=3).contains(&n_dims) || dims != n_dims {
        candle::bail!("{OP}: queries and layout must both have 2 or 3 dimensions, got {dims} and {n_dims}")
    }
    if !(degrees_of_freedom > 0. && degrees_of_freedom.is_finite()) {
        candle::bail!("{OP}: degrees of freedom must be above 0, got {degrees_of_freedom}")
    }
    same_device(OP, "queries", queries, layout.device())?;
    let forces = new_tensor(OP, (m, n_dims), DType::F32, layout.device())?;
    let totals = new_tensor(OP, m, DType::F32, layout.device())?;
    if m > 0 {
        let io = operands(OP).write("forces", &forces).write("totals", &totals);
        let at = At { m, n, n_dims, degrees_of_freedom };
        let (queries, layout) = (aligned_points(queries)?, aligned_points(layout)?);
        io.read("queries", &queries).read("layout", &layout).run(&at)?;
    }
    Ok((forces, totals))
}

/// A checked call.
#[derive(Debug, Clone, Copy)]
pub(super) struct At {
    pub m: usize,
    pub n: usize,
    pub n_dims: usize,
    pub degrees_of_freedom: f32,
}

impl Kernel for At {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let ([forces, totals], [queries, layout]) = io.parts()?;
        let (forces, totals) = (forces.elements::<f32>()?, totals.elements::<f32>()?);
        let (queries, layout) = (queries.elements::<f32>()?, layout.elements::<f32>()?);
        match self.n_dims {
            2 => self.all::<2>(forces, totals, queries, layout),
            _ => self.all::<3>(forces, totals, queries, layout),
        }
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, gpu: &crate::core::cuda::Gpu, io: Io<'_, candle::CudaStorage>) -> Result<()> {
        self.launch(gpu, io)
    }
}

impl At {
    fn all<const D: usize>(&self, forces: &mut [f32], totals: &mut [f32], queries: &[f32], layout: &[f32]) {
        let ((forces, _), (queries, _)) = (forces.as_chunks_mut::<D>(), queries.as_chunks::<D>());
        let (layout, _) = layout.as_chunks::<D>();
        let each =
            forces.par_chunks_mut(LANES).zip(totals.par_chunks_mut(LANES)).zip(queries.par_chunks(LANES));
        each.for_each(|((forces, totals), queries)| {
            let (sums, all) = interactions(queries, layout, None, self.degrees_of_freedom);
            for (l, (force, total)) in forces.iter_mut().zip(totals).enumerate() {
                (*force, *total) = (std::array::from_fn(|k| sums[k][l] as f32), all[l] as f32);
            }
        });
    }
}
