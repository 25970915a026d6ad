//! Pictures of a dictionary.
use crate::stages::{self, Stage};
use anyhow::Result;
use candle::{DType, Tensor};
use chandlery::pictures::{Shades, mosaic, write_png};
use chandlery_datasets::ImageShape;
use chandlery_ops::arrays::gather_rows;
use std::path::Path;

/// Pixels that a tile should be wide, about.
const TILE_PIXELS: usize = 24;
/// Tiles beyond these are left out: the picture stays one that can be looked at.
const MOST_TILES: usize = 1024;

/// Writes atoms as a mosaic, those of most weight first: the top left ones do most of the work.
///
/// `atoms` is `[n_atoms, n_features]`, `weight` one number an atom.
pub fn atoms(atoms: &Tensor, weight: &[f64], tile: ImageShape, path: &Path) -> Result<usize> {
    let _stage = stages::enter(Stage::Pictures);
    let order = by_weight(weight);
    let shown = &order[..order.len().min(MOST_TILES)];
    let rows = gather_rows(&atoms.contiguous()?, shown)?.to_dtype(DType::F32)?;
    let columns = (shown.len() as f64).sqrt().ceil() as usize;
    let zoom = (TILE_PIXELS / tile.width.max(1)).max(1);
    write_png(&mosaic(&rows, tile, columns, Shades::Symmetric, zoom)?, path)?;
    Ok(shown.len())
}

/// What [`atoms`] shows, in words: `n` are in the picture.
pub fn caption(n: usize) -> String {
    format!(
        "the {n} atoms with the largest weight (sum of squared coefficients), the largest at the top left; mid-grey is 0"
    )
}

/// Indices by falling weight; equal ones stay in their order.
fn by_weight(weight: &[f64]) -> Vec<u32> {
    let mut order: Vec<u32> = (0..weight.len() as u32).collect();
    order.sort_by(|&a, &b| weight[b as usize].total_cmp(&weight[a as usize]));
    order
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn atoms_of_most_weight_come_first() {
        assert_eq!(by_weight(&[1., 3., 0., 3., 2.]), [1, 3, 4, 0, 2]);
    }

    #[test]
    fn the_mosaic_is_as_square_as_it_can_be() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("d.png");
        let rows = Tensor::arange(0f32, 40., &candle::Device::Cpu).unwrap().reshape((10, 4)).unwrap();
        assert_eq!(atoms(&rows, &[0.; 10], ImageShape::grey(2, 2), &path).unwrap(), 10);
        // Ten tiles in four columns and three lines, of 2 pixels with gaps of 1, twelve times as
        // large.
        let picture = image::open(path).unwrap();
        assert_eq!((picture.width(), picture.height()), (12 * 13, 12 * 10));
    }
}
