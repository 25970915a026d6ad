//! The choice of the form of `kernels/sm_90a/patch_units.cu` for a product.
#![cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "launches are on a GPU"))]
use super::product::{PatchDirection, Sizes};
use super::shape::Rows;
use crate::limits::Limits;
use crate::products::warpgroup_shape::Shape;

/// Columns of a block of the weights down, and values of a cell of which a tile takes two.
const BLOCK: usize = 64;

/// A shape of tile that the kernel was compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct WarpgroupTile {
    pub shape: Shape,
    /// Of the minibatch and of the weights.
    parts: [usize; 2],
    direction: PatchDirection,
    /// Whether a tile down takes two neighbouring cells.
    pairs: bool,
    /// Of a sum, at most.
    terms: usize,
}

impl WarpgroupTile {
    /// The one for a product; none where the kernel cannot take it.
    pub(super) fn of(
        limits: Limits,
        sizes: &Sizes,
        parts: [usize; 2],
        direction: PatchDirection,
    ) -> Option<Self> {
        // Slices go through the hidden units of a patch, and tiles must not go beyond one.
        let known =
            limits.has_warpgroup_products() && sizes.hidden.is_multiple_of(BLOCK) && sizes.grid.is_straight();
        let at_once = limits.multiprocessors;
        let rows = Rows::of(sizes.batch);
        let down = sizes.batch.div_ceil(64 * rows.warpgroups());
        let of = |columns, cluster, pairs| {
            let shape = Shape { warpgroups: rows.warpgroups(), columns, cluster };
            let overlap = sizes.grid.overlap();
            let terms = match direction {
                PatchDirection::Up => sizes.grid.window_len(),
                // Two cells meet the windows of one more; blocks of a cluster may have more than their share.
                PatchDirection::Down => cluster * sizes.hidden * overlap * (overlap + 1),
            };
            Self { shape, parts, direction, pairs, terms }
        };
        let tile = match direction {
            PatchDirection::Up => {
                let widths: &[usize] = if parts[1] == 1 { &[192, 128, 64] } else { &[96, 64] };
                // Broad tiles read less, where there are enough of them for all multiprocessors.
                let broad = of(least(sizes.hidden, widths), 1, false);
                if broad.blocks(sizes)[0] * down >= at_once { broad } else { of(BLOCK, 1, false) }
            }
            PatchDirection::Down => {
                let alone = of(2 * BLOCK, 1, sizes.grid.cell_len() == BLOCK);
                let few = alone.blocks(sizes)[0] * down < 2 * at_once;
                of(2 * BLOCK, if few { 2 } else { 1 }, alone.pairs)
            }
        };
        // Half a kilobyte is for barriers.
        (known && tile.shared_bytes() + 512 <= limits.shared_bytes).then_some(tile)
    }

    /// The kernel for operands of this type.
    pub(super) fn kernel(&self, dtype: &str) -> String {
        let Shape { warpgroups, columns, .. } = self.shape;
        let name = match (self.direction, self.pairs) {
            (PatchDirection::Up, _) => "up",
            (PatchDirection::Down, false) => "down",
            (PatchDirection::Down, true) => "down_pairs",
        };
        let parts = if self.parts[1] == 2 { "x2" } else { "" };
        format!("patch_{name}_{dtype}{parts}_{warpgroups}x{columns}")
    }

    /// Blocks for all columns and rows.
    pub(super) fn blocks(&self, sizes: &Sizes) -> [usize; 3] {
        let (g, columns) = (&sizes.grid, self.shape.columns);
        let across = match (self.direction, self.pairs) {
            (PatchDirection::Up, _) => g.n_patches() * sizes.hidden.div_ceil(columns),
            (PatchDirection::Down, false) => {
                g.cell_lines() * g.cells_across() * g.cell_len().div_ceil(columns)
            }
            (PatchDirection::Down, true) => g.cell_lines() * g.cells_across().div_ceil(2),
        };
        [self.shape.cluster * across, sizes.batch.div_ceil(self.shape.rows()), 1]
    }

    /// Lines of the blocks in which the minibatch and the weights are copied.
    pub(super) fn lines(&self) -> [usize; 2] {
        let of_weights = if self.direction == PatchDirection::Up { self.shape.columns } else { BLOCK };
        [self.shape.rows(), of_weights]
    }

    /// Bytes of such a line.
    pub(super) fn line_bytes(&self) -> usize {
        2 * Shape::depth(self.parts)
    }

    pub(super) fn shared_bytes(&self) -> usize {
        self.shape.shared_bytes(self.parts, self.terms)
    }
}

/// The width with the fewest columns beyond `across`, the first of these.
fn least(across: usize, widths: &[usize]) -> usize {
    let covered = |&width: &usize| across.div_ceil(width) * width;
    widths.iter().copied().min_by_key(covered).unwrap_or(BLOCK)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::gpus;
    use crate::patches::PatchGrid;

    const H200: Limits = gpus::ALL[3];

    fn sizes(side: usize, depth: usize, window: usize, stride: usize, hidden: usize) -> Sizes {
        let grid = PatchGrid { planes: 1, height: side, width: side, depth, window, stride };
        Sizes { grid, hidden, batch: 192 }
    }

    fn tile(sizes: &Sizes, parts: [usize; 2], direction: PatchDirection) -> WarpgroupTile {
        WarpgroupTile::of(H200, sizes, parts, direction).unwrap_or_else(|| panic!("none"))
    }

    #[test]
    fn tiles_up_are_those_that_cover_the_units_of_a_patch() {
        let columns = |side, hidden, parts| {
            tile(&sizes(side, 64, 3, 1, hidden), parts, PatchDirection::Up).shape.columns
        };
        let of = |parts| [64, 128, 192, 256, 320, 512].map(|hidden| columns(18, hidden, parts));
        assert_eq!(of([1, 1]), [64, 128, 192, 128, 64, 128]);
        assert_eq!(of([2, 2]), [64, 64, 96, 64, 64, 64]);
        // Nine patches: narrow tiles for more multiprocessors.
        assert_eq!(columns(5, 512, [1, 1]), 64);
    }

    #[test]
    fn small_cells_go_in_pairs_and_few_tiles_are_shared() {
        let small = sizes(18, 64, 3, 1, 192);
        let pairs = tile(&small, [1, 1], PatchDirection::Down);
        assert_eq!(pairs.kernel("bf16"), "patch_down_pairs_bf16_3x128");
        assert_eq!(pairs.blocks(&small), [2 * 18 * 9, 1, 1]);
        let large = sizes(18, 256, 4, 2, 128);
        let columns = tile(&large, [1, 2], PatchDirection::Down);
        assert_eq!(columns.kernel("f16"), "patch_down_f16x2_3x128");
        assert_eq!(columns.blocks(&large), [81 * 8, 1, 1]);
    }

    #[test]
    fn grids_that_are_not_straight_units_that_do_not_fill_slices_and_other_gpus_have_none() {
        let of = |limits, (side, depth, window, stride), hidden| {
            let sizes = sizes(side, depth, window, stride, hidden);
            WarpgroupTile::of(limits, &sizes, [1, 1], PatchDirection::Up)
        };
        assert!(of(H200, (18, 64, 3, 1), 192).is_some());
        assert_eq!(of(H200, (18, 64, 3, 1), 200), None);
        assert_eq!(of(H200, (144, 1, 24, 8), 192), None, "runs of 24 values");
        assert_eq!(of(H200, (7, 64, 3, 2), 192), None, "windows of one cell and a half");
        for gpu in gpus::ALL.into_iter().filter(|gpu| !gpu.has_warpgroup_products()) {
            assert_eq!(of(gpu, (18, 64, 3, 1), 192), None, "{gpu:?}");
        }
    }
}
