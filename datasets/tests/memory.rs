//! Data in memory: tensors in and out, and splits made of others.
#![allow(clippy::unwrap_used)]
use crate::common::*;
use candle::{DType, Device::Cpu, Tensor};
use chandlery_datasets::{
    DataOptions, Dataset, Error, Feed, FeedConfig, ImageShape, RowType, SparseRows, Split,
};
use chandlery_ops::codes::{Pursuit, SparseCodes, bomp};
use std::path::Path;

/// Rows `[10 i, 10 i + 1]` of f32 with labels `i % n_classes`.
fn counted(n: u32, n_classes: u32) -> Split {
    let values = (0..n).flat_map(|i| [10 * i, 10 * i + 1]).map(|x| x as f32).collect();
    Split::from_f32(values, 2, Some((0..n).map(|i| i % n_classes).collect())).unwrap()
}

fn rows(split: &Split) -> Vec<Vec<f32>> {
    split.raw(&Cpu).unwrap().to_dtype(DType::F32).unwrap().to_vec2().unwrap()
}

fn refused<T: std::fmt::Debug>(result: chandlery_datasets::Result<T>) -> String {
    message(result, Path::new("nowhere"))
}

#[test]
fn tensors_of_all_types_are_rows_and_labels() -> TestResult {
    let whole = Tensor::new(&[[0u32, 1, 2], [3, 4, 255]], &Cpu)?;
    for dtype in [DType::U8, DType::U32, DType::I64, DType::F16, DType::BF16, DType::F32, DType::F64] {
        let labels = Tensor::new(&[[3u32], [1]], &Cpu)?.to_dtype(dtype)?;
        let split = Split::from_tensors(&whole.to_dtype(dtype)?, Some(&labels))?;
        assert_eq!(rows(&split), [[0., 1., 2.], [3., 4., 255.]], "{dtype:?}");
        assert_eq!(split.labels.as_deref(), Some(&[3, 1][..]), "{dtype:?}");
        assert_eq!(split.row_type(), if dtype == DType::U8 { RowType::U8 } else { RowType::F32 });
    }
    // A view, and images by shape: channels first, last and none.
    let split = Split::from_tensors(&whole.t()?, None)?;
    assert_eq!(rows(&split), [[0., 3.], [1., 4.], [2., 255.]]);
    for (shape, image) in [
        (vec![1, 2, 3], Some(ImageShape::grey(2, 3))),
        (vec![1, 3, 2, 1], Some(ImageShape { height: 2, width: 1, channels: 3 })),
        (vec![1, 2, 1, 3], Some(ImageShape { height: 2, width: 1, channels: 3 })),
        (vec![1, 6], None),
    ] {
        let split = Split::from_tensors(&whole.reshape(shape.clone())?, None)?;
        assert_eq!((split.image, split.n_features()), (image, 6), "{shape:?}");
    }
    // Channels that lie side by side are put into planes.
    assert_eq!(
        rows(&Split::from_tensors(&whole.reshape((1, 2, 1, 3))?, None)?),
        [[0., 3., 1., 4., 2., 255.]]
    );
    Ok(())
}

#[test]
fn tensors_that_are_no_rows_or_labels_are_refused_in_a_line() -> TestResult {
    let rows = Tensor::zeros((2, 3), DType::F32, &Cpu)?;
    let labelled = |labels: Tensor| refused(Split::from_tensors(&rows, Some(&labels)));
    assert_eq!(
        refused(Split::from_tensors(&Tensor::zeros(3, DType::F32, &Cpu)?, None)),
        "Split::from_tensors: rows must have shape [n_samples, n_features], got [3]"
    );
    assert_eq!(
        labelled(Tensor::new(&[0u32, 1, 2], &Cpu)?),
        "Split: 3 labels for 2 rows; both must describe the same samples"
    );
    assert_eq!(
        labelled(Tensor::new(&[0f32, 1.5], &Cpu)?),
        "Split::from_tensors, labels: row 1 has label 1.5; labels are class numbers from 0 on"
    );
    assert_eq!(
        labelled(Tensor::new(&[0i64, -1], &Cpu)?),
        "Split::from_tensors, labels: row 1 has label -1; labels are class numbers from 0 on"
    );
    assert_eq!(
        labelled(rows.clone()),
        "Split::from_tensors, labels: have shape [2, 3], want [n_samples]; give one class number a row"
    );
    // 2^24 + 1 would become 2^24, the largest i64 one more than itself.
    for number in [16_777_217, i64::MAX] {
        assert_eq!(
            refused(Split::from_tensors(&Tensor::new(&[[1, 2], [3, number]], &Cpu)?, None)),
            format!(
                "Split::from_tensors: row 1, column 1 is {number}, which f32 does not hold; convert rows to floats first"
            )
        );
    }
    let whole = Tensor::new(&[[1i64 << 40]], &Cpu)?;
    assert_eq!(rows_of(&whole)?, [[(1i64 << 40) as f32]], "which f32 holds");
    Ok(())
}

fn rows_of(tensor: &Tensor) -> Result<Vec<Vec<f32>>, Error> {
    Ok(rows(&Split::from_tensors(tensor, None)?))
}

#[test]
fn minibatches_as_an_iterator_are_those_of_the_feed_and_live_on() -> TestResult {
    for resident_bytes in [None, Some(1 << 20)] {
        let config = FeedConfig { chunk_bytes: 16, resident_bytes, ..FeedConfig::new(3, 5) };
        let mut feed = Feed::new(&counted(10, 3), &Cpu, config)?;
        // All at once, though the feed writes over its views.
        let all = feed.epoch(2)?.collect::<Result<Vec<_>, _>>()?;
        assert_eq!(all.len(), feed.n_batches());
        feed.start_epoch(2, 0)?;
        for own in &all {
            let view = feed.next()?.ok_or("as many")?;
            assert_eq!(own.rows.to_vec2::<f32>()?, view.rows.to_vec2::<f32>()?);
            let labels = |of: &Option<Tensor>| of.as_ref().unwrap().to_vec1::<u32>().unwrap();
            assert_eq!(labels(&own.labels), labels(&view.labels));
        }
    }
    let in_order =
        counted(10, 3).batches(4, &Cpu)?.map(|batch| batch.unwrap().rows.to_vec2::<f32>().unwrap());
    assert_eq!(in_order.flatten().collect::<Vec<_>>(), rows(&counted(10, 3)));
    Ok(())
}

#[test]
fn pairs_and_samples_come_back_as_the_same_split() -> TestResult {
    let split = counted(7, 3);
    let back = Split::from_batches(split.batches(3, &Cpu)?.pairs())?;
    assert_eq!((rows(&back), &back.labels), (rows(&split), &split.labels));
    let back = Split::from_batches(split.samples(&Cpu)?)?;
    assert_eq!((rows(&back), &back.labels), (rows(&split), &split.labels));
    // Bytes are over 255 there.
    let bytes = Split::from_u8(vec![0, 51, 255], 1, Some(vec![0, 1, 2]))?;
    let pairs = bytes.batches(3, &Cpu)?.pairs().collect::<Result<Vec<_>, _>>()?;
    assert_eq!(pairs[0].0.to_vec2::<f32>()?, bytes.to_tensor(&Cpu)?.to_vec2::<f32>()?);
    let unlabelled = Split::from_u8(vec![1], 1, None)?;
    assert_eq!(
        refused(unlabelled.samples(&Cpu).map(drop)),
        "Split::samples: rows must have labels, and these have none"
    );
    assert!(unlabelled.batches(1, &Cpu)?.pairs().next().is_some_and(|pair| pair.is_err()));
    Ok(())
}

#[test]
fn map_changes_rows_when_they_are_read() -> TestResult {
    let split = counted(1000, 3);
    let doubled = split.map(|rows| rows.affine(2., 1.))?;
    let want: Vec<Vec<f32>> =
        rows(&split).iter().map(|row| row.iter().map(|x| 2. * x + 1.).collect()).collect();
    assert_eq!((rows(&doubled), &doubled.labels), (want, &split.labels));
    let sums = split.map(|rows| rows.sum_keepdim(1))?;
    assert_eq!((sums.n_features(), rows(&sums.select(&[7, 2])?)), (1, vec![vec![141.], vec![41.]]));
    // Bytes stay bytes where they are made, and images images.
    let image = Some(ImageShape::grey(1, 2));
    let bytes = Split::from_u8(vec![1, 2, 3, 4], 2, None)?.with_image(image)?;
    let same = bytes.map(|rows| Ok(rows.clone()))?;
    assert_eq!((same.row_type(), same.image), (RowType::U8, image));
    assert_eq!(bytes.map(|rows| rows.narrow(1, 0, 1))?.image, None);
    // Refused at once, or when read.
    assert_eq!(
        refused(split.map(|rows| rows.sum(1))),
        "Split::map: [1, m] must come of as many rows, got [1]"
    );
    assert_eq!(
        refused(split.map(|rows| rows.to_dtype(DType::U32))),
        "Split::map: rows must become u8 or floats, got U32"
    );
    let fails = split.map(|rows| (rows - 10.)?.recip())?;
    assert_eq!(
        refused(fails.raw(&Cpu)),
        "Split::map: row 1, column 0 is inf; replace or drop such values and save again"
    );
    Ok(())
}

#[test]
fn filter_keeps_what_it_is_told_and_its_labels() -> TestResult {
    let split = counted(10, 3);
    let some = split.filter(|row, label| row[0] >= 30. && label == Some(1))?;
    assert_eq!(
        (rows(&some), some.labels.as_deref()),
        (vec![vec![40., 41.], vec![70., 71.]], Some(&[1, 1][..]))
    );
    assert_eq!(rows(&split.filter_labels(|label| label == 1)?).len(), 3);
    assert_eq!(
        refused(split.filter(|_, _| false)),
        format!("Split: rows must number between 1 and {}, got 0", u32::MAX)
    );
    // An error of the caller's own comes out.
    let error = split.try_filter(|row, _| match row[0] {
        50. => Err(Box::<dyn std::error::Error>::from("fifty")),
        _ => Ok(true),
    });
    assert_eq!(error.unwrap_err().to_string(), "fifty");
    Ok(())
}

#[test]
fn concat_is_one_split_after_the_other() -> TestResult {
    let (a, b) = (counted(3, 3), counted(5, 2).select(&[4, 0])?);
    let both = Split::concat(&[a.clone(), b.clone(), a.clone()])?;
    let want = [rows(&a), rows(&b), rows(&a)].concat();
    assert_eq!((rows(&both), both.labels.as_deref()), (want.clone(), Some(&[0, 1, 2, 0, 0, 0, 1, 2][..])));
    assert_eq!(rows(&both.select(&[7, 3, 0, 4])?), [7, 3, 0, 4].map(|i: usize| want[i].clone()));
    assert_eq!(both.rows.origin(3), 4, "its place in its own file");
    let bytes = Split::from_u8(vec![1, 2], 2, Some(vec![0]))?;
    for (other, what) in [
        (bytes, "type"),
        (Split::from_f32(vec![1.], 1, Some(vec![0]))?, "n_features"),
        (Split::from_f32(vec![1., 2.], 2, None)?, "labels or none"),
        (a.clone().with_image(Some(ImageShape::grey(1, 2)))?, "image"),
    ] {
        assert_eq!(
            refused(Split::concat(&[a.clone(), other])),
            format!("Split::concat: all parts must have the same {what}, but part 1 differs from part 0")
        );
    }
    Ok(())
}

#[test]
fn a_split_has_as_much_of_each_class_on_both_sides() -> TestResult {
    // 60 of class 0, 30 of class 1 and 10 of class 2.
    let labels: Vec<u32> = (0..100).map(|i| [0, 0, 0, 0, 0, 0, 1, 1, 1, 2][i % 10]).collect();
    let split = Split::from_f32((0..100).map(|x| x as f32).collect(), 1, Some(labels))?;
    let (train, test) = split.split(0.2, 7)?;
    let count = |split: &Split| {
        [0, 1, 2].map(|c| split.labels.iter().flat_map(|l| l.iter()).filter(|l| **l == c).count())
    };
    assert_eq!((count(&train), count(&test)), ([48, 24, 8], [12, 6, 2]));
    let mut all = [rows(&train), rows(&test)].concat();
    assert!(rows(&train).is_sorted_by(|a, b| a[0] < b[0]) && rows(&test).is_sorted_by(|a, b| a[0] < b[0]));
    all.sort_by(|a, b| a[0].total_cmp(&b[0]));
    assert_eq!(all, rows(&split), "each row on one side");
    assert_eq!(rows(&split.split(0.2, 7)?.1), rows(&test));
    assert_ne!(rows(&split.split(0.2, 8)?.1), rows(&test));
    for fraction in [0., 0.001, 1., f64::NAN, -1.] {
        assert_eq!(
            refused(split.split(fraction, 0)),
            format!("Split::split: fraction must leave rows on both sides, got {fraction} of 100")
        );
    }
    let data = Dataset::from_tensors(&split.raw(&Cpu)?, split.labels_tensor(&Cpu)?.as_ref())?;
    let data = data.split(0.1, 3)?.map_splits(|split| split.map(|rows| rows.affine(0.5, 0.)))?;
    assert_eq!((data.train.n_samples(), data.test.map(|test| test.n_samples())), (90, Some(10)));
    Ok(())
}

#[test]
fn doors_open_their_form_whatever_the_name_ends_in() -> TestResult {
    use chandlery_datasets::open::{csv, image_folder, npy};
    let dir = tempfile::tempdir()?;
    let at = |name: &str| dir.path().join(name);
    std::fs::write(at("table"), "a,b\n1,2\n3,4.5\n")?;
    let options = DataOptions { max_rows: Some(1), ..DataOptions::default() };
    let data = csv(at("table"), &options)?;
    assert_eq!(
        (rows(&data.train), data.column_names),
        (vec![vec![1., 2.]], Some(vec!["a".into(), "b".into()]))
    );
    assert!(message(npy(at("table"), &options), dir.path()).starts_with("DIR/table: wrong magic number"));
    assert!(message(csv(at("none"), &options), dir.path()).starts_with("DIR/none: no such file"));
    std::fs::rename(at("table"), at("x.csv"))?;
    assert_eq!(
        message(image_folder(dir.path(), &options), dir.path()).split(';').next(),
        Some("DIR: holds no images, idx files, parquet files, tables or arrays")
    );
    assert_eq!(
        message(npy(at("x.csv"), &DataOptions { header: Some(true), ..options }), dir.path()),
        "data 'DIR/x.csv': is no table in text, which alone has a header and a separator; leave out `DataOptions::header` and \
         `DataOptions::separator`"
    );
    Ok(())
}

#[test]
fn sparse_rows_and_codes_come_from_tensors_and_go_back() -> TestResult {
    let dense = Tensor::new(&[[0f32, 1.5, 0., -2.], [0., 0., 0., 0.], [3., 0., 0., 4.]], &Cpu)?;
    let same = |a: &Tensor| assert_eq!(a.to_vec2::<f32>().unwrap(), dense.to_vec2::<f32>().unwrap());
    let sparse = SparseRows::try_from(&dense)?;
    assert_eq!(sparse.n_entries(), 4);
    same(&Tensor::try_from(&sparse)?);
    let codes = SparseCodes::try_from(&dense)?;
    assert_eq!((codes.width(), codes.count.to_vec1::<u32>()?), (2, vec![2, 0, 2]));
    same(&Tensor::try_from(&codes)?);
    same(&Tensor::try_from(&SparseRows::try_from(&codes)?)?);
    let doubles = dense.to_dtype(DType::F64)?;
    assert_eq!(
        Tensor::try_from(&SparseCodes::try_from(&doubles)?)?.to_vec2::<f64>()?,
        doubles.to_vec2::<f64>()?
    );
    assert_eq!(
        refused(SparseRows::try_from(&doubles)),
        "SparseRows: rows must be f16, bf16 or f32, got F64; convert them first"
    );
    // What a pursuit gives.
    let atoms = Tensor::new(&[[1f32, 0., 0.], [0., 1., 0.], [0., 0., 1.], [0.6, 0.8, 0.]], &Cpu)?;
    let signals = Tensor::new(&[[0f32, 2., 1.], [3., 4., 0.]], &Cpu)?;
    let codes = bomp(&signals, &atoms, &Pursuit::new(2))?;
    let sparse = Tensor::try_from(&SparseRows::try_from(&codes)?)?;
    assert_eq!(sparse.to_vec2::<f32>()?, codes.to_dense()?.to_vec2::<f32>()?);
    Ok(())
}

#[test]
fn options_are_saved_and_read_again() -> TestResult {
    let options = DataOptions {
        features: Some("a,b".to_owned()),
        separator: Some(';'),
        centre: Some(chandlery_datasets::Centre::new(vec![1., 0.1])),
        ..DataOptions::default()
    };
    let back: DataOptions = serde_json::from_str(&serde_json::to_string(&options)?)?;
    assert_eq!(back.centre.as_ref().and_then(|c| c.values()), Some(&[1., 0.1][..]));
    // Centres are equal where they are one and the same.
    let without = |options: DataOptions| DataOptions { centre: None, ..options };
    assert_eq!(without(back), without(options));
    assert_eq!(serde_json::from_str::<DataOptions>("{}")?, DataOptions::default());
    let config = FeedConfig::new(7, 1);
    assert_eq!(serde_json::from_str::<FeedConfig>(&serde_json::to_string(&config)?)?, config);
    Ok(())
}
