//! The one way in: [`open`] takes what a user types after `--data`.
//!
//! | specification              | what it opens                                                                          |
//! |----------------------------|----------------------------------------------------------------------------------------|
//! | `mnist-sample`             | 5,000 training and 1,000 test digits embedded in this crate                            |
//! | `mnist`, `fashion-mnist`   | the full sets, from the Hugging Face hub                                               |
//! | `hub:OWNER/NAME[@REVISION]` | any image or vector data set of the hub: its parquet branch, or the parquet files of another branch, a tag or a commit |
//! | a folder of idx files      | `train-images-idx3-ubyte`, `t10k-…`, plain or `.gz`                                    |
//! | a folder of parquet files  | `train*.parquet`, `test*.parquet`                                                      |
//! | a folder of tables or arrays | `train.csv`, `test.csv`; `X_train.npy`, `y_train.npy`, `X_test.npy`, …               |
//! | a folder of shards         | `.safetensors` or `.npy` files, also in folders below it, one after the other |
//! | a folder of images         | all of one size; sub-folders are classes, without them there are no labels; `train` and `test` sub-folders are splits |
//! | `FILE.npy`                 | numbers of any type, `[n, …]`; `[n, height, width]`, with or without 1 or 3 channels first or 1, 3 or 4 last, makes images |
//! | `FILE.npz`                 | an array as of `.npy`, perhaps labels, perhaps both again for testing                  |
//! | `FILE.safetensors`         | a tensor `[n, …]`, u8 or float, perhaps labels, perhaps both again for testing         |
//! | `FILE.parquet`             | an image column, a column of vectors, or numeric columns                               |
//! | `FILE.csv`, `.tsv`, `.txt`, `….gz` | numbers, a row a line, with or without a header; perhaps a column of labels    |
//! | `FILE.npz`, `.mtx`, `….gz`, `.h5ad`, `.h5`, a folder of 10x Genomics | sparse matrices: [`sparse`](crate::sparse)                   |
//! | `FILE-ubyte`, `….gz`       | one idx file                                                                           |
//!
//! [`csv()`], [`parquet()`], [`image_folder`] and the like open one form each, whatever names end
//! in.
//!
//! A name wins over a path; write `./mnist` for a folder of that name. Plain files are mapped, not
//! read: they must not be changed while in use. Decoded rows live in memory up to
//! [`DataOptions::memory_bytes`], then in a temporary file.
use crate::decode::AnyImages;
use crate::formats::{Format, format_of};
use crate::options::DataOptions;
use crate::{Dataset, Error, Result};
use std::path::Path;

/// Opens the data set that `spec` names; the [module](self) lists the forms.
///
/// # Errors
/// When `spec` is none of the forms, or what it names is missing, malformed or cannot be fetched.
/// The message is one line that names the file and says what to do.
pub fn open(spec: &str, options: &DataOptions) -> Result<Dataset> {
    let path = Path::new(spec);
    let may_be_text = path.is_dir() || crate::delimited::is_file_name(&spec.to_ascii_lowercase());
    opened(spec, may_be_text && !is_name(spec), options, || {
        if is_name(spec) {
            options.refuse_subset(format_args!("data '{spec}'"))?;
        }
        match spec {
            "mnist-sample" => crate::embedded::mnist_sample(),
            "natural-images" => Err(Error::format(
                "data 'natural-images'",
                "is a set of photographs, whose crops or patches are rows",
                "ask for patches, or write ./natural-images for a folder",
            )),
            _ if is_of_hub(spec) => of_hub(spec, options),
            _ if path.is_dir() => crate::folder::open(path, options),
            _ => {
                options.refuse_subset(format_args!("data '{spec}'"))?;
                of_file(path, format_of(path)?, options)
            }
        }
    })
}

/// What `read` gives, with what holds for all data sets.
fn opened(
    spec: &str,
    may_be_text: bool,
    options: &DataOptions,
    read: impl FnOnce() -> Result<Dataset>,
) -> Result<Dataset> {
    if options.max_rows == Some(0) {
        return Err(Error::Argument("data: max_rows must be at least 1, got 0".to_owned()));
    }
    check_revision(spec, options)?;
    if (options.header.is_some() || options.separator.is_some()) && !may_be_text {
        return Err(Error::format(
            format!("data '{spec}'"),
            "is no table in text, which alone has a header and a separator",
            "leave out `DataOptions::header` and `DataOptions::separator`",
        ));
    }
    let mut dataset = truncate(read()?, options)?;
    dataset.name = spec.to_owned();
    if !options.reads_labels() {
        for split in std::iter::once(&mut dataset.train).chain(&mut dataset.test) {
            split.labels = None;
        }
        (dataset.class_names, dataset.left_out_labels) = (None, None);
    }
    dataset.note_counting_columns()?;
    tracing::info!(
        data = spec,
        train = dataset.train.n_samples(),
        test = dataset.test.as_ref().map_or(0, |split| split.n_samples()),
        n_features = dataset.n_features(),
        "opened"
    );
    Ok(dataset)
}

/// Opens a file, with another beside it to test on where the options name one.
fn of_file(path: &Path, format: Format, options: &DataOptions) -> Result<Dataset> {
    let mut dataset = match format.has_splits {
        true => (format.read)(path, options)?,
        false => crate::beside::with_test_file(path, options, format)?,
    };
    if (format.has_scale)(&dataset) {
        dataset.note_scale()?;
    }
    Ok(dataset)
}

/// Doors for files of one format each, whatever their names end in.
macro_rules! doors {
    ($($(#[$doc:meta])* $name:ident: $format:ident;)*) => {$(
        $(#[$doc])*
        ///
        /// # Errors
        /// Those of [`open`].
        pub fn $name(path: impl AsRef<Path>, options: &DataOptions) -> Result<Dataset> {
            let (path, format) = (path.as_ref(), crate::formats::$format);
            let spec = path.display().to_string();
            opened(&spec, format.is_text, options, || {
                options.refuse_subset(format_args!("data '{spec}'"))?;
                of_file(path, format, options)
            })
        }
    )*};
}

doors! {
    /// Opens a table in text, plain or `.gz`.
    csv: CSV;
    /// Opens a file of parquet.
    parquet: PARQUET;
    /// Opens an array of NumPy, `.npy`.
    npy: NPY;
    /// Opens an archive of NumPy, `.npz`, of arrays or of a sparse matrix.
    npz: NPZ;
    /// Opens a file of safetensors.
    safetensors: SAFETENSORS;
    /// Opens a file of idx, plain or `.gz`, with the labels beside it.
    idx: IDX;
    /// Opens a matrix of Matrix Market, plain or `.gz`.
    matrix_market: MATRIX_MARKET;
    /// Opens a file of HDF5: of AnnData or 10x Genomics.
    hdf5: HDF5;
}

/// Opens a folder of images, whatever else lies in it.
///
/// # Errors
/// Those of [`open`].
pub fn image_folder(path: impl AsRef<Path>, options: &DataOptions) -> Result<Dataset> {
    let path = path.as_ref();
    let spec = path.display().to_string();
    opened(&spec, false, options, || {
        options.refuse_subset(format_args!("data '{spec}'"))?;
        crate::folder::open_images(path, options)
    })
}

/// Whether `spec` is the name of a data set, which wins over a path of the same name.
pub fn is_name(spec: &str) -> bool {
    matches!(spec, "mnist-sample" | "natural-images") || is_of_hub(spec)
}

fn is_of_hub(spec: &str) -> bool {
    matches!(spec, "mnist" | "fashion-mnist") || spec.starts_with("hub:")
}

/// Refuses a revision of what has none.
fn check_revision(spec: &str, options: &DataOptions) -> Result<()> {
    match &options.revision {
        Some(revision) if !is_of_hub(spec) => Err(Error::format(
            format!("data '{spec}'"),
            format!("only data of the hub have revisions, got {revision}"),
            "leave out `DataOptions::revision`",
        )),
        _ => Ok(()),
    }
}

/// A data set of the hub, by its name or `hub:OWNER/NAME`.
#[cfg(feature = "hub")]
fn of_hub(spec: &str, options: &DataOptions) -> Result<Dataset> {
    use crate::hub;
    match spec {
        "mnist" => hub::open_known(&hub::MNIST, options),
        "fashion-mnist" => hub::open_known(&hub::FASHION_MNIST, options),
        _ => hub::open(spec.strip_prefix("hub:").unwrap_or(spec), options),
    }
}

#[cfg(not(feature = "hub"))]
fn of_hub(spec: &str, _: &DataOptions) -> Result<Dataset> {
    Err(Error::without(spec, "the Hugging Face hub", "hub"))
}

/// The training images of a data set that stores each by itself, of any sizes: of the hub, and in
/// parquet files. None for others.
pub(crate) fn any_images(spec: &str, options: &DataOptions) -> Result<Option<AnyImages>> {
    check_revision(spec, options)?;
    match spec {
        "mnist-sample" => Ok(None),
        _ if is_of_hub(spec) => images_of_hub(spec, options).map(Some),
        _ => crate::table::images_at(Path::new(spec), options),
    }
}

#[cfg(feature = "hub")]
fn images_of_hub(spec: &str, options: &DataOptions) -> Result<AnyImages> {
    use crate::hub;
    match spec {
        "mnist" => hub::images_of_known(&hub::MNIST, options),
        "fashion-mnist" => hub::images_of_known(&hub::FASHION_MNIST, options),
        _ => hub::images(spec.strip_prefix("hub:").unwrap_or(spec), options),
    }
}

#[cfg(not(feature = "hub"))]
fn images_of_hub(spec: &str, _: &DataOptions) -> Result<AnyImages> {
    Err(Error::without(spec, "the Hugging Face hub", "hub"))
}

/// Readers keep `max_rows` already where that saves work; this covers the others.
fn truncate(mut dataset: Dataset, options: &DataOptions) -> Result<Dataset> {
    if let Some(max) = options.max_rows {
        dataset.train = dataset.train.take(max)?;
        dataset.test = dataset.test.map(|test| test.take(max)).transpose()?;
    }
    Ok(dataset)
}
