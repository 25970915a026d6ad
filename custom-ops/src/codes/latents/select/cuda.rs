//! The launches of `kernels/codes/latent_select.cu`.
use super::super::types::{Number, suffix};
use super::keep::Keep;
use super::{ListActive, Rank, Threshold, TopK};
use crate::core::cuda::{Gpu, Launch, Part, Scratch, ScratchLayout};
use crate::core::op::Io;
use candle::cuda::cudarc::driver::CudaView;
use candle::{CudaStorage, Result};

const FILE: &str = "latent_select";
/// Warps of a block, each with a row.
const WARPS: usize = 8;
/// Entries beside the k largest that a warp holds at least, `MORE` of the kernels.
const MORE: usize = 96;
/// Blocks of a multiprocessor, which go through the rows.
const BLOCKS: usize = 8;
/// Shared memory of what a block of `top_k` holds, at most: two blocks go onto a multiprocessor of
/// every GPU.
const SHARED: usize = 48 << 10;
/// Bits of the digits of a key, from the highest: those of the first are counted in shared memory.
const DIGITS_32: [u32; 3] = [14, 9, 8];
const DIGITS_64: [u32; 5] = [14, 13, 12, 12, 12];

/// Latents that a warp takes at a time, `STEP` of the kernels.
const STEP: usize = 256;

/// Latents that a warp of `threshold_tally` takes at a time, `PART` of the kernels.
const PART: usize = 8 * STEP;

/// The layout of what `slacks` writes: twice a number for each step of latents.
fn slack_parts<V>(layout: &mut ScratchLayout, n: usize) -> [Part<V>; 2] {
    [layout.part(n.div_ceil(STEP)), layout.part(n.div_ceil(STEP))]
}

/// Writes, for each step of latents, what `bound − bias` is at least, the bound 0 where there is
/// one, and the least bias.
fn write_slacks<V: Number>(
    op: &'static str,
    gpu: &Gpu,
    scratch: &mut Scratch,
    [slack, dips]: [Part<V>; 2],
    bias: &CudaView<'_, V>,
    bound: Option<&CudaView<'_, V>>,
) -> Result<()> {
    let (n, bounds) = (bias.len(), bound.map_or(1, |bound| bound.len()));
    // The two parts are reached through one buffer, since both are written.
    let mut all = scratch.all();
    let all = gpu.to_write(&mut all);
    let launch = gpu.launch(op, FILE, &format!("slacks_{}", suffix::<V>()))?;
    let launch = launch.num(slack.address(all.at)).num(dips.address(all.at)).read(bias);
    let bound = bound.map(|bound| bound.slice(..));
    let launch = launch.maybe(&bound).count(bounds).count(n);
    // SAFETY: (V*, V*, const V*, const V* or null, 2 x unsigned): twice a number a step, [n], and
    // [n] unless there is one bound, which is not read; a warp a step.
    unsafe { launch.blocks(n.div_ceil(STEP).div_ceil(WARPS), 32 * WARPS as u32).go() }
}

/// A warp for each row, in blocks that go through `m` rows.
fn rows<'a>(gpu: &Gpu, launch: Launch<'a>, m: usize) -> Launch<'a> {
    launch.blocks(m.div_ceil(WARPS).min(BLOCKS * gpu.limits().multiprocessors), 32 * WARPS as u32)
}

impl TopK {
    pub(super) fn launch<T: Number, V: Number>(&self, gpu: &Gpu, io: Io<'_, CudaStorage>) -> Result<()> {
        let &Self { n, k, .. } = self;
        let ([indices, values, count], [pre, bias, among]) = io.parts()?;
        let (mut indices, mut values) = (indices.elements::<u32>()?, values.elements::<V>()?);
        let mut count = count.elements::<u32>()?;
        let (pre, bias) = (pre.elements::<T>()?, bias.elements::<V>()?);
        let among = among.maybe::<u32>()?;
        let (m, n_among) = (count.len(), among.as_ref().map_or(0, |among| among.len()));
        // What a warp holds: `cut` of the kernel leaves k + max(k, MORE) at most, then
        // a step is added.
        let most = (k + k.max(MORE) + STEP).next_multiple_of(4);
        let bytes = most * (size_of::<V>() + size_of::<u32>());
        let warps = (SHARED / bytes).min(WARPS);
        let (threads, blocks) = match warps {
            0 => (32 * WARPS, gpu.limits().multiprocessors),
            _ => (32 * warps, BLOCKS * gpu.limits().multiprocessors),
        };
        let blocks = m.div_ceil(threads / 32).min(blocks);
        let mut layout = ScratchLayout::default();
        let slacks = among.is_none().then(|| slack_parts::<V>(&mut layout, n));
        let room = (warps == 0).then(|| layout.part::<u8>(blocks * WARPS * bytes));
        let mut scratch = layout.alloc("top_k", gpu)?;
        if let Some(slacks) = slacks {
            write_slacks("top_k", gpu, &mut scratch, slacks, &bias, None)?;
        }
        // The two parts are reached through one buffer, since one is written.
        let mut all = scratch.all();
        let all = gpu.to_write(&mut all);
        let launch = gpu.launch("top_k", FILE, &format!("top_k_{}", suffix::<T>()))?;
        let launch = launch.write(&mut indices).write(&mut values).write(&mut count);
        let launch = launch.read(&pre).read(&bias).maybe(&among);
        let at = |i: usize| slacks.map_or(0, |slacks| slacks[i].address(all.at));
        let launch = launch.num(at(0)).num(at(1));
        let launch = launch.num(room.map_or(0, |room| room.address(all.at)));
        let launch = launch.num(m).count(n).count(n_among).count(k).count(most);
        // SAFETY: (unsigned*, V*, unsigned*, const T*, const V*, const unsigned* or null, 2 x const
        // V* or null, unsigned char* or null, size_t, 4 x unsigned): [m, k] twice, [m], [m, n] and
        // [n], checked by `top_k`, and two numbers a step where all latents are meant; each warp
        // holds `most` entries, in shared memory or in `room`, which has that for every warp of the
        // grid; an entry of `among` that is not below n is passed over.
        unsafe { launch.blocks(blocks, threads as u32).shared(warps * bytes).go() }
    }
}

impl ListActive {
    pub(super) fn launch<T: Number, V: Number>(&self, gpu: &Gpu, io: Io<'_, CudaStorage>) -> Result<()> {
        let &Self { n, or_equal, width, .. } = self;
        let ([indices, values, count, told], [pre, bias, bound]) = io.parts()?;
        let (mut indices, mut values) = (indices.elements::<u32>()?, values.elements::<V>()?);
        let (mut count, pre) = (count.elements::<u32>()?, pre.elements::<T>()?);
        let (bias, bound) = (bias.elements::<V>()?, bound.elements::<V>()?);
        let (m, mut told) = (count.len(), told.elements::<u32>()?);
        let mut layout = ScratchLayout::default();
        let slacks = slack_parts::<V>(&mut layout, n);
        let mut scratch = layout.alloc("active", gpu)?;
        write_slacks("active", gpu, &mut scratch, slacks, &bias, Some(&bound))?;
        let slack = scratch.view(slacks[0]);
        let launch = gpu.launch("active", FILE, &format!("list_active_{}", suffix::<T>()))?;
        let launch = launch.write(&mut indices).write(&mut values).write(&mut count).write(&mut told);
        let launch = launch.read(&pre).read(&bias).read(&bound).read(&slack);
        let launch = launch.num(m).count(n).count(bound.len()).num(u32::from(or_equal)).count(width);
        // SAFETY: (unsigned*, V*, 2 x unsigned*, const T*, 3 x const V*, size_t, 4 x unsigned): [m,
        // width] twice, [m], two numbers, [m, n], [n], and a bound or n of them, checked by
        // `active`, and a slack a step; what does not fit into a row is not written.
        unsafe { rows(gpu, launch, m).go() }
    }
}

impl Keep {
    pub(super) fn launch<V: Number>(&self, gpu: &Gpu, io: Io<'_, CudaStorage>) -> Result<()> {
        let &Self { s, width, .. } = self;
        let ([to_indices, to_values, to_count, told], [indices, values, count, bound]) = io.parts()?;
        let (mut to_indices, mut to_values) = (to_indices.elements::<u32>()?, to_values.elements::<V>()?);
        let (mut to_count, mut told) = (to_count.elements::<u32>()?, told.elements::<u32>()?);
        let (indices, values) = (indices.elements::<u32>()?, values.elements::<V>()?);
        let (count, bound) = (count.elements::<u32>()?, bound.elements::<V>()?);
        let m = count.len();
        let launch = gpu.launch("keep", FILE, &format!("keep_{}", suffix::<V>()))?;
        let launch = launch.write(&mut to_indices).write(&mut to_values).write(&mut to_count);
        let launch = launch.write(&mut told).read(&indices).read(&values).read(&count).read(&bound);
        let launch = launch.num(m).count(s).count(width);
        // SAFETY: (unsigned*, V*, 2 x unsigned*, const unsigned*, const V*, const unsigned*, const
        // V*, size_t, 2 x unsigned): codes of [m, width], two numbers, codes of [m, s], and one
        // bound, checked by `keep`; a warp for each row; what does not fit into a row is not
        // written.
        unsafe { launch.blocks(m.div_ceil(WARPS), 32 * WARPS as u32).go() }
    }
}

impl Threshold {
    pub(super) fn launch<T: Number, V: Number>(&self, gpu: &Gpu, io: Io<'_, CudaStorage>) -> Result<()> {
        const OP: &str = "batch_threshold";
        let Self { n, rank: Rank { count, every, is_coarse }, .. } = *self;
        let ([out], [pre, bias]) = io.parts()?;
        let (mut out, pre, bias) = (out.elements::<V>()?, pre.elements::<T>()?, bias.maybe::<V>()?);
        let m = (pre.len() / n).div_ceil(every);
        if u32::try_from(m * n).is_err() {
            candle::bail!("{OP}: there must be fewer than 2^32 pre-activations, got {m} rows of {n}")
        }
        let (digits, wide): (&[u32], _) =
            if size_of::<V>() == 8 { (&DIGITS_64, "f64") } else { (&DIGITS_32, "f32") };
        let most = digits.iter().copied().max().unwrap_or(0);
        let mut layout = ScratchLayout::default();
        let (tally, search) = (layout.part::<u32>(1 << most), layout.part::<u64>(3));
        let mut scratch = layout.alloc_zeros(OP, gpu)?;
        let mut shift: u32 = digits.iter().sum();
        let passes = if is_coarse { 1 } else { digits.len() };
        for (pass, &bits) in digits.iter().take(passes).enumerate() {
            shift -= bits;
            let first = u32::from(pass == 0);
            // The two parts are reached through one buffer, since both are written.
            let mut all = scratch.all();
            let all = gpu.to_write(&mut all);
            let launch = gpu.launch(OP, FILE, &format!("threshold_tally_{}", suffix::<T>()))?;
            let launch = launch.num(tally.address(all.at)).read(&pre).maybe(&bias);
            let launch = launch.num(search.address(all.at)).num(m).count(every).count(n);
            let launch = launch.num(shift).num(bits).num(first);
            let blocks = 2 * gpu.limits().multiprocessors;
            let warps = m * n.div_ceil(PART);
            let launch = launch.blocks(warps.div_ceil(32).min(blocks), 1024);
            let shared = if pass == 0 { 4 << bits } else { 0 };
            // SAFETY: (unsigned*, const T*, const V* or null, const Search*, size_t, 5 x unsigned):
            // a count of each digit, m rows of n, one of so many, and [n], checked by
            // `batch_threshold`, and three numbers; those of the first digit fit into shared memory
            // as well.
            unsafe { launch.shared(shared).go() }?;
            let launch = gpu.launch(OP, FILE, &format!("threshold_pick_{wide}"))?;
            let launch = launch.num(tally.address(all.at)).num(search.address(all.at)).write(&mut out);
            let launch = launch.num(count as u64).num(shift).num(bits).num(first);
            let launch = launch.num(u32::from(pass + 1 == passes));
            // SAFETY: (unsigned*, Search*, V*, unsigned long long, 4 x unsigned): as above, and one
            // number for the result; one block of 1024.
            unsafe { launch.blocks(1, 1024).go() }?;
        }
        Ok(())
    }
}
