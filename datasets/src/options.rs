//! How a data set is read.
use crate::{Centre, Error, Result};
use serde::{Deserialize, Serialize};

/// What [`DataOptions::labels`] says where labels are not to be read.
pub const NO_LABELS: &str = "none";

/// What to make of images.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Colour {
    /// Grey images give one plane, colour images three; they may not be mixed. Palettes are looked
    /// up.
    #[default]
    AsStored,
    /// One plane of luma, 0.2126 R + 0.7152 G + 0.0722 B (Rec. 709), of the stored, gamma-coded
    /// values.
    Grey,
    /// Three planes, red, green, blue; a grey image gives the same plane three times.
    Rgb,
}

/// How to read a data set; each field has a default that fits the usual files.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DataOptions {
    /// Columns (hub, parquet, csv; several separated by commas) or array (safetensors, npz) of the
    /// rows.
    ///
    /// A column of a csv file may also be chosen by its number, counted from 0.
    ///
    /// Default: the image column, else the only column of vectors, else all numeric columns but the
    /// labels; the array named like training data, else the only one of two or more dimensions; `X`
    /// of `.h5ad`.
    pub features: Option<String>,
    /// Column or array of the labels, or for `.npy` and sparse matrices the path of a `.npy` file;
    /// [`NO_LABELS`]: labels are not read.
    ///
    /// Default: what the hub declares as class label, else a column or array called `label`,
    /// `labels`, `target` or the like, else the only column of texts of a csv file without a
    /// header; none for `.npy`. There may be up to [`MAX_CLASSES`](crate::MAX_CLASSES). Labels that
    /// are no classes are left out, which [`Dataset::notes`](crate::Dataset::notes) says.
    pub labels: Option<String>,
    /// Whether the first line of a table in text is a header. Default: guessed.
    pub header: Option<bool>,
    /// What parts the fields of a table in text; a space stands for any number of spaces and tabs.
    /// Default: guessed among comma, tab, semicolon and spaces.
    pub separator: Option<char>,
    /// Which of several sets of idx files in a folder: `letters` for
    /// `emnist-letters-train-images-idx3-ubyte`.
    pub subset: Option<String>,
    /// Configuration of a hub data set. Default: `default`, or the only one.
    pub config: Option<String>,
    /// Branch, tag or commit of a hub data set. Default: `refs/convert/parquet`, where the hub
    /// keeps data sets as parquet files.
    pub revision: Option<String>,
    /// Name of the training split: of a sub-folder, of files, or of the array of its rows
    /// (safetensors, npz). Default: `train`, or the only one.
    pub train_split: Option<String>,
    /// Name of the test split, in the same way; for a single table or array also another file
    /// beside it. Default: `test`, else `validation`, else none.
    pub test_split: Option<String>,
    /// Rows to keep of each split: as many of each class as can be in a folder of images, else
    /// those at the beginning. Default: all.
    pub max_rows: Option<usize>,
    /// What to make of images: as stored by default. Transparency is dropped; where one has 16 bits
    /// a channel, all become floats, 16 bits over 65,535 and bytes over 255.
    pub colour: Colour,
    /// What is subtracted from the columns of values in more than 32 bits before they are rounded
    /// to f32. Default: nothing.
    pub centre: Option<Centre>,
    /// Whether rows stay in their files as they are, for one who reads them in pieces: floats of 16
    /// bits in C order are mapped too, and values that are not finite are refused when a row is read
    /// in place of when its file is opened. By default files are read once when they are opened, and
    /// such floats become f32. Parquet is decoded in either case; files of it without rows are
    /// refused.
    pub stay: bool,
    /// Bytes of decoded rows of a split that may stay in memory; the rest goes to a temporary file
    /// that is mapped. Default 2 GiB.
    pub memory_bytes: Option<usize>,
}

impl DataOptions {
    pub(crate) fn memory_limit(&self) -> usize {
        self.memory_bytes.unwrap_or(2 << 30)
    }

    /// Refuses a choice of columns where there are none; `holds` says what there is.
    pub(crate) fn refuse_columns(&self, at: impl std::fmt::Display, holds: &str) -> Result<()> {
        refuse(at, holds, &self.features, "features")
    }

    /// Refuses a choice of labels where there is none; `holds` says what there is.
    pub(crate) fn refuse_labels(&self, at: impl std::fmt::Display, holds: &str) -> Result<()> {
        refuse(at, holds, &self.named_labels().map(str::to_owned), "labels")
    }

    /// Refuses a choice among sets where there is one.
    pub(crate) fn refuse_subset(&self, at: impl std::fmt::Display) -> Result<()> {
        refuse(at, "holds one set", &self.subset, "subset")
    }

    /// The labels that were chosen by name.
    pub(crate) fn named_labels(&self) -> Option<&str> {
        self.labels.as_deref().filter(|&name| name != NO_LABELS)
    }

    /// Whether labels are to be read.
    pub(crate) fn reads_labels(&self) -> bool {
        self.labels.as_deref() != Some(NO_LABELS)
    }

    /// Of `n` rows, how many to keep.
    pub(crate) fn rows_of(&self, n: usize) -> usize {
        self.max_rows.map_or(n, |max| max.min(n))
    }
}

fn refuse(at: impl std::fmt::Display, holds: &str, name: &Option<String>, option: &str) -> Result<()> {
    match name {
        None => Ok(()),
        Some(name) => Err(Error::format(
            at,
            format!("{holds}, and nothing to choose by '{name}'"),
            format!("leave out `DataOptions::{option}`"),
        )),
    }
}
