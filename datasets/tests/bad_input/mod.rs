//! Bad files on disk: one clear line each that names the file and says what to do, never a panic.
mod arrays;
mod folders;
mod idx;
mod images;
mod labels;

use crate::common::*;
use chandlery_datasets::DataOptions;
use std::path::Path;

/// Writes `bytes` as `name` and returns the message of opening it.
fn refusal(name: &str, bytes: &[u8]) -> Result<String, Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir()?;
    std::fs::write(dir.path().join(name), bytes)?;
    Ok(message(open_path(&dir.path().join(name)), dir.path()))
}

/// Writes files and returns the message of opening their folder.
fn folder_refusal(files: &[(&str, Vec<u8>)]) -> Result<String, Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir()?;
    for (name, bytes) in files {
        let path = dir.path().join(name);
        std::fs::create_dir_all(path.parent().ok_or("no parent")?)?;
        std::fs::write(path, bytes)?;
    }
    Ok(message(open_path(dir.path()), dir.path()))
}

#[test]
fn unknown_name() {
    let spec = "mnits";
    assert_eq!(
        message(chandlery_datasets::open(spec, &DataOptions::default()), Path::new("/nowhere")),
        "data 'mnits': no such data set, file or folder; give one of: mnist-sample, mnist, fashion-mnist, \
         hub:OWNER/NAME[@REVISION], a folder of idx files, images, parquet files, tables, arrays or 10x Genomics, or a file .npy, .npz, \
         .safetensors, .parquet, .csv[.gz], .tsv[.gz], .txt[.gz], .mtx[.gz], .h5ad, .h5 or -ubyte[.gz]"
    );
}

#[test]
fn no_rows_asked_for() {
    let options = DataOptions { max_rows: Some(0), ..DataOptions::default() };
    assert_eq!(
        message(chandlery_datasets::open("mnist-sample", &options), Path::new("/nowhere")),
        "data: max_rows must be at least 1, got 0"
    );
}

#[test]
fn missing_file_of_each_kind() -> TestResult {
    let dir = tempfile::tempdir()?;
    for name in [
        "x.npy",
        "x.npz",
        "x.csv",
        "x.tsv.gz",
        "x.safetensors",
        "x.parquet",
        "x-idx3-ubyte",
        "x-idx3-ubyte.gz",
    ] {
        assert_eq!(
            message(open_path(&dir.path().join(name)), dir.path()),
            format!("DIR/{name}: no such file or folder; check the path")
        );
    }
    Ok(())
}

#[test]
fn a_folder_named_like_a_file_is_read_as_a_folder() -> TestResult {
    let dir = tempfile::tempdir()?;
    std::fs::create_dir(dir.path().join("x.npy"))?;
    assert_eq!(
        message(open_path(&dir.path().join("x.npy")), dir.path()),
        "DIR/x.npy: holds no images, idx files, parquet files, tables or arrays; images end in one of png, jpg, jpeg, bmp, tif, tiff, \
         webp, gif, pgm, ppm, pbm, pnm"
    );
    Ok(())
}

#[test]
fn empty_file_of_each_kind() -> TestResult {
    assert_eq!(
        refusal("x.npy", b"")?,
        "DIR/x.npy: wrong magic number: not a .npy file; write it with numpy.save"
    );
    assert_eq!(
        refusal("x.safetensors", b"")?,
        "DIR/x.safetensors: not a whole .safetensors file: header too small; copy or make the file again"
    );
    assert_eq!(
        refusal("x-ubyte", b"")?,
        "DIR/x-ubyte: truncated: the file ends within its header; download or copy the file again"
    );
    assert_eq!(
        refusal("x-ubyte.gz", b"")?,
        "DIR/x-ubyte.gz: truncated: the compressed data ends early; download or copy the file again"
    );
    Ok(())
}
