//! `.h5ad` and `.h5`; the files and the script that made them lie in `files`.
#![cfg(feature = "hdf5")]
use crate::common::*;
use chandlery_datasets::{DataOptions, Dataset};
use std::path::{Path, PathBuf};

type BoxResult<T> = Result<T, Box<dyn std::error::Error>>;

const DENSE: [[f32; 6]; 4] =
    [[0., 1.5, 0., 0., -2., 0.], [0.; 6], [3., 0., 0., 4., 0., 5.], [0., 0., 0., 0., 0., 7.]];

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/files").join(name)
}

fn values(data: &Dataset) -> BoxResult<Vec<f32>> {
    Ok(bytemuck::pod_collect_to_vec(&all_rows(data.train.rows.as_ref())?))
}

#[test]
fn anndata_is_read_by_rows_by_columns_and_dense() -> TestResult {
    for (name, sparse) in [("csr.h5ad", true), ("csc.h5ad", true), ("dense.h5ad", false)] {
        let data = open_path(&file(name))?;
        assert_eq!(values(&data)?, DENSE.concat(), "{name}");
        assert_eq!(data.train.rows.is_sparse(), sparse);
        let options = DataOptions { max_rows: Some(1), memory_bytes: Some(1), ..DataOptions::default() };
        assert_eq!(values(&open_with(&file(name), options)?)?, DENSE[0], "{name}");
        let options = DataOptions { features: Some("layers/twice".to_owned()), ..DataOptions::default() };
        assert_eq!(
            values(&open_with(&file(name), options)?)?,
            DENSE.concat().iter().map(|x| 2. * x).collect::<Vec<_>>()
        );
    }
    Ok(())
}

#[test]
fn labels_are_categories_texts_and_whole_numbers_of_obs() -> TestResult {
    labels_of("csr.h5ad")
}

/// As before version 0.7 of AnnData.
#[test]
fn labels_are_fields_of_records_too() -> TestResult {
    labels_of("records.h5ad")?;
    let options = DataOptions { labels: Some("size".to_owned()), ..DataOptions::default() };
    let data = open_with(&file("records.h5ad"), options)?;
    assert_eq!((values(&data)?, data.train.labels), (DENSE.concat(), None));
    Ok(())
}

fn labels_of(name: &str) -> TestResult {
    let opened = |column: &str, max_rows| {
        let options = DataOptions { labels: Some(column.to_owned()), max_rows, ..DataOptions::default() };
        open_with(&file(name), options)
    };
    for (column, labels, names) in [
        ("kind", [2, 0, 2, 1], Some(vec!["B", "NK", "T"])),
        ("donor", [0, 1, 1, 0], Some(vec!["x", "y"])),
        ("batch", [1, 0, 1, 1], None),
    ] {
        let data = opened(column, None)?;
        assert_eq!(data.train.labels.as_deref(), Some(&labels[..]), "{column}");
        assert_eq!(data.class_names, names.map(|names| names.into_iter().map(str::to_owned).collect()));
        assert_eq!(opened(column, Some(3))?.train.labels.as_deref(), Some(&labels[..3]));
    }
    let text = message(opened("age", None), &file(""));
    assert!(text.contains("no column 'age'; there are: ") && text.contains("kind"), "{text}");
    Ok(())
}

#[test]
fn the_file_of_10x_genomics_has_a_row_for_each_barcode() -> TestResult {
    let data = open_path(&file("tenx.h5"))?;
    assert!(data.train.rows.is_sparse());
    assert_eq!(values(&data)?, DENSE.concat().iter().map(|x| x.round_ties_even()).collect::<Vec<_>>());
    Ok(())
}

#[test]
fn a_damaged_file_is_an_error_that_names_it() -> TestResult {
    let dir = tempfile::tempdir()?;
    for name in ["csr.h5ad", "dense.h5ad", "records.h5ad", "tenx.h5"] {
        let whole = std::fs::read(file(name))?;
        let path = dir.path().join(name);
        let mut n_refused = 0;
        for i in (0..whole.len()).step_by(397) {
            let mut bytes = whole.clone();
            bytes[i] ^= 0xff;
            std::fs::write(&path, &bytes)?;
            if let Err(e) = open_path(&path) {
                assert!(e.to_string().contains(name), "{e}");
                n_refused += 1;
            }
            std::fs::write(&path, &whole[..i])?;
            // What lies behind the matrix may be cut off.
            if let Err(e) = open_path(&path) {
                assert!(e.to_string().contains(name), "{e}");
                n_refused += 1;
            }
        }
        assert!(n_refused > whole.len() / 397 / 2, "{n_refused}");
    }
    Ok(())
}
