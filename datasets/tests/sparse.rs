//! Sparse matrices: of scipy, Matrix Market and 10x Genomics; and what is refused.
use crate::common::*;
use chandlery_datasets::{DataOptions, Dataset, RowType};
use std::path::Path;

type BoxResult<T> = Result<T, Box<dyn std::error::Error>>;
type Arrays<'a> = Vec<(&'a str, Vec<u8>)>;

/// The matrix of all examples, 4 × 6.
const DENSE: [[f32; 6]; 4] =
    [[0., 1.5, 0., 0., -2., 0.], [0.; 6], [3., 0., 0., 4., 0., 5.], [0., 0., 0., 0., 0., 7.]];

fn opened(name: &str, bytes: &[u8], options: DataOptions) -> BoxResult<Dataset> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join(name);
    std::fs::write(&path, bytes)?;
    Ok(open_with(&path, options)?)
}

fn refusal(name: &str, bytes: &[u8]) -> BoxResult<String> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join(name);
    std::fs::write(&path, bytes)?;
    Ok(message(open_path(&path), dir.path()))
}

fn values(data: &Dataset) -> BoxResult<Vec<f32>> {
    assert_eq!(data.train.row_type(), RowType::F32);
    Ok(bytemuck::pod_collect_to_vec(&all_rows(data.train.rows.as_ref())?))
}

fn i4(values: &[i32]) -> Vec<u8> {
    npy("<i4", &[values.len()], &values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>())
}

fn i8s(shape: &[usize], values: &[i64]) -> Vec<u8> {
    npy("<i8", shape, &values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>())
}

fn f8(shape: &[usize], values: &[f64]) -> Vec<u8> {
    npy("<f8", shape, &values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>())
}

fn format(text: &str, shape: [i64; 2]) -> Arrays<'static> {
    vec![("format", npy("|S3", &[], text.as_bytes())), ("shape", i8s(&[2], &shape))]
}

fn with<'a>(mut arrays: Arrays<'a>, more: Arrays<'a>) -> Arrays<'a> {
    arrays.extend(more);
    arrays
}

/// The matrix in each of scipy's forms: columns out of order, an entry in two parts, blocks with
/// zeros in them.
fn scipy() -> Vec<Arrays<'static>> {
    let csr = vec![
        ("indptr", i4(&[0, 2, 2, 5, 6])),
        ("indices", i4(&[4, 1, 5, 0, 3, 5])),
        ("data", f8(&[6], &[-2., 1.5, 5., 3., 4., 7.])),
    ];
    let csc = vec![
        ("indptr", i8s(&[7], &[0, 1, 2, 2, 3, 4, 6])),
        ("indices", i8s(&[6], &[2, 0, 2, 0, 2, 3])),
        ("data", npy("<f4", &[6], &f32s(&[3., 1.5, 4., -2., 5., 7.]))),
    ];
    let coo = vec![
        ("row", i4(&[3, 0, 2, 2, 0, 2, 3])),
        ("col", i4(&[5, 4, 5, 3, 1, 0, 5])),
        ("data", f8(&[7], &[3., -2., 5., 4., 1.5, 3., 4.])),
    ];
    let coords = vec![
        ("coords", i8s(&[2, 6], &[3, 0, 2, 2, 0, 2, 5, 4, 5, 3, 1, 0])),
        ("data", f8(&[6], &[7., -2., 5., 4., 1.5, 3.])),
    ];
    let bsr = vec![
        ("indptr", i4(&[0, 2, 4])),
        ("indices", i4(&[0, 1, 1, 0])),
        (
            "data",
            f8(
                &[4, 2, 3],
                &[
                    0., 1.5, 0., 0., 0., 0., 0., -2., 0., 0., 0., 0., 4., 0., 5., 0., 0., 7., 3., 0., 0., 0.,
                    0., 0.,
                ],
            ),
        ),
    ];
    // Diagonals by offset: column minus row.
    let dia = vec![
        ("offsets", i4(&[4, 1, -2, 3, 2])),
        (
            "data",
            f8(
                &[5, 6],
                &[
                    0., 0., 0., 0., -2., 0., 9., 1.5, 0., 4., 0., 0., 3., 0., 0., 9., 9., 9., 0., 0., 0., 0.,
                    0., 5., 0., 0., 0., 0., 0., 7.,
                ],
            ),
        ),
    ];
    [("csr", csr), ("csc", csc), ("coo", coo), ("coo", coords), ("bsr", bsr), ("dia", dia)]
        .map(|(name, arrays)| with(format(name, [4, 6]), arrays))
        .to_vec()
}

#[test]
fn every_form_of_scipy_is_the_same_matrix_in_memory_or_in_a_temporary_file() -> TestResult {
    for arrays in scipy() {
        for (deflated, memory_bytes) in [(false, None), (true, None), (true, Some(1))] {
            let options = DataOptions { memory_bytes, ..DataOptions::default() };
            let data = opened("x.npz", &npz(&arrays, deflated)?, options)?;
            assert!(data.train.rows.is_sparse());
            assert_eq!(
                values(&data)?,
                DENSE.concat(),
                "{:?}",
                arrays.iter().map(|a| a.0).collect::<Vec<_>>()
            );
            let block = data.train.rows.read_entries(&[2, 0])?.ok_or("no entries")?;
            assert_eq!(block.row(0), (&[0, 3, 5][..], &[3., 4., 5.][..]));
            assert_eq!(block.row(1), (&[1, 4][..], &[1.5, -2.][..]));
        }
    }
    Ok(())
}

#[test]
fn truth_values_and_whole_numbers_are_numbers_and_the_first_rows_may_be_kept() -> TestResult {
    for (descr, data) in [("|b1", vec![1u8, 1, 1]), ("|u1", vec![1, 1, 1])] {
        let more = vec![
            ("indptr", i4(&[0, 1, 2, 3])),
            ("indices", i4(&[1, 0, 1])),
            ("data", npy(descr, &[3], &data)),
        ];
        let bytes = npz(&with(format("csr", [3, 2]), more), false)?;
        let options = DataOptions { max_rows: Some(2), ..DataOptions::default() };
        assert_eq!(values(&opened("x.npz", &bytes, options)?)?, [0., 1., 1., 0.]);
    }
    Ok(())
}

#[test]
fn a_damaged_matrix_of_scipy_is_refused_with_what_is_wrong() -> TestResult {
    let csr = |shape: [i64; 2], indptr: &[i32], indices: &[i32], data: &[f64]| {
        let more = vec![("indptr", i4(indptr)), ("indices", i4(indices)), ("data", f8(&[data.len()], data))];
        npz(&with(format("csr", shape), more), false)
    };
    let cases = [
        (
            csr([2, 3], &[0, 1, 2], &[0, 3], &[1., 2.])?,
            "x.npz: has an entry at row 1, column 3 (counted from 0), outside of 2 rows and 3 columns",
        ),
        (csr([2, 3], &[0, 1, 2], &[0, -1], &[1., 2.])?, "column 18446744073709551615"),
        (
            csr([2, 3], &[0, 2, 1], &[0, 1], &[1., 2.])?,
            "x.npz: has pointers that do not ascend from 0 to its 2 indices",
        ),
        (csr([3, 3], &[0, 1, 2], &[0, 1], &[1., 2.])?, "x.npz: has 3 pointers, want 4"),
        (csr([2, 3], &[0, 1, 2], &[0, 1], &[1.])?, "x.npz: has 1 values for 2 indices"),
        (csr([2, 3], &[0, 1, 2], &[0, 1], &[1., f64::NAN])?, "x.npz: row 1, column 1 is NaN"),
        (csr([2, -3], &[0, 1, 2], &[0, 1], &[1., 1.])?, "x.npz: has a matrix of shape [2, -3]"),
        (
            csr([2, 1 << 40], &[0, 1, 2], &[0, 1], &[1., 1.])?,
            "x.npz: has 1099511627776 columns, more than 16777216",
        ),
        (
            npz(&with(format("lil", [2, 3]), vec![("data", f8(&[0], &[]))]), false)?,
            "x.npz: has a matrix of format 'lil'",
        ),
    ];
    for (bytes, want) in cases {
        let got = refusal("x.npz", &bytes)?;
        assert!(got.contains(want), "{got}");
    }
    Ok(())
}

const COORDINATES: &str = "%%MatrixMarket matrix coordinate real general\r\n% made by hand\n\n4 6 6\n1 2 1.5\n1 5 -2e0\n3 1 3\n 3\t4 4\n3 6 5\n4 6 7\n";

#[test]
fn matrix_market_is_read_plain_and_gzipped() -> TestResult {
    for (name, bytes) in
        [("x.mtx", COORDINATES.as_bytes().to_vec()), ("x.MTX.gz", gz(COORDINATES.as_bytes())?)]
    {
        for memory_bytes in [None, Some(1)] {
            let options = DataOptions { memory_bytes, ..DataOptions::default() };
            assert_eq!(values(&opened(name, &bytes, options)?)?, DENSE.concat());
        }
    }
    let forms = [
        ("coordinate pattern general\n2 3 2\n1 3\n2 1\n", vec![0., 0., 1., 1., 0., 0.]),
        ("coordinate integer symmetric\n2 2 2\n1 1 4\n2 1 3\n", vec![4., 3., 3., 0.]),
        ("coordinate real skew-symmetric\n2 2 1\n2 1 3\n", vec![0., -3., 3., 0.]),
        ("array real general\n2 3\n1\n4\n2\n5\n3\n6\n", vec![1., 2., 3., 4., 5., 6.]),
        ("array integer symmetric\n2 2\n1\n2\n3\n", vec![1., 2., 2., 3.]),
        ("array real skew-symmetric\n3 3\n1\n2\n3\n", vec![0., -1., -2., 1., 0., -3., 2., 3., 0.]),
    ];
    for (text, want) in forms {
        let bytes = format!("%%MatrixMarket matrix {text}");
        assert_eq!(values(&opened("x.mtx", bytes.as_bytes(), DataOptions::default())?)?, want, "{text}");
    }
    Ok(())
}

#[test]
fn a_damaged_file_of_matrix_market_is_refused_with_its_line() -> TestResult {
    let cases = [
        ("1 1 1\n", "x.mtx: line 1 is not '%%MatrixMarket matrix coordinate|array …'"),
        (
            "%%MatrixMarket matrix coordinate complex general\n1 1 1\n1 1 1 0\n",
            "line 1 says 'coordinate complex'",
        ),
        (
            "%%MatrixMarket matrix coordinate real general\n1 1\n",
            "line 2 does not give the numbers of rows, columns and entries",
        ),
        (
            "%%MatrixMarket matrix coordinate real general\n2 2 2\n1 1 1\n",
            "x.mtx: holds 1 entry, its header says 2",
        ),
        (
            "%%MatrixMarket matrix coordinate real general\n2 2 1\n1 3 1\n",
            "line 3 is an entry at row 1, column 3 of 2 rows and 2 columns",
        ),
        (
            "%%MatrixMarket matrix coordinate real general\n2 2 1\n0 1 1\n",
            "line 3 is '0 1 1', want row and column, counted from 1, and value",
        ),
        ("%%MatrixMarket matrix coordinate real general\n2 2 1\n1 1\n", "line 3 is '1 1'"),
        ("%%MatrixMarket matrix coordinate real general\n2 2 1\n1 1 nan\n", "x.mtx: row 0, column 0 is NaN"),
        (
            "%%MatrixMarket matrix coordinate real symmetric\n2 3 0\n",
            "gives 2 rows and 3 columns to a symmetric matrix",
        ),
        (
            "%%MatrixMarket matrix coordinate real general\n4000000000 2 1\n1 1 1\n",
            "says that it has 4000000000 rows, and has 1 entries; leave out rows without entries",
        ),
        (
            "%%MatrixMarket matrix coordinate real general\n2 9999999 1\n1 1 1\n",
            "says that it has 9999999 columns, and has 1 entries",
        ),
        ("%%MatrixMarket matrix coordinate real general\n99999999999 2 1\n1 1 1\n", "more than can be read"),
    ];
    for (text, want) in cases {
        let got = refusal("x.mtx", text.as_bytes())?;
        assert!(got.contains(want), "{got}");
    }
    Ok(())
}

/// Genes in rows, cells in columns: the matrix of the examples, turned.
fn tenx(dir: &Path, prefix: &str, packed: bool, features: &str) -> TestResult {
    let matrix = "%%MatrixMarket matrix coordinate integer general\n%metadata_json: {}\n6 4 4\n1 3 3\n4 3 4\n6 3 5\n6 4 7\n";
    let genes = "a\tA\nb\tB\nc\tC\nd\tD\ne\tE\nf\tF\n";
    for (name, text) in
        [("matrix.mtx", matrix), (features, genes), ("barcodes.tsv", "AA-1\nAC-1\nAG-1\nAT-1\n")]
    {
        match packed {
            true => std::fs::write(dir.join(format!("{prefix}{name}.gz")), gz(text.as_bytes())?)?,
            false => std::fs::write(dir.join(format!("{prefix}{name}")), text)?,
        }
    }
    Ok(())
}

#[test]
fn a_folder_of_10x_genomics_has_a_row_for_each_barcode() -> TestResult {
    let want = [[0.; 6], [0.; 6], DENSE[2], DENSE[3]].concat();
    for (prefix, packed, features) in
        [("", true, "features.tsv"), ("", false, "genes.tsv"), ("GSM1_", true, "features.tsv")]
    {
        let dir = tempfile::tempdir()?;
        tenx(dir.path(), prefix, packed, features)?;
        assert_eq!(values(&open_path(dir.path())?)?, want);
        let file = dir.path().join(format!("{prefix}matrix.mtx{}", if packed { ".gz" } else { "" }));
        assert_eq!(values(&open_path(&file)?)?, want, "the file alone");
    }
    let dir = tempfile::tempdir()?;
    tenx(dir.path(), "", false, "genes.tsv")?;
    std::fs::write(dir.path().join("barcodes.tsv"), "AA\n")?;
    assert_eq!(
        message(open_path(dir.path()), dir.path()),
        "DIR/matrix.mtx: has 6 rows and 4 columns, but genes.tsv has 6 lines and barcodes.tsv 1; give files of one matrix, or move the matrix to a folder of its own"
    );
    Ok(())
}

#[test]
fn labels_of_a_matrix_come_from_an_array_beside_it() -> TestResult {
    let dir = tempfile::tempdir()?;
    let (matrix, labels) = (dir.path().join("x.mtx"), dir.path().join("y.npy"));
    std::fs::write(&matrix, COORDINATES)?;
    std::fs::write(&labels, i4(&[2, 0, 1, 1]))?;
    let options = |max_rows| DataOptions {
        labels: Some(labels.display().to_string()),
        max_rows,
        ..DataOptions::default()
    };
    assert_eq!(open_with(&matrix, options(None))?.train.labels.as_deref(), Some(&[2, 0, 1, 1][..]));
    assert_eq!(open_with(&matrix, options(Some(2)))?.train.labels.as_deref(), Some(&[2, 0][..]));
    std::fs::write(&labels, i4(&[2, 0]))?;
    let text = message(open_with(&matrix, options(None)), dir.path());
    assert!(text.contains("2 labels for 4 rows"), "{text}");
    Ok(())
}

#[test]
fn a_choice_of_sparse_rows_is_sparse() -> TestResult {
    let data = opened("x.mtx", COORDINATES.as_bytes(), DataOptions::default())?;
    let some = data.train.select(&[3, 2, 3])?;
    assert!(some.rows.is_sparse());
    let block = some.rows.read_entries(&[0, 1])?.ok_or("no entries")?;
    assert_eq!(block.row(0), (&[5][..], &[7.][..]));
    assert_eq!(
        bytemuck::pod_collect_to_vec::<u8, f32>(&all_rows(some.rows.as_ref())?),
        [DENSE[3], DENSE[2], DENSE[3]].concat()
    );
    assert!(some.rows.read_entries(&[3]).is_err());
    Ok(())
}
