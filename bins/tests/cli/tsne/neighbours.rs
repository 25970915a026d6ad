//! The nearest rows of each row, as files.
use crate::common::{TSNE, number, write_npy};
use std::path::Path;

/// Rows of which some are searched in cells: three features, one after the other of a sequence that
/// fills the cube evenly.
fn write_rows(folder: &Path, n: usize) {
    let places = [0.819_172_5, 0.671_043_6, 0.549_700_5].map(|step| (step, 0.5f64));
    let row = |i: usize| places.map(|(step, first)| ((first + step * i as f64) % 1.) as f32);
    write_npy(&folder.join("rows.npy"), [n, 3], &(0..n).flat_map(row).collect::<Vec<f32>>());
}

/// The lines of a file of NumPy.
fn matrix<T: npyz::Deserialize + Clone>(path: &Path) -> Vec<Vec<T>> {
    let npy = npyz::NpyFile::new(std::fs::File::open(path).unwrap()).unwrap();
    let width = npy.shape()[1] as usize;
    npy.into_vec::<T>().unwrap().chunks(width).map(<[T]>::to_vec).collect()
}

#[test]
fn neighbours_are_written_and_a_layout_takes_them() {
    let folder = tempfile::tempdir().unwrap();
    let (at, n, k) = (folder.path(), 150, 9);
    write_rows(at, n);
    let args = ["neighbours", "--data", "rows.npy", "--neighbours", "9", "--out", "near"];
    let said = TSNE.succeed(at, &args);
    assert!(
        said.contains("the 9 nearest rows of each of 150 rows, in near: nearest rows found all"),
        "{said}"
    );
    // NumPy's index type.
    let file = std::fs::read(at.join("near/indices.npy")).unwrap();
    let header = String::from_utf8_lossy(&file[10..128]);
    assert!(header.contains("'descr': '<i8'") && header.contains("'shape': (150, 9"), "{header}");
    let indices = matrix::<i64>(&at.join("near/indices.npy"));
    let distances = matrix::<f32>(&at.join("near/distances.npy"));
    let rows = matrix::<f32>(&at.join("rows.npy"));
    for i in 0..n {
        let far = |j: usize| -> f64 {
            let squares = rows[i].iter().zip(&rows[j]).map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2));
            squares.sum::<f64>().sqrt()
        };
        let mut all: Vec<(f64, i64)> = (0..n).filter(|&j| j != i).map(|j| (far(j), j as i64)).collect();
        all.sort_by(|a, b| a.0.total_cmp(&b.0));
        let want: Vec<i64> = all[..k].iter().map(|&(_, j)| j).collect();
        assert_eq!(indices[i], want, "row {i}");
        let near = distances[i].iter().zip(&all).all(|(&d, (far, _))| (f64::from(d) - far).abs() < 1e-6);
        assert!(near, "row {i}: {:?}", distances[i]);
    }
    let given = ["--neighbours-from", "near/indices.npy", "--distances", "near/distances.npy"];
    let train = ["train", "--data", "rows.npy", "--perplexity", "3", "--iterations", "10", "--skip-measures"];
    TSNE.succeed(at, &[&train[..], &given, &["--out", "run"]].concat());
}

#[test]
fn an_approximate_search_says_what_it_reached() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    write_rows(at, 6000);
    let args = ["neighbours", "--data", "rows.npy", "--neighbours", "12", "--approximate", "--recall", "0.8"];
    let args = [&args[..], &["--out", "near"]].concat();
    let said = TSNE.succeed(at, &args);
    assert!(said.contains("nearest rows found ") && said.contains("% (95 % interval "), "{said}");
    let first = std::fs::read(at.join("near/indices.npy")).unwrap();
    let made = TSNE.json(at, &args);
    assert!(number(&made, "search_recall/mean") >= 0.8, "{made}");
    assert_eq!(number(&made, "search_recall/n_queries"), 512.);
    assert_eq!(std::fs::read(at.join("near/indices.npy")).unwrap(), first);
}

#[test]
fn what_does_not_fit_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    write_rows(at, 20);
    let args = ["neighbours", "--data", "rows.npy", "--out", "near"];
    let err = TSNE.fail(at, &args, 1);
    assert_eq!(err, "tsne: --neighbours: must be below the number of rows, 20, got 90");
    assert!(!at.join("near").exists());
    let args = [&args[..], &["--neighbours", "3", "--recall", "1.1"]].concat();
    TSNE.refuse(at, &args, "must be a number above 0 and at most 1");
}
