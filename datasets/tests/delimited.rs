//! `.csv` and `.tsv`: separators, headers, labels, and lines that are refused with their number and
//! column.
use crate::common::*;
use candle::Device;
use chandlery_datasets::{DataOptions, Dataset, RowType};

type BoxResult<T> = Result<T, Box<dyn std::error::Error>>;

fn opened_as(name: &str, bytes: &[u8], options: DataOptions) -> BoxResult<Dataset> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join(name);
    std::fs::write(&path, bytes)?;
    Ok(open_with(&path, options)?)
}

fn opened(text: &str) -> BoxResult<Dataset> {
    opened_as("x.csv", text.as_bytes(), DataOptions::default())
}

fn rows(data: &Dataset) -> BoxResult<Vec<Vec<f32>>> {
    Ok(data.train.to_tensor(&Device::Cpu)?.to_vec2()?)
}

fn refusal_with(bytes: &[u8], options: DataOptions) -> BoxResult<String> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("x.csv");
    std::fs::write(&path, bytes)?;
    Ok(message(open_with(&path, options), dir.path()))
}

fn refusal(text: &str) -> BoxResult<String> {
    refusal_with(text.as_bytes(), DataOptions::default())
}

fn labels(name: &str) -> DataOptions {
    DataOptions { labels: Some(name.to_owned()), ..DataOptions::default() }
}

fn features(names: &str) -> DataOptions {
    DataOptions { features: Some(names.to_owned()), ..DataOptions::default() }
}

#[test]
fn each_separator_with_and_without_a_header() -> TestResult {
    for separator in [",", ";", "\t"] {
        for header in ["", "a,b\n", "\u{feff}\"a\" , b\r\n", "\n\na,b\n"] {
            for end in ["\n", "\r\n", "\n\n", "\r\n\r\n"] {
                let text = format!("{header}1, -2.5{end}\"3e1\",.5{end}").replace(',', separator);
                for (name, packed) in
                    [("x.csv", false), ("x.TSV", false), ("x.csv.gz", true), ("x.tsv.gz", true)]
                {
                    let bytes = if packed { gz(text.as_bytes())? } else { text.clone().into_bytes() };
                    let data = opened_as(name, &bytes, DataOptions::default())?;
                    assert_eq!(data.train.row_type(), RowType::F32);
                    assert_eq!(rows(&data)?, [[1., -2.5], [30., 0.5]], "{name}: {text:?}");
                    assert!(data.train.labels.is_none() && data.test.is_none());
                }
            }
        }
    }
    Ok(())
}

#[test]
fn labels_by_their_usual_names_by_option_and_by_number() -> TestResult {
    let text = "label,x,y2\n3,1,2\n0,4,5\n";
    let data = opened(text)?;
    assert_eq!((rows(&data)?, data.n_classes()), (vec![vec![1., 2.], vec![4., 5.]], 4));
    assert_eq!(data.train.labels.as_deref(), Some(&[3u32, 0][..]));
    for option in ["y2", "2"] {
        let data = opened_as("x.csv", text.as_bytes(), labels(option))?;
        assert_eq!(data.train.labels.as_deref(), Some(&[2u32, 5][..]), "{option}");
        assert_eq!(rows(&data)?, [[3., 1.], [0., 4.]]);
    }
    let data = opened_as("x.csv", b"7,0.5\n8,1.5\n", labels("0"))?;
    assert_eq!(data.train.labels.as_deref(), Some(&[7u32, 8][..]));
    assert_eq!(data.class_names, None);
    let data = opened_as("x.csv", text.as_bytes(), features("y2, 0"))?;
    assert_eq!(rows(&data)?, [[2., 3.], [5., 0.]]);
    Ok(())
}

#[test]
fn texts_become_classes_in_alphabetic_order() -> TestResult {
    let data = opened("5.1,3.5,virginica\n4.9,3.0,\"Iris, setosa\"\n4.7,3.2,virginica\n")?;
    assert_eq!(rows(&data)?, [[5.1, 3.5], [4.9, 3.], [4.7, 3.2]]);
    assert_eq!(data.train.labels.as_deref(), Some(&[1u32, 0, 1][..]));
    assert_eq!(data.class_names, Some(vec!["Iris, setosa".to_owned(), "virginica".to_owned()]));
    // One text among numbers makes texts of all.
    let data = opened("x,species\n1,10\n2,9\n3,b\n")?;
    assert_eq!(data.class_names, Some(["10", "9", "b"].map(str::to_owned).to_vec()));
    // With a header, a column of texts by another name is no label and no row.
    let data = opened(",name,x\n0,ada,1\n1,bob,2\n")?;
    assert_eq!((rows(&data)?, data.train.labels), (vec![vec![1.], vec![2.]], None));
    Ok(())
}

#[test]
fn a_first_line_of_numbers_or_gaps_is_a_row_and_no_header() -> TestResult {
    assert_eq!(rows(&opened("1,2\n3,4\n")?)?.len(), 2);
    let no_value = "has no value; drop or fill rows with missing values";
    assert_eq!(refusal("1,\n3,4\n")?, format!("DIR/x.csv, column 1: line 1 {no_value}"));
    assert_eq!(
        refusal("NA,1\n3,4\n")?,
        "DIR/x.csv, column 0: line 1 is 'NA', want a number; correct it, or choose columns by \
         `DataOptions::features`"
    );
    assert_eq!(refusal("a,b\n")?, "DIR/x.csv: holds no rows of numbers; give at least one");
    assert_eq!(refusal("")?, "DIR/x.csv: holds no rows of numbers; give at least one");
    let data = opened("label,1x1,1x2\n0,1,2\n")?;
    assert_eq!(rows(&data)?, [[1., 2.]]);
    // Names that are numbers, among names that are not.
    assert_eq!(rows(&opened("0,1,b\n5,6,7\n")?)?, [[5., 6., 7.]]);
    Ok(())
}

#[test]
fn a_value_that_is_no_number_is_named_by_line_and_column() -> TestResult {
    let fix = "; correct it, or choose columns by `DataOptions::features`";
    for end in ["\n", "\r\n"] {
        for last in [end, ""] {
            let text = format!("a,b\n1,2\n\n3,x7{last}").replace('\n', end);
            let want = format!("DIR/x.csv, column 'b': line 4 is 'x7', want a number{fix}");
            assert_eq!(refusal(&text)?, want, "{text:?}");
        }
    }
    let thousands = "1\t2,500\n1\t2\n";
    assert_eq!(refusal(thousands)?, format!("DIR/x.csv, column 1: line 1 is '2,500', want a number{fix}"));
    let fix = "; replace or drop such values and save again";
    for (value, shown) in [("nan", "NaN"), ("inf", "inf"), ("-Infinity", "-inf"), ("1e39", "inf")] {
        assert_eq!(
            refusal(&format!("1,2\n3,{value}\n"))?,
            format!("DIR/x.csv, column 1: line 2 is {shown}{fix}")
        );
    }
    assert_eq!(
        refusal("1,2\n3,4\n5,6,7\n")?,
        "DIR/x.csv: line 3 has 3 fields, the first has 2; give each line as many, or say what parts them by `DataOptions::separator`"
    );
    assert_eq!(
        refusal_with(b"a,b\n1,2\n3,\xff\n", DataOptions::default())?,
        "DIR/x.csv: line 3 is not UTF-8 text; save the file as UTF-8"
    );
    Ok(())
}

/// Why the labels of a table were left out.
fn why_left_out(text: &str) -> BoxResult<String> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("x.csv");
    std::fs::write(&path, text)?;
    Ok(left_out(open_path(&path), dir.path()))
}

#[test]
fn labels_that_are_no_classes_are_left_out_and_named_by_line_and_column() -> TestResult {
    let at = "DIR/x.csv, column 'label': line 3";
    let classes = "labels are class numbers from 0 on";
    assert_eq!(why_left_out("x,label\n1,0\n2,-1\n")?, format!("{at} has label -1; {classes}"));
    assert_eq!(why_left_out("x,label\n1,0\n2,2.5\n")?, format!("{at} has label 2.5; {classes}"));
    assert_eq!(
        why_left_out("x,label\n1,0\n2,1000000000\n")?,
        format!(
            "{at} has label 1000000000, want class numbers below 65535; number the classes from 0 on, or choose other labels"
        )
    );
    assert_eq!(
        why_left_out("x,label\n1,0\n2,\n")?,
        format!("{at} has no value; drop or fill rows with missing values")
    );
    let many: String = (0..=65_535).map(|i| format!("1,t{i}\n")).collect();
    assert_eq!(
        why_left_out(&many)?,
        "DIR/x.csv, column 1: line 65536 is 't65535', and there are 65535 other labels before it; choose other labels"
    );
    Ok(())
}

#[test]
fn columns_that_do_not_exist() -> TestResult {
    let text = b"a,b\n1,2\n";
    assert_eq!(refusal_with(text, features("c"))?, "DIR/x.csv: no column 'c'; there are: a, b");
    assert_eq!(refusal_with(text, labels("2"))?, "DIR/x.csv: no column '2'; there are: a, b");
    assert_eq!(
        refusal_with(b"1,2\n3,4\n", labels("c"))?,
        "DIR/x.csv: no column 'c'; there are: 0 to 1, for there is no header"
    );
    assert_eq!(
        refusal("label\n1\n2\n")?,
        "DIR/x.csv: has no column of numbers beside the labels; choose columns by `DataOptions::features` and \
         `DataOptions::labels`, or say what parts them by `DataOptions::separator`"
    );
    Ok(())
}

#[test]
fn rows_are_cut_and_spilled_like_those_of_other_formats() -> TestResult {
    let text: String = (0..5000).map(|i| format!("{i},{}\n", i % 3)).collect();
    let data = opened_as("x.csv", text.as_bytes(), DataOptions { memory_bytes: Some(100), ..labels("1") })?;
    assert!(format!("{:?}", data.train.rows).contains("MappedRows"));
    let got = rows(&data)?;
    assert_eq!((got.len(), &got[4999][..]), (5000, &[4999.][..]));
    // What follows the rows that are wanted is not read.
    let options = DataOptions { max_rows: Some(3), ..labels("1") };
    let data = opened_as("x.csv", format!("{}bad", &text[..20]).as_bytes(), options)?;
    assert_eq!(data.train.labels.as_deref(), Some(&[0u32, 1, 2][..]));
    Ok(())
}

#[test]
fn a_line_without_an_end_is_refused() -> TestResult {
    let endless = format!("1,2\n3,\"{}", "4\n".repeat(9 << 20));
    assert_eq!(
        refusal(&endless)?,
        "DIR/x.csv: line 2 has more than 16 MiB; end each row with a line feed, and each quotation with its mark"
    );
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("x.csv.gz");
    let whole = gz(b"1,2\n3,4\n")?;
    std::fs::write(&path, &whole[..whole.len() - 9])?;
    let text = message(open_path(&path), dir.path());
    assert!(text.starts_with("DIR/x.csv.gz: cannot be unpacked: "), "{text}");
    Ok(())
}
