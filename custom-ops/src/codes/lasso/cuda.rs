//! The launches of `kernels/codes/lasso.cu`: unit atoms, whole solves, and those whose support was
//! too large.
use super::shape::{Stage, factor_size};
use super::{Lasso, LassoMethod, OP};
use crate::core::cuda::{Flags, Gpu, Part, Scratch, ScratchLayout};
use crate::core::op::{In, Io};
use candle::cuda::cudarc::driver::{CudaView, CudaViewMut, DeviceRepr, ValidAsZeroBits};
use candle::cuda::{CudaDType, WrapErr};
use candle::{CudaStorage, Result, WithDType};

const FILE: &str = "lasso";
const PREPARE: &str = "lasso_prepare";

/// What a kernel says, in the order of `Said` in `kernels/codes/lasso.cu`.
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
    tells: u32,
    wide: u32,
    own: u32,
}
// SAFETY: a number of four or eight bytes and nine of four, the same layout as the kernel's struct,
// padded to its alignment.
unsafe impl<T: DeviceRepr> DeviceRepr for Numbers<T> {}

/// What stays for all launches of a call.
struct Space<T> {
    scratch: Scratch,
    /// `[n, n]` for each Gram matrix: those of unit atoms.
    unit: Part<T>,
    /// `[n]` for each: what coefficients of unit atoms are multiplied by.
    scale: Part<T>,
    /// `[2 + m]` for each launch: signals to take.
    work: Part<u32>,
}

/// The most signals that are sorted, those with most work first: of more, the last are few beside
/// all.
const SORTED: usize = 16_384;

/// Operands of a call.
struct Operands<'a, T> {
    activations: CudaViewMut<'a, T>,
    gaps: CudaViewMut<'a, T>,
    updates: CudaViewMut<'a, u32>,
    correlations: CudaView<'a, T>,
    energies: CudaView<'a, T>,
    penalties: CudaView<'a, T>,
}

pub(super) fn run<T: CudaDType + WithDType + DeviceRepr + ValidAsZeroBits>(
    lasso: &Lasso,
    gpu: &Gpu,
    io: Io<'_, CudaStorage>,
) -> Result<()> {
    gpu.not_recording(OP)?;
    let (n, bytes) = (lasso.n, size_of::<T>());
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
    if lasso.options.from_zeros {
        gpu.device_stream().memset_zeros(&mut of.activations).w()?;
    }
    let m = of.gaps.len();
    let Some(stages) = Stage::all(gpu.limits(), [m, n], bytes) else {
        candle::bail!("{OP}: there may be up to 8192 atoms on a GPU, got {n}; use the CPU")
    };
    let grams = if lasso.own_gram { m } else { 1 };
    let cyclic = lasso.options.method == LassoMethod::CoordinateDescent;
    let stages = if cyclic { &stages[..1] } else { &stages[..] };
    let is_sorted = !cyclic && m > stages[0].blocks && m <= SORTED;
    let mut space = begin(gpu, &gram, &mut of, [m, n, grams, stages.len()], is_sorted)?;
    let mut refused = 0;
    // Those with factors in shared memory follow each other without a wait.
    let near = stages.iter().take_while(|stage| !stage.is_large).count();
    let mut first = 0;
    for end in near..=stages.len() {
        let flags = gpu.flags()?;
        for at in first..end {
            let stage = stages[at];
            let numbers = Numbers {
                tolerance: T::from_f64(lasso.options.tolerance),
                n: n as u32,
                capacity: stage.capacity as u32,
                max_updates: u32::try_from(lasso.options.max_updates).unwrap_or(u32::MAX),
                nonnegative: lasso.options.nonnegative.into(),
                cyclic: cyclic.into(),
                last: (at + 1 == stages.len()).into(),
                tells: (at + 1 == end).into(),
                wide: wide.into(),
                own: lasso.own_gram.into(),
            };
            solve(gpu, stage, at, &mut of, &mut space, numbers, &flags)?;
        }
        let said = flags.wait()?;
        refused |= said[NOT_FINITE];
        if said[LEFT_OVER] == 0 {
            break;
        }
        first = end;
    }
    if refused != 0 {
        candle::bail!(
            "{OP}: all numbers must be finite, got NaN or infinity; look for them with candle's ops or on the CPU, where the message names the row"
        )
    }
    Ok(())
}

/// Unit atoms, and the lists of signals of so many launches, the first sorted or as they come.
fn begin<T: CudaDType + WithDType>(
    gpu: &Gpu,
    gram: &In<'_, CudaStorage>,
    of: &mut Operands<'_, T>,
    [m, n, grams, launches]: [usize; 4],
    is_sorted: bool,
) -> Result<Space<T>> {
    let gram = gram.elements::<T>()?;
    let mut layout = ScratchLayout::default();
    let (unit, scale) = (layout.part::<T>(grams * n * n), layout.part::<T>(grams * n));
    let work = layout.part::<u32>(launches * (2 + m));
    let ease = layout.part::<f32>(if is_sorted { m } else { 0 });
    let mut scratch = layout.alloc(OP, gpu)?;
    {
        let mut memory = scratch.all();
        let memory = gpu.to_write(&mut memory);
        let name = T::DTYPE.as_str();
        let launch = gpu.launch(OP, PREPARE, &format!("lasso_begin_{name}"))?.read(&gram);
        let launch = launch.num(scale.address(memory.at)).num(work.address(memory.at));
        let launch = launch.write(&mut of.updates).count(launches).count(m).count(n).count(grams);
        // SAFETY: (const T*, T*, 2 × unsigned*, 4 × unsigned): n² numbers of each Gram matrix, n of
        // its `scale`, 2 + m of each list and m of the updates, by the checks of `lasso_` and the
        // layout above.
        unsafe { launch.linear(m.max(grams * n)).go() }?;
        let launch = gpu.launch(OP, PREPARE, &format!("lasso_unit_{name}"))?.read(&gram);
        let launch = launch.num(scale.address(memory.at)).num(unit.address(memory.at)).count(n).count(grams);
        // SAFETY: (2 × const T*, T*, 2 × unsigned), as above.
        unsafe { launch.linear(grams * n * n).go() }?;
        if is_sorted {
            let launch = gpu.launch(OP, PREPARE, &format!("lasso_ease_{name}"))?.read(&of.correlations);
            let launch = launch.read(&of.energies).num(scale.address(memory.at)).num(ease.address(memory.at));
            let launch = launch.count(m).count(n).num(u32::from(grams > 1));
            // SAFETY: (3 × const T*, float*, 3 × unsigned): [m, n] correlations, [m] energies and
            // as many `ease`, `scale` as above.
            unsafe { launch.linear(32 * m).go() }?;
            let launch = gpu.launch(OP, PREPARE, "lasso_sort")?.num(ease.address(memory.at));
            // SAFETY: (const float*, unsigned*, unsigned): m numbers, and the first list, which has
            // room for as many signals.
            unsafe { launch.num(work.address(memory.at)).count(m).linear(32 * m).go() }?;
        }
    }
    Ok(Space { scratch, unit, scale, work })
}

/// Queues launch `at`, of the signals of its list; what is left over goes to the next.
fn solve<T: CudaDType + WithDType + DeviceRepr>(
    gpu: &Gpu,
    stage: Stage,
    at: usize,
    of: &mut Operands<'_, T>,
    space: &mut Space<T>,
    numbers: Numbers<T>,
    flags: &Flags,
) -> Result<()> {
    let m = of.gaps.len();
    let blocks = m.min(stage.blocks);
    let mut layout = ScratchLayout::default();
    let factors = layout.part::<T>(if stage.is_large { blocks * factor_size(stage.capacity) } else { 0 });
    let mut large = if stage.is_large { Some(layout.alloc(OP, gpu)?) } else { None };
    {
        let (unit, scale, work) = (space.unit, space.scale, space.work);
        let mut memory = space.scratch.all();
        let memory = gpu.to_write(&mut memory);
        let mut large = large.as_mut().map(Scratch::all);
        let large = large.as_mut().map(|all| gpu.to_write(all));
        let list = |launch: usize| work.address(memory.at) + (launch * (2 + m) * size_of::<u32>()) as u64;
        let launch = gpu.launch(OP, FILE, &format!("lasso_{}", stage.shape.name))?;
        let launch = launch.write(&mut of.activations);
        let launch = launch.num(unit.address(memory.at)).read(&of.correlations).read(&of.energies);
        let launch = launch.read(&of.penalties).num(scale.address(memory.at)).write(&mut of.gaps);
        // The last launch leaves nothing to the next list.
        let next = if numbers.last == 0 { at + 1 } else { at };
        let launch = launch.write(&mut of.updates).num(list(at)).num(list(next));
        let launch = launch.num(large.as_ref().map_or(0, |all| factors.address(all.at)));
        let launch = launch.num(flags.address()).num(numbers);
        let launch =
            launch.shared(stage.shared_bytes(size_of::<T>())).blocks(blocks, stage.shape.threads as u32);
        // SAFETY: (T*, 4 × const T*, const T*, T*, 3 × unsigned*, T* or null, unsigned*, Numbers):
        // shapes by the checks of `lasso_`, scratch as `begin` laid it out, a factor of the
        // capacity for each block where they are in global memory, and the shared memory that
        // `Stage` counts. `wide` says that rows begin on four entries; scratch always does.
        unsafe { launch.go() }?;
    }
    Ok(())
}
