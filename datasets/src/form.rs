//! A decoded image.
use crate::ImageShape;

/// What an image becomes, as its header says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Form {
    pub(crate) shape: ImageShape,
    /// Whether its values are floats: those of 16 bits over 65,535.
    pub(crate) deep: bool,
}

impl Form {
    /// Bytes that decoding takes: as it comes from the decoder, and as planes.
    pub(crate) fn decoded_bytes(&self) -> usize {
        self.shape.n_features().saturating_mul(if self.deep { 8 } else { 2 })
    }
}

/// Values of an image, `[channels, height, width]`.
#[derive(Debug)]
#[cfg_attr(not(feature = "image"), allow(dead_code))]
pub(crate) enum Values {
    Bytes(Vec<u8>),
    Floats(Vec<f32>),
}

/// One decoded image.
#[derive(Debug)]
pub(crate) struct Pixels {
    pub(crate) form: Form,
    pub(crate) values: Values,
}
