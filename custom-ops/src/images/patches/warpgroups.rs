//! The choice of the form of `kernels/images/sm_90a/patch_units.cu` for a product.
use super::grid::PatchGrid;
use super::shape::Rows;
use super::sizes::{PatchDirection, Sizes};
use crate::core::limits::Limits;
use crate::layers::products::warpgroup_shape::{Shape, depth};
use crate::layers::units::Unit;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::{LazyLock, Mutex, PoisonError};

/// Columns of a block of the weights down, and values of a cell of which a tile takes two.
const BLOCK: usize = 64;

/// Most tiles that [`Order`] puts in order, and that many times the multiprocessors are worth a
/// plan.
const ORDERED: usize = 1022;
const ROUNDS: usize = 4;

/// Plans down that were chosen before, by what they are for: a choice takes 40 to 60 µs, as long as
/// four launches.
static CHOSEN: LazyLock<Mutex<HashMap<Asked, WarpgroupTile>>> = LazyLock::new(Mutex::default);
/// The GPU, the grid, hidden units of a patch, rows and parts.
type Asked = (Limits, PatchGrid, usize, usize, [usize; 2]);

/// `Order` of the kernel, in its order.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct Order {
    count: u32,
    tile: [u16; ORDERED],
}
#[cfg(feature = "cuda")]
// SAFETY: a number of 32 bits and then an even number of 16 bits, without padding, the same layout
// as the kernel's struct.
unsafe impl candle::cuda::cudarc::driver::DeviceRepr for Order {}

/// A shape of tile that the kernel was compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct WarpgroupTile {
    pub shape: Shape,
    /// Of the minibatch and of the weights.
    parts: [usize; 2],
    direction: PatchDirection,
    /// Whether a tile down takes two neighbouring cells.
    pairs: bool,
    /// Whether a block takes tiles up one after the other.
    follow: bool,
    /// Whether tiles down begin with those of the most patches.
    sorted: bool,
    multiprocessors: usize,
    /// Of a sum, at most.
    terms: usize,
}

impl WarpgroupTile {
    /// The one for a product; none where the kernel cannot take it.
    pub(super) fn of(
        limits: Limits,
        sizes: &Sizes,
        parts: [usize; 2],
        direction: PatchDirection,
        unit: Unit,
    ) -> Option<Self> {
        // Slices go through the hidden units of a patch, and tiles must not go beyond one.
        let known = limits.has_warpgroup_products()
            && sizes.hidden.is_multiple_of(BLOCK)
            && sizes.grid.has_boxed_windows();
        if !known {
            return None;
        }
        let at_once = limits.multiprocessors;
        let rows = Rows::of(sizes.batch);
        let down = sizes.batch.div_ceil(64 * rows.warpgroups());
        let of = |columns, cluster, pairs, sorted| {
            let shape = Shape { warpgroups: rows.warpgroups(), columns, cluster };
            let overlap = sizes.grid.overlap();
            let terms = match direction {
                PatchDirection::Up => sizes.grid.window_len(),
                // Two cells meet the windows of one more; blocks of a cluster may have more than
                // their share.
                PatchDirection::Down => cluster * sizes.hidden * overlap * (overlap + 1),
            };
            // Finished from registers: the code of one kind of unit is long enough.
            let follow = direction == PatchDirection::Up && parts == [1, 1] && unit == Unit::Bernoulli;
            Self { shape, parts, direction, pairs, follow, sorted, multiprocessors: at_once, terms }
        };
        let tile = match direction {
            PatchDirection::Up => {
                let widths: &[usize] = if parts[1] == 1 { &[192, 128, 64] } else { &[96, 64] };
                // Broad tiles read less, where there are enough of them for all multiprocessors.
                let broad = of(least(sizes.hidden, widths), 1, false, false);
                if broad.across(sizes) * down >= at_once { broad } else { of(BLOCK, 1, false, false) }
            }
            PatchDirection::Down => {
                let plan = |cluster, sorted| of(2 * BLOCK, cluster, sizes.grid.cell_len() == BLOCK, sorted);
                let simple = plan(1, false);
                // With more tiles all multiprocessors end at nearly the same time anyhow.
                if simple.across(sizes) * down > (ROUNDS * at_once).min(ORDERED) {
                    simple
                } else {
                    simple.or_faster([plan(1, true), plan(2, false), plan(2, true)], limits, sizes)
                }
            }
        };
        // Half a kilobyte is for barriers.
        (tile.shared_bytes() + 512 <= limits.shared_bytes).then_some(tile)
    }

    /// This plan down, or one of `others` that is clearly faster: neighbours that run together
    /// share what they read.
    fn or_faster(self, others: [Self; 3], limits: Limits, sizes: &Sizes) -> Self {
        let asked = (limits, sizes.grid, sizes.hidden, sizes.batch, self.parts);
        // A poisoned lock means that another thread panicked in here; the map is valid at every
        // point.
        let mut chosen = CHOSEN.lock().unwrap_or_else(PoisonError::into_inner);
        *chosen.entry(asked).or_insert_with(|| {
            let met = self.met(sizes);
            let timed = others.map(|plan| (plan.k_blocks(sizes, &met), plan));
            let faster = |a: (usize, Self), b: (usize, Self)| if 10 * b.0 < 9 * a.0 { b } else { a };
            timed.into_iter().fold((self.k_blocks(sizes, &met), self), faster).1
        })
    }

    /// The kernel for operands of this type.
    pub(super) fn kernel(&self, dtype: &str) -> String {
        let Shape { warpgroups, columns, .. } = self.shape;
        let name = match self.direction {
            PatchDirection::Up if self.follow => "states_up",
            PatchDirection::Up => "up",
            PatchDirection::Down if self.pairs => "down_pairs",
            PatchDirection::Down => "down",
        };
        let parts = if self.parts[1] == 2 { "x2" } else { "" };
        format!("patch_{name}_{dtype}{parts}_{warpgroups}x{columns}")
    }

    /// Tiles for all columns.
    fn across(&self, sizes: &Sizes) -> usize {
        let (g, columns) = (&sizes.grid, self.shape.columns);
        match (self.direction, self.pairs) {
            (PatchDirection::Up, _) => g.n_patches() * sizes.hidden.div_ceil(columns),
            (PatchDirection::Down, false) => {
                g.cell_lines() * g.cells_across() * g.cell_len().div_ceil(columns)
            }
            (PatchDirection::Down, true) => g.cell_lines() * g.cells_across().div_ceil(2),
        }
    }

    /// Blocks for all columns and rows.
    pub(super) fn blocks(&self, sizes: &Sizes) -> [usize; 3] {
        let (across, down) = (self.across(sizes), sizes.batch.div_ceil(self.shape.rows()));
        let at_once = if self.follow { (self.multiprocessors / down).max(1) } else { across };
        [self.shape.cluster * across.min(at_once), down, 1]
    }

    /// Patches that meet each tile down.
    fn met(&self, sizes: &Sizes) -> Vec<usize> {
        let g = &sizes.grid;
        let (lines, cells) = (g.cell_lines() / g.planes, g.cells_across());
        let meet = |first: usize, last: usize, patches: usize| {
            last.min(patches - 1) + 1 - first.saturating_sub(g.overlap() - 1)
        };
        let (of_tile, of_cell) =
            if self.pairs { (2, 1) } else { (1, g.cell_len().div_ceil(self.shape.columns)) };
        let mut met = Vec::with_capacity(self.across(sizes));
        for y in 0..g.cell_lines() {
            for x in (0..cells).step_by(of_tile) {
                let patches = meet(y % lines, y % lines, g.down())
                    * meet(x, (x + of_tile - 1).min(cells - 1), g.across());
                met.extend(std::iter::repeat_n(patches, of_cell));
            }
        }
        met
    }

    /// The order in which blocks take the tiles down.
    pub(super) fn order(&self, sizes: &Sizes) -> Order {
        let mut order = Order { count: 0, tile: [0; ORDERED] };
        if self.sorted {
            let met = self.met(sizes);
            let mut tiles: Vec<_> = (0..met.len()).rev().collect();
            tiles.sort_by_key(|&tile| Reverse(met[tile]));
            order.count = tiles.len() as u32;
            order.tile.iter_mut().zip(tiles).for_each(|(to, tile)| *to = tile as u16);
        }
        order
    }

    /// Slices that follow each other until the tiles down, which meet so many patches each, are
    /// done for all rows of the minibatch.
    fn k_blocks(&self, sizes: &Sizes, met: &[usize]) -> usize {
        // What a tile takes besides, and what blocks that share one take to meet, in the time of a
        // k-block.
        const BESIDES: usize = 4;
        const MEETING: usize = 2;
        let mut met = met.to_vec();
        if self.sorted {
            met.sort_unstable_by_key(|&patches| Reverse(patches));
        }
        let (cluster, rows) = (self.shape.cluster, sizes.batch.div_ceil(self.shape.rows()));
        let mut ends: BinaryHeap<_> =
            std::iter::repeat_n(Reverse(0), (self.multiprocessors / cluster).max(1)).collect();
        for &patches in std::iter::repeat_n(&met, rows).flatten() {
            let of_block = (patches * sizes.hidden / depth(self.parts)).div_ceil(cluster);
            if let Some(mut end) = ends.peek_mut() {
                end.0 += of_block + BESIDES + MEETING * (cluster - 1);
            }
        }
        ends.into_iter().map(|Reverse(end)| end).max().unwrap_or(0)
    }

    /// Lines of the blocks in which the minibatch and the weights are copied.
    pub(super) fn lines(&self) -> [usize; 2] {
        let of_weights = if self.direction == PatchDirection::Up { self.shape.columns } else { BLOCK };
        [self.shape.rows(), of_weights]
    }

    /// Bytes of such a line.
    pub(super) fn line_bytes(&self) -> usize {
        2 * depth(self.parts)
    }

    pub(super) fn shared_bytes(&self) -> usize {
        self.shape.shared_bytes(self.parts, self.terms)
    }
}

/// The width with the fewest columns beyond `across`, the first of these.
fn least(across: usize, widths: &[usize]) -> usize {
    let covered = |&width: &usize| across.div_ceil(width) * width;
    widths.iter().copied().min_by_key(covered).unwrap_or(BLOCK)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::limits::gpus;

    const H200: Limits = gpus::ALL[3];

    fn sizes(side: usize, depth: usize, window: usize, stride: usize, hidden: usize) -> Sizes {
        let grid = PatchGrid { planes: 1, height: side, width: side, depth, window, stride };
        Sizes { grid, hidden, batch: 192 }
    }

    fn tile(sizes: &Sizes, parts: [usize; 2], direction: PatchDirection) -> WarpgroupTile {
        WarpgroupTile::of(H200, sizes, parts, direction, Unit::Bernoulli).unwrap_or_else(|| panic!("none"))
    }

    #[test]
    fn tiles_up_are_those_that_cover_the_units_of_a_patch() {
        let columns = |side, hidden, parts| {
            tile(&sizes(side, 64, 3, 1, hidden), parts, PatchDirection::Up).shape.columns
        };
        let of = |parts| [64, 128, 192, 256, 320, 512].map(|hidden| columns(18, hidden, parts));
        assert_eq!(of([1, 1]), [64, 128, 192, 128, 64, 128]);
        assert_eq!(of([2, 2]), [64, 64, 96, 64, 64, 64]);
        // Nine patches: narrow tiles for more multiprocessors.
        assert_eq!(columns(5, 512, [1, 1]), 64);
    }

    #[test]
    fn a_block_for_each_multiprocessor_takes_tiles_up_of_bernoulli_units_in_one_part() {
        let sizes = sizes(18, 64, 3, 1, 192);
        let of = |parts, unit| {
            let tile = WarpgroupTile::of(H200, &sizes, parts, PatchDirection::Up, unit);
            tile.map(|tile| (tile.kernel("f16"), tile.blocks(&sizes)))
        };
        let follow = ("patch_states_up_f16_3x192".to_owned(), [132, 1, 1]);
        assert_eq!(of([1, 1], Unit::Bernoulli), Some(follow));
        assert_eq!(of([1, 1], Unit::Rectified), Some(("patch_up_f16_3x192".to_owned(), [256, 1, 1])));
        assert_eq!(of([2, 2], Unit::Bernoulli), Some(("patch_up_f16x2_3x96".to_owned(), [512, 1, 1])));
    }

    #[test]
    fn small_cells_go_in_pairs_and_few_tiles_are_shared() {
        let small = sizes(18, 64, 3, 1, 192);
        let pairs = tile(&small, [1, 1], PatchDirection::Down);
        assert_eq!(pairs.kernel("bf16"), "patch_down_pairs_bf16_3x128");
        assert_eq!(pairs.blocks(&small), [18 * 9, 1, 1]);
        let few = sizes(6, 64, 3, 1, 192);
        assert_eq!(tile(&few, [1, 1], PatchDirection::Down).blocks(&few), [2 * 6 * 3, 1, 1]);
        let large = sizes(18, 256, 4, 2, 128);
        let columns = tile(&large, [1, 2], PatchDirection::Down);
        assert_eq!(columns.kernel("f16"), "patch_down_f16x2_3x128");
        assert_eq!(columns.blocks(&large), [81 * 8, 1, 1]);
    }

    #[test]
    fn tiles_of_most_patches_come_first_where_that_is_worth_it_and_each_once() {
        let pairs = sizes(18, 64, 3, 1, 192);
        let tile = |sizes: &Sizes| tile(sizes, [1, 1], PatchDirection::Down);
        let (met, order) = (tile(&pairs).met(&pairs), tile(&pairs).order(&pairs));
        // Pairs at the ends meet two patches in their line, the others four, in three lines, or in
        // one or two at the ends.
        assert_eq!(met.iter().sum::<usize>(), (2 * 2 + 7 * 4) * (3 * 14 + 2 * 2 + 2));
        let mut tiles: Vec<_> = order.tile[..order.count as usize].iter().map(|&t| usize::from(t)).collect();
        assert!(tiles.windows(2).all(|two| met[two[0]] >= met[two[1]]), "{tiles:?}");
        tiles.sort_unstable();
        assert_eq!(tiles, (0..met.len()).collect::<Vec<_>>());
        for many in [sizes(24, 64, 3, 1, 192), sizes(66, 64, 3, 1, 64)] {
            assert_eq!(tile(&many).order(&many).count, 0, "without a plan");
        }
        let columns = sizes(18, 256, 4, 2, 128);
        // Each of 8 x 8 patches meets 2 x 2 cells of eight tiles.
        assert_eq!(tile(&columns).met(&columns).iter().sum::<usize>(), 8 * 8 * 2 * 2 * 8);
    }

    #[test]
    fn grids_without_boxed_windows_units_that_do_not_fill_k_blocks_and_other_gpus_have_none() {
        let of = |limits, (side, depth, window, stride), hidden| {
            let sizes = sizes(side, depth, window, stride, hidden);
            WarpgroupTile::of(limits, &sizes, [1, 1], PatchDirection::Up, Unit::Bernoulli)
        };
        assert!(of(H200, (18, 64, 3, 1), 192).is_some());
        assert_eq!(of(H200, (18, 64, 3, 1), 200), None);
        assert_eq!(of(H200, (144, 1, 24, 8), 192), None, "runs of 24 values");
        assert_eq!(of(H200, (7, 64, 3, 2), 192), None, "windows of one cell and a half");
        for gpu in gpus::ALL.into_iter().filter(|gpu| !gpu.has_warpgroup_products()) {
            assert_eq!(of(gpu, (18, 64, 3, 1), 192), None, "{gpu:?}");
        }
    }
}
