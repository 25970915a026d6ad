//! The choice of the form of `kernels/layers/sm_90a/cd_update_deep.cu` for an update of one matrix
//! from a minibatch of many rows, on GPUs of capability 9.0.
use super::Sizes;
use crate::core::limits::Limits;

/// Of the kernel: the sides of a tile, threads of a block, rows of a k-block, and shared memory.
const TILE: usize = 128;
pub(super) const THREADS: u32 = 288;
pub(super) const DEPTH: usize = 64;
pub(super) const SHARED: usize = 3 * 32 * 1024 + 1024;
/// Rows of a phase above which it is for matrices that are not large, too.
const SHALLOW: usize = 512;
/// Blocks of a multiprocessor.
const BLOCKS: usize = 2;
/// K-blocks of both phases that a block has at least, and blocks that may share a tile.
const LEAST: usize = 4;
const MOST: usize = 8;

/// How many blocks share a tile, and their number in all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Deep {
    pub cluster: usize,
    pub blocks: usize,
}

impl Deep {
    /// The form for an update, whose matrix is `large` or not; none where another kernel is for it.
    pub(super) fn of(limits: Limits, sizes: Sizes, large: bool) -> Option<Self> {
        let Sizes { parts, batch, rows, cols } = sizes;
        let known = limits.has_warpgroup_products()
            && limits.shared_bytes >= BLOCKS * (SHARED + 1024)
            && parts == 1
            && [rows, cols].iter().all(|n| n.is_multiple_of(8))
            && [rows, cols, batch].iter().all(|&n| i32::try_from(n).is_ok());
        if !known || !(large || batch > SHALLOW) {
            return None;
        }
        let (tiles, k_blocks) = (rows.div_ceil(TILE) * cols.div_ceil(TILE), 2 * batch.div_ceil(DEPTH));
        let cluster = (BLOCKS * limits.multiprocessors / tiles).min(k_blocks / LEAST).clamp(1, MOST);
        Some(Self { cluster, blocks: cluster * tiles })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::limits::gpus;

    fn of(limits: Limits, batch: usize, rows: usize, cols: usize) -> Option<Deep> {
        let sizes = Sizes { parts: 1, batch, rows, cols };
        Deep::of(limits, sizes, super::super::plan::large(limits, sizes, 1))
    }

    #[test]
    fn blocks_share_the_tiles_of_small_matrices() {
        let h200 = gpus::ALL[3];
        let form = |batch, rows, cols| of(h200, batch, rows, cols).map(|form| (form.cluster, form.blocks));
        assert_eq!(form(4096, 504, 784), Some((8, 8 * 28)));
        assert_eq!(form(4096, 1024, 1024), Some((4, 4 * 64)));
        assert_eq!(form(256, 16000, 2304), Some((1, 125 * 18)));
        assert_eq!(form(512, 504, 784), None, "short sums of few tiles");
        assert_eq!(form(4096, 500, 784), None, "lines that copies cannot take");
    }

    #[test]
    fn only_capability_9_0_has_it() {
        for gpu in gpus::ALL {
            assert_eq!(of(gpu, 4096, 4096, 4096).is_some(), gpu.has_warpgroup_products(), "{gpu:?}");
        }
    }
}
