//! The launches of `kernels/images/convolution_spectra.cu`, and when they are used.
use super::MANY;
use crate::core::limits::Limits;
use crate::images::convolution::ConvolutionShape;
use crate::images::convolution::tiles::Tiles;

/// Of the kernels: threads of a block of transforms, and terms of a step of products.
const THREADS: usize = 256;
const STEP: usize = 8;
/// Rows and columns of a warp of products.
pub(in super::super) const WARP: usize = 32;
/// Spectra begin on so many bytes.
const ALIGN: usize = 256;

/// Which of the three ops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Of {
    Maps,
    Images,
    Weights,
}

/// How spectra are made and multiplied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) struct Spectra {
    pub tiles: Tiles,
    /// Images at a time.
    pub images: usize,
    /// Blocks that share the terms of a product.
    pub splits: usize,
    /// Warps of a block of products, below and beside each other.
    pub down: usize,
    pub across: usize,
    /// Where the spectra of the two operands and of the results begin in the room, in bytes.
    pub starts: [usize; 3],
}

/// Pairs of channels or filters.
pub(in super::super) fn pairs(n: usize) -> usize {
    n.div_ceil(2)
}

/// Those of real places of which no two are conjugates.
fn frequencies(side: usize) -> usize {
    side * side / 2 + 2
}

/// About how many nanoseconds sums of products take, as measured on an H200: at the GFLOP/s of the
/// kernels that [`Products`](super::Products) and [`Gradient`](super::gradient::Gradient) choose
/// there, and for few images as long as the terms of one sum.
fn of_sums(of: Of, shape: ConvolutionShape, batch: usize) -> f64 {
    let places = shape.size * shape.size;
    let (columns, terms) = match of {
        Of::Maps => (shape.n_filters, places * shape.channels),
        Of::Images => (shape.channels, places * shape.n_filters),
        Of::Weights => (shape.n_filters, 0),
    };
    let many = shape.channels >= MANY && shape.n_filters >= MANY;
    let rate = match of {
        Of::Weights if many => 45e3,
        Of::Maps | Of::Images if many && columns > 32 => 75e3,
        Of::Maps | Of::Images if many => 40e3,
        _ if shape.channels > 1 => 25e3,
        Of::Maps => 46e3,
        Of::Images | Of::Weights => 36e3,
    };
    let of_one_sum = 130. * (terms / STEP) as f64 * if columns > 32 { 2. } else { 1. };
    // Of the weights, parts are added by a second launch.
    let launches = if of == Of::Weights { 12e3 } else { 5e3 };
    launches + of_one_sum.max(batch as f64 * shape.flop() as f64 / rate)
}

impl Spectra {
    /// The faster side of tiles; none where sums of products are about as fast or faster, and where
    /// the room is too small.
    pub(in super::super) fn of(
        limits: Limits,
        of: Of,
        shape: ConvolutionShape,
        batch: usize,
    ) -> Option<Self> {
        // Not measured elsewhere.
        if !limits.has_warpgroup_products() || batch == 0 {
            return None;
        }
        let plans = [16, 32].into_iter().filter_map(|side| Self::with(limits, of, shape, batch, side));
        let plans = plans.map(|plan| (plan.nanoseconds(of, shape, batch), plan));
        let (fastest, plan) = plans.min_by(|(a, _), (b, _)| a.total_cmp(b))?;
        (fastest < 0.9 * of_sums(of, shape, batch)).then_some(plan)
    }

    fn with(limits: Limits, of: Of, shape: ConvolutionShape, batch: usize, side: usize) -> Option<Self> {
        let tiles = match of {
            Of::Images => Tiles::of_images(shape, side)?,
            Of::Maps | Of::Weights => Tiles::of_maps(shape, side)?,
        };
        let (channels, filters) = (pairs(shape.channels), pairs(shape.n_filters));
        // Bytes of a row of pairs, of all frequencies.
        let of_row = |pairs: usize| 16 * frequencies(side) * pairs;
        let of_filters = of_row(channels) * shape.n_filters;
        let of_image = tiles.count() * (of_row(channels) + of_row(filters));
        let (m, n) = match of {
            Of::Maps => (usize::MAX, 2 * filters),
            Of::Images => (usize::MAX, 2 * channels),
            Of::Weights => (shape.n_filters, 2 * channels),
        };
        let (down, across) = (if n.max(m) > WARP { 2 } else { 1 }, if n > WARP { 2 } else { 1 });
        let chunk = |splits: usize| {
            let most = Limits::ROOM.checked_sub(splits * of_filters + 3 * ALIGN)? / of_image;
            (most > 0).then(|| batch.div_ceil(batch.div_ceil(most)))
        };
        let splits = if of == Of::Weights {
            let blocks = frequencies(side) * m.div_ceil(WARP * down) * n.div_ceil(WARP * across);
            let wanted = (4 * limits.multiprocessors).div_ceil(blocks);
            let terms = chunk(1)? * tiles.count();
            (1..=wanted.min(terms.div_ceil(4 * STEP))).rev().find(|&splits| chunk(splits).is_some())?
        } else {
            1
        };
        let images = chunk(splits)?;
        let rows = images * tiles.count();
        let (first, second) = match of {
            Of::Maps => (rows * of_row(channels), of_filters),
            Of::Images => (rows * of_row(filters), of_filters),
            Of::Weights => (rows * of_row(filters), rows * of_row(channels)),
        };
        let second_at = first.next_multiple_of(ALIGN);
        let starts = [0, second_at, second_at + second.next_multiple_of(ALIGN)];
        Some(Self { tiles, images, splits, down, across, starts })
    }

    /// About how many nanoseconds all takes, as measured on an H200: launches, spectra from memory
    /// and to it at 2.5 TB/s, and products at 90 TFLOP/s.
    fn nanoseconds(&self, of: Of, shape: ConvolutionShape, batch: usize) -> f64 {
        let (channels, filters) = (2 * pairs(shape.channels), 2 * pairs(shape.n_filters));
        let (rows, frequencies) = (batch * self.tiles.count(), self.frequencies() as f64);
        let of_rows = rows as f64 * (channels + filters) as f64;
        let bytes = 16. * frequencies * (of_rows + (shape.n_filters * channels * self.splits) as f64);
        let [m, n, terms] = match of {
            Of::Maps => [rows, filters, channels],
            Of::Images => [rows, channels, filters],
            Of::Weights => [filters, channels, rows],
        };
        let (m, n) = (m.next_multiple_of(WARP * self.down), n.next_multiple_of(WARP * self.across));
        let flop = 8. * frequencies * m as f64 * n as f64 * terms.next_multiple_of(STEP) as f64;
        let launches = 1 + 3 * batch.div_ceil(self.images);
        3300. * launches as f64 + bytes / 2.5e3 + flop / 90e3
    }

    pub(in super::super) fn frequencies(&self) -> usize {
        frequencies(self.tiles.side)
    }

    /// Blocks of a transform of so many rows of pairs, and bytes that each shares.
    pub(in super::super) fn transforms(&self, items: usize) -> (usize, usize) {
        let side = self.tiles.side;
        let pairs = THREADS / side;
        let column = side * pairs + if pairs < 16 { 8 } else { 0 };
        (items.div_ceil(pairs), 8 * side * column)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::core::limits::gpus;
    use crate::images::convolution::Padding;

    const H200: Limits = gpus::ALL[3];

    fn shapes() -> Vec<ConvolutionShape> {
        let sizes = [
            ((56, 56, 24), 32, 10),
            ((64, 64, 64), 64, 5),
            ((31, 47, 17), 33, 7),
            ((32, 32, 128), 128, 3),
            ((28, 28, 1), 32, 9),
            ((16, 16, 5), 3, 16),
        ];
        let all = sizes.iter().flat_map(|&(image, n, size)| {
            [Padding::Valid, Padding::Same].map(|padding| ConvolutionShape::new(image, n, size, padding))
        });
        all.collect::<candle::Result<_>>().unwrap_or_default()
    }

    fn chosen((image, n, size): ((usize, usize, usize), usize, usize), batch: usize) -> [Option<usize>; 3] {
        let shape = ConvolutionShape::new(image, n, size, Padding::Valid).unwrap();
        [Of::Maps, Of::Images, Of::Weights]
            .map(|of| Spectra::of(H200, of, shape, batch).map(|plan| plan.tiles.side))
    }

    #[test]
    fn the_faster_form_is_chosen_as_measured() {
        let many = ((64, 64, 64), 64, 5);
        assert_eq!([1, 8, 32, 100].map(|batch| chosen(many, batch)), [[Some(16); 3]; 4]);
        assert_eq!(chosen(((56, 56, 24), 32, 10), 1), [Some(16); 3]);
        assert_eq!(chosen(((56, 56, 24), 32, 10), 32), [Some(32); 3]);
        assert_eq!(chosen(((224, 224, 3), 64, 7), 32), [Some(32); 3]);
        assert_eq!(chosen(((32, 32, 128), 128, 3), 32), [None, None, Some(32)]);
        assert_eq!(chosen(((28, 28, 1), 32, 9), 256), [None; 3]);
        assert_eq!(chosen(((128, 128, 1), 32, 16), 32), [None; 3]);
        assert_eq!(chosen(((40, 40, 24), 32, 2), 32), [None; 3]);
    }

    #[test]
    fn shapes_of_the_parity_tests_go_to_both_sides() {
        assert_eq!(chosen(((40, 37, 23), 33, 9), 3)[..2], [Some(16); 2]);
        assert_eq!(chosen(((45, 44, 16), 16, 20), 3), [Some(32); 3]);
        assert_eq!(chosen(((60, 50, 5), 40, 11), 3)[1], Some(32));
    }

    #[test]
    fn spectra_of_a_chunk_fit_the_room_and_tiles_cover_the_results() {
        assert_eq!(shapes().len(), 12);
        let mut seen = 0;
        for (shape, batch) in
            shapes().into_iter().flat_map(|shape| [1, 3, 32, 1000].map(|batch| (shape, batch)))
        {
            for (of, side) in
                [Of::Maps, Of::Images, Of::Weights].into_iter().flat_map(|of| [(of, 16), (of, 32)])
            {
                let Some(plan) = Spectra::with(H200, of, shape, batch, side) else { continue };
                let (rows, line) = match of {
                    Of::Maps => (plan.images * plan.tiles.count(), pairs(shape.n_filters)),
                    Of::Images => (plan.images * plan.tiles.count(), pairs(shape.channels)),
                    Of::Weights => (plan.splits * shape.n_filters, pairs(shape.channels)),
                };
                let end = plan.starts[2] + 16 * plan.frequencies() * rows * line;
                assert!(end <= Limits::ROOM, "{plan:?}: {end}");
                assert!(plan.starts.iter().all(|start| start.is_multiple_of(ALIGN)), "{plan:?}");
                assert!((1..=batch).contains(&plan.images) && plan.splits > 0, "{plan:?}");
                let (height, width) = if of == Of::Images {
                    (shape.height, shape.width)
                } else {
                    (shape.out_height(), shape.out_width())
                };
                assert!(plan.tiles.down * plan.tiles.step >= height, "{plan:?}");
                assert!(plan.tiles.across * plan.tiles.step >= width, "{plan:?}");
                seen += 1;
            }
        }
        assert!(seen > 200, "{seen}");
    }
}
