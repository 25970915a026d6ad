//! Image files as planes of grey levels, and planes as image files.
use super::raster::line_of_text;
use candle::{Context, DType, Device, Error, Result, Tensor, bail};
use chandlery_datasets::whole::write_whole;
use image::codecs::jpeg::JpegEncoder;
use image::{DynamicImage, GrayImage, ImageFormat, RgbImage};
use std::path::Path;

/// Of 100; differences to the image are then about a grey level.
const JPEG_QUALITY: u8 = 95;

/// Reads an image: `[1, height, width]` for grey, `[3, height, width]` for colour, f32 grey levels
/// from 0 to 255 on the CPU.
///
/// 16 bits a channel keep their precision; transparency is dropped.
///
/// # Errors
/// When the file is missing or no image; the message names it.
pub fn read_planes(path: &Path) -> Result<Tensor> {
    let image = chandlery_datasets::decode_image(path).map_err(Error::wrap)?;
    let (height, width) = (image.height() as usize, image.width() as usize);
    ensure!(height > 0 && width > 0, "{}: the image has no pixels", path.display());
    let levels = |values: Vec<u8>| values.into_iter().map(f32::from).collect::<Vec<_>>();
    let (channels, interleaved) = match image {
        DynamicImage::ImageLuma8(grey) => (1, levels(grey.into_raw())),
        DynamicImage::ImageLumaA8(_) => (1, levels(image.into_luma8().into_raw())),
        DynamicImage::ImageRgb8(_) | DynamicImage::ImageRgba8(_) => (3, levels(image.into_rgb8().into_raw())),
        DynamicImage::ImageLuma16(_) | DynamicImage::ImageLumaA16(_) => {
            (1, image.into_luma16().into_raw().into_iter().map(level_of_16).collect())
        }
        _ => (3, image.into_rgb16().into_raw().into_iter().map(level_of_16).collect()),
    };
    let pixels = Tensor::from_vec(interleaved, (height, width, channels), &Device::Cpu)?;
    pixels.permute((2, 0, 1))?.contiguous()
}

/// 65535 is 255.
fn level_of_16(value: u16) -> f32 {
    f32::from(value) / 257.
}

/// Writes planes as read by [`read_planes`], rounded to bytes and cut off at 0 and 255; the format
/// is told by the name. Returns the planes that the file holds.
///
/// # Errors
/// When the planes are neither 1 nor 3, the name's ending is no format that can be written, or the
/// disk refuses.
pub fn write_planes(planes: &Tensor, path: &Path) -> Result<Tensor> {
    let format = format_of(path)?;
    let picture = picture(planes)?;
    write_whole(path, |file| {
        let written = match format {
            ImageFormat::Jpeg => JpegEncoder::new_with_quality(file, JPEG_QUALITY).encode_image(&picture),
            format => picture.write_to(file, format),
        };
        written.map_err(Error::wrap)
    })?;
    match format {
        // Not what was given: it loses a little. Grey may be read as three equal planes.
        ImageFormat::Jpeg => read_planes(path)?.narrow(0, 0, planes.dim(0)?),
        _ => planes.round()?.clamp(0f32, 255f32)?.to_device(&Device::Cpu),
    }
}

/// The format that a name's ending stands for; to be asked before the work, not after.
///
/// # Errors
/// When it is none of those that can be written.
pub fn format_of(path: &Path) -> Result<ImageFormat> {
    match ImageFormat::from_path(path) {
        Ok(
            format @ (ImageFormat::Png
            | ImageFormat::Jpeg
            | ImageFormat::Bmp
            | ImageFormat::Tiff
            | ImageFormat::Pnm
            | ImageFormat::WebP),
        ) => Ok(format),
        _ => bail!("{}: the name must end in .png, .jpg, .bmp, .tiff, .pnm or .webp", path.display()),
    }
}

/// Planes as a picture, grey for one and colour for three.
///
/// # Errors
/// When the planes are neither.
pub fn picture(planes: &Tensor) -> Result<DynamicImage> {
    let (channels, height, width) = planes.dims3()?;
    let bytes = |planes: &Tensor| -> Result<Vec<u8>> {
        let pixels = planes.permute((1, 2, 0))?.round()?.clamp(0f32, 255f32)?.to_dtype(DType::U8)?;
        pixels.to_device(&Device::Cpu)?.flatten_all()?.to_vec1()
    };
    let too_large = "picture: must have at most 2^32 pixels a side";
    let side = |pixels: usize| u32::try_from(pixels).map_err(|_| Error::Msg(too_large.to_owned()));
    let (w, h) = (side(width)?, side(height)?);
    Ok(match channels {
        1 => DynamicImage::ImageLuma8(GrayImage::from_raw(w, h, bytes(planes)?).context(too_large)?),
        3 => DynamicImage::ImageRgb8(RgbImage::from_raw(w, h, bytes(planes)?).context(too_large)?),
        n => bail!("picture: planes must be 1 (grey) or 3 (colour), got {n}"),
    })
}

/// White pixels between a caption and what stands around it.
const CAPTION_MARGIN: usize = 3;

/// Images of one height side by side, each below its caption, with a gap of four white pixels
/// between.
///
/// An image that is narrower than its caption stands in the middle of it.
///
/// # Errors
/// When there is none, or they differ in planes or height.
pub fn side_by_side(images: &[(&str, &Tensor)]) -> Result<Tensor> {
    let mut parts = Vec::with_capacity(2 * images.len());
    for (caption, image) in images {
        let column = below_caption(image, caption)?;
        if !parts.is_empty() {
            let (channels, height, _) = column.dims3()?;
            parts.push(Tensor::full(WHITE, (channels, height, 4), column.device())?);
        }
        parts.push(column);
    }
    Tensor::cat(&parts, 2)
        .map_err(|err| err.context("picture: images side by side must be at least 1, of one height"))
}

const WHITE: f32 = 255.;

/// An image with a line of text above it.
fn below_caption(image: &Tensor, caption: &str) -> Result<Tensor> {
    let (channels, _, width) = image.dims3()?;
    let text = line_of_text(caption);
    let (text_width, text_height) = (text.width() as usize, text.height() as usize);
    let levels = text.into_raw().into_iter().map(f32::from).collect::<Vec<_>>();
    let text = Tensor::from_vec(levels, (1, text_height, text_width), image.device())?;
    let text = text.broadcast_as((channels, text_height, text_width))?.contiguous()?;
    let column = width.max(text_width + 2 * CAPTION_MARGIN);
    let margin = Tensor::full(WHITE, (channels, CAPTION_MARGIN, column), image.device())?;
    Tensor::cat(&[&margin, &centred(&text, column)?, &margin, &centred(image, column)?], 1)
}

/// White pixels left and right of an image, so that it is `width` wide.
fn centred(image: &Tensor, width: usize) -> Result<Tensor> {
    let (channels, height, had) = image.dims3()?;
    let left = (width - had) / 2;
    let white = |n: usize| Tensor::full(WHITE, (channels, height, n), image.device());
    let mut parts = vec![image.clone()];
    if left > 0 {
        parts.insert(0, white(left)?);
    }
    if width - had > left {
        parts.push(white(width - had - left)?);
    }
    Tensor::cat(&parts, 2)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn values(t: &Tensor) -> Vec<f32> {
        t.flatten_all().unwrap().to_vec1().unwrap()
    }

    #[test]
    fn grey_and_colour_come_back_as_they_were_written() {
        let dir = tempfile::tempdir().unwrap();
        for channels in [1, 3] {
            let path = dir.path().join(format!("{channels}.png"));
            let planes = (Tensor::arange(0f32, (channels * 6) as f32, &Device::Cpu).unwrap() * 14.).unwrap();
            let planes = planes.reshape((channels, 2, 3)).unwrap();
            write_planes(&planes, &path).unwrap();
            let back = read_planes(&path).unwrap();
            assert_eq!((back.dims(), values(&back)), (planes.dims(), values(&planes)));
        }
    }

    #[test]
    fn values_are_rounded_and_cut_off_when_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.png");
        let planes = Tensor::new(&[[[-3f32, 0.4, 0.6, 254.6, 300.]]], &Device::Cpu).unwrap();
        let held = write_planes(&planes, &path).unwrap();
        assert_eq!(values(&read_planes(&path).unwrap()), [0., 0., 1., 255., 255.]);
        assert_eq!(values(&held), [0., 0., 1., 255., 255.]);
        let lossy = dir.path().join("x.jpg");
        let held = write_planes(&planes, &lossy).unwrap();
        assert_eq!(values(&held), values(&read_planes(&lossy).unwrap().narrow(0, 0, 1).unwrap()));
    }

    #[test]
    fn sixteen_bits_keep_their_precision() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.png");
        let pixels = image::ImageBuffer::<image::Luma<u16>, _>::from_raw(2, 1, vec![65535u16, 257 * 3 + 128]);
        pixels.unwrap().save(&path).unwrap();
        assert_eq!(values(&read_planes(&path).unwrap()), [255., 3. + 128. / 257.]);
    }

    #[test]
    fn what_is_no_image_is_refused_with_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.png");
        std::fs::write(&path, "no image").unwrap();
        let err = read_planes(&path).unwrap_err();
        assert!(err.to_string().contains("x.png: "), "{err}");
        let err = format_of(Path::new("x.gif")).unwrap_err();
        let words = "x.gif: the name must end in .png, .jpg, .bmp, .tiff, .pnm or .webp";
        assert!(err.to_string().starts_with(words), "{err}");
    }

    #[test]
    fn pictures_stand_side_by_side_below_their_captions() {
        let ramp = |channels: usize, width: usize| {
            let n = channels * 2 * width;
            Tensor::arange(0f32, n as f32, &Device::Cpu).unwrap().reshape((channels, 2, width)).unwrap()
        };
        let top = 16 + 2 * CAPTION_MARGIN;
        let letter = line_of_text("H").width() as usize;
        for channels in [1, 3] {
            // One wider than its caption and one narrower, which stands in the middle of it.
            let (wide, narrow) = (ramp(channels, 2 * letter), ramp(channels, 2));
            let both = side_by_side(&[("H", &wide), ("HH", &narrow)]).unwrap();
            let column = 2 * letter + 2 * CAPTION_MARGIN;
            assert_eq!(both.dims(), [channels, top + 2, 2 * letter + 4 + column]);
            let part = |left: usize, width: usize, top: usize, height: usize| {
                values(&both.narrow(1, top, height).unwrap().narrow(2, left, width).unwrap())
            };
            assert_eq!(part(0, 2 * letter, top, 2), values(&wide));
            let left = 2 * letter + 4 + column / 2 - 1;
            assert_eq!(part(left, 2, top, 2), values(&narrow));
            for (left, width) in [(2 * letter, 4 + column / 2 - 1), (left + 2, column / 2 - 1)] {
                assert!(part(left, width, top, 2).iter().all(|&level| level == WHITE), "at {left}");
            }
            // The caption of the first has half its room.
            let ink = |left: usize, width: usize| {
                part(left, width, CAPTION_MARGIN, 16).iter().any(|&level| level < 128.)
            };
            assert!(ink(letter / 2, letter) && !ink(0, letter / 2) && !ink(letter / 2 + letter, letter / 2));
        }
        assert!(side_by_side(&[("a", &ramp(1, 2)), ("b", &ramp(3, 2))]).is_err());
        assert!(side_by_side(&[]).is_err());
    }
}
