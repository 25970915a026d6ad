//! The product as a function of its operands, with derivatives.
use super::gradient::patch_gradient_;
use super::grid::PatchGrid;
use super::product::{Product, patch_product_, sizes_of};
use super::sizes::PatchDirection;
use crate::core::check::expect_dtype;
use crate::core::op::{Function, new_tensor, not_recording, same_device};
use crate::layers::gemm::Factors;
use candle::{CpuStorage, CustomOp2, DType, Layout, Result, Shape, Tensor};

const OP: &str = "patch_product";

/// `x W`, up or down: a new tensor `[batch, n']` that derivatives go through.
///
/// `x` is `[batch, n]` and `weight` `[n_patches, hidden, window_len]`, both f32 or both f64, see
/// [`patch_product_`](super::patch_product_).
///
/// ```
/// use candle::{Device::Cpu, Tensor};
/// use chandlery_ops::images::{PatchDirection, PatchGrid, patch_product};
/// # fn main() -> candle::Result<()> {
/// // A square of 2 x 2 values under four windows of side 1.
/// let grid = PatchGrid { planes: 1, height: 2, width: 2, depth: 1, window: 1, stride: 1 };
/// // Each patch has one hidden unit with one weight: 1, 10, 100, 1000.
/// let weight = Tensor::new(&[1f32, 10., 100., 1000.], &Cpu)?.reshape((4, 1, 1))?;
/// let v = Tensor::new(&[[1f32, 2., 3., 4.]], &Cpu)?;
/// let h = patch_product(&v, &weight, &grid, PatchDirection::Up)?;
/// assert_eq!(h.to_vec2::<f32>()?, [[1., 20., 300., 4000.]]);
/// # Ok(()) }
/// ```
///
/// # Errors
/// When shapes, types or devices do not fit.
pub fn patch_product(
    x: &Tensor,
    weight: &Tensor,
    grid: &PatchGrid,
    direction: PatchDirection,
) -> Result<Tensor> {
    let (x, weight) = (x.contiguous()?, weight.contiguous()?);
    let sizes = sizes_of("patch_product_", &x.unsqueeze(0)?, &weight.unsqueeze(0)?, grid, direction)?;
    expect_dtype(OP, "x", &x, &[DType::F32, DType::F64])?;
    same_device(OP, "weight", &weight, x.device())?;
    not_recording(OP, x.device())?;
    let (dtype, shape) = (x.dtype(), Shape::from((sizes.batch, sizes.ends(direction).1)));
    let kernel = Product { sizes, direction, factor: 1., dtype };
    x.apply_op2(&weight, Differentiable { product: Function { op: OP, kernel, shape, dtype } })
}

struct Differentiable {
    product: Function<Product>,
}

/// The layout of an operand of one part.
fn of_one_part(layout: &Layout) -> Layout {
    let shape = Shape::from([&[1], layout.dims()].concat());
    Layout::contiguous_with_offset(shape, layout.start_offset())
}

impl CustomOp2 for Differentiable {
    fn name(&self) -> &'static str {
        OP
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        of_x: &Layout,
        weight: &CpuStorage,
        of_weight: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (of_x, of_weight) = (of_one_part(of_x), of_one_part(of_weight));
        self.product.on_cpu([("x", x, &of_x), ("weight", weight, &of_weight)])
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        x: &candle::CudaStorage,
        of_x: &Layout,
        weight: &candle::CudaStorage,
        of_weight: &Layout,
    ) -> Result<(candle::CudaStorage, Shape)> {
        let (of_x, of_weight) = (of_one_part(of_x), of_one_part(of_weight));
        self.product.on_gpu([("x", x, &of_x), ("weight", weight, &of_weight)])
    }

    fn bwd(
        &self,
        x: &Tensor,
        weight: &Tensor,
        _: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let Product { sizes, direction, .. } = &self.product.kernel;
        let gradient = gradient.contiguous()?;
        let (back, hidden, visible) = match direction {
            PatchDirection::Up => (PatchDirection::Down, &gradient, x),
            PatchDirection::Down => (PatchDirection::Up, x, &gradient),
        };
        let one = |t: &Tensor| t.detach().unsqueeze(0);
        // Data need no gradient, nor do weights that are not trained.
        let mut of_x = None;
        if x.track_op() {
            let result = of_x.insert(new_tensor(OP, x.shape(), x.dtype(), x.device())?);
            patch_product_(result, &one(&gradient)?, &one(weight)?, &sizes.grid, back, 1.)?;
        }
        let mut of_weight = None;
        if weight.track_op() {
            let result = of_weight.insert(new_tensor(OP, weight.shape(), x.dtype(), x.device())?);
            patch_gradient_(result, &one(hidden)?, &one(visible)?, &sizes.grid, Factors::OVERWRITE)?;
        }
        Ok((of_x, of_weight))
    }
}
