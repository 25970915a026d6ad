//! The launches of `kernels/codes/latent_select.cu`.
use super::super::types::{Number, suffix};
use super::keep::Keep;
use super::{ListActive, Threshold, TopK};
use crate::core::cuda::{Gpu, Launch, ScratchLayout};
use crate::core::op::Io;
use candle::{CudaStorage, Result};

const FILE: &str = "latent_select";
/// Warps of a block, each with a row.
const WARPS: usize = 8;
/// Blocks of a multiprocessor, which go through the rows.
const BLOCKS: usize = 8;
/// Shared memory of what a block of `top_k` holds, at most: two blocks go onto a multiprocessor of
/// every GPU.
const SHARED: usize = 48 << 10;
/// Bits of the digits of a key, from the highest: those of the first are counted in shared memory.
const DIGITS_32: [u32; 3] = [14, 9, 8];
const DIGITS_64: [u32; 5] = [14, 13, 12, 12, 12];

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
        // What a warp holds: `cut` of the kernel leaves k and a quarter of max(k, 64) at most, then
        // a step adds 512.
        let most = (k + k.max(64) + 512).next_multiple_of(4);
        let bytes = most * (size_of::<V>() + size_of::<u32>());
        let warps = (SHARED / bytes).min(WARPS);
        let (threads, blocks) = match warps {
            0 => (32 * WARPS, gpu.limits().multiprocessors),
            _ => (32 * warps, BLOCKS * gpu.limits().multiprocessors),
        };
        let blocks = m.div_ceil(threads / 32).min(blocks);
        let mut layout = ScratchLayout::default();
        let part = (warps == 0).then(|| layout.part::<u8>(blocks * WARPS * bytes));
        let mut scratch =
            part.map(|part| Ok::<_, candle::Error>((layout.alloc("top_k", gpu)?, part))).transpose()?;
        let mut room = scratch.as_mut().map(|(scratch, part)| scratch.view_mut(*part));
        let launch = gpu.launch("top_k", FILE, &format!("top_k_{}", suffix::<T>()))?;
        let launch = launch.write(&mut indices).write(&mut values).write(&mut count);
        let launch = launch.read(&pre).read(&bias).maybe(&among).maybe_write(&mut room);
        let launch = launch.num(m).count(n).count(n_among).count(k).count(most);
        // SAFETY: (unsigned*, V*, unsigned*, const T*, const V*, const unsigned* or null, unsigned
        // char* or null, size_t, 4 x unsigned): [m, k] twice, [m], [m, n] and [n], checked by
        // `top_k`; each warp holds `most` entries, in shared memory or in `room`, which has that
        // for every warp of the grid; an entry of `among` that is not below n is passed over.
        unsafe { launch.blocks(blocks, threads as u32).shared(warps * bytes).go() }
    }
}

impl ListActive {
    pub(super) fn launch<T: Number, V: Number>(&self, gpu: &Gpu, io: Io<'_, CudaStorage>) -> Result<()> {
        let &Self { n, or_equal, width, .. } = self;
        let ([indices, values, count], [pre, bias, bound]) = io.parts()?;
        let (mut indices, mut values) = (indices.elements::<u32>()?, values.elements::<V>()?);
        let (mut count, pre) = (count.elements::<u32>()?, pre.elements::<T>()?);
        let (bias, bound) = (bias.elements::<V>()?, bound.elements::<V>()?);
        let m = count.len();
        let launch = gpu.launch("active", FILE, &format!("list_active_{}", suffix::<T>()))?;
        let launch = launch.write(&mut indices).write(&mut values).write(&mut count);
        let launch = launch.read(&pre).read(&bias).read(&bound);
        let launch = launch.num(m).count(n).count(bound.len()).num(u32::from(or_equal)).count(width);
        // SAFETY: (unsigned*, V*, unsigned*, const T*, 2 x const V*, size_t, 4 x unsigned): [m,
        // width] twice, [m], [m, n], [n] and a bound or n of them, checked by `active`; what does not
        // fit into a row is not written.
        unsafe { rows(gpu, launch, m).go() }
    }
}

impl Keep {
    pub(super) fn launch<V: Number>(&self, gpu: &Gpu, io: Io<'_, CudaStorage>) -> Result<()> {
        let &Self { s, start, end, .. } = self;
        let ([to_indices, to_values, to_count], [indices, values, count, bound]) = io.parts()?;
        let (mut to_indices, mut to_values) = (to_indices.elements::<u32>()?, to_values.elements::<V>()?);
        let mut to_count = to_count.elements::<u32>()?;
        let (indices, values) = (indices.elements::<u32>()?, values.elements::<V>()?);
        let (count, bound) = (count.elements::<u32>()?, bound.maybe::<V>()?);
        let m = count.len();
        let launch = gpu.launch("keep", FILE, &format!("keep_{}", suffix::<V>()))?;
        let launch = launch.write(&mut to_indices).write(&mut to_values).write(&mut to_count);
        let launch = launch.read(&indices).read(&values).read(&count).maybe(&bound);
        let launch = launch.num(m).count(s).count(start).count(end);
        // SAFETY: (unsigned*, V*, unsigned*, const unsigned*, const V*, const unsigned*, const V* or
        // null, size_t, 3 x unsigned): codes of [m, s] and their counts twice, and one bound,
        // checked by `keep`; a warp for each row.
        unsafe { launch.blocks(m.div_ceil(WARPS), 32 * WARPS as u32).go() }
    }
}

impl Threshold {
    pub(super) fn launch<T: Number, V: Number>(&self, gpu: &Gpu, io: Io<'_, CudaStorage>) -> Result<()> {
        const OP: &str = "batch_threshold";
        let &Self { n, count, is_coarse, .. } = self;
        let ([out], [pre, bias]) = io.parts()?;
        let (mut out, pre, bias) = (out.elements::<V>()?, pre.elements::<T>()?, bias.maybe::<V>()?);
        let m = pre.len() / n;
        if u32::try_from(pre.len()).is_err() {
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
            let launch = launch.num(search.address(all.at)).num(m).count(n).num(shift).num(bits).num(first);
            let blocks = 2 * gpu.limits().multiprocessors;
            let launch = launch.blocks(m.div_ceil(32).min(blocks), 1024);
            let shared = if pass == 0 { 4 << bits } else { 0 };
            // SAFETY: (unsigned*, const T*, const V* or null, const Search*, size_t, 4 x unsigned): a count
            // of each digit, [m, n] and [n], checked by `batch_threshold`, and three numbers; those
            // of the first digit fit into shared memory as well.
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
