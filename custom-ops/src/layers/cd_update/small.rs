//! The choice of the form of `kernels/layers/sm_90a/cd_update_small.cu` for an update of one
//! matrix, on GPUs of capability 9.0.
use super::Sizes;
use crate::core::limits::Limits;

/// Of the kernel: the sides of a tile, threads of a block, bytes of a k-block and most k-blocks in
/// the ring, bytes of a tile of sums.
const TILE: usize = 64;
pub(super) const THREADS: u32 = 160;
const K_BLOCK: usize = 16 * 1024;
const STAGES: usize = 6;
const TILE_BYTES: usize = TILE * (TILE + 4) * 4;
/// Rows of a phase from which it is the fastest kernel, of one part and of two.
const LEAST: [usize; 2] = [64, 1];
/// Rows of a phase from which two blocks share a tile.
const LONG: [usize; 2] = [192, 384];
/// Tiles of a multiprocessor up to which it is: then larger tiles, which read less, are.
const MOST_TILES: [usize; 2] = [5, 6];
/// Blocks of a multiprocessor.
const BLOCKS: usize = 2;

/// How many blocks share a tile, and rows of a k-block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Small {
    pub cluster: usize,
    pub depth: usize,
    sizes: Sizes,
}

impl Small {
    /// The form for an update; none where another kernel is for it.
    pub(super) fn of(limits: Limits, sizes: Sizes) -> Option<Self> {
        let Sizes { parts, batch, rows, cols } = sizes;
        let known = limits.has_warpgroup_products() && rows.is_multiple_of(8) && cols.is_multiple_of(8);
        let of_parts = |each: [usize; 2]| each[parts - 1];
        let fast = batch >= of_parts(LEAST) && tiles(sizes) <= of_parts(MOST_TILES) * limits.multiprocessors;
        let share = batch >= of_parts(LONG) && 2 * tiles(sizes) <= BLOCKS * limits.multiprocessors;
        let cluster = if share { 2 } else { 1 };
        (known && fast && i32::try_from(batch).is_ok()).then_some(Self { cluster, depth: 64 / parts, sizes })
    }

    /// Blocks, of which so many are for the biases, in whole clusters.
    pub(super) fn blocks(self, of_biases: usize) -> usize {
        self.cluster * tiles(self.sizes) + of_biases.next_multiple_of(self.cluster)
    }

    /// The k-blocks of a block, as far as there is a place for them, or the tile of sums in their
    /// place, and room to begin them on a kilobyte.
    pub(super) fn shared_bytes(self) -> usize {
        let k_blocks = (2 * self.sizes.batch.div_ceil(self.depth)).div_ceil(self.cluster);
        (k_blocks.min(STAGES) * K_BLOCK).max(TILE_BYTES) + 1024
    }
}

fn tiles(Sizes { rows, cols, .. }: Sizes) -> usize {
    rows.div_ceil(TILE) * cols.div_ceil(TILE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::limits::gpus;

    fn of(limits: Limits, batch: usize, rows: usize, cols: usize) -> Option<Small> {
        Small::of(limits, Sizes { parts: 2, batch, rows, cols })
    }

    #[test]
    fn small_matrices_on_capability_9_0_have_a_form_and_two_blocks_of_it_fit() {
        for gpu in gpus::ALL {
            for (batch, rows, cols) in [(1, 8, 8), (32, 504, 784), (512, 504, 784), (192, 1024, 576)] {
                let form = of(gpu, batch, rows, cols);
                assert_eq!(form.is_some(), gpu.has_warpgroup_products(), "{gpu:?}");
                let fits = |form: Small| 2 * (form.shared_bytes() + 1024 + 512) <= gpu.shared_bytes;
                assert!(form.is_none_or(fits), "{form:?}");
            }
            assert_eq!(of(gpu, 192, 16000, 2304), None, "large");
            assert_eq!(of(gpu, 192, 60, 64), None, "lines that copies cannot take");
        }
    }

    #[test]
    fn two_blocks_share_a_tile_of_long_sums_where_all_run_at_once() {
        let h200 = gpus::ALL[3];
        let clusters = [(32, 504, 784), (512, 504, 784), (512, 1024, 576)]
            .map(|(batch, rows, cols)| of(h200, batch, rows, cols).map(|form| form.cluster));
        assert_eq!(clusters, [Some(1), Some(2), Some(1)]);
    }
}
