//! `metadata.csv` and `metadata.jsonl` beside images: a line for each, with its path in `file_name`
//! and its label in another column.
//!
//! As the image folders of the Hugging Face hub: paths are relative to the folder of the file.
//! Labels are whole numbers or texts.
use crate::labels::{LABELS, Labels, Texts};
use crate::listing::seen_as;
use crate::options::DataOptions;
use crate::{Error, Result};
use ::csv::ReaderBuilder;
use serde_json::Value;
use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

const FILES: [&str; 2] = ["metadata.csv", "metadata.jsonl"];
/// The column of paths.
const FILE_NAME: &str = "file_name";

/// What a file says of images.
pub(crate) struct Metadata {
    at: String,
    /// The column of labels.
    column: String,
    /// By the image: its line, and its label.
    labels: HashMap<PathBuf, (u64, String)>,
}

/// Columns by name.
type Line = Vec<(String, String)>;

/// Whether a folder has such a file.
pub(crate) fn is_in(folder: &Path) -> bool {
    FILES.iter().any(|name| folder.join(name).is_file())
}

impl Metadata {
    /// Of one of `folders`, the first that has such a file with a column of labels; none where
    /// there is no such.
    pub(crate) fn find(folders: &[&Path], options: &DataOptions) -> Result<Option<Self>> {
        let files = folders.iter().flat_map(|folder| FILES.map(|name| (folder, folder.join(name))));
        for (folder, path) in files.filter(|(_, path)| path.is_file()) {
            let found = Self::read(folder, &path, options)?;
            if found.is_some() || options.named_labels().is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    fn read(folder: &Path, path: &Path, options: &DataOptions) -> Result<Option<Self>> {
        let at = path.display().to_string();
        let lines =
            if path.extension().is_some_and(|e| e == "csv") { csv(path, &at)? } else { jsonl(path, &at)? };
        let wrong =
            |line: u64, what: String, fix: &str| Error::format(&at, format!("line {line} {what}"), fix);
        let Some((_, first)) = lines.first() else {
            return Err(Error::format(at, "has no lines", "give one for each image"));
        };
        let names = || first.iter().map(|(name, _)| name.as_str());
        let has = |wanted: &str| names().any(|name| name == wanted);
        let column = match options.named_labels() {
            Some(wanted) if has(wanted) => wanted.to_owned(),
            Some(wanted) => return Err(Error::missing(&at, "column", wanted, names())),
            None => {
                match LABELS.iter().find_map(|label| names().find(|name| name.eq_ignore_ascii_case(label))) {
                    Some(found) => found.to_owned(),
                    None => return Ok(None),
                }
            }
        };
        let mut labels = HashMap::new();
        for (line, fields) in lines {
            let of = |wanted: &str| {
                let found = fields.iter().find(|(name, _)| name == wanted).map(|(_, value)| value.clone());
                found.ok_or_else(|| wrong(line, format!("has no '{wanted}'"), "give each line one"))
            };
            let (file, label) = (folder.join(of(FILE_NAME)?), of(&column)?);
            if !file.is_file() {
                let what = format!("names '{}', which is no file", of(FILE_NAME)?);
                return Err(wrong(
                    line,
                    what,
                    "correct the path, which begins at the folder of the metadata",
                ));
            }
            if let Some((before, _)) = labels.insert(seen_as(&file), (line, label)) {
                return Err(wrong(
                    line,
                    format!("names the image of line {before}"),
                    "give each image one line",
                ));
            }
        }
        Ok(Some(Self { at, column, labels }))
    }

    /// The labels of images.
    pub(crate) fn of<'a>(&self, images: impl Iterator<Item = &'a Path>) -> Result<Labels> {
        let mut texts = Texts::new(format!("{}, column '{}'", self.at, self.column), "line");
        for image in images {
            let Some((line, label)) = self.labels.get(&seen_as(image)) else {
                let what = format!("has no line in {}", self.at);
                return Err(Error::format(image.display(), what, "add one, or move the image away"));
            };
            texts.push(label, *line);
        }
        Ok(Labels::Texts(texts))
    }
}

/// Lines with their numbers.
fn csv(path: &Path, at: &str) -> Result<Vec<(u64, Line)>> {
    let file = std::fs::File::open(path).map_err(|e| Error::io(path, e))?;
    let mut reader = ReaderBuilder::new().trim(::csv::Trim::All).from_reader(BufReader::new(file));
    let wrong = |e: ::csv::Error| Error::format(at, format!("cannot be read: {e}"), "correct it");
    let header = reader.headers().map_err(wrong)?.clone();
    // Files of other systems begin with a mark of their encoding.
    let names: Vec<&str> = header.iter().map(|name| name.trim_start_matches('\u{feff}')).collect();
    let mut lines = Vec::new();
    for record in reader.records() {
        let record = record.map_err(wrong)?;
        let line = record.position().map_or(0, |position| position.line());
        let pairs = names.iter().zip(&record).map(|(name, value)| ((*name).to_owned(), value.to_owned()));
        lines.push((line, pairs.collect()));
    }
    Ok(lines)
}

/// Lines with their numbers.
fn jsonl(path: &Path, at: &str) -> Result<Vec<(u64, Line)>> {
    let file = std::fs::File::open(path).map_err(|e| Error::io(path, e))?;
    let mut lines = Vec::new();
    for (number, line) in (1..).zip(BufReader::new(file).lines()) {
        let line = line.map_err(|e| Error::io(path, e))?;
        if line.trim().is_empty() {
            continue;
        }
        let wrong = |what: String| Error::format(at, format!("line {number} {what}"), "correct it");
        let object = match serde_json::from_str(&line) {
            Ok(Value::Object(object)) => object,
            Ok(_) => return Err(wrong("is no object".to_owned())),
            Err(e) => return Err(wrong(format!("is no JSON: {e}"))),
        };
        let text = |value: Value| match value {
            Value::String(text) => Some(text),
            Value::Number(number) => Some(number.to_string()),
            Value::Bool(truth) => Some(truth.to_string()),
            // Boxes, lists and nothing are no labels.
            _ => None,
        };
        let pairs = object.into_iter().filter_map(|(name, value)| Some((name, text(value)?)));
        lines.push((number, pairs.collect()));
    }
    Ok(lines)
}
