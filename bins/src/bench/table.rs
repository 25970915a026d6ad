//! Tables whose columns are written once: for the line of heads, and for each row.
use crate::report::Report;
use anyhow::Result;
use serde::Serialize;
use std::fmt::Write;

/// A column: its head, its width (negative: to the left), and what stands in it.
pub(super) struct Column<R: 'static>(pub &'static str, pub isize, pub fn(&R) -> String);

/// Rows that are printed as they come, and as JSON at the end.
pub(super) struct Table<'a, R: 'static> {
    report: &'a Report,
    columns: &'static [Column<R>],
    rows: Vec<R>,
}

impl<'a, R: Serialize> Table<'a, R> {
    /// Prints the line of heads.
    pub fn new(report: &'a Report, columns: &'static [Column<R>]) -> Result<Self> {
        report.line(&line(columns.iter().map(|&Column(head, width, _)| (head.to_owned(), width))))?;
        Ok(Self { report, columns, rows: Vec::new() })
    }

    /// Prints a row.
    pub fn add(&mut self, row: R) -> Result<()> {
        self.report.line(&line(self.columns.iter().map(|Column(_, width, cell)| (cell(&row), *width))))?;
        self.rows.push(row);
        Ok(())
    }

    /// The rows so far.
    pub fn rows(&self) -> &[R] {
        &self.rows
    }

    /// The rows, for a report of several tables.
    pub fn into_rows(self) -> Vec<R> {
        self.rows
    }

    /// Ends the report.
    pub fn finish(self) -> Result<()> {
        self.report.finish_as_is(&self.rows)
    }
}

/// Cells with a space between.
fn line(cells: impl Iterator<Item = (String, isize)>) -> String {
    let mut line = String::new();
    for (cell, width) in cells {
        let (gap, size) = (if line.is_empty() { "" } else { " " }, width.unsigned_abs());
        // Writing to a String cannot fail.
        let _ = match width < 0 {
            true => write!(line, "{gap}{cell:<size$}"),
            false => write!(line, "{gap}{cell:>size$}"),
        };
    }
    line
}

/// A number with so many decimals, or a dash where there is none.
pub(super) fn or_dash(x: Option<f64>, decimals: usize) -> String {
    x.filter(|x| x.is_finite()).map_or("-".to_owned(), |x| format!("{x:.decimals$}"))
}

/// The share of a floor that is reached, or a dash where there is none.
pub(super) fn share(floor: Option<f64>, seconds: f64) -> String {
    floor.map_or("-".to_owned(), |floor| format!("{:.0} %", 100. * floor / seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_stand_left_or_right_in_their_columns() {
        let cells = [("a", -3), ("1.5", 5), ("wide", 2)].map(|(cell, width)| (cell.to_owned(), width));
        assert_eq!(line(cells.into_iter()), "a     1.5 wide");
        assert_eq!((or_dash(Some(1.25), 1), or_dash(None, 1)), ("1.2".to_owned(), "-".to_owned()));
    }
}
