//! The choice of `kernels/layers/sm_90a/cd_update_pingpong.cu` for an update of one large matrix, on
//! GPUs of capability 9.0.
use super::Sizes;
use crate::core::limits::Limits;
use crate::layers::pingpong::{DEPTH, Rooms, TILE, tiles};
use crate::layers::products::warpgroup_shape::Shape;

/// Weights of a subtile.
const SUBTILE: usize = 64 * 64;

/// The blocks of a launch, and its minibatch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PingPong {
    pub blocks: usize,
    batch: usize,
}

impl PingPong {
    /// The form for an update of a `large` matrix from states in one part; none for others.
    pub(super) fn of(limits: Limits, sizes: Sizes, large: bool) -> Option<Self> {
        let Sizes { parts, batch, rows, cols } = sizes;
        let blocks = tiles(rows, cols).min(limits.multiprocessors);
        (large && parts == 1).then_some(Self { blocks, batch })
    }

    /// What it takes where products bind, of nanoseconds.
    pub(super) fn nanoseconds(self, Sizes { batch, rows, cols, .. }: Sizes) -> f64 {
        let of_k_block = Shape { warpgroups: 2, columns: TILE, cluster: 1 }.of_k_block(TILE);
        (tiles(rows, cols).div_ceil(self.blocks) * 2 * batch.div_ceil(DEPTH)) as f64 * of_k_block
    }

    /// Shared memory of a block for weights of so many bytes each, with velocity and copy.
    pub(super) fn rooms(self, of_weight: usize) -> Rooms {
        Rooms::of(self.batch, SUBTILE * of_weight)
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::large;
    use super::*;
    use crate::core::limits::gpus;

    #[test]
    fn it_is_for_large_matrices() {
        let of = |limits, batch, rows, cols| {
            let sizes = Sizes { parts: 1, batch, rows, cols };
            PingPong::of(limits, sizes, large(limits, sizes, 1))
        };
        assert_eq!(of(gpus::ALL[3], 193, 16000, 2304), Some(PingPong { blocks: 132, batch: 193 }));
        assert_eq!(of(gpus::ALL[3], 1024, 1024, 1024), None, "few tiles");
        for gpu in gpus::ALL {
            assert_eq!(of(gpu, 1024, 4096, 4096).is_some(), gpu.has_warpgroup_products(), "{gpu:?}");
        }
    }
}
