//! One encoded image to planes of values.
use crate::form::{Form, Pixels, Values};
use crate::guard::caught;
use crate::options::Colour;
pub(crate) use crate::tiff::pages;
use crate::tiff::{PageReader, grey_floats, impossible_count};
use crate::{Error, ImageShape, Result};
use image::metadata::Orientation;
use image::{ColorType, DynamicImage, ImageDecoder, ImageError, ImageReader, ImageResult, Limits};
use std::path::Path;

/// Lines, and pixels in a line, that an image may have: what a JPEG can say.
const MAX_SIDE: u32 = 65_535;
/// Bytes that any image may have once decoded …
const FREE_BYTES: u64 = 32 << 20;
/// … and how many more for each byte of its file: what deflate can do, so that a blank page is
/// still read.
const BYTES_PER_BYTE: u64 = 1024;

/// Decodes `bytes`, whatever format they announce, or a page of theirs, and turns them as they say;
/// `at` names them in errors.
///
/// A damaged header may announce an image of gigabytes in a file of nothing: what is decoded is
/// held to 32 MiB and a further 1 KiB for each byte of the file, and so is the memory of those
/// decoders that can be told.
pub(crate) fn decode(at: &str, bytes: &[u8], page: Option<u64>, colour: Colour) -> Result<Pixels> {
    checked(at, bytes, page, || match grey_floats(bytes, page, limit_bytes(bytes), true) {
        None => Ok(pixels(limited(bytes, page)?, colour)),
        Some((shape, values)) => {
            let form = of_grey_floats(shape, colour);
            Ok(Pixels { form, values: Values::Floats(values.repeat(form.shape.channels)) })
        }
    })
}

/// What [`decode`] would give, by the header alone.
pub(crate) fn form(at: &str, bytes: &[u8], page: Option<u64>, colour: Colour) -> Result<Form> {
    checked(at, bytes, page, || {
        if let Some((shape, _)) = grey_floats(bytes, page, limit_bytes(bytes), false) {
            return Ok(of_grey_floats(shape, colour));
        }
        let (decoder, orientation) = decoder(bytes, page)?;
        let ((width, height), kind) = (decoder.dimensions(), decoder.color_type());
        let (height, width) = if is_turned(orientation) { (width, height) } else { (height, width) };
        let channels = if is_grey(kind, colour) { 1 } else { 3 };
        let shape = ImageShape { height: height as usize, width: width as usize, channels };
        Ok(Form { shape, deep: is_deep(kind) })
    })
}

/// Grey floats, as they are; in colour the same plane three times.
fn of_grey_floats(shape: ImageShape, colour: Colour) -> Form {
    let channels = if colour == Colour::Rgb { 3 } else { 1 };
    Form { shape: ImageShape { channels, ..shape }, deep: true }
}

/// Decodes an image file with the checks of data sets, turned as it says: what a damaged header
/// claims is not allocated, and a decoder that panics is an error.
///
/// # Errors
/// When the file is missing or no image; the message names it.
pub fn decode_image(path: &Path) -> Result<DynamicImage> {
    let bytes = std::fs::read(path).map_err(|e| Error::io(path, e))?;
    checked(&path.display().to_string(), &bytes, None, || limited(&bytes, None))
}

/// What `read` makes of `bytes`, with errors in words.
fn checked<T>(at: &str, bytes: &[u8], page: Option<u64>, read: impl FnOnce() -> ImageResult<T>) -> Result<T> {
    let refused = |what: String| Error::format(at, what, "replace or remove it");
    if let Some(count) = impossible_count(bytes, page) {
        let n = bytes.len();
        return Err(refused(format!(
            "cannot be decoded as an image: {n} bytes say that a field of theirs has {count} values"
        )));
    }
    // Version 0.18 of the `png` crate panics on some palettes; others may on what nobody has
    // thought of yet.
    match caught(read) {
        Some(Ok(read)) => Ok(read),
        Some(Err(ImageError::Limits(_))) => Err(refused(format!(
            "cannot be decoded as an image: {} bytes say that they are more than {} MiB of pixels, or more than {MAX_SIDE} in a \
             line or column",
            bytes.len(),
            limit_bytes(bytes) >> 20
        ))),
        Some(Err(e)) => Err(refused(format!("cannot be decoded as an image: {e}"))),
        None => Err(refused("cannot be decoded as an image: the file is damaged".to_owned())),
    }
}

/// Bytes that the decoded image may have.
fn limit_bytes(bytes: &[u8]) -> u64 {
    FREE_BYTES + BYTES_PER_BYTE * bytes.len() as u64
}

/// A decoder that has read the header, and how the image is to be turned.
fn decoder(bytes: &[u8], page: Option<u64>) -> ImageResult<(impl ImageDecoder + '_, Orientation)> {
    let mut limits = Limits::default();
    limits.max_image_width = Some(MAX_SIDE);
    limits.max_image_height = Some(MAX_SIDE);
    limits.max_alloc = Some(limit_bytes(bytes));
    let mut reader = ImageReader::new(PageReader::new(bytes, page)).with_guessed_format()?;
    reader.limits(limits.clone());
    let mut decoder = reader.into_decoder()?;
    limits.reserve(decoder.total_bytes())?;
    decoder.set_limits(limits)?;
    // An image with unreadable notes beside it is an image.
    let orientation = decoder.orientation().unwrap_or(Orientation::NoTransforms);
    Ok((decoder, orientation))
}

fn limited(bytes: &[u8], page: Option<u64>) -> ImageResult<DynamicImage> {
    let (decoder, orientation) = decoder(bytes, page)?;
    let mut image = DynamicImage::from_decoder(decoder)?;
    image.apply_orientation(orientation);
    Ok(image)
}

/// Whether lines become columns.
fn is_turned(orientation: Orientation) -> bool {
    matches!(
        orientation,
        Orientation::Rotate90
            | Orientation::Rotate270
            | Orientation::Rotate90FlipH
            | Orientation::Rotate270FlipH
    )
}

fn is_grey(kind: ColorType, colour: Colour) -> bool {
    match colour {
        Colour::Grey => true,
        Colour::Rgb => false,
        Colour::AsStored => !kind.has_color(),
    }
}

/// Whether a value has more than eight bits.
fn is_deep(kind: ColorType) -> bool {
    kind.bytes_per_pixel() > kind.channel_count()
}

fn pixels(image: DynamicImage, colour: Colour) -> Pixels {
    let (grey, deep) = (is_grey(image.color(), colour), is_deep(image.color()));
    let (height, width) = (image.height() as usize, image.width() as usize);
    let shape = ImageShape { height, width, channels: if grey { 1 } else { 3 } };
    let values = match (deep, grey) {
        (false, true) => Values::Bytes(match image {
            DynamicImage::ImageLuma8(luma) => luma.into_raw(),
            other => other.to_luma8().into_raw(),
        }),
        (false, false) => Values::Bytes(planes(&image.into_rgb8().into_raw())),
        // 16 bits over the largest of them; floats as they are.
        (true, true) => Values::Floats(match image {
            DynamicImage::ImageRgb32F(_) | DynamicImage::ImageRgba32F(_) => {
                let luma = |[r, g, b]: &[f32; 3]| 0.2126 * r + 0.7152 * g + 0.0722 * b;
                image.into_rgb32f().into_raw().as_chunks::<3>().0.iter().map(luma).collect()
            }
            other => other.into_luma16().into_raw().into_iter().map(of_16_bits).collect(),
        }),
        (true, false) => Values::Floats(match image {
            DynamicImage::ImageRgb32F(_) | DynamicImage::ImageRgba32F(_) => {
                planes(&image.into_rgb32f().into_raw())
            }
            other => planes(&other.into_rgb16().into_raw()).into_iter().map(of_16_bits).collect(),
        }),
    };
    Pixels { form: Form { shape, deep }, values }
}

fn of_16_bits(x: u16) -> f32 {
    f32::from(x) / 65_535.
}

/// Planes one after the other of three channels side by side.
fn planes<T: Copy>(interleaved: &[T]) -> Vec<T> {
    (0..3).flat_map(|c| interleaved.iter().skip(c).step_by(3).copied()).collect()
}
