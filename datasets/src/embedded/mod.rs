//! Data sets that come with the crate, so that a first run needs no network.
//!
//! | name             | what                                                             | terms |
//! |------------------|------------------------------------------------------------------|-------|
//! | `mnist-sample`   | 5,000 training and 1,000 test digits, 28×28 bytes, balanced      | MIT   |
//! | `natural-images` | four photographs and textures, 512×512 grey bytes                | CC0   |
//!
//! The files lie in `data/`, each beside the script that makes it, its digests and its terms.
//!
//! ```
//! use chandlery_datasets::embedded;
//! # fn main() -> chandlery_datasets::Result<()> {
//! let digits = embedded::mnist_sample()?;
//! assert_eq!((digits.train.n_samples(), digits.n_features(), digits.n_classes()), (5000, 28 * 28, 10));
//! let photographs = embedded::natural_images()?;
//! assert_eq!(photographs.images().len(), 4);
//! # Ok(()) }
//! ```
use crate::form::{Pixels, Values};
use crate::options::Colour;
use crate::patches::image_set::{Image, ImageSet};
use crate::pixels::decode;
use crate::{Dataset, Error, ImageShape, Result, Split};
use flate2::read::GzDecoder;
use std::io::Read;

const SIDE: usize = 28;

/// One split of `mnist-sample`, as gzipped idx files.
struct Files {
    n: usize,
    images: &'static [u8],
    labels: &'static [u8],
}

const TRAIN: Files = Files {
    n: 5000,
    images: include_bytes!("../../data/mnist-sample/train-images-idx3-ubyte.gz"),
    labels: include_bytes!("../../data/mnist-sample/train-labels-idx1-ubyte.gz"),
};

const TEST: Files = Files {
    n: 1000,
    images: include_bytes!("../../data/mnist-sample/t10k-images-idx3-ubyte.gz"),
    labels: include_bytes!("../../data/mnist-sample/t10k-labels-idx1-ubyte.gz"),
};

const NATURAL_IMAGES: [(&str, &[u8]); 4] = [
    ("camera", include_bytes!("../../data/natural-images/camera.png")),
    ("brick", include_bytes!("../../data/natural-images/brick.png")),
    ("grass", include_bytes!("../../data/natural-images/grass.png")),
    ("gravel", include_bytes!("../../data/natural-images/gravel.png")),
];

/// The data set `mnist-sample`: 5,000 training and 1,000 test digits of MNIST's training set, in
/// memory as bytes.
///
/// Rows are 784 bytes, an image of 28×28 each; row `i` of either split shows the digit `i % 10`, so
/// that a prefix is as balanced as the whole. Unpacked at each call, in some 10 ms.
///
/// # Errors
/// When the embedded files fail their checksum or sizes, which says that the crate was damaged.
pub fn mnist_sample() -> Result<Dataset> {
    Dataset::new("mnist-sample", split("training", &TRAIN)?, Some(split("test", &TEST)?), None)
}

fn split(part: &str, files: &Files) -> Result<Split> {
    let images = idx(&format!("mnist-sample ({part} images)"), files.images, &[files.n, SIDE, SIDE])?;
    let labels = idx(&format!("mnist-sample ({part} labels)"), files.labels, &[files.n])?;
    let labels = labels.into_iter().map(u32::from).collect();
    Split::from_u8(images, SIDE * SIDE, Some(labels))?.with_image(Some(ImageShape::grey(SIDE, SIDE)))
}

/// Unpacks a gzipped idx file that must hold exactly the bytes of an array of `dims`; `at` names it
/// in errors.
///
/// Reading to the end makes the decoder compare the CRC-32 and the length that gzip stores.
fn idx(at: &str, gzipped: &[u8], dims: &[usize]) -> Result<Vec<u8>> {
    let damaged = |what: String| Error::format(at, what, "the embedded copy is damaged: build again");
    let header: Vec<u8> =
        [0x800 + dims.len()].iter().chain(dims).flat_map(|&word| (word as u32).to_be_bytes()).collect();
    let n_values: usize = dims.iter().product();
    let mut bytes = Vec::with_capacity(header.len() + n_values + 1);
    GzDecoder::new(gzipped)
        .take(bytes.capacity() as u64)
        .read_to_end(&mut bytes)
        .map_err(|e| damaged(format!("cannot be unpacked: {e}")))?;
    if !bytes.starts_with(&header) || bytes.len() != header.len() + n_values {
        return Err(damaged(format!("{} bytes are not an idx file of {dims:?} bytes", bytes.len())));
    }
    Ok(bytes.split_off(header.len()))
}

/// The image set `natural-images`: `camera`, `brick`, `grass` and `gravel`, 512×512 grey bytes
/// each.
///
/// From scikit-image 0.26.0, in the public domain under CC0. Decoded at each call, in some 5 ms.
///
/// # Errors
/// When an embedded file cannot be decoded, which says that the crate was damaged.
pub fn natural_images() -> Result<ImageSet> {
    natural_images_in(Colour::Grey)
}

/// The same images in grey or in three equal planes.
pub(crate) fn natural_images_in(colour: Colour) -> Result<ImageSet> {
    let images = NATURAL_IMAGES
        .iter()
        .map(|&(name, png)| {
            let Pixels { form, values } = decode(&format!("natural-images ({name})"), png, None, colour)?;
            match values {
                Values::Bytes(bytes) => Image::from_u8(name, form.shape, bytes),
                Values::Floats(floats) => Image::from_f32(name, form.shape, floats),
            }
        })
        .collect::<Result<_>>()?;
    ImageSet::new("natural-images", images)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_damaged_or_short_or_long_copy_is_an_error_not_a_panic() {
        let message = |bytes: &[u8], dims: &[usize]| idx("here", bytes, dims).unwrap_err().to_string();
        let end = "; the embedded copy is damaged: build again";
        let truncated = message(&TEST.labels[..TEST.labels.len() - 9], &[1000]);
        assert!(
            truncated.starts_with("here: cannot be unpacked: ") && truncated.ends_with(end),
            "{truncated}"
        );
        let mut flipped = TEST.labels.to_vec();
        let crc = flipped.len() - 8;
        flipped[crc] ^= 1;
        assert_eq!(
            message(&flipped, &[1000]),
            format!("here: cannot be unpacked: corrupt gzip stream does not have a matching checksum{end}")
        );
        assert_eq!(
            message(TEST.labels, &[1001]),
            format!("here: 1008 bytes are not an idx file of [1001] bytes{end}")
        );
        assert_eq!(
            message(TEST.labels, &[999]),
            format!("here: 1008 bytes are not an idx file of [999] bytes{end}")
        );
        assert!(message(b"", &[1]).starts_with("here: "));
        assert_eq!(idx("here", TEST.labels, &[1000]).unwrap().len(), 1000);
    }
}
