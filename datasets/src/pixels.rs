//! One encoded image to planes of bytes.
use crate::decode::Pixels;
use crate::guard::quietly;
use crate::options::Colour;
use crate::tiff::impossible_count;
use crate::{Error, ImageShape, Result};
use image::{DynamicImage, ImageError, ImageReader, ImageResult, Limits};
use std::io::Cursor;
use std::path::Path;

/// Lines, and pixels in a line, that an image may have: what a JPEG can say.
const MAX_SIDE: u32 = 65_535;
/// Bytes that any image may have once decoded …
const FREE_BYTES: u64 = 32 << 20;
/// … and how many more for each byte of its file: what deflate can do, so that a blank page is still read.
const BYTES_PER_BYTE: u64 = 1024;

/// Decodes `bytes`, whatever format they announce; `at` names them in errors.
///
/// A damaged header may announce an image of gigabytes in a file of nothing: what is decoded is held to 32 MiB and a further
/// 1 KiB for each byte of the file, and so is the memory of those decoders that can be told.
pub(crate) fn decode(at: &str, bytes: &[u8], colour: Colour) -> Result<Pixels> {
    Ok(pixels(decoded(at, bytes)?, colour))
}

/// Decodes an image file with the checks of data sets: what a damaged header claims is not allocated, and a decoder that panics is an error.
///
/// # Errors
/// When the file is missing or no image; the message names it.
pub fn decode_image(path: &Path) -> Result<DynamicImage> {
    let bytes = std::fs::read(path).map_err(|e| Error::io(path, e))?;
    decoded(&path.display().to_string(), &bytes)
}

fn decoded(at: &str, bytes: &[u8]) -> Result<DynamicImage> {
    let refused = |what: String| Error::format(at, what, "replace or remove it");
    if let Some(count) = impossible_count(bytes) {
        let n = bytes.len();
        return Err(refused(format!(
            "cannot be decoded as an image: {n} bytes say that a field of theirs has {count} values"
        )));
    }
    // Version 0.18 of the `png` crate panics on some palettes; others may on what nobody has thought of yet.
    match quietly(|| limited(bytes)) {
        Some(Ok(image)) => Ok(image),
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

fn limited(bytes: &[u8]) -> ImageResult<DynamicImage> {
    let mut limits = Limits::default();
    limits.max_image_width = Some(MAX_SIDE);
    limits.max_image_height = Some(MAX_SIDE);
    limits.max_alloc = Some(limit_bytes(bytes));
    let mut reader = ImageReader::new(Cursor::new(bytes)).with_guessed_format()?;
    reader.limits(limits);
    reader.decode()
}

fn pixels(image: DynamicImage, colour: Colour) -> Pixels {
    let grey = match colour {
        Colour::Grey => true,
        Colour::Rgb => false,
        Colour::AsStored => !image.color().has_color(),
    };
    let (height, width) = (image.height() as usize, image.width() as usize);
    let shape = |channels| ImageShape { height, width, channels };
    if grey {
        let values = match image {
            DynamicImage::ImageLuma8(luma) => luma.into_raw(),
            other => other.to_luma8().into_raw(),
        };
        Pixels { shape: shape(1), values }
    } else {
        let interleaved = image.into_rgb8().into_raw();
        let values = (0..3).flat_map(|c| interleaved.iter().skip(c).step_by(3).copied()).collect();
        Pixels { shape: shape(3), values }
    }
}
