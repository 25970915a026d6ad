//! Images that patches are cut from.
use crate::options::ReadArgs;
use crate::progress::Spinner;
use crate::report::Report;
use crate::stages::{self, Stage};
use anyhow::{Context, Result};
use chandlery_datasets::is_name;
use chandlery_datasets::patches::ImageSet;
use image::ImageDecoder;
use std::path::{Path, PathBuf};

/// Opens images of any sizes.
pub fn open(data: &str, read: &ReadArgs) -> Result<ImageSet> {
    let _stage = stages::enter(Stage::Data);
    let spinner = Spinner::new(&format!("opening {data}"));
    let set = ImageSet::open(data, &read.options()).with_context(|| format!("--data {data}"))?;
    drop(spinner);
    if set.channels() == 1
        && let Some(name) = first_in_colour(data, &set)
    {
        Report::new(false).note(&format!("note: {name} is in colour, and was turned grey"));
    }
    Ok(set)
}

/// The first image file of a grey set that is stored in colour, among the first thousand.
fn first_in_colour<'a>(data: &str, set: &'a ImageSet) -> Option<&'a str> {
    let of_file = Path::new(data).is_file();
    let in_colour = |name: &str| {
        let path = if of_file { PathBuf::from(data) } else { Path::new(data).join(name) };
        let reader = image::ImageReader::open(path).ok()?.with_guessed_format().ok()?;
        Some(reader.into_decoder().ok()?.color_type().has_color())
    };
    set.images()
        .iter()
        .take(1000)
        .map(chandlery_datasets::patches::Image::name)
        .find(|name| in_colour(name) == Some(true))
}

/// Whether patches are to be cut from what `data` names: the built-in photographs, an image file, a
/// folder of such.
pub fn are_in(data: &str) -> Result<bool> {
    let path = Path::new(data);
    if data == "natural-images" || path.is_file() && is_image(path) {
        return Ok(true);
    }
    if is_name(data) || !path.is_dir() {
        return Ok(false);
    }
    let entries =
        std::fs::read_dir(path).with_context(|| format!("--data {data}: cannot read this folder"))?;
    for entry in entries {
        if is_image(&entry?.path()) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether a name ends as that of an image does.
fn is_image(path: &Path) -> bool {
    image::ImageFormat::from_path(path).is_ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_folder_of_images_is_told_from_one_of_other_files() {
        let dir = tempfile::tempdir().unwrap();
        let name = dir.path().display().to_string();
        assert!(!are_in(&name).unwrap());
        std::fs::write(dir.path().join("x.PNG"), "").unwrap();
        assert!(are_in(&name).unwrap());
        assert!(are_in("natural-images").unwrap());
        assert!(!are_in("mnist-sample").unwrap());
    }
}
