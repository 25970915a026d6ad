//! What the columns of a parquet file are, and which of them to read.
use super::types::{Kind, Numeric, kind_of, numeric_of};
use crate::labels::{LABELS, left_out, may_be_features, read_as_features};
use crate::options::DataOptions;
use crate::{Error, Result};
use ::parquet::file::metadata::ParquetMetaData;

/// Names that a column of vectors goes by where there are several.
const VECTORS: [&str; 9] =
    ["features", "image", "pixels", "data", "x", "vector", "embedding", "embeddings", "values"];

/// A top-level column and the leaf that holds its values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Column {
    pub(crate) name: String,
    pub(crate) leaf: usize,
    pub(crate) kind: Kind,
    pub(crate) numeric: Numeric,
}

/// The columns to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Plan {
    /// One image or vector column, or numbers that make a row side by side.
    pub(crate) rows: Vec<Column>,
    pub(crate) labels: Option<Column>,
    /// Names of the classes, where the hub's metadata has them.
    pub(crate) class_names: Option<Vec<String>>,
    /// Whether the labels were chosen by their usual name, which features have too.
    pub(crate) labels_may_be_features: bool,
    /// What was left out.
    pub(crate) notes: Vec<String>,
}

/// The columns of a file.
#[derive(Debug)]
pub(crate) struct Schema {
    columns: Vec<Column>,
    /// Columns that the hub's metadata calls class labels, and their classes.
    class_labels: Vec<(String, Vec<String>)>,
    /// Columns that pandas keeps its index in.
    index: Vec<String>,
}

impl Schema {
    pub(crate) fn of(metadata: &ParquetMetaData) -> Self {
        let schema = metadata.file_metadata().schema_descr();
        let roots = schema.root_schema().get_fields();
        let columns = roots
            .iter()
            .enumerate()
            .map(|(root, field)| {
                let leaves: Vec<usize> = (0..schema.num_columns())
                    .filter(|&leaf| schema.get_column_root_idx(leaf) == root)
                    .collect();
                let bytes_of = |&leaf: &usize| {
                    let path = schema.column(leaf).path().parts().to_vec();
                    path.len() == 2 && path[1] == "bytes"
                };
                let (leaf, kind) = match leaves.as_slice() {
                    [only] => (*only, kind_of(&schema.column(*only))),
                    several => match several.iter().copied().find(|leaf| bytes_of(leaf)) {
                        Some(leaf) => (leaf, kind_of(&schema.column(leaf))),
                        None => (several.first().copied().unwrap_or(0), Kind::Other),
                    },
                };
                let numeric = if leaf < schema.num_columns() {
                    numeric_of(&schema.column(leaf))
                } else {
                    Numeric::Plain
                };
                Column { name: field.name().to_owned(), leaf, kind, numeric }
            })
            .collect();
        Self { columns, class_labels: class_labels(metadata), index: pandas_index(metadata) }
    }

    /// Chooses columns; `at` names the file in errors, and `no_labels` columns that were found to
    /// be no labels.
    pub(crate) fn plan(&self, at: &str, options: &DataOptions, no_labels: &[String]) -> Result<Plan> {
        let mut notes = Vec::new();
        let labels = match options.named_labels() {
            Some(name) => Some(self.column(at, name)?),
            None => self.guess_labels(no_labels, &mut notes),
        };
        if let Some(labels) = &labels
            && !matches!(labels.kind, Kind::Number | Kind::Text | Kind::Vector { .. })
        {
            return Err(Error::format(
                at,
                format!("column '{}' holds neither numbers nor texts", labels.name),
                "choose another column for the labels",
            ));
        }
        let mut rows = match &options.features {
            Some(names) => {
                names.split(',').map(|name| self.column(at, name.trim())).collect::<Result<Vec<_>>>()?
            }
            None => self.guess_rows(at, labels.as_ref(), &mut notes)?,
        };
        for column in &mut rows {
            // Days, or parts of a second: numbers, where they are asked for.
            if column.kind == Kind::Time {
                column.kind = Kind::Number;
            }
        }
        let unreadable = |c: &&Column| {
            matches!(c.kind, Kind::Text | Kind::Other) || (rows.len() > 1 && !matches!(c.kind, Kind::Number))
        };
        if let Some(bad) = rows.iter().find(unreadable) {
            return Err(Error::format(
                at,
                format!("column '{}' cannot make rows", bad.name),
                "choose one column of images or of vectors, or columns of numbers",
            ));
        }
        let class_names = labels.as_ref().and_then(|labels| {
            let mut known = self.class_labels.iter();
            known.find(|(name, _)| *name == labels.name).map(|(_, classes)| classes.clone())
        });
        let by_name = options.named_labels().is_none() && class_names.is_none();
        let labels_may_be_features = by_name
            && labels
                .as_ref()
                .is_some_and(|labels| may_be_features(&labels.name) && labels.kind == Kind::Number);
        let labels = labels.filter(|_| options.reads_labels());
        Ok(Plan { rows, labels, class_names, labels_may_be_features, notes })
    }

    /// The same columns in another file of the data set.
    pub(crate) fn same(&self, at: &str, plan: &Plan) -> Result<Plan> {
        let same = |column: &Column| -> Result<Column> {
            let mut found = self.column(at, &column.name)?;
            if (found.kind, column.kind) == (Kind::Time, Kind::Number) {
                found.kind = Kind::Number;
            }
            if found.kind != column.kind {
                return Err(Error::format(
                    at,
                    format!(
                        "column '{}' holds {:?}, in the first file {:?}",
                        column.name, found.kind, column.kind
                    ),
                    "give files of one data set",
                ));
            }
            Ok(found)
        };
        Ok(Plan {
            rows: plan.rows.iter().map(same).collect::<Result<_>>()?,
            labels: plan.labels.as_ref().map(same).transpose()?,
            class_names: plan.class_names.clone(),
            labels_may_be_features: plan.labels_may_be_features,
            notes: Vec::new(),
        })
    }

    fn column(&self, at: &str, name: &str) -> Result<Column> {
        let mut columns = self.columns.iter();
        columns.find(|column| column.name == name).cloned().ok_or_else(|| {
            let names = self.columns.iter().map(|column| &column.name);
            Error::missing(at, "column", name, names)
        })
    }

    fn guess_labels(&self, no_labels: &[String], notes: &mut Vec<String>) -> Option<Column> {
        let find = |name: &str| self.columns.iter().find(|c| c.name.eq_ignore_ascii_case(name));
        let declared = self.class_labels.iter().map(|(name, _)| name.as_str());
        if let Some(column) = declared.filter_map(find).find(|c| matches!(c.kind, Kind::Number | Kind::Text))
        {
            return Some(column.clone());
        }
        let is_plane = find("x").is_some_and(|x| x.kind == Kind::Number);
        for column in LABELS.iter().copied().filter_map(find) {
            let fit = match column.kind {
                Kind::Number => !(is_plane && column.name.eq_ignore_ascii_case("y")),
                Kind::Text => true,
                // One-hot labels.
                Kind::Vector { .. } => !VECTORS.contains(&column.name.to_ascii_lowercase().as_str()),
                _ => continue,
            };
            if fit && !no_labels.contains(&column.name) {
                return Some(column.clone());
            }
            if column.kind == Kind::Number {
                notes.push(read_as_features(&column.name));
            }
        }
        None
    }

    fn guess_rows(&self, at: &str, labels: Option<&Column>, notes: &mut Vec<String>) -> Result<Vec<Column>> {
        let is_index = |c: &&Column| self.index.contains(&c.name);
        let is_label = |c: &&Column| labels.is_some_and(|l| l.name == c.name);
        let of = |kind: fn(&Kind) -> bool| -> Vec<Column> {
            let columns = self.columns.iter().filter(|c| kind(&c.kind) && !is_label(c) && !is_index(c));
            columns.cloned().collect()
        };
        if let Some(image) = of(|k| *k == Kind::Image).into_iter().next() {
            return Ok(vec![image]);
        }
        let vectors = of(|k| matches!(k, Kind::Vector { .. }));
        let likely =
            VECTORS.iter().find_map(|name| vectors.iter().find(|v| v.name.eq_ignore_ascii_case(name)));
        let rows = match (vectors.as_slice(), likely) {
            ([only], _) => vec![only.clone()],
            (_, Some(vector)) => vec![vector.clone()],
            ([], _) => of(|k| *k == Kind::Number),
            _ => Vec::new(),
        };
        if rows.is_empty() {
            let names = self.columns.iter().map(|column| &column.name);
            return Err(Error::missing(at, "column", "features", names));
        }
        let is_read = |c: &&Column| rows.iter().any(|row| row.name == c.name) || is_label(c);
        let index = |c: &&Column| is_index(c) && !is_label(c);
        let other = |c: &&Column| !is_read(c) && !is_index(c);
        let kinds = [Kind::Number, Kind::Text, Kind::Time].map(|kind| {
            let names = self.columns.iter().filter(|c| other(c) && c.kind == kind);
            names.map(|c| c.name.clone()).collect::<Vec<_>>()
        });
        let [numbers, texts, times] = kinds;
        let known = [Kind::Number, Kind::Text, Kind::Time];
        let rest = self.columns.iter().filter(|c| other(c) && !known.contains(&c.kind));
        let rest: Vec<String> = rest.map(|c| c.name.clone()).collect();
        let index: Vec<String> = self.columns.iter().filter(index).map(|c| c.name.clone()).collect();
        let groups = [
            (index, "the index of pandas"),
            (numbers, "numbers beside the vectors"),
            (texts, "texts"),
            (times, "dates or times; `DataOptions::features` reads them as numbers"),
            (rest, "neither numbers nor texts"),
        ];
        let groups = groups.iter().filter(|(names, _)| !names.is_empty());
        notes.extend(groups.map(|(names, what)| left_out(names, what)));
        Ok(rows)
    }
}

/// The columns that pandas keeps its index in, by `{"index_columns": [NAME, …]}` in the file; a
/// range is not stored as a column.
fn pandas_index(metadata: &ParquetMetaData) -> Vec<String> {
    #[derive(serde::Deserialize)]
    struct Hint {
        index_columns: Vec<serde_json::Value>,
    }
    let entries = metadata.file_metadata().key_value_metadata().into_iter().flatten();
    entries
        .filter(|entry| entry.key == "pandas")
        .filter_map(|entry| serde_json::from_str::<Hint>(entry.value.as_deref()?).ok())
        .flat_map(|hint| hint.index_columns)
        .filter_map(|column| column.as_str().map(str::to_owned))
        .collect()
}

/// Reads `{"info": {"features": {NAME: {"_type": "ClassLabel", "names": […]}}}}`, which the hub's
/// `datasets` library leaves in the file. Anything else is passed over: it is only a hint.
fn class_labels(metadata: &ParquetMetaData) -> Vec<(String, Vec<String>)> {
    #[derive(serde::Deserialize)]
    struct Hint {
        info: Info,
    }
    #[derive(serde::Deserialize)]
    struct Info {
        features: serde_json::Map<String, serde_json::Value>,
    }
    let entries = metadata.file_metadata().key_value_metadata();
    entries
        .into_iter()
        .flatten()
        .filter(|entry| entry.key == "huggingface")
        .filter_map(|entry| serde_json::from_str::<Hint>(entry.value.as_deref()?).ok())
        .flat_map(|hint| hint.info.features)
        .filter(|(_, feature)| feature.get("_type").is_some_and(|t| t == "ClassLabel"))
        .map(|(name, feature)| {
            let names = feature.get("names").and_then(|names| names.as_array());
            let names = names.into_iter().flatten();
            let names = names.filter_map(|n| n.as_str().map(str::to_owned));
            (name, names.collect())
        })
        .collect()
}
