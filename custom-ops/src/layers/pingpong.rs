//! Of `kernels/layers/sm_90a/pingpong.cuh`, by whose warpgroups large matrices are stepped, or added
//! to, while products are summed.

/// The sides of a tile, threads of a block, and rows of a k-block.
pub(crate) const TILE: usize = 128;
pub(crate) const THREADS: u32 = 384;
pub(crate) const DEPTH: usize = 64;
/// Terms of a sum up to which parameters bind, so that at least [`IN_FLIGHT`] bytes of them are on
/// their way. Of more, products do: subtiles are two, or as many as leave room for five k-blocks.
const FEW_TERMS: usize = 256;
const IN_FLIGHT: usize = 64 * 1024;
/// Bytes of a k-block, most of them in the ring, and how much shared memory they and subtiles have.
const K_BLOCK_BYTES: usize = 32 * 1024;
const MOST_K_BLOCKS: usize = 5;
const ROOM: usize = 224 * 1024;

/// Tiles of a matrix.
pub(crate) fn tiles(rows: usize, cols: usize) -> usize {
    rows.div_ceil(TILE) * cols.div_ceil(TILE)
}

/// How shared memory is divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rooms {
    /// Subtiles that have room.
    pub subtiles: usize,
    /// Bytes in all.
    pub shared_bytes: usize,
}

impl Rooms {
    /// For sums of so many terms and subtiles of so many bytes.
    pub(crate) fn of(terms: usize, subtile: usize) -> Self {
        let subtiles = match terms > FEW_TERMS {
            true => (IN_FLIGHT / subtile).max(2),
            false => IN_FLIGHT.div_ceil(subtile).max(3),
        };
        let k_blocks = Self::k_blocks(subtiles * subtile);
        Self { subtiles, shared_bytes: subtiles * subtile + k_blocks * K_BLOCK_BYTES + 1024 }
    }

    /// K-blocks in the ring beside subtiles of so many bytes in all.
    fn k_blocks(subtiles: usize) -> usize {
        ((ROOM - subtiles) / K_BLOCK_BYTES).min(MOST_K_BLOCKS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::limits::gpus;

    #[test]
    fn all_subtiles_leave_room_for_three_k_blocks_and_of_long_sums_for_four() {
        // 64 × 64 weights with a velocity and a copy, of 4 to 10 bytes, 64 × 32 with both moments and
        // a copy, and what products are added to.
        for (subtile, short, long) in [(4, 5, 5), (6, 4, 5), (8, 4, 5), (10, 3, 4), (7, 4, 5)] {
            let subtile = 4096 * subtile;
            for (terms, expected) in [(FEW_TERMS, short), (FEW_TERMS + 1, long)] {
                let Rooms { subtiles, shared_bytes } = Rooms::of(terms, subtile);
                assert_eq!(Rooms::k_blocks(subtiles * subtile), expected);
                let of_barriers = 512;
                assert!(shared_bytes + of_barriers <= gpus::ALL[3].shared_bytes, "{subtile} {terms}");
            }
        }
    }
}
