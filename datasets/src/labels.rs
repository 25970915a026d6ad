//! Labels: the numbers of classes, and the numbering of classes that have names.
use crate::error::MAX_NAMES;
use crate::{Error, Result};
use std::collections::HashMap;

/// Classes that a data set may have. Models make a unit, a weight or a count for each, so that a
/// label which is no class number (an identifier, a year in seconds) would ask for more memory than
/// there is; a file that holds one is refused.
pub const MAX_CLASSES: usize = 65_535;

/// Names that a column of labels goes by.
pub(crate) const LABELS: [&str; 9] =
    ["label", "labels", "target", "class", "y", "fine_label", "digit", "category", "species"];

/// What stands for a value that is not there.
const MISSING: [&str; 8] = ["", "na", "n/a", "nan", "null", "none", "?", "-"];

/// Whether a text stands for a value that is not there.
pub(crate) fn is_missing(text: &str) -> bool {
    MISSING.iter().any(|missing| text.eq_ignore_ascii_case(missing))
}

/// Whether features go by this name of labels, too: what is no class number there may be a value as
/// good as others.
pub(crate) fn may_be_features(label: &str) -> bool {
    ["y", "target"].iter().any(|name| label.eq_ignore_ascii_case(name))
}

/// What to say of a column that is called as labels are and is none.
pub(crate) fn read_as_features(column: &str) -> String {
    format!(
        "column '{column}' holds no classes and is read as a value of the rows; `DataOptions::labels` or `DataOptions::features` choose others"
    )
}

/// What to say of columns that are not read, which are `what`.
pub(crate) fn left_out(columns: &[String], what: &str) -> String {
    let shown: Vec<String> =
        columns.iter().take(MAX_NAMES).map(|name| format!("'{}'", shortened(name))).collect();
    let more = if columns.len() > MAX_NAMES { ", …" } else { "" };
    let noun = if columns.len() == 1 { "column" } else { "columns" };
    format!("{noun} {}{more} left out: {what}", shown.join(", "))
}

/// Class numbers as u32; `at` names their origin in errors.
pub(crate) fn class_numbers(at: &str, numbers: &[i64]) -> Result<Vec<u32>> {
    let class = |(row, &number): (usize, &i64)| class_number(at, format_args!("row {row}"), number);
    numbers.iter().enumerate().map(class).collect()
}

/// One class number, of `row` in errors.
pub(crate) fn class_number(
    at: impl std::fmt::Display,
    row: impl std::fmt::Display,
    number: i64,
) -> Result<u32> {
    match u32::try_from(number) {
        Err(_) => {
            Err(Error::format(at, format!("{row} has label {number}"), "labels are class numbers from 0 on"))
        }
        Ok(class) if class as usize >= MAX_CLASSES => Err(Error::format(
            at,
            format!("{row} has label {number}, want class numbers below {MAX_CLASSES}"),
            "number the classes from 0 on, or choose other labels",
        )),
        Ok(class) => Ok(class),
    }
}

/// Refuses more classes than [`MAX_CLASSES`].
pub(crate) fn check_classes(at: impl std::fmt::Display, n_classes: usize) -> Result<()> {
    if n_classes > MAX_CLASSES {
        return Err(Error::format(
            at,
            format!("has {n_classes} classes, want at most {MAX_CLASSES}"),
            "choose other labels",
        ));
    }
    Ok(())
}

/// Labels of rows, as a file has them.
pub(crate) enum Labels {
    /// Class numbers.
    Numbers(Vec<u32>),
    /// Texts.
    Texts(Texts),
    /// What is no class, and why.
    NoClasses(Error),
}

/// What labels came to.
#[derive(Debug, Default)]
pub(crate) struct Classes {
    /// The class of each row, where labels are classes.
    pub(crate) numbers: Option<Vec<u32>>,
    /// Names of the classes, where they have some.
    pub(crate) names: Option<Vec<String>>,
    /// Why labels were left out.
    pub(crate) left_out: Option<String>,
}

impl Classes {
    /// Labels that were numbered, or cannot be.
    pub(crate) fn of(numbered: Result<(Vec<u32>, Option<Vec<String>>)>) -> Self {
        match numbered {
            Ok((numbers, names)) => Self { numbers: Some(numbers), names, left_out: None },
            Err(why) => Self { left_out: Some(why.to_string()), ..Self::default() },
        }
    }
}

impl Labels {
    /// Class numbers; they are no classes where one of them is out of range. `at` names their
    /// origin.
    pub(crate) fn of_numbers(at: &str, numbers: &[i64]) -> Self {
        class_numbers(at, numbers).map_or_else(Self::NoClasses, Self::Numbers)
    }

    /// The same of floats, which must be whole; one that is missing is NaN.
    pub(crate) fn of_floats(at: &str, numbers: &[f64]) -> Self {
        let row = numbers.iter().position(|number| number.fract() != 0. || number.is_nan());
        let why = row.map(|row| {
            Error::format(
                at,
                format!("row {row} has label {}", numbers[row]),
                "labels are class numbers from 0 on",
            )
        });
        match why.or_else(|| measured(at, numbers)) {
            Some(why) => Self::NoClasses(why),
            None => Self::of_numbers(at, &numbers.iter().map(|&number| number as i64).collect::<Vec<_>>()),
        }
    }

    /// Classes of training rows; their names, in alphabetic order, where labels are not all
    /// numbers.
    pub(crate) fn of_training(self) -> Classes {
        Classes::of(match self {
            Self::Numbers(numbers) => Ok((numbers, None)),
            Self::Texts(texts) => texts.numbered(),
            Self::NoClasses(why) => Err(why),
        })
    }

    /// Class numbers of test rows, where those of the training rows belong to `names`; `at` names
    /// the labels in errors. None where they are no classes.
    pub(crate) fn of_test(self, at: &str, names: Option<&[String]>) -> Result<Option<Vec<u32>>> {
        let mixed = |what: &str| Error::format(at, what, "save the labels of both as one type");
        match (self, names) {
            (Self::NoClasses(_), _) => Ok(None),
            (Self::Numbers(numbers), None) => Ok(Some(numbers)),
            (Self::Numbers(_), Some(_)) => {
                Err(mixed("holds class numbers, and the labels of the training rows are texts"))
            }
            (Self::Texts(texts), Some(names)) => texts.numbered_as(names).map(Some),
            (Self::Texts(texts), None) => match texts.numbered()? {
                (numbers, None) => Ok(Some(numbers)),
                _ => Err(mixed("holds texts, and the labels of the training rows are class numbers")),
            },
        }
    }
}

/// Different whole floats from which on they are measurements if they leave out many numbers.
const MANY: usize = 20;

/// Why whole floats are measurements and no classes, if they are: there are many, and one in ten of
/// the numbers between them is missing.
fn measured(at: &str, numbers: &[f64]) -> Option<Error> {
    let mut different = numbers.to_vec();
    different.sort_unstable_by(f64::total_cmp);
    different.dedup();
    let (least, most) = (different.first()?, different.last()?);
    (different.len() > MANY && (different.len() as f64) < 0.9 * (most - least + 1.)).then(|| {
        Error::format(
            at,
            format!("holds floats, {} different ones from {least} to {most}", different.len()),
            "labels are class numbers from 0 on; save them as whole numbers if they are such",
        )
    })
}

/// The classes that labels are counted in.
#[derive(Debug, Clone, Copy)]
pub struct KnownClasses<'a> {
    /// Their names in the order of their numbers; without names each goes by its number.
    pub names: Option<&'a [String]>,
    /// How many there are.
    pub n: usize,
}

impl KnownClasses<'_> {
    /// The number of a class by its name; names that are whole numbers are compared as such, so
    /// that 07 is 7.
    fn number(&self, name: &str) -> Option<u32> {
        let wanted = name.parse::<u64>().ok();
        let number = match self.names {
            None => usize::try_from(wanted?).ok().filter(|&number| number < self.n),
            Some(names) => names
                .iter()
                .position(|known| known == name)
                .or_else(|| names.iter().position(|known| wanted.is_some() && known.parse().ok() == wanted)),
        };
        number.and_then(|number| u32::try_from(number).ok())
    }

    /// Labels of classes that are called `names`, or by their numbers, as these classes are
    /// numbered; `at` names their origin.
    ///
    /// # Errors
    /// When a label is of a class that is not one of these; the message names it.
    pub fn renumber(&self, at: &str, labels: &[u32], names: Option<&[String]>) -> Result<Vec<u32>> {
        let mut known: HashMap<u32, u32> = HashMap::new();
        let number = |&label: &u32| {
            if let Some(&number) = known.get(&label) {
                return Ok(number);
            }
            let name = names.and_then(|names| names.get(label as usize));
            let name = name.map_or_else(|| label.to_string(), String::clone);
            let number = self.number(&name).ok_or_else(|| {
                let there = match self.names {
                    Some(names) => names.to_vec(),
                    None => vec![format!("0 to {}", self.n.saturating_sub(1))],
                };
                Error::missing(at, "class", &shortened(&name), there)
            })?;
            known.insert(label, number);
            Ok(number)
        };
        labels.iter().map(number).collect()
    }
}

/// Labels that are texts, as they are read: which of the different texts a row has.
pub(crate) struct Texts {
    /// Their origin, for errors.
    at: String,
    /// What a row is called in errors: `line`.
    row: &'static str,
    /// The different texts and the rows that had them first.
    texts: Vec<(String, u64)>,
    places: HashMap<String, u32>,
    of_rows: Vec<u32>,
    /// Why they are no classes.
    wrong: Option<Error>,
}

impl Texts {
    pub(crate) fn new(at: String, row: &'static str) -> Self {
        Self { at, row, texts: Vec::new(), places: HashMap::new(), of_rows: Vec::new(), wrong: None }
    }

    /// Adds the label of the row with this number. After one that is no class the others do not
    /// count.
    pub(crate) fn push(&mut self, text: &str, number: u64) {
        if self.wrong.is_none()
            && let Err(wrong) = self.add(text, number)
        {
            self.wrong = Some(wrong);
        }
    }

    fn add(&mut self, text: &str, number: u64) -> Result<()> {
        if let Some(&place) = self.places.get(text) {
            self.of_rows.push(place);
            return Ok(());
        }
        let (at, row) = (&self.at, self.row);
        if text.is_empty() {
            return Err(Error::format(
                at,
                format!("{row} {number} has no value"),
                "drop or fill rows with missing values",
            ));
        }
        if self.texts.len() == MAX_CLASSES {
            return Err(Error::format(
                at,
                format!(
                    "{row} {number} is '{}', and there are {MAX_CLASSES} other labels before it",
                    shortened(text)
                ),
                "choose other labels",
            ));
        }
        let place = self.texts.len() as u32;
        self.texts.push((text.to_owned(), number));
        self.places.insert(text.to_owned(), place);
        self.of_rows.push(place);
        Ok(())
    }

    /// The texts of the rows, where each is another one.
    pub(crate) fn all_different(self) -> Option<Vec<String>> {
        let different = self.wrong.is_none() && self.texts.len() == self.of_rows.len();
        different.then(|| self.texts.into_iter().map(|(text, _)| text).collect())
    }

    /// Classes by row. Texts that are all numbers are class numbers; else texts are numbered in
    /// alphabetic order, and the names come along.
    pub(crate) fn numbered(mut self) -> Result<(Vec<u32>, Option<Vec<String>>)> {
        if let Some(wrong) = self.wrong.take() {
            return Err(wrong);
        }
        // NA among numbers is a gap; among texts it may be a name.
        let is_number = |text: &str| text.parse::<f64>().is_ok();
        let gap = self.texts.iter().find(|(text, _)| is_missing(text));
        let mut others = self.texts.iter().filter(|(text, _)| !is_missing(text)).peekable();
        if let Some((gap, row)) = gap
            && others.peek().is_some()
            && others.all(|(text, _)| is_number(text))
        {
            return Err(Error::format(
                &self.at,
                format!("{} {row} has no label but {gap}", self.row),
                "drop or fill rows with missing values",
            ));
        }
        let numbers: Option<Vec<f64>> = self.texts.iter().map(|(text, _)| text.parse().ok()).collect();
        let Some(numbers) = numbers else {
            let mut names: Vec<String> = self.texts.iter().map(|(text, _)| text.clone()).collect();
            names.sort_unstable();
            return Ok((self.places_in(&names)?, Some(names)));
        };
        if self.texts.iter().any(|(text, _)| text.contains('.'))
            && numbers.iter().all(|number| number.fract() == 0.)
            && let Some(why) = measured(&self.at, &numbers)
        {
            return Err(why);
        }
        let class = |(&number, (_, row)): (&f64, &(String, u64))| {
            if number.fract() != 0. || number.is_nan() {
                return Err(Error::format(
                    &self.at,
                    format!("{} {row} has label {number}", self.row),
                    "labels are class numbers from 0 on",
                ));
            }
            class_number(&self.at, format_args!("{} {row}", self.row), number as i64)
        };
        let classes = numbers.iter().zip(&self.texts).map(class).collect::<Result<Vec<_>>>()?;
        Ok((self.by_row(&classes), None))
    }

    /// Classes by row, as `names` are numbered, which are sorted and must hold each text.
    fn numbered_as(mut self, names: &[String]) -> Result<Vec<u32>> {
        if let Some(wrong) = self.wrong.take() {
            return Err(wrong);
        }
        self.places_in(names)
    }

    fn places_in(&self, names: &[String]) -> Result<Vec<u32>> {
        let class = |(text, _): &(String, u64)| match names.binary_search(text) {
            Ok(class) => Ok(class as u32),
            Err(_) => Err(Error::missing(&self.at, "class", shortened(text).as_str(), names)),
        };
        let classes = self.texts.iter().map(class).collect::<Result<Vec<_>>>()?;
        Ok(self.by_row(&classes))
    }

    /// The class of each row, where `classes` has that of each text.
    fn by_row(&self, classes: &[u32]) -> Vec<u32> {
        self.of_rows.iter().map(|&place| classes[place as usize]).collect()
    }
}

/// A text as a message shows it.
pub(crate) fn shortened(text: &str) -> String {
    const MOST: usize = 40;
    match text.char_indices().nth(MOST) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
    }
}
