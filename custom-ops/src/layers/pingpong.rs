//! Of `kernels/layers/sm_90a/pingpong.cuh`, by whose warpgroups large matrices of parameters are
//! stepped while their gradient is summed.

/// The sides of a tile, threads of a block, and rows of a k-block.
pub(crate) const TILE: usize = 128;
pub(crate) const THREADS: u32 = 384;
pub(crate) const DEPTH: usize = 64;
/// Bytes of a k-block; subtiles in shared memory, and how much of that they have with the k-blocks.
const K_BLOCK_BYTES: usize = 32 * 1024;
const SUBTILES: usize = 3;
const ROOM: usize = 224 * 1024;

/// Tiles of a matrix.
pub(crate) fn tiles(rows: usize, cols: usize) -> usize {
    rows.div_ceil(TILE) * cols.div_ceil(TILE)
}

/// Shared memory of a block with subtiles of so many bytes.
pub(crate) fn shared_bytes(subtile: usize) -> usize {
    let subtiles = SUBTILES * subtile;
    subtiles + k_blocks(subtile) * K_BLOCK_BYTES + 1024
}

/// K-blocks in the ring beside them.
fn k_blocks(subtile: usize) -> usize {
    (ROOM - SUBTILES * subtile) / K_BLOCK_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::limits::gpus;

    #[test]
    fn all_subtiles_leave_room_for_three_k_blocks() {
        // 64 × 64 weights with a velocity and a copy, and 64 × 32 with both moments and a copy.
        for (subtile, expected) in [(4, 5), (6, 4), (8, 4), (10, 3), (7, 4)].map(|(b, k)| (4096 * b, k)) {
            assert_eq!(k_blocks(subtile), expected);
            let of_barriers = 512;
            assert!(shared_bytes(subtile) + of_barriers <= gpus::ALL[3].shared_bytes, "{subtile}");
        }
    }
}
