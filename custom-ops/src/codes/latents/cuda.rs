//! The launches of `kernels/codes/latents.cu`.
use super::centred::Centre;
use super::dots::CodeDots;
use super::errors::Errors;
use super::gradients::{ALIGN, Gradients, Sizes};
use super::groups::Groups;
use super::step::Step;
use super::sums::UseSums;
use super::types::{Number, suffix};
use crate::core::cuda::{Address, Gpu, Scratch, ScratchLayout};
use crate::core::op::{In, Io};
use candle::cuda::cudarc::driver::{CudaView, DeviceRepr};
use candle::{CudaStorage, Result};

const FILE: &str = "latents";
/// Entries of a latent that one block sums: `STRETCH` of the kernels.
const STRETCH: usize = 256;
/// Numbers that a thread of `step` takes side by side.
const WIDE: usize = 8;

/// How many numbers, `wide` or one, a thread takes side by side of rows of `width` that begin at
/// `at`; f64 goes one by one.
fn side_by_side(wide: usize, width: usize, size: usize, at: &[u64]) -> usize {
    let is_aligned = at.iter().all(|at| at.is_multiple_of(ALIGN as u64));
    if width.is_multiple_of(wide) && size < 8 && is_aligned { wide } else { 1 }
}

/// Threads of a block that goes through a row of `width`, `side` numbers each at a time.
fn threads(width: usize, side: usize, most: usize) -> u32 {
    width.div_ceil(side).next_multiple_of(32).clamp(32, most) as u32
}

impl Errors {
    pub(super) fn launch<T: Number, V: Number>(&self, gpu: &Gpu, io: Io<'_, CudaStorage>) -> Result<()> {
        let &Self { n, p, s, ref ends, scale, .. } = self;
        let ([residual, errors, squares], [indices, values, count, y, atoms]) = io.parts()?;
        let (mut residual, mut errors) = (residual.elements::<V>()?, errors.elements::<T>()?);
        let (mut squares, indices) = (squares.elements::<f64>()?, indices.elements::<u32>()?);
        let (values, count) = (values.elements::<V>()?, count.elements::<u32>()?);
        let (y, atoms) = (y.elements::<V>()?, atoms.elements::<T>()?);
        let m = count.len();
        let at = [gpu.to_read(&y).at, gpu.to_read(&atoms).at];
        let side = side_by_side(ALIGN / size_of::<T>(), p, size_of::<T>(), &at);
        let name = match ends.len() {
            1 => "residual",
            2..=5 => "residuals_of_5",
            _ => "residuals",
        };
        let kernel = format!("{name}_{}_{side}", suffix::<T>());
        let launch = gpu.launch("code_errors", FILE, &kernel)?.write(&mut residual).write(&mut errors);
        let launch = launch.write(&mut squares).read(&indices).read(&values).read(&count).read(&y);
        let launch = launch.read(&atoms).num(Groups::of(ends)).num(m).count(n).count(s).count(p).num(scale);
        // SAFETY: (V*, T*, double*, const unsigned*, const V*, const unsigned*, const V*, const T*,
        // Groups, size_t, 3 x unsigned, double): [m, p], [G m, p], [G + 1, m], codes of [m, s], [m,
        // p] and [n, p], checked by `code_errors`; a block for each row; new memory begins on 16
        // bytes.
        unsafe { launch.blocks(m, threads(p, side, 512)).go() }
    }
}

impl Centre {
    pub(super) fn launch<T: Number, V: Number>(&self, gpu: &Gpu, io: Io<'_, CudaStorage>) -> Result<()> {
        let (mut written, [x, bias]) = match self.copy {
            true => io.parts::<2, 2>().map(|([out, copy], read)| (vec![copy, out], read))?,
            false => io.parts::<1, 2>().map(|([out], read)| (vec![out], read))?,
        };
        let Some(out) = written.pop() else { return Ok(()) };
        let mut copy = written.pop().map(|copy| copy.elements::<T>()).transpose()?;
        let (mut out, x, bias) = (out.elements::<V>()?, x.elements::<V>()?, bias.elements::<V>()?);
        let d = bias.len();
        let at = [gpu.to_read(&x).at, gpu.to_read(&bias).at];
        let side = side_by_side(ALIGN / size_of::<T>(), d, size_of::<V>(), &at);
        let n = x.len();
        let launch = gpu.launch("centred", FILE, &format!("centre_{}_{side}", suffix::<T>()))?;
        let launch = launch.write(&mut out).maybe_write(&mut copy).read(&x).read(&bias);
        // SAFETY: (V*, T* or null, 2 x const V*, size_t, unsigned): [m, d] three times and [d],
        // checked by `centred`; new memory begins on 16 bytes.
        unsafe { launch.num(n / d.max(1)).count(d).linear(n / side).go() }
    }
}

impl CodeDots {
    pub(super) fn launch<T: Number, V: Number>(&self, gpu: &Gpu, io: Io<'_, CudaStorage>) -> Result<()> {
        let &Self { n, p, s, ref ends, .. } = self;
        let ([out], [rows, atoms, indices, count]) = io.parts()?;
        let (mut out, rows, atoms) = (out.elements::<V>()?, rows.elements::<T>()?, atoms.elements::<T>()?);
        let (indices, count) = (indices.elements::<u32>()?, count.elements::<u32>()?);
        let at = [gpu.to_read(&rows).at, gpu.to_read(&atoms).at];
        let side = side_by_side(ALIGN / size_of::<T>(), p, size_of::<T>(), &at);
        let launch = gpu.launch("code_dots", FILE, &format!("dots_{}_{side}", suffix::<T>()))?;
        let launch = launch.write(&mut out).read(&indices).read(&count).read(&rows).read(&atoms);
        let launch = launch.num(Groups::of(ends)).num(count.len()).count(n).count(s).count(p);
        // SAFETY: (V*, 2 x const unsigned*, 2 x const T*, Groups, size_t, 3 x unsigned): codes of
        // [m, s], [G m, p] and [n, p], checked by `code_dots`; a block for each row; an index that
        // is not below n gives 0.
        unsafe { launch.blocks(count.len(), 256).go() }
    }
}

impl UseSums {
    pub(super) fn launch<V: Number>(&self, gpu: &Gpu, io: Io<'_, CudaStorage>) -> Result<()> {
        let &Self { n, of_plane, .. } = self;
        let ([out], [values, offsets, entries]) = io.parts()?;
        let (mut out, values) = (out.elements::<V>()?, values.elements::<V>()?);
        let (offsets, entries) = (offsets.elements::<u32>()?, entries.elements::<u32>()?);
        let sums = out.len();
        let launch = gpu.launch("use_sums", FILE, &format!("use_sums_{}", suffix::<V>()))?;
        let launch = launch.write(&mut out).read(&values).read(&offsets).read(&entries);
        let launch = launch.num(of_plane).count(n).count(sums / n.max(1));
        // SAFETY: (V*, const V*, 2 x const unsigned*, size_t, 2 x unsigned): [planes, n], planes of
        // `of_plane` values, and the lists of `AtomUses`, places below `of_plane`; a warp a sum.
        unsafe { launch.blocks(sums.div_ceil(8), 256).go() }
    }
}

/// `Sums` of kernels/codes/latents.cu.
#[repr(C)]
#[derive(Clone, Copy)]
struct Sums {
    offsets: u64,
    entries: u64,
    weights: u64,
    rows: u64,
    partial: u64,
    lengths: u64,
    n: u32,
    s: u32,
    batch: u32,
    d: u32,
    unit: u32,
    groups: Groups,
}
// SAFETY: six addresses, and 22 numbers of 32 bits with those of `Groups`: the same layout as the
// kernel's struct.
unsafe impl DeviceRepr for Sums {}

/// What both gradients are summed from.
struct Lists<'a, T, V> {
    offsets: CudaView<'a, u32>,
    entries: CudaView<'a, u32>,
    values: CudaView<'a, V>,
    pre: CudaView<'a, V>,
    x: CudaView<'a, T>,
    errors: CudaView<'a, T>,
    lengths: Option<CudaView<'a, V>>,
}

/// The gradient of one of the two matrices: its sums, and the form of the kernels.
struct Half<'a> {
    sums: Sums,
    /// `SIDE_PER`, the end of kernels' names.
    form: String,
    threads: u32,
    _used: Vec<Address<'a>>,
}

impl<'a, T: Number, V: Number> Lists<'a, T, V> {
    fn of(read: [In<'a, CudaStorage>; 7]) -> Result<Self> {
        let [offsets, entries, values, pre, x, errors, lengths] = read;
        Ok(Self {
            offsets: offsets.elements()?,
            entries: entries.elements()?,
            values: values.elements()?,
            pre: pre.elements()?,
            x: x.elements()?,
            errors: errors.elements()?,
            lengths: lengths.maybe()?,
        })
    }

    /// Calls `each` for encoder and decoder, once the sums of latents with many uses are queued.
    fn halves(
        &self,
        op: &'static str,
        gpu: &Gpu,
        sizes: &Sizes,
        mut each: impl FnMut(usize, &Half<'_>) -> Result<()>,
    ) -> Result<()> {
        let &Sizes { n, d_in, d_out, s, batch, ref ends, unit, .. } = sizes;
        let windows = self.entries.len().div_ceil(STRETCH);
        for (i, d) in [d_in, d_out].into_iter().enumerate() {
            let (weights, rows, groups) = match i {
                0 => (&self.pre, &self.x, Groups::NONE),
                _ => (&self.values, &self.errors, Groups::of(ends)),
            };
            let mut layout = ScratchLayout::default();
            let part = layout.part::<V>(2 * windows * d);
            let mut scratch: Scratch = layout.alloc(op, gpu)?;
            let rows_at = gpu.to_read(rows);
            let side = side_by_side(WIDE, d, size_of::<V>(), &[rows_at.at]);
            let (per, most) = match (side, d) {
                (WIDE, ..=4096) => (1, 512),
                (WIDE, ..=8192) => (2, 512),
                (WIDE, _) => (8, 1024),
                (_, ..=1024) => (1, 1024),
                _ => (64, 1024),
            };
            if d > per * side * most {
                candle::bail!("{op}: on a GPU rows have at most {} values, got {d}", per * side * most)
            }
            let (form, threads) = (format!("{side}_{per}"), threads(d, side * per, most));
            let mut partial = scratch.view_mut(part);
            let launch = gpu.launch(op, FILE, &format!("parts_{}_{form}", suffix::<T>()))?;
            let launch = launch.write(&mut partial).read(&self.offsets).read(&self.entries).read(weights);
            let launch = launch.read(rows).num(groups).count(n).count(s).count(batch).count(d);
            // SAFETY: (V*, 2 x const unsigned*, const V*, const T*, Groups, 4 x unsigned): two rows
            // of d a window, the lists of `AtomUses`, places below the number of weights, and rows
            // of d for a batch, or for each group and each other block of it, checked by
            // `LatentGradients::sizes`.
            unsafe { launch.blocks(2 * windows, threads).go() }?;
            let partial = scratch.view(part);
            let [offsets, entries] = [&self.offsets, &self.entries].map(|list| gpu.to_read(list));
            let (weights, partial) = (gpu.to_read(weights), gpu.to_read(&partial));
            let lengths = self.lengths.as_ref().filter(|_| i == 1).map(|lengths| gpu.to_read(lengths));
            let narrow = |n: usize| u32::try_from(n).map_err(candle::Error::wrap);
            let sums = Sums {
                offsets: offsets.at,
                entries: entries.at,
                weights: weights.at,
                rows: rows_at.at,
                partial: partial.at,
                lengths: lengths.as_ref().map_or(0, |lengths| lengths.at),
                n: narrow(n)?,
                s: narrow(s)?,
                batch: narrow(batch)?,
                d: narrow(d)?,
                unit: u32::from(unit && i == 1),
                groups,
            };
            let used = [offsets, entries, weights, partial, rows_at].into_iter().chain(lengths).collect();
            each(i, &Half { sums, form, threads, _used: used })?;
        }
        Ok(())
    }
}

impl Gradients {
    pub(super) fn launch<T: Number, V: Number>(&self, gpu: &Gpu, io: Io<'_, CudaStorage>) -> Result<()> {
        let (outs, [a, b, c, d, e, f, g, decoder]) = io.parts::<2, 8>()?;
        let lists = Lists::<T, V>::of([a, b, c, d, e, f, g])?;
        let decoder = decoder.elements::<V>()?;
        let mut outs = outs.map(Some);
        lists.halves("latent_gradients", gpu, &self.0, |i, half| {
            let Some(out) = outs.get_mut(i).and_then(Option::take) else { return Ok(()) };
            let mut out = out.elements::<V>()?;
            let kernel = format!("gradients_{}_{}", suffix::<T>(), half.form);
            let decoder = (i == 1).then(|| decoder.slice(..));
            let launch = gpu.launch("latent_gradients", FILE, &kernel)?.write(&mut out).maybe(&decoder);
            // SAFETY: (V*, const V* or null, Sums): [n, d] twice, checked by `latent_gradients`,
            // and what `halves` made; a block a latent, whose threads cover d.
            unsafe { launch.num(half.sums).blocks(self.0.n, half.threads).go() }
        })
    }
}

impl Step {
    pub(super) fn launch<T: Number>(&self, gpu: &Gpu, io: Io<'_, CudaStorage>) -> Result<()> {
        let (states, halves, [a, b, c, d, e, f, g, scalars, steps]) = self.parts(io)?;
        let lists = Lists::<T, f32>::of([a, b, c, d, e, f, g])?;
        let (scalars, steps) = (scalars.elements::<f32>()?, steps.elements::<i64>()?);
        let mut states = states.map(Some);
        let mut halves = match halves {
            Some(halves) => halves.map(Some),
            None => [None, None],
        };
        lists.halves("latent_step_", gpu, &self.sizes, |i, half| {
            let Some(state) = states.get_mut(i).and_then(Option::take) else { return Ok(()) };
            let mut state = state.elements::<f32>()?;
            let copy = halves.get_mut(i).and_then(Option::take);
            let mut copy = copy.map(|copy| copy.elements::<half::bf16>()).transpose()?;
            let kernel = format!("step_{}_{}", suffix::<T>(), half.form);
            let launch = gpu.launch("latent_step_", FILE, &kernel)?.write(&mut state).maybe_write(&mut copy);
            let launch = launch.num(half.sums).read(&scalars).read(&steps).num(self.rule);
            // SAFETY: (float*, bf16* or null, Sums, const float*, const long long*, AdamRule):
            // [3, n, d] and [n, d], two numbers and one, checked by `latent_step_`, and what
            // `halves` made; a block a latent, whose threads cover d.
            unsafe { launch.blocks(self.sizes.n, half.threads).go() }
        })
    }
}
