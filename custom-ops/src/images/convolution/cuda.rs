//! The launches of `kernels/images/convolution.cu` and `sm_90a/convolution_warpgroups.cu`; those by
//! transforms are in [`spectra`].
use super::plan::spectra::{Of, Spectra};
use super::plan::{self, Images, Products, Sides};
use super::{Convolution, ConvolutionShape, FORWARD, INPUT, WEIGHT, WeightGradient};
use crate::core::cuda::{Gpu, Launch};
use crate::core::op::Io;
use candle::cuda::CudaDType;
use candle::cuda::cudarc::driver::{CudaView, CudaViewMut, DeviceRepr};
use candle::{CudaStorage, DType, Layout, Result};
use spectra::{BySpectra, Operand, Scales};

const FILE: &str = "convolution";

/// A struct of a kernel: numbers of 32 bits in its order, after the sizes where it has them.
macro_rules! numbers {
    ($name:ident $(of $sizes:ident)? { $($field:ident),* $(,)? }) => {
        #[repr(C)]
        #[derive(Clone, Copy)]
        struct $name { $(of: $sizes,)? $($field: i32),* }
        // SAFETY: numbers of 32 bits without padding, the same layout as the kernels' struct of
        // this name.
        unsafe impl DeviceRepr for $name {}
    };
}

mod spectra;

numbers!(Windows {
    height,
    width,
    channels,
    out_height,
    out_width,
    n_out,
    size,
    pad,
    batch,
    band,
    n_bands,
    tiles,
    chunk,
    n_chunks,
    pitch,
    row_pitch,
    strip_rows,
    strip_columns,
    weight_rows,
    origin,
    n_step,
    dy_step,
    dx_step,
    c_step,
    wide,
    n_first,
    wide_out,
});
numbers!(Warpgroups {
    height,
    width,
    channels,
    out_height,
    out_width,
    n_out,
    size,
    pad,
    tiles_down,
    tiles_across,
    down,
    across,
    planes,
    stages,
    n_chunks,
    pitch,
    row_pitch,
    strip_rows,
    origin,
    n_step,
    dy_step,
    dx_step,
    c_step,
    wide,
    n_first,
    wide_weights,
    wide_out,
});
numbers!(Rows of Sizes {
    parts,
    row_blocks,
    band,
    n_bands,
    chunk,
    n_chunks,
    wide,
});
numbers!(Stages of Sizes {
    splits,
    rows,
    row_blocks,
    depth,
    column_blocks,
    x_rows,
    x_line,
});
numbers!(Weights of Stages { wide, wide_maps });
numbers!(WarpgroupWeights of Stages { pitch, wide });
numbers!(Sizes { height, width, channels, out_height, out_width, n_filters, size, pad, batch });

/// Whether a view begins on so many f32 numbers, for kernels that take as many at once. Allocations
/// begin on 256 bytes.
fn begins_on(numbers: usize, layout: &Layout) -> bool {
    layout.start_offset().is_multiple_of(numbers)
}

/// A product of sizes as a grid takes it.
fn product(op: &str, sizes: &[usize]) -> Result<usize> {
    match sizes.iter().try_fold(1usize, |n, &size| n.checked_mul(size)) {
        Some(n) if i32::try_from(n).is_ok() => Ok(n),
        _ => candle::bail!(
            "{op}: a launch must have fewer than 2^31 blocks, got {sizes:?}; use smaller batches"
        ),
    }
}

/// The steps from a weight to that of the next column, row and column of the filter, and term.
#[derive(Clone, Copy)]
struct Steps {
    origin: usize,
    n: usize,
    dy: i32,
    dx: i32,
    c: usize,
}

pub(super) fn forward(sizes: Convolution, gpu: &Gpu, io: Io<'_, CudaStorage>) -> Result<()> {
    let ([maps], [x, w]) = io.parts()?;
    let shape = sizes.shape;
    if sizes.dtype == DType::F64 {
        let (mut maps, x, w) = (maps.elements::<f64>()?, x.elements::<f64>()?, w.elements::<f64>()?);
        return plain(sizes, gpu, FORWARD, "maps_f64", (&mut maps, shape.n_hidden()), &x, &w);
    }
    let begin = Begins {
        source: begins_on(4, x.layout()?),
        weights: begins_on(4, w.layout()?),
        out: begins_on(2, maps.layout()),
    };
    if let Some(plan) = Spectra::of(gpu.limits(), Of::Maps, shape, sizes.batch) {
        let [x, w] = [Operand::read(&x)?, Operand::read(&w)?];
        let by = BySpectra { gpu, op: FORWARD, of: Of::Maps, sizes, plan };
        return by.run(&mut Operand::write(maps)?, &x, &w, &Scales::OVERWRITE);
    }
    let (mut maps, x, w) = (maps.elements::<f32>()?, x.elements::<f32>()?, w.elements::<f32>()?);
    let sides = Sides::maps(shape);
    let Some(plan) = Products::of(gpu.limits(), sides, sizes.batch) else {
        return plain(sizes, gpu, FORWARD, "maps_f32", (&mut maps, shape.n_hidden()), &x, &w);
    };
    let steps = Steps {
        origin: 0,
        n: shape.filter_len(),
        dy: shape.filter_row() as i32,
        dx: shape.channels as i32,
        c: 1,
    };
    launch_products(gpu, FORWARD, (sides, sizes.batch), plan, (steps, begin), &mut maps, &x, &w)
}

pub(super) fn input_gradient(sizes: Convolution, gpu: &Gpu, io: Io<'_, CudaStorage>) -> Result<()> {
    let ([images], [hidden, w]) = io.parts()?;
    let shape = sizes.shape;
    if sizes.dtype == DType::F64 {
        let (mut images, h, w) = (images.elements::<f64>()?, hidden.elements::<f64>()?, w.elements::<f64>()?);
        return plain(sizes, gpu, INPUT, "images_f64", (&mut images, shape.n_visible()), &h, &w);
    }
    let begin = Begins {
        source: begins_on(4, hidden.layout()?),
        weights: begins_on(4, w.layout()?),
        out: begins_on(2, images.layout()),
    };
    if let Some(plan) = Spectra::of(gpu.limits(), Of::Images, shape, sizes.batch) {
        let [h, w] = [Operand::read(&hidden)?, Operand::read(&w)?];
        let by = BySpectra { gpu, op: INPUT, of: Of::Images, sizes, plan };
        return by.run(&mut Operand::write(images)?, &h, &w, &Scales::OVERWRITE);
    }
    let (mut images, h, w) = (images.elements::<f32>()?, hidden.elements::<f32>()?, w.elements::<f32>()?);
    match Images::of(gpu.limits(), shape, sizes.batch) {
        None => plain(sizes, gpu, INPUT, "images_f32", (&mut images, shape.n_visible()), &h, &w),
        Some(Images::Windows(plan)) => {
            // Filters turned by 180 degrees; the terms are filters, the columns channels.
            let (row, channels, sides) = (shape.filter_row(), shape.channels, Sides::images(shape));
            let steps = Steps {
                origin: shape.filter_len() - channels,
                n: 1,
                dy: -(row as i32),
                dx: -(channels as i32),
                c: shape.filter_len(),
            };
            launch_products(gpu, INPUT, (sides, sizes.batch), plan, (steps, begin), &mut images, &h, &w)
        }
        Some(Images::Rows(plan)) => {
            let numbers = Rows {
                of: of_shape(sizes),
                parts: plan.parts as i32,
                row_blocks: plan.row_blocks as i32,
                band: plan.band as i32,
                n_bands: plan.n_bands as i32,
                chunk: plan.chunk as i32,
                n_chunks: plan.n_chunks as i32,
                wide: (begin.source && shape.n_filters.is_multiple_of(4)).into(),
            };
            let units = product(INPUT, &[sizes.batch, plan.row_blocks, plan.n_bands])?;
            let blocks = plan::sharing(gpu.limits(), units, 2);
            let launch = gpu.launch(INPUT, FILE, "convolution_rows")?.write(&mut images).read(&h).read(&w);
            let launch = launch.num(numbers).blocks(blocks, 256).shared(plan.shared_bytes(shape));
            // SAFETY: (float*, 2 × const float*, Rows). The op checked that the arrays have the
            // sizes of the shape, which are below 2^31; the plan that positions of a band fit a
            // block, and its units, which blocks share, cover the images.
            unsafe { launch.overlapped().go() }
        }
    }
}

pub(super) fn weight_gradient(op: &WeightGradient, gpu: &Gpu, io: Io<'_, CudaStorage>) -> Result<()> {
    let ([gradient, parts], [x, hidden, factors]) = io.parts()?;
    let (sizes, shape) = (op.sizes, op.sizes.shape);
    let factors = factors.maybe::<f32>()?;
    let (alpha, beta) = op.factors.unwrap_or((0., 0.));
    let weights = shape.n_filters * shape.filter_len();
    if sizes.dtype == DType::F64 {
        let (mut gradient, x, h) =
            (gradient.elements::<f64>()?, x.elements::<f64>()?, hidden.elements::<f64>()?);
        let launch = gpu.launch(WEIGHT, FILE, "convolution_gradient_f64")?;
        let launch = launch.write(&mut gradient).read(&x).read(&h).maybe(&factors).num(alpha).num(beta);
        // SAFETY: (double*, 2 × const double*, const float* or null, 2 × double, Sizes), arrays of
        // the sizes of the shape, checked by the op; a block of 256 for each weight.
        return unsafe { launch.num(of_shape(sizes)).blocks(weights, 256).go() };
    }
    if let Some(plan) = Spectra::of(gpu.limits(), Of::Weights, shape, sizes.batch) {
        let [h, x] = [Operand::read(&hidden)?, Operand::read(&x)?];
        let by = BySpectra { gpu, op: WEIGHT, of: Of::Weights, sizes, plan };
        let scales = Scales { alpha: alpha as f32, beta: beta as f32, factors };
        return by.run(&mut Operand::write(gradient)?, &h, &x, &scales);
    }
    let (wide, wide_maps) = (begins_on(4, x.layout()?), begins_on(4, hidden.layout()?));
    let (mut gradient, x, h) = (gradient.elements::<f32>()?, x.elements::<f32>()?, hidden.elements::<f32>()?);
    let (alpha, beta) = (alpha as f32, beta as f32);
    let Some(plan) = plan::gradient::Gradient::of(gpu.limits(), shape, sizes.batch) else {
        let launch = gpu.launch(WEIGHT, FILE, "convolution_gradient_f32")?;
        let launch = launch.write(&mut gradient).read(&x).read(&h).maybe(&factors).num(alpha).num(beta);
        // SAFETY: as above, of floats.
        return unsafe { launch.num(of_shape(sizes)).blocks(weights, 256).go() };
    };
    // Stages are counted in 31 bits.
    product(WEIGHT, &[sizes.batch, plan.row_blocks, plan.column_blocks])?;
    let mut parts = parts.elements::<f32>()?;
    let wide = wide && shape.channels.is_multiple_of(4);
    let grid = [plan.splits, plan.across, plan.down];
    let stages = Stages {
        of: of_shape(sizes),
        splits: plan.splits as i32,
        rows: plan.rows as i32,
        row_blocks: plan.row_blocks as i32,
        depth: plan.depth as i32,
        column_blocks: plan.column_blocks as i32,
        x_rows: plan.x_rows as i32,
        x_line: plan.x_line as i32,
    };
    if plan.warpgroups {
        let numbers = WarpgroupWeights { of: stages, pitch: plan.pitch as i32, wide: wide.into() };
        let kernel = format!("convolution_weights_warpgroups_{}", plan.filters);
        let launch = gpu.launch(WEIGHT, "sm_90a/convolution_weights_warpgroups", &kernel)?.write(&mut parts);
        let launch = launch.read(&x).read(&h).num(numbers).grid(grid, (512, 1, 1));
        // SAFETY: (float*, 2 × const float*, WarpgroupWeights), as below.
        unsafe { launch.shared(plan.shared_bytes()).overlapped().go()? };
    } else {
        let numbers = Weights {
            of: stages,
            wide: wide.into(),
            wide_maps: (wide_maps && shape.n_filters.is_multiple_of(4)).into(),
        };
        let launch = gpu.launch(WEIGHT, FILE, "convolution_weights")?.write(&mut parts).read(&x).read(&h);
        let launch = launch.num(numbers).grid(grid, (256, 1, 1));
        // SAFETY: (float*, 2 × const float*, Weights). The op checked that the images and maps have
        // the sizes of the shape, which are below 2^31, and that `parts` holds a part for each
        // split; the plan that stages fit a block and cover the maps.
        unsafe { launch.shared(plan.shared_bytes()).overlapped().go()? };
    }
    let launch = gpu.launch(WEIGHT, FILE, "convolution_add")?.write(&mut gradient);
    // What was written is read in the order of the stream.
    let parts = parts.as_view();
    let launch =
        launch.read(&parts).maybe(&factors).num(weights).num(plan.splits as u32).num(alpha).num(beta);
    // SAFETY: (float*, 2 × const float*, the second or null, size_t, unsigned, 2 × float):
    // `weights` entries of the gradient and of each part, two factors, checked by the op; 32
    // columns of 8 threads a block.
    unsafe { launch.grid([weights.div_ceil(32), 1, 1], (32, 8, 1)).overlapped().go() }
}

/// What all kernels know.
fn of_shape(sizes: Convolution) -> Sizes {
    let ConvolutionShape { height, width, channels, n_filters, size, .. } = sizes.shape;
    // All are below 2^31, see `ConvolutionShape::validate`, and the batch is that of tensors in
    // memory.
    Sizes {
        height: height as i32,
        width: width as i32,
        channels: channels as i32,
        out_height: sizes.shape.out_height() as i32,
        out_width: sizes.shape.out_width() as i32,
        n_filters: n_filters as i32,
        size: size as i32,
        pad: sizes.shape.pad() as i32,
        batch: sizes.batch as i32,
    }
}

/// The maps or the images by a thread for each entry, `len` of them for an image.
fn plain<T: CudaDType>(
    sizes: Convolution,
    gpu: &Gpu,
    op: &'static str,
    kernel: &str,
    (out, len): (&mut CudaViewMut<'_, T>, usize),
    source: &CudaView<'_, T>,
    w: &CudaView<'_, T>,
) -> Result<()> {
    let launch = gpu.launch(op, FILE, &format!("convolution_{kernel}"))?.write(out).read(source).read(w);
    // SAFETY: (T*, 2 × const T*, Sizes), arrays of the sizes of the shape, checked by the op;
    // threads stride over the grid.
    unsafe { launch.num(of_shape(sizes)).linear(sizes.batch * len).go() }
}

/// Whether views begin so that several numbers are read or written at once: four, and two of the
/// result.
#[derive(Clone, Copy)]
struct Begins {
    source: bool,
    weights: bool,
    out: bool,
}

#[expect(clippy::too_many_arguments, reason = "a launch and its operands")]
fn launch_products(
    gpu: &Gpu,
    op: &'static str,
    (sides, batch): (Sides, usize),
    plan: Products,
    (steps, begin): (Steps, Begins),
    out: &mut CudaViewMut<'_, f32>,
    source: &CudaView<'_, f32>,
    w: &CudaView<'_, f32>,
) -> Result<()> {
    let wide = begin.source && sides.channels.is_multiple_of(4);
    let wide_out = (begin.out && sides.n_out.is_multiple_of(2)).into();
    let plan = match plan {
        Products::Windows(plan) => {
            let numbers = windows((sides, batch), plan, steps, wide, wide_out);
            return launch_windows(gpu, op, (sides, batch), plan, numbers, out, source, w);
        }
        Products::Warpgroups(plan) => plan,
    };
    // Terms of a place are neighbours, and places begin on fours.
    let wide_weights = begin.weights && steps.c == 1 && sides.channels.is_multiple_of(4);
    let numbers = Warpgroups {
        height: sides.height as i32,
        width: sides.width as i32,
        channels: sides.channels as i32,
        out_height: sides.out_height as i32,
        out_width: sides.out_width as i32,
        n_out: sides.n_out as i32,
        size: sides.size as i32,
        pad: sides.pad as i32,
        tiles_down: plan.tiles_down as i32,
        tiles_across: plan.tiles_across as i32,
        down: plan.down as i32,
        across: plan.across as i32,
        planes: plan.planes as i32,
        stages: plan.stages as i32,
        n_chunks: plan.n_chunks as i32,
        pitch: plan.pitch as i32,
        row_pitch: plan.row_pitch as i32,
        strip_rows: plan.strip_rows as i32,
        origin: steps.origin as i32,
        n_step: steps.n as i32,
        dy_step: steps.dy,
        dx_step: steps.dx,
        c_step: steps.c as i32,
        wide: wide.into(),
        n_first: (steps.n == 1).into(),
        wide_weights: wide_weights.into(),
        wide_out,
    };
    let tiles = product(op, &[batch, plan.tiles_down, plan.tiles_across])?;
    let kernel = format!("convolution_warpgroups_{}", plan.columns);
    let launch = gpu.launch(op, "sm_90a/convolution_warpgroups", &kernel)?.write(out).read(source).read(w);
    let threads = 128 * (plan.down * plan.across + 1) as u32;
    let launch = launch.num(numbers).grid([tiles, plan.blocks_across, 1], (threads, 1, 1));
    // SAFETY: (float*, 2 × const float*, Warpgroups). The op checked that the arrays have the sizes
    // of the shape, which are below 2^31; tiles cover the result, and the plan that its strip holds
    // the windows of a tile and its planes the channels.
    unsafe { launch.shared(plan.shared_bytes()).overlapped().go() }
}

fn windows(
    (sides, batch): (Sides, usize),
    plan: plan::Windows,
    steps: Steps,
    wide: bool,
    wide_out: i32,
) -> Windows {
    Windows {
        height: sides.height as i32,
        width: sides.width as i32,
        channels: sides.channels as i32,
        out_height: sides.out_height as i32,
        out_width: sides.out_width as i32,
        n_out: sides.n_out as i32,
        size: sides.size as i32,
        pad: sides.pad as i32,
        batch: batch as i32,
        band: plan.band as i32,
        n_bands: plan.n_bands as i32,
        tiles: plan.tiles as i32,
        chunk: plan.chunk as i32,
        n_chunks: plan.n_chunks as i32,
        pitch: plan.pitch as i32,
        row_pitch: plan.row_pitch as i32,
        strip_rows: plan.strip_rows as i32,
        strip_columns: plan.strip_columns as i32,
        weight_rows: plan.weight_rows as i32,
        origin: steps.origin as i32,
        n_step: steps.n as i32,
        dy_step: steps.dy,
        dx_step: steps.dx,
        c_step: steps.c as i32,
        wide: (wide && plan.chunk.is_multiple_of(4)).into(),
        n_first: (steps.n == 1).into(),
        wide_out,
    }
}

#[expect(clippy::too_many_arguments, reason = "a launch and its operands")]
fn launch_windows(
    gpu: &Gpu,
    op: &'static str,
    (sides, batch): (Sides, usize),
    plan: plan::Windows,
    numbers: Windows,
    out: &mut CudaViewMut<'_, f32>,
    source: &CudaView<'_, f32>,
    w: &CudaView<'_, f32>,
) -> Result<()> {
    let tiles = product(op, &[batch, plan.n_bands, plan.tiles])?;
    let (kind, blocks, threads) = if plan.flat {
        ("flat", plan::sharing(gpu.limits(), tiles, 2usize.div_ceil(plan.across)), 256)
    } else {
        ("windows", tiles, 128)
    };
    let kernel = format!("convolution_{kind}_{}", plan.eights);
    let launch: Launch<'_> = gpu.launch(op, FILE, &kernel)?.write(out).read(source).read(w).num(numbers);
    let launch = launch.grid([blocks, plan.across, 1], (threads, 1, 1)).shared(plan.shared_bytes(sides));
    // SAFETY: (float*, 2 × const float*, Windows). The op checked that the arrays have the sizes of
    // the shape, which are below 2^31; the plan that its strip holds the windows of a tile, and its
    // tiles cover the result: one a block, or for few channels those that blocks share.
    unsafe { launch.overlapped().go() }
}
