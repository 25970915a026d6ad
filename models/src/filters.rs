//! What the units of a layer look for in raw rows: filters, for the tiles of a picture.
//!
//! Of the lowest layer these are the weights, taken back through the preparation ([`patterns`]). A
//! unit of an upper layer is shown by what it gives to the pixels through the layers below without
//! their biases and non-linearities: the sum of the patterns of the units below, weighted by its
//! weights (Lee, Ekanadham and Ng, "Sparse deep belief net model for visual area V2", 2007, section
//! 4). A pooled unit is shown as the unit in the middle of its block.
use crate::conv_rbm::{ConvGrid, Padding};
use crate::dbn::Dbn;
use crate::rbm::{Rbm, RbmConfig, RbmConnections};
use candle::{D, DType, Error, Result, Tensor};
use chandlery_datasets::{ImageShape, Preparation};
use chandlery_ops::arrays::elementwise::{contiguous, sqr, sub};
use chandlery_ops::arrays::gather_rows;
use std::ops::Range;

/// What some units of a layer look for.
#[derive(Debug, Clone)]
pub struct Filters {
    /// What the units look for in raw rows, `[n, values of a tile]` f32.
    pub rows: Tensor,
    /// The image, or the part of it that a unit sees.
    pub tile: ImageShape,
    /// Whether a tile is a part of the image.
    pub windows: bool,
}

/// A hidden unit: its place on the grid of hidden units, and its index at that place; of a dense
/// layer the only place is (0, 0).
type Unit = ((usize, usize), usize);

impl Filters {
    /// At most `n` units of layer `layer`, counted from 0, with the largest norm, of all patches
    /// alike where it has patches; `image` is that of a row.
    ///
    /// # Errors
    /// When there is no such layer, or the device fails.
    pub fn of(dbn: &Dbn, layer: usize, image: ImageShape, n: usize) -> Result<Self> {
        let n_layers = dbn.layers().len();
        ensure!(layer < n_layers, "Filters: layer must be below {n_layers}, got {layer}");
        let rbm = &dbn.layers()[layer];
        let units = chosen(rbm, n)?;
        let each = one_by_one(rbm.config(), &units);
        let mut down = Tensor::from_vec(each, (units.len(), rbm.config().n_hidden), rbm.weight().device())?;
        for rbm in dbn.layers()[..=layer].iter().rev() {
            let (rbm, units) = without_pooling(rbm, &down)?;
            let none = Tensor::zeros((1, units.dim(1)?), units.dtype(), units.device())?;
            down = sub(&rbm.visible_input(&units)?, &rbm.visible_input(&none)?)?;
        }
        let rows = patterns(&down.to_dtype(DType::F32)?, &dbn.config().preparation)?;
        let configs = &dbn.config().layers[..=layer];
        let seen: Option<Vec<_>> = units.iter().map(|&(place, _)| seen(configs, place)).collect();
        let parts =
            seen.filter(|parts| parts.iter().all(|[y, x]| y.end <= image.height && x.end <= image.width));
        let Some(parts) = parts else {
            return Ok(Self { rows, tile: image, windows: false });
        };
        let (height, width) = parts.iter().fold((0, 0), |(h, w), [y, x]| (h.max(y.len()), w.max(x.len())));
        let tile = ImageShape { height, width, ..image };
        Ok(Self { rows: cut(&rows, &parts, image, tile)?, tile, windows: true })
    }
}

/// The `n` rows with the largest Euclidean norm, the largest first; all of them when there are
/// fewer.
///
/// Of a layer's weights these are the filters that have learnt something. Rows of equal norm stay
/// in their order; a row with a NaN comes last.
///
/// # Errors
/// When `rows` is not a matrix.
pub fn largest_rows(rows: &Tensor, n: usize) -> Result<Tensor> {
    let norms = sqr(&rows.to_dtype(DType::F32)?)?.sum(D::Minus1)?.to_vec1::<f32>()?;
    let key = |index: u32| {
        let norm = norms.get(index as usize).copied().unwrap_or(f32::NAN);
        if norm.is_nan() { f32::NEG_INFINITY } else { norm }
    };
    let mut order: Vec<u32> = (0..norms.len() as u32).collect();
    order.sort_by(|&a, &b| key(b).total_cmp(&key(a)));
    order.truncate(n);
    gather_rows(&contiguous(rows)?, &order)
}

/// What units look for, as raw rows show it: their weights, `[n, n_visible]`, without what rows
/// would gain by their mean.
///
/// # Errors
/// When the weights do not fit the preparation.
pub fn patterns(weights: &Tensor, preparation: &Preparation) -> Result<Tensor> {
    let inverse = |values: &Tensor| preparation.inverse(values).map_err(Error::wrap);
    sub(&inverse(weights)?, &inverse(&weights.zeros_like()?)?)
}

/// At most `n` units, those with the largest norm: of each patch the same number, one more or one
/// less, ordered by patch, and of some of the patches where there are more than `n`; of a
/// convolution at the middle of its maps.
fn chosen(rbm: &Rbm, n: usize) -> Result<Vec<Unit>> {
    let norms = sqr(&rbm.weight().to_dtype(DType::F32)?)?.sum(D::Minus1)?;
    let places: Vec<(usize, usize)> = match (rbm.config().patch_grid(), rbm.config().hidden_places()) {
        (Some(grid), _) => {
            let n_patches = grid.n_patches();
            let patches: Vec<usize> = match n_patches > n {
                true => (0..n).map(|i| i * n_patches / n).collect(),
                false => (0..n_patches).collect(),
            };
            patches.into_iter().map(|patch| (patch / grid.across(), patch % grid.across())).collect()
        }
        (None, Some([height, width, _])) => vec![(height / 2, width / 2)],
        (None, None) => vec![(0, 0)],
    };
    // Of each place: the same for all where weights are shared.
    let norms = match rbm.config().patch_grid() {
        Some(grid) => {
            let norms = norms.to_vec2::<f32>()?;
            places.iter().map(|(y, x)| norms[y * grid.across() + x].clone()).collect()
        }
        None => vec![norms.to_vec1::<f32>()?],
    };
    let by_norm = |(place, norms): (&(usize, usize), &Vec<f32>)| {
        let key = |unit: usize| if norms[unit].is_nan() { f32::NEG_INFINITY } else { norms[unit] };
        let mut units: Vec<usize> = (0..norms.len()).collect();
        units.sort_by(|&a, &b| key(b).total_cmp(&key(a)));
        let place = *place;
        units.into_iter().enumerate().map(move |(rank, unit)| (rank, place, unit)).collect::<Vec<_>>()
    };
    let mut units: Vec<_> = places.iter().zip(&norms).flat_map(by_norm).collect();
    units.sort_unstable();
    units.truncate(n);
    units.sort_by_key(|&(rank, place, _)| (place, rank));
    Ok(units.into_iter().map(|(_, place, unit)| (place, unit)).collect())
}

/// Rows of hidden units, each with one of `units` on alone.
fn one_by_one(layer: &RbmConfig, units: &[Unit]) -> Vec<f32> {
    let [_, width, depth] = layer.hidden_places().unwrap_or([1, 1, layer.n_hidden]);
    let mut rows = vec![0f32; units.len() * layer.n_hidden];
    for (&((y, x), unit), row) in units.iter().zip(rows.chunks_mut(layer.n_hidden)) {
        row[(y * width + x) * depth + unit] = 1.;
    }
    rows
}

/// The same RBM without pooling, and the rows of its units in which each pooled unit is that in the
/// middle of its block.
fn without_pooling(rbm: &Rbm, pooled: &Tensor) -> Result<(Rbm, Tensor)> {
    let Some(grid) = rbm.config().filter_grid().filter(|grid| grid.pool > 1) else {
        return Ok((rbm.clone(), pooled.clone()));
    };
    let config = RbmConfig {
        n_hidden: grid.n_units(),
        connections: RbmConnections::Filters(ConvGrid { pool: 1, ..grid }),
        ..rbm.config().clone()
    };
    let [weight, bias, visible_bias] = [rbm.weight(), rbm.bias(), rbm.visible_bias()].map(Tensor::clone);
    let (p, maps) = (grid.pool, grid.n_filters);
    let across = grid.maps_width() / p;
    let mut rows = Vec::with_capacity(pooled.dim(0)? * grid.n_units());
    for row in pooled.to_dtype(DType::F32)?.to_vec2::<f32>()? {
        let start = rows.len();
        rows.resize(start + grid.n_units(), 0f32);
        for (i, value) in row.into_iter().enumerate() {
            let (place, map) = (i / maps, i % maps);
            let (y, x) = (place / across * p + p / 2, place % across * p + p / 2);
            rows[start + (y * grid.maps_width() + x) * maps + map] = value;
        }
    }
    let rows = Tensor::from_vec(rows, (pooled.dim(0)?, grid.n_units()), pooled.device())?;
    Ok((Rbm::from_tensors(config, weight, bias, visible_bias, None)?, rows))
}

/// The lines and columns of the image that a hidden place of the topmost of `layers` sees through
/// those below; none where one is dense.
fn seen(layers: &[RbmConfig], (y, x): (usize, usize)) -> Option<[Range<usize>; 2]> {
    let start = [y..y + 1, x..x + 1];
    layers.iter().rev().try_fold(start, |[y, x], layer| {
        let [_, height, width, _] = layer.visible_places()?;
        Some([below(layer, y, height), below(layer, x, width)])
    })
}

/// The places of a layer's grid, of a side of `side`, that a range of its hidden places sees.
fn below(layer: &RbmConfig, places: Range<usize>, side: usize) -> Range<usize> {
    match &layer.connections {
        RbmConnections::Patches(grid) => {
            places.start * grid.stride..(places.end - 1) * grid.stride + grid.window
        }
        RbmConnections::Filters(grid) => {
            // Lines of zeros before the image, see `Padding`.
            let before = if grid.padding == Padding::Same { (grid.size - 1) / 2 } else { 0 };
            let middle = |place: usize| (place * grid.pool + grid.pool / 2) * grid.stride;
            let (first, last) = (middle(places.start), middle(places.end - 1));
            first.saturating_sub(before)..(last + grid.size).saturating_sub(before).min(side)
        }
        RbmConnections::Dense => 0..side,
    }
}

/// The parts of images, `[n, channels · height · width]`, that units see, each at the upper left of
/// a tile.
fn cut(rows: &Tensor, parts: &[[Range<usize>; 2]], image: ImageShape, tile: ImageShape) -> Result<Tensor> {
    let mut tiles = Vec::with_capacity(parts.len() * tile.n_features());
    for ([lines, columns], row) in parts.iter().zip(rows.to_vec2::<f32>()?) {
        for channel in 0..image.channels {
            for y in 0..tile.height {
                for x in 0..tile.width {
                    let (y, x) = (lines.start + y, columns.start + x);
                    let inside = lines.contains(&y) && columns.contains(&x);
                    let at = (channel * image.height + y) * image.width + x;
                    tiles.push(if inside { row[at] } else { 0. });
                }
            }
        }
    }
    Tensor::from_vec(tiles, (parts.len(), tile.n_features()), rows.device())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::Philox;
    use crate::dbn::DbnConfig;
    use crate::patch_rbm::PatchGrid;
    use candle::Device::Cpu;

    const IMAGE: ImageShape = ImageShape { height: 4, width: 6, channels: 3 };

    fn network(layers: Vec<RbmConfig>, image: ImageShape) -> Dbn {
        let config = DbnConfig { layers, image: Some(image), ..DbnConfig::new(&[1, 1]) };
        Dbn::init(config, Philox::new(3, 0), &Cpu).unwrap()
    }

    /// Windows of 2x2 every 2 on 4x6 pixels of 3 channels, 5 units each: 6 patches.
    fn patches() -> Dbn {
        network(vec![RbmConfig::patches(PatchGrid::of_image(IMAGE, 2, 2), 5).unwrap()], IMAGE)
    }

    #[test]
    fn units_are_spread_over_patches_and_are_the_largest_of_each() {
        let dbn = patches();
        let rbm = &dbn.layers()[0];
        let patches =
            |n| -> Vec<usize> { chosen(rbm, n).unwrap().into_iter().map(|((y, x), _)| 3 * y + x).collect() };
        assert_eq!(patches(3), [0, 2, 4]);
        assert_eq!(patches(6), [0, 1, 2, 3, 4, 5]);
        assert_eq!(patches(8), [0, 0, 1, 1, 2, 3, 4, 5]);
        assert_eq!(patches(100).len(), 30);
        let norms = rbm.weight().sqr().unwrap().sum(2).unwrap().to_vec2::<f32>().unwrap();
        for ((y, x), unit) in chosen(rbm, 6).unwrap() {
            let norms = &norms[3 * y + x];
            assert!(norms.iter().all(|norm| *norm <= norms[unit]));
        }
    }

    #[test]
    fn a_tile_holds_the_weights_of_a_unit_as_its_window_lies_in_the_image() {
        let dbn = patches();
        let filters = Filters::of(&dbn, 0, IMAGE, 6).unwrap();
        assert_eq!((filters.tile, filters.windows), (ImageShape { height: 2, width: 2, channels: 3 }, true));
        let weights = dbn.layers()[0].weight().to_vec3::<f32>().unwrap();
        let units = chosen(&dbn.layers()[0], 6).unwrap();
        for (row, ((y, x), unit)) in filters.rows.to_vec2::<f32>().unwrap().iter().zip(units) {
            assert_eq!(row, &weights[3 * y + x][unit]);
        }
    }

    #[test]
    fn a_tile_of_a_filter_has_its_channels_as_planes() {
        let image = ImageShape { width: 7, ..IMAGE };
        let grid = ConvGrid { pool: 3, ..ConvGrid::of_image(image, 2, 4) };
        let dbn = network(vec![RbmConfig::convolution(grid).unwrap()], image);
        let filters = Filters::of(&dbn, 0, image, 4).unwrap();
        assert_eq!(filters.tile, ImageShape { height: 2, width: 2, channels: 3 });
        let weights = dbn.layers()[0].weight().to_vec2::<f32>().unwrap();
        let units = chosen(&dbn.layers()[0], 4).unwrap();
        for (row, (_, unit)) in filters.rows.to_vec2::<f32>().unwrap().iter().zip(units) {
            for (i, value) in row.iter().enumerate() {
                assert_eq!(*value, weights[unit][i % 4 * 3 + i / 4]);
            }
        }
    }

    /// With weights of 1 a unit of the second layer reaches exactly the pixels that it is said to
    /// see.
    #[test]
    fn what_an_upper_unit_sees_is_what_it_reaches() {
        let image = ImageShape::grey(19, 17);
        let first = |padding, pool| ConvGrid { padding, pool, ..ConvGrid::of_image(image, 4, 2) };
        let patches = RbmConfig::patches(PatchGrid::of_image(image, 5, 2), 3).unwrap();
        let firsts = [
            RbmConfig::convolution(first(Padding::Valid, 2)).unwrap(),
            RbmConfig::convolution(first(Padding::Same, 1)).unwrap(),
            patches,
        ];
        for lower in firsts {
            let upper = [
                RbmConfig::patches(lower.hidden_grid(3, 1).unwrap(), 2).unwrap(),
                RbmConfig::convolution(lower.hidden_conv_grid(3, 2).unwrap()).unwrap(),
                RbmConfig::convolution(ConvGrid {
                    padding: Padding::Same,
                    ..lower.hidden_conv_grid(2, 2).unwrap()
                })
                .unwrap(),
            ];
            for upper in upper {
                let layers = vec![lower.clone(), upper];
                let dbn = network(layers.clone(), image);
                let ones = dbn.layers().iter().map(|rbm| {
                    let of = |t: &Tensor| t.ones_like().unwrap();
                    Rbm::from_tensors(
                        rbm.config().clone(),
                        of(rbm.weight()),
                        of(rbm.bias()),
                        of(rbm.visible_bias()),
                        None,
                    )
                    .unwrap()
                });
                let dbn = Dbn::from_layers(dbn.config().clone(), ones.collect()).unwrap();
                let filters = Filters::of(&dbn, 1, image, 2).unwrap();
                let rows = filters.rows.to_vec2::<f32>().unwrap();
                for ((place, _), row) in chosen(&dbn.layers()[1], 2).unwrap().into_iter().zip(rows) {
                    let [y, x] = seen(&layers, place).unwrap();
                    let on = row.iter().filter(|value| **value > 0.).count();
                    assert_eq!(on, y.len() * x.len(), "{layers:?} at {place:?}");
                }
            }
        }
    }

    #[test]
    fn units_on_a_dense_layer_are_shown_on_the_whole_image() {
        let grid = ConvGrid::of_image(IMAGE, 2, 4);
        let lower = RbmConfig::convolution(grid).unwrap();
        let upper = RbmConfig::new(lower.n_hidden, 7);
        let filters = Filters::of(&network(vec![lower, upper], IMAGE), 1, IMAGE, 5).unwrap();
        assert_eq!((filters.tile, filters.rows.dims(), filters.windows), (IMAGE, &[5, 72][..], false));
    }

    #[test]
    fn the_largest_rows_come_first_and_a_nan_last() {
        let rows = Tensor::new(&[[1f32, 0.], [f32::NAN, 9.], [3., 4.], [0., -2.]], &Cpu).unwrap();
        let top = largest_rows(&rows, 2).unwrap().to_vec2::<f32>().unwrap();
        assert_eq!(top, [[3., 4.], [0., -2.]]);
        let all = largest_rows(&rows, 9).unwrap().to_vec2::<f32>().unwrap();
        assert_eq!(all.len(), 4);
        assert!(all[3][0].is_nan());
    }
}
