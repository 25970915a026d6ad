//! Labels that are no class numbers, in every format that has labels.
use crate::common::*;
use chandlery_datasets::{DataOptions, MAX_CLASSES};
use std::collections::HashMap;

/// What follows the file's name and the row in the refusal of a label.
fn refused(label: i64) -> String {
    format!(
        " has label {label}, want class numbers below 65535; number the classes from 0 on, or choose other labels"
    )
}

#[test]
fn a_label_of_a_billion_leaves_the_labels_out() -> TestResult {
    assert_eq!(MAX_CLASSES, 65_535);
    let dir = tempfile::tempdir()?;
    let at = |name: &str| dir.path().join(name);
    for label in [65_535i64, 1_000_000, 1_000_000_000] {
        // .npy, labels in a second file.
        std::fs::write(at("x.npy"), npy("|u1", &[2, 1], &[0, 0]))?;
        let labels: Vec<u8> = [0, label].iter().flat_map(|v| v.to_le_bytes()).collect();
        std::fs::write(at("y.npy"), npy("<i8", &[2], &labels))?;
        let options =
            DataOptions { labels: Some(at("y.npy").display().to_string()), ..DataOptions::default() };
        assert_eq!(
            left_out(open_with(&at("x.npy"), options), dir.path()),
            format!("DIR/y.npy: row 1{}", refused(label))
        );
        // .safetensors.
        let device = candle::Device::Cpu;
        let tensors = HashMap::from([
            ("x", candle::Tensor::new(&[[1f32], [2.]], &device)?),
            ("labels", candle::Tensor::new(&[0, label], &device)?),
        ]);
        candle::safetensors::save(&tensors, at("x.safetensors"))?;
        assert_eq!(
            left_out(open_path(&at("x.safetensors")), dir.path()),
            format!("DIR/x.safetensors, tensor 'labels': row 1{}", refused(label))
        );
        // .parquet.
        let schema = "message schema { required double a; required int64 label; }";
        let leaves = vec![Leaf::Doubles(vec![1., 2.]), Leaf::Longs(vec![0, label], vec![])];
        std::fs::write(at("x.parquet"), parquet(schema, None, &[leaves])?)?;
        assert_eq!(
            left_out(open_path(&at("x.parquet")), dir.path()),
            format!("DIR/x.parquet, column 'label': row 1{}", refused(label))
        );
    }
    Ok(())
}

#[test]
fn the_largest_class_number_is_read() -> TestResult {
    let dir = tempfile::tempdir()?;
    let at = |name: &str| dir.path().join(name);
    std::fs::write(at("x.npy"), npy("|u1", &[1, 1], &[0]))?;
    std::fs::write(at("y.npy"), npy("<u4", &[1], &65_534u32.to_le_bytes()))?;
    let options = DataOptions { labels: Some(at("y.npy").display().to_string()), ..DataOptions::default() };
    assert_eq!(open_with(&at("x.npy"), options)?.n_classes(), MAX_CLASSES);
    Ok(())
}

#[test]
fn more_texts_than_classes_are_allowed_are_left_out() -> TestResult {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("x.parquet");
    let n = MAX_CLASSES + 1;
    let names = (0..n).map(|i| i.to_string().into_bytes()).collect();
    let schema = "message schema { required double a; required binary label (UTF8); }";
    let leaves = vec![Leaf::Doubles(vec![0.; n]), Leaf::Bytes(names, vec![])];
    std::fs::write(&path, parquet(schema, None, &[leaves])?)?;
    assert_eq!(
        left_out(open_path(&path), dir.path()),
        "DIR/x.parquet, column 'label': has 65536 classes, want at most 65535; choose other labels"
    );
    Ok(())
}

#[test]
fn a_label_beyond_the_classes_that_the_file_names_is_refused() -> TestResult {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("x.parquet");
    std::fs::write(&path, image_parquet(&[png(1, 1, &[0])?, png(1, 1, &[1])?], &[2, 3], 2)?)?;
    assert_eq!(
        message(open_path(&path), dir.path()),
        "DIR/x.parquet, column 'label': row 1 has label 3, but it names 3 classes; correct the labels, or choose others"
    );
    Ok(())
}
