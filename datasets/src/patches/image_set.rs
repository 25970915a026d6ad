//! Images of any sizes, grey or in colour.
use super::size::PatchSize;
use crate::decode::{AnyImages, Gathered};
use crate::mapped::MappedFile;
use crate::source::check_finite;
use crate::{Error, ImageShape, Result, RowType};
use std::ops::Range;

/// An image with a name.
#[derive(Debug, Clone)]
pub struct Image {
    name: String,
    shape: ImageShape,
    pixels: Pixels,
}

/// `[channels, height, width]`, planes one after the other, each by lines.
#[derive(Debug, Clone)]
pub(super) enum Pixels {
    U8(Vec<u8>),
    F32(Vec<f32>),
    /// Values of several images, where those of this one lie in bytes, and their type.
    Shared(MappedFile, Range<usize>, RowType),
}

impl Image {
    /// An image of bytes, each standing for itself over 255; `pixels` is
    /// `[channels, height, width]`.
    ///
    /// # Errors
    /// When the number of values is not that of the shape, or zero.
    pub fn from_u8(name: impl Into<String>, shape: ImageShape, pixels: Vec<u8>) -> Result<Self> {
        Self::checked(name.into(), shape, Pixels::U8(pixels))
    }

    /// An image of floats, usually in [0, 1]; `pixels` is `[channels, height, width]`.
    ///
    /// # Errors
    /// When the number of values is not that of the shape, or zero, or a value is NaN or infinite.
    pub fn from_f32(name: impl Into<String>, shape: ImageShape, pixels: Vec<f32>) -> Result<Self> {
        let (name, width) = (name.into(), shape.width);
        if let Some(i) = pixels.iter().position(|p| !p.is_finite()) {
            return Err(Error::NotFinite {
                at: format!("image {name}"),
                row: i / width.max(1),
                column: i % width.max(1),
                value: pixels[i],
            });
        }
        Self::checked(name, shape, Pixels::F32(pixels))
    }

    pub(super) fn checked(name: String, shape: ImageShape, pixels: Pixels) -> Result<Self> {
        let n_values = match &pixels {
            Pixels::U8(values) => values.len(),
            Pixels::F32(values) => values.len(),
            Pixels::Shared(_, range, row_type) => range.len() / row_type.size_bytes(),
        };
        if n_values == 0 || shape.n_features() != n_values {
            return Err(Error::Argument(format!(
                "Image: pixels must number height * width * channels and at least 1, got {n_values} for {shape} ({name})"
            )));
        }
        Ok(Self { name, shape, pixels })
    }

    /// What the image is called: a file's path within its folder, a row's number.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Lines, pixels in a line and channels.
    pub fn shape(&self) -> ImageShape {
        self.shape
    }

    /// Lines, at least 1.
    pub fn height(&self) -> usize {
        self.shape.height
    }

    /// Pixels in a line, at least 1.
    pub fn width(&self) -> usize {
        self.shape.width
    }

    /// The stored type.
    pub fn row_type(&self) -> RowType {
        match self.pixels {
            Pixels::U8(_) => RowType::U8,
            Pixels::F32(_) => RowType::F32,
            Pixels::Shared(_, _, row_type) => row_type,
        }
    }

    /// The pixels as floats, `[channels, height, width]`; bytes are divided by 255.
    pub fn to_f32(&self) -> Vec<f32> {
        match self.row_type() {
            RowType::U8 => self.bytes().iter().map(|&p| f32::from(p) / 255.).collect(),
            _ => bytemuck::pod_collect_to_vec(self.bytes()),
        }
    }

    /// The pixels as stored, native-endian, `[channels, height, width]`.
    pub(super) fn bytes(&self) -> &[u8] {
        match &self.pixels {
            Pixels::U8(values) => values,
            Pixels::F32(values) => bytemuck::cast_slice(values),
            Pixels::Shared(file, range, _) => &file.bytes()[range.clone()],
        }
    }
}

/// Images of any sizes to draw patches from, of one stored type and with the same channels.
///
/// Images of files and of the hub are bytes, or floats where one has 16 bits a value, in memory up
/// to [`DataOptions::memory_bytes`](crate::DataOptions::memory_bytes), then in a temporary file
/// that is mapped.
#[derive(Debug, Clone)]
pub struct ImageSet {
    name: String,
    images: Vec<Image>,
    row_type: RowType,
}

impl ImageSet {
    /// Joins images to a set; where types are mixed, bytes become floats.
    ///
    /// # Errors
    /// When there is no image, or some have other channels than the first.
    pub fn new(name: impl Into<String>, mut images: Vec<Image>) -> Result<Self> {
        let name = name.into();
        if images.is_empty() {
            return Err(Error::format(name, "holds no images", "give at least one"));
        }
        let channels = images[0].shape.channels;
        if let Some(other) = images.iter().find(|image| image.shape.channels != channels) {
            return Err(Error::format(
                name,
                format!(
                    "image {} has {channels} channels, image {} has {}",
                    images[0].name, other.name, other.shape.channels
                ),
                "give images that are all grey or all in colour",
            ));
        }
        let all_bytes = images.iter().all(|image| image.row_type() == RowType::U8);
        if !all_bytes {
            for image in &mut images {
                image.pixels = Pixels::F32(image.to_f32());
            }
        }
        let row_type = if all_bytes { RowType::U8 } else { RowType::F32 };
        Ok(Self { name, images, row_type })
    }

    pub(super) fn of_any(set: &str, images: AnyImages) -> Result<Self> {
        let Gathered { images, file, row_type } = images.finish()?;
        let mut at = 0;
        let image = |(name, shape): (String, ImageShape)| {
            let range = at..at + shape.n_features() * row_type.size_bytes();
            at = range.end;
            if row_type == RowType::F32 {
                check_finite(&name, RowType::F32, &file.bytes()[range.clone()], shape.width)?;
            }
            Image::checked(name, shape, Pixels::Shared(file.clone(), range, row_type))
        };
        Self::new(set, images.into_iter().map(image).collect::<Result<_>>()?)
    }

    /// Leaves out the images in which no patch of `size` lies; says how many they were.
    ///
    /// # Errors
    /// When there is no other.
    pub fn leave_out_smaller(&mut self, size: impl Into<PatchSize>) -> Result<usize> {
        let (size, n) = (size.into(), self.images.len());
        let fits = |image: &Image| image.height() >= size.height && image.width() >= size.width;
        if !self.images.iter().any(fits) {
            let largest = self.images.iter().max_by_key(|image| image.height().min(image.width()));
            let (height, width) = largest.map_or((0, 0), |image| (image.height(), image.width()));
            return Err(Error::format(
                &self.name,
                format!("no image is as large as a patch of {size}; the largest of {n} is {height}x{width}"),
                "ask for smaller patches or give larger images",
            ));
        }
        self.images.retain(fits);
        Ok(n - self.images.len())
    }

    /// How to name the set in reports.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The images, at least one.
    pub fn images(&self) -> &[Image] {
        &self.images
    }

    /// The images by themselves.
    pub fn into_images(self) -> Vec<Image> {
        self.images
    }

    /// 1 for grey images, 3 for red, green, blue.
    pub fn channels(&self) -> usize {
        self.images[0].shape.channels
    }

    /// The stored type of all images.
    pub fn row_type(&self) -> RowType {
        self.row_type
    }
}
