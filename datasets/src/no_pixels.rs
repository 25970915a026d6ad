//! What stands for the decoding of images in a build without it.
use crate::form::{Form, Pixels};
use crate::options::Colour;
use crate::{Error, Result};

pub(crate) fn decode(at: &str, _bytes: &[u8], _page: Option<u64>, _: Colour) -> Result<Pixels> {
    Err(Error::without(at, "images", "image"))
}

pub(crate) fn form(at: &str, _bytes: &[u8], _page: Option<u64>, _: Colour) -> Result<Form> {
    Err(Error::without(at, "images", "image"))
}

pub(crate) fn pages(_bytes: &[u8]) -> Option<Vec<u64>> {
    None
}
