//! Tables and arrays that lie beside each other in a folder: `train.csv` and `test.csv`,
//! `X_train.npy` and `y_train.npy`.
use crate::formats::{Format, format_of};
use crate::listing::name_of;
use crate::options::DataOptions;
use crate::{Dataset, Error, Result};
use std::path::{Path, PathBuf};

/// Words of a file name that say that it holds labels.
const LABELS: [&str; 5] = ["y", "label", "labels", "target", "targets"];
/// Names of test splits, the likeliest first.
pub(crate) const TESTS: [&str; 6] = ["test", "testing", "validation", "valid", "val", "dev"];
/// Names of training splits.
pub(crate) const TRAINS: [&str; 2] = ["train", "training"];

/// Files of rows, and files of labels that belong to them.
#[derive(Debug)]
pub(crate) struct Beside {
    rows: Vec<PathBuf>,
    labels: Vec<PathBuf>,
}

impl Beside {
    /// Tables in text and `.npy` arrays among `files`; none when there are none.
    pub(crate) fn find(files: &[PathBuf]) -> Option<Self> {
        let is_one = |path: &&PathBuf| {
            let lower = name_of(path).to_ascii_lowercase();
            let is_split =
                || words(path).iter().any(|word| TRAINS.iter().chain(&TESTS).any(|known| known == word));
            // A .txt may be about anything.
            lower.ends_with(".npy")
                || crate::delimited::is_table_name(&lower)
                || crate::delimited::is_file_name(&lower) && is_split()
        };
        let of_labels =
            |path: &PathBuf| is_npy(path) && words(path).iter().any(|word| LABELS.contains(&word.as_str()));
        let (labels, rows): (Vec<PathBuf>, Vec<PathBuf>) =
            files.iter().filter(is_one).cloned().partition(of_labels);
        (!rows.is_empty()).then_some(Self { rows, labels })
    }

    /// The files, where they are shards: several arrays without labels of which not one alone is to
    /// train on.
    pub(crate) fn shards(&self) -> Option<&[PathBuf]> {
        let is_train = |path: &&PathBuf| words(path).iter().any(|word| TRAINS.contains(&word.as_str()));
        let are = self.rows.len() > 1
            && self.labels.is_empty()
            && self.rows.iter().all(|path| is_npy(path))
            && self.rows.iter().filter(is_train).count() != 1;
        are.then_some(&self.rows)
    }

    /// Opens the files of the training split and perhaps of a test split.
    pub(crate) fn open(&self, folder: &Path, options: &DataOptions) -> Result<Dataset> {
        let train = match (&options.train_split, self.rows.as_slice()) {
            (Some(wanted), _) => self.split(folder, wanted)?,
            (None, [only]) => only,
            (None, _) => match self.first_of(folder, &TRAINS)? {
                Some(train) => train,
                None => {
                    let names: Vec<String> = self.rows.iter().take(20).map(|path| name_of(path)).collect();
                    return Err(Error::format(
                        folder.display(),
                        format!("holds several tables or arrays, none called train: {}", names.join(", ")),
                        "choose one with `DataOptions::train_split`, or give one file",
                    ));
                }
            },
        };
        let test = match &options.test_split {
            Some(wanted) => Some(self.split(folder, wanted)?),
            None => self.first_of(folder, &TESTS)?.filter(|test| *test != train),
        };
        let dataset = self.one(train, options, true)?;
        match test {
            None => Ok(dataset),
            Some(test) => dataset.with_test(self.one(test, options, false)?),
        }
    }

    /// One file, with the labels that go by the same name.
    fn one(&self, path: &Path, options: &DataOptions, is_train: bool) -> Result<Dataset> {
        let mut options =
            DataOptions { train_split: None, test_split: None, subset: None, ..options.clone() };
        if is_npy(path) && (options.labels.is_none() || !is_train && options.reads_labels()) {
            let own = |path: &Path| -> Vec<String> {
                let is_own =
                    |word: &String| !LABELS.contains(&word.as_str()) && !ROWS.contains(&word.as_str());
                words(path).into_iter().filter(is_own).collect()
            };
            let labels = self.labels.iter().find(|labels| own(labels) == own(path));
            options.labels = labels.map(|path| path.display().to_string());
        }
        (format_of(path)?.read)(path, &options)
    }

    /// The file of the first of these splits that has one.
    fn first_of(&self, folder: &Path, splits: &[&str]) -> Result<Option<&PathBuf>> {
        for split in splits {
            if let Some(file) = self.of(folder, split)? {
                return Ok(Some(file));
            }
        }
        Ok(None)
    }

    /// The file of this split, which must be one.
    fn of(&self, folder: &Path, split: &str) -> Result<Option<&PathBuf>> {
        let is_of = |path: &&PathBuf| words(path).iter().any(|word| word == split);
        let mut files = self.rows.iter().filter(is_of);
        match (files.next(), files.next()) {
            (Some(one), Some(other)) => Err(Error::format(
                folder.display(),
                format!("holds several files of the split {split}: {}, {}", name_of(one), name_of(other)),
                "name one of them with `DataOptions::train_split` or `DataOptions::test_split`, or give it alone",
            )),
            (file, _) => Ok(file),
        }
    }

    /// The file that a user names: by the split, or by its own name with or without its ending.
    fn split(&self, folder: &Path, wanted: &str) -> Result<&PathBuf> {
        let is_named = |path: &&PathBuf| name_of(path) == wanted || stem(path) == wanted.to_ascii_lowercase();
        if let Some(file) = self.rows.iter().find(is_named) {
            return Ok(file);
        }
        let file = self.of(folder, &wanted.to_ascii_lowercase())?;
        file.ok_or_else(|| {
            Error::missing(folder.display(), "split", wanted, self.rows.iter().map(|path| name_of(path)))
        })
    }
}

/// Words of a file name that say that it holds rows.
const ROWS: [&str; 6] = ["x", "data", "features", "images", "rows", "inputs"];

/// Opens a single file of a format, with another file beside it to test on where the options name
/// one.
pub(crate) fn with_test_file(path: &Path, options: &DataOptions, format: Format) -> Result<Dataset> {
    if let Some(split) = &options.train_split {
        return Err(Error::format(
            path.display(),
            format!("is one file, and has no split {split}"),
            "leave out `DataOptions::train_split`, or give the folder of the files",
        ));
    }
    let Some(wanted) = &options.test_split else { return (format.read)(path, options) };
    let alone = DataOptions { test_split: None, ..options.clone() };
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let named = folder.join(wanted);
    if named.is_file() {
        let labels = options.labels.clone().filter(|_| !is_npy(path));
        let test = (format_of(&named)?.read)(&named, &DataOptions { labels, ..alone.clone() })?;
        return (format.read)(path, &alone)?.with_test(test);
    }
    let listing = crate::listing::Listing::of(folder)?;
    let there = listing.files.iter().filter(|file| ending(file) == ending(path));
    let found: Vec<&PathBuf> = there
        .clone()
        .filter(|file| {
            let is_split = words(file).contains(&wanted.to_ascii_lowercase());
            file.file_name() != path.file_name() && (stem(file) == wanted.to_ascii_lowercase() || is_split)
        })
        .collect();
    match found.as_slice() {
        [test] => {
            let labels = options.labels.clone().filter(|_| !is_npy(path));
            (format.read)(path, &alone)?.with_test((format.read)(test, &DataOptions { labels, ..alone })?)
        }
        _ => Err(Error::missing(path.display(), "split", wanted, there.map(|file| name_of(file)))),
    }
}

fn is_npy(path: &Path) -> bool {
    ending(path) == "npy"
}

/// The ending of a name, in lower case, without that of gzip.
fn ending(path: &Path) -> String {
    let lower = name_of(path).to_ascii_lowercase();
    let name = lower.strip_suffix(".gz").unwrap_or(&lower);
    name.rsplit_once('.').map_or_else(String::new, |(_, ending)| ending.to_owned())
}

/// The name in lower case, without its endings.
fn stem(path: &Path) -> String {
    let lower = name_of(path).to_ascii_lowercase();
    let name = lower.strip_suffix(".gz").unwrap_or(&lower);
    name.rsplit_once('.').map_or_else(|| name.to_owned(), |(stem, _)| stem.to_owned())
}

/// The words of a name; a letter before the name of a split is one of its own, as in `Xtrain`.
pub(crate) fn words(path: &Path) -> Vec<String> {
    let stem = stem(path);
    let splits = || TRAINS.iter().chain(&TESTS);
    let words = stem.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    words
        .flat_map(|word| match word.split_at_checked(1) {
            Some((letter @ ("x" | "y"), split)) if splits().any(|known| *known == split) => {
                vec![letter.to_owned(), split.to_owned()]
            }
            _ => vec![word.to_owned()],
        })
        .collect()
}
