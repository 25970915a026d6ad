//! How a data set is read, as command lines and `run.json` say it.
use crate::numbers::at_least_one;
use crate::progress::Spinner;
use crate::report::note_later;
use crate::stages::{self, Stage};
use anyhow::Context;
use chandlery_datasets::{Centre, Colour, DataOptions, Dataset, is_name};
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// How a data set is read.
#[derive(Debug, Clone, Default, PartialEq, Args, Serialize, Deserialize)]
pub struct ReadArgs {
    /// Columns of a table (separated by commas; of a .csv file also by number, from 0), or array of
    /// a .safetensors or .npz file, that hold the rows; default: chosen by name and type.
    #[arg(long, value_name = "NAMES")]
    pub data_columns: Option<String>,
    /// Column or array of the labels, or the label file that belongs to a .npy file; none: labels
    /// are not read. Default: chosen by name. Labels are class numbers or texts; others are left
    /// out.
    #[arg(long, value_name = "NAME|none")]
    pub label_column: Option<String>,
    /// Whether the first line of a table in text is a header; default: guessed.
    #[arg(long, value_name = "true|false", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub header: Option<bool>,
    /// What parts the fields of a table in text: comma, tab, semicolon, space (any number of spaces
    /// and tabs) or another character; default: guessed.
    #[arg(long, value_name = "SEPARATOR", value_parser = separator)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub separator: Option<char>,
    /// Which of several sets of idx files in a folder, such as letters of EMNIST.
    #[arg(long, value_name = "NAME")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subset: Option<String>,
    /// Configuration of a hub data set; default: `default`, or the only one.
    #[arg(long, value_name = "NAME")]
    pub data_config: Option<String>,
    /// Branch, tag or commit of a hub data set, as also hub:OWNER/NAME@REVISION says it; default:
    /// refs/convert/parquet, where the hub keeps data sets as parquet files.
    #[arg(long, value_name = "REVISION")]
    pub revision: Option<String>,
    /// Name of the training split: of a sub-folder, of a file in the folder, or of the array of its
    /// rows; default: `train`, or the only one.
    #[arg(long, value_name = "NAME")]
    pub train_split: Option<String>,
    /// Name of the test split, in the same way; for one file also another file beside it. Default:
    /// `test`, else `validation`, else none.
    #[arg(long, value_name = "NAME")]
    pub test_split: Option<String>,
    /// Colour of images: as stored, converted to grey, or converted to red, green and blue. Patches
    /// of images are grey unless it is rgb.
    #[arg(long, value_enum, default_value_t = ColourArg::AsStored)]
    pub colour: ColourArg,
    /// Use only the first ROWS rows; of each split, or of each class of a folder of images.
    /// Default: all rows.
    #[arg(long, value_name = "ROWS", value_parser = at_least_one)]
    pub max_rows: Option<usize>,
    /// What a program subtracts from numbers of more than 32 bits before they are rounded.
    #[arg(skip)]
    #[serde(skip)]
    pub centre: Option<Centre>,
    /// Whether a program leaves rows in their files, and reads pieces of them.
    #[arg(skip)]
    #[serde(skip)]
    pub stay: bool,
}

impl ReadArgs {
    /// These options; those not given are taken from `other`.
    pub fn above(&self, other: &Self) -> Self {
        let either = |a: &Option<String>, b: &Option<String>| a.as_ref().or(b.as_ref()).cloned();
        Self {
            data_columns: either(&self.data_columns, &other.data_columns),
            label_column: either(&self.label_column, &other.label_column),
            header: self.header.or(other.header),
            separator: self.separator.or(other.separator),
            subset: either(&self.subset, &other.subset),
            data_config: either(&self.data_config, &other.data_config),
            revision: either(&self.revision, &other.revision),
            train_split: either(&self.train_split, &other.train_split),
            test_split: either(&self.test_split, &other.test_split),
            colour: if self.colour == ColourArg::AsStored { other.colour } else { self.colour },
            max_rows: self.max_rows.or(other.max_rows),
            centre: self.centre.as_ref().or(other.centre.as_ref()).cloned(),
            stay: self.stay || other.stay,
        }
    }

    /// The same options with the path of the label file, if that lies below `base`.
    pub fn located(&self, base: Option<&Path>) -> Self {
        // Others are names of columns, which a file of that name is not.
        let is_file = |labels: &str| labels.to_ascii_lowercase().ends_with(".npy");
        let path = |labels: &String| if is_file(labels) { located(labels, base) } else { labels.clone() };
        Self { label_column: self.label_column.as_ref().map(path), ..self.clone() }
    }

    /// The options as the library takes them.
    pub fn options(&self) -> DataOptions {
        DataOptions {
            features: self.data_columns.clone(),
            labels: self.label_column.clone(),
            header: self.header,
            separator: self.separator,
            subset: self.subset.clone(),
            config: self.data_config.clone(),
            revision: self.revision.clone(),
            train_split: self.train_split.clone(),
            test_split: self.test_split.clone(),
            max_rows: self.max_rows,
            colour: self.colour.into(),
            centre: self.centre.clone(),
            stay: self.stay,
            ..DataOptions::default()
        }
    }

    /// Opens the data set that `data` names.
    ///
    /// # Errors
    /// When it is missing, malformed or cannot be fetched; the message names it.
    pub fn open(&self, data: &str) -> anyhow::Result<Dataset> {
        self.open_as("--data", data)
    }

    /// The same for another `option` that names a data set. Says what was chosen or left out on the
    /// way.
    pub fn open_as(&self, option: &str, data: &str) -> anyhow::Result<Dataset> {
        let _stage = stages::enter(Stage::Data);
        let spinner = Spinner::new(&format!("opening {data}"));
        let mut dataset =
            chandlery_datasets::open(data, &self.options()).with_context(|| format!("{option} {data}"))?;
        drop(spinner);
        for text in std::mem::take(&mut dataset.notes) {
            note_later(format!("{option} {data}: {text}"));
        }
        Ok(dataset)
    }
}

/// The path below `base` if `--data` names a file or folder there; else `data` unchanged. The name
/// of a data set is no path.
pub fn located(data: &str, base: Option<&Path>) -> String {
    match base.filter(|_| !is_name(data)).map(|base| base.join(data)) {
        Some(path) if Path::new(data).is_relative() && path.exists() => path.display().to_string(),
        _ => data.to_owned(),
    }
}

fn separator(text: &str) -> Result<char, String> {
    let mut characters = text.chars();
    match (text, characters.next(), characters.next()) {
        ("comma", ..) => Ok(','),
        ("tab" | "\\t", ..) => Ok('\t'),
        ("semicolon", ..) => Ok(';'),
        ("space" | "spaces", ..) => Ok(' '),
        (_, Some(one), None) if one.is_ascii() && !matches!(one, '"' | '\n' | '\r') => Ok(one),
        _ => Err("must be comma, tab, semicolon, space or one other character".to_owned()),
    }
}

/// Colour of images.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ColourArg {
    /// One plane for grey images, three for colour.
    #[default]
    AsStored,
    /// One plane of luma.
    Grey,
    /// Three planes.
    Rgb,
}

impl From<ColourArg> for Colour {
    fn from(colour: ColourArg) -> Self {
        match colour {
            ColourArg::AsStored => Self::AsStored,
            ColourArg::Grey => Self::Grey,
            ColourArg::Rgb => Self::Rgb,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn each_option_that_stands_for_a_field_is_one() {
        let command = ReadArgs::augment_args(clap::Command::new("x"));
        for (_, option) in crate::plain::OPTIONS {
            let is_it = |arg: &clap::Arg| arg.get_long() == option.strip_prefix("--");
            assert!(command.get_arguments().any(is_it), "{option}");
        }
    }

    #[test]
    fn a_separator_is_a_word_or_one_character() {
        let cases = [
            ("comma", ','),
            ("tab", '\t'),
            ("\\t", '\t'),
            ("semicolon", ';'),
            ("spaces", ' '),
            ("|", '|'),
            (" ", ' '),
        ];
        for (text, want) in cases {
            assert_eq!(separator(text), Ok(want), "{text}");
        }
        for text in ["", "commas", "||", "é", "\"", "\n"] {
            assert!(separator(text).is_err(), "{text}");
        }
    }

    #[test]
    fn names_of_columns_are_no_paths_and_files_of_labels_are() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["label", "y.npy"] {
            std::fs::write(dir.path().join(name), "").unwrap();
        }
        let labels = |name: &str| {
            let args = ReadArgs { label_column: Some(name.to_owned()), ..ReadArgs::default() };
            args.located(Some(dir.path())).label_column.unwrap()
        };
        assert_eq!(labels("label"), "label");
        assert_eq!(labels("y.npy"), dir.path().join("y.npy").display().to_string());
    }
}
