//! The launches of `kernels/tsne/place.cu`.
use super::Place;
use crate::core::cuda::Gpu;
use crate::core::op::Io;
use candle::cuda::cudarc::driver::DeviceRepr;
use candle::{CudaStorage, Result};

const FILE: &str = "place";
/// Points of a block that has a thread for each: few, so that all multiprocessors have some.
const POINTS: usize = 64;
/// The same for blocks with a warp for each.
const WARPS: usize = 8;

/// `Steps` of the kernel.
#[repr(C)]
#[derive(Clone, Copy)]
struct Steps {
    degrees_of_freedom: f32,
    exaggeration: f32,
    learning_rate: f32,
    momentum: f32,
    largest_gradient: f32,
    iterations: u32,
    is_first: u32,
}
// SAFETY: plain numbers in the layout of the kernel's struct.
unsafe impl DeviceRepr for Steps {}

impl Place {
    pub(super) fn launch(&self, gpu: &Gpu, io: Io<'_, CudaStorage>) -> Result<()> {
        let ([points, velocity, outside], [neighbours, p, layout, potentials, place]) = io.parts()?;
        let (mut points, mut velocity) = (points.elements::<f32>()?, velocity.elements::<f32>()?);
        let mut outside = outside.elements::<u32>()?;
        let (neighbours, p) = (neighbours.elements::<u32>()?, p.elements::<f32>()?);
        let layout = layout.elements::<f32>()?;
        let (potentials, place) = (potentials.maybe::<f32>()?, place.maybe::<f32>()?);
        let &Self { m, k, n, nodes, is_first, steps, .. } = self;
        let numbers = Steps {
            degrees_of_freedom: steps.degrees_of_freedom,
            exaggeration: steps.exaggeration,
            learning_rate: steps.learning_rate,
            momentum: steps.momentum,
            largest_gradient: steps.largest_gradient,
            iterations: u32::try_from(steps.iterations).unwrap_or(u32::MAX),
            is_first: u32::from(is_first),
        };
        let start = |name: &str| gpu.launch(super::OP, FILE, name);
        if nodes == 0 {
            let launch = start(&format!("place_exact_{}", self.n_dims))?.write(&mut points);
            let launch = launch.write(&mut velocity).read(&neighbours).read(&p).read(&layout);
            // SAFETY: (2 × float*, const unsigned*, 2 × const float*, 2 × size_t, unsigned, Steps):
            // points and velocity [m, n_dims], neighbours and p [m, k], layout [n, n_dims], by
            // which the kernel bounds the neighbours; a warp for each point.
            return unsafe { launch.num(m).num(n).count(k).num(numbers).blocks(m.div_ceil(WARPS), 256).go() };
        }
        let launch = start("place_on_grid")?.write(&mut points).write(&mut velocity).write(&mut outside);
        let launch = launch.read(&neighbours).read(&p).read(&layout).maybe(&potentials).maybe(&place);
        let launch = launch.num(m).num(n).count(k).count(nodes).num(numbers);
        // SAFETY: (2 × float*, unsigned*, const unsigned*, 2 × const float*, const float4*, const
        // float*, 2 × size_t, 2 × unsigned, Steps): as above in 2 dimensions, outside [m],
        // potentials [nodes, nodes, 4] from 16 bytes on and place [3] or more, which a field has; a
        // thread for each point, which stays inside of the grid.
        unsafe { launch.blocks(m.div_ceil(POINTS), POINTS as u32).go() }
    }
}
