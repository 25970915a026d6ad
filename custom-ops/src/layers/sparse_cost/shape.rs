//! How the launch of `kernels/layers/sparse_cost.cu` divides the rows.
use crate::core::limits::Limits;

/// Of the kernel.
#[cfg(feature = "cuda")]
pub(super) const THREADS: u32 = 512;
/// A thread of a block adds the activity of a feature.
const MOST_HIDDEN: usize = 512;
/// Rows of a tile, at least, where a block has so many: with fewer, threads have nothing to do, and
/// the op loses to separate products.
const LEAST_TILE: usize = 16;
/// More rows of a tile do not make a block faster.
const MOST_TILE: usize = 128;

/// The parts that blocks take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    pub blocks: usize,
    /// Rows of a block.
    pub rows_each: usize,
    /// Rows of a tile.
    pub tile: usize,
    n_visible: usize,
    n_hidden: usize,
}

impl Shape {
    /// None where the kernel does not take these sizes, or the GPU has too little shared memory for
    /// them.
    pub(super) fn of(limits: Limits, n_visible: usize, n_hidden: usize, rows: usize) -> Option<Self> {
        if n_visible == 0 || rows == 0 || !(1..=MOST_HIDDEN).contains(&n_hidden) {
            return None;
        }
        // The kernel counts rows and parameters in 32 bits.
        u32::try_from(rows).ok()?;
        u32::try_from(n_visible.checked_mul(n_hidden)?.checked_mul(2)?.checked_add(n_visible + n_hidden)?)
            .ok()?;
        let rows_each = rows.div_ceil(limits.multiprocessors);
        let of_tile = |tile| Self { blocks: rows.div_ceil(rows_each), rows_each, tile, n_visible, n_hidden };
        let fixed = of_tile(0).shared_bytes();
        let most = limits.shared_bytes.checked_sub(fixed)? / (of_tile(1).shared_bytes() - fixed);
        if most < LEAST_TILE {
            return None;
        }
        let tiles = rows_each.div_ceil(most.min(MOST_TILE));
        Some(of_tile(rows_each.div_ceil(tiles)))
    }

    /// Rows, their errors, features and their errors, of a tile; both weights; biases and the pull
    /// of each feature.
    pub(super) fn shared_bytes(&self) -> usize {
        let Self { tile, n_visible: v, n_hidden: h, .. } = *self;
        let (v_line, h_line) = (v | 1, h | 1);
        4 * (2 * tile * (v_line + h_line) + h * v_line + v * h_line + 2 * h + v)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::limits::gpus;

    #[test]
    fn every_row_is_in_one_block_and_the_tiles_fit() {
        for gpu in gpus::ALL {
            for (v, h) in [(1, 1), (64, 25), (64, 32), (128, 64), (3, 512), (784, 10)] {
                for rows in [1, 2, 131, 132, 133, 10_000, 5_000_000] {
                    let Some(shape) = Shape::of(gpu, v, h, rows) else { continue };
                    let Shape { blocks, rows_each, tile, .. } = shape;
                    assert!(blocks * rows_each >= rows && (blocks - 1) * rows_each < rows, "{shape:?}");
                    assert!(blocks <= gpu.multiprocessors && (1..=rows_each).contains(&tile), "{shape:?}");
                    assert!(shape.shared_bytes() <= gpu.shared_bytes, "{shape:?} on {gpu:?}");
                }
            }
        }
    }

    #[test]
    fn the_usual_patches_fit_every_gpu_and_large_networks_fit_none() {
        for gpu in gpus::ALL {
            assert!(Shape::of(gpu, 64, 32, 10_000).is_some(), "{gpu:?}");
            for (v, h) in [(256, 128), (784, 196), (64, 513), (0, 4), (usize::MAX, 2)] {
                assert_eq!(Shape::of(gpu, v, h, 10_000), None);
            }
        }
        let h200 = Shape::of(gpus::ALL[3], 64, 32, 10_000).unwrap_or_else(|| panic!("it fits"));
        assert_eq!((h200.blocks, h200.rows_each, h200.tile), (132, 76, 76));
    }
}
