//! Labels: the numbers of classes, and the numbering of classes that have names.
use crate::{Error, Result};

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
