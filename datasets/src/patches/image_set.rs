//! Images of any sizes, grey or in colour.
use super::PatchSize;
use crate::decode::{AnyImages, EXTENSIONS, Gathered, ImageFile, is_image};
use crate::mapped::MappedFile;
use crate::options::Colour;
use crate::source::check_finite;
use crate::{DataOptions, Dataset, Error, ImageShape, Result, RowType, Split};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Image files that are read and decoded at a time.
const FILES_PER_BATCH: usize = 64;

/// An image with a name.
#[derive(Debug, Clone)]
pub struct Image {
    name: String,
    shape: ImageShape,
    pixels: Pixels,
}

/// `[channels, height, width]`, planes one after the other, each by lines.
#[derive(Debug, Clone)]
enum Pixels {
    U8(Vec<u8>),
    F32(Vec<f32>),
    /// Values of several images, where those of this one lie in bytes, and their type.
    Shared(MappedFile, Range<usize>, RowType),
}

impl Image {
    /// An image of bytes, each standing for itself over 255; `pixels` is `[channels, height, width]`.
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

    fn checked(name: String, shape: ImageShape, pixels: Pixels) -> Result<Self> {
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
            RowType::F32 => bytemuck::pod_collect_to_vec(self.bytes()),
            RowType::U8 => self.bytes().iter().map(|&p| f32::from(p) / 255.).collect(),
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
/// Images of files and of the hub are bytes, or floats where one has 16 bits a value, in memory up to [`DataOptions::memory_bytes`], then in a temporary file that is mapped.
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

    /// Opens what `spec` names: `natural-images` (embedded), a folder of images of any sizes, an image file, or any data
    /// set of images that [`crate::open()`] takes, of which the training split is used.
    ///
    /// Images of the hub and of parquet files may have any sizes too. Of other data sets all have one size. A folder that holds no image file
    /// by its ending is left to [`crate::open()`]. With [`Colour::Rgb`] images have three planes,
    /// a grey image the same plane three times; else colour becomes grey: the luma 0.2126 R + 0.7152 G + 0.0722 B (Rec. 709) of the
    /// stored values.
    ///
    /// # Errors
    /// When there is nothing of that name, it cannot be read, or its rows are not images.
    pub fn open(spec: &str, options: &DataOptions) -> Result<Self> {
        if spec == "natural-images" {
            return crate::embedded::natural_images_in(planes(options.colour));
        }
        let path = Path::new(spec);
        let options = DataOptions { colour: planes(options.colour), ..options.clone() };
        let is_path = !crate::is_name(spec);
        if is_path && path.is_dir() && !image_files(path)?.is_empty() {
            return Self::of_folder(path, &options);
        }
        if is_path && path.is_file() && is_image(path) {
            return Self::of_files(spec, &[path.to_owned()], &options, Path::new(""));
        }
        match crate::open::any_images(spec, &options)? {
            Some(images) => Self::of_any(spec, images),
            None => Self::from_dataset(&crate::open(spec, &options)?, options.colour),
        }
    }

    /// Every image file in `folder` and its sub-folders, in the order of their paths; files are told by their ending.
    ///
    /// With [`Colour::Rgb`] images have three planes, else they become grey as in [`ImageSet::open`]; 16 bits stay, as
    /// floats, transparency is dropped, and each page of a TIFF is an image.
    ///
    /// # Errors
    /// When the folder cannot be read or holds no image file, or one of them cannot be decoded.
    pub fn from_folder(folder: impl AsRef<Path>, colour: Colour) -> Result<Self> {
        Self::of_folder(folder.as_ref(), &DataOptions { colour: planes(colour), ..DataOptions::default() })
    }

    fn of_folder(folder: &Path, options: &DataOptions) -> Result<Self> {
        let files = image_files(folder)?;
        if files.is_empty() {
            return Err(Error::format(
                folder.display(),
                "holds no image files",
                format!("give a folder with files that end in one of: {}", EXTENSIONS.join(", ")),
            ));
        }
        Self::of_files(&folder.display().to_string(), &files, options, folder)
    }

    /// Image files, which are called by their paths within `folder`; no more are decoded at a time than threads are kept busy by.
    fn of_files(set: &str, files: &[PathBuf], options: &DataOptions, folder: &Path) -> Result<Self> {
        let mut images = AnyImages::new(options.colour, options.memory_limit());
        for files in files.chunks(FILES_PER_BATCH) {
            let batch: Vec<Vec<ImageFile>> =
                files.iter().map(|path| ImageFile::of(path)).collect::<Result<_>>()?;
            for batch in batch.concat().chunks(FILES_PER_BATCH) {
                let named =
                    |file: &ImageFile| file.name(file.path.strip_prefix(folder).unwrap_or(&file.path));
                let name = |i: usize| batch.get(i).map_or_else(String::new, named);
                images.extend(batch, |_, file| file.load(), name)?;
            }
        }
        Self::of_any(set, images)
    }

    fn of_any(set: &str, images: AnyImages) -> Result<Self> {
        let Gathered { images, file, row_type } = images.finish()?;
        let mut at = 0;
        let image = |(name, shape): (String, ImageShape)| {
            let range = at..at + shape.n_features() * row_type.size_bytes();
            at = range.end;
            if row_type == RowType::F32 {
                check_finite(&name, &file.bytes()[range.clone()], shape.width)?;
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

    /// The training rows of `dataset` as images, in `colour` as in [`ImageSet::open`], named by their numbers.
    ///
    /// Copies them: `height * width * channels` values per image. [`Split::take`] limits how many.
    ///
    /// # Errors
    /// When its rows are not images of one or three planes, or cannot be read.
    pub fn from_dataset(dataset: &Dataset, colour: Colour) -> Result<Self> {
        let Some(shape) = dataset.image() else {
            return Err(Error::no_images(&dataset.name));
        };
        if shape.channels != 1 && shape.channels != 3 {
            return Err(Error::format(
                &dataset.name,
                format!("images have {} planes", shape.channels),
                "give images of one plane (grey) or three (red, green, blue)",
            ));
        }
        let split = &dataset.train;
        let area = shape.height * shape.width;
        let rgb = colour == Colour::Rgb;
        let shape = ImageShape { channels: if rgb { 3 } else { 1 }, ..shape };
        let mut images = Vec::with_capacity(split.n_samples());
        let image = |i: u32, pixels: Pixels| Image::checked(format!("row {i}"), shape, pixels);
        match split.row_type() {
            RowType::U8 => each_row(split, |i, row: &[u8]| {
                let luma = |[r, g, b]: [u8; 3]| {
                    // Rounded, as decoding does it, so that a file and its hub copy give the same bytes.
                    let sum = 2126 * u32::from(r) + 7152 * u32::from(g) + 722 * u32::from(b);
                    ((sum + 5000) / 10_000) as u8
                };
                images.push(image(i, Pixels::U8(in_colour(row, area, rgb, luma)))?);
                Ok(())
            })?,
            RowType::F32 => each_row(split, |i, row: &[f32]| {
                let luma = |[r, g, b]: [f32; 3]| 0.2126 * r + 0.7152 * g + 0.0722 * b;
                images.push(image(i, Pixels::F32(in_colour(row, area, rgb, luma)))?);
                Ok(())
            })?,
        }
        Self::new(dataset.name.clone(), images)
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

/// What images become: three planes where they were asked for, else grey.
fn planes(colour: Colour) -> Colour {
    if colour == Colour::Rgb { Colour::Rgb } else { Colour::Grey }
}

/// One plane or three of an image that has one or three: a grey plane is repeated, three are mixed by `luma`.
fn in_colour<T: Copy>(planes: &[T], area: usize, rgb: bool, luma: impl Fn([T; 3]) -> T) -> Vec<T> {
    match (planes.len() == area, rgb) {
        (true, true) => planes.repeat(3),
        (true, false) | (false, true) => planes.to_vec(),
        (false, false) => {
            let (red, rest) = planes.split_at(area);
            let (green, blue) = rest.split_at(area);
            red.iter().zip(green).zip(blue).map(|((&r, &g), &b)| luma([r, g, b])).collect()
        }
    }
}

/// Hands each row of `split` to `take`, a block at a time.
fn each_row<T: bytemuck::Pod>(split: &Split, mut take: impl FnMut(u32, &[T]) -> Result<()>) -> Result<()> {
    const BLOCK_VALUES: usize = 1 << 20;
    let n_features = split.n_features();
    let indices: Vec<u32> = (0..split.n_samples() as u32).collect();
    for block in indices.chunks((BLOCK_VALUES / n_features).max(1)) {
        let mut values = vec![T::zeroed(); block.len() * n_features];
        split.rows.read_rows(block, bytemuck::cast_slice_mut(&mut values))?;
        for (&i, row) in block.iter().zip(values.chunks_exact(n_features)) {
            take(i, row)?;
        }
    }
    Ok(())
}

/// Image files below `folder` by their endings, sorted by path; names that begin with a dot are passed over.
fn image_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).map_err(|e| Error::io(&folder, e))? {
            let entry = entry.map_err(|e| Error::io(&folder, e))?;
            let path = entry.path();
            let kind = entry.file_type().map_err(|e| Error::io(&path, e))?;
            if entry.file_name().to_string_lossy().starts_with('.') {
                continue;
            }
            // A link to a folder is not followed: it may lead round in a circle.
            if kind.is_dir() {
                folders.push(path);
            } else if is_image(&path) {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}
