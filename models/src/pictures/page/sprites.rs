//! Rows as small pictures, many to a PNG, in base64.
use super::LeftOut;
use crate::pictures::tiles::shades_of;
use crate::pictures::{Shades, can_draw, mosaic};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use candle::{Device, Error, Result, Tensor};
use chandlery_datasets::{ImageShape, Preparation};
use image::codecs::png::{CompressionType, FilterType, PngEncoder};
use image::{DynamicImage, GrayImage};
use serde::Serialize;

/// Sides of an atlas, in pixels, about: a browser decodes one at a time.
const ATLAS: usize = 1024;

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
        for start in (0..n).step_by(per_atlas) {
            let some = rows.narrow(0, start, per_atlas.min(n - start))?.to_device(&Device::Cpu)?;
            // Bytes over 255.
            let some = Preparation::default().apply(&some).map_err(Error::wrap)?;
            sprites.atlases.push(STANDARD.encode(png(&some, shape, columns, shades)?));
            let bytes = sprites.atlases.iter().map(String::len).sum::<usize>();
            if bytes > most_bytes {
                return Ok(Err(LeftOut::TooLarge));
            }
        }
        Ok(Ok(sprites))
    }
}

fn png(rows: &Tensor, shape: ImageShape, columns: usize, shades: Shades) -> Result<Vec<u8>> {
    let mut atlas = mosaic(rows, shape, columns, shades, 1)?;
    // Sixteen levels take half the bytes of all.
    atlas
        .as_flat_samples_mut()
        .as_mut_slice()
        .iter_mut()
        .for_each(|x| *x = ((u16::from(*x) + 8) / 17 * 17) as u8);
    let grey = shape.channels == 1;
    let atlas = match grey {
        true => GrayImage::from_fn(atlas.width(), atlas.height(), |x, y| [atlas.get_pixel(x, y).0[0]].into())
            .into(),
        false => DynamicImage::ImageRgb8(atlas),
    };
    let mut bytes = Vec::new();
    let encoder = PngEncoder::new_with_quality(&mut bytes, CompressionType::Default, FilterType::NoFilter);
    atlas.write_with_encoder(encoder).map_err(Error::wrap)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use candle::DType;

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
