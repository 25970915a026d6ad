//! Encoded images to planes of bytes.
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
        let decoded: Vec<(String, Pixels)> = batch
            .par_iter()
            .enumerate()
            .map(|(i, item)| {
                let (at, bytes) = load(i, item)?;
                let pixels = decode(&at, bytes.as_ref(), self.colour)?;
                Ok((at, pixels))
            })
            .collect::<Result<_>>()?;
        for (at, pixels) in decoded {
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
