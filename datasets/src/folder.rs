//! A folder: of idx files, of parquet files, or of images.
//!
//! Images lie in the folder itself, which gives rows without labels, or in sub-folders, each of which is then a class, numbered in the order
//! of names; images in both places are refused.
//! Sub-folders called `train` and `test`, else `validation` or `val`, or as the options say, are splits, and each may again have classes.
use crate::beside::{Beside, TESTS};
use crate::decode::{EXTENSIONS, ImageRows, is_image};
use crate::idx::IdxFolder;
use crate::labels::check_classes;
use crate::listing::{Listing, name_of};
use crate::options::DataOptions;
use crate::{Dataset, Error, Result, Split};
use std::path::{Path, PathBuf};

/// Images that are read and decoded at a time.
const IMAGES_PER_BATCH: usize = 1024;

/// Opens a folder; what lies in it decides how.
pub(crate) fn open(folder: &Path, options: &DataOptions) -> Result<Dataset> {
    let listing = Listing::of(folder)?;
    if let Some(idx) = IdxFolder::find(&listing.files) {
        return idx.open(folder, options);
    }
    options.refuse_subset(folder.display())?;
    let parquet: Vec<PathBuf> = crate::table::files_below(folder, &listing)?;
    if !parquet.is_empty() {
        return crate::table::open_folder(folder, parquet, options);
    }
    if let Some(beside) = Beside::find(&listing.files)
        && !holds_images(&listing)?
    {
        return beside.open(folder, options);
    }
    open_images(folder, &listing, options)
}

/// Whether there are images in a folder or below it.
fn holds_images(listing: &Listing) -> Result<bool> {
    if listing.files.iter().any(|path| is_image(path)) {
        return Ok(true);
    }
    for folder in &listing.folders {
        if !images_below(folder)?.is_empty() {
            return Ok(true);
        }
    }
    Ok(false)
}

fn open_images(folder: &Path, listing: &Listing, options: &DataOptions) -> Result<Dataset> {
    let train_name = options.train_split.as_deref().unwrap_or("train");
    let usual = || TESTS.into_iter().find(|name| listing.folder(name).is_some());
    let test_name = options.test_split.as_deref().or_else(usual).unwrap_or_default();
    let at = folder.display().to_string();
    options.refuse_columns(&at, "a folder of images holds rows")?;
    options.refuse_labels(
        &at,
        "a folder of images has its labels in the names of its sub-folders, one for each class",
    )?;
    let wanted = [&options.train_split, &options.test_split];
    for wanted in wanted.into_iter().flatten() {
        if listing.folder(wanted).is_none() {
            let there = listing.folders.iter().map(|path| name_of(path));
            return Err(Error::missing(at, "split", wanted, there));
        }
    }
    let Some(train) = listing.folder(train_name) else {
        let (split, class_names) = open_split(folder, options, None)?;
        return Dataset::new(at, split, None, class_names);
    };
    let (train, class_names) = open_split(train, options, None)?;
    let test = match listing.folder(test_name) {
        None => None,
        Some(test_folder) => {
            let (test, _) = open_split(test_folder, options, class_names.as_deref())?;
            test.check_images_like(&train, &at, "make all images of a data set the same")?;
            Some(test)
        }
    };
    Dataset::new(at, train, test, class_names)
}

/// One split: its images, and the classes when it has sub-folders.
///
/// `known` are the classes of the training split, whose numbers a test split has to use.
fn open_split(
    folder: &Path,
    options: &DataOptions,
    known: Option<&[String]>,
) -> Result<(Split, Option<Vec<String>>)> {
    let at = folder.display().to_string();
    let listing = Listing::of(folder)?;
    let mut images: Vec<PathBuf> = listing.files.into_iter().filter(|path| is_image(path)).collect();
    let mut labels = None;
    let mut class_names = None;
    let mut classes = Vec::new();
    for class_folder in &listing.folders {
        let inside = images_below(class_folder)?;
        if !inside.is_empty() {
            classes.push((name_of(class_folder), inside));
        }
    }
    if let (Some(image), Some((class, _))) = (images.first(), classes.first()) {
        return Err(Error::format(
            at,
            format!("holds images both itself ({}) and in sub-folders ({class})", name_of(image)),
            "move them all into sub-folders, one for each class, or all into the folder",
        ));
    }
    if images.is_empty() {
        let there: Vec<usize> = classes.iter().map(|(_, inside)| inside.len()).collect();
        let kept = spread(&there, options.max_rows);
        let mut names = Vec::new();
        let mut numbers = Vec::new();
        for ((name, mut inside), kept) in classes.into_iter().zip(kept) {
            inside.truncate(kept);
            let number = match known {
                None => {
                    names.push(name);
                    names.len() - 1
                }
                Some(known) => known
                    .iter()
                    .position(|k| *k == name)
                    .ok_or_else(|| Error::missing(&at, "class", &name, known))?,
            };
            numbers.extend(std::iter::repeat_n(number as u32, inside.len()));
            images.extend(inside);
        }
        check_classes(&at, names.len())?;
        labels = Some(numbers);
        class_names = Some(names);
    }
    if images.is_empty() {
        return Err(Error::format(
            at,
            "holds no images, idx files, parquet files, tables or arrays",
            format!("images end in one of {}", EXTENSIONS.join(", ")),
        ));
    }
    let n = options.rows_of(images.len());
    images.truncate(n);
    if let Some(labels) = &mut labels {
        labels.truncate(n);
    }
    let mut rows = ImageRows::new(options.colour, options.memory_limit());
    for batch in images.chunks(IMAGES_PER_BATCH) {
        rows.extend(batch, |_, path| {
            let bytes = std::fs::read(path).map_err(|e| Error::io(path, e))?;
            Ok((path.display().to_string(), bytes))
        })?;
    }
    let (rows, shape) = rows.finish(&at)?;
    Ok((Split::new(rows, labels)?.with_image(Some(shape))?, class_names))
}

/// How many rows of each class to keep, which has so many: as many of each as can be, `max_rows` in all.
fn spread(there: &[usize], max_rows: Option<usize>) -> Vec<usize> {
    let Some(mut left) = max_rows else { return there.to_vec() };
    let mut kept = vec![0; there.len()];
    while left > 0 {
        let open: Vec<usize> = (0..there.len()).filter(|&class| kept[class] < there[class]).collect();
        if open.is_empty() {
            break;
        }
        let each = (left / open.len()).max(1);
        for class in open {
            let more = each.min(there[class] - kept[class]).min(left);
            kept[class] += more;
            left -= more;
        }
    }
    kept
}

/// Images of a class, in the order of their paths, in sub-folders too.
fn images_below(folder: &Path) -> Result<Vec<PathBuf>> {
    let listing = Listing::of(folder)?;
    let mut images: Vec<PathBuf> = listing.files.into_iter().filter(|path| is_image(path)).collect();
    for folder in &listing.folders {
        images.extend(images_below(folder)?);
    }
    Ok(images)
}
