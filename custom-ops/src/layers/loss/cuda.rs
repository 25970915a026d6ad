//! The launches of `kernels/layers/loss.cu`.
use super::{OutputLoss, OutputLossOp, SoftmaxLoss};
use crate::core::cuda::Gpu;
use crate::core::op::Io;
use candle::{CudaStorage, Result};

/// Of kernels/layers/loss.cu.
const THREADS: u32 = 128;
const WARP: usize = 32;

impl SoftmaxLoss {
    pub(super) fn run_cuda(&self, gpu: &Gpu, io: Io<'_, CudaStorage>) -> Result<()> {
        let ([pre, gathered], [bias, labels]) = io.parts()?;
        let (mut pre, mut gathered) = (pre.elements::<f32>()?, gathered.elements::<f64>()?);
        let (bias, labels) = (bias.elements::<f32>()?, labels.elements::<u32>()?);
        let launch = gpu.launch("softmax_loss_", "loss", "softmax_loss_f32")?;
        let launch = launch.write(&mut pre).read(&bias).read(&labels).write(&mut gathered);
        let launch = launch.count(self.batch).count(self.n).num(1. / self.of as f32);
        // SAFETY: (float*, const float*, const unsigned*, double*, unsigned, unsigned, float); pre
        // is [batch, n], bias [n], labels [batch] and gathered [2, batch], checked by
        // `softmax_loss_`.
        unsafe { launch.blocks(self.batch.div_ceil(THREADS as usize / WARP), THREADS).go() }
    }
}

impl OutputLossOp {
    pub(super) fn run_cuda(&self, gpu: &Gpu, io: Io<'_, CudaStorage>) -> Result<()> {
        let ([pre, gathered], [bias, target]) = io.parts()?;
        let (mut pre, mut gathered) = (pre.elements::<f32>()?, gathered.elements::<f64>()?);
        let (bias, target) = (bias.elements::<f32>()?, target.elements::<f32>()?);
        let kernel = match self.loss {
            OutputLoss::SquaredError(activation) => activation.kernel(),
            OutputLoss::CrossEntropy => "cross_entropy",
        };
        let launch = gpu.launch("output_loss_", "loss", &format!("output_loss_{kernel}"))?;
        let launch = launch.write(&mut pre).read(&bias).read(&target).write(&mut gathered);
        let launch = launch.count(self.batch).count(self.n).num(1. / self.of as f32);
        // SAFETY: (float*, const float*, const float*, double*, unsigned, unsigned, float); pre and
        // target are [batch, n], bias [n] and gathered [2, batch], checked by `output_loss_`; a
        // block keeps to its row.
        unsafe { launch.blocks(self.batch, THREADS).go() }
    }
}
