//! `.npz`: arrays by the names that NumPy, Keras and scikit-learn give them, stored and deflated;
//! and what is refused.
use crate::common::*;
use candle::Device;
use chandlery_datasets::{DataOptions, Dataset, ImageShape, RowType};

type BoxResult<T> = Result<T, Box<dyn std::error::Error>>;

fn opened(bytes: &[u8], options: DataOptions) -> BoxResult<Dataset> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("x.npz");
    std::fs::write(&path, bytes)?;
    Ok(open_with(&path, options)?)
}

fn refusal(bytes: &[u8], options: DataOptions) -> BoxResult<String> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("x.npz");
    std::fs::write(&path, bytes)?;
    Ok(message(open_with(&path, options), dir.path()))
}

/// Arrays of bytes `[2, 1, 2]` and `[1, 1, 2]`, with labels.
fn keras() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("x_test", npy("|u1", &[1, 1, 2], &[9, 8])),
        ("x_train", npy("|u1", &[2, 1, 2], &[1, 2, 3, 4])),
        ("y_train", npy("|u1", &[2], &[5, 0])),
        ("y_test", npy("|u1", &[1], &[3])),
    ]
}

#[test]
fn the_archive_of_keras_gives_both_splits_their_labels_and_the_shape_of_images() -> TestResult {
    for deflated in [false, true] {
        for memory_bytes in [None, Some(1)] {
            let options = DataOptions { memory_bytes, ..DataOptions::default() };
            let data = opened(&npz(&keras(), deflated)?, options)?;
            assert_eq!(data.image(), Some(ImageShape::grey(1, 2)));
            assert_eq!(data.train.row_type(), RowType::U8);
            assert_eq!(all_rows(data.train.rows.as_ref())?, [1, 2, 3, 4]);
            assert_eq!(data.train.labels.as_deref(), Some(&[5u32, 0][..]));
            let test = data.test.ok_or("no test split")?;
            assert_eq!(all_rows(test.rows.as_ref())?, [9, 8]);
            assert_eq!(test.labels.as_deref(), Some(&[3u32][..]));
        }
    }
    Ok(())
}

#[test]
fn rows_of_every_order_and_type_are_read_as_from_npy() -> TestResult {
    let header = "{'descr': '>f8', 'fortran_order': True, 'shape': (2, 3), }";
    let values: Vec<u8> = [1f64, 4., 2., 5., 3., 6.].iter().flat_map(|v| v.to_be_bytes()).collect();
    let arrays = [
        ("data", npy_with_header(header, &values)),
        ("target", npy(">i8", &[2, 1], &[0i64.to_be_bytes(), 1i64.to_be_bytes()].concat())),
    ];
    for deflated in [false, true] {
        let data = opened(&npz(&arrays, deflated)?, DataOptions::default())?;
        assert_eq!(data.train.to_tensor(&Device::Cpu)?.to_vec2::<f32>()?, [[1., 2., 3.], [4., 5., 6.]]);
        assert_eq!(data.train.labels.as_deref(), Some(&[0u32, 1][..]));
        assert!(data.test.is_none());
    }
    let rows = npy("<f4", &[2, 1], &f32s(&[7., 8.]));
    for name in ["arr_0", "x", "X", "train", "codes"] {
        let data = opened(&npz(&[(name, rows.clone())], false)?, DataOptions::default())?;
        assert_eq!(all_rows(data.train.rows.as_ref())?, f32s(&[7., 8.]), "{name}");
    }
    Ok(())
}

#[test]
fn arrays_are_chosen_by_the_options() -> TestResult {
    let options = DataOptions {
        features: Some("x_test".to_owned()),
        labels: Some("y_test".to_owned()),
        test_split: Some("x_train".to_owned()),
        ..DataOptions::default()
    };
    let data = opened(&npz(&keras()[..3], true)?, options.clone());
    assert!(data.is_err());
    let data = opened(&npz(&keras(), true)?, DataOptions { test_split: None, ..options })?;
    assert_eq!(all_rows(data.train.rows.as_ref())?, [9, 8]);
    assert_eq!(data.train.labels.as_deref(), Some(&[3u32][..]));
    let options = DataOptions { features: Some("rows".to_owned()), ..DataOptions::default() };
    assert_eq!(
        refusal(&npz(&keras(), true)?, options)?,
        "DIR/x.npz: no array 'rows'; there are: x_test, x_train, y_test, y_train"
    );
    Ok(())
}

#[test]
fn arrays_that_no_name_tells_apart_ask_for_the_option() -> TestResult {
    let array = |n: usize| npy("|u1", &[n, 1], &vec![0; n]);
    let arrays = [("first", array(2)), ("second", array(3)), ("n", npy("|u1", &[1], &[0]))];
    assert_eq!(
        refusal(&npz(&arrays, false)?, DataOptions::default())?,
        "DIR/x.npz: no array is called x, x_train, data, features or the like, and not one alone has rows; there are: first, n, \
         second; name the array of the rows by `DataOptions::features`"
    );
    assert_eq!(
        refusal(&npz(&[], false)?, DataOptions::default())?,
        "DIR/x.npz: no array is called x, x_train, data, features or the like, and not one alone has rows; there are: none; name \
         the array of the rows by `DataOptions::features`"
    );
    let wide = [arrays[0].clone(), arrays[2].clone()];
    assert_eq!(opened(&npz(&wide, true)?, DataOptions::default())?.train.n_samples(), 2);
    Ok(())
}

#[test]
fn an_array_that_is_damaged_is_named_with_its_file() -> TestResult {
    let stored = npz(&[("x", npy("|u1", &[2, 3], &[1, 2, 3, 4, 5, 6]))], false)?;
    let place = stored.windows(6).position(|w| w == [1, 2, 3, 4, 5, 6]).ok_or("no values")?;
    let mut flipped = stored.clone();
    flipped[place] ^= 1;
    assert_eq!(
        refusal(&flipped, DataOptions::default())?,
        "DIR/x.npz, array 'x': does not have a matching checksum; copy or make the file again"
    );
    let short = npz(&[("x", npy("|u1", &[2, 4], &[1, 2, 3, 4, 5, 6]))], true)?;
    assert_eq!(
        refusal(&short, DataOptions::default())?,
        "DIR/x.npz, array 'x': truncated: shape [2, 4] of |u1 needs more than the 6 bytes there; copy or make the file again"
    );
    let text = refusal(b"no archive", DataOptions::default())?;
    assert!(text.starts_with("DIR/x.npz: not a whole .npz file: "), "{text}");
    for deflated in [false, true] {
        let whole = npz(&keras(), deflated)?;
        for length in 0..whole.len() {
            let text = refusal(&whole[..length], DataOptions::default())?;
            assert!(text.starts_with("DIR/x.npz"), "{length} bytes: {text}");
        }
    }
    Ok(())
}

#[test]
fn a_size_that_the_archive_cannot_hold_is_refused_before_it_is_unpacked() -> TestResult {
    let mut bytes = npz(&[("x", npy("|u1", &[2, 3], &[0; 6]))], true)?;
    // The size in the central directory, which is what counts.
    let entry = bytes.windows(4).position(|w| w == b"PK\x01\x02").ok_or("no entry")?;
    bytes[entry + 24..entry + 28].copy_from_slice(&0xf000_0000u32.to_le_bytes());
    let text = refusal(&bytes, DataOptions::default())?;
    assert!(
        text.starts_with("DIR/x.npz, array 'x': says that ")
            && text.contains(" bytes unpack to 4026531840, more than they can"),
        "{text}"
    );
    bytes[entry + 24..entry + 28].copy_from_slice(&200u32.to_le_bytes());
    let text = refusal(&bytes, DataOptions::default())?;
    assert!(text.contains("array 'x': unpacks to 134 bytes or more, and says 200"), "{text}");
    Ok(())
}
