//! The choice of `kernels/layers/sm_90a/cd_update_pingpong.cu` for an update of one large matrix, on
//! GPUs of capability 9.0.
use super::Sizes;
use crate::core::limits::Limits;
use crate::layers::pingpong::{Rooms, TILE, tiles};
use crate::layers::products::warpgroup_shape::{Shape, depth};

/// Weights of a subtile, by parts of the states.
const SUBTILE: [usize; 2] = [64 * 64, 64 * 32];

/// The blocks of a launch, rows of its k-blocks, and what is updated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PingPong {
    pub blocks: usize,
    pub depth: usize,
    sizes: Sizes,
}

impl PingPong {
    /// The form for an update of a `large` matrix; none for others.
    pub(super) fn of(limits: Limits, sizes: Sizes, large: bool) -> Option<Self> {
        let blocks = tiles(sizes.rows, sizes.cols).min(limits.multiprocessors);
        large.then_some(Self { blocks, depth: depth([sizes.parts; 2]), sizes })
    }

    /// What it takes where products bind, of nanoseconds.
    pub(super) fn nanoseconds(self) -> f64 {
        let Sizes { parts, batch, rows, cols } = self.sizes;
        let of_k_block = Shape { warpgroups: 2, columns: TILE, cluster: 1 }.of_k_block(TILE, parts);
        (tiles(rows, cols).div_ceil(self.blocks) * 2 * batch.div_ceil(self.depth)) as f64 * of_k_block
    }

    /// Shared memory of a block for weights of so many bytes each, with velocity and copy.
    pub(super) fn rooms(self, of_weight: usize) -> Rooms {
        Rooms::of(self.sizes.batch, SUBTILE[self.sizes.parts - 1] * of_weight)
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
        assert_eq!(of(gpus::ALL[3], 193, 16000, 2304).map(|form| form.blocks), Some(132));
        assert_eq!(of(gpus::ALL[3], 1024, 1024, 1024), None, "few tiles");
        for gpu in gpus::ALL {
            assert_eq!(of(gpu, 1024, 4096, 4096).is_some(), gpu.has_warpgroup_products(), "{gpu:?}");
        }
    }
}
