//! Rows as small pictures, many to a PNG, in base64.
use super::LeftOut;
use crate::pictures::tiles::shades_of;
use crate::pictures::{Shades, can_draw, mosaic};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use candle::{Device, Error, Result, Tensor};
use chandlery_datasets::{ImageShape, Preparation};
use png::{BitDepth, ColorType, DeflateCompression, Encoder, Filter};
use rayon::prelude::*;
use serde::Serialize;

/// Sides of an atlas, in pixels, about: a browser decodes one at a time.
const ATLAS: usize = 1024;
/// Levels of a channel.
const LEVELS: u8 = 16;
/// Of 9. Levels above take two to ten times as long for a few per cent.
const COMPRESSION: u8 = 4;

/// Pictures of rows in their order.
#[derive(Debug, Serialize)]
pub struct Sprites {
    width: usize,
    height: usize,
    /// Pictures beside each other in an atlas, with a gap of one pixel between and around them.
    columns: usize,
    /// Pictures in each atlas but the last.
    per_atlas: usize,
    /// PNG files in base64.
    atlases: Vec<String>,
}

impl Sprites {
    /// Pictures of raw rows, `[n, n_inputs]` u8 or float, quantised to 16 levels for each channel;
    /// or, where there are none, the reason. Floats outside of [0, 1] are stretched over their
    /// range, each picture by itself.
    ///
    /// # Errors
    /// When a row cannot be read.
    pub fn new(
        rows: &Tensor,
        image: Option<ImageShape>,
        most_bytes: usize,
    ) -> Result<std::result::Result<Self, LeftOut>> {
        let Some(shape) = image.filter(can_draw) else {
            return Ok(Err(LeftOut::NoPictures));
        };
        let ImageShape { height, width, .. } = shape;
        let columns = (ATLAS / (width + 1)).max(1);
        let per_atlas = columns * (ATLAS / (height + 1)).max(1);
        let shades = shades_of(rows)?;
        let n = rows.dim(0)?;
        let mut sprites = Self { width, height, columns, per_atlas, atlases: Vec::new() };
        // Of rows that are too many for the page, not all atlases are made.
        let at_once = per_atlas * 2 * rayon::current_num_threads();
        for start in (0..n).step_by(at_once) {
            let count = at_once.min(n - start);
            let some = rows.narrow(0, start, count)?.to_device(&Device::Cpu)?;
            let atlas = |first: usize| -> Result<String> {
                let rows = some.narrow(0, first, per_atlas.min(count - first))?;
                // Bytes over 255.
                let rows = Preparation::default().apply(&rows).map_err(Error::wrap)?;
                Ok(STANDARD.encode(png(&rows, shape, columns, shades)?))
            };
            let firsts = (0..count.div_ceil(per_atlas)).into_par_iter().map(|i| i * per_atlas);
            sprites.atlases.extend(firsts.map(atlas).collect::<Result<Vec<_>>>()?);
            let bytes = sprites.atlases.iter().map(String::len).sum::<usize>();
            if bytes > most_bytes {
                return Ok(Err(LeftOut::TooLarge));
            }
        }
        Ok(Ok(sprites))
    }
}

fn png(rows: &Tensor, shape: ImageShape, columns: usize, shades: Shades) -> Result<Vec<u8>> {
    const STEP: u8 = u8::MAX / (LEVELS - 1);
    let atlas = mosaic(rows, shape, columns, shades, 1)?;
    let (width, height) = atlas.dimensions();
    let level = |x: u8| ((u16::from(x) + u16::from(STEP / 2)) / u16::from(STEP)) as u8;
    let (depth, colour, bytes): (_, _, Vec<u8>) = match shape.channels {
        1 => {
            // Two pixels fill a byte.
            let pair = |pixels: &[u8]| {
                let at = |i: usize| pixels.get(i).map_or(0, |&x| level(x));
                at(0) << 4 | at(3)
            };
            let lines = atlas.chunks_exact(3 * width as usize);
            (BitDepth::Four, ColorType::Grayscale, lines.flat_map(|line| line.chunks(6).map(pair)).collect())
        }
        _ => (BitDepth::Eight, ColorType::Rgb, atlas.iter().map(|&x| STEP * level(x)).collect()),
    };
    let mut png = Vec::new();
    let mut encoder = Encoder::new(&mut png, width, height);
    encoder.set_color(colour);
    encoder.set_depth(depth);
    encoder.set_filter(Filter::NoFilter);
    encoder.set_deflate_compression(DeflateCompression::Level(COMPRESSION));
    let mut writer = encoder.write_header().map_err(Error::wrap)?;
    writer.write_image_data(&bytes).map_err(Error::wrap)?;
    writer.finish().map_err(Error::wrap)?;
    Ok(png)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use candle::DType;
    use image::DynamicImage;

    fn decoded(png: &str) -> DynamicImage {
        image::load_from_memory(&STANDARD.decode(png).unwrap()).unwrap()
    }

    #[test]
    fn each_row_is_where_the_page_looks_for_it() {
        let side = 511;
        let n = 5;
        let bytes: Vec<u8> = (0..n).flat_map(|i| vec![(17 * (2 * i + 1)) as u8; side * side]).collect();
        let rows = Tensor::from_vec(bytes, (n, side * side), &Device::Cpu).unwrap();
        let sprites = Sprites::new(&rows, Some(ImageShape::grey(side, side)), 1 << 20).unwrap().unwrap();
        assert_eq!((sprites.columns, sprites.per_atlas, sprites.atlases.len()), (2, 4, 2));
        for i in 0..n {
            let (atlas, at) = (decoded(&sprites.atlases[i / 4]).into_luma8(), i % 4);
            let (x, y) = (1 + at % 2 * (side + 1), 1 + at / 2 * (side + 1));
            for (x, y) in [(x, y), (x + side - 1, y + side - 1)] {
                assert_eq!(atlas.get_pixel(x as u32, y as u32).0[0] as usize, 17 * (2 * i + 1), "row {i}");
            }
        }
    }

    #[test]
    fn every_grey_level_is_the_nearest_of_sixteen() {
        // One row, of an odd width: its last byte holds one pixel.
        let rows = Tensor::arange(0u8, 255, &Device::Cpu).unwrap().unsqueeze(0).unwrap();
        let sprites = Sprites::new(&rows, Some(ImageShape::grey(1, 255)), 1 << 20).unwrap().unwrap();
        let atlas = decoded(&sprites.atlases[0]).into_luma8();
        for x in 0..255u32 {
            let level = (f64::from(x) / 17.).round() as u32 * 17;
            assert_eq!(u32::from(atlas.get_pixel(x + 1, 1).0[0]), level, "{x}");
        }
    }

    #[test]
    fn colour_stays_and_floats_are_stretched_where_they_leave_the_unit_interval() {
        let shape = ImageShape { height: 1, width: 2, channels: 3 };
        let rows = Tensor::new(&[[255u8, 0, 0, 0, 0, 255]], &Device::Cpu).unwrap();
        let sprites = Sprites::new(&rows, Some(shape), 1 << 20).unwrap().unwrap();
        let atlas = decoded(&sprites.atlases[0]).into_rgb8();
        assert_eq!((atlas.get_pixel(1, 1).0, atlas.get_pixel(2, 1).0), ([255, 0, 0], [0, 0, 255]));
        let grey = |values: [f32; 2]| {
            let rows = Tensor::new(&[values], &Device::Cpu).unwrap();
            let sprites = Sprites::new(&rows, Some(ImageShape::grey(1, 2)), 1 << 20).unwrap().unwrap();
            let atlas = decoded(&sprites.atlases[0]).into_luma8();
            [atlas.get_pixel(1, 1).0[0], atlas.get_pixel(2, 1).0[0]]
        };
        assert_eq!((grey([0.2, 0.6]), grey([-3., 5.])), ([51, 153], [0, 255]));
    }

    #[test]
    fn pictures_are_left_out_with_the_reason() {
        let rows = Tensor::zeros((9, 4), DType::U8, &Device::Cpu).unwrap();
        let why = |image, most| Sprites::new(&rows, image, most).unwrap().unwrap_err();
        assert_eq!(why(None, 1 << 20), LeftOut::NoPictures);
        assert_eq!(why(Some(ImageShape::grey(2, 2)), 10), LeftOut::TooLarge);
    }
}
