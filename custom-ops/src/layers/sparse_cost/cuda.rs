//! The launch of `kernels/layers/sparse_cost.cu`, and structs that `sparse_terms.cu` takes too.
use super::shape::{Shape, THREADS};
use super::{OP, OfRows, SparseCost};
use crate::core::cuda::{Gpu, Launch, ScratchLayout};
use crate::core::op::{In, Io};
use candle::cuda::cudarc::driver::{CudaView, DeviceRepr};
use candle::{CudaStorage, Result};

/// `Sizes` of the kernel, in its order.
#[repr(C)]
#[derive(Clone, Copy)]
struct Sizes {
    n_visible: u32,
    n_hidden: u32,
    rows: u32,
    rows_each: u32,
    tile: u32,
}
// SAFETY: five 32-bit numbers without padding, the same layout as the kernel's struct.
unsafe impl DeviceRepr for Sizes {}

/// `Weighs` of `kernels/layers/sparsity.cuh`, in its order.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Weighs {
    decay: f64,
    weight: f64,
    target: f64,
}
// SAFETY: three 64-bit numbers without padding, the same layout as the kernel's struct.
unsafe impl DeviceRepr for Weighs {}

impl Weighs {
    pub(super) fn of(cost: &SparseCost) -> Self {
        Self { decay: cost.weight_decay, weight: cost.sparsity_weight, target: cost.sparsity_target }
    }
}

/// `Parts` of `kernels/layers/sparse_terms.cu`: losses, squares and divergence.
pub(super) struct Parts<'a>([CudaView<'a, f64>; 3]);

impl<'a> Parts<'a> {
    pub(super) fn of([losses, squares, divergence]: [In<'a, CudaStorage>; 3]) -> Result<Self> {
        Ok(Self([losses.elements()?, squares.elements()?, divergence.elements()?]))
    }

    /// The addresses, and then how many numbers there are.
    pub(super) fn add<'l>(&'l self, launch: Launch<'l>) -> Launch<'l> {
        let Self(parts) = self;
        launch.record(move |launch| {
            let launch = parts.iter().fold(launch, |launch, part| launch.read(part));
            parts.iter().fold(launch, |launch, part| launch.num(part.len()))
        })
    }
}

pub(super) fn run(of: &OfRows, gpu: &Gpu, io: Io<'_, CudaStorage>) -> Result<()> {
    let (cost, m) = (of.cost, of.m);
    let Some(shape) = Shape::of(gpu.limits(), cost.n_visible, cost.n_hidden, m) else {
        candle::bail!(
            "{OP}: {} visible and {} hidden units and {m} rows do not fit this GPU; ask sparse_cost_fits first",
            cost.n_visible,
            cost.n_hidden
        )
    };
    let ([figures, gradient], [theta, rows]) = io.parts()?;
    let (mut figures, mut gradient) = (figures.elements::<f64>()?, gradient.elements::<f32>()?);
    let (theta, rows) = (theta.elements::<f32>()?, rows.elements::<f32>()?);
    let mut layout = ScratchLayout::default();
    let activity = layout.part::<f32>(cost.n_hidden * shape.blocks);
    let parts = layout.part::<f32>(shape.blocks * cost.n_parameters());
    let squares = layout.part::<f64>(shape.blocks);
    let features = layout.part::<f32>(if shape.tile < shape.rows_each { m * cost.n_hidden } else { 0 });
    let mut scratch = layout.alloc(OP, gpu)?;
    let memory = &mut scratch.all();
    let memory = gpu.to_write(memory);
    let sizes = Sizes {
        n_visible: cost.n_visible as u32,
        n_hidden: cost.n_hidden as u32,
        rows: m as u32,
        rows_each: shape.rows_each as u32,
        tile: shape.tile as u32,
    };
    let launch = gpu.launch(OP, "sparse_cost", &format!("sparse_cost_{}", cost.decoder.kernel()))?;
    let launch = launch.blocks(shape.blocks, THREADS).shared(shape.shared_bytes()).cooperative();
    let launch = launch.write(&mut figures).write(&mut gradient);
    let launch = launch.num(activity.address(memory.at)).num(parts.address(memory.at));
    let launch = launch.num(squares.address(memory.at)).num(features.address(memory.at));
    let launch = launch.read(&theta).read(&rows).num(sizes).num(Weighs::of(&cost));
    // SAFETY: (double*, 3 × float* with a double* before the last, 2 × const float*, Sizes,
    // Weighs): `sparse_cost_` checked all shapes; the scratch has what the head of the kernel says;
    // `Shape::of` made sure that sizes fit u32 and that there is no block without rows, and no more
    // blocks than multiprocessors, so that all run at once.
    unsafe { launch.go() }
}
