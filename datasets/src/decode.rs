//! Encoded images to planes of bytes.
use crate::mapped::MappedFile;
use crate::options::Colour;
#[cfg(feature = "image")]
pub(crate) use crate::pixels::decode;
use crate::sink::RowSink;
use crate::{Error, ImageShape, Result, Source};
use rayon::prelude::*;
use std::path::Path;
use std::sync::Arc;

/// Name endings of the image files that can be decoded, in lower case.
pub(crate) const EXTENSIONS: [&str; 12] =
    ["png", "jpg", "jpeg", "bmp", "tif", "tiff", "webp", "gif", "pgm", "ppm", "pbm", "pnm"];

/// Whether the name ends as an image's does.
pub(crate) fn is_image(path: &Path) -> bool {
    path.extension().is_some_and(|e| EXTENSIONS.iter().any(|known| e.eq_ignore_ascii_case(known)))
}

#[cfg(not(feature = "image"))]
pub(crate) fn decode(at: &str, _bytes: &[u8], _: Colour) -> Result<Pixels> {
    Err(Error::without(at, "images", "image"))
}

/// One decoded image.
#[derive(Debug)]
pub(crate) struct Pixels {
    pub(crate) shape: ImageShape,
    /// `[channels, height, width]`.
    pub(crate) values: Vec<u8>,
}

/// Gathers images of one shape as rows.
#[derive(Debug)]
pub(crate) struct ImageRows {
    colour: Colour,
    first: Option<(String, ImageShape)>,
    sink: RowSink<u8>,
}

impl ImageRows {
    pub(crate) fn new(colour: Colour, limit_bytes: usize) -> Self {
        Self { colour, first: None, sink: RowSink::new(limit_bytes) }
    }

    /// Reads and decodes a batch in parallel and appends it in order.
    ///
    /// `load` gives an image's name for errors and its encoded bytes.
    pub(crate) fn extend<T: Sync, B: AsRef<[u8]>>(
        &mut self,
        batch: &[T],
        load: impl Fn(usize, &T) -> Result<(String, B)> + Sync,
    ) -> Result<()> {
        for (at, pixels) in decoded(batch, self.colour, load)? {
            let (first, shape) = self.first.get_or_insert_with(|| (at.clone(), pixels.shape));
            if *shape != pixels.shape {
                return Err(Error::format(
                    at,
                    format!("is {} but {first} is {shape} (height x width x channels)", pixels.shape),
                    "make all images of a data set the same, or draw patches from them instead",
                ));
            }
            self.sink.push(&pixels.values)?;
        }
        Ok(())
    }

    /// The rows and the shape of each; `at` names their origin in errors.
    pub(crate) fn finish(self, at: &str) -> Result<(Arc<dyn Source>, ImageShape)> {
        let Some((_, shape)) = self.first else {
            return Err(Error::format(at, "holds no images", "give at least one"));
        };
        Ok((self.sink.finish(at, shape.n_features())?, shape))
    }
}

/// Reads and decodes a batch in parallel, in order.
fn decoded<T: Sync, B: AsRef<[u8]>>(
    batch: &[T],
    colour: Colour,
    load: impl Fn(usize, &T) -> Result<(String, B)> + Sync,
) -> Result<Vec<(String, Pixels)>> {
    let one = |(i, item)| {
        let (at, bytes) = load(i, item)?;
        let pixels = decode(&at, bytes.as_ref(), colour)?;
        Ok((at, pixels))
    };
    batch.par_iter().enumerate().map(one).collect()
}

/// Gathers images of any shapes: their bytes lie one after the other, in memory up to a limit, then in a temporary file.
#[derive(Debug)]
pub(crate) struct AnyImages {
    colour: Colour,
    /// Names and shapes.
    images: Vec<(String, ImageShape)>,
    sink: RowSink<u8>,
}

impl AnyImages {
    pub(crate) fn new(colour: Colour, limit_bytes: usize) -> Self {
        Self { colour, images: Vec::new(), sink: RowSink::new(limit_bytes) }
    }

    /// Reads and decodes a batch in parallel and appends it in order.
    ///
    /// `load` gives an image's name for errors and its encoded bytes, `name` what it is called in the set.
    pub(crate) fn extend<T: Sync, B: AsRef<[u8]>>(
        &mut self,
        batch: &[T],
        load: impl Fn(usize, &T) -> Result<(String, B)> + Sync,
        name: impl Fn(usize) -> String,
    ) -> Result<()> {
        for (i, (_, pixels)) in decoded(batch, self.colour, load)?.into_iter().enumerate() {
            self.sink.push(&pixels.values)?;
            self.images.push((name(i), pixels.shape));
        }
        Ok(())
    }

    /// Names and shapes, and the bytes of all.
    pub(crate) fn finish(self) -> Result<(Vec<(String, ImageShape)>, MappedFile)> {
        Ok((self.images, self.sink.into_file()?))
    }
}
