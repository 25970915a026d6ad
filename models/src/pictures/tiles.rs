//! Pictures of rows: filters, samples, originals over their reconstructions.
//!
//! A row of a tensor is one tile, laid out as [`ImageShape`] says: planes one after the other, each
//! by lines. One plane gives grey, three give colour.
use candle::{DType, Error, Result, Tensor, bail};
use chandlery_datasets::ImageShape;
use chandlery_datasets::whole::write_whole;
use image::{ImageFormat, Rgb, RgbImage};
use std::path::Path;

/// How values become shades.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Shades {
    /// 0 is black, 1 is white, what lies beyond is cut off: data and probabilities.
    Unit,
    /// 0 is mid-grey, and of each tile the largest magnitude is black or white: weights.
    Symmetric,
    /// Of each tile the smallest value is black and the largest white: real-valued data.
    MinMax,
}

/// Shade of what holds no value: the gaps between tiles.
const GAP: Rgb<u8> = Rgb([48, 56, 80]);

/// A NaN is drawn in this colour: it should be seen.
const NAN: Rgb<u8> = Rgb([255, 0, 255]);

/// Lays tiles out in a grid, row by row, with gaps of one pixel between and around them; each pixel
/// becomes `zoom` × `zoom`.
///
/// `rows` is `[n, height·width·channels]`, n at least 1; the picture is
/// `zoom·(columns·(width + 1) + 1)` wide and `zoom·(⌈n/columns⌉·(height + 1) + 1)` high.
///
/// # Errors
/// When the rows do not fit the tile, there are none, or the channels are neither 1 nor 3.
pub fn mosaic(
    rows: &Tensor,
    tile: ImageShape,
    columns: usize,
    shades: Shades,
    zoom: usize,
) -> Result<RgbImage> {
    let ImageShape { height, width, .. } = tile;
    let values = tile_values(rows, tile)?;
    let columns = columns.clamp(1, values.len());
    let lines = values.len().div_ceil(columns);
    let side = |tiles: usize, pixels: usize| {
        u32::try_from(zoom.max(1) * (tiles * (pixels + 1) + 1))
            .map_err(|_| Error::Msg("picture: must have at most 2^32 pixels a side".to_owned()))
    };
    let mut picture = RgbImage::from_pixel(side(columns, width)?, side(lines, height)?, GAP);
    let (zoom, stride) = (zoom.max(1), 3 * picture.width() as usize);
    let pixels: &mut [u8] = &mut picture;
    for (index, values) in values.iter().enumerate() {
        let shade = Shader::new(values, shades);
        let (top, left) = (index / columns * (height + 1) + 1, index % columns * (width + 1) + 1);
        let planes: Vec<&[f32]> = values.chunks_exact(height * width).collect();
        for y in 0..height {
            let first = zoom * (top + y) * stride + 3 * zoom * left;
            let line = &mut pixels[first..][..3 * zoom * width];
            for (x, copies) in line.chunks_exact_mut(3 * zoom).enumerate() {
                let at = y * width + x;
                let Rgb(colour) = match planes.as_slice() {
                    [r, g, b] => shade.colour([r[at], g[at], b[at]]),
                    planes => shade.grey(planes[0][at]),
                };
                copies.chunks_exact_mut(3).for_each(|pixel| pixel.copy_from_slice(&colour));
            }
            for copy in 1..zoom {
                pixels.copy_within(first..first + 3 * zoom * width, first + copy * stride);
            }
        }
    }
    Ok(picture)
}

/// Originals in one line of tiles, their reconstructions right below, as many lines as it takes.
///
/// Both are `[n, height·width·channels]`; both are shaded alike, so that a reader can compare.
///
/// # Errors
/// As [`mosaic`], and when the two differ in shape.
pub fn originals_over_reconstructions(
    originals: &Tensor,
    reconstructions: &Tensor,
    tile: ImageShape,
    columns: usize,
    shades: Shades,
    zoom: usize,
) -> Result<RgbImage> {
    lines_of(&[originals, reconstructions], tile, columns, shades, zoom)
}

/// Matrices of tiles below each other: a line of tiles of each in turn, as many times as it takes;
/// what does not fill a line is left out.
///
/// Each is `[n, height·width·channels]`; all are shaded alike.
///
/// # Errors
/// As [`mosaic`], and when they differ in shape.
pub fn lines_of(
    parts: &[&Tensor],
    tile: ImageShape,
    columns: usize,
    shades: Shades,
    zoom: usize,
) -> Result<RgbImage> {
    let shapes: Vec<_> = parts.iter().map(|part| part.dims()).collect();
    if shapes.windows(2).any(|pair| pair[0] != pair[1]) {
        bail!("picture: tiles below each other must have one shape, got {shapes:?}")
    }
    let n = parts.first().map_or(Ok(0), |part| part.dim(0))?;
    let columns = columns.clamp(1, n.max(1));
    let whole = n / columns * columns;
    if whole == 0 {
        bail!("picture: there must be at least 1 row, got none")
    }
    let mut lines = Vec::new();
    for start in (0..whole).step_by(columns) {
        for part in parts {
            lines.push(part.narrow(0, start, columns)?);
        }
    }
    mosaic(&Tensor::cat(&lines, 0)?, tile, columns, shades, zoom)
}

/// Whether a picture can be made of images of this shape.
pub fn can_draw(shape: &ImageShape) -> bool {
    matches!(shape.channels, 1 | 3)
}

/// How raw rows are shaded: bytes, and floats in [0, 1], as they are; others are stretched over the
/// range of each.
pub(super) fn shades_of(rows: &Tensor) -> Result<Shades> {
    if rows.dtype() == DType::U8 {
        return Ok(Shades::Unit);
    }
    let value = |t: Result<Tensor>| t?.to_dtype(DType::F32)?.to_scalar::<f32>();
    let unit = value(rows.min_all())? >= 0. && value(rows.max_all())? <= 1.;
    Ok(if unit { Shades::Unit } else { Shades::MinMax })
}

/// Pixels that a tile should be wide, about.
const TILE_PIXELS: usize = 56;

/// How many times as large as an image its tile in a picture is.
pub fn tile_zoom(shape: ImageShape) -> usize {
    (TILE_PIXELS / shape.width.max(1)).max(1)
}

/// Writes a picture as PNG beside its name and renames it over it.
///
/// # Errors
/// When the disk refuses.
pub fn write_png(picture: &RgbImage, path: &Path) -> Result<()> {
    write_whole(path, |file| picture.write_to(file, ImageFormat::Png).map_err(Error::wrap))
}

fn tile_values(rows: &Tensor, tile: ImageShape) -> Result<Vec<Vec<f32>>> {
    let channels = tile.channels;
    if !matches!(channels, 1 | 3) {
        bail!("picture: channels must be 1 (grey) or 3 (colour), got {channels}")
    }
    match rows.dims() {
        [0, _] => bail!("picture: there must be at least 1 row, got none"),
        [_, features] if *features == tile.n_features() && *features > 0 => {}
        got => {
            bail!("picture: rows must have shape [n, {}] for tiles of {tile}, got {got:?}", tile.n_features())
        }
    }
    rows.to_dtype(DType::F32)?.to_vec2::<f32>()
}

/// The nearest whole number to one of 0 to 255, of two as near the larger one, and 0 for NaN:
/// `round`, which is a call of a function where the processor is not known to have an instruction.
#[inline(always)]
pub(super) fn rounded(x: f64) -> u8 {
    let below = x as u8;
    below + u8::from(x - f64::from(below) >= 0.5)
}

/// Maps the values of one tile to shades: `scale · value + shift`, in `[0, 1]`.
struct Shader {
    scale: f32,
    shift: f32,
}

impl Shader {
    fn new(values: &[f32], shades: Shades) -> Self {
        let finite = || values.iter().copied().filter(|v| v.is_finite());
        let (scale, shift) = match shades {
            Shades::Unit => (1., 0.),
            Shades::Symmetric => {
                let peak = finite().fold(0f32, |peak, v| peak.max(v.abs()));
                (if peak > 0. { 0.5 / peak } else { 0. }, 0.5)
            }
            Shades::MinMax => {
                let low = finite().fold(f32::INFINITY, f32::min);
                let high = finite().fold(f32::NEG_INFINITY, f32::max);
                if high > low { (1. / (high - low), -low / (high - low)) } else { (0., 0.5) }
            }
        };
        Self { scale, shift }
    }

    fn level(&self, value: f32) -> u8 {
        // The scale of a flat tile is 0, and 0 · ∞ is NaN, which `rounded` makes 0.
        rounded((255. * (self.scale * value + self.shift)).clamp(0., 255.).into())
    }

    fn grey(&self, value: f32) -> Rgb<u8> {
        if value.is_nan() { NAN } else { Rgb([self.level(value); 3]) }
    }

    fn colour(&self, value: [f32; 3]) -> Rgb<u8> {
        if value.iter().any(|v| v.is_nan()) { NAN } else { Rgb(value.map(|v| self.level(v))) }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use candle::Device::Cpu;

    const TILE: ImageShape = ImageShape::grey(2, 3);

    #[test]
    fn tiles_lie_row_by_row_with_one_pixel_between() {
        // Five tiles in two columns: tile i holds i / 10 everywhere.
        let rows: Vec<f32> = (0..5).flat_map(|i| [i as f32 / 10.; 6]).collect();
        let rows = Tensor::from_vec(rows, (5, 6), &Cpu).unwrap();
        let picture = mosaic(&rows, TILE, 2, Shades::Unit, 1).unwrap();
        assert_eq!(picture.dimensions(), (2 * 4 + 1, 3 * 3 + 1));
        for (i, (left, top)) in [(1, 1), (5, 1), (1, 4), (5, 4), (1, 7)].into_iter().enumerate() {
            let level = (255. * i as f32 / 10.).round() as u8;
            for (x, y) in (0..6).map(|p| (left + p % 3, top + p / 3)) {
                assert_eq!(picture.get_pixel(x, y), &Rgb([level; 3]), "tile {i} at {x}, {y}");
            }
        }
        for (x, y) in [(0, 0), (4, 1), (1, 3), (8, 9), (5, 7)] {
            assert_eq!(picture.get_pixel(x, y), &GAP, "gap at {x}, {y}");
        }
    }

    #[test]
    fn a_pixel_is_where_the_row_has_it() {
        let rows = Tensor::new(&[[0f32, 0.2, 0.4, 0.6, 0.8, 1.]], &Cpu).unwrap();
        let picture = mosaic(&rows, TILE, 9, Shades::Unit, 2).unwrap();
        assert_eq!(picture.dimensions(), (2 * 5, 2 * 4));
        let level = |x: u32, y: u32| picture.get_pixel(2 * (x + 1), 2 * (y + 1)).0[0];
        assert_eq!([level(0, 0), level(1, 0), level(2, 0)], [0, 51, 102]);
        assert_eq!([level(0, 1), level(1, 1), level(2, 1)], [153, 204, 255]);
        assert_eq!(picture.get_pixel(3, 3), picture.get_pixel(2, 2), "zoom");
    }

    #[test]
    fn symmetric_shades_keep_zero_in_the_middle_of_every_tile() {
        let rows = Tensor::new(&[[0f32, -1., 2., 0., 0., 1.], [0., 0.1, 0., -0.1, 0., 0.]], &Cpu);
        let picture = mosaic(&rows.unwrap(), TILE, 1, Shades::Symmetric, 1).unwrap();
        let level = |x, y| picture.get_pixel(x, y).0[0];
        assert_eq!([level(1, 1), level(2, 1), level(3, 1)], [128, 64, 255]);
        assert_eq!([level(1, 4), level(2, 4), level(1, 5)], [128, 255, 0]);
    }

    #[test]
    fn a_flat_tile_is_mid_grey_and_a_nan_is_seen() {
        let rows = Tensor::new(&[[7f32; 6], [f32::NAN, 0., 0., 0., 0., 1.]], &Cpu).unwrap();
        let picture = mosaic(&rows, TILE, 2, Shades::MinMax, 1).unwrap();
        assert_eq!(picture.get_pixel(1, 1), &Rgb([128; 3]));
        assert_eq!(picture.get_pixel(5, 1), &NAN);
        assert_eq!(picture.get_pixel(7, 2), &Rgb([255; 3]));
    }

    #[test]
    fn colour_tiles_hold_one_plane_after_the_other() {
        // Red is 1, 0; green is 0, 0; blue is 0, 1.
        let rows = Tensor::new(&[[1f32, 0., 0., 0., 0., 1.]], &Cpu).unwrap();
        let tile = ImageShape { height: 1, width: 2, channels: 3 };
        let picture = mosaic(&rows, tile, 1, Shades::Unit, 1).unwrap();
        assert_eq!(picture.get_pixel(1, 1), &Rgb([255, 0, 0]));
        assert_eq!(picture.get_pixel(2, 1), &Rgb([0, 0, 255]));
    }

    #[test]
    fn levels_are_rounded_as_numbers_are() {
        for i in 0..=255 * 64 {
            let x = f64::from(i) / 64.;
            for x in [x, x.next_up(), x.next_down().max(0.)] {
                assert_eq!(rounded(x.min(255.)), x.min(255.).round() as u8, "{x}");
            }
        }
        assert_eq!(rounded(f64::NAN), 0);
    }

    #[test]
    fn originals_stand_over_their_reconstructions() {
        let rows = |values: [f32; 5]| {
            let rows: Vec<f32> = values.iter().flat_map(|v| [*v; 6]).collect();
            Tensor::from_vec(rows, (5, 6), &Cpu).unwrap()
        };
        let (x, y) = (rows([0., 0.2, 0.4, 0.6, 0.8]), rows([1., 0.8, 0.6, 0.4, 0.2]));
        let picture = originals_over_reconstructions(&x, &y, TILE, 2, Shades::Unit, 1).unwrap();
        // The fifth row does not fill a line and is left out.
        assert_eq!(picture.dimensions(), (9, 4 * 3 + 1));
        let column = |x: u32| [1, 4, 7, 10].map(|y| picture.get_pixel(x, y).0[0]);
        assert_eq!(column(1), [0, 255, 102, 153]);
        assert_eq!(column(5), [51, 204, 153, 102]);
    }

    #[test]
    fn a_picture_says_what_does_not_fit() {
        let rows = Tensor::zeros((2, 5), DType::F32, &Cpu).unwrap();
        let words = "picture: rows must have shape [n, 6] for tiles of 2x3x1, got [2, 5]";
        let err = mosaic(&rows, TILE, 2, Shades::Unit, 1).unwrap_err();
        assert!(err.to_string().starts_with(words), "{err}");
        let none = Tensor::zeros((0, 6), DType::F32, &Cpu).unwrap();
        let err = mosaic(&none, TILE, 2, Shades::Unit, 1).unwrap_err();
        assert!(err.to_string().starts_with("picture: there must be at least 1 row, got none"), "{err}");
    }
}
