//! Image sets of files and data sets.
use super::image_set::{Image, ImageSet, Pixels};
use crate::decode::{AnyImages, EXTENSIONS, ImageFile, is_image};
use crate::options::{Colour, DataOptions};
use crate::{Dataset, Error, ImageShape, Result, RowType, Split};
use std::path::{Path, PathBuf};

/// Image files that are read and decoded at a time.
const FILES_PER_BATCH: usize = 64;

impl ImageSet {
    /// Opens what `spec` names: `natural-images` (embedded), a folder of images of any sizes, an
    /// image file, or any data set of images that [`crate::open()`] takes, of which the training
    /// split is used.
    ///
    /// Images of the hub and of parquet files may have any sizes too. Of other data sets all have
    /// one size. A folder that holds no image file by its ending is left to [`crate::open()`]. With
    /// [`Colour::Rgb`] images have three planes, a grey image the same plane three times; else
    /// colour becomes grey: the luma 0.2126 R + 0.7152 G + 0.0722 B (Rec. 709) of the stored
    /// values.
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

    /// Every image file in `folder` and its sub-folders, in the order of their paths; files are
    /// told by their ending.
    ///
    /// With [`Colour::Rgb`] images have three planes, else they become grey as in
    /// [`ImageSet::open`]; 16 bits stay, as floats, transparency is dropped, and each page of a
    /// TIFF is an image.
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

    /// Image files, which are called by their paths within `folder`; no more are decoded at a time
    /// than threads are kept busy by.
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

    /// The training rows of `dataset` as images, in `colour` as in [`ImageSet::open`], named by
    /// their numbers.
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
                    // Rounded, as decoding does it, so that a file and its hub copy give the same
                    // bytes.
                    let sum = 2126 * u32::from(r) + 7152 * u32::from(g) + 722 * u32::from(b);
                    ((sum + 5000) / 10_000) as u8
                };
                images.push(image(i, Pixels::U8(in_colour(row, area, rgb, luma)))?);
                Ok(())
            })?,
            _ => each_row(split, |i, row: &[f32]| {
                let luma = |[r, g, b]: [f32; 3]| 0.2126 * r + 0.7152 * g + 0.0722 * b;
                images.push(image(i, Pixels::F32(in_colour(row, area, rgb, luma)))?);
                Ok(())
            })?,
        }
        Self::new(dataset.name.clone(), images)
    }
}

/// What images become: three planes where they were asked for, else grey.
fn planes(colour: Colour) -> Colour {
    if colour == Colour::Rgb { Colour::Rgb } else { Colour::Grey }
}

/// One plane or three of an image that has one or three: a grey plane is repeated, three are mixed
/// by `luma`.
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

/// Image files below `folder` by their endings, sorted by path; names that begin with a dot are
/// passed over.
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
