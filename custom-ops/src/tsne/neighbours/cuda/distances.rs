//! Distances of all pairs in the place of products.
use super::OP;
use crate::core::cuda::Gpu;
use crate::core::op::{Io, Kernel, operands};
use crate::tsne::neighbours::Metric;
use candle::{CudaStorage, Result, Tensor};

/// Writes `−d/2` for the distance `d` of each of `queries` and each of `rows`, both points of
/// [`Normal`](super::Normal). Squared differences are for all metrics that products give.
pub(super) fn distances_(products: &Tensor, queries: &Tensor, rows: &Tensor, metric: Metric) -> Result<()> {
    let ((m, depth), n) = (queries.dims2()?, rows.dim(0)?);
    let io = operands(OP).write("products", products).read("queries", queries).read("rows", rows);
    io.run(&Distances { m, n, depth, metric })
}

struct Distances {
    m: usize,
    n: usize,
    depth: usize,
    metric: Metric,
}

impl Kernel for Distances {
    fn cuda(&self, gpu: &Gpu, io: Io<'_, CudaStorage>) -> Result<()> {
        /// Rows and columns of a tile: SIDE of kernels/tsne/distances.cu.
        const SIDE: usize = 128;
        const THREADS: u32 = 256;
        let ([out], [queries, rows]) = io.parts()?;
        let (mut out, queries, rows) =
            (out.elements::<f32>()?, queries.elements::<f32>()?, rows.elements::<f32>()?);
        let name = match self.metric {
            Metric::Manhattan => "manhattan",
            Metric::Chebyshev => "chebyshev",
            Metric::Euclidean | Metric::Cosine | Metric::Correlation => "squared",
            // Not of this device.
            Metric::Hamming | Metric::Jaccard => {
                candle::bail!("{OP}: {:?} is compared on the host", self.metric)
            }
        };
        let launch = gpu.launch(OP, "distances", name)?.write(&mut out).read(&queries).read(&rows);
        let launch = launch.count(self.m).count(self.n).count(self.depth);
        let grid = [self.n.div_ceil(SIDE), self.m.div_ceil(SIDE), 1];
        // SAFETY: (float*, 2 × const float*, 3 × unsigned): out is [m, n], queries [m, depth] and
        // rows [n, depth], depth a multiple of 8, so that every row begins on 32 bytes, as `out`
        // does; blocks of 256 for tiles, of which the last may have rows and columns beyond.
        unsafe { launch.grid(grid, (THREADS, 1, 1)).go() }
    }
}
