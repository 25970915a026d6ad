//! The choice of the form of `kernels/layers/sm_90a/cd_update_deep.cu` for an update of one matrix
//! from a minibatch of many rows, on GPUs of capability 9.0.
use super::Sizes;
use crate::core::limits::Limits;
use crate::layers::products::warpgroup_shape::{Shape, depth, fastest};

/// Of the kernel: the warpgroups and rows of a tile, and threads of a block.
const WARPGROUPS: usize = 2;
pub(super) const ROWS: usize = 64 * WARPGROUPS;
pub(super) const THREADS: u32 = 288;
/// Columns of a tile, and k-blocks in the ring: of narrow tiles they leave room for a second block.
const TILES: [(usize, usize); 2] = [(128, 3), (256, 4)];
/// Rows of a phase above which it is for matrices that are not large, too, of one part and of two.
const SHALLOW: [usize; 2] = [512, 1024];
/// K-blocks of both phases that a block has at least, and blocks that may share a tile.
const LEAST: usize = 4;
const MOST: usize = 8;
/// Weights that a block steps in a nanosecond, for the choice alone.
const STEPPED: f64 = 2.5;

/// The tiles, the blocks in all, and rows of a k-block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Deep {
    shape: Shape,
    pub blocks: usize,
    pub depth: usize,
}

impl Deep {
    /// The fastest form for an update, whose matrix is `large` or not, by the model of products; none
    /// where another kernel is for it.
    pub(super) fn of(limits: Limits, sizes: Sizes, large: bool) -> Option<Self> {
        let Sizes { parts, batch, rows, cols } = sizes;
        let known = limits.has_warpgroup_products()
            && [rows, cols].iter().all(|n| n.is_multiple_of(8))
            && [rows, cols, batch].iter().all(|&n| i32::try_from(n).is_ok());
        if !known || !(large || batch > SHALLOW[parts - 1]) {
            return None;
        }
        let depth = depth([parts; 2]);
        let clusters = (2 * batch.div_ceil(depth) / LEAST).clamp(1, MOST);
        let forms = TILES.iter().flat_map(|&(columns, _)| {
            (1..=clusters).map(move |cluster| Shape { warpgroups: WARPGROUPS, columns, cluster })
        });
        let forms = forms.map(|shape| {
            let [across, down, _] = shape.grid(rows, cols);
            Self { shape, blocks: across * down, depth }
        });
        let fits = |form: &Self| form.shared_bytes() + 1024 <= limits.shared_bytes;
        fastest(forms.filter(fits), |form| form.nanoseconds(limits, sizes))
    }

    /// What it takes by that model.
    pub(super) fn nanoseconds(self, limits: Limits, Sizes { parts, batch, rows, cols }: Sizes) -> f64 {
        let terms = 2 * batch.next_multiple_of(self.depth);
        self.shape.nanoseconds(limits, parts, [rows, cols, terms], STEPPED)
    }

    /// Blocks that share a tile.
    pub(super) fn cluster(self) -> usize {
        self.shape.cluster
    }

    /// Columns of a tile, by which kernels are named.
    pub(super) fn columns(self) -> usize {
        self.shape.columns
    }

    pub(super) fn shared_bytes(self) -> usize {
        let k_blocks = TILES.iter().find(|(columns, _)| *columns == self.columns()).map_or(0, |of| of.1);
        // A k-block of two parts has half the depth.
        k_blocks * self.shape.k_block_bytes([1; 2]) + 1024
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::limits::gpus;

    fn of(limits: Limits, batch: usize, rows: usize, cols: usize) -> Option<Deep> {
        of_parts(1, limits, batch, rows, cols)
    }

    fn of_parts(parts: usize, limits: Limits, batch: usize, rows: usize, cols: usize) -> Option<Deep> {
        let sizes = Sizes { parts, batch, rows, cols };
        Deep::of(limits, sizes, super::super::plan::large(limits, sizes, 1))
    }

    #[test]
    fn forms_are_within_a_tenth_of_the_fastest_that_was_measured() {
        // Weights in halves on an H200, µs, of these and of the fastest others: 22 and 20, 30 and 35,
        // 40 and 38, 52 and 63, 78 and 86, 860 and 977, 396 and 440; 10 and 13, 13 and 14, 15 and 17,
        // 17 and 19.
        let form = |batch, rows, cols| {
            of(gpus::ALL[3], batch, rows, cols).map(|form| (form.columns(), form.cluster(), form.blocks))
        };
        assert_eq!(form(4096, 512, 768), Some((256, 8, 8 * 12)));
        assert_eq!(form(4096, 1024, 768), Some((256, 4, 4 * 24)));
        assert_eq!(form(4096, 1024, 1024), Some((128, 2, 2 * 64)));
        assert_eq!(form(4096, 2048, 1024), Some((256, 2, 2 * 64)));
        assert_eq!(form(4096, 1536, 1536), Some((256, 3, 3 * 72)));
        assert_eq!(form(4096, 16000, 2304), Some((256, 1, 9 * 125)));
        assert_eq!(form(4096, 4096, 4096), Some((256, 1, 16 * 32)));
        assert_eq!(form(768, 512, 768), Some((128, 4, 4 * 24)));
        assert_eq!(form(768, 1024, 768), Some((128, 2, 2 * 48)));
        assert_eq!(form(1024, 1024, 1024), Some((128, 2, 2 * 64)));
        assert_eq!(form(768, 2048, 1024), Some((128, 1, 128)));
    }

    #[test]
    fn parity_tests_take_all_kinds_of_tiles() {
        let form = |parts, batch, rows, cols| {
            of_parts(parts, gpus::ALL[3], batch, rows, cols).map(|form| (form.columns(), form.cluster()))
        };
        assert_eq!(form(1, 1100, 264, 128), Some((128, 8)));
        assert_eq!(form(1, 600, 776, 2368), Some((256, 1)));
        assert_eq!(form(1, 1030, 392, 2056), Some((256, 3)));
        assert_eq!(form(2, 1100, 264, 128), Some((128, 8)));
        assert_eq!(form(2, 1030, 776, 1472), Some((128, 1)));
        assert_eq!(form(2, 1030, 392, 2056), Some((256, 3)));
    }

    #[test]
    fn short_sums_of_few_tiles_and_lines_that_copies_cannot_take_have_none() {
        assert_eq!(of(gpus::ALL[3], 512, 504, 784), None);
        assert_eq!(of(gpus::ALL[3], 4096, 500, 784), None);
    }

    #[test]
    fn only_capability_9_0_has_it() {
        for gpu in gpus::ALL {
            assert_eq!(of(gpu, 4096, 4096, 4096).is_some(), gpu.has_warpgroup_products(), "{gpu:?}");
        }
    }
}
