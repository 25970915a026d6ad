//! The convolution as a function with gradients.
use super::{
    Convolution, ConvolutionShape, FORWARD, Forward, INPUT, WEIGHT, check, convolution_gradient_places,
    convolution_input_gradient_, convolution_weight_gradient_,
};
use crate::gemm::Factors;
use crate::op::{Function, new_tensor, not_recording};
use candle::{CpuStorage, CustomOp2, Layout, Result, Shape, Tensor};

/// The maps of images `x`, `[batch, height · width · channels]`, as a new tensor, `[batch, out_height · out_width · n_filters]`, with
/// gradients to `x` and to `w`, `[n_filters, size² · channels]`.
///
/// Types, NaN and cost are those of [`convolution_`](super::convolution_).
///
/// # Errors
/// When the shape is none, shapes, types or devices do not fit, or a step is being recorded.
pub fn convolution(x: &Tensor, w: &Tensor, shape: ConvolutionShape) -> Result<Tensor> {
    let reads = [("x", x, super::Sizes::Images), ("w", w, super::Sizes::Weights)];
    let batch = check(FORWARD, x, shape, reads)?;
    not_recording(FORWARD, x.device())?;
    let sizes = Convolution { shape, batch, dtype: x.dtype() };
    let shape = Shape::from((batch, shape.n_hidden()));
    let forward = Function { op: FORWARD, kernel: Forward { sizes }, shape, dtype: x.dtype() };
    x.apply_op2(w, Differentiable { sizes, forward })
}

struct Differentiable {
    sizes: Convolution,
    forward: Function<Forward>,
}

impl CustomOp2 for Differentiable {
    fn name(&self) -> &'static str {
        "convolution"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        of_x: &Layout,
        w: &CpuStorage,
        of_w: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        self.forward.on_cpu([("x", x, of_x), ("w", w, of_w)])
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        x: &candle::CudaStorage,
        of_x: &Layout,
        w: &candle::CudaStorage,
        of_w: &Layout,
    ) -> Result<(candle::CudaStorage, Shape)> {
        self.forward.on_gpu([("x", x, of_x), ("w", w, of_w)])
    }

    fn bwd(
        &self,
        x: &Tensor,
        w: &Tensor,
        _: &Tensor,
        of_maps: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let Convolution { shape, batch, dtype } = self.sizes;
        let of_maps = of_maps.contiguous()?;
        // Data need no gradient.
        let mut images = None;
        if x.track_op() {
            let result = images.insert(new_tensor(INPUT, x.shape(), dtype, x.device())?);
            convolution_input_gradient_(result, &of_maps, w, shape)?;
        }
        let mut gradient = None;
        if w.track_op() {
            let places = convolution_gradient_places(x.device(), shape, batch, dtype)?;
            let parts = new_tensor(WEIGHT, (places, w.elem_count()), dtype, x.device())?;
            let result = gradient.insert(new_tensor(WEIGHT, w.shape(), dtype, x.device())?);
            convolution_weight_gradient_(result, &parts, x, &of_maps, shape, Factors::OVERWRITE)?;
        }
        Ok((images, gradient))
    }
}
