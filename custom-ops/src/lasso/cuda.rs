//! The launches of `kernels/lasso.cu`: unit atoms, whole solves, and those whose support was too large.
use super::shape::{Shape, factor_size};
use super::{Lasso, LassoMethod, OP};
use crate::cuda::{Gpu, Part, Scratch, ScratchLayout, keep_freed_memory};
use crate::op::{In, Io};
use candle::cuda::CudaDType;
use candle::cuda::cudarc::driver::{CudaView, CudaViewMut, DeviceRepr};
use candle::{CudaStorage, Result, WithDType};

const FILE: &str = "lasso";
/// The launch that leaves nothing over, counted from 0.
const LAST: usize = 2;

/// What a kernel says, in the order of `Said` in `kernels/lasso.cu`.
const NOT_FINITE: usize = 0;
const LEFT_OVER: usize = 1;

/// `Numbers` of the kernel, in its order.
#[repr(C)]
#[derive(Clone, Copy)]
struct Numbers<T> {
    tolerance: T,
    n: u32,
    capacity: u32,
    max_updates: u32,
    nonnegative: u32,
    cyclic: u32,
    last: u32,
    wide: u32,
}
// SAFETY: a number of four or eight bytes and seven of four, the same layout as the kernel's struct, padded to its alignment.
unsafe impl<T: DeviceRepr> DeviceRepr for Numbers<T> {}

/// What stays for all launches of a call.
struct Space<T> {
    scratch: Scratch,
    /// `[n, n]`: the Gram matrix of unit atoms.
    unit: Part<T>,
    /// `[n]`: what coefficients of unit atoms are multiplied by.
    scale: Part<T>,
    /// `[2 + m]` for each launch: signals to take.
    work: [Part<u32>; LAST + 1],
}

/// Operands of a call.
struct Operands<'a, T> {
    activations: CudaViewMut<'a, T>,
    gaps: CudaViewMut<'a, T>,
    updates: CudaViewMut<'a, u32>,
    correlations: CudaView<'a, T>,
    energies: CudaView<'a, T>,
    penalties: CudaView<'a, T>,
}

pub(super) fn run<T: CudaDType + WithDType + DeviceRepr>(
    lasso: &Lasso,
    gpu: &Gpu,
    io: Io<'_, CudaStorage>,
) -> Result<()> {
    gpu.not_recording(OP)?;
    keep_freed_memory(gpu)?;
    let (n, bytes) = (lasso.n, size_of::<T>());
    let Some(shape) = Shape::of(n, bytes) else {
        candle::bail!("{OP}: there may be up to 8192 atoms on a GPU, got {n}; use the CPU")
    };
    let ([activations, gaps, updates], [gram, correlations, energies, penalties]) = io.parts()?;
    let starts = [activations.layout(), correlations.layout()?, penalties.layout()?];
    let wide = n.is_multiple_of(4) && starts.iter().all(|layout| layout.start_offset().is_multiple_of(4));
    let mut of = Operands {
        activations: activations.elements::<T>()?,
        gaps: gaps.elements::<T>()?,
        updates: updates.elements::<u32>()?,
        correlations: correlations.elements::<T>()?,
        energies: energies.elements::<T>()?,
        penalties: penalties.elements::<T>()?,
    };
    let m = of.gaps.len();
    let mut space = begin(gpu, &gram, &mut of, m, n)?;
    let cyclic = lasso.options.method == LassoMethod::CoordinateDescent;
    let capacity = shape.capacity(gpu.limits(), n, bytes);
    let numbers = |capacity: usize, last: bool| Numbers {
        tolerance: T::from_f64(lasso.options.tolerance),
        n: n as u32,
        capacity: capacity as u32,
        max_updates: u32::try_from(lasso.options.max_updates).unwrap_or(u32::MAX),
        nonnegative: lasso.options.nonnegative.into(),
        cyclic: cyclic.into(),
        last: last.into(),
        wide: wide.into(),
    };
    let blocks = m.min(shape.at_once(gpu.limits()));
    let fits = cyclic || capacity >= n;
    let mut said = solve(gpu, shape, &mut of, &mut space, 0, None, numbers(capacity, fits), blocks)?;
    let mut refused = said[NOT_FINITE];
    for (i, (capacity, blocks)) in Shape::large(gpu.limits(), n).into_iter().enumerate() {
        if said[LEFT_OVER] == 0 {
            break;
        }
        let launch = i + 1;
        let fits = launch == LAST || capacity >= n;
        let mut layout = ScratchLayout::default();
        let factors = layout.part::<T>(m.min(blocks) * factor_size(capacity));
        let mut memory = layout.alloc(OP, gpu)?;
        let large = Some((&mut memory, factors));
        let numbers = numbers(capacity, fits);
        said = solve(gpu, shape, &mut of, &mut space, launch, large, numbers, m.min(blocks))?;
        refused |= said[NOT_FINITE];
    }
    if refused != 0 {
        candle::bail!(
            "{OP}: all numbers must be finite, got NaN or infinity; look for them with candle's ops or on the CPU, where the message names the row"
        )
    }
    Ok(())
}

/// Unit atoms, and the list of all signals.
fn begin<T: CudaDType + WithDType>(
    gpu: &Gpu,
    gram: &In<'_, CudaStorage>,
    of: &mut Operands<'_, T>,
    m: usize,
    n: usize,
) -> Result<Space<T>> {
    let gram = gram.elements::<T>()?;
    let mut layout = ScratchLayout::default();
    let (unit, scale) = (layout.part::<T>(n * n), layout.part::<T>(n));
    let work = [(); LAST + 1].map(|()| layout.part::<u32>(2 + m));
    let mut scratch = layout.alloc(OP, gpu)?;
    {
        let mut memory = scratch.all();
        let memory = gpu.to_write(&mut memory);
        let name = T::DTYPE.as_str();
        let launch = gpu.launch(OP, FILE, &format!("lasso_begin_{name}"))?.read(&gram);
        let launch = launch.num(scale.address(memory.at));
        let [first, second, third] = work.map(|list| list.address(memory.at));
        let launch = launch.num(first).num(second).num(third).write(&mut of.updates).count(m).count(n);
        // SAFETY: (const T*, T*, 4 × unsigned*, 2 × unsigned): n² numbers of the Gram matrix, n of `scale`, 2 + m of each list and m
        // of the updates, by the checks of `lasso_` and the layout above.
        unsafe { launch.linear(m.max(n)).go() }?;
        let launch = gpu.launch(OP, FILE, &format!("lasso_unit_{name}"))?.read(&gram);
        let launch = launch.num(scale.address(memory.at)).num(unit.address(memory.at)).count(n);
        // SAFETY: (2 × const T*, T*, unsigned), as above.
        unsafe { launch.linear(n * n).go() }?;
    }
    Ok(Space { scratch, unit, scale, work })
}

/// Solves the signals of list `from`; what is left over goes to the next. Waits for the device.
#[expect(clippy::too_many_arguments, reason = "what two launches differ in")]
fn solve<T: CudaDType + WithDType + DeviceRepr>(
    gpu: &Gpu,
    shape: Shape,
    of: &mut Operands<'_, T>,
    space: &mut Space<T>,
    from: usize,
    large: Option<(&mut Scratch, Part<T>)>,
    numbers: Numbers<T>,
    blocks: usize,
) -> Result<[u32; 8]> {
    let flags = gpu.flags()?;
    {
        let (unit, scale, work) = (space.unit, space.scale, space.work);
        let mut memory = space.scratch.all();
        let memory = gpu.to_write(&mut memory);
        let mut factors = large.map(|(scratch, part)| (scratch.all(), part));
        let factors = factors.as_mut().map(|(all, part)| {
            let to = gpu.to_write(all);
            (part.address(to.at), to)
        });
        let kernel = format!("lasso_{}_{}", T::DTYPE.as_str(), shape.atoms);
        let launch = gpu.launch(OP, FILE, &kernel)?.write(&mut of.activations);
        let launch = launch.num(unit.address(memory.at)).read(&of.correlations).read(&of.energies);
        let launch = launch.read(&of.penalties).num(scale.address(memory.at)).write(&mut of.gaps);
        let launch = launch.write(&mut of.updates).num(work[from].address(memory.at));
        let launch = launch.num(work[LAST.min(from + 1)].address(memory.at));
        let launch = launch.num(factors.as_ref().map_or(0, |(at, _)| *at)).num(flags.address());
        let shared = shape.shared_bytes(numbers.capacity as usize, size_of::<T>(), factors.is_some());
        let launch = launch.num(numbers).shared(shared).blocks(blocks, shape.threads as u32);
        // SAFETY: (T*, 4 × const T*, const T*, T*, 3 × unsigned*, T* or null, unsigned*, Numbers): shapes by the checks of `lasso_`,
        // scratch as `begin` laid it out, a factor of the capacity for each block where there is a place for them, and the shared
        // memory that `Shape` counts. `wide` says that rows begin on four entries; scratch always does.
        unsafe { launch.go() }?;
    }
    flags.wait()
}
