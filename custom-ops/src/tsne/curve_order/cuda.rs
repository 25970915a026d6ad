//! The launches of `kernels/tsne/curve_order.cu`.
use super::{Curve, OP};
use crate::arrays::{gather_rows_by, sort_by_key};
use crate::core::cuda::Gpu;
use crate::core::op::{Io, Kernel, new_tensor, operands};
use candle::{CudaStorage, DType, Result, Tensor};

const FILE: &str = "curve_order";
const THREADS: u32 = 256;
/// Blocks that look for the box.
const MOST_BLOCKS: usize = 256;
/// Keys of a half of a place.
const HALF: usize = 1 << 20;

impl Curve {
    /// Keys and their sort; the host does not wait.
    pub(super) fn run(&self, order: &Tensor, points: &Tensor) -> Result<()> {
        let new = |len, dtype| new_tensor(OP, len, dtype, points.device());
        let blocks = self.n.div_ceil(THREADS as usize).min(MOST_BLOCKS);
        let (low, high) = (new(self.n, DType::U32)?, new(self.n, DType::U32)?);
        let boxes = new(6 * blocks, DType::F32)?;
        let io = operands(OP).write("low", &low).write("high", &high).write("boxes", &boxes);
        io.read("points", points).run(&Keys { curve: *self, blocks })?;
        let by_low = sort_by_key(&low, HALF)?.order;
        let by_both = sort_by_key(&gather_rows_by(&high, &by_low)?, HALF)?.order;
        let io = operands(OP).write("order", order).read("earlier", &by_low).read("later", &by_both);
        io.run(&Compose { n: self.n })
    }
}

struct Keys {
    curve: Curve,
    blocks: usize,
}

impl Kernel for Keys {
    fn cuda(&self, gpu: &Gpu, io: Io<'_, CudaStorage>) -> Result<()> {
        let ([low, high, boxes], [points]) = io.parts()?;
        let (mut low, mut high) = (low.elements::<u32>()?, high.elements::<u32>()?);
        let (mut boxes, points) = (boxes.elements::<f32>()?, points.elements::<f32>()?);
        let Curve { n, n_dims } = self.curve;
        let start = |name: &str| gpu.launch(OP, FILE, &format!("{name}_{n_dims}"));
        let launch = start("curve_bounds")?.write(&mut boxes).read(&points).num(n);
        // SAFETY: (float*, const float*, size_t): six floats for each block, points [n, n_dims].
        unsafe { launch.blocks(self.blocks, THREADS).go() }?;
        let boxes = boxes.slice(..);
        let launch = start("curve_keys")?.write(&mut low).write(&mut high).read(&boxes).count(self.blocks);
        // SAFETY: (2 × unsigned*, const float*, unsigned, const float*, size_t): keys [n], as
        // above; a thread for each point.
        unsafe { launch.read(&points).num(n).blocks(n.div_ceil(THREADS as usize), THREADS).go() }
    }
}

/// Two sorts, one after the other.
struct Compose {
    n: usize,
}

impl Kernel for Compose {
    fn cuda(&self, gpu: &Gpu, io: Io<'_, CudaStorage>) -> Result<()> {
        let ([order], [earlier, later]) = io.parts()?;
        let mut order = order.elements::<u32>()?;
        let (earlier, later) = (earlier.elements::<u32>()?, later.elements::<u32>()?);
        let launch = gpu.launch(OP, FILE, "curve_compose")?.write(&mut order).read(&earlier).read(&later);
        // SAFETY: (unsigned*, 2 × const unsigned*, size_t): each holds the n places once; a thread
        // for each.
        unsafe { launch.num(self.n).blocks(self.n.div_ceil(THREADS as usize), THREADS).go() }
    }
}
