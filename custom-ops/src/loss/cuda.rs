//! The launches of `kernels/loss.cu`.
use super::{OutputLoss, OutputLossOp, SoftmaxLoss};
use crate::cuda::{Operand, PushKernelArg, WrapErr, block_launch, count, function, view, view_mut};
use candle::backend::BackendStorage;
use candle::{CudaStorage, Layout, Result};

/// Of kernels/loss.cu.
const THREADS: u32 = 128;
const WARP: u32 = 32;

impl SoftmaxLoss<'_> {
    pub(super) fn cuda(&self, pre: (&mut CudaStorage, &Layout), bias: (&CudaStorage, &Layout)) -> Result<()> {
        const OP: &str = "softmax_loss_";
        let device = bias.0.device().clone();
        let (batch, n) = (count(OP, self.batch)?, count(OP, self.n)?);
        let inverse = 1. / self.batch as f32;
        let mut pre = view_mut::<f32>(pre.0, pre.1, OP)?;
        let bias = view::<f32>(bias.0, bias.1, OP)?;
        let (labels, gathered) = (Operand::new(self.labels), Operand::new(self.gathered));
        let (labels, gathered) = (labels.view::<u32>(OP)?, gathered.view::<f64>(OP)?);
        let function = function(&device, "loss", "softmax_loss_f32")?;
        let mut launch = function.builder();
        launch.arg(&mut pre).arg(&bias).arg(&labels).arg(&gathered).arg(&batch).arg(&n).arg(&inverse);
        let blocks = batch.div_ceil(THREADS / WARP);
        let config = block_launch(blocks, THREADS);
        // SAFETY: (float*, const float*, const unsigned*, double*, unsigned, unsigned, float); pre is [batch, n], bias [n],
        // labels [batch] and gathered [2, batch], checked by `softmax_loss_`. `gathered` is written through a read lock:
        // every use of it is ordered on this device's stream, and the host waits for that stream before it reads.
        unsafe { launch.launch(config) }.w()?;
        Ok(())
    }
}

impl OutputLossOp<'_> {
    pub(super) fn cuda(
        &self,
        pre: (&mut CudaStorage, &Layout),
        bias: (&CudaStorage, &Layout),
        target: (&CudaStorage, &Layout),
    ) -> Result<()> {
        const OP: &str = "output_loss_";
        let device = bias.0.device().clone();
        let (batch, n) = (count(OP, self.batch)?, count(OP, self.n)?);
        let inverse = 1. / self.batch as f32;
        let mut pre = view_mut::<f32>(pre.0, pre.1, OP)?;
        let (bias, target) = (view::<f32>(bias.0, bias.1, OP)?, view::<f32>(target.0, target.1, OP)?);
        let gathered = Operand::new(self.gathered);
        let gathered = gathered.view::<f64>(OP)?;
        let kernel = match self.loss {
            OutputLoss::SquaredError(activation) => activation.kernel(),
            OutputLoss::CrossEntropy => "cross_entropy",
        };
        let function = function(&device, "loss", &format!("output_loss_{kernel}"))?;
        let mut launch = function.builder();
        launch.arg(&mut pre).arg(&bias).arg(&target).arg(&gathered).arg(&batch).arg(&n).arg(&inverse);
        let config = block_launch(batch, THREADS);
        // SAFETY: (float*, const float*, const float*, double*, unsigned, unsigned, float); pre and target are [batch, n],
        // bias [n] and gathered [2, batch], checked by `output_loss_`; a block keeps to its row. `gathered` is written
        // through a read lock, as in `SoftmaxLoss::cuda`.
        unsafe { launch.launch(config) }.w()?;
        Ok(())
    }
}
