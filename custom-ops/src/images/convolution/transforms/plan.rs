//! Which form of a convolution takes least time, from its sizes.
//!
//! Costs are counted in operations on vectors of lanes, with factors that were measured on an AMD
//! EPYC of two cores and 8 lanes:
//!
//! ```text
//! transform of a square of T · T, of which there are n lines        12 · T log₂ T · (n/2 + T/2 + 1)
//! product of two numbers of a spectrum, for a vector of lanes       4 · 1.6
//! number of a spectrum of the filters, in memory                    6
//! the direct form, and gathered windows                             1 and 1.7 an operation
//! ```
use super::super::tiles::Tiles;
use super::super::{ConvolutionShape, direct};

/// The ops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Op {
    Maps,
    Images,
    Weights,
}

/// Sides of tiles that there are.
pub(super) const SIDES: [usize; 2] = [16, 32];

/// The side of tiles with which transforms take clearly less time than the other forms for a batch
/// in f32, with vectors of so many lanes; none where they do not.
pub(super) fn side(op: Op, shape: ConvolutionShape, batch: usize, lanes: usize) -> Option<usize> {
    /// The share of the time from which transforms are taken.
    const CLEARLY: f64 = 0.85;
    if shape.stride != 1 || batch == 0 {
        return None;
    }
    let costs = SIDES.iter().filter_map(|&side| Some((side, by_transforms(op, shape, batch, lanes, side)?)));
    let (side, cost) = costs.min_by(|(_, a), (_, b)| a.total_cmp(b))?;
    (cost < CLEARLY * by_sums(op, shape, batch, lanes)).then_some(side)
}

/// The cost of sums of products, by the form that serves these sizes.
fn by_sums(op: Op, shape: ConvolutionShape, batch: usize, lanes: usize) -> f64 {
    let sums = batch as f64 * shape.flop() as f64 / (2 * lanes) as f64;
    let (direct, factor) = match op {
        Op::Maps => (direct::serves_filters(shape), 1.),
        Op::Images => (direct::serves_channels(shape), 1.1),
        Op::Weights => (direct::serves_filters(shape), 1.2),
    };
    sums * if direct { factor } else { 1.7 }
}

/// The cost of transforms; none for filters as large as a tile, and for so many that their spectra
/// would fill the memory.
fn by_transforms(op: Op, shape: ConvolutionShape, batch: usize, lanes: usize, side: usize) -> Option<f64> {
    /// Complex numbers of the spectra of all filters: 64 MiB.
    const MOST: usize = 1 << 23;
    /// The start of the tasks, and memory for them.
    const START: f64 = 1e5;
    const PRODUCT: f64 = 4. * 1.6;
    const IN_MEMORY: f64 = 6.;
    let (tiles, depth, results) = match op {
        Op::Maps => (Tiles::of_maps(shape, side)?, shape.channels, shape.n_filters),
        Op::Images => (Tiles::of_images(shape, side)?, shape.n_filters, shape.channels),
        Op::Weights => (Tiles::of_maps(shape, side)?, shape.channels, shape.n_filters),
    };
    let vectors = results.div_ceil(lanes);
    let spectra = tiles.frequencies().checked_mul(depth)?.checked_mul(vectors * lanes)?;
    if spectra > MOST {
        return None;
    }
    let transform = |lines: usize| {
        let of_line = (12 * side * side.ilog2() as usize) as f64;
        of_line * (lines.div_ceil(2) + side / 2 + 1) as f64
    };
    let (depth, vectors) = (depth as f64, vectors as f64);
    let squares = (batch * tiles.count()) as f64;
    let of_square = depth / lanes as f64 * transform(side)
        + vectors * transform(tiles.step)
        + PRODUCT * tiles.frequencies() as f64 * depth * vectors;
    let of_filters = depth * vectors * transform(shape.size);
    Some(START + squares * of_square + of_filters + IN_MEMORY * spectra as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::images::Padding;

    fn sides(image: (usize, usize, usize), n: usize, size: usize, batch: usize) -> [Option<usize>; 3] {
        let shape = ConvolutionShape { stride: 1, ..of(image, n, size) };
        [Op::Maps, Op::Images, Op::Weights].map(|op| side(op, shape, batch, 8))
    }

    fn of(
        (height, width, channels): (usize, usize, usize),
        n_filters: usize,
        size: usize,
    ) -> ConvolutionShape {
        ConvolutionShape { height, width, channels, n_filters, size, padding: Padding::Valid, stride: 1 }
    }

    #[test]
    fn many_channels_and_large_filters_are_transformed_and_others_are_not() {
        for batch in [1, 8, 100] {
            assert_eq!(sides((64, 64, 64), 64, 5, batch), [Some(16); 3], "{batch}");
            assert!(sides((56, 56, 24), 32, 10, batch).iter().all(Option::is_some), "{batch}");
            assert_eq!(sides((28, 28, 1), 32, 9, batch), [None; 3], "{batch}");
            assert_eq!(sides((64, 64, 64), 64, 1, batch), [None; 3], "{batch}");
        }
        assert_eq!(sides((128, 128, 1), 32, 16, 32), [Some(32), None, Some(32)]);
        assert_eq!(sides((300, 300, 1), 16, 40, 8), [None; 3]);
    }

    #[test]
    fn strides_and_spectra_without_end_are_not_transformed() {
        let shape = of((64, 64, 64), 64, 5);
        assert!(side(Op::Maps, shape, 8, 16).is_some());
        assert_eq!(side(Op::Maps, ConvolutionShape { stride: 2, ..shape }, 8, 16), None);
        assert_eq!(side(Op::Maps, shape, 0, 16), None);
        assert_eq!(by_transforms(Op::Maps, of((64, 64, 4096), 4096, 5), 8, 16, 16), None);
        assert_eq!(by_transforms(Op::Maps, of((64, 64, 1), 8, 33), 8, 8, 32), None);
    }
}
