//! Rows less a bias.
use super::types::{FLOATS, wide_type};
use crate::core::check::{expect, expect_dtype, matrix};
use crate::core::op::{Kernel, new_tensor, operands};
use candle::{DType, Result, Tensor};

const OP: &str = "centred";

/// `x − bias` of each row, and the same rounded to `dtype`; they share their memory where that is
/// the type of `x`.
///
/// `x` is `[m, d]`, `bias` `[d]`, f64 for a `dtype` of f64, else f32, contiguous. Cost: one read of
/// `x` and a write of each result.
///
/// # Errors
/// When shapes, types or devices do not fit.
pub fn centred(x: &Tensor, bias: &Tensor, dtype: DType) -> Result<[Tensor; 2]> {
    let wide = wide_type(dtype);
    let (_, d) = matrix(OP, "x", "[n_samples, n_features]", x, &[wide])?;
    expect(OP, "bias", bias, &[wide], &[d])?;
    if !FLOATS.contains(&dtype) {
        expect_dtype(OP, "the result", x, &FLOATS)?;
    }
    if x.device().is_cpu() || x.elem_count() == 0 {
        let out = x.broadcast_sub(bias)?;
        return Ok([out.clone(), out.to_dtype(dtype)?]);
    }
    let new = |dtype| new_tensor(OP, x.shape(), dtype, x.device());
    let out = new(wide)?;
    let copy = (dtype != wide).then(|| new(dtype)).transpose()?;
    let io = operands(OP).write("the result", &out);
    let io = if let Some(copy) = &copy { io.write("the result", copy) } else { io };
    io.read("x", x).read("bias", bias).run(&Centre { copy: copy.is_some(), dtype })?;
    Ok([out.clone(), copy.unwrap_or(out)])
}

pub(super) struct Centre {
    /// Whether a copy in another type is written.
    pub copy: bool,
    dtype: DType,
}

impl Kernel for Centre {
    #[cfg(feature = "cuda")]
    fn cuda(
        &self,
        gpu: &crate::core::cuda::Gpu,
        io: crate::core::op::Io<'_, candle::CudaStorage>,
    ) -> Result<()> {
        for_latents!(self.dtype, |T, V| self.launch::<T, V>(gpu, io))
    }
}
