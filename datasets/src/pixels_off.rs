//! In place of the decoder of images, in a build without it.
use crate::decode::Pixels;
use crate::options::Colour;
use crate::{Error, Result};

pub(crate) fn decode(at: &str, _: &[u8], _: Colour) -> Result<Pixels> {
    Err(Error::without(at, "images", "image"))
}
