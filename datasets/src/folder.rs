//! A folder: of idx files, of parquet files, of shards, or of images.
//!
//! Each page of a TIFF is an image. Where `metadata.csv` or `metadata.jsonl` in the folder, or in
//! that of all splits, names the labels of images ([`metadata`](crate::metadata)), these count.
//! Else images lie in the folder itself, which gives rows without labels, or in sub-folders, each
//! of which is then a class, numbered in the order of names; images in both places are refused.
//! Sub-folders called `train` and `test`, else `validation` or `val`, or as the options say, are
//! splits, and each may again have classes.
use crate::beside::{Beside, TESTS};
use crate::decode::{EXTENSIONS, ImageFile, ImageRows, is_image};
use crate::idx::IdxFolder;
use crate::labels::{Classes, check_classes};
use crate::listing::{Listing, files_below, name_of, seen_as};
use crate::metadata::{self, Metadata};
use crate::options::DataOptions;
use crate::{Dataset, Error, Result, Split};
use std::collections::HashSet;
use std::path::{Path, PathBuf};

/// Opens a folder; what lies in it decides how.
pub(crate) fn open(folder: &Path, options: &DataOptions) -> Result<Dataset> {
    let listing = Listing::of(folder)?;
    if let Some(idx) = IdxFolder::find(&listing.files) {
        return idx.open(folder, options);
    }
    options.refuse_subset(folder.display())?;
    if let Some(tenx) = crate::sparse::tenx::find(&listing.files)? {
        return tenx.open(options);
    }
    let parquet: Vec<PathBuf> = crate::table::files_below(folder)?;
    if !parquet.is_empty() {
        return crate::table::open_folder(folder, parquet, options);
    }
    if let Some(beside) = Beside::find(&listing.files)
        && !holds_images(&listing)?
    {
        return match beside.shards() {
            Some(shards) => crate::shards::open(folder, shards, options),
            None => beside.open(folder, options),
        };
    }
    for ending in ["safetensors", "npy"] {
        let shards = crate::shards::find(folder, ending)?;
        if !shards.is_empty() && !holds_images(&listing)? {
            return crate::shards::open(folder, &shards, options);
        }
    }
    open_images(folder, options)
}

/// Whether there are images in a folder or below it.
fn holds_images(listing: &Listing) -> Result<bool> {
    if listing.files.iter().any(|path| is_image(path)) {
        return Ok(true);
    }
    for folder in &listing.folders {
        if !files_below(folder, &mut HashSet::new(), &is_image)?.is_empty() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Opens a folder of images.
pub(crate) fn open_images(folder: &Path, options: &DataOptions) -> Result<Dataset> {
    let listing = Listing::of(folder)?;
    let train_name = options.train_split.as_deref().unwrap_or("train");
    let usual = || TESTS.into_iter().find(|name| listing.folder(name).is_some());
    let test_name = options.test_split.as_deref().or_else(usual).unwrap_or_default();
    let at = folder.display().to_string();
    options.refuse_columns(&at, "a folder of images holds rows")?;
    if ![Some(folder), listing.folder(train_name)].into_iter().flatten().any(metadata::is_in) {
        options.refuse_labels(
            &at,
            "a folder of images has its labels in the names of its sub-folders, one for each class",
        )?;
    }
    let wanted = [&options.train_split, &options.test_split];
    for wanted in wanted.into_iter().flatten() {
        if listing.folder(wanted).is_none() {
            let there = listing.folders.iter().map(|path| name_of(path));
            return Err(Error::missing(at, "split", wanted, there));
        }
    }
    let Some(train) = listing.folder(train_name) else {
        let (split, classes) = open_split(folder, folder, options, None)?;
        return Ok(Dataset::new(at, split, None, classes.names)?.without_labels(classes.left_out));
    };
    let (train, Classes { names: class_names, left_out, .. }) = open_split(train, folder, options, None)?;
    let test = match listing.folder(test_name) {
        None => None,
        Some(test_folder) => {
            let (test, of_test) = open_split(test_folder, folder, options, class_names.as_deref())?;
            if class_names.is_none() && of_test.names.is_some() && train.labels.is_some() {
                let what = "has texts for labels, and the training images have class numbers";
                return Err(Error::format(
                    test_folder.display(),
                    what,
                    "save the labels of both as one type",
                ));
            }
            test.check_images_like(&train, &at, "make all images of a data set the same")?;
            Some(test)
        }
    };
    Ok(Dataset::new(at, train, test, class_names)?.without_labels(left_out))
}

/// One split: its images with their labels, and what else is known of the classes.
///
/// `root` is the folder of all splits, `known` are the classes of the training split, whose numbers
/// a test split has to use.
fn open_split(
    folder: &Path,
    root: &Path,
    options: &DataOptions,
    known: Option<&[String]>,
) -> Result<(Split, Classes)> {
    let at = folder.display().to_string();
    let listing = Listing::of(folder)?;
    let mut images: Vec<PathBuf> = listing.files.into_iter().filter(|path| is_image(path)).collect();
    let mut labels = None;
    let mut class_names = None;
    let mut classes = Vec::new();
    let mut seen = HashSet::from([seen_as(folder)]);
    for class_folder in &listing.folders {
        let inside = files_below(class_folder, &mut seen, &is_image)?;
        if !inside.is_empty() {
            classes.push((name_of(class_folder), inside));
        }
    }
    let mut left_out = None;
    if !options.reads_labels() {
        images.extend(classes.drain(..).flat_map(|(_, inside)| inside));
    } else if let Some(metadata) = Metadata::find(&[folder, root], options)? {
        images.extend(classes.drain(..).flat_map(|(_, inside)| inside));
        let of_images = metadata.of(images.iter().map(PathBuf::as_path))?;
        labels = match known {
            None => {
                let classes = of_images.of_training();
                (class_names, left_out) = (classes.names, classes.left_out);
                classes.numbers
            }
            Some(_) => of_images.of_test(&at, known)?,
        };
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
    let (images, labels) = pages_of(&images, labels.as_deref(), options)?;
    let mut rows = ImageRows::new(options.colour, options.memory_limit());
    rows.check(&images, |_, image| image.load())?;
    rows.extend(&images, |_, image| image.load())?;
    let (rows, shape) = rows.finish(&at)?;
    let classes = Classes { numbers: None, names: class_names, left_out };
    Ok((Split::new(rows, labels)?.with_image(Some(shape))?, classes))
}

/// The images of files, each page one with the label of its file; no more of them than are asked
/// for.
fn pages_of(
    files: &[PathBuf],
    labels: Option<&[u32]>,
    options: &DataOptions,
) -> Result<(Vec<ImageFile>, Option<Vec<u32>>)> {
    let n = options.rows_of(usize::MAX);
    let (mut images, mut of_images) = (Vec::new(), labels.map(|_| Vec::new()));
    for (i, path) in files.iter().enumerate() {
        if images.len() >= n {
            break;
        }
        let pages = ImageFile::of(path)?;
        if let (Some(of_images), Some(label)) = (&mut of_images, labels.and_then(|labels| labels.get(i))) {
            of_images.extend(std::iter::repeat_n(*label, pages.len()));
        }
        images.extend(pages);
    }
    images.truncate(n);
    of_images.iter_mut().for_each(|labels| labels.truncate(n));
    Ok((images, of_images))
}

/// How many rows of each class to keep, which has so many: as many of each as can be, `max_rows` in
/// all.
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
