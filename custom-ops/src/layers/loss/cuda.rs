//! The launches of `kernels/layers/loss.cu`.
use super::{OutputLoss, OutputLossOp, SoftmaxLoss};
use crate::core::cuda::Gpu;
use crate::core::op::Io;
use candle::{CudaStorage, DType, Result};
use half::bf16;

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
        let ([out, gathered], [bias, target, pre]) = io.parts()?;
        let mut gathered = gathered.elements::<f64>()?;
        let (bias, target) = (bias.elements::<f32>()?, target.elements::<f32>()?);
        let pre_line = self.pre_line.unwrap_or(self.out_line);
        let pre = pre.maybe_span::<f32>(self.span(pre_line))?;
        let kernel = match self.loss {
            OutputLoss::SquaredError(activation) => activation.kernel(),
            OutputLoss::CrossEntropy => "cross_entropy",
        };
        let dtype = if pre.is_some() { DType::BF16 } else { DType::F32 };
        for_type!(dtype, [BF16: bf16; f32], |T| {
            let mut out = out.span::<T>(self.span(self.out_line))?;
            let kernel = format!("output_loss_{kernel}_{}", dtype.as_str());
            let launch = gpu.launch(self.op, "loss", &kernel)?.write(&mut out).maybe(&pre).read(&bias);
            let launch = launch.read(&target).write(&mut gathered).count(self.batch).count(self.n);
            let launch = launch.num(1. / self.of as f32).num(self.out_line).num(pre_line);
            // SAFETY: (T*, const float* or null, 2 × const float*, double*, 2 × unsigned, float, 2 ×
            // size_t); out, pre and target are [batch, n], the first two in lines that their spans
            // reach over, bias [n] and gathered [2, batch], checked by `output_loss_` and
            // `output_loss_into_`; a block keeps to its row.
            unsafe { launch.blocks(self.batch, THREADS).go() }
        })
    }
}
