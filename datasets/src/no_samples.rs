//! What a build without the feature `samples` has in place of the data sets that come with the
//! crate.
use crate::options::Colour;
use crate::patches::image_set::ImageSet;
use crate::{Dataset, Error, Result};

fn without(name: &str) -> Error {
    Error::without(format_args!("data '{name}'"), "the built-in samples", "samples")
}

/// # Errors
/// Always: this build has no samples.
pub fn mnist_sample() -> Result<Dataset> {
    Err(without("mnist-sample"))
}

/// # Errors
/// Always: this build has no samples.
pub fn natural_images() -> Result<ImageSet> {
    natural_images_in(Colour::Grey)
}

pub(crate) fn natural_images_in(_: Colour) -> Result<ImageSet> {
    Err(without("natural-images"))
}
