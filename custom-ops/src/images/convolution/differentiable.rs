//! The convolution and the transposed convolution as functions with gradients.
use super::{
    Convolution, ConvolutionShape, FORWARD, Forward, INPUT, InputGradient, WEIGHT, check, convolution_,
    convolution_gradient_places, convolution_input_gradient_, convolution_weight_gradient_,
};
use crate::core::op::{Function, Kernel, new_tensor, not_recording};
use crate::layers::gemm::Factors;
use candle::{CpuStorage, CustomOp2, Layout, Result, Shape, Tensor};

/// The maps of images `x`, `[batch, height · width · channels]`, as a new tensor,
/// `[batch, out_height · out_width · n_filters]`, with gradients to `x` and to `w`,
/// `[n_filters, size² · channels]`.
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
    x.apply_op2(w, Differentiable { sizes, forward, name: "convolution" })
}

/// The images that maps `hidden`, `[batch, out_height · out_width · n_filters]`, are made of by the
/// filters, as a new tensor, `[batch, height · width · channels]`, with gradients to `hidden` and
/// to `w`: every entry of `hidden` adds its filter where it lies.
///
/// This is the adjoint of [`convolution`], also called a transposed convolution. Types, NaN and
/// cost are those of [`convolution_`](super::convolution_).
///
/// # Errors
/// As [`convolution`].
pub fn convolution_transposed(hidden: &Tensor, w: &Tensor, shape: ConvolutionShape) -> Result<Tensor> {
    let reads = [("hidden", hidden, super::Sizes::Maps), ("w", w, super::Sizes::Weights)];
    let batch = check(INPUT, hidden, shape, reads)?;
    not_recording(INPUT, hidden.device())?;
    let sizes = Convolution { shape, batch, dtype: hidden.dtype() };
    let shape = Shape::from((batch, shape.n_visible()));
    let forward = Function { op: INPUT, kernel: InputGradient { sizes }, shape, dtype: hidden.dtype() };
    hidden.apply_op2(w, Differentiable { sizes, forward, name: "convolution_transposed" })
}

/// The convolution, or the transposed one: each is the other's gradient.
struct Differentiable<K> {
    sizes: Convolution,
    forward: Function<K>,
    name: &'static str,
}

/// What the gradients of a kernel are made of.
trait Gradients {
    /// Writes the gradient to the first operand from that to the result.
    fn to_operand(gradient: &Tensor, of_result: &Tensor, w: &Tensor, shape: ConvolutionShape) -> Result<()>;
    /// Images and maps, whose product is the gradient to the weights.
    fn images_and_maps<'a>(operand: &'a Tensor, of_result: &'a Tensor) -> (&'a Tensor, &'a Tensor);
}

impl Gradients for Forward {
    fn to_operand(gradient: &Tensor, of_result: &Tensor, w: &Tensor, shape: ConvolutionShape) -> Result<()> {
        convolution_input_gradient_(gradient, of_result, w, shape)
    }

    fn images_and_maps<'a>(operand: &'a Tensor, of_result: &'a Tensor) -> (&'a Tensor, &'a Tensor) {
        (operand, of_result)
    }
}

impl Gradients for InputGradient {
    fn to_operand(gradient: &Tensor, of_result: &Tensor, w: &Tensor, shape: ConvolutionShape) -> Result<()> {
        convolution_(gradient, of_result, w, shape)
    }

    fn images_and_maps<'a>(operand: &'a Tensor, of_result: &'a Tensor) -> (&'a Tensor, &'a Tensor) {
        (of_result, operand)
    }
}

impl<K: Kernel + Gradients> CustomOp2 for Differentiable<K> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        of_x: &Layout,
        w: &CpuStorage,
        of_w: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        self.forward.on_cpu([("operand", x, of_x), ("w", w, of_w)])
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        x: &candle::CudaStorage,
        of_x: &Layout,
        w: &candle::CudaStorage,
        of_w: &Layout,
    ) -> Result<(candle::CudaStorage, Shape)> {
        self.forward.on_gpu([("operand", x, of_x), ("w", w, of_w)])
    }

    fn bwd(
        &self,
        operand: &Tensor,
        w: &Tensor,
        _: &Tensor,
        of_result: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let Convolution { shape, batch, dtype } = self.sizes;
        let of_result = of_result.contiguous()?;
        // Data need no gradient.
        let mut of_operand = None;
        if operand.track_op() {
            let result = of_operand.insert(new_tensor(self.name, operand.shape(), dtype, operand.device())?);
            K::to_operand(result, &of_result, w, shape)?;
        }
        let mut of_weights = None;
        if w.track_op() {
            let (images, maps) = K::images_and_maps(operand, &of_result);
            let places = convolution_gradient_places(w.device(), shape, batch, dtype)?;
            let parts = new_tensor(WEIGHT, (places, w.elem_count()), dtype, w.device())?;
            let result = of_weights.insert(new_tensor(WEIGHT, w.shape(), dtype, w.device())?);
            convolution_weight_gradient_(result, &parts, images, maps, shape, Factors::OVERWRITE)?;
        }
        Ok((of_operand, of_weights))
    }
}
