//! Data sets of crops: windows of images whose training and test rows come from different images.
use super::image_set::ImageSet;
use super::sampler::PatchSampler;
use super::size::PatchSize;
use crate::{Dataset, Result};

/// Of so many images, the last is kept for test rows.
const TEST_EVERY: usize = 10;
/// Test rows are a tenth of the training rows, at most so many.
const MOST_TEST_ROWS: usize = 10_000;

impl ImageSet {
    /// `n_crops` random windows of `size` drawn with `seed`, cut when they are read, as a data set
    /// without labels.
    ///
    /// Every tenth image is kept for test rows, a tenth as many as training rows and at most
    /// 10,000; of fewer than ten images there are none. Nothing is copied beside the images.
    ///
    /// # Errors
    /// When `size` is larger than an image, or `n_crops` is 0 or above 2³² − 1.
    pub fn into_crops(self, size: impl Into<PatchSize>, n_crops: usize, seed: u64) -> Result<Dataset> {
        let size = size.into();
        let name = format!("{}:{size}", self.name());
        let of =
            |images: ImageSet, n: usize, seed: u64| PatchSampler::new(images, size, n, seed)?.into_split();
        let (set, n_test) = (self.name().to_owned(), (n_crops / TEST_EVERY).clamp(1, MOST_TEST_ROWS));
        let (test, train): (Vec<_>, Vec<_>) =
            self.into_images().into_iter().enumerate().partition(|(i, _)| i % TEST_EVERY == TEST_EVERY - 1);
        let images = |part: Vec<(usize, _)>| {
            Self::new(set.clone(), part.into_iter().map(|(_, image)| image).collect())
        };
        let train = of(images(train)?, n_crops, seed)?;
        let test = match test.is_empty() {
            true => None,
            false => Some(of(images(test)?, n_test, seed.wrapping_add(1))?),
        };
        Dataset::new(name, train, test, None)
    }
}
