//! Each kind of file on disk gives the rows, labels and shape that were written.
use crate::common::*;
use candle::Device;
use chandlery_datasets::{Colour, DataOptions, ImageShape, RowType};
use std::collections::HashMap;
use std::path::Path;

const SIX: [u8; 6] = [1, 2, 3, 4, 5, 6];

fn write_mnist_like(folder: &Path, packed: bool) -> TestResult {
    let images = |n: u32, first: u8| {
        let values: Vec<u8> = (0..n * 6).map(|i| first + i as u8).collect();
        idx(0x803, &[n, 2, 3], &values)
    };
    for (name, bytes) in [
        ("train-images-idx3-ubyte", images(4, 0)),
        ("train-labels-idx1-ubyte", idx(0x801, &[4], &[0, 1, 2, 1])),
        ("t10k-images-idx3-ubyte", images(2, 100)),
        ("t10k-labels-idx1-ubyte", idx(0x801, &[2], &[2, 0])),
    ] {
        match packed {
            true => std::fs::write(folder.join(format!("{name}.gz")), gz(&bytes)?)?,
            false => std::fs::write(folder.join(name), bytes)?,
        }
    }
    Ok(())
}

#[test]
fn idx_folders_plain_and_packed() -> TestResult {
    for packed in [false, true] {
        let dir = tempfile::tempdir()?;
        write_mnist_like(dir.path(), packed)?;
        let data = open_path(dir.path())?;
        assert_eq!(data.name, dir.path().display().to_string());
        assert_eq!(data.image(), Some(ImageShape::grey(2, 3)));
        assert_eq!(data.n_classes(), 3);
        assert_eq!(all_rows(data.train.rows.as_ref())?, (0..24).collect::<Vec<u8>>());
        assert_eq!(data.train.labels.as_deref(), Some(&[0u32, 1, 2, 1][..]));
        let test = data.test.ok_or("no test split")?;
        assert_eq!(all_rows(test.rows.as_ref())?, (100..112).collect::<Vec<u8>>());
        assert_eq!(test.labels.as_deref(), Some(&[2u32, 0][..]));
    }
    Ok(())
}

#[test]
fn one_idx_file_with_the_labels_beside_it() -> TestResult {
    let dir = tempfile::tempdir()?;
    write_mnist_like(dir.path(), true)?;
    let data = open_path(&dir.path().join("t10k-images-idx3-ubyte.gz"))?;
    assert_eq!(data.train.labels.as_deref(), Some(&[2u32, 0][..]));
    assert!(data.test.is_none());
    Ok(())
}

#[test]
fn rows_beyond_the_memory_limit_are_the_same_from_a_temporary_file() -> TestResult {
    let dir = tempfile::tempdir()?;
    write_mnist_like(dir.path(), true)?;
    let options = DataOptions { memory_bytes: Some(5), ..DataOptions::default() };
    let data = open_with(dir.path(), options)?;
    assert!(format!("{:?}", data.train.rows).contains("MappedRows"));
    assert_eq!(all_rows(data.train.rows.as_ref())?, (0..24).collect::<Vec<u8>>());
    Ok(())
}

#[test]
fn max_rows_keeps_the_beginning_of_each_split() -> TestResult {
    let dir = tempfile::tempdir()?;
    write_mnist_like(dir.path(), false)?;
    let options = DataOptions { max_rows: Some(3), ..DataOptions::default() };
    let data = open_with(dir.path(), options)?;
    assert_eq!(data.train.n_samples(), 3);
    assert_eq!(data.train.labels.as_deref(), Some(&[0u32, 1, 2][..]));
    assert_eq!(data.test.map(|t| t.n_samples()), Some(2));
    Ok(())
}

#[test]
fn npy_of_each_type() -> TestResult {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("x.npy");
    let doubles: Vec<u8> = SIX.iter().flat_map(|&v| f64::from(v).to_le_bytes()).collect();
    let floats = f32s(&SIX.map(f32::from));
    for (descr, data, row_type) in [
        ("|u1", SIX.to_vec(), RowType::U8),
        ("<f4", floats.clone(), RowType::F32),
        ("<f8", doubles, RowType::F32),
    ] {
        std::fs::write(&path, npy(descr, &[2, 3], &data))?;
        let split = open_path(&path)?.train;
        assert_eq!(split.row_type(), row_type, "{descr}");
        assert_eq!((split.n_samples(), split.n_features()), (2, 3));
        let want = if descr == "|u1" { SIX.to_vec() } else { floats.clone() };
        assert_eq!(all_rows(split.rows.as_ref())?, want, "{descr}");
    }
    std::fs::write(&path, npy("|b1", &[2, 2], &[1, 0, 0, 1]))?;
    let got = open_path(&path)?.train.to_tensor(&Device::Cpu)?;
    assert_eq!(got.to_vec2::<f32>()?, [[1., 0.], [0., 1.]]);
    Ok(())
}

#[test]
fn npy_of_every_type_and_byte_order_of_numpy() -> TestResult {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("x.npy");
    let numbers = [1i8, 2, 100, 7, 0, 5];
    macro_rules! of {
        ($t:ty, $to:ident) => {
            numbers.iter().flat_map(|&x| <$t>::from(x).$to()).collect::<Vec<u8>>()
        };
        (unsigned $t:ty, $to:ident) => {
            numbers.iter().flat_map(|&x| <$t>::from(x.unsigned_abs()).$to()).collect::<Vec<u8>>()
        };
    }
    let files = [
        ("|i1", of!(i8, to_le_bytes)),
        ("<i2", of!(i16, to_le_bytes)),
        (">i2", of!(i16, to_be_bytes)),
        ("<u2", of!(unsigned u16, to_le_bytes)),
        (">u2", of!(unsigned u16, to_be_bytes)),
        ("<i4", of!(i32, to_le_bytes)),
        (">i4", of!(i32, to_be_bytes)),
        ("<u4", of!(unsigned u32, to_le_bytes)),
        (">u4", of!(unsigned u32, to_be_bytes)),
        ("<i8", of!(i64, to_le_bytes)),
        (">i8", of!(i64, to_be_bytes)),
        ("<u8", of!(unsigned u64, to_le_bytes)),
        (">u8", of!(unsigned u64, to_be_bytes)),
        ("<f2", of!(half::f16, to_le_bytes)),
        (">f2", of!(half::f16, to_be_bytes)),
        (">f4", of!(f32, to_be_bytes)),
        (">f8", of!(f64, to_be_bytes)),
    ];
    for (descr, data) in files {
        std::fs::write(&path, npy(descr, &[2, 3], &data))?;
        let rows = open_path(&path)?.train.to_tensor(&Device::Cpu)?.to_vec2::<f32>()?;
        assert_eq!(rows, [[1., 2., 100.], [7., 0., 5.]], "{descr}");
    }
    Ok(())
}

#[test]
fn npy_in_fortran_order_gives_the_rows_of_the_array() -> TestResult {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("x.npy");
    let write = |descr: &str, shape: &str, data: &[u8]| {
        let header = format!("{{'descr': '{descr}', 'fortran_order': True, 'shape': {shape}, }}");
        std::fs::write(&path, npy_with_header(&header, data))
    };
    // [2, 2, 3] with entry (i, j, k) = 100 i + 10 j + k: the first index runs fastest.
    let mut data = vec![];
    for k in 0..3u8 {
        for j in 0..2u8 {
            for i in 0..2u8 {
                data.push(100 * i + 10 * j + k);
            }
        }
    }
    let want = [0u8, 1, 2, 10, 11, 12, 100, 101, 102, 110, 111, 112];
    write("|u1", "(2, 2, 3)", &data)?;
    let dataset = open_path(&path)?;
    assert_eq!(dataset.image(), Some(ImageShape::grey(2, 3)));
    assert_eq!(dataset.train.row_type(), RowType::U8);
    assert_eq!(all_rows(dataset.train.rows.as_ref())?, want);
    let one = DataOptions { max_rows: Some(1), ..DataOptions::default() };
    assert_eq!(all_rows(open_with(&path, one)?.train.rows.as_ref())?, want[..6]);
    let wide: Vec<u8> = data.iter().flat_map(|&x| f64::from(x).to_le_bytes()).collect();
    write("<f8", "(2, 2, 3)", &wide)?;
    assert_eq!(all_rows(open_path(&path)?.train.rows.as_ref())?, f32s(&want.map(f32::from)));
    Ok(())
}

#[test]
fn npy_of_three_dimensions_makes_images_and_takes_labels_from_a_second_file() -> TestResult {
    let dir = tempfile::tempdir()?;
    let (x, y) = (dir.path().join("x.npy"), dir.path().join("y.npy"));
    std::fs::write(&x, npy("|u1", &[3, 1, 2], &SIX))?;
    let labels: Vec<u8> = [2i64, 0, 1].iter().flat_map(|v| v.to_le_bytes()).collect();
    std::fs::write(&y, npy("<i8", &[3], &labels))?;
    let options = DataOptions { labels: Some(y.display().to_string()), ..DataOptions::default() };
    let data = open_with(&x, options)?;
    assert_eq!(data.image(), Some(ImageShape::grey(1, 2)));
    assert_eq!(data.train.labels.as_deref(), Some(&[2u32, 0, 1][..]));
    Ok(())
}

#[test]
fn max_rows_cuts_labels_of_converted_rows_too() -> TestResult {
    let dir = tempfile::tempdir()?;
    let (x, y) = (dir.path().join("x.npy"), dir.path().join("y.npy"));
    let doubles: Vec<u8> = SIX.iter().flat_map(|&v| f64::from(v).to_le_bytes()).collect();
    std::fs::write(&x, npy("<f8", &[3, 2], &doubles))?;
    std::fs::write(&y, npy("|u1", &[3], &[7, 8, 9]))?;
    let options =
        DataOptions { labels: Some(y.display().to_string()), max_rows: Some(2), ..DataOptions::default() };
    let data = open_with(&x, options)?;
    assert_eq!(data.train.labels.as_deref(), Some(&[7u32, 8][..]));
    Ok(())
}

#[test]
fn safetensors_by_usual_names_and_by_option() -> TestResult {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("x.safetensors");
    let tensor = |v: Vec<f32>, shape: (usize, usize)| candle::Tensor::from_vec(v, shape, &Device::Cpu);
    let label = |v: Vec<u32>| candle::Tensor::new(v, &Device::Cpu);
    let tensors = HashMap::from([
        ("x_train".to_owned(), tensor(vec![1., 2., 3., 4.], (2, 2))?),
        ("y_train".to_owned(), label(vec![1, 0])?),
        ("x_test".to_owned(), tensor(vec![5., 6.], (1, 2))?),
        ("y_test".to_owned(), label(vec![1])?),
        ("other".to_owned(), tensor(vec![7., 8., 9.], (1, 3))?),
    ]);
    candle::safetensors::save(&tensors, &path)?;
    let data = open_path(&path)?;
    assert_eq!(all_rows(data.train.rows.as_ref())?, f32s(&[1., 2., 3., 4.]));
    assert_eq!(data.train.labels.as_deref(), Some(&[1u32, 0][..]));
    let test = data.test.ok_or("no test split")?;
    assert_eq!(all_rows(test.rows.as_ref())?, f32s(&[5., 6.]));
    assert_eq!(test.labels.as_deref(), Some(&[1u32][..]));

    let only = HashMap::from([("codes".to_owned(), tensors["other"].to_dtype(candle::DType::BF16)?)]);
    candle::safetensors::save(&only, &path)?;
    let data = open_path(&path)?;
    assert_eq!(all_rows(data.train.rows.as_ref())?, f32s(&[7., 8., 9.]));
    assert!(data.train.labels.is_none());
    Ok(())
}

#[test]
fn image_folders_number_classes_by_name_and_keep_splits_apart() -> TestResult {
    let dir = tempfile::tempdir()?;
    for (file, first) in [
        ("train/cat/b.png", 3u8),
        ("train/cat/a.png", 2),
        ("train/ape/z.png", 1),
        ("test/cat/a.png", 9),
        ("train/cat/notes.txt", 0),
    ] {
        let path = dir.path().join(file);
        std::fs::create_dir_all(path.parent().ok_or("no parent")?)?;
        match file.ends_with(".png") {
            true => std::fs::write(path, png(1, 2, &[first, 0])?)?,
            false => std::fs::write(path, "not an image")?,
        }
    }
    let data = open_path(dir.path())?;
    assert_eq!(data.class_names, Some(vec!["ape".to_owned(), "cat".to_owned()]));
    assert_eq!(all_rows(data.train.rows.as_ref())?, [1, 0, 2, 0, 3, 0]);
    assert_eq!(data.train.labels.as_deref(), Some(&[0u32, 1, 1][..]));
    let test = data.test.as_ref().ok_or("no test split")?;
    assert_eq!(test.labels.as_deref(), Some(&[1u32][..]));
    assert_eq!(data.image(), Some(ImageShape::grey(1, 2)));
    Ok(())
}

#[test]
fn images_in_the_folder_itself_are_rows_without_labels() -> TestResult {
    let dir = tempfile::tempdir()?;
    for (file, first) in [("train/b.png", 3u8), ("train/a.png", 2), ("test/c.png", 9)] {
        let path = dir.path().join(file);
        std::fs::create_dir_all(path.parent().ok_or("no parent")?)?;
        std::fs::write(path, png(1, 2, &[first, 0])?)?;
    }
    let data = open_path(dir.path())?;
    assert_eq!(all_rows(data.train.rows.as_ref())?, [2, 0, 3, 0]);
    assert!(data.train.labels.is_none() && data.class_names.is_none() && data.n_classes() == 0);
    let test = data.test.as_ref().ok_or("no test split")?;
    assert_eq!((all_rows(test.rows.as_ref())?, &test.labels), (vec![9, 0], &None));

    let flat = open_path(&dir.path().join("train"))?;
    assert_eq!((flat.train.n_samples(), flat.test.is_none(), flat.train.labels), (2, true, None));
    let options = DataOptions { labels: Some("y".to_owned()), ..DataOptions::default() };
    assert_eq!(
        message(open_with(&dir.path().join("train"), options), dir.path()),
        "DIR/train: a folder of images has its labels in the names of its sub-folders, one for each class, and nothing to \
         choose by 'y'; leave out `DataOptions::labels`"
    );
    Ok(())
}

#[test]
fn colour_is_as_stored_unless_asked_for() -> TestResult {
    let dir = tempfile::tempdir()?;
    // One line of two pixels: pure red, then a grey.
    std::fs::write(dir.path().join("a.png"), png_rgb(1, 2, &[255, 0, 0, 10, 10, 10])?)?;
    let open_as = |colour| open_with(dir.path(), DataOptions { colour, ..DataOptions::default() });
    for (colour, channels, want) in [
        // Planes: red, green, blue.
        (Colour::AsStored, 3, vec![255, 10, 0, 10, 0, 10]),
        (Colour::Rgb, 3, vec![255, 10, 0, 10, 0, 10]),
        // 0.2126 · 255 = 54.2.
        (Colour::Grey, 1, vec![54, 10]),
    ] {
        let data = open_as(colour)?;
        let image = ImageShape { height: 1, width: 2, channels };
        assert_eq!(data.image(), Some(image), "{colour:?}");
        assert_eq!(all_rows(data.train.rows.as_ref())?, want, "{colour:?}");
        assert!(data.train.labels.is_none());
    }
    Ok(())
}

#[test]
fn mnist_sample_opens_without_network() -> TestResult {
    let data = chandlery_datasets::open("mnist-sample", &DataOptions::default())?;
    assert_eq!(data.name, "mnist-sample");
    assert_eq!((data.train.n_samples(), data.n_features(), data.n_classes()), (5000, 784, 10));
    assert_eq!(data.test.map(|test| test.n_samples()), Some(1000));
    Ok(())
}
