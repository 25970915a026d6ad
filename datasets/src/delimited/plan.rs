//! Which columns are rows, which are labels, and what is left out.
use super::fields::{Kind, is_name, kind, number};
use super::lines::line_of;
use crate::labels::{LABELS, is_missing, may_be_features, shortened};
use crate::options::DataOptions;
use crate::{Error, Result};
use ::csv::StringRecord;

/// The columns to read.
pub(super) struct Plan {
    header: Option<StringRecord>,
    separator: u8,
    pub(super) rows: Vec<usize>,
    pub(super) labels: Option<usize>,
    /// Whether the labels were chosen by their usual name, which features have too.
    pub(super) labels_may_be_features: bool,
    /// What was left out.
    pub(super) notes: Vec<String>,
}

impl Plan {
    /// Chooses by the options, by names, and by what the first rows hold. `no_labels` are columns
    /// that were found to be no labels.
    pub(super) fn new(
        at: &str,
        header: Option<&StringRecord>,
        rows: &[&StringRecord],
        separator: u8,
        no_labels: &[usize],
        options: &DataOptions,
    ) -> Result<Self> {
        let width = header.or(rows.first().copied()).map_or(0, StringRecord::len);
        let mut plan = Self {
            header: header.cloned(),
            separator,
            rows: Vec::new(),
            labels: None,
            labels_may_be_features: false,
            notes: Vec::new(),
        };
        let kinds: Vec<Kind> =
            (0..width).map(|column| kind(rows.iter().copied(), column, separator)).collect();
        plan.labels = match options.named_labels() {
            Some(wanted) => Some(plan.column(at, wanted, width)?),
            None => plan.guess_labels(rows, &kinds, no_labels),
        };
        plan.rows = match &options.features {
            Some(wanted) => wanted
                .split(',')
                .map(|wanted| plan.column(at, wanted.trim(), width))
                .collect::<Result<Vec<_>>>()?,
            None => plan.guess_rows(&kinds),
        };
        if plan.rows.is_empty() {
            return Err(Error::format(
                at,
                "has no column of numbers beside the labels",
                "choose columns by `DataOptions::features` and `DataOptions::labels`, or say what parts them by \
                 `DataOptions::separator`",
            ));
        }
        Ok(plan)
    }

    /// A column by its name or number.
    fn column(&self, at: &str, wanted: &str, width: usize) -> Result<usize> {
        let header = self.header.as_ref();
        let named = header.and_then(|header| header.iter().position(|name| name == wanted));
        let numbered = || wanted.parse().ok().filter(|&column| column < width);
        named.or_else(numbered).ok_or_else(|| match header {
            Some(header) => Error::missing(at, "column", wanted, header.iter()),
            None => {
                let last = width.saturating_sub(1);
                Error::missing(at, "column", wanted, [format!("0 to {last}, for there is no header")])
            }
        })
    }

    /// The column with a usual name; without a header the only one of texts.
    fn guess_labels(&mut self, rows: &[&StringRecord], kinds: &[Kind], no_labels: &[usize]) -> Option<usize> {
        let Some(header) = &self.header else {
            let mut texts = (0..kinds.len()).filter(|&column| kinds[column] == Kind::Texts);
            return texts.next().filter(|_| texts.next().is_none());
        };
        let find = |wanted: &str| header.iter().position(|name| name.eq_ignore_ascii_case(wanted));
        let x = find("x").filter(|&x| kinds[x] == Kind::Numbers);
        for label in LABELS {
            let Some(column) = find(label) else { continue };
            self.labels_may_be_features = may_be_features(label) && kinds[column] == Kind::Numbers;
            let is_class = |field: &str| {
                number(field, self.separator).is_some_and(|number| number >= 0. && number.fract() == 0.)
            };
            let below = || rows.iter().filter_map(|row| row.get(column));
            let is_no_class = || label == "y" && x.is_some() || !below().all(is_class);
            // Labels that are known of some rows alone are no values.
            let whole = !below().any(is_missing);
            if no_labels.contains(&column) || self.labels_may_be_features && whole && is_no_class() {
                self.notes.push(crate::labels::read_as_features(&header[column]));
                continue;
            }
            return Some(column);
        }
        self.labels_may_be_features = false;
        None
    }

    /// All columns of numbers but the labels and the names of rows.
    fn guess_rows(&mut self, kinds: &[Kind]) -> Vec<usize> {
        let unnamed = |column: usize| {
            let name = self.header.as_ref().and_then(|header| header.get(column));
            name.is_some_and(|name| name.is_empty() || name.starts_with("Unnamed: "))
        };
        // pandas and R write the names of rows before them; all columns without names are the
        // columns themselves.
        let row_names = (0..kinds.len()).take_while(|&column| unnamed(column)).count();
        let row_names = if row_names < kinds.len() { row_names } else { 0 };
        if row_names > 0 {
            self.notes.push("the first column, which has no name, names the rows and is left out".to_owned());
        }
        let others = (row_names..kinds.len()).filter(|column| Some(*column) != self.labels);
        let (numbers, others): (Vec<usize>, Vec<usize>) = others
            .filter(|&column| !(kinds[column] == Kind::Gaps && unnamed(column)))
            .partition(|&column| kinds[column] != Kind::Texts);
        if !others.is_empty() {
            let names: Vec<String> = others.iter().map(|&column| self.name(column)).collect();
            self.notes.push(crate::labels::left_out(&names, "texts or dates"));
        }
        numbers
    }

    /// A column as a user names it.
    pub(super) fn name(&self, column: usize) -> String {
        let name = self.header.as_ref().and_then(|header| header.get(column));
        name.filter(|name| !name.is_empty()).map_or_else(|| column.to_string(), str::to_owned)
    }

    /// The names of the columns of rows, where there is a header.
    pub(super) fn names(&self) -> Option<Vec<String>> {
        self.header.as_ref()?;
        Some(self.rows.iter().map(|&column| self.name(column)).collect())
    }

    /// File and column, for messages.
    pub(super) fn place(&self, at: &str, column: usize) -> String {
        match self.header.as_ref().and_then(|header| header.get(column)) {
            Some(name) => format!("{at}, column '{name}'"),
            None => format!("{at}, column {column}"),
        }
    }

    /// The number in a column of a row.
    pub(super) fn number(&self, at: &str, record: &StringRecord, column: usize) -> Result<f64> {
        let field = record.get(column).unwrap_or_default();
        let (what, fix) = match number(field, self.separator) {
            // Rows are f32.
            Some(number) if (number as f32).is_finite() => return Ok(number),
            Some(number) => (format!("is {}", number as f32), "replace or drop such values and save again"),
            None if field.is_empty() => ("has no value".to_owned(), "drop or fill rows with missing values"),
            None if line_of(record) == 1 && is_name(field) => (
                format!("is '{}', want a number", shortened(field)),
                "correct it, choose columns by `DataOptions::features`, or say by `DataOptions::header` that it is a header",
            ),
            None => (
                format!("is '{}', want a number", shortened(field)),
                "correct it, or choose columns by `DataOptions::features`",
            ),
        };
        let line = line_of(record);
        Err(Error::format(self.place(at, column), format!("line {line} {what}"), fix))
    }
}
