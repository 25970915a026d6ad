//! The choice of `kernels/layers/sm_90a/cd_update_pingpong.cu` for an update of one large matrix, on
//! GPUs of capability 9.0.
use super::Sizes;
use crate::core::limits::Limits;

/// Of the kernel: the sides of a tile, threads of a block, rows of a k-block and its bytes; subtiles
/// of 64 × 64 weights in shared memory, and how much of that they have with the k-blocks.
const TILE: usize = 128;
pub(super) const THREADS: u32 = 384;
pub(super) const DEPTH: usize = 64;
const K_BLOCK_BYTES: usize = 32 * 1024;
const SUBTILES: usize = 3;
const SUBTILE: usize = 64 * 64;
const ROOM: usize = 224 * 1024;
/// Rows of a minibatch up to which weights bind. Of more, products do, which `cd_update_deep.cu`
/// has two blocks for in a multiprocessor.
const MOST_ROWS: usize = 2048;

/// The blocks of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PingPong {
    pub blocks: usize,
}

impl PingPong {
    /// The form for an update of a `large` matrix; none where another kernel is for it.
    pub(super) fn of(limits: Limits, sizes: Sizes, large: bool) -> Option<Self> {
        let Sizes { parts, batch, rows, cols } = sizes;
        let tiles = rows.div_ceil(TILE) * cols.div_ceil(TILE);
        (large && parts == 1 && batch <= MOST_ROWS)
            .then(|| Self { blocks: tiles.min(limits.multiprocessors) })
    }

    /// Shared memory of a block for weights of so many bytes each, with velocity and copy.
    pub(super) fn shared_bytes(of_weight: usize) -> usize {
        let subtiles = SUBTILES * SUBTILE * of_weight;
        subtiles + (ROOM - subtiles) / K_BLOCK_BYTES * K_BLOCK_BYTES + 1024
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::{WARPGROUP_SHARED, large};
    use super::*;
    use crate::core::limits::gpus;

    #[test]
    fn it_is_for_large_matrices_and_minibatches_of_some_rows() {
        let of = |limits, batch, rows, cols| {
            let sizes = Sizes { parts: 1, batch, rows, cols };
            PingPong::of(limits, sizes, large(limits, sizes, 1))
        };
        assert_eq!(of(gpus::ALL[3], 193, 16000, 2304), Some(PingPong { blocks: 132 }));
        assert_eq!(of(gpus::ALL[3], 2049, 16000, 2304), None, "long sums");
        assert_eq!(of(gpus::ALL[3], 1024, 1024, 1024), None, "few tiles");
        for gpu in gpus::ALL {
            assert_eq!(of(gpu, 1024, 4096, 4096).is_some(), gpu.has_warpgroup_products(), "{gpu:?}");
        }
    }

    #[test]
    fn every_storage_of_weights_has_room_for_three_k_blocks() {
        for (of_weight, k_blocks) in [(4, 5), (6, 4), (8, 4), (10, 3)] {
            let bytes = PingPong::shared_bytes(of_weight);
            assert_eq!(bytes, SUBTILES * SUBTILE * of_weight + k_blocks * K_BLOCK_BYTES + 1024);
            assert!(bytes <= WARPGROUP_SHARED, "{of_weight}: {bytes}");
        }
    }
}
