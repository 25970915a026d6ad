//! The launches of `convolution_weights` and, on GPUs of capability 9.0,
//! `convolution_weights_warpgroups_N`.
use super::{FEW, MANY, share};
use crate::core::limits::Limits;
use crate::images::convolution::ConvolutionShape;

/// Of kernels/images/convolution_weights.cuh.
const FILTERS: usize = 32;
const MAP_LINE: usize = FILTERS + 8;
const COLUMNS: usize = 256;
/// Positions of a stage.
const STAGE: usize = 128;
/// Of kernels/images/sm_90a/convolution_weights_warpgroups.cu: entries of the maps in a stage.
const ENTRIES: usize = 4096;

/// Parts of a long sum for `blocks` blocks that have all of it, `per` of them at once in a
/// multiprocessor: as many as run at once, or, where that leaves many idle, some four times that.
fn splits(limits: Limits, per: usize, blocks: usize) -> usize {
    let at_once = per * limits.multiprocessors;
    if 4 * blocks <= at_once { at_once / blocks } else { (4 * at_once / blocks).max(1) }
}

/// A launch of `convolution_weights`, or of `convolution_weights_warpgroups_N`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) struct Gradient {
    /// Whether warpgroups multiply, for many channels, and the filters of a block.
    pub warpgroups: bool,
    pub filters: usize,
    /// Blocks that share the positions: partial sums.
    pub splits: usize,
    /// Blocks that share the weights of a filter, and the filters.
    pub across: usize,
    pub down: usize,
    /// Rows and columns of a stage, and how many cover the maps of an image.
    pub rows: usize,
    pub row_blocks: usize,
    pub depth: usize,
    pub column_blocks: usize,
    /// Rows of pixels of a stage, floats of each, and those from one pixel to the next.
    pub x_rows: usize,
    pub x_line: usize,
    pub pitch: usize,
}

impl Gradient {
    /// The launch with the longest stages that let two blocks run at once (one of warpgroups), or at
    /// least one; none if no block has the memory.
    pub(in super::super) fn of(limits: Limits, shape: ConvolutionShape, batch: usize) -> Option<Self> {
        let within = |bytes: usize, longest: usize, filters: Option<usize>| {
            let lengths = (0..5).map(|halves| (longest >> halves).max(8));
            let mut plans = lengths.filter_map(|most| Self::with(limits, shape, batch, most, filters));
            plans.find(|plan| plan.shared_bytes() <= bytes)
        };
        let by_warpgroups =
            limits.has_warpgroup_products() && shape.channels >= FEW && shape.n_filters >= MANY;
        let filters = if shape.n_filters <= 32 { 32 } else { 64 };
        let warpgroups =
            by_warpgroups.then(|| within(share(limits, 1), ENTRIES / filters, Some(filters))).flatten();
        let two = || within(share(limits, 2), STAGE, None);
        warpgroups.or_else(two).or_else(|| within(limits.shared_bytes, STAGE, None))
    }

    /// The launch with stages of at most so many positions, and the filters of a block of
    /// warpgroups.
    fn with(
        limits: Limits,
        shape: ConvolutionShape,
        batch: usize,
        most: usize,
        warpgroups: Option<usize>,
    ) -> Option<Self> {
        let (of_row, all, filters) = (shape.filter_row(), shape.filter_len(), warpgroups.unwrap_or(FILTERS));
        let (across, down) = (all.div_ceil(COLUMNS), shape.n_filters.div_ceil(filters));
        // Rows of the filters that the weights of a block lie in.
        let reach = (0..across)
            .map(|i| (all.min((i + 1) * COLUMNS) - 1) / of_row - i * COLUMNS / of_row + 1)
            .max()?;
        let (out_height, out_width) = (shape.out_height(), shape.out_width());
        let depth = out_width.div_ceil(out_width.div_ceil(most)).next_multiple_of(8);
        let rows = (most / depth).clamp(1, out_height);
        let (row_blocks, column_blocks) = (out_height.div_ceil(rows), out_width.div_ceil(depth));
        let (stages, per) = (batch * row_blocks * column_blocks, if warpgroups.is_some() { 1 } else { 2 });
        // An odd number of eights.
        let apart = 8 * (shape.channels.div_ceil(8) | 1);
        let pitch = if warpgroups.is_some() { apart } else { shape.channels };
        Some(Self {
            warpgroups: warpgroups.is_some(),
            filters,
            splits: splits(limits, per, across * down).min(stages).max(1),
            across,
            down,
            rows,
            row_blocks,
            depth,
            column_blocks,
            x_rows: rows + reach - 1,
            x_line: ((depth + shape.size - 1) * pitch).next_multiple_of(4),
            pitch,
        })
    }

    /// Two stages of maps and pixels, in f32; of warpgroups the maps in two parts.
    pub(in super::super) fn shared_bytes(&self) -> usize {
        let positions = self.rows * self.depth;
        let maps = if self.warpgroups { positions * (2 * self.filters + 1) } else { positions * MAP_LINE };
        4 * 2 * (maps + self.x_rows * self.x_line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::limits::gpus;

    #[test]
    fn long_sums_are_shared_by_the_blocks_that_run_at_once() {
        let [_, _, _, h200, ..] = gpus::ALL;
        assert_eq!([1, 10, 66, 67, 140, 5000].map(|blocks| splits(h200, 2, blocks)), [264, 26, 4, 15, 7, 1]);
    }
}
