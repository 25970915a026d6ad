//! All distances that no product gives.
use super::{Entries, Knn, LeftOut, Metric};
use crate::core::check::matrix;
use crate::core::op::{Io, Kernel, new_tensor, operands, same_device};
use candle::{CpuStorage, DType, Device, Result, Tensor};
use rayon::prelude::*;

const OP: &str = "row_distances";

/// The distance of each of `queries`, `[n_queries, n_features]`, and each of `rows`,
/// `[n, n_features]`, contiguous f32: `[n_queries, n]` in f32. For the Manhattan,
/// Chebyshev, Hamming and Jaccard distances; the others are functions of a product.
///
/// Cost: `2 · n_queries · n · n_features` operations, which are no multiply-adds, and on a GPU a
/// copy of both operands.
///
/// # Errors
/// When an operand is not such a matrix, the metric is another, or a step is being recorded.
/// Entries that are not finite are not looked for.
pub fn row_distances(queries: &Tensor, rows: &Tensor, metric: Metric) -> Result<Tensor> {
    let (n, n_features) = matrix(OP, "rows", "[n, n_features]", rows, &[DType::F32])?;
    let (m, features) = matrix(OP, "queries", "[n_queries, n_features]", queries, &[DType::F32])?;
    same_device(OP, "queries", queries, rows.device())?;
    if features != n_features {
        candle::bail!("{OP}: queries must have {n_features} features, as rows have, got {features}")
    }
    if !metric.has_no_product() {
        candle::bail!(
            "{OP}: metric must be Manhattan, Chebyshev, Hamming or Jaccard, got {metric:?}; get it from a product"
        )
    }
    if metric.is_of_host() && !rows.device().is_cpu() {
        let host = |t: &Tensor| t.to_device(&Device::Cpu);
        return row_distances(&host(queries)?, &host(rows)?, metric)?.to_device(rows.device());
    }
    let distances = new_tensor(OP, (m, n), DType::F32, rows.device())?;
    if m == 0 || n == 0 {
        return Ok(distances);
    }
    let knn = Knn { n, n_features, k: 1, metric, left_out: LeftOut::None, entries: Entries::Unknown };
    #[cfg(feature = "cuda")]
    if rows.device().is_cuda() {
        return knn.distances(queries, rows);
    }
    let io = operands(OP).write("distances", &distances);
    io.read("queries", queries).read("rows", rows).run(&Pairs(knn))?;
    Ok(distances)
}

struct Pairs<'a>(Knn<'a>);

impl Kernel for Pairs<'_> {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        /// Queries of a task.
        const QUERIES: usize = 8;
        let ([distances], [queries, rows]) = io.parts()?;
        let (distances, queries) = (distances.elements::<f32>()?, queries.elements::<f32>()?);
        let (rows, Knn { n, n_features: d, .. }) = (rows.elements::<f32>()?, self.0);
        distances.par_chunks_mut(QUERIES * n).enumerate().for_each(|(task, to)| {
            let first = task * QUERIES;
            self.0.measure_all(to, &queries[first * d..(first + to.len() / n) * d], rows);
        });
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, _: &crate::core::cuda::Gpu, _: Io<'_, candle::CudaStorage>) -> Result<()> {
        candle::bail!("{OP}: distances on a GPU take several steps")
    }
}
