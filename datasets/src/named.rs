//! Files of several named arrays: which of them hold the rows and labels to learn from, and which those to test on.
//!
//! Names are compared without regard to case and to `_ - . /` and spaces, so that `X_train`, `x-train` and `x.train` are one.
use crate::error::MAX_NAMES;
use crate::labels::Labels;
use crate::options::DataOptions;
use crate::{Dataset, Error, ImageShape, Result, Source, Split};
use std::sync::Arc;

/// Names that training rows go by, the likeliest first.
const TRAIN_ROWS: &[&str] = &[
    "trainimages",
    "traindata",
    "trainfeatures",
    "xtrain",
    "trainx",
    "train",
    "images",
    "data",
    "features",
    "x",
    "rows",
    "arr0",
];
/// Names of training labels.
const TRAIN_LABELS: &[&str] =
    &["trainlabels", "ytrain", "trainy", "traintargets", "labels", "label", "targets", "target", "y"];
/// Names of rows to test on and of their labels; where there are none for testing, those for validation.
const TEST: [(&[&str], &[&str]); 2] = [
    (
        &["testimages", "testdata", "testfeatures", "xtest", "testx", "test"],
        &["testlabels", "ytest", "testy", "testtargets"],
    ),
    (
        &["valimages", "valdata", "valfeatures", "xval", "valx", "xvalid", "val", "validation"],
        &["vallabels", "yval", "valy", "yvalid", "valtargets"],
    ),
];

/// Arrays of a file by name.
pub(crate) trait Named {
    /// What an array is called in messages.
    const KIND: &'static str;

    /// The file, for messages.
    fn at(&self) -> &str;

    /// The names.
    fn names(&self) -> Vec<String>;

    /// Dimensions of an array; 0 where it cannot be read.
    fn rank(&self, name: &str) -> usize;

    /// Rows of an array, how many it has and the shape of one when it is an image.
    fn rows(&self, name: &str, options: &DataOptions) -> Result<Rows>;

    /// Labels of an array.
    fn labels(&self, name: &str) -> Result<Labels>;
}

/// Rows of an array.
pub(crate) struct Rows {
    /// All of them, or as many as were asked for.
    pub(crate) rows: Arc<dyn Source>,
    /// How many the array has.
    pub(crate) n_rows: usize,
    pub(crate) image: Option<ImageShape>,
}

/// Opens the arrays that the options name or that go by the usual names.
pub(crate) fn open(file: &impl Named, options: &DataOptions) -> Result<Dataset> {
    let names = file.names();
    let rows_name = match &options.features {
        Some(name) => known(file, &names, name)?,
        None => guess_rows(file, &names, options)?,
    };
    let labels_name = match &options.labels {
        Some(name) => Some(known(file, &names, name)?),
        None => first_of(&names, TRAIN_LABELS).filter(|&name| name != rows_name),
    };
    let mut class_names = None;
    let train = split(file, rows_name, labels_name, options, |_, labels| {
        let (numbers, names) = labels.of_training()?;
        class_names = names;
        Ok(numbers)
    })?;
    let test = match &options.test_split {
        Some(name) => Some((known(file, &names, name)?, first_of(&names, TEST[0].1))),
        None => TEST.iter().find_map(|(rows, labels)| {
            let rows = first_of(&names, rows).filter(|&name| name != rows_name)?;
            Some((rows, first_of(&names, labels)))
        }),
    };
    let numbers = |at: &str, labels: Labels| labels.of_test(at, class_names.as_deref());
    let test = test.map(|(rows, labels)| split(file, rows, labels, options, numbers)).transpose()?;
    Dataset::new(file.at(), train, test, class_names)
}

/// Rows and their labels, of which `numbers` makes class numbers; it is given where they come from.
fn split<F: Named>(
    file: &F,
    rows: &str,
    labels: Option<&str>,
    options: &DataOptions,
    numbers: impl FnOnce(&str, Labels) -> Result<Vec<u32>>,
) -> Result<Split> {
    let at = match labels {
        None => format!("{}, {} '{rows}'", file.at(), F::KIND),
        Some(labels) => format!("{}, {}s '{rows}' and '{labels}'", file.at(), F::KIND),
    };
    let of = |name: &str| numbers(&format!("{}, {} '{name}'", file.at(), F::KIND), file.labels(name)?);
    let labels = labels.map(of).transpose()?;
    let Rows { rows, n_rows, image } = file.rows(rows, options)?;
    Split::join(at, rows, n_rows, labels)?.with_image(image)
}

fn known<'a, F: Named>(file: &F, names: &'a [String], wanted: &str) -> Result<&'a str> {
    let found = names.iter().find(|name| *name == wanted);
    found.map(String::as_str).ok_or_else(|| Error::missing(file.at(), F::KIND, wanted, names))
}

fn first_of<'a>(names: &'a [String], usual: &[&str]) -> Option<&'a str> {
    let plain = |name: &str| name.replace(['_', '-', '.', '/', ' '], "").to_ascii_lowercase();
    usual.iter().find_map(|usual| names.iter().find(|name| plain(name) == *usual)).map(String::as_str)
}

fn guess_rows<'a, F: Named>(file: &F, names: &'a [String], options: &DataOptions) -> Result<&'a str> {
    if let Some(name) = first_of(names, TRAIN_ROWS) {
        return Ok(name);
    }
    let others = || names.iter().filter(|name| options.labels.as_ref() != Some(*name));
    let mut wide = others().filter(|name| file.rank(name) > 1);
    if let (Some(only), None) = (wide.next(), wide.next()) {
        return Ok(only);
    }
    let mut there: Vec<&str> = names.iter().take(MAX_NAMES).map(String::as_str).collect();
    there.sort_unstable();
    if names.len() > MAX_NAMES {
        there.push("…");
    }
    Err(Error::format(
        file.at(),
        format!(
            "no {} is called x, x_train, data, features or the like, and not one alone has rows; there are: {}",
            F::KIND,
            if there.is_empty() { "none".to_owned() } else { there.join(", ") }
        ),
        format!("name the {} of the rows by the option for the columns (--data-columns)", F::KIND),
    ))
}
