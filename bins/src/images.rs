//! Image files as planes of grey levels, and planes as image files.
use crate::run_folder::write_beside;
use anyhow::{Context, Result, bail, ensure};
use candle::{DType, Device, Tensor};
use image::{DynamicImage, GrayImage, ImageFormat, RgbImage};
use std::path::Path;

/// Reads an image: `[1, height, width]` for grey, `[3, height, width]` for colour, f32 grey levels from 0 to 255 on the CPU.
///
/// 16 bits a channel keep their precision; transparency is dropped.
///
/// # Errors
/// When the file is missing or no image; the message names it.
pub fn read_planes(path: &Path) -> Result<Tensor> {
    let at = || format!("{}: cannot be read as an image", path.display());
    let image = image::ImageReader::open(path).with_context(at)?.with_guessed_format().with_context(at)?;
    let image = image.decode().with_context(at)?;
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
    Ok(pixels.permute((2, 0, 1))?.contiguous()?)
}

/// 65535 is 255.
fn level_of_16(value: u16) -> f32 {
    f32::from(value) / 257.
}

/// Writes planes as read by [`read_planes`], rounded to bytes and cut off at 0 and 255; the format is told by the name.
///
/// # Errors
/// When the planes are neither 1 nor 3, the name's ending is no format that can be written, or the disk refuses.
pub fn write_planes(planes: &Tensor, path: &Path) -> Result<()> {
    let format = format_of(path)?;
    let picture = picture(planes)?;
    write_beside(path, |partial| Ok(picture.save_with_format(partial, format)?))
}

/// The format that a name's ending stands for; to be asked before the work, not after.
///
/// # Errors
/// When it is none that can be written without loss.
pub fn format_of(path: &Path) -> Result<ImageFormat> {
    match ImageFormat::from_path(path) {
        Ok(
            format @ (ImageFormat::Png
            | ImageFormat::Bmp
            | ImageFormat::Tiff
            | ImageFormat::Pnm
            | ImageFormat::WebP),
        ) => Ok(format),
        _ => bail!("{}: the name must end in .png, .bmp, .tiff, .pnm or .webp", path.display()),
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
        Ok(pixels.to_device(&Device::Cpu)?.flatten_all()?.to_vec1()?)
    };
    let too_large = "the picture is too large";
    let (w, h) = (u32::try_from(width).context(too_large)?, u32::try_from(height).context(too_large)?);
    Ok(match channels {
        1 => DynamicImage::ImageLuma8(GrayImage::from_raw(w, h, bytes(planes)?).context(too_large)?),
        3 => DynamicImage::ImageRgb8(RgbImage::from_raw(w, h, bytes(planes)?).context(too_large)?),
        n => bail!("picture: planes must be 1 (grey) or 3 (colour), got {n}"),
    })
}

/// Images of one height side by side, with a gap of four pixels between.
///
/// # Errors
/// When there is none, or they differ in planes or height.
pub fn side_by_side(images: &[&Tensor]) -> Result<Tensor> {
    let first = images.first().context("picture: there must be at least 1 image, got none")?;
    let (channels, height, _) = first.dims3()?;
    let gap = Tensor::full(255f32, (channels, height, 4), first.device())?;
    let mut parts = vec![(*first).clone()];
    for image in &images[1..] {
        parts.push(gap.clone());
        parts.push((*image).clone());
    }
    Ok(Tensor::cat(&parts, 2)?)
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
        write_planes(&planes, &path).unwrap();
        assert_eq!(values(&read_planes(&path).unwrap()), [0., 0., 1., 255., 255.]);
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
        assert!(err.to_string().contains("x.png: cannot be read as an image"), "{err}");
        let err = format_of(Path::new("x.jpg")).unwrap_err();
        assert_eq!(err.to_string(), "x.jpg: the name must end in .png, .bmp, .tiff, .pnm or .webp");
    }

    #[test]
    fn pictures_stand_side_by_side_with_a_white_gap() {
        let a = Tensor::zeros((1, 2, 3), DType::F32, &Device::Cpu).unwrap();
        let both = side_by_side(&[&a, &a]).unwrap();
        assert_eq!(both.dims(), [1, 2, 10]);
        assert_eq!(values(&both)[..10], [0., 0., 0., 255., 255., 255., 255., 0., 0., 0.]);
    }
}
