//! How the states that stay divide the shared memory of `kernels/layers/sm_90a/cd_update.cu` with
//! the rest, on GPUs of capability 9.0.

/// The sides of a subtile, and rows of a k-block, which those of states in two parts have, too.
pub(super) const TILE: usize = 64;
pub(super) const K_BLOCK_DEPTH: usize = 64;
/// K-blocks of both phases that stay beside three subtiles, or four of bf16 weights alone; up to
/// these a block of the biases finds room, too. Beside one subtile fewer more have room where a
/// tile is two subtiles wide.
pub(super) const K_BLOCKS: usize = 6;
pub(super) const MOST_K_BLOCKS: usize = 8;
/// Bytes of a k-block of one side, 64 units wide; bytes for all in either case, and those of ones
/// (`ONES_BYTES`).
const K_BLOCK_BYTES: usize = K_BLOCK_DEPTH * TILE * 2;
const ROOM: usize = 216 * 1024;
const MOST_ROOM: usize = 224 * 1024;
const ONES_BYTES: usize = 2048;
/// Most k-blocks in the ring.
const MOST_STAGES: usize = 8;

/// `Rooms` of the kernel: subtiles, and k-blocks in the ring.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rooms {
    subtiles: i32,
    stages: i32,
}
#[cfg(feature = "cuda")]
// SAFETY: two numbers of 32 bits, the same layout as the kernel's struct.
unsafe impl candle::cuda::cudarc::driver::DeviceRepr for Rooms {}

/// K-blocks of both phases of a minibatch.
pub(super) fn k_blocks(batch: usize) -> usize {
    2 * batch.div_ceil(K_BLOCK_DEPTH)
}

impl Rooms {
    /// Beside the states of so many rows, in tiles of `wide` subtiles, of which `most` may have
    /// room, with weights of so many bytes each, velocity and copy included; and the shared memory
    /// of a block.
    pub(super) fn of(batch: usize, wide: usize, most: usize, of_weight: usize) -> (Self, usize) {
        let k_blocks = k_blocks(batch);
        let (room, subtiles) = if k_blocks <= K_BLOCKS { (ROOM, most) } else { (MOST_ROOM, most - 1) };
        let staying = k_blocks * wide * K_BLOCK_BYTES + subtiles * TILE * TILE * of_weight;
        let stages = ((room - staying) / K_BLOCK_BYTES).min(MOST_STAGES);
        let rooms = Self { subtiles: subtiles as i32, stages: stages as i32 };
        (rooms, staying + stages * K_BLOCK_BYTES + ONES_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::limits::gpus;

    #[test]
    fn k_blocks_that_pass_have_six_places_beside_all_that_stays() {
        // Of halves, of bf16 alone, and of f32 with a velocity of either type, by the most rows.
        for (batch, wide, most, of_weight, expected) in [
            (192, 2, 3, 6, (3, 6)),
            (192, 2, 4, 4, (4, 7)),
            (192, 1, 3, 8, (3, 8)),
            (192, 1, 3, 10, (3, 6)),
            (256, 2, 3, 6, (2, 6)),
            (256, 2, 4, 4, (3, 6)),
            (8, 2, 3, 6, (3, 8)),
        ] {
            let (Rooms { subtiles, stages }, shared_bytes) = Rooms::of(batch, wide, most, of_weight);
            assert_eq!((subtiles, stages), expected, "{batch} {wide} {of_weight}");
            // Barriers take a kilobyte, so that the rest begins on one.
            assert!(shared_bytes + 1024 <= gpus::ALL[3].shared_bytes, "{batch} {wide} {of_weight}");
        }
    }
}
