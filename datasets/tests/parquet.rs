//! Parquet: which columns are read, what they become, and what is refused.
use crate::common::*;
use candle::Device;
use chandlery_datasets::patches::ImageSet;
use chandlery_datasets::{Colour, DataOptions, Dataset, ImageShape, RowType};
use parquet::file::properties::WriterProperties;

type BoxResult<T> = Result<T, Box<dyn std::error::Error>>;

fn features(names: &str) -> DataOptions {
    DataOptions { features: Some(names.to_owned()), ..DataOptions::default() }
}

fn labels(name: &str) -> DataOptions {
    DataOptions { labels: Some(name.to_owned()), ..DataOptions::default() }
}

/// Opens `bytes` as `DIR/x.parquet`.
fn opened(bytes: &[u8], options: DataOptions) -> BoxResult<Dataset> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("x.parquet");
    std::fs::write(&path, bytes)?;
    Ok(open_with(&path, options)?)
}

/// Why the labels of a file were left out.
fn why_left_out(bytes: &[u8], options: DataOptions) -> BoxResult<String> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("x.parquet");
    std::fs::write(&path, bytes)?;
    Ok(left_out(open_with(&path, options), dir.path()))
}

fn refusal(bytes: &[u8], options: DataOptions) -> BoxResult<String> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("x.parquet");
    std::fs::write(&path, bytes)?;
    Ok(message(open_with(&path, options), dir.path()))
}

fn rows(data: &Dataset) -> BoxResult<Vec<Vec<f32>>> {
    Ok(data.train.to_tensor(&Device::Cpu)?.to_vec2()?)
}

/// Five images of 2×3 pixels, image `i` all `10 i`, labels 0 1 2 0 1.
fn images() -> BoxResult<(Vec<Vec<u8>>, Vec<i64>)> {
    let images = (0..5u8).map(|i| png(2, 3, &[10 * i; 6]));
    Ok((images.collect::<BoxResult<_>>()?, vec![0, 1, 2, 0, 1]))
}

#[test]
fn images_labels_and_class_names_as_the_hub_writes_them() -> TestResult {
    let (images, labels) = images()?;
    for per_group in [1, 2, 5] {
        let data = opened(&image_parquet(&images, &labels, per_group)?, DataOptions::default())?;
        assert_eq!(data.image(), Some(ImageShape::grey(2, 3)));
        let want: Vec<u8> = (0..5).flat_map(|i| [10 * i; 6]).collect();
        assert_eq!(all_rows(data.train.rows.as_ref())?, want);
        assert_eq!(data.train.labels.as_deref(), Some(&[0u32, 1, 2, 0, 1][..]));
        assert_eq!(data.class_names, Some(["zero", "one", "two"].map(str::to_owned).to_vec()));
    }
    Ok(())
}

/// Image `i` has `i + 2` lines of 3 pixels, all `10 i`.
fn images_of_different_sizes() -> BoxResult<Vec<Vec<u8>>> {
    (0..5u8).map(|i| png(u32::from(i) + 2, 3, &vec![10 * i; 3 * (usize::from(i) + 2)])).collect()
}

#[test]
fn crops_are_cut_from_images_of_different_sizes_and_smaller_ones_are_left_out() -> TestResult {
    let dir = tempfile::tempdir()?;
    let file = |name: &str, images: &[Vec<u8>]| -> BoxResult<()> {
        Ok(std::fs::write(dir.path().join(name), image_parquet(images, &vec![0; images.len()], 2)?)?)
    };
    let images = images_of_different_sizes()?;
    file("train-0.parquet", &images[..3])?;
    file("train-1.parquet", &images[3..])?;
    file("test.parquet", &images[..1])?;
    let folder = dir.path().display().to_string();
    assert!(message(open_path(dir.path()), dir.path()).contains("make all images of a data set the same"));
    // In memory, and in a temporary file from the first image on.
    for memory_bytes in [None, Some(1)] {
        let options = DataOptions { memory_bytes, ..DataOptions::default() };
        let mut set = ImageSet::open(&folder, &options)?;
        let found = |set: &ImageSet| -> Vec<_> {
            set.images().iter().map(|i| (i.name().to_owned(), i.height(), i.to_f32()[0] * 255.)).collect()
        };
        let all: Vec<_> = [0, 1, 2, 0, 1].into_iter().zip(0..5u8).collect();
        let want = |(row, i): &(usize, u8)| (format!("row {row}"), usize::from(*i) + 2, f32::from(10 * i));
        assert_eq!(found(&set), all.iter().map(want).collect::<Vec<_>>());
        let err = set.leave_out_smaller(4).map_err(|e| e.to_string());
        let text = "no image is as large as a patch of 4x4; the largest of 5 is 6x3";
        assert!(err.as_ref().is_err_and(|err| err.contains(text)), "{err:?}");
        assert_eq!(set.leave_out_smaller((4, 3))?, 2);
        assert_eq!(found(&set), all[2..].iter().map(want).collect::<Vec<_>>());
        let crops = set.into_crops((4, 3), 300, 1)?;
        assert_eq!(crops.image(), Some(ImageShape::grey(4, 3)));
        let rows = all_rows(crops.train.rows.as_ref())?;
        assert!(rows.chunks(12).all(|row| row.iter().all(|value| *value == row[0])));
        assert!([20, 30, 40].iter().all(|value| rows.contains(value)));
    }
    let one = dir.path().join("train-1.parquet").display().to_string();
    let rgb = DataOptions { colour: Colour::Rgb, max_rows: Some(1), ..DataOptions::default() };
    let set = ImageSet::open(&one, &rgb)?;
    assert_eq!((set.images().len(), set.channels(), set.images()[0].height()), (1, 3, 5));
    std::fs::write(dir.path().join("train-1.parquet"), lists()?)?;
    let refused = message(ImageSet::open(&one, &DataOptions::default()), dir.path());
    assert!(refused.contains("its rows are not images, so that there are no patches in them"), "{refused}");
    Ok(())
}

#[test]
fn max_rows_stops_within_a_row_group() -> TestResult {
    let (images, labels) = images()?;
    let options = DataOptions { max_rows: Some(3), ..DataOptions::default() };
    let data = opened(&image_parquet(&images, &labels, 2)?, options)?;
    assert_eq!(data.train.n_samples(), 3);
    assert_eq!(data.train.labels.as_deref(), Some(&[0u32, 1, 2][..]));
    Ok(())
}

const LISTS: &str = "message schema {
    optional group pixels (LIST) { repeated group list { optional int32 element (UINT_8); } }
    required group wave (LIST) { repeated group list { required float element; } }
    optional int64 y;
}";

/// Three rows: pixels `[1 2] [3 4] [255 0]`, wave `[.5 1 1.5] …`, y `2 0 1`.
fn lists() -> BoxResult<Vec<u8>> {
    let wave = (1..=9).map(|i| i as f32 / 2.).collect();
    parquet(
        LISTS,
        None,
        &[vec![
            Leaf::Ints(vec![1, 2, 3, 4, 255, 0], vec![3; 6], vec![0, 1, 0, 1, 0, 1]),
            Leaf::Floats(wave, vec![1; 9], vec![0, 1, 1, 0, 1, 1, 0, 1, 1]),
            Leaf::Longs(vec![2, 0, 1], vec![1; 3]),
        ]],
    )
}

#[test]
fn vectors_of_bytes_stay_bytes_and_vectors_of_floats_floats() -> TestResult {
    let data = opened(&lists()?, DataOptions::default())?;
    // Two vector columns: `pixels` is the usual name.
    assert_eq!((data.train.row_type(), data.n_features()), (RowType::U8, 2));
    assert_eq!(all_rows(data.train.rows.as_ref())?, [1, 2, 3, 4, 255, 0]);
    assert_eq!(data.train.labels.as_deref(), Some(&[2u32, 0, 1][..]));
    let data = opened(&lists()?, features("wave"))?;
    assert_eq!(data.train.row_type(), RowType::F32);
    assert_eq!(rows(&data)?, [[0.5, 1., 1.5], [2., 2.5, 3.], [3.5, 4., 4.5]]);
    Ok(())
}

const NUMBERS: &str = "message schema {
    required double a; required float b; required int64 n; required binary species (UTF8);
}";

fn numbers(a: [f64; 3], species: [&[u8]; 3]) -> BoxResult<Vec<u8>> {
    let species = species.map(<[u8]>::to_vec).to_vec();
    parquet(
        NUMBERS,
        None,
        &[vec![
            Leaf::Doubles(a.to_vec()),
            Leaf::Floats(vec![4., 5., 6.], vec![], vec![]),
            Leaf::Longs(vec![7, 8, 9], vec![]),
            Leaf::Bytes(species, vec![]),
        ]],
    )
}

#[test]
fn numeric_columns_side_by_side_and_texts_as_labels() -> TestResult {
    let file = numbers([1., 2., 3.], [b"virginica", b"setosa", b"virginica"])?;
    let data = opened(&file, DataOptions::default())?;
    assert_eq!(rows(&data)?, [[1., 4., 7.], [2., 5., 8.], [3., 6., 9.]]);
    assert_eq!(data.train.labels.as_deref(), Some(&[1u32, 0, 1][..]));
    assert_eq!(data.class_names, Some(vec!["setosa".to_owned(), "virginica".to_owned()]));
    let data = opened(&file, features("n, a"))?;
    assert_eq!(rows(&data)?, [[7., 1.], [8., 2.], [9., 3.]]);
    let data = opened(&file, labels("n"))?;
    assert_eq!(data.train.labels.as_deref(), Some(&[7u32, 8, 9][..]));
    assert_eq!(rows(&data)?, [[1., 4.], [2., 5.], [3., 6.]]);
    Ok(())
}

#[test]
fn many_rows_cross_batches_in_order() -> TestResult {
    let n = 5000;
    let a: Vec<f64> = (0..n).map(f64::from).collect();
    let b: Vec<f32> = (0..n).map(|i| -(i as f32)).collect();
    let file = parquet(
        "message schema { required double a; required float b; }",
        None,
        &[vec![Leaf::Doubles(a), Leaf::Floats(b, vec![], vec![])]],
    )?;
    let got = rows(&opened(&file, DataOptions::default())?)?;
    assert_eq!(got.len(), n as usize);
    for (i, row) in got.iter().enumerate() {
        assert_eq!(row, &[i as f32, -(i as f32)]);
    }
    Ok(())
}

#[test]
fn hidden_labels_are_no_labels() -> TestResult {
    let (images, _) = images()?;
    let data = opened(&image_parquet(&images, &[-1; 5], 5)?, DataOptions::default())?;
    assert!(data.train.labels.is_none());
    let text = why_left_out(&image_parquet(&images, &[0, 1, -1, 0, 0], 5)?, DataOptions::default())?;
    assert_eq!(text, "DIR/x.parquet, column 'label': row 2 has label -1; labels are class numbers from 0 on");
    Ok(())
}

#[test]
fn a_folder_of_shards_has_splits_by_name() -> TestResult {
    let (images, labels) = images()?;
    let dir = tempfile::tempdir()?;
    for (name, range) in [
        ("test-00000-of-00001.parquet", 4..5),
        ("train-00001-of-00002.parquet", 2..4),
        ("train-00000-of-00002.parquet", 0..2),
    ] {
        let bytes = image_parquet(&images[range.clone()], &labels[range], 1)?;
        std::fs::write(dir.path().join(name), bytes)?;
    }
    let data = open_path(dir.path())?;
    assert_eq!(data.train.labels.as_deref(), Some(&[0u32, 1, 2, 0][..]));
    assert_eq!(data.test.and_then(|t| t.labels).as_deref(), Some(&[1u32][..]));
    let options = DataOptions { train_split: Some("held".to_owned()), ..DataOptions::default() };
    assert_eq!(
        message(open_with(dir.path(), options), dir.path()),
        "DIR: no split 'held'; there are: test, train"
    );
    Ok(())
}

#[test]
fn columns_that_do_not_exist_or_do_not_fit() -> TestResult {
    let file = numbers([1., 2., 3.], [b"x"; 3])?;
    assert_eq!(
        refusal(&file, features("pixels"))?,
        "DIR/x.parquet: no column 'pixels'; there are: a, b, n, species"
    );
    assert_eq!(
        refusal(&file, labels("klass"))?,
        "DIR/x.parquet: no column 'klass'; there are: a, b, n, species"
    );
    assert_eq!(
        refusal(&file, features("species"))?,
        "DIR/x.parquet: column 'species' cannot make rows; choose one column of images or of vectors, or columns of numbers"
    );
    assert_eq!(
        why_left_out(&lists()?, labels("wave"))?,
        "DIR/x.parquet, column 'wave': holds several numbers a row; labels are one class number or text a row"
    );
    let texts = parquet(
        "message schema { required binary a (UTF8); }",
        None,
        &[vec![Leaf::Bytes(vec![b"x".to_vec()], vec![])]],
    )?;
    assert_eq!(refusal(&texts, DataOptions::default())?, "DIR/x.parquet: no column 'features'; there are: a");
    Ok(())
}

#[test]
fn values_that_make_no_rows() -> TestResult {
    let species: [&[u8]; 3] = [b"x"; 3];
    assert_eq!(
        refusal(&numbers([1., f64::NAN, 3.], species)?, DataOptions::default())?,
        "DIR/x.parquet: row 1, column 0 is NaN; replace or drop such values and save again"
    );
    assert_eq!(
        refusal(&numbers([1., 2., 3.], [b"x", b"\xff\xfe", b"x"])?, DataOptions::default())?,
        "DIR/x.parquet, column 'species': row 1 is not UTF-8 text; write the column as UTF-8, or choose another"
    );
    assert_eq!(
        why_left_out(&numbers([1., 2.5, 3.], species)?, labels("a"))?,
        "DIR/x.parquet, column 'a': row 1 has label 2.5; labels are class numbers from 0 on"
    );
    let missing = parquet(
        "message schema { optional int64 label; required double a; }",
        None,
        &[vec![Leaf::Longs(vec![1, 2], vec![1, 0, 1]), Leaf::Doubles(vec![1., 2., 3.])]],
    )?;
    assert_eq!(
        why_left_out(&missing, DataOptions::default())?,
        "DIR/x.parquet, column 'label': row 1 has no label; drop or fill rows with missing values"
    );
    let ragged = parquet(
        "message schema { required group x (LIST) { repeated group list { required float element; } } }",
        None,
        &[vec![Leaf::Floats(vec![1., 2., 3., 4., 5.], vec![1; 5], vec![0, 1, 0, 1, 1])]],
    )?;
    assert_eq!(
        refusal(&ragged, DataOptions::default())?,
        "DIR/x.parquet, column 'x': row 1 has 3 values, the rows before 2; give vectors of one length, none missing"
    );
    Ok(())
}

#[test]
fn an_image_that_cannot_be_decoded_names_its_row() -> TestResult {
    let (mut images, labels) = images()?;
    images[3] = b"not an image".to_vec();
    assert_eq!(
        refusal(&image_parquet(&images, &labels, 2)?, DataOptions::default())?,
        "DIR/x.parquet, column 'image', row 3: cannot be decoded as an image: The image format could not be determined; \
         replace or remove it"
    );
    images[3] = png(3, 2, &[0; 6])?;
    assert_eq!(
        refusal(&image_parquet(&images, &labels, 2)?, DataOptions::default())?,
        "DIR/x.parquet, column 'image', row 3: is 3x2x1 but DIR/x.parquet, column 'image', row 0 is 2x3x1 (height x width x \
         channels); make all images of a data set the same, or draw patches from them instead"
    );
    Ok(())
}

#[test]
fn a_truncated_file_is_refused_wherever_it_is_cut() -> TestResult {
    let (images, labels) = images()?;
    let whole = image_parquet(&images, &labels, 2)?;
    assert_eq!(
        refusal(&whole[..whole.len() / 2], DataOptions::default())?,
        "DIR/x.parquet: truncated or not a parquet file: Parquet error: Invalid Parquet file. Corrupt footer; copy or make \
         the file again"
    );
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("x.parquet");
    for length in 0..whole.len() {
        std::fs::write(&path, &whole[..length])?;
        let text = message(open_path(&path), dir.path());
        assert!(
            text.starts_with("DIR/x.parquet: truncated or not a parquet file: "),
            "{length} bytes: {text}"
        );
    }
    Ok(())
}

#[test]
fn damaged_bytes_are_an_error_or_other_values_and_end_nothing() -> TestResult {
    let (images, labels) = images()?;
    let files = [image_parquet(&images[..2], &labels[..2], 1)?, lists()?, numbers([1., 2., 3.], [b"x"; 3])?];
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("x.parquet");
    let mut refused = 0;
    let mut check = |bytes: &[u8]| -> TestResult {
        std::fs::write(&path, bytes)?;
        if let Err(e) = open_path(&path) {
            let text = e.to_string();
            let named = text.starts_with(&path.display().to_string());
            assert!(named && !text.contains('\n'), "{text}");
            refused += 1;
        }
        Ok(())
    };
    // Every byte.
    for file in &files {
        for place in 0..file.len() {
            let mut bytes = file.clone();
            bytes[place] ^= 0xff;
            check(&bytes)?;
        }
    }
    // Several bytes anywhere, seeded.
    let draws = chandlery_ops::Philox::new(1, 0);
    for i in 0..400 {
        let [which, at, value, n] = draws.block(i);
        let mut bytes = files[which as usize % files.len()].clone();
        for j in 0..=n % 3 {
            let place = (at.rotate_left(9 * j) as usize) % bytes.len();
            bytes[place] = (value >> (8 * j)) as u8;
        }
        check(&bytes)?;
    }
    assert!(refused > 500, "{refused} of the damaged files were refused");
    Ok(())
}

#[test]
fn a_page_on_which_the_reader_itself_panics_is_an_error() -> TestResult {
    // The first of two byte strings is said to be as long as both, so that the second's length lies
    // behind the end.
    let images = vec![png(1, 1, &[0])?, png(1, 1, &[1])?];
    let length = |bytes: &[u8]| (bytes.len() as u32).to_le_bytes();
    let (first, both) = (length(&images[0]), length(&[&images[0][..], &[0; 4], &images[1]].concat()));
    let properties = WriterProperties::builder().set_dictionary_enabled(false).build();
    let schema = "message schema { required binary image; }";
    let mut bytes = parquet_with(properties, schema, &[vec![Leaf::Bytes(images, vec![])]])?;
    let place = bytes.windows(4).position(|window| window == first).ok_or("no length")?;
    bytes[place..place + 4].copy_from_slice(&both);
    assert_eq!(
        refusal(&bytes, DataOptions::default())?,
        "DIR/x.parquet: damaged; copy or make the file again"
    );
    Ok(())
}

#[test]
fn numbers_of_every_encoding_keep_their_values() -> TestResult {
    let schema = "message schema { required int32 u (UINT_32); required int64 w (UINT_64); required int32 d (DECIMAL(9, 2)); \
                  required int64 e (DECIMAL(18, 3)); required fixed_len_byte_array(16) f (DECIMAL(38, 2)); \
                  required fixed_len_byte_array(32) g (DECIMAL(76, 1)); required binary h (DECIMAL(10, 1)); \
                  required fixed_len_byte_array(2) i (FLOAT16); }";
    let wide = |size: usize, number: i128| {
        let bytes = number.to_be_bytes();
        let sign = if number < 0 { 0xff } else { 0 };
        [vec![sign; size.saturating_sub(16)], bytes[16usize.saturating_sub(size)..].to_vec()].concat()
    };
    let halves = [0x3800u16, 0xc000].map(|half| half.to_le_bytes().to_vec()).to_vec();
    let leaves = vec![
        Leaf::Ints(vec![-1, 7], vec![], vec![]),
        Leaf::Longs(vec![-1, 7], vec![]),
        Leaf::Ints(vec![-150, 25], vec![], vec![]),
        Leaf::Longs(vec![-1500, 250], vec![]),
        Leaf::Fixed(vec![wide(16, -150), wide(16, 25)]),
        Leaf::Fixed(vec![wide(32, -15), wide(32, 256)]),
        Leaf::Bytes(vec![wide(2, -15), wide(3, 65_536)], vec![]),
        Leaf::Fixed(halves),
    ];
    let data = opened(&parquet(schema, None, &[leaves])?, DataOptions::default())?;
    assert_eq!(
        rows(&data)?,
        [
            [u32::MAX as f32, u64::MAX as f32, -1.5, -1.5, -1.5, -1.5, -1.5, 0.5],
            [7., 7., 0.25, 0.25, 0.25, 25.6, 6553.6, -2.]
        ]
    );
    Ok(())
}

#[test]
fn dates_and_the_index_of_pandas_are_left_out_by_name_and_read_where_asked_for() -> TestResult {
    let schema = "message schema { required double a; required int32 day (DATE); required int64 t (TIMESTAMP_MICROS); \
                  required int64 __index_level_0__; required int64 id; required double b; }";
    let longs = |first: i64| Leaf::Longs(vec![first, first + 2], vec![]);
    let leaves = || {
        vec![
            Leaf::Doubles(vec![1., 2.]),
            Leaf::Ints(vec![18_000, 18_001], vec![], vec![]),
            longs(5),
            longs(7),
            longs(9),
            Leaf::Doubles(vec![3., 4.]),
        ]
    };
    let index =
        r#"{"index_columns": ["__index_level_0__", "id", {"kind": "range", "start": 0}], "columns": []}"#;
    let entry = parquet::file::metadata::KeyValue::new("pandas".to_owned(), index.to_owned());
    let properties = || {
        let builder = parquet::file::properties::WriterProperties::builder();
        builder.set_key_value_metadata(Some(vec![entry.clone()])).build()
    };
    let bytes = parquet_with(properties(), schema, &[leaves()])?;
    let data = opened(&bytes, DataOptions::default())?;
    assert_eq!(
        (rows(&data)?, data.column_names),
        (vec![vec![1., 3.], vec![2., 4.]], Some(vec!["a".into(), "b".into()]))
    );
    let notes = data.notes.join("\n");
    for note in [
        "columns '__index_level_0__', 'id' left out: the index of pandas",
        "columns 'day', 't' left out: dates or times",
    ] {
        assert!(notes.contains(note), "{notes}");
    }
    let data = opened(&bytes, features("day, t, id"))?;
    assert_eq!(rows(&data)?, [[18_000., 5., 9.], [18_001., 7., 11.]]);
    Ok(())
}

#[test]
fn y_and_target_are_values_where_they_can_be_no_classes_and_one_hot_labels_are_left_out() -> TestResult {
    let schema = "message schema { required double a; required double target; }";
    let file =
        |target: Vec<f64>| parquet(schema, None, &[vec![Leaf::Doubles(vec![1., 2.]), Leaf::Doubles(target)]]);
    let data = opened(&file(vec![0.5, 1.])?, DataOptions::default())?;
    assert_eq!((rows(&data)?, data.train.labels), (vec![vec![1., 0.5], vec![2., 1.]], None));
    assert!(data.notes.iter().any(|note| note.contains("'target' holds no classes")), "{:?}", data.notes);
    let data = opened(&file(vec![0., 1.])?, DataOptions::default())?;
    assert_eq!(data.train.labels.as_deref(), Some(&[0u32, 1][..]));
    let none = || DataOptions { labels: Some("none".to_owned()), ..DataOptions::default() };
    assert_eq!(rows(&opened(&file(vec![0.5, 1.])?, none())?)?, [[1., 0.5], [2., 1.]]);
    let data = opened(&file(vec![0., 1.])?, none())?;
    assert_eq!((rows(&data)?, data.train.labels), (vec![vec![1.], vec![2.]], None));
    let schema = "message schema { required group label (LIST) { repeated group list { required float element; } } \
                  required double a; }";
    let one_hot = Leaf::Floats(vec![1., 0., 0., 1.], vec![1; 4], vec![0, 1, 0, 1]);
    let file = parquet(schema, None, &[vec![one_hot, Leaf::Doubles(vec![1., 2.])]])?;
    assert_eq!(
        why_left_out(&file, DataOptions::default())?,
        "DIR/x.parquet, column 'label': holds several numbers a row; labels are one class number or text a row"
    );
    assert_eq!(rows(&opened(&file, DataOptions::default())?)?, [[1.], [2.]]);
    Ok(())
}
