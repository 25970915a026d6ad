//! Many steps in one launch of `kernels/layers/denoising_steps.cu`.
use super::shape::{RANKS, Shape, THREADS};
use super::{OP, Sizes, Steps};
use crate::core::cuda::{Gpu, Launch, ScratchLayout};
use crate::core::op::Io;
use candle::cuda::CudaDType;
use candle::cuda::cudarc::driver::DeviceRepr;
use candle::{CudaStorage, DType, Result};
use std::sync::{Mutex, PoisonError};

/// `Sizes` of the kernel, in its order.
#[repr(C)]
#[derive(Clone, Copy)]
struct Numbers {
    n_visible: u32,
    n_hidden: u32,
    batch: u32,
    padded: u32,
    n_steps: u32,
    columns: u32,
    own: u32,
    rows: u32,
    span: u32,
}
// SAFETY: nine 32-bit numbers without padding, the same layout as the kernel's struct.
unsafe impl DeviceRepr for Numbers {}

/// How the kernel takes these sizes on this GPU, if it does.
///
/// # Errors
/// When the driver fails.
pub(super) fn shape(gpu: &Gpu, sizes: Sizes) -> Result<Option<Shape>> {
    /// What the driver said of each GPU, by its number: it depends on how multiprocessors are
    /// grouped.
    static AT_ONCE: Mutex<Vec<(usize, Shape, usize)>> = Mutex::new(vec![]);
    let Some(shape) = Shape::of(gpu.limits(), sizes.n_visible, sizes.n_hidden, sizes.batch) else {
        return Ok(None);
    };
    let ordinal = gpu.stream().context().ordinal();
    let mut known = AT_ONCE.lock().unwrap_or_else(PoisonError::into_inner);
    let at_once = match known.iter().find(|(gpu, of, _)| (*gpu, *of) == (ordinal, shape)) {
        Some(&(_, _, at_once)) => at_once,
        None => {
            let at_once = launch_of(gpu, &shape, "f32")?.clusters_at_once()?;
            known.push((ordinal, shape, at_once));
            at_once
        }
    };
    Ok((shape.clusters <= at_once).then_some(shape))
}

/// A launch for rows of a type, still without arguments.
fn launch_of<'a>(gpu: &'a Gpu, shape: &Shape, dtype: &str) -> Result<Launch<'a>> {
    let launch = gpu.launch(OP, "denoising_steps", &format!("denoising_steps_{dtype}_{}", shape.form()))?;
    let launch = launch.blocks(shape.clusters * RANKS, THREADS).shared(shape.shared_bytes());
    Ok(launch.clusters_of(RANKS as u32).cooperative())
}

pub(super) fn run(of: &Steps<'_>, gpu: &Gpu, io: Io<'_, CudaStorage>) -> Result<()> {
    match of.dtype {
        DType::U8 => launch::<u8>(of, "u8", gpu, io),
        _ => launch::<f32>(of, "f32", gpu, io),
    }
}

fn launch<T: CudaDType>(of: &Steps<'_>, dtype: &str, gpu: &Gpu, io: Io<'_, CudaStorage>) -> Result<()> {
    let Sizes { n_visible, n_hidden, batch, n_steps } = of.sizes;
    let Some(shape) = shape(gpu, of.sizes)? else {
        candle::bail!(
            "{OP}: {n_visible} visible and {n_hidden} hidden units in minibatches of {batch} do not fit this GPU; \
             ask denoising_steps_fit first"
        )
    };
    let ([values, figures], [rows, counter]) = io.parts()?;
    let (mut values, mut figures) = (values.elements::<f32>()?, figures.elements::<f64>()?);
    let (rows, counter) = (rows.elements::<T>()?, counter.maybe::<i64>()?);
    let mut layout = ScratchLayout::default();
    let [sums, errors] = shape.words().map(|words| layout.part::<u64>(2 * words));
    let mut scratch = layout.alloc_zeros(OP, gpu)?;
    let memory = &mut scratch.all();
    let memory = gpu.to_write(memory);
    let numbers = Numbers {
        n_visible: n_visible as u32,
        n_hidden: n_hidden as u32,
        batch: batch as u32,
        padded: shape.padded as u32,
        n_steps: n_steps as u32,
        columns: shape.columns as u32,
        own: shape.own as u32,
        rows: shape.rows as u32,
        span: shape.span as u32,
    };
    let (law, noise) = of.corruption.law();
    let launch = launch_of(gpu, &shape, dtype)?;
    let values = gpu.to_write(&mut values);
    let place = |entry: usize| values.at + (entry * size_of::<f32>()) as u64;
    let launch = launch.num(values.at).num(place(of.bias_at)).num(place(of.visible_bias_at));
    let launch = launch.num(sums.address(memory.at)).num(errors.address(memory.at)).write(&mut figures);
    let launch = launch.read(&rows).num(numbers).num(of.scale).num(of.rate / batch as f32).num(of.keep);
    let launch = launch.num(law).num(noise).draws(of.place.philox, &counter);
    // SAFETY: (3 × float*, 2 × unsigned long long*, double*, const T*, Sizes, 3 × float, unsigned,
    // float, 3 × unsigned long long, const long long*): `denoising_steps_` checked all shapes; the
    // figures have a column for each of at most 1024 blocks; the scratch has the words of two
    // steps; `shape` made sure that all clusters run at once, that the kernel's limits hold and
    // sizes fit u32.
    unsafe { launch.go() }
}
