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
//! | a folder of images         | all of one size; sub-folders are classes, without them there are no labels; `train` and `test` sub-folders are splits |
//! | `FILE.npy`                 | numbers of any type, `[n, …]`; `[n, height, width]`, with or without 1 or 3 channels first or 1, 3 or 4 last, makes images |
//! | `FILE.npz`                 | an array as of `.npy`, perhaps labels, perhaps both again for testing                  |
//! | `FILE.safetensors`         | a tensor `[n, …]`, u8 or float, perhaps labels, perhaps both again for testing         |
//! | `FILE.parquet`             | an image column, a column of vectors, or numeric columns                               |
//! | `FILE.csv`, `.tsv`, `.txt`, `….gz` | numbers, a row a line, with or without a header; perhaps a column of labels    |
//! | `FILE.npz`, `.mtx`, `….gz`, `.h5ad`, `.h5`, a folder of 10x Genomics | sparse matrices: [`sparse`](crate::sparse)                   |
//! | `FILE-ubyte`, `….gz`       | one idx file                                                                           |
//!
//! A name wins over a path; write `./mnist` for a folder of that name. Plain files are mapped, not read: they must not be
//! changed while in use. Decoded rows live in memory up to [`DataOptions::memory_bytes`], then in a temporary file.
use crate::decode::AnyImages;
use crate::options::DataOptions;
use crate::{Dataset, Error, Result};
use std::path::Path;

/// Opens the data set that `spec` names; the [module](self) lists the forms.
///
/// # Errors
/// When `spec` is none of the forms, or what it names is missing, malformed or cannot be fetched. The message is one line
/// that names the file and says what to do.
pub fn open(spec: &str, options: &DataOptions) -> Result<Dataset> {
    if options.max_rows == Some(0) {
        return Err(Error::Argument("data: max_rows must be at least 1, got 0".to_owned()));
    }
    check_revision(spec, options)?;
    check_table_options(spec, options)?;
    let dataset = match spec {
        "mnist-sample" => crate::embedded::mnist_sample()?,
        "natural-images" => {
            return Err(Error::format(
                "data 'natural-images'",
                "is a set of photographs, whose crops or patches are rows",
                "ask for patches (--patch), or write ./natural-images for a folder",
            ));
        }
        _ if is_of_hub(spec) => of_hub(spec, options)?,
        _ => open_path(spec, options)?,
    };
    let mut dataset = truncate(dataset, options)?;
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
            "leave out the option for the revision",
        )),
        _ => Ok(()),
    }
}

/// Refuses what is said of tables in text, or of one of several sets, where there are none.
fn check_table_options(spec: &str, options: &DataOptions) -> Result<()> {
    let at = format!("data '{spec}'");
    if is_name(spec) {
        options.refuse_subset(&at)?;
    }
    let may_be_text = Path::new(spec).is_dir() || crate::delimited::is_file_name(&spec.to_ascii_lowercase());
    if (options.header.is_some() || options.separator.is_some()) && (is_name(spec) || !may_be_text) {
        return Err(Error::format(
            at,
            "is no table in text, which alone has a header and a separator",
            "leave out --header and --separator",
        ));
    }
    Ok(())
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

/// The training images of a data set that stores each by itself, of any sizes: of the hub, and in parquet files. None for others.
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

#[cfg(feature = "hdf5")]
use crate::sparse::hdf5::open as open_hdf5;

#[cfg(not(feature = "hdf5"))]
fn open_hdf5(path: &Path, _: &DataOptions) -> Result<Dataset> {
    Err(Error::without(path.display(), "HDF5", "hdf5"))
}

fn open_path(spec: &str, options: &DataOptions) -> Result<Dataset> {
    let path = Path::new(spec);
    if path.is_dir() {
        return crate::folder::open(path, options);
    }
    options.refuse_subset(format_args!("data '{spec}'"))?;
    let reader = file_reader(path)?;
    let lower = spec.to_ascii_lowercase();
    let ends = |endings: &[&str]| endings.iter().any(|ending| lower.ends_with(ending));
    let mut dataset = match ends(&[".npz", ".safetensors"]) {
        // Splits are arrays of the file.
        true => reader(path, options)?,
        false => crate::beside::with_test_file(path, options, reader)?,
    };
    if ends(&[".npy", ".npz", ".safetensors"]) || ends(&[".parquet"]) && dataset.is_of_vectors() {
        dataset.note_scale()?;
    }
    Ok(dataset)
}

/// Opens a file.
pub(crate) type FileReader = fn(&Path, &DataOptions) -> Result<Dataset>;

/// What opens a file, by its name.
pub(crate) fn file_reader(path: &Path) -> Result<FileReader> {
    let lower = path.display().to_string().to_ascii_lowercase();
    Ok(if lower.ends_with(".npy") {
        crate::npy::open
    } else if lower.ends_with(".npz") {
        crate::npz::open
    } else if lower.ends_with(".safetensors") {
        crate::tensors::open
    } else if lower.ends_with(".parquet") {
        crate::table::open
    } else if crate::delimited::is_file_name(&lower) {
        crate::delimited::open
    } else if crate::sparse::market::is_file_name(&lower) {
        crate::sparse::market::open
    } else if lower.ends_with(".h5ad") || lower.ends_with(".h5") {
        open_hdf5
    } else if crate::idx::is_idx_name(&lower) {
        crate::idx::open_file
    } else {
        return Err(Error::UnknownSpec { spec: path.display().to_string() });
    })
}
