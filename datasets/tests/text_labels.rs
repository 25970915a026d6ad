//! Labels that are texts, in `.npy` and `.npz`: numbered as in a .csv file, alike in both splits;
//! and what is refused.
use crate::common::*;
use chandlery_datasets::{DataOptions, Dataset};

type BoxResult<T> = Result<T, Box<dyn std::error::Error>>;

const ROWS: usize = 4;
const SPECIES: [&str; ROWS] = ["virginica", "setosa", "café", "setosa"];

/// Four rows of one byte with these labels in a file of their own, `y.npy`; or how they are
/// refused.
fn with_labels(labels: &[u8]) -> BoxResult<Result<Dataset, String>> {
    let dir = tempfile::tempdir()?;
    let at = |name: &str| dir.path().join(name);
    std::fs::write(at("x.npy"), npy("|u1", &[ROWS, 1], &[0; ROWS]))?;
    std::fs::write(at("y.npy"), labels)?;
    let labels = Some(at("y.npy").display().to_string());
    let data = open_with(&at("x.npy"), DataOptions { labels, ..DataOptions::default() });
    Ok(match data {
        Ok(data) => Ok(data),
        refused => Err(message(refused, dir.path())),
    })
}

fn refusal(labels: &[u8]) -> BoxResult<String> {
    Ok(with_labels(labels)?.err().unwrap_or_else(|| "not refused".to_owned()))
}

/// The texts in bytes, each as long as the longest.
fn utf_8(texts: &[&str]) -> (usize, Vec<u8>) {
    let width = texts.iter().map(|text| text.len()).max().unwrap_or(0);
    let padded = |text: &str| text.bytes().chain(std::iter::repeat(0)).take(width).collect::<Vec<u8>>();
    (width, texts.iter().flat_map(|text| padded(text)).collect())
}

fn big_endian(utf_32: &[u8]) -> Vec<u8> {
    utf_32.chunks(4).flat_map(|c| c.iter().rev().copied()).collect()
}

#[test]
fn texts_of_every_type_are_numbered_in_alphabetic_order() -> TestResult {
    let characters = utf_32(&SPECIES, 9);
    let (width, bytes) = utf_8(&SPECIES);
    let files = [
        npy("<U9", &[ROWS], &characters),
        npy(">U9", &[ROWS, 1], &big_endian(&characters)),
        npy(&format!("|S{width}"), &[ROWS], &bytes),
    ];
    for file in files {
        let data = with_labels(&file)??;
        assert_eq!(data.train.labels.as_deref(), Some(&[2u32, 1, 0, 1][..]));
        let names = data.class_names.ok_or("no names")?;
        assert_eq!(names, ["café", "setosa", "virginica"]);
    }
    Ok(())
}

#[test]
fn texts_that_are_whole_numbers_are_class_numbers_as_in_a_csv_file() -> TestResult {
    let data = with_labels(&npy("<U2", &[ROWS], &utf_32(&["10", "3", "0", "3"], 2)))??;
    assert_eq!((data.train.labels.as_deref(), &data.class_names), (Some(&[10u32, 3, 0, 3][..]), &None));
    let dir = tempfile::tempdir()?;
    std::fs::write(dir.path().join("x.csv"), "x,label\n0,10\n0,3\n0,0\n0,3\n")?;
    let csv = open_path(&dir.path().join("x.csv"))?;
    assert_eq!((csv.train.labels, csv.class_names), (data.train.labels, data.class_names));
    Ok(())
}

fn archive(train: (&str, &[&str]), test: (&str, &[&str])) -> BoxResult<Vec<u8>> {
    let labels = |(descr, texts): (&str, &[&str])| match descr {
        "|u1" => npy("|u1", &[texts.len()], &vec![0; texts.len()]),
        _ => npy(descr, &[texts.len()], &utf_32(texts, 3)),
    };
    let rows = |n: usize| npy("|u1", &[n, 1], &vec![0; n]);
    let arrays = [
        ("x_train", rows(train.1.len())),
        ("y_train", labels(train)),
        ("x_test", rows(test.1.len())),
        ("y_test", labels(test)),
    ];
    npz(&arrays, true)
}

fn of_archive(bytes: &[u8]) -> BoxResult<Result<Dataset, String>> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("x.npz");
    std::fs::write(&path, bytes)?;
    Ok(match open_path(&path) {
        Ok(data) => Ok(data),
        refused => Err(message(refused, dir.path())),
    })
}

#[test]
fn a_test_split_has_the_class_numbers_of_the_training_rows() -> TestResult {
    let data = of_archive(&archive(("<U3", &["ox", "ant", "bee"]), ("<U3", &["ox", "bee"]))?)??;
    assert_eq!(data.train.labels.as_deref(), Some(&[2u32, 0, 1][..]));
    assert_eq!(data.test.and_then(|test| test.labels).as_deref(), Some(&[2u32, 1][..]));
    assert_eq!(data.class_names.ok_or("no names")?, ["ant", "bee", "ox"]);
    Ok(())
}

#[test]
fn labels_that_the_training_rows_do_not_have_are_refused() -> TestResult {
    let refusal = |train, test| -> BoxResult<String> {
        Ok(of_archive(&archive(train, test)?)?.err().unwrap_or_else(|| "not refused".to_owned()))
    };
    let at = "DIR/x.npz, array 'y_test'";
    assert_eq!(
        refusal(("<U3", &["ox", "ant"]), ("<U3", &["cow"]))?,
        format!("{at}: no class 'cow'; there are: ant, ox")
    );
    assert_eq!(
        refusal(("<U3", &["ox", "ant"]), ("|u1", &[""]))?,
        format!(
            "{at}: holds class numbers, and the labels of the training rows are texts; save the labels of both as one type"
        )
    );
    assert_eq!(
        refusal(("|u1", &["", ""]), ("<U3", &["cow"]))?,
        format!(
            "{at}: holds texts, and the labels of the training rows are class numbers; save the labels of both as one type"
        )
    );
    let many: Vec<String> = (0..300).map(|i| format!("t{i:02}")).collect();
    let many: Vec<&str> = many.iter().map(|text| &text[..3]).collect();
    let text = refusal(("<U3", &many), ("<U3", &["cow"]))?;
    assert!(text.ends_with(", t18, t19, …"), "{text}");
    Ok(())
}

#[test]
fn texts_that_are_damaged_or_missing_are_named_by_their_row() -> TestResult {
    let why = with_labels(&npy("<U3", &[ROWS], &utf_32(&["a", "", "b", "c"], 3)))??.left_out_labels;
    let why = why.ok_or("labels were kept")?;
    assert!(why.ends_with("y.npy: row 1 has no value; drop or fill rows with missing values"), "{why}");
    let mut beyond = utf_32(&["a", "b", "c", "d"], 1);
    beyond[10] = 0xff;
    assert_eq!(
        refusal(&npy("<U1", &[ROWS], &beyond))?,
        "DIR/y.npy: row 2 has a label that is not Unicode; save y.astype('str')"
    );
    assert_eq!(
        refusal(&npy("|S1", &[ROWS], b"ab\xe9d"))?,
        "DIR/y.npy: row 2 has a label that is not UTF-8; save y.astype('str')"
    );
    assert!(refusal(&npy("<U3", &[ROWS], &[0; 47]))?.starts_with("DIR/y.npy: truncated: shape [4] of <U3"));
    assert!(refusal(&npy("<U4611686018427387904", &[ROWS], &[0; 16]))?.starts_with("DIR/y.npy: "));
    assert_eq!(
        refusal(&npy("<U1", &[ROWS], &utf_32(&["1", "2", ".", "5"], 1)))?,
        "not refused",
        "a text that is no number makes texts of all"
    );
    Ok(())
}

#[test]
fn a_list_of_names_names_the_classes() -> TestResult {
    let file = |names: &[&str]| {
        let names = npy("<U3", &[names.len()], &utf_32(names, 3));
        let arrays = [
            ("data", npy("|u1", &[3, 1], &[0; 3])),
            ("target", npy("|u1", &[3], &[2, 0, 2])),
            ("target_names", names),
        ];
        npz(&arrays, false)
    };
    let data = of_archive(&file(&["ox", "ant", "bee"])?)??;
    assert_eq!(data.train.labels.as_deref(), Some(&[2u32, 0, 2][..]));
    assert_eq!(data.class_names.ok_or("no names")?, ["ox", "ant", "bee"]);
    // Too few, or one twice, are names of something else.
    for names in [&["ox", "ant"][..], &["ox", "ox", "bee"]] {
        assert_eq!(of_archive(&file(names)?)??.class_names, None);
    }
    Ok(())
}
