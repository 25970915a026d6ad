//! What can go wrong between a data set's name and a minibatch, one line each.
//!
//! Every message reads `where: what is wrong; what to do`, names the file or the hub id, and fits
//! on one line.
use std::path::Path;

/// The forms that [`open`](mod@crate::open) takes, for messages and help texts.
pub const FORMS: &str = "mnist-sample, mnist, fashion-mnist, hub:OWNER/NAME[@REVISION], a folder of idx files, images, parquet files, \
                         tables, arrays or 10x Genomics, or a file .npy, .npz, .safetensors, .parquet, .csv[.gz], .tsv[.gz], .txt[.gz], .mtx[.gz], \
                         .h5ad, .h5 or -ubyte[.gz]";

/// Names that a message lists.
pub(crate) const MAX_NAMES: usize = 20;

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The data specification is neither a known name nor a path.
    #[error(
        "data '{spec}': no such data set, file or folder; give one of: {forms}",
        forms = FORMS
    )]
    UnknownSpec {
        /// What was asked for.
        spec: String,
    },

    /// A path that must exist does not.
    #[error("{path}: no such file or folder; check the path")]
    NotFound {
        /// The path as given.
        path: String,
    },

    /// The operating system refused to read or write.
    #[error("{path}: {source}; check the path and its permissions")]
    Io {
        /// The file.
        path: String,
        /// What the operating system said.
        source: std::io::Error,
    },

    /// A file was read but does not hold what its format promises.
    #[error("{at}: {what}; {fix}")]
    Format {
        /// The file, or a place in it.
        at: String,
        /// What is wrong.
        what: String,
        /// What to do.
        fix: String,
    },

    /// A value is NaN or infinite.
    #[error("{at}: row {row}, column {column} is {value}; replace or drop such values and save again")]
    NotFinite {
        /// The file, tensor or column.
        at: String,
        /// Row, counted from 0.
        row: usize,
        /// Column of the row, counted from 0.
        column: usize,
        /// The value.
        value: f32,
    },

    /// A value has no logarithm.
    #[error(
        "log1p: row {row}, column {column}: values must be above -1, got {value}; shift the column, or leave log1p out and \
         use standardise or robust"
    )]
    OutOfDomain {
        /// Row, counted from 0, of the rows that were given.
        row: usize,
        /// Column of the row, counted from 0.
        column: usize,
        /// The value.
        value: f64,
    },

    /// The number of labels differs from the number of rows.
    #[error(
        "{at}: {} for {}; both must describe the same samples",
        crate::count(*n_labels, "label"),
        crate::count(*n_rows, "row")
    )]
    Labels {
        /// Where the labels came from.
        at: String,
        /// Rows found.
        n_rows: usize,
        /// Labels found.
        n_labels: usize,
    },

    /// A column, tensor, configuration or split of that name does not exist.
    #[error("{at}: no {kind} '{wanted}'; there are: {available}")]
    Missing {
        /// The file or hub id.
        at: String,
        /// `column`, `tensor`, `config` or `split`.
        kind: &'static str,
        /// The name asked for.
        wanted: String,
        /// Those that exist, separated by commas.
        available: String,
    },

    /// The Hugging Face hub could not deliver.
    #[error("hub {id}: {what}; {fix}")]
    Hub {
        /// `owner/name` of the data set.
        id: String,
        /// What went wrong.
        what: String,
        /// What to do.
        fix: String,
    },

    /// An argument out of range.
    #[error("{0}")]
    Argument(String),

    /// An error of candle, for instance no memory on the device.
    #[error(transparent)]
    Candle(#[from] candle::Error),
}

/// This crate's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// What a build without a feature says of what it cannot read.
    #[cfg(not(all(
        feature = "hub",
        feature = "image",
        feature = "parquet",
        feature = "hdf5",
        feature = "samples"
    )))]
    pub(crate) fn without(at: impl std::fmt::Display, what: &str, feature: &str) -> Self {
        Self::format(
            at,
            format!("this program was built without {what}"),
            format!("build it with the feature `{feature}` of chandlery-datasets"),
        )
    }

    pub(crate) fn format(
        at: impl std::fmt::Display,
        what: impl std::fmt::Display,
        fix: impl Into<String>,
    ) -> Self {
        Self::Format { at: printable(at), what: one_line(what), fix: printable(fix.into()) }
    }

    /// Of data without images where images are needed.
    pub(crate) fn no_images(at: impl std::fmt::Display) -> Self {
        Self::format(
            at,
            "its rows are not images, so that there are no patches in them",
            "give a data set of images",
        )
    }

    /// The same with another number of its row, where it is about a value.
    pub(crate) fn of_row(mut self, number: impl FnOnce(usize) -> usize) -> Self {
        if let Self::NotFinite { row, .. } | Self::OutOfDomain { row, .. } = &mut self {
            *row = number(*row);
        }
        self
    }

    pub(crate) fn io(path: &Path, source: std::io::Error) -> Self {
        let path = path.display().to_string();
        if source.kind() == std::io::ErrorKind::NotFound {
            Self::NotFound { path }
        } else {
            Self::Io { path, source }
        }
    }

    pub(crate) fn missing<S: AsRef<str>>(
        at: impl std::fmt::Display,
        kind: &'static str,
        wanted: &str,
        available: impl IntoIterator<Item = S>,
    ) -> Self {
        let mut names: Vec<String> = available.into_iter().map(|name| printable(name.as_ref())).collect();
        names.sort();
        names.dedup();
        if names.len() > MAX_NAMES {
            names.truncate(MAX_NAMES);
            names.push("…".to_owned());
        }
        let available = match names.is_empty() {
            true => "none".to_owned(),
            false => names.join(", "),
        };
        Self::Missing { at: printable(at), kind, wanted: printable(wanted), available }
    }
}

/// Messages of other crates may span lines; ours do not.
pub(crate) fn one_line(text: impl std::fmt::Display) -> String {
    printable(text.to_string().split_whitespace().collect::<Vec<_>>().join(" "))
}

/// Names in a damaged file may hold anything; a terminal should not be sent it.
fn printable(text: impl std::fmt::Display) -> String {
    text.to_string().replace(char::is_control, "\u{fffd}")
}
