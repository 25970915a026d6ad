//! Files of several named arrays: which of them hold the rows and labels to learn from, and which
//! those to test on.
//!
//! Names are compared without regard to case and to `_ - . /` and spaces, so that `X_train`,
//! `x-train` and `x.train` are one.
use crate::error::MAX_NAMES;
use crate::labels::{Classes, Labels};
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
/// Names of rows to test on and of their labels; where there are none for testing, those for
/// validation.
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

/// Names that a list of the names of classes goes by.
const CLASS_NAMES: &[&str] = &["targetnames", "classnames", "labelnames"];
/// What the name of rows says beside that of their split.
const ROWS: [&str; 5] = ["images", "features", "data", "rows", "x"];
/// What the name of labels says beside that of their split.
const LABELS: [&str; 5] = ["labels", "label", "targets", "target", "y"];

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
    let rows_name = match (&options.features, &options.train_split) {
        (Some(name), _) => known(file, &names, name)?,
        (None, Some(split)) => rows_of_split(file, &names, split)?,
        (None, None) => guess_rows(file, &names, options)?,
    };
    let labels_name = match options.named_labels() {
        Some(name) => Some(known(file, &names, name)?),
        None => partner(&names, rows_name).or_else(|| first_of(&names, TRAIN_LABELS)),
    };
    let labels_name = labels_name.filter(|&name| name != rows_name && options.reads_labels());
    let mut classes = Classes::default();
    let train = split(file, rows_name, labels_name, options, |_, labels| {
        classes = labels.of_training();
        Ok(classes.numbers.take())
    })?;
    let test_rows = match &options.test_split {
        Some(name) => Some(rows_of_split(file, &names, name)?),
        None => TEST.iter().find_map(|(rows, _)| first_of(&names, rows).filter(|&name| name != rows_name)),
    };
    let numbers = |at: &str, labels: Labels| labels.of_test(at, classes.names.as_deref());
    let test = test_rows.map(|rows| {
        // Without classes to learn there are none to test.
        let labels = partner(&names, rows).filter(|&name| name != rows && train.labels.is_some());
        split(file, rows, labels, options, numbers)
    });
    let test = test.transpose()?;
    let n = [Some(&train), test.as_ref()].into_iter().flatten().map(Split::n_classes).max().unwrap_or(0);
    let class_names = classes.names.or_else(|| names_of_classes(file, &names, n));
    let dataset = Dataset::new(file.at(), train, test, class_names)?;
    Ok(dataset.without_labels(classes.left_out))
}

/// The names of `n` classes that have numbers, where an array of texts lists them; it may have
/// more.
fn names_of_classes(file: &impl Named, names: &[String], n: usize) -> Option<Vec<String>> {
    let array = first_of(names, CLASS_NAMES).filter(|_| n > 0)?;
    match file.labels(array) {
        Ok(Labels::Texts(texts)) => texts.all_different().filter(|names| names.len() >= n),
        _ => None,
    }
}

/// Rows and their labels, of which `numbers` makes class numbers, where they are classes; it is
/// given where they come from.
fn split<F: Named>(
    file: &F,
    rows: &str,
    labels: Option<&str>,
    options: &DataOptions,
    numbers: impl FnOnce(&str, Labels) -> Result<Option<Vec<u32>>>,
) -> Result<Split> {
    let at = match labels {
        None => format!("{}, {} '{rows}'", file.at(), F::KIND),
        Some(labels) => format!("{}, {}s '{rows}' and '{labels}'", file.at(), F::KIND),
    };
    let of = |name: &str| numbers(&format!("{}, {} '{name}'", file.at(), F::KIND), file.labels(name)?);
    let labels = labels.map(of).transpose()?.flatten();
    let Rows { rows, n_rows, image } = file.rows(rows, options)?;
    Split::join(at, rows, n_rows, labels)?.with_image(image)
}

fn known<'a, F: Named>(file: &F, names: &'a [String], wanted: &str) -> Result<&'a str> {
    let found = names.iter().find(|name| *name == wanted);
    found.map(String::as_str).ok_or_else(|| Error::missing(file.at(), F::KIND, wanted, names))
}

/// The rows of a split, by the name of their array or of the split alone: `val` is `x_val`.
fn rows_of_split<'a, F: Named>(file: &F, names: &'a [String], split: &str) -> Result<&'a str> {
    if names.iter().any(|name| name == split) {
        return known(file, names, split);
    }
    let wanted = plain(split);
    let likely = ROWS.map(|rows| [format!("{rows}{wanted}"), format!("{wanted}{rows}")]);
    let likely: Vec<&str> = likely.iter().flatten().map(String::as_str).collect();
    first_of(names, &likely).map_or_else(|| known(file, names, split), Ok)
}

/// The labels that belong to rows by their names: `y_val` to `x_val`.
fn partner<'a>(names: &'a [String], rows: &str) -> Option<&'a str> {
    let rows = plain(rows);
    if TRAIN_ROWS.contains(&rows.as_str()) {
        return first_of(names, TRAIN_LABELS);
    }
    if let Some((_, labels)) = TEST.iter().find(|(usual, _)| usual.contains(&rows.as_str())) {
        return first_of(names, labels);
    }
    let stem = ROWS.iter().find_map(|word| rows.strip_prefix(word).or_else(|| rows.strip_suffix(word)));
    let stem = stem.unwrap_or(&rows);
    let likely = LABELS.map(|labels| [format!("{labels}{stem}"), format!("{stem}{labels}")]);
    let likely: Vec<&str> = likely.iter().flatten().map(String::as_str).collect();
    first_of(names, &likely).filter(|_| !stem.is_empty())
}

fn plain(name: &str) -> String {
    name.replace(['_', '-', '.', '/', ' '], "").to_ascii_lowercase()
}

fn first_of<'a>(names: &'a [String], usual: &[&str]) -> Option<&'a str> {
    usual.iter().find_map(|usual| names.iter().find(|name| plain(name) == *usual)).map(String::as_str)
}

fn guess_rows<'a, F: Named>(file: &F, names: &'a [String], options: &DataOptions) -> Result<&'a str> {
    if let Some(name) = first_of(names, TRAIN_ROWS) {
        return Ok(name);
    }
    let others = || names.iter().filter(|name| options.named_labels() != Some(name.as_str()));
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
        format!("name the {} of the rows by `DataOptions::features`", F::KIND),
    ))
}
