//! The launch of `kernels/images/sm_90a/convolution_warpgroups.cu`.
use super::{MANY, RESERVED, Sides, share};
use crate::core::limits::Limits;

/// Of the kernel: the sides of the positions of a warpgroup, most fours of channels at a time, and
/// stages of weights.
const SIDE: usize = 8;
const PLANES: usize = 8;
const STAGES: usize = 4;

/// A launch of `convolution_warpgroups_N`, for many channels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) struct Warpgroups {
    /// Columns of a block, and blocks that share the columns.
    pub columns: usize,
    pub blocks_across: usize,
    /// Warpgroups of a tile below and beside each other, and tiles of an image.
    pub down: usize,
    pub across: usize,
    pub tiles_down: usize,
    pub tiles_across: usize,
    /// Fours of channels of a stage, stages of a place of the filters in a chunk, and chunks.
    pub planes: usize,
    pub stages: usize,
    pub n_chunks: usize,
    /// Floats from one pixel of the strip, and from one row, to the next; and its rows.
    pub pitch: usize,
    pub row_pitch: usize,
    pub strip_rows: usize,
}

impl Warpgroups {
    /// The launch that is over first; none where GPUs have no such products, for few channels or
    /// columns, and for filters that are too large.
    pub(in super::super) fn of(limits: Limits, sides: Sides, batch: usize) -> Option<Self> {
        if !limits.has_warpgroup_products() || sides.channels < MANY || sides.n_out < MANY {
            return None;
        }
        let plans = [(2, 2), (1, 2), (2, 1), (1, 1)].into_iter().filter_map(|tile| {
            let mut plans = (1..=sides.channels.div_ceil(8)).map(|n| Self::with(sides, tile, n));
            plans.find(|plan| plan.shared_bytes() <= share(limits, 1))
        });
        plans.min_by_key(|plan| plan.rounds(limits, batch))
    }

    fn with(sides: Sides, (down, across): (usize, usize), n_chunks: usize) -> Self {
        let columns = if sides.n_out <= 32 { 32 } else { 64 };
        let eights = sides.channels.div_ceil(8);
        // Of a place of the filters, in all chunks.
        let stages = (2 * eights).div_ceil(PLANES).next_multiple_of(n_chunks);
        let planes = 2 * eights.div_ceil(stages);
        let pitch = 4 * planes * stages / n_chunks + 4;
        Self {
            columns,
            blocks_across: sides.n_out.div_ceil(columns),
            down,
            across,
            tiles_down: sides.out_height.div_ceil(SIDE * down),
            tiles_across: sides.out_width.div_ceil(SIDE * across),
            planes,
            stages: stages / n_chunks,
            n_chunks,
            pitch,
            row_pitch: (SIDE * across + sides.size - 1) * pitch,
            strip_rows: SIDE * down + sides.size - 1,
        }
    }

    /// How long all tiles take, in quarters of those of one warpgroup. Three that run at once keep
    /// the tensor cores of a multiprocessor busy; a quarter more is for the strip of a block.
    fn rounds(&self, limits: Limits, batch: usize) -> usize {
        let each = self.down * self.across;
        let of_memory = (limits.shared_bytes + RESERVED) / (self.shared_bytes() + RESERVED);
        // Warps that the registers of a multiprocessor are enough for.
        let warps = if self.columns == 32 { 24 } else { 20 };
        let busy = (each * of_memory.min(warps / (4 * each + 4))).clamp(1, 3);
        let blocks = batch * self.tiles_down * self.tiles_across * self.blocks_across;
        blocks.div_ceil(limits.multiprocessors) * (4 * each + 1) * 3 / busy
    }

    /// The strip, and stages of weights in two parts.
    pub(in super::super) fn shared_bytes(&self) -> usize {
        4 * self.strip_rows * self.row_pitch + 16 * STAGES * self.planes * (2 * self.columns + 1)
    }
}
