//! The launches of `kernels/images/patch_products.cu`, `patch_units.cu`, also that of `sm_90a`, and
//! `patch_step.cu`.
use super::cpu::Number;
use super::grid::PatchGrid;
use super::last_form;
use super::shape::{Rows, UnitsShape};
use super::sizes::{PatchDirection, STEP, Sizes, patch_steps_fuse};
use super::warpgroups::WarpgroupTile;
use crate::core::check::begins_on;
use crate::core::cuda::{Fetch, Gpu, Grid, TensorMap};
use crate::core::draw::{Draws, Place, RowBlocks};
use crate::core::op::{Io, Kernel, operands};
use crate::core::philox::Philox;
use crate::layers::cd_update::cuda::Patches;
use crate::layers::cd_update::{CdOperands, CdUpdate, LastStep};
use crate::layers::units::{Unit, UnitPlanes, check_units};
use candle::cuda::CudaDType;
use candle::cuda::cudarc::driver::DeviceRepr;
use candle::{CudaStorage, DType, Device, Result, Tensor};
use half::{bf16, f16};

/// Of kernels/images/patch_products.cu: the side of a tile, and threads of a block.
const SIDE: usize = 64;
const THREADS: u32 = 256;
/// The fast kernels load so many bytes at once.
const ALIGN: usize = 16;

impl From<&Sizes> for Grid {
    /// The hidden units are fewer than 2³¹, checked by [`counted`].
    fn from(sizes: &Sizes) -> Self {
        Self { hidden: sizes.hidden as i32, ..Self::from(&sizes.grid) }
    }
}

impl From<&PatchGrid> for Grid {
    /// Without hidden units. All sizes are below 2³¹, checked by `PatchGrid::validate`.
    fn from(g: &PatchGrid) -> Self {
        Self {
            planes: g.planes as i32,
            height: g.height as i32,
            width: g.width as i32,
            depth: g.depth as i32,
            window: g.window as i32,
            stride: g.stride as i32,
            across: g.across() as i32,
            down: g.down() as i32,
            values: g.n_values() as i32,
            hidden: 0,
        }
    }
}

/// Refuses sizes that the kernels cannot count.
fn counted(op: &str, sizes: &Sizes) -> Result<()> {
    let sums = [sizes.n_hidden(), sizes.batch, sizes.hidden * sizes.grid.overlap().pow(2)];
    match sums.into_iter().find(|&n| i32::try_from(n).is_err()) {
        Some(n) => candle::bail!("{op}: hidden units and rows must be fewer than 2^31, got {n}"),
        None => Ok(()),
    }
}

/// The columns of a product as tiles go over them: the name of the direction, how many groups of
/// columns there are, and columns of one. Groups are the patches upwards, and downwards the cells
/// of the grid, in which the same windows meet.
fn columns(sizes: &Sizes, direction: PatchDirection) -> (&'static str, usize, usize) {
    let g = &sizes.grid;
    match direction {
        PatchDirection::Up => ("up", g.n_patches(), sizes.hidden),
        PatchDirection::Down => ("down", g.cell_lines() * g.cells_across(), g.cell_len()),
    }
}

pub(super) fn product<T: CudaDType + Number>(
    sizes: &Sizes,
    direction: PatchDirection,
    factor: f32,
    dtype: &str,
    gpu: &Gpu,
    io: Io<'_, CudaStorage>,
) -> Result<()>
where
    T::Sum: CudaDType,
{
    const OP: &str = "patch_product_";
    counted(OP, sizes)?;
    let ([out], [x, weight]) = io.parts()?;
    let (x_part, w_part) = (part_of(x.layout()?), part_of(weight.layout()?));
    let (from, _) = sizes.ends(direction);
    let (x, weight) =
        (x.span::<T>(x_part + sizes.batch * from)?, weight.span::<T>(w_part + sizes.n_weights())?);
    let mut out = out.elements::<T::Sum>()?;
    let (name, groups, across) = columns(sizes, direction);
    let launch = gpu.launch(OP, "patch_products", &format!("patch_{name}_{dtype}"))?.write(&mut out);
    let launch = launch.read(&x).num(x_part as u64).read(&weight).num(w_part as u64);
    let launch = launch.num(Grid::from(sizes)).num(sizes.batch as i32).num(factor);
    let grid = [groups * across.div_ceil(SIDE), sizes.batch.div_ceil(SIDE), 1];
    // SAFETY: (S*, const T*, unsigned long long, const T*, unsigned long long, Grid, int, float);
    // `sizes_of` checked shapes, types and that parts are contiguous, the spans end with the last
    // part, and out is [batch, units'] by `patch_product_`.
    unsafe { launch.grid(grid, (THREADS, 1, 1)).go() }
}

/// `factors` are `alpha` and `beta`; none where they are on the device.
pub(super) fn gradient<T: CudaDType + Number>(
    sizes: &Sizes,
    factors: Option<(f64, f64)>,
    dtype: &str,
    gpu: &Gpu,
    io: Io<'_, CudaStorage>,
) -> Result<()>
where
    T::Sum: CudaDType,
{
    const OP: &str = "patch_gradient_";
    counted(OP, sizes)?;
    let ([out], [h, v, on_device]) = io.parts()?;
    let (h_part, v_part) = (part_of(h.layout()?), part_of(v.layout()?));
    let h = h.span::<T>(h_part + sizes.batch * sizes.n_hidden())?;
    let v = v.span::<T>(v_part + sizes.batch * sizes.grid.n_values())?;
    let (mut out, on_device) = (out.elements::<T::Sum>()?, on_device.maybe::<f32>()?);
    let (alpha, beta) = factors.unwrap_or_default();
    let launch = gpu.launch(OP, "patch_products", &format!("patch_gradient_{dtype}"))?.write(&mut out);
    let launch = launch.read(&h).num(h_part as u64).read(&v).num(v_part as u64).maybe(&on_device);
    let launch = launch.num(Grid::from(sizes)).num(sizes.batch as i32).num(alpha).num(beta);
    let across = sizes.grid.n_patches() * sizes.grid.window_len().div_ceil(SIDE);
    // SAFETY: (S*, const T*, unsigned long long, const T*, unsigned long long, const float* or
    // null, Grid, int, 2 × double); `patch_gradient_` checked the shapes and that two factors are
    // on the device where they are not given here.
    unsafe { launch.grid([across, sizes.hidden.div_ceil(SIDE), 1], (THREADS, 1, 1)).go() }
}

/// How far the second part of an operand is from the first; 0 where there is one.
fn part_of(layout: &candle::Layout) -> usize {
    if layout.dims()[0] == 2 { layout.stride()[0] } else { 0 }
}

/// `Numbers` of kernels/images/patch_units.cu, in its order.
#[repr(C)]
#[derive(Clone, Copy)]
struct UnitNumbers {
    x_part: u64,
    w_part: u64,
    low: u64,
    mean_at: i64,
    sample_at: i64,
    seed: u64,
    stream: u64,
    offset: u64,
    apart: u64,
    grid: Grid,
    batch: i32,
    scale: f32,
    mean_scale: f32,
    unit: u32,
    drawn: u32,
    cluster: u32,
}
// SAFETY: nine 64-bit numbers, ten and six of 32 bits, without padding, the same layout as the
// kernel's struct.
unsafe impl DeviceRepr for UnitNumbers {}

/// The name of [`units_of_patches_`](super::units_of_patches_) in messages.
const UNITS: &str = "units_of_patches_";

/// The form of a product and its units.
enum Form {
    Tiles(UnitsShape),
    Warpgroups(WarpgroupTile),
}

impl Form {
    /// The one for a product that goes to `to`; none where no kernel takes it.
    ///
    /// # Errors
    /// When there are too many units or rows.
    fn of(
        to: &Tensor,
        x: &Tensor,
        weight: &Tensor,
        sizes: &Sizes,
        direction: PatchDirection,
        unit: Unit,
    ) -> Result<Option<Self>> {
        let Device::Cuda(device) = to.device() else { return Ok(None) };
        let parts = weight.dims()[0];
        // Up from states in as many parts as the weights have, down from states of one.
        let x_parts = if direction == PatchDirection::Up { parts } else { 1 };
        let known = patch_steps_fuse(to.device(), &sizes.grid, sizes.hidden)
            && matches!(x.dtype(), DType::BF16 | DType::F16)
            && x.dims()[0] == x_parts
            && sizes.batch > 0
            && [x, weight].iter().all(|t| t.device().same_device(to.device()))
            && to.is_contiguous()
            && [to, x, weight].iter().all(|t| begins_on(ALIGN, t))
            && [x, weight].iter().all(|t| t.stride()[0].is_multiple_of(8));
        if !known {
            return Ok(None);
        }
        counted(UNITS, sizes)?;
        let (_, _, across) = columns(sizes, direction);
        let limits = Gpu::of(device)?.limits();
        let tiles = || UnitsShape::of(limits, Rows::of(sizes.batch), across, x_parts, parts, direction);
        let warpgroups = WarpgroupTile::of(limits, sizes, [x_parts, parts], direction, unit);
        Ok(warpgroups.map(Form::Warpgroups).or_else(|| tiles().map(Form::Tiles)))
    }
}

/// A product and its units in one launch, or its sums.
pub(super) struct Units<'a> {
    sizes: Sizes,
    direction: PatchDirection,
    form: Form,
    dtype: DType,
    scale: f32,
    /// None for sums.
    unit: Option<Unit>,
    out: UnitPlanes,
    place: Option<Place<'a>>,
    /// Where the draws of rows begin, if units are some of more.
    blocks: Option<RowBlocks>,
}

impl<'a> Units<'a> {
    /// The kernel for these operands; none where product and units follow each other.
    ///
    /// # Errors
    /// Those of the ops when operands do not fit.
    #[expect(clippy::too_many_arguments, reason = "those of the op")]
    pub(super) fn fits(
        planes: &Tensor,
        x: &Tensor,
        weight: &Tensor,
        bias: &Tensor,
        sizes: Sizes,
        direction: PatchDirection,
        scale: f32,
        unit: Unit,
        out: UnitPlanes,
        draws: Draws<'a>,
    ) -> Result<Option<Self>> {
        let known = planes.dtype() == x.dtype()
            && (weight.dims()[0] == 2) == out.low.is_some()
            && begins_on(ALIGN, bias);
        let n = sizes.ends(direction).1;
        if !known || check_units(planes, bias, out)? != (sizes.batch, n) {
            return Ok(None);
        }
        let Some(form) = Form::of(planes, x, weight, &sizes, direction, unit)? else { return Ok(None) };
        let (place, blocks) = draws.place_of_columns(UNITS, n, planes.device())?.unzip();
        let (blocks, dtype, unit) = (blocks.flatten(), x.dtype(), Some(unit));
        Ok(Some(Self { sizes, direction, form, dtype, scale, unit, out, place, blocks }))
    }

    /// The kernel for the sums alone, `[batch, n']` f32; none where it does not take the operands.
    ///
    /// # Errors
    /// When there are too many units or rows.
    pub(super) fn of_sums(
        pre: &Tensor,
        x: &Tensor,
        weight: &Tensor,
        sizes: Sizes,
        direction: PatchDirection,
        scale: f32,
    ) -> Result<Option<Self>> {
        // Up, the form of states makes units in registers.
        let Some(form) = Form::of(pre, x, weight, &sizes, direction, Unit::Gaussian)? else {
            return Ok(None);
        };
        let (dtype, out) = (x.dtype(), UnitPlanes { mean: Some(0), ..UnitPlanes::default() });
        Ok(Some(Self { sizes, direction, form, dtype, scale, unit: None, out, place: None, blocks: None }))
    }

    /// Runs the kernel on the operands that [`fits`](Self::fits) saw, or [`of_sums`](Self::of_sums),
    /// which has no biases.
    pub(super) fn run(&self, to: &Tensor, x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<()> {
        let io = operands(UNITS).write("planes", to).read("x", x);
        let io = io.read("weight", weight).maybe("bias", bias);
        io.maybe("counter", self.place.and_then(|place| place.counter)).run(self)
    }

    /// `T` are the numbers, `O` what is written.
    fn launch<T: CudaDType, O: CudaDType>(&self, gpu: &Gpu, io: Io<'_, CudaStorage>) -> Result<()> {
        let Self { sizes, direction, form, out, .. } = self;
        let dtype = self.dtype.as_str();
        let (from, to) = sizes.ends(*direction);
        let of_plane = sizes.batch * to;
        let ([planes], [x, weight, bias, counter]) = io.parts()?;
        let (x_part, w_part) = (part_of(x.layout()?), part_of(weight.layout()?));
        let x = x.span::<T>(x_part + sizes.batch * from)?;
        let weight = weight.span::<T>(w_part + sizes.n_weights())?;
        let (mut planes, bias, counter) =
            (planes.elements::<O>()?, bias.maybe::<f32>()?, counter.maybe::<i64>()?);
        let places = out.places(of_plane, of_plane);
        let RowBlocks { by, at } = self.blocks.unwrap_or(RowBlocks { by: to / 4, at: 0 });
        let philox = self.place.map_or(Philox::new(0, 0), |place| place.philox.skipped(at as u64));
        let numbers = UnitNumbers {
            x_part: x_part as u64,
            w_part: w_part as u64,
            low: places.low,
            mean_at: places.mean,
            sample_at: places.sample,
            seed: philox.seed,
            stream: philox.stream,
            offset: philox.offset,
            apart: (by - to / 4) as u64,
            grid: Grid::from(sizes),
            batch: sizes.batch as i32,
            scale: self.scale,
            mean_scale: out.mean_scale,
            unit: match self.unit {
                Some(Unit::Bernoulli) => 0,
                Some(Unit::Gaussian) => 1,
                Some(Unit::Rectified) => 2,
                None => 3,
            },
            drawn: self.place.is_some().into(),
            cluster: 1,
        };
        let shape = match form {
            Form::Tiles(shape) => shape,
            Form::Warpgroups(tile) => {
                let map = |view, [units, lines]: [usize; 2], part: usize, rows: usize, fetch| {
                    let at = gpu.to_read(view);
                    let (parts, apart) = if part == 0 { (1, units * lines) } else { (2, part) };
                    let bytes = tile.line_bytes();
                    let map = TensorMap::of(
                        at.at,
                        self.dtype,
                        &[units, lines, parts],
                        &[units, apart],
                        [bytes, rows],
                        fetch,
                    )?;
                    Ok::<_, candle::Error>((map, at))
                };
                let [x_lines, w_lines] = tile.lines();
                let (x_map, _x) = map(&x, [from, sizes.batch], x_part, x_lines, Fetch::TwoLines)?;
                // Up, k-blocks go along a line of the weights; down, the line beside is another
                // tile's.
                let fetch = match direction {
                    PatchDirection::Up => Fetch::TwoLines,
                    PatchDirection::Down => Fetch::Line,
                };
                let of_weights = [sizes.grid.window_len(), sizes.n_hidden()];
                let (w_map, _w) = map(&weight, of_weights, w_part, w_lines, fetch)?;
                let numbers = UnitNumbers { cluster: tile.shape.cluster as u32, ..numbers };
                let launch = gpu.launch(UNITS, "sm_90a/patch_units", &tile.kernel(dtype))?;
                let launch = launch.write(&mut planes).maybe(&bias).maybe(&counter).num(x_map).num(w_map);
                let launch = launch.num(numbers);
                let launch = match direction {
                    PatchDirection::Up => launch,
                    PatchDirection::Down => launch.num(tile.order(sizes)),
                };
                let launch = launch.grid(tile.blocks(sizes), (tile.shape.threads(), 1, 1));
                let launch = launch.shared(tile.shared_bytes()).clusters_of(tile.shape.cluster as u32);
                // SAFETY: (T* or float*, const float* or null, const long long* or null, 2 × TensorMap,
                // Numbers, and Order down). As below; the maps are those of the operands, whose addresses are
                // alive, in the blocks that the kernel takes, and `WarpgroupTile::of` saw that
                // windows are boxes.
                return unsafe { launch.overlapped().go() };
            }
        };
        let (name, groups, across) = columns(sizes, *direction);
        let parts = if w_part > 0 { "x2" } else { "" };
        let kernel = format!("patch_{name}_{dtype}{parts}_{}_{}", shape.across, shape.rows);
        let launch = gpu.launch(UNITS, "patch_units", &kernel)?;
        let launch =
            launch.write(&mut planes).read(&x).read(&weight).maybe(&bias).maybe(&counter).num(numbers);
        let grid = [groups * across.div_ceil(shape.across), sizes.batch.div_ceil(shape.rows), 1];
        // SAFETY: (T* or float*, 2 × const T*, const float* or null, const long long* or null,
        // Numbers). `fits` or `of_sums` checked shapes, types, layouts and that operands, lines and
        // parts begin on 16 bytes; the spans end with the last part, the planes lie within their
        // tensor by `check_planes`, and shared memory is the shape's `SHARED`.
        unsafe { launch.grid(grid, (shape.threads(), 1, 1)).shared(shape.shared_bytes()).overlapped().go() }
    }
}

impl Kernel for Units<'_> {
    fn cuda(&self, gpu: &Gpu, io: Io<'_, CudaStorage>) -> Result<()> {
        match (self.dtype, self.unit) {
            (DType::BF16, Some(_)) => self.launch::<bf16, bf16>(gpu, io),
            (DType::BF16, None) => self.launch::<bf16, f32>(gpu, io),
            (_, Some(_)) => self.launch::<f16, f16>(gpu, io),
            (_, None) => self.launch::<f16, f32>(gpu, io),
        }
    }
}

/// Whether an update is one kernel; else the ops go one after the other.
///
/// # Errors
/// When the kernel takes the operands, but for an option.
pub(super) fn step_fits(
    to: CdOperands<'_>,
    hidden: &Tensor,
    visible: &Tensor,
    step: CdUpdate<'_>,
    sizes: &Sizes,
    parts: usize,
) -> Result<bool> {
    let states = hidden.dtype();
    let Some(copy) = to.copy else { return Ok(false) };
    let fuses = patch_steps_fuse(to.params.device(), &sizes.grid, sizes.hidden)
        && states != DType::F32
        && to.velocity.is_some() == (states == DType::BF16)
        && [to.params, copy, hidden, visible].into_iter().chain(to.velocity).all(|t| begins_on(ALIGN, t))
        && (parts == 1 || [hidden, visible].iter().all(|t| t.stride()[0].is_multiple_of(8)));
    if fuses && step.visible_scale.is_some() {
        candle::bail!("{STEP}: visible_scale is for f32 states, got {states:?}")
    }
    Ok(fuses)
}

/// The form of the kernel for the last means and the update from them; none where they follow each
/// other. `step_fits` saw the operands.
pub(super) fn last_step(to: CdOperands<'_>, sizes: &Sizes, unit: Unit) -> Result<Option<LastStep>> {
    let Device::Cuda(device) = to.params.device() else { return Ok(None) };
    let known = to.params.dtype() == DType::I16 && unit == Unit::Bernoulli;
    Ok(last_form::form(Gpu::of(device)?.limits(), sizes).filter(|_| known))
}

/// The update in one launch, of `last_step` with the last means; `step_fits` saw the operands.
#[expect(clippy::too_many_arguments, reason = "those of the op")]
pub(super) fn step(
    to: CdOperands<'_>,
    hidden: &Tensor,
    visible: &Tensor,
    scalars: &Tensor,
    step: CdUpdate<'_>,
    sizes: Sizes,
    parts: usize,
    last_step: Option<LastStep>,
) -> Result<()> {
    counted(STEP, &sizes)?;
    let of_patch = crate::layers::cd_update::Sizes {
        parts,
        batch: sizes.batch,
        rows: sizes.hidden,
        cols: sizes.grid.window_len(),
    };
    let (n, values) = (sizes.grid.n_patches(), sizes.grid.n_values());
    let boxed_windows = sizes.grid.has_boxed_windows();
    let patches = Patches { grid: Grid::from(&sizes), n, values, boxed_windows, last_step };
    crate::layers::cd_update::cuda::run(STEP, to, hidden, visible, scalars, step, of_patch, Some(patches))
}
