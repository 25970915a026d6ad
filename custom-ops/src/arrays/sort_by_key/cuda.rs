//! The launches of `kernels/arrays/sort_by_key.cu`.
use super::{Form, SMALL_WARPS, Sort, TILE, WARPS};
use crate::arrays::prefix_sum::scan;
use crate::core::cuda::{Gpu, Part, Scratch, ScratchLayout};
use crate::core::op::Io;
use candle::cuda::cudarc::driver::{CudaView, CudaViewMut};
use candle::{CudaStorage, Result};

const FILE: &str = "sort_by_key";
/// Entries up to which tiles are a quarter as long.
const FEW: usize = 1 << 20;
/// Threads of both kinds of blocks.
const SMALL_THREADS: u32 = 32 * SMALL_WARPS as u32;
const THREADS: u32 = 32 * WARPS as u32;

/// Scratch for so many numbers, in an allocation of its own: one is written while another is read.
struct Room {
    scratch: Scratch,
    part: Part<u32>,
}

impl Room {
    fn new(op: &'static str, gpu: &Gpu, len: usize) -> Result<Self> {
        let mut layout = ScratchLayout::default();
        let part = layout.part(len);
        Ok(Self { scratch: layout.alloc(op, gpu)?, part })
    }

    fn read(&self) -> CudaView<'_, u8> {
        self.scratch.view(self.part)
    }

    fn write(&mut self) -> CudaViewMut<'_, u8> {
        self.scratch.view_mut(self.part)
    }
}

impl Sort<'_> {
    pub(super) fn launch(&self, gpu: &Gpu, io: Io<'_, CudaStorage>) -> Result<()> {
        gpu.not_recording(self.op)?;
        let ([offsets, order], [keys, count]) = io.parts()?;
        let (mut offsets, mut order) = (offsets.elements::<u32>()?, order.elements::<u32>()?);
        let (keys, count) = (keys.elements::<u32>()?, count.maybe::<u32>()?);
        match Form::of(keys.len(), self.n_keys) {
            Form::Small { shared_bytes } => {
                let (op, n, width) = (self.op, keys.len(), self.width());
                let launch = gpu.launch(op, FILE, "sort_small")?.write(&mut offsets).write(&mut order);
                let launch = launch.read(&keys).maybe(&count).count(n).count(width).count(self.n_keys);
                // SAFETY: (2 × unsigned*, const unsigned*, const unsigned* or null, 3 × unsigned):
                // n_keys + 1 offsets and n entries by `Sort::run`, a count for each row of `width`
                // by whoever made the sort; one block, with a count of each key and warp.
                unsafe { launch.blocks(1, SMALL_THREADS).shared(shared_bytes).go() }
            }
            Form::Digits { passes, bits, shared_bytes } => {
                self.by_digits(gpu, (&mut offsets, &mut order), (&keys, &count), [passes, bits], shared_bytes)
            }
        }
    }

    fn width(&self) -> usize {
        self.rows.map_or(1, |(_, width)| width.max(1))
    }

    fn by_digits(
        &self,
        gpu: &Gpu,
        (offsets, order): (&mut CudaViewMut<'_, u32>, &mut CudaViewMut<'_, u32>),
        (keys, count): (&CudaView<'_, u32>, &Option<CudaView<'_, u32>>),
        [passes, bits]: [u32; 2],
        shared_bytes: usize,
    ) -> Result<()> {
        let (op, n, n_keys) = (self.op, keys.len(), self.n_keys);
        // Few entries are cut into more tiles, so that there are some for every multiprocessor.
        let stretch = if n <= FEW { TILE / WARPS / 4 } else { TILE / WARPS };
        let tiles = n.div_ceil(WARPS * stretch).max(1);
        let mut table = Room::new(op, gpu, tiles << bits)?;
        // Numbers of 64 bits: how many entries are there, as the first pass counts them and as
        // later ones do again.
        let (mut present, mut again) = (Room::new(op, gpu, 2)?, Room::new(op, gpu, 2)?);
        // What one pass writes and the next one reads.
        let between = if passes > 1 { n } else { 1 };
        let mut sorted = [Room::new(op, gpu, between)?, Room::new(op, gpu, between)?];
        let mut places = [Room::new(op, gpu, between)?, Room::new(op, gpu, between)?];
        for pass in 0..passes {
            let (first, last, shift) = (pass == 0, pass + 1 == passes, pass * bits);
            let [even_keys, odd_keys] = &mut sorted;
            let [even_places, odd_places] = &mut places;
            let ((to_keys, from_keys), (to_places, from_places)) = match pass % 2 {
                0 => ((even_keys, odd_keys), (even_places, odd_places)),
                _ => ((odd_keys, even_keys), (odd_places, even_places)),
            };
            let (from_keys, from_places) = (from_keys.read(), (!first).then(|| from_places.read()));
            let rows = if first { count } else { &None };

            {
                let there = (!first).then(|| present.read());
                let mut table = table.write();
                let launch = gpu.launch(op, FILE, "tally")?.write(&mut table);
                let launch = if first { launch.read(keys) } else { launch.read(&from_keys) };
                let launch = launch.maybe(rows).maybe(&there).count(n).count(self.width()).count(n_keys);
                let launch = launch.num(shift).num(bits).count(stretch);
                let launch = launch.blocks(tiles, THREADS).shared(4 << bits);
                // SAFETY: (unsigned*, const unsigned*, const unsigned* or null, const long long* or
                // null, 6 × unsigned): a count of each digit and tile; n keys, or as many as the
                // first pass found.
                unsafe { launch.go() }?;
            }
            let total = if first { &mut present } else { &mut again };
            scan::<u8>(op, gpu, &mut table.write(), None, &mut total.write(), tiles << bits)?;

            let (table, there) = (table.read(), (!first).then(|| present.read()));
            let (mut to_keys, mut to_places) = ((passes > 1).then(|| to_keys.write()), to_places.write());
            let launch = gpu.launch(op, FILE, "scatter")?;
            let launch = if last { launch.write(order) } else { launch.write(&mut to_places) };
            let launch = launch.maybe_write(&mut to_keys).read(&table);
            let launch = if first { launch.read(keys) } else { launch.read(&from_keys) };
            let launch = launch.maybe(&from_places).maybe(rows).maybe(&there);
            let launch =
                launch.count(n).count(self.width()).count(n_keys).num(shift).num(bits).count(stretch);
            // SAFETY: (unsigned*, unsigned* or null, 2 × const unsigned*, 2 × const unsigned* or
            // null, const long long* or null, 6 × unsigned): places below the number of entries
            // that are there, at most n.
            unsafe { launch.blocks(tiles, THREADS).shared(shared_bytes).go() }?;
        }

        let [even_keys, odd_keys] = &sorted;
        let sorted = (passes > 1).then(|| if passes % 2 == 1 { even_keys.read() } else { odd_keys.read() });
        let (table, present) = (table.read(), present.read());
        let launch = gpu.launch(op, FILE, "starts")?.write(offsets).write(order).maybe(&sorted);
        let launch = launch.read(&table).read(&present).count(n).count(n_keys).count(tiles);
        // SAFETY: (2 × unsigned*, const unsigned* or null, const unsigned*, const long long*, 3 ×
        // unsigned): n_keys + 1 offsets and n entries; with one pass the table has a row for each
        // key.
        unsafe { launch.linear((n_keys + 1).max(n)).go() }
    }
}
