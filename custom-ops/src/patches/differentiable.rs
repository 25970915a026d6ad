//! The product as a function of its operands, with derivatives.
use super::gradient::patch_gradient_;
use super::grid::PatchGrid;
use super::product::{PatchDirection, patch_product_};
use crate::gemm::Factors;
use crate::op::new_tensor;
use candle::{CpuStorage, CustomOp2, Layout, Result, Shape, Storage, Tensor};

const OP: &str = "patch_product";

/// `x W`, up or down: a new tensor `[batch, n']` that derivatives go through.
///
/// `x` is `[batch, n]` and `weight` `[n_patches, hidden, window_len]`, both f32 or both f64, see
/// [`patch_product_`](super::patch_product_).
///
/// ```
/// use candle::{Device::Cpu, Tensor};
/// use chandlery_ops::{PatchDirection, PatchGrid, patch_product};
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
    let out = computed(&x, &weight, grid, direction)?;
    match x.track_op() || weight.track_op() {
        true => x.apply_op2(&weight, Differentiable { grid: *grid, direction, out }),
        false => Ok(out),
    }
}

/// The product without derivatives.
fn computed(x: &Tensor, weight: &Tensor, grid: &PatchGrid, direction: PatchDirection) -> Result<Tensor> {
    grid.validate(OP)?;
    let (x, weight) = (x.detach(), weight.detach());
    let hidden = match *weight.dims() {
        [_, hidden, _] => hidden,
        _ => candle::bail!("{OP}: weight must be [n_patches, hidden, window_len], got {:?}", weight.dims()),
    };
    let width = match direction {
        PatchDirection::Up => grid.n_patches() * hidden,
        PatchDirection::Down => grid.n_values(),
    };
    let out = new_tensor(OP, (x.dim(0)?, width), x.dtype(), x.device())?;
    patch_product_(&out, &x.unsqueeze(0)?, &weight.unsqueeze(0)?, grid, direction, 1.)?;
    Ok(out)
}

/// Connects a result that was computed already with its operands.
struct Differentiable {
    grid: PatchGrid,
    direction: PatchDirection,
    out: Tensor,
}

impl CustomOp2 for Differentiable {
    fn name(&self) -> &'static str {
        OP
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        let (storage, layout) = self.out.storage_and_layout();
        match &*storage {
            Storage::Cpu(storage) => Ok((storage.clone(), layout.shape().clone())),
            _ => candle::bail!("{OP}: the result must be on the CPU"),
        }
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        _: &candle::CudaStorage,
        _: &Layout,
        _: &candle::CudaStorage,
        _: &Layout,
    ) -> Result<(candle::CudaStorage, Shape)> {
        use candle::backend::BackendStorage;
        let (storage, layout) = self.out.storage_and_layout();
        match &*storage {
            Storage::Cuda(storage) => Ok((storage.try_clone(layout)?, layout.shape().clone())),
            _ => candle::bail!("{OP}: the result must be on the GPU"),
        }
    }

    fn bwd(
        &self,
        x: &Tensor,
        weight: &Tensor,
        _: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let Self { grid, direction, .. } = self;
        let gradient = gradient.contiguous()?;
        let (back, hidden, visible) = match direction {
            PatchDirection::Up => (PatchDirection::Down, &gradient, x),
            PatchDirection::Down => (PatchDirection::Up, x, &gradient),
        };
        let of_x = computed(&gradient, weight, grid, back)?;
        let of_weight = Tensor::zeros(weight.shape(), weight.dtype(), weight.device())?;
        let one = |t: &Tensor| t.detach().contiguous()?.unsqueeze(0);
        patch_gradient_(&of_weight, &one(hidden)?, &one(visible)?, grid, Factors::OVERWRITE)?;
        Ok((Some(of_x), Some(of_weight)))
    }
}
