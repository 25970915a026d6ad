//! Class numbers of the labels that a column holds.
use super::schema::Column;
use super::types::Numeric;
use crate::labels::{Classes, Labels, check_classes};
use crate::{Error, Result};

/// Labels as a file has them.
#[derive(Debug)]
pub(super) enum Found {
    /// NaN where one is missing.
    Numbers(Vec<f64>),
    /// Empty where one is missing.
    Texts(Vec<String>),
    /// Several numbers a row.
    Vectors,
}

/// How labels become class numbers.
pub(super) struct Numbering<'a> {
    pub(super) at: &'a str,
    /// Their column.
    pub(super) column: Option<&'a Column>,
    /// Names of the classes, where the file or the training rows have some.
    pub(super) class_names: Option<Vec<String>>,
}

impl Numbering<'_> {
    pub(super) fn of_training(mut self, labels: Option<Found>) -> Result<Classes> {
        if let (None, Some(Found::Texts(texts))) = (&self.class_names, &labels) {
            let mut names = texts.clone();
            names.sort_unstable();
            names.dedup();
            if let Err(why) = self.check_names(&names, texts) {
                return Ok(Classes::of(Err(why)));
            }
            self.class_names = Some(names);
        }
        check_classes(self.at, self.class_names.as_ref().map_or(0, Vec::len))?;
        let Some(labels) = labels else {
            return Ok(Classes { names: self.class_names, ..Classes::default() });
        };
        match self.numbers(labels)? {
            Ok(numbers) => Ok(Classes { numbers, names: self.class_names, left_out: None }),
            Err(why) => Ok(Classes::of(Err(why))),
        }
    }

    /// Of test rows; none where they are no classes.
    pub(super) fn of_test(self, labels: Option<Found>) -> Result<Option<Vec<u32>>> {
        let Some(labels) = labels else { return Ok(None) };
        Ok(self.numbers(labels)?.unwrap_or_default())
    }

    fn check_names(&self, names: &[String], texts: &[String]) -> Result<()> {
        if let Some(row) = texts.iter().position(String::is_empty) {
            return Err(self.no_value(row));
        }
        check_classes(self.at, names.len())
    }

    fn no_value(&self, row: usize) -> Error {
        Error::format(self.at, format!("row {row} has no label"), "drop or fill rows with missing values")
    }

    /// Class numbers, or why labels are no classes; texts must be among the names.
    fn numbers(&self, labels: Found) -> Result<Result<Option<Vec<u32>>>> {
        let at = self.at;
        match labels {
            Found::Vectors => Ok(Err(Error::format(
                at,
                "holds several numbers a row",
                "labels are one class number or text a row",
            ))),
            Found::Numbers(numbers) if numbers.iter().all(|&n| n == -1.) => Ok(Ok(None)),
            Found::Numbers(numbers) => {
                if let Some(row) = numbers.iter().position(|n| n.is_nan()) {
                    return Ok(Err(self.no_value(row)));
                }
                let Some(column) = self.column else { return Ok(Ok(None)) };
                let classes = match of_column(at, column, &numbers) {
                    Labels::Numbers(classes) => classes,
                    Labels::NoClasses(why) => return Ok(Err(why)),
                    Labels::Texts(_) => return Ok(Ok(None)),
                };
                if let Some(names) = &self.class_names
                    && let Some(row) = classes.iter().position(|&class| class as usize >= names.len())
                {
                    return Err(Error::format(
                        at,
                        format!(
                            "row {row} has label {}, but it names {}",
                            classes[row],
                            crate::count(names.len(), "class")
                        ),
                        "correct the labels, or choose others",
                    ));
                }
                Ok(Ok(Some(classes)))
            }
            Found::Texts(texts) => {
                let names = self.class_names.as_deref().unwrap_or_default();
                let number = |text: &String| {
                    names
                        .binary_search(text)
                        .map(|i| i as u32)
                        .map_err(|_| Error::missing(at, "class", text, names))
                };
                texts.iter().map(number).collect::<Result<_>>().map(|classes| Ok(Some(classes)))
            }
        }
    }
}

/// Labels of a column of numbers.
pub(super) fn of_column(at: &str, column: &Column, numbers: &[f64]) -> Labels {
    let is_whole = |number: &f64| number.fract() == 0.;
    match column.numeric == Numeric::Float || !numbers.iter().all(is_whole) {
        true => Labels::of_floats(at, numbers),
        false => Labels::of_numbers(at, &numbers.iter().map(|&number| number as i64).collect::<Vec<_>>()),
    }
}
