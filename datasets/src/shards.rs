//! Rows in shards: `.safetensors` or `.npy` files of a folder and the folders below it, each of
//! which holds some of the rows. They come in the order of names, those of a folder before those of
//! the folders in it; rows have no labels.
//!
//! Names of files and folders say which shards are of the training split and which to test on:
//! `train-00000.safetensors`, `test/0.npy`. Where no name says `train`, all that are not to test on
//! are to train on.
use crate::beside::{TESTS, TRAINS, words};
use crate::formats::{NPY, SAFETENSORS};
use crate::listing::files_below;
use crate::options::{DataOptions, NO_LABELS};
use crate::{Dataset, Error, Result, Split};
use std::collections::HashSet;
use std::path::{Path, PathBuf};

/// Files of a folder and below it with this ending.
pub(crate) fn find(folder: &Path, ending: &str) -> Result<Vec<PathBuf>> {
    files_below(folder, &mut HashSet::new(), &|path: &Path| ends_in(path, ending))
}

fn ends_in(path: &Path, ending: &str) -> bool {
    path.extension().is_some_and(|e| e.eq_ignore_ascii_case(ending))
}

/// Opens shards.
pub(crate) fn open(folder: &Path, shards: &[PathBuf], options: &DataOptions) -> Result<Dataset> {
    let at = folder.display().to_string();
    options.refuse_labels(&at, "shards hold rows without labels")?;
    let of = |split: &str| -> Vec<&PathBuf> {
        let below = |path: &PathBuf| path.strip_prefix(folder).unwrap_or(path).to_owned();
        let says = |path: &Path| {
            path.ancestors()
                .any(|part| part.file_name().is_some() && words(part).iter().any(|word| word == split))
        };
        shards.iter().filter(|path| says(&below(path))).collect()
    };
    let named = |split: &String| match of(&split.to_ascii_lowercase()) {
        none if none.is_empty() => {
            let names = shards.iter().map(|path| crate::listing::name_of(path));
            Err(Error::missing(&at, "split", split, names))
        }
        some => Ok(some),
    };
    let first_of = |splits: &[&str]| splits.iter().map(|split| of(split)).find(|some| !some.is_empty());
    let tests: HashSet<&PathBuf> = TESTS.iter().flat_map(|split| of(split)).collect();
    let train = match &options.train_split {
        Some(split) => named(split)?,
        None => match first_of(&TRAINS) {
            Some(train) => train,
            None => shards.iter().filter(|path| !tests.contains(path)).collect(),
        },
    };
    let test = match &options.test_split {
        Some(split) => Some(named(split)?),
        None => first_of(&TESTS),
    };
    let labels = Some(NO_LABELS.to_owned());
    let options = DataOptions { train_split: None, test_split: None, labels, ..options.clone() };
    let train = joined(&at, &train, &options)?;
    Dataset::new(at.clone(), train, test.map(|test| joined(&at, &test, &options)).transpose()?, None)
}

/// The rows of files one after the other.
fn joined(at: &str, files: &[&PathBuf], options: &DataOptions) -> Result<Split> {
    if files.is_empty() {
        return Err(Error::format(
            at,
            "holds shards to test on alone",
            "name the split to train on by `DataOptions::train_split`",
        ));
    }
    let (mut parts, mut left) = (Vec::<Split>::new(), options.rows_of(usize::MAX));
    for path in files {
        if left == 0 {
            break;
        }
        let format = if ends_in(path, "npy") { NPY } else { SAFETENSORS };
        let part = (format.read)(path, &DataOptions { max_rows: Some(left), ..options.clone() })?
            .train
            .take(left)?;
        if let Some(first) = parts.first() {
            check_alike(path, &part, first)?;
        }
        left -= part.n_samples();
        parts.push(part);
    }
    Split::concat(&parts)
}

/// Refuses a shard whose rows are not like those of the first.
fn check_alike(path: &Path, part: &Split, first: &Split) -> Result<()> {
    let refused = |what: String, fix: &str| Err(Error::format(path.display(), what, fix));
    let [width, of_first] = [part, first].map(Split::n_features);
    if width != of_first {
        let words = crate::count(width, "value");
        return refused(
            format!("has rows of {words}, the first shard of {of_first}"),
            "give shards of one width",
        );
    }
    if part.row_type() != first.row_type() {
        let what = format!("has rows of {:?}, the first shard of {:?}", part.row_type(), first.row_type());
        return refused(what, "save all shards as one type");
    }
    Ok(())
}
