//! Of `kernels/layers/sm_90a/pingpong.cuh`, by whose warpgroups large matrices are stepped, or added
//! to, while products are summed.

/// The sides of a tile, threads of a block, and rows of a k-block.
pub(crate) const TILE: usize = 128;
pub(crate) const THREADS: u32 = 384;
pub(crate) const DEPTH: usize = 64;
/// Subtiles in shared memory, of kernels that say nothing else.
pub(crate) const SUBTILES: usize = 3;
/// Bytes of a k-block, and how much shared memory k-blocks and subtiles have.
const K_BLOCK_BYTES: usize = 32 * 1024;
const ROOM: usize = 224 * 1024;

/// Tiles of a matrix.
pub(crate) fn tiles(rows: usize, cols: usize) -> usize {
    rows.div_ceil(TILE) * cols.div_ceil(TILE)
}

/// Shared memory of a block with subtiles of so many bytes in all.
pub(crate) fn shared_bytes(subtiles: usize) -> usize {
    subtiles + k_blocks(subtiles) * K_BLOCK_BYTES + 1024
}

/// K-blocks in the ring beside them.
fn k_blocks(subtiles: usize) -> usize {
    (ROOM - subtiles) / K_BLOCK_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::limits::gpus;

    #[test]
    fn all_subtiles_leave_room_for_three_k_blocks() {
        // 64 × 64 weights with a velocity and a copy, 64 × 32 with both moments and a copy, and what
        // products are added to.
        for (subtiles, expected) in [(12, 5), (18, 4), (24, 4), (30, 3), (21, 4), (16, 5)] {
            let subtiles = 4096 * subtiles;
            assert_eq!(k_blocks(subtiles), expected);
            let of_barriers = 512;
            assert!(shared_bytes(subtiles) + of_barriers <= gpus::ALL[3].shared_bytes, "{subtiles}");
        }
    }
}
