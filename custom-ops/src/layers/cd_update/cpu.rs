//! The product and the weight update in one pass, for f32 states: each block of the velocity is
//! added to its weights as soon as it is computed.
use super::{OP, Sizes};
use crate::core::op::{Io, Kernel, operands};
use crate::layers::gemm::Order;
use crate::layers::gemm::cpu::{Operands, is_serial, product_then};
use crate::layers::gemm::few::Form;
use crate::layers::weight_step::WeightStep;
use candle::{CpuStorage, DType, Result, Tensor};

/// `V ← μ V + ε/B hᵀ x − ε(λ₂ W + λ₁ sign W)`, `W ← W + V`, over `params = [W, V]`; `h` is
/// `[2, batch, n_hidden]` and `x` `[2, batch, n_visible]`, contiguous.
///
/// The same bits as `gemm_` and then `weight_step_`, in one fork of the threads instead of two and
/// with the velocity read from the cache.
pub(super) fn run(
    params: &Tensor,
    h: &Tensor,
    x: &Tensor,
    scalars: &Tensor,
    weights: WeightStep,
    sizes: Sizes,
) -> Result<()> {
    let io = operands(OP).write("params", params).read("hidden", h).read("visible", x);
    io.read("scalars", scalars).run(&Fused { weights, sizes })
}

struct Fused {
    weights: WeightStep,
    sizes: Sizes,
}

impl Kernel for Fused {
    fn cpu(&self, io: Io<'_, CpuStorage>) -> Result<()> {
        let Sizes { rows, cols, batch, .. } = self.sizes;
        let ([params], [h, x, scalars]) = io.parts()?;
        let (w, v) = params.elements::<f32>()?.split_at_mut(rows * cols);
        let &[alpha, beta, rate] = scalars.elements::<f32>()? else {
            candle::bail!("{OP}: scalars must have 3 entries")
        };
        let operands = Operands {
            alpha,
            beta,
            ..Operands::of(
                (h.elements()?, Order::ColumnMajor { line: rows }),
                (x.elements()?, Order::RowMajor { line: cols }),
                [rows, cols, 2 * batch],
            )
        };
        product_then(v, w, operands, |w, v| self.weights.apply(rate, w, v));
        Ok(())
    }

    fn is_serial(&self, _: usize) -> bool {
        let Sizes { rows, cols, batch, .. } = self.sizes;
        let (h, x) = (Order::ColumnMajor { line: rows }, Order::RowMajor { line: cols });
        let sizes @ [rows, cols, depth] = [rows, cols, 2 * batch];
        is_serial(Form::of(DType::F32, h, x, sizes), rows, cols, depth)
    }
}
