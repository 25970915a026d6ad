//! The weights of a lowest layer's units, as tiles of a picture.
use crate::pictures::{largest_rows, patterns};
use anyhow::Result;
use candle::{D, DType, Tensor};
use chandlery::dbn::Dbn;
use chandlery::patch_rbm::PatchGrid;
use chandlery::rbm::Rbm;
use chandlery_datasets::{ImageShape, Preparation, count};

/// Tiles, and what they are.
pub struct Filters {
    /// What the units look for in raw rows, `[n, values of a tile]`.
    pub rows: Tensor,
    /// The image or window that a unit sees.
    pub tile: ImageShape,
    /// One sentence without its end.
    pub caption: String,
}

impl Filters {
    /// At most `n` units of the lowest layer with the largest norm, of all patches alike where it has patches; `image` is that of a row.
    pub fn of(dbn: &Dbn, image: ImageShape, n: usize) -> Result<Self> {
        let lowest = &dbn.layers()[0];
        let preparation = &dbn.config().preparation;
        match &lowest.config().patches {
            None => {
                let rows = patterns(&largest_rows(lowest.weight(), n)?, preparation)?;
                let n = rows.dim(0)?;
                let caption =
                    format!("weights of the {n} lowest-layer units with the largest norm; mid-grey is 0");
                Ok(Self { rows, tile: image, caption })
            }
            Some(grid) => {
                let tile = ImageShape {
                    height: grid.window,
                    width: grid.window,
                    channels: grid.planes * grid.depth,
                };
                let units = chosen(lowest, grid, n)?;
                let caption = format!(
                    "weights of {} of the lowest layer, those with the largest norm of {} spread over the image; each sees a window of \
                     {w}x{w}; mid-grey is 0",
                    count(units.len(), "unit"),
                    count(units.len().min(grid.n_patches()), "patch"),
                    w = grid.window
                );
                Ok(Self { rows: windows(lowest, grid, &units, preparation)?, tile, caption })
            }
        }
    }
}

/// At most `n` units as pairs of patch and unit, ordered by patch: of each patch the same number, one more or one less, and those of the
/// largest norm; of some of the patches where there are more than `n`.
fn chosen(rbm: &Rbm, grid: &PatchGrid, n: usize) -> Result<Vec<(usize, usize)>> {
    let norms = rbm.weight().to_dtype(DType::F32)?.sqr()?.sum(D::Minus1)?.to_vec2::<f32>()?;
    let n_patches = grid.n_patches();
    let patches: Vec<usize> = match n_patches > n {
        true => (0..n).map(|i| i * n_patches / n).collect(),
        false => (0..n_patches).collect(),
    };
    let by_norm = |patch: usize| {
        let key =
            |unit: usize| if norms[patch][unit].is_nan() { f32::NEG_INFINITY } else { norms[patch][unit] };
        let mut units: Vec<usize> = (0..norms[patch].len()).collect();
        units.sort_by(|&a, &b| key(b).total_cmp(&key(a)));
        units.into_iter().enumerate().map(move |(rank, unit)| (rank, patch, unit))
    };
    let mut units: Vec<_> = patches.into_iter().flat_map(by_norm).collect();
    units.sort_unstable();
    units.truncate(n);
    units.sort_by_key(|&(rank, patch, _)| (patch, rank));
    Ok(units.into_iter().map(|(_, patch, unit)| (patch, unit)).collect())
}

/// The weights of units in their windows, as raw rows show them: a preparation is one of whole rows.
fn windows(
    rbm: &Rbm,
    grid: &PatchGrid,
    units: &[(usize, usize)],
    preparation: &Preparation,
) -> Result<Tensor> {
    let (n_patches, hidden, window_len) = rbm.weight().dims3()?;
    let index: Vec<u32> = units.iter().map(|(patch, unit)| (patch * hidden + unit) as u32).collect();
    let device = rbm.weight().device();
    let weights = rbm.weight().reshape((n_patches * hidden, window_len))?;
    let weights = weights.index_select(&Tensor::new(index, device)?, 0)?.to_dtype(DType::F32)?;
    let n_visible = grid.n_values();
    let mut rows = vec![0f32; units.len() * n_visible];
    for ((&(patch, _), weights), row) in
        units.iter().zip(weights.to_vec2::<f32>()?).zip(rows.chunks_mut(n_visible))
    {
        for (entry, weight) in weights.into_iter().enumerate() {
            row[grid.place(patch, entry)] = weight;
        }
    }
    let rows = patterns(&Tensor::from_vec(rows, (units.len(), n_visible), device)?, preparation)?;
    let rows = rows.to_vec2::<f32>()?;
    let seen = units
        .iter()
        .zip(&rows)
        .flat_map(|(&(patch, _), row)| (0..window_len).map(move |entry| row[grid.place(patch, entry)]));
    Ok(Tensor::from_vec(seen.collect::<Vec<f32>>(), (units.len(), window_len), device)?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use candle::Device::Cpu;
    use chandlery::Philox;
    use chandlery::dbn::DbnConfig;
    use chandlery::rbm::RbmConfig;

    /// Windows of 2x2 every 2 on 4x6 pixels of 3 channels, 5 units each: 6 patches.
    fn network() -> (Dbn, PatchGrid, ImageShape) {
        let image = ImageShape { height: 4, width: 6, channels: 3 };
        let grid = PatchGrid::of_image(image, 2, 2);
        let layers = vec![RbmConfig::patches(grid, 5).unwrap()];
        let config = DbnConfig { layers, image: Some(image), ..DbnConfig::new(&[1, 1]) };
        (Dbn::init(config, Philox::new(3, 0), &Cpu).unwrap(), grid, image)
    }

    #[test]
    fn units_are_spread_over_patches_and_are_the_largest_of_each() {
        let (dbn, grid, _) = network();
        let rbm = &dbn.layers()[0];
        let patches = |n| -> Vec<usize> {
            chosen(rbm, &grid, n).unwrap().into_iter().map(|(patch, _)| patch).collect()
        };
        assert_eq!(patches(3), [0, 2, 4]);
        assert_eq!(patches(6), [0, 1, 2, 3, 4, 5]);
        assert_eq!(patches(8), [0, 0, 1, 1, 2, 3, 4, 5]);
        assert_eq!(patches(100).len(), 30);
        let norms = rbm.weight().sqr().unwrap().sum(2).unwrap().to_vec2::<f32>().unwrap();
        for (patch, unit) in chosen(rbm, &grid, 6).unwrap() {
            assert!(norms[patch].iter().all(|norm| *norm <= norms[patch][unit]));
        }
    }

    #[test]
    fn a_tile_holds_the_weights_of_a_unit_as_its_window_lies_in_the_image() {
        let (dbn, grid, image) = network();
        let filters = Filters::of(&dbn, image, 6).unwrap();
        assert_eq!(filters.tile, ImageShape { height: 2, width: 2, channels: 3 });
        let weights = dbn.layers()[0].weight().to_vec3::<f32>().unwrap();
        let units = chosen(&dbn.layers()[0], &grid, 6).unwrap();
        for (row, (patch, unit)) in filters.rows.to_vec2::<f32>().unwrap().iter().zip(units) {
            assert_eq!(row, &weights[patch][unit]);
        }
    }
}
