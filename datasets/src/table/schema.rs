//! What the columns of a parquet file are, and which of them to read.
use crate::labels::LABELS;
use crate::options::DataOptions;
use crate::{Error, Result};
use ::parquet::basic::{ConvertedType, LogicalType, Type as Physical};
use ::parquet::file::metadata::ParquetMetaData;
use ::parquet::schema::types::ColumnDescriptor;

/// Names that a column of vectors goes by where there are several.
const VECTORS: [&str; 9] =
    ["features", "image", "pixels", "data", "x", "vector", "embedding", "embeddings", "values"];

/// What a column holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Encoded images.
    Image,
    /// Lists of numbers; `bytes` when they are unsigned and of 8 bits.
    Vector { bytes: bool },
    /// One number a row.
    Number,
    /// One text a row.
    Text,
    /// What cannot be read here.
    Other,
}

/// A top-level column and the leaf that holds its values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Column {
    pub(crate) name: String,
    pub(crate) leaf: usize,
    pub(crate) kind: Kind,
}

/// The columns to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Plan {
    /// One image or vector column, or numbers that make a row side by side.
    pub(crate) rows: Vec<Column>,
    pub(crate) labels: Option<Column>,
    /// Names of the classes, where the hub's metadata has them.
    pub(crate) class_names: Option<Vec<String>>,
}

/// The columns of a file.
#[derive(Debug)]
pub(crate) struct Schema {
    columns: Vec<Column>,
    /// Columns that the hub's metadata calls class labels, and their classes.
    class_labels: Vec<(String, Vec<String>)>,
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
                Column { name: field.name().to_owned(), leaf, kind }
            })
            .collect();
        Self { columns, class_labels: class_labels(metadata) }
    }

    /// Chooses columns; `at` names the file in errors.
    pub(crate) fn plan(&self, at: &str, options: &DataOptions) -> Result<Plan> {
        let labels = match &options.labels {
            Some(name) => Some(self.column(at, name)?),
            None => self.guess_labels(),
        };
        if let Some(labels) = &labels
            && !matches!(labels.kind, Kind::Number | Kind::Text)
        {
            return Err(Error::format(
                at,
                format!("column '{}' holds neither numbers nor texts", labels.name),
                "choose another column for the labels",
            ));
        }
        let rows = match &options.features {
            Some(names) => {
                names.split(',').map(|name| self.column(at, name.trim())).collect::<Result<Vec<_>>>()?
            }
            None => self.guess_rows(at, labels.as_ref())?,
        };
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
        Ok(Plan { rows, labels, class_names })
    }

    /// The same columns in another file of the data set.
    pub(crate) fn same(&self, at: &str, plan: &Plan) -> Result<Plan> {
        let same = |column: &Column| -> Result<Column> {
            let found = self.column(at, &column.name)?;
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
        })
    }

    fn column(&self, at: &str, name: &str) -> Result<Column> {
        let mut columns = self.columns.iter();
        columns.find(|column| column.name == name).cloned().ok_or_else(|| {
            let names = self.columns.iter().map(|column| &column.name);
            Error::missing(at, "column", name, names)
        })
    }

    fn guess_labels(&self) -> Option<Column> {
        let declared = self.class_labels.iter().map(|(name, _)| name.as_str());
        declared
            .chain(LABELS)
            .filter_map(|name| self.columns.iter().find(|c| c.name.eq_ignore_ascii_case(name)))
            .find(|c| matches!(c.kind, Kind::Number | Kind::Text))
            .cloned()
    }

    fn guess_rows(&self, at: &str, labels: Option<&Column>) -> Result<Vec<Column>> {
        let of = |kind: fn(&Kind) -> bool| -> Vec<Column> {
            let columns = self.columns.iter().filter(|c| kind(&c.kind));
            columns.filter(|c| labels.is_none_or(|l| l.name != c.name)).cloned().collect()
        };
        if let Some(image) = of(|k| *k == Kind::Image).into_iter().next() {
            return Ok(vec![image]);
        }
        let vectors = of(|k| matches!(k, Kind::Vector { .. }));
        if vectors.len() == 1 {
            return Ok(vectors);
        }
        let likely =
            VECTORS.iter().find_map(|name| vectors.iter().find(|v| v.name.eq_ignore_ascii_case(name)));
        if let Some(vector) = likely {
            return Ok(vec![vector.clone()]);
        }
        let numbers = of(|k| *k == Kind::Number);
        if vectors.is_empty() && !numbers.is_empty() {
            return Ok(numbers);
        }
        let names = self.columns.iter().map(|column| &column.name);
        Err(Error::missing(at, "column", "features", names))
    }
}

fn kind_of(leaf: &ColumnDescriptor) -> Kind {
    let text = matches!(leaf.logical_type_ref(), Some(LogicalType::String))
        || leaf.converted_type() == ConvertedType::UTF8;
    let plain_number = matches!(
        leaf.converted_type(),
        ConvertedType::NONE
            | ConvertedType::UINT_8
            | ConvertedType::UINT_16
            | ConvertedType::UINT_32
            | ConvertedType::INT_8
            | ConvertedType::INT_16
            | ConvertedType::INT_32
            | ConvertedType::INT_64
    );
    let number = match leaf.physical_type() {
        Physical::BOOLEAN | Physical::FLOAT | Physical::DOUBLE => true,
        Physical::INT32 | Physical::INT64 => plain_number,
        _ => false,
    };
    match leaf.physical_type() {
        Physical::BYTE_ARRAY if leaf.max_rep_level() == 0 => {
            if text {
                Kind::Text
            } else {
                Kind::Image
            }
        }
        _ if number && leaf.max_rep_level() == 0 => Kind::Number,
        _ if number => Kind::Vector { bytes: leaf.converted_type() == ConvertedType::UINT_8 },
        _ => Kind::Other,
    }
}

/// Reads `{"info": {"features": {NAME: {"_type": "ClassLabel", "names": […]}}}}`, which the hub's `datasets` library
/// leaves in the file. Anything else is passed over: it is only a hint.
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
