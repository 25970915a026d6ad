//! Seeded random windows.
//!
//! ```text
//! P_j = (H_j - h + 1)(W_j - w + 1)      positions of a window of h lines of w pixels in image j
//! P   = Σ_j P_j
//! p_i = ⌊ u_i P / 2⁶⁴ ⌋                 patch i, u_i the 64 bits of Philox(seed) at block i
//! ```
//! Position `p_i` counts through the images in their order and each by lines, so every legal
//! position of the set is as likely as any other (up to P/2⁶⁴), and an image is chosen by the area
//! of its positions. Patch `i` depends on the images, `h`, `w`, the seed and `i` alone: not on how
//! many are drawn, in which order, or where.
use super::image_set::ImageSet;
use super::size::PatchSize;
use crate::source::check_read;
use crate::{Dataset, Error, ImageShape, Result, RowType, Source, Split};
use candle::{Device, Tensor};
use chandlery_ops::Philox;
use rayon::prelude::*;
use std::ops::Range;
use std::sync::Arc;

/// The Philox stream of patch positions.
const PATCH_STREAM: u64 = 0x7061_7463_6865_7300; // "patches"

/// Patches to a task below which a thread is not worth waking.
const PATCHES_PER_TASK: usize = 256;

/// Where a patch was cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PatchPlace {
    /// Index into [`ImageSet::images`].
    pub image: usize,
    /// First line.
    pub top: usize,
    /// First pixel of each line.
    pub left: usize,
}

/// Seeded random patches of an [`ImageSet`], cut when they are read; see the [module](super).
#[derive(Debug, Clone)]
pub struct PatchSampler {
    images: Arc<ImageSet>,
    size: PatchSize,
    n_patches: u32,
    philox: Philox,
    /// Positions in all images before and with each, ascending.
    positions_up_to: Arc<[u64]>,
}

impl PatchSampler {
    /// `n_patches` patches of `size` (a side, or height and width) from `images`, drawn with
    /// `seed`.
    ///
    /// Nothing is drawn or copied here. A larger `n_patches` has the same patches and more.
    ///
    /// # Errors
    /// When `size` is 0 or more than the height or width of an image, or `n_patches` is 0 or more
    /// than `u32::MAX`.
    pub fn new(
        images: impl Into<Arc<ImageSet>>,
        size: impl Into<PatchSize>,
        n_patches: usize,
        seed: u64,
    ) -> Result<Self> {
        let (images, size) = (images.into(), size.into());
        if size.height == 0 || size.width == 0 {
            return Err(Error::Argument(format!("PatchSampler: size must be at least 1x1, got {size}")));
        }
        let n_patches = u32::try_from(n_patches).ok().filter(|&n| n > 0).ok_or_else(|| {
            Error::Argument(format!(
                "PatchSampler: n_patches must be between 1 and {}, got {n_patches}",
                u32::MAX
            ))
        })?;
        let mut positions = 0u64;
        let mut positions_up_to = Vec::with_capacity(images.images().len());
        for image in images.images() {
            let (height, width) = (image.height(), image.width());
            if size.height > height || size.width > width {
                return Err(Error::format(
                    images.name(),
                    format!("image {} is {height}x{width}, smaller than a patch of {size}", image.name()),
                    "ask for smaller patches or leave the image out",
                ));
            }
            positions += ((height - size.height + 1) * (width - size.width + 1)) as u64;
            positions_up_to.push(positions);
        }
        Ok(Self {
            images,
            size,
            n_patches,
            philox: Philox::new(seed, PATCH_STREAM),
            positions_up_to: positions_up_to.into(),
        })
    }

    /// Height, width and channels of a patch.
    pub fn shape(&self) -> ImageShape {
        let PatchSize { height, width } = self.size;
        ImageShape { height, width, channels: self.images.channels() }
    }

    /// The images drawn from.
    pub fn images(&self) -> &ImageSet {
        &self.images
    }

    /// Where patch `index` lies; any index, also beyond `n_patches`.
    pub fn place(&self, index: u32) -> PatchPlace {
        let [low, high, ..] = self.philox.block(u64::from(index));
        let u = (u64::from(high) << 32) | u64::from(low);
        let positions = self.positions_up_to.last().copied().unwrap_or(0);
        let position = ((u128::from(u) * u128::from(positions)) >> 64) as u64;

        let image = self.positions_up_to.partition_point(|&up_to| up_to <= position);
        let before = image.checked_sub(1).map_or(0, |i| self.positions_up_to[i]);
        let within = (position - before) as usize;
        let across = self.images.images()[image].width() - self.size.width + 1;
        PatchPlace { image, top: within / across, left: within % across }
    }

    /// The patches of `range` on `device`: `[range.len(), channels * height * width]`, f32, bytes
    /// scaled to [0, 1].
    ///
    /// # Errors
    /// When `range` is empty or ends beyond `n_patches`, or the device has no room.
    pub fn draw(&self, range: Range<u32>, device: &Device) -> Result<Tensor> {
        if range.is_empty() || range.end > self.n_patches {
            return Err(Error::Argument(format!(
                "PatchSampler.draw: range must not be empty and lie in 0..{}, got {range:?}",
                self.n_patches
            )));
        }
        let indices: Vec<u32> = range.collect();
        self.clone().into_split()?.select(&indices)?.to_tensor(device)
    }

    /// The patches as a split without labels, for a [`Feed`](crate::Feed) to stream.
    ///
    /// # Errors
    /// Never for a sampler that [`PatchSampler::new`] made.
    pub fn into_split(self) -> Result<Split> {
        let shape = self.shape();
        Split::new(Arc::new(self), None)?.with_image(Some(shape))
    }

    /// The patches as a data set of images without a test split.
    ///
    /// # Errors
    /// Never for a sampler that [`PatchSampler::new`] made.
    pub fn into_dataset(self) -> Result<Dataset> {
        let name = format!("{}:{}", self.images.name(), self.size);
        Dataset::new(name, self.into_split()?, None, None)
    }

    /// Copies patch `index`, plane by plane and line by line; `out` has the bytes of one patch.
    fn cut(&self, index: u32, out: &mut [u8]) {
        let PatchPlace { image, top, left } = self.place(index);
        let image = &self.images.images()[image];
        let pixel_bytes = self.images.row_type().size_bytes();
        let (image_line, patch_line) = (image.width() * pixel_bytes, self.size.width * pixel_bytes);
        let planes = image.bytes().chunks_exact(image.height() * image_line);
        for (plane, out) in planes.zip(out.chunks_exact_mut(self.size.height * patch_line)) {
            let lines = plane.chunks_exact(image_line).skip(top);
            for (line, out) in lines.zip(out.chunks_exact_mut(patch_line)) {
                let start = left * pixel_bytes;
                out.copy_from_slice(&line[start..start + patch_line]);
            }
        }
    }
}

impl Source for PatchSampler {
    fn n_samples(&self) -> usize {
        self.n_patches as usize
    }

    fn n_features(&self) -> usize {
        self.shape().n_features()
    }

    fn row_type(&self) -> RowType {
        self.images.row_type()
    }

    fn read_rows(&self, indices: &[u32], out: &mut [u8]) -> Result<()> {
        check_read(self, indices, out)?;
        let patch_bytes = self.n_features() * self.row_type().size_bytes();
        out.par_chunks_exact_mut(patch_bytes)
            .zip(indices)
            .with_min_len(PATCHES_PER_TASK)
            .for_each(|(out, &index)| self.cut(index, out));
        Ok(())
    }
}
