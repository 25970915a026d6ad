//! The choice of the kernels of `kernels/images/convolution.cu`, `convolution_spectra.cu` and those
//! of capability 9.0, `sm_90a/convolution_warpgroups.cu` and
//! `sm_90a/convolution_weights_warpgroups.cu`, and the numbers of their launches.
pub(super) mod gradient;
pub(super) mod spectra;
mod warpgroups;

use super::ConvolutionShape;
use crate::core::limits::Limits;
use warpgroups::Warpgroups;

/// Of kernels/images/convolution_windows.cuh.
const POSITIONS: usize = 128;
const STEPS: usize = 8;
/// Of kernels/images/convolution_flat.cuh.
const FLAT_POSITIONS: usize = 256;
/// Of kernels/images/convolution_rows.cuh.
const ROWS: usize = 4;
const ROW_WARPS: usize = 8;
const ROW_STAGES: usize = 2;
const DIAGONAL: usize = 17;
/// Images of fewer channels than the columns of a tensor core get their gradient from whole rows of
/// filters.
const FEW: usize = 8;
/// Channels and columns from which on warpgroups are used: of fewer, most of their products is empty
/// (not measured below 24).
const MANY: usize = 16;
/// The widest band of a result whose windows lie in shared memory.
const BAND: usize = 256;

/// Bytes that the driver takes of the shared memory for each block.
const RESERVED: usize = 1024;

/// Bytes that a block may have so that `blocks` of them run at once.
fn share(limits: Limits, blocks: usize) -> usize {
    limits.shared_bytes / blocks - RESERVED
}

/// Blocks that share `items` until all are done, `per` of a multiprocessor: fewer than 2^31.
pub(super) fn sharing(limits: Limits, items: usize, per: usize) -> usize {
    items.min((per * limits.multiprocessors).max(1))
}

/// The source, the result and the weights of products with windows.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sides {
    pub height: usize,
    pub width: usize,
    pub channels: usize,
    pub out_height: usize,
    pub out_width: usize,
    pub n_out: usize,
    pub size: usize,
    pub pad: usize,
}

impl Sides {
    /// Those of the maps.
    pub(super) fn maps(shape: ConvolutionShape) -> Self {
        Self {
            height: shape.height,
            width: shape.width,
            channels: shape.channels,
            out_height: shape.out_height(),
            out_width: shape.out_width(),
            n_out: shape.n_filters,
            size: shape.size,
            pad: shape.pad(),
        }
    }

    /// Those of the gradient to the images: windows of the maps, with as many lines beyond them as
    /// filters reach back.
    pub(super) fn images(shape: ConvolutionShape) -> Self {
        Self {
            height: shape.out_height(),
            width: shape.out_width(),
            channels: shape.n_filters,
            out_height: shape.height,
            out_width: shape.width,
            n_out: shape.channels,
            size: shape.size,
            pad: shape.size - 1 - shape.pad(),
        }
    }
}

/// A launch of `convolution_windows_N`, or of `convolution_flat_N`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Windows {
    /// Eights of columns of a block.
    pub eights: usize,
    /// Blocks that share the columns.
    pub across: usize,
    /// Columns of a band, and bands.
    pub band: usize,
    pub n_bands: usize,
    /// Blocks of a band of one image.
    pub tiles: usize,
    /// For few channels: whether a step has channels of several pixels, and the rows of the filters
    /// whose weights a block has at a time.
    pub flat: bool,
    pub weight_rows: usize,
    /// Channels at a time, and how often.
    pub chunk: usize,
    pub n_chunks: usize,
    /// Floats from one pixel, and from one row, to the next.
    pub pitch: usize,
    pub row_pitch: usize,
    pub strip_rows: usize,
    pub strip_columns: usize,
}

impl Windows {
    /// The launch with the most weights or channels at a time that lets two or three blocks run at
    /// once, or at least one; none if no block has the memory.
    pub(super) fn of(limits: Limits, sides: Sides) -> Option<Self> {
        // Channels by eights.
        let whole = sides.channels.next_multiple_of(8);
        let by_pixel = |bytes: usize| {
            let chunks = (8..=whole).rev().filter(|chunk| chunk.is_multiple_of(8));
            chunks.map(|chunk| Self::with(sides, None, chunk)).find(|plan| plan.shared_bytes(sides) <= bytes)
        };
        let flat = |bytes: usize| {
            let mut plans = (1..=sides.size).rev().map(|rows| Self::with(sides, Some(rows), sides.channels));
            let fitting = plans.find(|plan| plan.shared_bytes(sides) <= bytes);
            fitting.filter(|_| !sides.channels.is_multiple_of(8))
        };
        let all = limits.shared_bytes;
        flat(share(limits, 2))
            .or_else(|| by_pixel(share(limits, 3)))
            .or_else(|| flat(all))
            .or_else(|| by_pixel(all))
    }

    /// The launch with as many channels at a time, for few channels all of them and the weights of
    /// so many rows of the filters.
    fn with(sides: Sides, weight_rows: Option<usize>, chunk: usize) -> Self {
        let flat = weight_rows.is_some();
        let eights = sides.n_out.div_ceil(8);
        let across = eights.div_ceil(4);
        let n_bands = sides.out_width.div_ceil(BAND);
        let band = sides.out_width.div_ceil(n_bands);
        let positions = if flat { FLAT_POSITIONS } else { POSITIONS };
        // A tile begins anywhere in a row.
        let rows = ((positions + band - 2) / band + 1).min(sides.out_height);
        let pitch = if flat { chunk } else { chunk + 4 };
        let strip_columns = band + sides.size - 1;
        Self {
            eights: eights.div_ceil(across),
            across,
            band,
            n_bands,
            tiles: (sides.out_height * band).div_ceil(positions),
            flat,
            weight_rows: weight_rows.unwrap_or(0),
            chunk,
            n_chunks: sides.channels.div_ceil(chunk),
            pitch,
            row_pitch: (strip_columns * pitch).next_multiple_of(4),
            strip_rows: rows + sides.size - 1,
            strip_columns,
        }
    }

    /// In f32: the strip and two stages of weights; for few channels the weights in parts and two
    /// strips.
    pub(super) fn shared_bytes(&self, sides: Sides) -> usize {
        let strip = (self.strip_rows * self.row_pitch + 8).next_multiple_of(4);
        if self.flat {
            let steps = (sides.size * self.chunk).div_ceil(8);
            4 * (self.weight_rows * steps * self.eights * 128 + 2 * strip)
        } else {
            4 * (strip + 2 * STEPS * 64 * self.eights)
        }
    }
}

/// How a GPU makes products of windows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Products {
    Warpgroups(Warpgroups),
    Windows(Windows),
}

impl Products {
    pub(super) fn of(limits: Limits, sides: Sides, batch: usize) -> Option<Self> {
        let warpgroups = Warpgroups::of(limits, sides, batch).map(Self::Warpgroups);
        warpgroups.or_else(|| Windows::of(limits, sides).map(Self::Windows))
    }
}

/// A launch of `convolution_rows`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rows {
    /// Warps beside each other.
    pub parts: usize,
    /// Blocks that share the rows of an image.
    pub row_blocks: usize,
    /// Columns of a band, and bands.
    pub band: usize,
    pub n_bands: usize,
    /// Filters at a time, and how often.
    pub chunk: usize,
    pub n_chunks: usize,
}

impl Rows {
    /// The launch with the largest chunks that let two blocks run at once, or at least one; none
    /// for filters that are too large.
    pub(super) fn of(limits: Limits, shape: ConvolutionShape) -> Option<Self> {
        let (width, reach) = (shape.width, shape.size - 1);
        // The least positions that hold the maps, or the fewest bands.
        let fits = |positions: usize, band: usize| {
            band > 0 && (0..width.div_ceil(band)).all(|i| Self::positions(shape, i * band, band) <= positions)
        };
        let (parts, band) =
            [1, 2, 4].into_iter().find(|parts| fits(32 * parts, width)).map(|parts| (parts, width)).or_else(
                || {
                    let widest = 128usize.checked_sub(reach).filter(|&widest| widest >= 32)?;
                    let band = width.div_ceil(width.div_ceil(widest));
                    fits(128, band).then_some((4, band))
                },
            )?;
        let of = |chunk: usize| Self {
            parts,
            row_blocks: shape.height.div_ceil(ROWS * ROW_WARPS / parts),
            band,
            n_bands: width.div_ceil(band),
            chunk,
            n_chunks: shape.n_filters.div_ceil(chunk),
        };
        let most = shape.n_filters.next_multiple_of(8).min(32);
        let within = |bytes: usize| {
            let chunks = [32, 24, 16, 8].into_iter().filter(|&chunk| chunk <= most);
            chunks.map(of).find(|plan| plan.shared_bytes(shape) <= bytes)
        };
        within(share(limits, 2)).or_else(|| within(limits.shared_bytes))
    }

    /// Columns of the maps that reach columns `start..start + band` of the images.
    fn positions(shape: ConvolutionShape, start: usize, band: usize) -> usize {
        let first = (start + shape.pad() + 1).saturating_sub(shape.size);
        let end = shape.out_width().min(shape.width.min(start + band) + shape.pad());
        end.saturating_sub(first)
    }

    /// Weights in parts, and two rows of the maps or the tile of sums, in f32.
    pub(super) fn shared_bytes(&self, shape: ConvolutionShape) -> usize {
        let rows = ROW_STAGES * 32 * self.parts * (self.chunk + 4);
        4 * (shape.size * self.chunk * 32 + rows.max(32 * ROW_WARPS * DIAGONAL))
    }
}

/// How a GPU makes the gradient to images; none where a thread for each entry does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Images {
    Rows(Rows),
    Windows(Products),
}

impl Images {
    pub(super) fn of(limits: Limits, shape: ConvolutionShape, batch: usize) -> Option<Self> {
        let rows = || Rows::of(limits, shape).map(Self::Rows);
        let windows = || Products::of(limits, Sides::images(shape), batch).map(Self::Windows);
        if shape.channels < FEW { rows().or_else(windows) } else { windows().or_else(rows) }
    }
}

#[cfg(test)]
mod tests {
    use super::gradient::Gradient;
    use super::*;
    use crate::core::limits::gpus;
    use crate::images::convolution::Padding;

    fn shapes() -> Vec<ConvolutionShape> {
        let sizes = [
            ((128, 128, 1), 32, 16),
            ((56, 56, 24), 32, 10),
            ((28, 28, 1), 40, 12),
            ((300, 257, 3), 9, 5),
            ((9, 1000, 5), 33, 3),
            ((64, 70, 100), 50, 7),
            ((33, 35, 1), 8, 33),
            ((12, 14, 512), 64, 3),
            ((5, 4, 2), 3, 1),
        ];
        let all = sizes.iter().flat_map(|&(image, n, size)| {
            [Padding::Valid, Padding::Same].map(|padding| ConvolutionShape::new(image, n, size, padding))
        });
        all.collect::<candle::Result<_>>().unwrap_or_default()
    }

    #[test]
    fn every_launch_has_the_shared_memory_it_asks_for() {
        assert_eq!(shapes().len(), 18);
        for limits in gpus::ALL {
            for shape in shapes() {
                let of = |sides| Windows::of(limits, sides).map_or(0, |plan| plan.shared_bytes(sides));
                let of_warpgroups =
                    |sides| Warpgroups::of(limits, sides, 32).map_or(0, |plan| plan.shared_bytes());
                let bytes = [
                    of(Sides::maps(shape)),
                    of(Sides::images(shape)),
                    of_warpgroups(Sides::maps(shape)),
                    of_warpgroups(Sides::images(shape)),
                    Rows::of(limits, shape).map_or(0, |plan| plan.shared_bytes(shape)),
                    Gradient::of(limits, shape, 32).map_or(0, |plan| plan.shared_bytes()),
                ];
                assert!(bytes.iter().all(|&bytes| bytes <= limits.shared_bytes), "{shape:?}: {bytes:?}");
            }
        }
    }

    #[test]
    fn layers_of_the_paper_and_of_many_channels_go_to_the_tensor_cores_with_blocks_enough() {
        let [_, _, _, h200, ..] = gpus::ALL;
        for shape in &shapes()[..4] {
            let sides = Sides::maps(*shape);
            let maps = Windows::of(h200, sides).map(|plan| plan.shared_bytes(sides));
            assert!(maps.is_some_and(|bytes| bytes <= share(h200, 2)), "{shape:?}: {maps:?}");
            assert!(Images::of(h200, *shape, 32).is_some(), "{shape:?}");
            let weights = Gradient::of(h200, *shape, 32).map(|plan| plan.shared_bytes());
            assert!(weights.is_some_and(|bytes| bytes <= share(h200, 2)), "{shape:?}: {weights:?}");
        }
        let paper = Rows::of(h200, shapes()[0]);
        assert_eq!(paper.map(|plan| (plan.parts, plan.n_bands, plan.row_blocks)), Some((4, 1, 16)));
    }

    #[test]
    fn the_blocks_of_a_launch_cover_the_result_and_their_strips_the_windows() {
        for limits in gpus::ALL {
            for shape in shapes() {
                for sides in [Sides::maps(shape), Sides::images(shape)] {
                    let Some(plan) = Windows::of(limits, sides) else { continue };
                    assert!(plan.band * plan.n_bands >= sides.out_width, "{plan:?}");
                    let positions = if plan.flat { FLAT_POSITIONS } else { POSITIONS };
                    assert!(plan.tiles * positions >= plan.band * sides.out_height, "{plan:?}");
                    assert!(plan.eights <= 4 && plan.eights * plan.across * 8 >= sides.n_out, "{plan:?}");
                    assert!(plan.chunk * plan.n_chunks >= sides.channels, "{plan:?}");
                    for tile in 0..plan.tiles {
                        let first = tile * positions / plan.band;
                        let last = (((tile + 1) * positions - 1) / plan.band).min(sides.out_height - 1);
                        assert!(last + sides.size - first <= plan.strip_rows, "{plan:?}");
                    }
                }
                for sides in [Sides::maps(shape), Sides::images(shape)] {
                    let Some(plan) = Warpgroups::of(limits, sides, 3) else { continue };
                    assert!(8 * plan.down * plan.tiles_down >= sides.out_height, "{plan:?}");
                    assert!(8 * plan.across * plan.tiles_across >= sides.out_width, "{plan:?}");
                    assert!(plan.columns * plan.blocks_across >= sides.n_out, "{plan:?}");
                    assert!(4 * plan.planes * plan.stages * plan.n_chunks >= sides.channels, "{plan:?}");
                    assert!(plan.planes.is_multiple_of(2) && plan.planes <= 8, "{plan:?}");
                }
                if let Some(plan) = Rows::of(limits, shape) {
                    assert!(plan.band * plan.n_bands >= shape.width, "{plan:?}");
                    assert!(plan.row_blocks * ROWS * ROW_WARPS / plan.parts >= shape.height, "{plan:?}");
                    let positions = |i| Rows::positions(shape, i * plan.band, plan.band);
                    assert!((0..plan.n_bands).all(|i| positions(i) <= 32 * plan.parts), "{plan:?}");
                }
                if let Some(plan) = Gradient::of(limits, shape, 3) {
                    assert!(
                        plan.depth.is_multiple_of(8) && plan.depth * plan.column_blocks >= shape.out_width()
                    );
                    assert!(plan.rows * plan.row_blocks >= shape.out_height(), "{plan:?}");
                    assert!(plan.splits <= 3 * plan.row_blocks * plan.column_blocks, "{plan:?}");
                    assert!(!plan.warpgroups || plan.rows * plan.depth * plan.filters <= 4096, "{plan:?}");
                }
            }
        }
    }
}
