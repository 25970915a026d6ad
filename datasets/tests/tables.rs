//! Tables in text as pandas, R, NumPy and others write them: headers, names of rows, separators,
//! comments, and what is left out with a note.
use crate::common::*;
use candle::Device;
use chandlery_datasets::{DataOptions, Dataset};

type BoxResult<T> = Result<T, Box<dyn std::error::Error>>;

fn opened_with(name: &str, text: &str, options: DataOptions) -> BoxResult<Dataset> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join(name);
    std::fs::write(&path, text)?;
    Ok(open_with(&path, options)?)
}

fn opened(text: &str) -> BoxResult<Dataset> {
    opened_with("x.csv", text, DataOptions::default())
}

fn rows(data: &Dataset) -> BoxResult<Vec<Vec<f32>>> {
    Ok(data.train.to_tensor(&Device::Cpu)?.to_vec2()?)
}

fn columns(data: &Dataset) -> Vec<&str> {
    data.column_names.iter().flatten().map(String::as_str).collect()
}

fn says(data: &Dataset, what: &str) -> bool {
    data.notes.iter().any(|note| note.contains(what))
}

#[test]
fn a_header_that_counts_the_columns_is_a_header() -> TestResult {
    // pandas, without and with its index; with a column of texts that is not called as labels are.
    for text in
        ["0,1,2\n.5,.25,1\n2,3,4\n", ",0,1,2\n7,.5,.25,1\n9,2,3,4\n", "0,1,2,kind\n.5,.25,1,a\n2,3,4,b\n"]
    {
        let data = opened(text)?;
        assert_eq!(rows(&data)?, [[0.5, 0.25, 1.], [2., 3., 4.]], "{text}");
        assert_eq!(columns(&data), ["0", "1", "2"]);
        assert!(says(&data, "`DataOptions::header`"), "{:?}", data.notes);
    }
    // One column, of numbers that are not whole; labels above texts.
    assert_eq!(rows(&opened("0\n.5\n.25\n")?)?.len(), 2);
    let data = opened("0,1,label\n1,2,cat\n3,4,dog\n")?;
    assert_eq!((rows(&data)?, data.n_classes()), (vec![vec![1., 2.], vec![3., 4.]], 2));
    // Rows of bits, a row that comes again, and numbers that do not count are rows.
    for text in ["0,1\n1,1\n0,0\n", "0,1,2\n3,4,5\n0,1,2\n", "1,2,3\n4,5,6\n7,8,9\n", "0\n1\n2\n"] {
        assert_eq!(rows(&opened(text)?)?.len(), 3, "{text}");
    }
    let options = |header| DataOptions { header: Some(header), ..DataOptions::default() };
    let data = opened_with("x.csv", "0,1,2\n.5,.25,1\n", options(false))?;
    assert_eq!(rows(&data)?, [[0., 1., 2.], [0.5, 0.25, 1.]]);
    let data = opened_with("x.csv", "2019,2020\n.5,.25\n", options(true))?;
    assert_eq!((rows(&data)?, columns(&data)), (vec![vec![0.5, 0.25]], vec!["2019", "2020"]));
    // Names of pixels alone.
    assert_eq!(rows(&opened("1x1,1x2\n3,4\n")?)?, [[3., 4.]]);
    Ok(())
}

#[test]
fn names_of_rows_are_no_values() -> TestResult {
    let tables = [
        // write.table, of numbers and of texts.
        "a\tb\n1\t.5\t2\n2\t3\t4\n",
        "\"a\" \"b\"\n\"Mazda RX4\" .5 2\n\"Fiat 128\" 3 4\n",
        // write.csv and write.csv2.
        "\"\",\"a\",\"b\"\n\"x\",.5,2\n\"y\",3,4\n",
        "\"\";\"a\";\"b\"\n\"1\";0,5;2\n\"2\";3;4\n",
        // A frame of pandas that was filtered, and one that was written twice.
        ",a,b\n3,.5,2\n8,3,4\n",
        "Unnamed: 0,a,b\n0,.5,2\n1,3,4\n",
    ];
    for text in tables {
        let data = opened(text)?;
        assert_eq!(
            (rows(&data)?, columns(&data)),
            (vec![vec![0.5, 2.], vec![3., 4.]], vec!["a", "b"]),
            "{text}"
        );
        assert!(says(&data, "names the rows"), "{:?}", data.notes);
    }
    // A last column without a name and values comes of a separator at the end of lines.
    assert_eq!(rows(&opened("a,b,\n1,2,\n3,4,\n")?)?, [[1., 2.], [3., 4.]]);
    Ok(())
}

#[test]
fn separators_are_found_and_may_be_given() -> TestResult {
    let want = [[1., 2.5], [30., -4.]];
    let tables = [
        ("x.txt", "1 2.5\n30 -4\n"),
        ("x.dat", "   1.0e+00   2.5e+00\r\n   3.0e+01  -4.0e+00  \r\n"),
        ("x.csv", "1 \t 2.5\n30\t-4\n"),
        ("x.csv", "1;2,5\n30;-4,0\n"),
        ("x.csv", "1|2.5\n30|-4\n"),
        ("x.csv", "sep=;\r\na;b\r\n1;2,5\r\n30;-4,0\r\n"),
        ("x.txt.csv", "a b\n1 2.5\n30 -4\n"),
        ("x.tsv", "a\tb\n1\t2.5\n30\t-4\n"),
    ];
    for (name, text) in tables {
        assert_eq!(rows(&opened_with(name, text, DataOptions::default())?)?, want, "{text}");
    }
    // Semicolons and spaces within texts part nothing.
    let data = opened("1,a;b c,2\n3,d;e f,4\n5,g;h i,6\n")?;
    assert_eq!(rows(&data)?, [[1., 2.], [3., 4.], [5., 6.]]);
    let given = |separator| DataOptions { separator: Some(separator), ..DataOptions::default() };
    assert_eq!(rows(&opened_with("x.csv", "1:2.5\n30:-4\n", given(':'))?)?, want);
    assert_eq!(rows(&opened_with("x.csv", "1  2.5\n30 \t -4\n", given(' '))?)?, want);
    Ok(())
}

#[test]
fn options_of_tables_are_refused_where_there_are_none() -> TestResult {
    let header = DataOptions { header: Some(true), ..DataOptions::default() };
    let text = message(chandlery_datasets::open("mnist-sample", &header), std::path::Path::new("/nowhere"));
    assert!(text.starts_with("data 'mnist-sample': is no table in text"), "{text}");
    let subset = DataOptions { subset: Some("letters".to_owned()), ..DataOptions::default() };
    for spec in ["mnist-sample", "x.csv"] {
        let text = message(chandlery_datasets::open(spec, &subset), std::path::Path::new("/nowhere"));
        assert!(text.contains("holds one set") && text.contains("`DataOptions::subset`"), "{text}");
    }
    let dir = tempfile::tempdir()?;
    std::fs::write(dir.path().join("x.csv"), "1,2\n3,4\n")?;
    let split = DataOptions { train_split: Some("train".to_owned()), ..DataOptions::default() };
    let text = message(open_with(&dir.path().join("x.csv"), split), dir.path());
    assert_eq!(
        text,
        "DIR/x.csv: is one file, and has no split train; leave out `DataOptions::train_split`, or give the folder of the files"
    );
    Ok(())
}

#[test]
fn comments_are_passed_over_and_lines_are_counted_with_them() -> TestResult {
    let text = "# made by \"hand\n% on a day\n#\na,b\n1,2\n# \"between\n3,4\n";
    let data = opened(text)?;
    assert_eq!((rows(&data)?, columns(&data)), (vec![vec![1., 2.], vec![3., 4.]], vec!["a", "b"]));
    // numpy.savetxt writes the header as a comment.
    let data = opened_with("x.txt", "# a b\n1 2\n3 4\n", DataOptions::default())?;
    assert_eq!((rows(&data)?, columns(&data)), (vec![vec![1., 2.], vec![3., 4.]], vec!["a", "b"]));
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("x.csv");
    std::fs::write(&path, "# one\na,b\n1,2\n# two\n3,\n")?;
    assert_eq!(
        message(open_path(&path), dir.path()),
        "DIR/x.csv, column 'b': line 5 has no value; drop or fill rows with missing values"
    );
    Ok(())
}

#[test]
fn columns_that_count_or_hold_no_numbers_are_named() -> TestResult {
    let line = |i: usize| format!("{},2020-01-{:02},n{i},{},{}\n", i + 1, i + 1, i.is_multiple_of(2), i * i);
    let text: String = std::iter::once("Id,day,name,good,v\n".to_owned()).chain((0..20).map(line)).collect();
    let data = opened(&text)?;
    assert_eq!(columns(&data), ["Id", "good", "v"]);
    assert_eq!(rows(&data)?[3], [4., 0., 9.]);
    assert!(says(&data, "column 'Id' only counts the rows"), "{:?}", data.notes);
    assert!(says(&data, "columns 'day', 'name' left out"), "{:?}", data.notes);
    // A column that counts most rows and not all is a measurement.
    let data = opened(&text.replace("\n20,", "\n21,"))?;
    assert!(!says(&data, "counts"), "{:?}", data.notes);
    Ok(())
}

#[test]
fn y_and_target_are_values_where_they_can_be_no_classes() -> TestResult {
    let data = opened("x,y,z\n.1,.2,.3\n.4,.5,.6\n")?;
    assert_eq!((columns(&data), data.train.labels.is_none()), (vec!["x", "y", "z"], true));
    assert!(says(&data, "column 'y' holds no classes"), "{:?}", data.notes);
    // Places in a plane, though they are whole.
    assert_eq!(columns(&opened("x,y,z\n1,2,.3\n4,5,.6\n")?), ["x", "y", "z"]);
    // Far behind the first rows.
    let long: String = (0..500).map(|i| format!("{i}.5,{}\n", if i == 400 { "1.5" } else { "1" })).collect();
    let data = opened(&format!("a,target\n{long}"))?;
    assert_eq!((columns(&data), rows(&data)?[400][1]), (vec!["a", "target"], 1.5));
    assert!(says(&data, "column 'target' holds no classes"), "{:?}", data.notes);
    // Measurements that happen to be whole.
    let whole =
        |end: &str| -> String { (0..60).map(|i| format!("{i}.5,{}{end}\n", 25 + i * i % 331)).collect() };
    assert_eq!(columns(&opened(&format!("a,target\n{}", whole(".0")))?), ["a", "target"]);
    assert_eq!(columns(&opened(&format!("a,target\n{}", whole("")))?), ["a"]);
    let data = opened("a,y\n.1,1\n.4,0\n")?;
    assert_eq!((columns(&data), data.train.labels.as_deref()), (vec!["a"], Some(&[1u32, 0][..])));
    // Labels of some rows alone.
    for gap in ["", "NA", "nan"] {
        let data = opened(&format!("a,y\n.1,1\n.4,{gap}\n.5,0\n"))?;
        assert_eq!((columns(&data), &data.train.labels), (vec!["a"], &None), "{gap}");
        assert!(says(&data, "labels are left out"), "{:?}", data.notes);
    }
    // Other names of labels are no values.
    let data = opened("a,label\n.1,-1\n.4,0\n")?;
    assert_eq!((columns(&data), &data.train.labels), (vec!["a"], &None));
    Ok(())
}

#[test]
fn labels_are_not_read_where_none_are_wanted() -> TestResult {
    let none = || DataOptions { labels: Some("none".to_owned()), ..DataOptions::default() };
    for text in ["a,b,label\n.1,.2,1\n.4,.5,0\n", "a,b,label\n.1,.2,-1\n.4,.5,x\n", "a,b\n.1,.2\n.4,.5\n"] {
        let data = opened_with("x.csv", text, none())?;
        assert_eq!((columns(&data), data.n_classes()), (vec!["a", "b"], 0), "{text}");
        assert_eq!((&data.train.labels, &data.left_out_labels), (&None, &None));
    }
    let arrays = [("data", npy("|u1", &[2, 2], &[0; 4])), ("target", npy("|u1", &[3], &[0; 3]))];
    let dir = tempfile::tempdir()?;
    std::fs::write(dir.path().join("x.npz"), npz(&arrays, false)?)?;
    assert!(open_with(&dir.path().join("x.npz"), none())?.train.labels.is_none());
    Ok(())
}

#[test]
fn labels_of_arrays_that_are_no_classes_are_left_out() -> TestResult {
    let floats = |values: &[f64]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
    let at = "DIR/x.npz, array 'target'";
    let cases = [
        (
            npy("<f8", &[2], &floats(&[0.5, 1.])),
            format!("{at}: row 0 has label 0.5; labels are class numbers from 0 on"),
        ),
        (
            npy("<i8", &[2], &[0i64.to_le_bytes(), (-1i64).to_le_bytes()].concat()),
            format!("{at}: row 1 has label -1; labels are class numbers from 0 on"),
        ),
        (
            npy("|u1", &[2, 3], &[1, 0, 0, 0, 0, 1]),
            format!(
                "{at}: has shape [2, 3], want [n_samples] for labels; save y.ravel(), or y.argmax(1) of one-hot rows"
            ),
        ),
    ];
    for (labels, want) in cases {
        let dir = tempfile::tempdir()?;
        let path = dir.path().join("x.npz");
        std::fs::write(&path, npz(&[("data", npy("|u1", &[2, 2], &[0; 4])), ("target", labels)], true)?)?;
        assert_eq!(left_out(open_path(&path), dir.path()), want);
    }
    // Class numbers that are stored as floats are such.
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("x.npz");
    let arrays = [("data", npy("|u1", &[2, 2], &[0; 4])), ("target", npy("<f8", &[2], &floats(&[0., 3.])))];
    std::fs::write(&path, npz(&arrays, true)?)?;
    assert_eq!(open_path(&path)?.train.labels.as_deref(), Some(&[0u32, 3][..]));
    Ok(())
}

#[test]
fn rows_of_a_named_split_have_its_labels() -> TestResult {
    let array = |n: usize, value: u8| npy("|u1", &[n, 1], &vec![value; n]);
    let labels = |n: usize, value: u8| npy("|u1", &[n], &vec![value; n]);
    let arrays = [
        ("x_train", array(4, 1)),
        ("y_train", labels(4, 1)),
        ("x_test", array(3, 2)),
        ("y_test", labels(3, 2)),
        ("x_val", array(2, 3)),
        ("y_val", labels(2, 3)),
        ("images_far", array(2, 4)),
        ("labels_far", labels(2, 4)),
    ];
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("x.npz");
    std::fs::write(&path, npz(&arrays, false)?)?;
    for (split, want) in [("x_val", 3), ("val", 3), ("images_far", 4), ("far", 4), ("x_test", 2)] {
        let named = |split: &str| Some(split.to_owned());
        let data = open_with(&path, DataOptions { test_split: named(split), ..DataOptions::default() })?;
        let test = data.test.ok_or("no test rows")?;
        assert_eq!(test.labels.as_deref().and_then(|labels| labels.first()), Some(&want), "{split}");
        let train =
            open_with(&path, DataOptions { train_split: named(split), ..DataOptions::default() })?.train;
        assert_eq!(train.labels.as_deref().and_then(|labels| labels.first()), Some(&want), "{split}");
    }
    Ok(())
}

#[test]
fn whole_numbers_say_which_scale_was_taken() -> TestResult {
    let dir = tempfile::tempdir()?;
    let open = |descr: &str, values: &[u8]| -> BoxResult<Dataset> {
        let path = dir.path().join("x.npy");
        std::fs::write(&path, npy(descr, &[2, 2], values))?;
        Ok(open_path(&path)?)
    };
    let bytes = open("|u1", &[0, 51, 200, 255])?;
    assert!(says(&bytes, "bytes are read over 255"), "{:?}", bytes.notes);
    let shorts = open("<i2", &[0, 0, 51, 0, 200, 0, 255, 0])?;
    assert!(says(&shorts, "are read as they are"), "{:?}", shorts.notes);
    assert_eq!(open("<f4", &f32s(&[0., 0.5, 1., 0.2]))?.notes, [""; 0]);
    Ok(())
}

#[test]
fn files_beside_each_other_are_splits() -> TestResult {
    let dir = tempfile::tempdir()?;
    let write = |name: &str, bytes: &[u8]| std::fs::write(dir.path().join(name), bytes);
    write("train.csv", b"a,b,label\n1,2,dog\n3,4,cat\n5,6,owl\n")?;
    write("test.csv", b"a,b,label\n7,8,owl\n9,9,dog\n")?;
    write("val.csv", b"a,b,label\n0,0,cat\n")?;
    let folder = open_path(dir.path())?;
    assert_eq!((folder.train.n_samples(), folder.test.as_ref().map(|test| test.n_samples())), (3, Some(2)));
    // Classes by name: cat, dog, owl.
    assert_eq!(folder.test.and_then(|test| test.labels).as_deref(), Some(&[2u32, 1][..]));
    let test = |split: &str| DataOptions { test_split: Some(split.to_owned()), ..DataOptions::default() };
    for split in ["val", "val.csv"] {
        for path in [dir.path().to_owned(), dir.path().join("train.csv")] {
            let data = open_with(&path, test(split))?;
            assert_eq!(data.test.and_then(|test| test.labels).as_deref(), Some(&[0u32][..]), "{split}");
        }
    }
    write("far.csv", b"a,b,label\n7,8,cow\n")?;
    assert_eq!(
        message(open_with(dir.path(), test("far")), dir.path()),
        "DIR/far.csv: no class 'cow'; there are: cat, dog, owl"
    );
    write("turned.csv", b"b,a,label\n7,8,cat\n")?;
    assert_eq!(
        message(open_with(dir.path(), test("turned")), dir.path()),
        "DIR/turned.csv: column 'b' stands where DIR/train.csv has 'a'; give the same columns in the same order, or choose them \
         by `DataOptions::features`"
    );
    let text = message(open_with(&dir.path().join("train.csv"), test("no")), dir.path());
    assert!(text.starts_with("DIR/train.csv: no split 'no'; there are: far.csv, "), "{text}");
    Ok(())
}

#[test]
fn arrays_beside_each_other_are_rows_and_labels() -> TestResult {
    let dir = tempfile::tempdir()?;
    let write = |name: &str, bytes: &[u8]| std::fs::write(dir.path().join(name), bytes);
    for (split, n) in [("train", 3usize), ("test", 2)] {
        write(&format!("X_{split}.npy"), &npy("|u1", &[n, 2], &vec![n as u8; 2 * n]))?;
        write(&format!("y_{split}.npy"), &npy("|u1", &[n], &vec![n as u8; n]))?;
    }
    let data = open_path(dir.path())?;
    assert_eq!(data.train.labels.as_deref(), Some(&[3u32; 3][..]));
    let test = data.test.ok_or("no test rows")?;
    assert_eq!((all_rows(test.rows.as_ref())?, test.labels.as_deref()), (vec![2; 4], Some(&[2u32; 2][..])));
    std::fs::rename(dir.path().join("X_train.npy"), dir.path().join("X_one.npy"))?;
    std::fs::rename(dir.path().join("X_test.npy"), dir.path().join("X_two.npy"))?;
    assert_eq!(
        message(open_path(dir.path()), dir.path()),
        "DIR: holds several tables or arrays, none called train: X_one.npy, X_two.npy; choose one with `DataOptions::train_split`, or give one file"
    );
    Ok(())
}

#[test]
fn several_sets_of_idx_files_are_listed_and_chosen() -> TestResult {
    for packed in [true, false] {
        let dir = tempfile::tempdir()?;
        for (set, value) in [("balanced", 1u8), ("digits", 2), ("letters", 3)] {
            for (split, n) in [("train", 4usize), ("test", 2)] {
                let (images, labels) = (
                    idx(0x803, &[n as u32, 1, 1], &vec![value; n]),
                    idx(0x801, &[n as u32], &vec![value; n]),
                );
                for (what, bytes) in [("images-idx3", images), ("labels-idx1", labels)] {
                    let name = format!("emnist-{set}-{split}-{what}-ubyte");
                    match packed {
                        true => std::fs::write(dir.path().join(name + ".gz"), gz(&bytes)?)?,
                        false => std::fs::write(dir.path().join(name), &bytes)?,
                    }
                }
            }
        }
        assert_eq!(
            message(open_path(dir.path()), dir.path()),
            "DIR: holds 3 sets of idx files: balanced, digits, letters; choose one by `DataOptions::subset`, such as letters"
        );
        let subset = |name: &str| DataOptions { subset: Some(name.to_owned()), ..DataOptions::default() };
        for (name, value) in [("digits", 2u8), ("emnist-letters", 3)] {
            let data = open_with(dir.path(), subset(name))?;
            assert_eq!(all_rows(data.train.rows.as_ref())?, [value; 4]);
            let test = data.test.ok_or("no test rows")?;
            assert_eq!(
                (all_rows(test.rows.as_ref())?, test.labels.as_deref()),
                (vec![value; 2], Some(&[u32::from(value); 2][..]))
            );
        }
        assert_eq!(
            message(open_with(dir.path(), subset("byclass")), dir.path()),
            "DIR: no subset 'byclass'; there are: balanced, digits, letters"
        );
        let swapped = DataOptions { train_split: Some("test".to_owned()), ..subset("digits") };
        assert_eq!(open_with(dir.path(), swapped)?.train.n_samples(), 2);
        let none = DataOptions { test_split: Some("val".to_owned()), ..subset("digits") };
        assert_eq!(
            message(open_with(dir.path(), none), dir.path()),
            "DIR: no split 'val'; there are: test, train"
        );
    }
    Ok(())
}

#[test]
fn some_rows_of_a_folder_of_images_are_of_all_classes() -> TestResult {
    let dir = tempfile::tempdir()?;
    for (class, n) in [("a", 5), ("b", 1), ("c", 5)] {
        std::fs::create_dir(dir.path().join(class))?;
        for i in 0..n {
            std::fs::write(dir.path().join(class).join(format!("{i}.png")), png(1, 1, &[i as u8])?)?;
        }
    }
    for (max_rows, want) in [(1, [1, 0, 0]), (3, [1, 1, 1]), (6, [3, 1, 2]), (11, [5, 1, 5]), (99, [5, 1, 5])]
    {
        let data = open_with(dir.path(), DataOptions { max_rows: Some(max_rows), ..DataOptions::default() })?;
        let labels = data.train.labels.as_deref().ok_or("no labels")?;
        let counts = [0u32, 1, 2].map(|class| labels.iter().filter(|&&label| label == class).count());
        assert_eq!((counts, data.class_names.as_ref().map(Vec::len)), (want, Some(3)), "{max_rows}");
    }
    Ok(())
}

#[test]
fn a_folder_of_images_for_validation_is_a_test_split_where_there_is_no_other() -> TestResult {
    let dir = tempfile::tempdir()?;
    for (split, n) in [("train", 3u8), ("val", 2)] {
        std::fs::create_dir_all(dir.path().join(split).join("a"))?;
        for i in 0..n {
            std::fs::write(dir.path().join(split).join("a").join(format!("{i}.png")), png(1, 1, &[i])?)?;
        }
    }
    let rows = |data: &Dataset| data.test.as_ref().map(|test| test.n_samples());
    assert_eq!(rows(&open_path(dir.path())?), Some(2));
    std::fs::create_dir_all(dir.path().join("test").join("a"))?;
    std::fs::write(dir.path().join("test/a/0.png"), png(1, 1, &[0])?)?;
    assert_eq!(rows(&open_path(dir.path())?), Some(1));
    Ok(())
}
