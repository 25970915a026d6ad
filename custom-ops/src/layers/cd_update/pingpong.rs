//! The choice of `kernels/layers/sm_90a/cd_update_pingpong.cu` for an update of one large matrix, on
//! GPUs of capability 9.0.
use super::Sizes;
use crate::core::limits::Limits;
use crate::layers::pingpong::{SUBTILES, shared_bytes, tiles};

/// Weights of a subtile.
const SUBTILE: usize = 64 * 64;
/// Rows of a minibatch up to which weights bind. Of more, products do, which `cd_update_deep.cu`
/// has two blocks for in a multiprocessor.
const MOST_ROWS: usize = 1024;

/// The blocks of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PingPong {
    pub blocks: usize,
}

impl PingPong {
    /// The form for an update of a `large` matrix; none where another kernel is for it.
    pub(super) fn of(limits: Limits, sizes: Sizes, large: bool) -> Option<Self> {
        let Sizes { parts, batch, rows, cols } = sizes;
        let blocks = tiles(rows, cols).min(limits.multiprocessors);
        (large && parts == 1 && batch <= MOST_ROWS).then_some(Self { blocks })
    }

    /// Shared memory of a block for weights of so many bytes each, with velocity and copy.
    pub(super) fn shared_bytes(of_weight: usize) -> usize {
        shared_bytes(SUBTILES * SUBTILE * of_weight)
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::large;
    use super::*;
    use crate::core::limits::gpus;

    #[test]
    fn it_is_for_large_matrices_and_minibatches_of_some_rows() {
        let of = |limits, batch, rows, cols| {
            let sizes = Sizes { parts: 1, batch, rows, cols };
            PingPong::of(limits, sizes, large(limits, sizes, 1))
        };
        assert_eq!(of(gpus::ALL[3], 193, 16000, 2304), Some(PingPong { blocks: 132 }));
        assert_eq!(of(gpus::ALL[3], 1025, 16000, 2304), None, "long sums");
        assert_eq!(of(gpus::ALL[3], 1024, 1024, 1024), None, "few tiles");
        for gpu in gpus::ALL {
            assert_eq!(of(gpu, 1024, 4096, 4096).is_some(), gpu.has_warpgroup_products(), "{gpu:?}");
        }
    }
}
