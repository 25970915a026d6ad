//! The launches of `kernels/tsne/layout.cu` and `kernels/tsne/attraction.cu`.
use super::attraction::{Attraction, AttractionForm};
use super::divergence::{Divergence, ROWS};
use super::step::{BLOCKS, Centre, Move, OP, STRETCH, SUMS_AND_WEIGHTS};
use crate::core::cuda::Gpu;
use crate::core::op::Io;
use candle::cuda::cudarc::driver::DeviceRepr;
use candle::{CudaStorage, Result};

const FILE: &str = "layout";
const THREADS: u32 = 256;
/// Of kernels/tsne/layout.cu: blocks of a multiprocessor.
const SET: usize = 8;

/// `Settings` of the kernel.
#[repr(C)]
#[derive(Clone, Copy)]
struct Settings {
    degrees_of_freedom: f32,
    smallest_gain: f32,
    largest_gain: f32,
    largest_step: f32,
}
// SAFETY: plain numbers in the layout of the kernel's struct.
unsafe impl DeviceRepr for Settings {}

impl Move {
    pub(super) fn launch(&self, gpu: &Gpu, io: Io<'_, CudaStorage>) -> Result<()> {
        let ([velocity, gains, room, work], read) = io.parts()?;
        let [layout, rates, offsets, columns, values, forces, total, weights] = read;
        let (mut velocity, mut gains) = (velocity.elements::<f32>()?, gains.elements::<f32>()?);
        let (mut room, mut work) = (room.elements::<f32>()?, work.elements::<f64>()?);
        let (layout, rates) = (layout.elements::<f32>()?, rates.elements::<f32>()?);
        let (offsets, columns) = (offsets.elements::<u32>()?, columns.elements::<u32>()?);
        let (values, forces) = (values.elements::<f32>()?, forces.elements::<f32>()?);
        let (total, weights) = (total.elements::<f64>()?, weights.maybe::<f32>()?);
        let settings = Settings {
            degrees_of_freedom: self.step.degrees_of_freedom,
            smallest_gain: self.step.smallest_gain,
            largest_gain: self.step.largest_gain,
            largest_step: self.step.largest_step,
        };
        let blocks = (SET * gpu.limits().multiprocessors).clamp(SET, BLOCKS);
        let name = if weights.is_some() { "layout_move_weighted" } else { "layout_move" };
        let launch = gpu.launch(OP, FILE, &format!("{name}_{}", self.n_dims))?.write(&mut velocity);
        let launch = launch.write(&mut gains).write(&mut room).write(&mut work).read(&layout).read(&rates);
        let launch = launch.read(&offsets).read(&columns).read(&values).read(&forces).read(&total);
        let launch = launch.maybe(&weights).num(self.n).num(self.own.start).num(self.own.end);
        let launch = launch.count(columns.len());
        // SAFETY: (3 × float*, double*, 2 × const float*, 2 × const unsigned*, 2 × const float*,
        // const double*, const float*, 3 × size_t, unsigned, Settings): arrays of [n, d], offsets
        // [n + 1], which the kernel bounds by the number of columns and values, columns, which it
        // bounds by n, weights [n] or null, own rows of these n, sums [5, BLOCKS] at the start of
        // `work`, of which each block has a column and those beyond it; blocks are a multiple of
        // SET.
        unsafe { launch.num(settings).blocks(blocks, THREADS).go() }
    }
}

impl Centre {
    pub(super) fn launch(&self, gpu: &Gpu, io: Io<'_, CudaStorage>) -> Result<()> {
        let ([layout, velocity, gains, figures, work], [moved, weights]) = io.parts()?;
        let (mut layout, mut velocity) = (layout.elements::<f32>()?, velocity.elements::<f32>()?);
        let (mut gains, mut figures) = (gains.elements::<f32>()?, figures.elements::<f64>()?);
        let (mut work, moved) = (work.elements::<f64>()?, moved.elements::<f32>()?);
        let is_weighted = weights.maybe::<f32>()?.is_some();
        let (n, d) = (self.n, self.n_dims);
        let stretches = n.div_ceil(STRETCH);
        let (sums, mut boxes) = work.split_at_mut(SUMS_AND_WEIGHTS);
        let sums = sums.slice(..);
        let launch = gpu.launch(OP, FILE, &format!("layout_centre_{d}"))?.write(&mut layout);
        let launch = launch.write(&mut boxes).write(&mut velocity).write(&mut gains).read(&moved);
        let launch = launch.read(&sums).num(n).num(self.step.largest_coordinate);
        let launch = launch.count(usize::from(is_weighted));
        // SAFETY: (4 × float*, const float*, const double*, size_t, float, unsigned): arrays of
        // [n, d], sums [5, BLOCKS], of which `layout_move` wrote the last if points have weights;
        // six floats for each stretch stand in `boxes`, by `LayoutState::new`.
        unsafe { launch.blocks(stretches, THREADS).go() }?;
        let boxes = boxes.slice(..);
        let launch = gpu.launch(OP, FILE, "layout_figures")?.write(&mut figures).read(&sums);
        let launch = launch.read(&boxes).count(stretches).count(d);
        // SAFETY: (double*, const double*, const float*, 2 × unsigned): figures [7], sums and boxes
        // as above; one block.
        unsafe { launch.blocks(1, THREADS).go() }
    }
}

impl Divergence {
    pub(super) fn launch(&self, gpu: &Gpu, io: Io<'_, CudaStorage>) -> Result<()> {
        let ([parts], [offsets, columns, values, layout, total]) = io.parts()?;
        let (mut parts, offsets) = (parts.elements::<f64>()?, offsets.elements::<u32>()?);
        let (columns, values) = (columns.elements::<u32>()?, values.elements::<f32>()?);
        let (layout, total) = (layout.elements::<f32>()?, total.elements::<f64>()?);
        let name = format!("layout_divergence_{}", self.n_dims);
        let launch = gpu.launch("layout_divergence", FILE, &name)?.write(&mut parts).read(&offsets);
        let launch = launch.read(&columns).read(&values).read(&layout).read(&total).num(self.n);
        let launch = launch.count(columns.len()).num(self.degrees_of_freedom);
        // SAFETY: (double*, 2 × const unsigned*, 2 × const float*, const double*, size_t, unsigned,
        // float): offsets [n + 1] and columns, which the kernel bounds by the number of edges and
        // n, layout [n, n_dims], a part for each ROWS rows, at least one.
        unsafe { launch.blocks(self.n.div_ceil(ROWS).max(1), THREADS).go() }
    }
}

/// Of kernels/tsne/attraction.cu: rows of a block that has a warp for each.
const WARPS: usize = 8;

impl Attraction {
    pub(super) fn launch(&self, gpu: &Gpu, io: Io<'_, CudaStorage>) -> Result<()> {
        let ([forces], [offsets, columns, values, layout]) = io.parts()?;
        let (mut forces, offsets) = (forces.elements::<f32>()?, offsets.elements::<u32>()?);
        let (columns, values) = (columns.elements::<u32>()?, values.elements::<f32>()?);
        let layout = layout.elements::<f32>()?;
        let form = match self.form {
            AttractionForm::EachEnd => "each_end",
            AttractionForm::BothEnds => "both_ends",
        };
        let name = format!("attraction_{form}_{}", self.n_dims);
        let launch = gpu.launch("attraction", "attraction", &name)?.write(&mut forces).read(&offsets);
        let launch = launch.read(&columns).read(&values).read(&layout).num(self.n);
        let launch = launch.count(columns.len()).num(self.degrees_of_freedom);
        // SAFETY: (float*, 2 × const unsigned*, 2 × const float*, size_t, unsigned, float): forces
        // and layout [n, n_dims], offsets [n + 1] and columns, which the kernel bounds by the
        // number of edges and n; a warp for each row.
        unsafe { launch.blocks(self.n.div_ceil(WARPS), THREADS).go() }
    }
}
