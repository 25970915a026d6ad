//! Labels: the numbers of classes, and the numbering of classes that have names.
use crate::{Error, Result};
use std::collections::HashMap;

/// Classes that a data set may have. Models make a unit, a weight or a count for each, so that a label which is no class
/// number (an identifier, a year in seconds) would ask for more memory than there is; a file that holds one is refused.
pub const MAX_CLASSES: usize = 65_535;

/// Names that a column of labels goes by.
pub(crate) const LABELS: [&str; 9] =
    ["label", "labels", "target", "class", "y", "fine_label", "digit", "category", "species"];

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
}

impl Labels {
    /// Class numbers of training rows; and the names of the classes, in alphabetic order, where labels are not all numbers.
    pub(crate) fn of_training(self) -> Result<(Vec<u32>, Option<Vec<String>>)> {
        match self {
            Self::Numbers(numbers) => Ok((numbers, None)),
            Self::Texts(texts) => texts.numbered(),
        }
    }

    /// Class numbers of test rows, where those of the training rows belong to `names`; `at` names the labels in errors.
    pub(crate) fn of_test(self, at: &str, names: Option<&[String]>) -> Result<Vec<u32>> {
        let mixed = |what: &str| Error::format(at, what, "save the labels of both as one type");
        match (self, names) {
            (Self::Numbers(numbers), None) => Ok(numbers),
            (Self::Numbers(_), Some(_)) => {
                Err(mixed("holds class numbers, and the labels of the training rows are texts"))
            }
            (Self::Texts(texts), Some(names)) => texts.numbered_as(names),
            (Self::Texts(texts), None) => match texts.numbered()? {
                (numbers, None) => Ok(numbers),
                _ => Err(mixed("holds texts, and the labels of the training rows are class numbers")),
            },
        }
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
}

impl Texts {
    pub(crate) fn new(at: String, row: &'static str) -> Self {
        Self { at, row, texts: Vec::new(), places: HashMap::new(), of_rows: Vec::new() }
    }

    /// Adds the label of the row with this number.
    pub(crate) fn push(&mut self, text: &str, number: u64) -> Result<()> {
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

    /// Classes by row. Texts that are all numbers are class numbers; else texts are numbered in alphabetic order, and the names come along.
    pub(crate) fn numbered(self) -> Result<(Vec<u32>, Option<Vec<String>>)> {
        let numbers: Option<Vec<f64>> = self.texts.iter().map(|(text, _)| text.parse().ok()).collect();
        let Some(numbers) = numbers else {
            let mut names: Vec<String> = self.texts.iter().map(|(text, _)| text.clone()).collect();
            names.sort_unstable();
            return Ok((self.numbered_as(&names)?, Some(names)));
        };
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
    fn numbered_as(&self, names: &[String]) -> Result<Vec<u32>> {
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
