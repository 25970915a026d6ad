//! The tile of a product by `kernels/layers/sm_90a/product_tile.cuh`, of either kind.
use super::turned_shape::Turned;
use super::warpgroup_shape::{Forms, Shape};
use crate::core::limits::Limits;

/// A tile of rows, of numbers in so many parts, or a turned one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Tile {
    Rows(Shape, [usize; 2]),
    Turned(Turned),
}

impl Tile {
    /// The fastest of `forms` for a product of `m × k` by `k × n` entries, both in so many parts;
    /// none where the GPU has too little shared memory.
    pub(super) fn of(limits: Limits, sizes: [usize; 3], parts: [usize; 2], forms: Forms) -> Option<Self> {
        match forms {
            Forms::Rows { tiles, finished } => {
                Shape::of(limits, sizes, parts, (tiles, finished)).map(|shape| Self::Rows(shape, parts))
            }
            Forms::Turned => Turned::of(limits, sizes).map(Self::Turned),
        }
    }

    /// How the kernels for it are called, behind what they compute.
    pub(super) fn name(self) -> String {
        match self {
            Self::Rows(shape, _) => format!("{}x{}", shape.warpgroups, shape.columns),
            Self::Turned(tile) => format!("turned_{}", tile.columns()),
        }
    }

    pub(super) fn columns(self) -> usize {
        match self {
            Self::Rows(shape, _) => shape.columns,
            Self::Turned(tile) => tile.columns(),
        }
    }

    /// Lines of `a`, of `m` rows in all, that come for a tile.
    pub(super) fn lines_of_a(self, m: usize) -> usize {
        match self {
            Self::Rows(shape, _) => shape.lines_of_a(m),
            Self::Turned(tile) => tile.lines_of_a(m),
        }
    }

    /// Blocks that share a tile.
    pub(super) fn cluster(self) -> usize {
        match self {
            Self::Rows(shape, _) => shape.cluster,
            Self::Turned(tile) => tile.cluster,
        }
    }

    /// Blocks across and down of a product of `m` by `n` entries.
    pub(super) fn grid(self, m: usize, n: usize) -> [usize; 3] {
        match self {
            Self::Rows(shape, _) => shape.grid(m, n),
            Self::Turned(tile) => tile.grid(n),
        }
    }

    pub(super) fn threads(self) -> u32 {
        match self {
            Self::Rows(shape, _) => shape.threads(),
            Self::Turned(tile) => tile.threads(),
        }
    }

    /// Shared memory of a block for sums of `k` terms.
    pub(super) fn shared_bytes(self, k: usize) -> usize {
        match self {
            Self::Rows(shape, parts) => shape.shared_bytes(parts, k),
            Self::Turned(tile) => tile.shared_bytes(k),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::limits::gpus;

    #[test]
    fn one_is_there_for_every_product_on_a_gpu_that_has_them() {
        let units = |parts, transposed| (Forms::of_units(parts, transposed), parts, transposed);
        let kinds = [
            units([1, 1], false),
            units([1, 1], true),
            units([2, 2], false),
            units([1, 2], true),
            (Forms::of_errors([2, 2], true), [2, 2], true),
            (Forms::of_deltas([2, 2], false), [2, 2], false),
            (Forms::of_errors([1, 1], true), [1, 1], true),
            (Forms::of_deltas([1, 1], false), [1, 1], false),
        ];
        for gpu in gpus::ALL.into_iter().filter(Limits::has_warpgroup_products) {
            for (m, n, k) in [
                (192, 1024, 576),
                (100, 500, 784),
                (192, 16000, 2304),
                (20, 64, 9000),
                (1, 4, 8),
                (1000, 784, 500),
            ] {
                for (forms, parts, transposed) in kinds {
                    let tile = forms
                        .and_then(|forms| Tile::of(gpu, [m, n, k], parts, forms))
                        .unwrap_or_else(|| panic!("none for {m}x{n}x{k}"));
                    assert!(tile.shared_bytes(k) + 512 <= gpu.shared_bytes, "{tile:?}");
                    let k_blocks = k.div_ceil(Shape::depth(parts));
                    assert!(tile.cluster() <= k_blocks, "{tile:?}: a block without a k-block");
                    assert!(!transposed || tile.columns().is_multiple_of(64), "{tile:?}");
                }
            }
        }
    }

    #[test]
    fn products_down_that_parity_tests_take_broad_tiles_in_clusters() {
        let of = |n, parts| {
            let tile = Tile::of(gpus::ALL[3], [100, n, 2048], parts, Forms::of_units(parts, true)?)?;
            Some((tile.columns(), tile.cluster() > 1))
        };
        assert_eq!(of(2560, [1, 2]), Some((128, true)));
    }
}
