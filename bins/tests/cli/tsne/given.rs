//! Neighbours and first layouts from files.
use super::read;
use crate::common::{TSNE, has, npy, number, write_npy};
use std::path::Path;

#[test]
fn neighbours_and_a_first_layout_from_files_are_used() {
    let folder = tempfile::tempdir().unwrap();
    let n = 40usize;
    // A ring: the neighbours of i are those beside it, whatever the rows say.
    let beside = |i: usize| [1, n - 1, 2, n - 2].map(|step| ((i + step) % n) as i64);
    let indices = (0..n).flat_map(beside).flat_map(i64::to_le_bytes).collect();
    std::fs::write(folder.path().join("indices.npy"), npy("<i8", "(40, 4)", indices)).unwrap();
    write_npy(&folder.path().join("distances.npy"), [n, 4], &[1., 1., 2., 2.].repeat(n));
    write_npy(&folder.path().join("rows.npy"), [n, 1], &vec![0.; n]);
    let ring = |i: usize| (i as f32 / n as f32 * std::f32::consts::TAU).sin_cos();
    let start: Vec<f32> = (0..n).flat_map(|i| [ring(i).0, ring(i).1]).collect();
    write_npy(&folder.path().join("start.npy"), [n, 2], &start);
    let files = ["--neighbours-from", "indices.npy", "--distances", "distances.npy"];
    let args = ["train", "--data", "rows.npy", "--perplexity", "2", "--skip-measures", "--out", "run"];
    let args = [&args[..], &files, &["--start-from", "start.npy", "--early-exaggeration", "4"]].concat();
    TSNE.succeed(folder.path(), &args);
    let y = read(&folder.path().join("run/layout.npy")).to_vec2::<f32>().unwrap();
    let distance = |i: usize, j: usize| (y[i % n][0] - y[j % n][0]).hypot(y[i % n][1] - y[j % n][1]);
    for i in 0..n {
        assert!(distance(i, i + 1) < 0.5 * distance(i, i + n / 2), "point {i} is not beside its neighbour");
    }
    // Rows that are no pictures are shown by their numbers.
    has(&folder.path().join("run/page.html"), &["\"values\":{\"names\":[\"column 0\"", "\"sprites\":null"]);
    write_npy(&folder.path().join("start.npy"), [n, 3], &vec![1.; 3 * n]);
    let err = TSNE.fail(folder.path(), &[&args[..], &["--overwrite"]].concat(), 1);
    assert!(err.starts_with("tsne: --start-from start.npy: layout must have shape [40, 2]"), "{err}");
    write_npy(&folder.path().join("start.npy"), [n, 2], &start);
    write_npy(&folder.path().join("distances.npy"), [n, 3], &vec![1.; 3 * n]);
    let err = TSNE.fail(folder.path(), &[&args[..], &["--overwrite"]].concat(), 1);
    assert!(err.ends_with("must have the shape of --neighbours-from, [40, 4], got [40, 3]"), "{err}");
}

/// What is done to a line of indices and one of distances.
type Change = dyn Fn(usize, &mut Vec<i64>, &mut Vec<f64>);

/// Neighbours on a ring of `n` points, with `change` made to the lines of both files.
fn write_ring(folder: &Path, n: usize, change: impl Fn(usize, &mut Vec<i64>, &mut Vec<f64>)) {
    let (mut indices, mut distances, mut k) = (vec![], vec![], 0);
    for i in 0..n {
        let mut line: Vec<i64> = [1, n - 1, 2, n - 2].map(|step| ((i + step) % n) as i64).to_vec();
        let mut far = vec![1., 1., 2., 2.];
        change(i, &mut line, &mut far);
        k = line.len();
        indices.extend(line.into_iter().flat_map(i64::to_le_bytes));
        distances.extend(far.into_iter().flat_map(f64::to_le_bytes));
    }
    let shape = format!("({n}, {k})");
    std::fs::write(folder.join("indices.npy"), npy("<i8", &shape, indices)).unwrap();
    std::fs::write(folder.join("distances.npy"), npy("<f8", &shape, distances)).unwrap();
}

const ARGS: [&str; 15] = [
    "train",
    "--data",
    "rows.npy",
    "--perplexity",
    "2",
    "--neighbours-from",
    "indices.npy",
    "--distances",
    "distances.npy",
    "--early-iterations",
    "20",
    "--iterations",
    "20",
    "--overwrite",
    "--out",
];

#[test]
fn the_row_itself_and_an_order_of_their_own_change_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let n = 40;
    let rows: Vec<f32> = (0..2 * n).map(|i| (i * 7 % 31) as f32).collect();
    write_npy(&folder.path().join("rows.npy"), [n, 2], &rows);
    let layout = |out: &str, change: &Change| {
        write_ring(folder.path(), n, change);
        let output = TSNE.command(folder.path(), &[&ARGS[..], &[out]].concat()).output().unwrap();
        let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert!(output.status.success(), "{said}");
        (std::fs::read(folder.path().join(out).join("layout.npy")).unwrap(), said)
    };
    let (plain, said) = layout("plain", &|_, _, _| {});
    assert!(!said.contains("left out"), "{said}");
    let (with_self, said) = layout("self", &|i, line, far| {
        line.insert(0, i as i64);
        far.insert(0, 0.);
    });
    assert!(plain == with_self, "another layout");
    assert!(
        said.contains("a row was its own neighbour: it was left out, and 4 neighbours of each row remain"),
        "{said}"
    );
    let (turned, said) = layout("turned", &|_, line, far| {
        line.reverse();
        far.reverse();
    });
    assert!(said.contains("neighbours were sorted"), "{said}");
    let (scaled, _) = layout("scaled", &|_, _, far| far.iter_mut().for_each(|d| *d *= (-900f64).exp2()));
    assert!(plain == scaled, "another layout of other units");
    drop(turned);
    // Measured over the neighbours of the run.
    let made: serde_json::Value =
        serde_json::from_slice(&std::fs::read(folder.path().join("scaled/results.json")).unwrap()).unwrap();
    let again = TSNE.json(folder.path(), &["evaluate", "scaled"]);
    for figure in ["kl", "trustworthiness", "knn_recall"] {
        assert_eq!(number(&made, figure), number(&again, figure), "{figure}");
    }
    let others = TSNE.json(folder.path(), &["evaluate", "scaled", "--neighbours", "6"]);
    assert_ne!(number(&made, "kl"), number(&others, "kl"));
}

#[test]
fn what_is_no_neighbour_or_no_distance_is_refused_by_file_row_and_column() {
    let folder = tempfile::tempdir().unwrap();
    let n = 40;
    write_npy(&folder.path().join("rows.npy"), [n, 1], &vec![0.; n]);
    let refused = |change: &dyn Fn(&mut Vec<i64>, &mut Vec<f64>), text: &str| {
        write_ring(folder.path(), n, |i, line, far| {
            if i == 17 {
                change(line, far);
            }
        });
        let err = TSNE.fail(folder.path(), &[&ARGS[..], &["run"]].concat(), 1);
        assert!(err.ends_with(text), "{err}");
        assert!(!folder.path().join("run").exists());
    };
    let of = "--neighbours-from indices.npy: indices must";
    refused(&|line, _| line[2] = 40, &format!("{of} be from 0 to 39, got 40 in row 17, column 2"));
    refused(&|line, _| line[1] = -1, &format!("{of} be from 0 to 39, got -1 in row 17, column 1"));
    refused(
        &|line, _| line[3] = line[0],
        &format!("{of} hold a row once in a line, got 18 again in row 17, column 3"),
    );
    let of = "--distances distances.npy: distances must";
    refused(&|_, far| far[2] = f64::NAN, &format!("{of} be finite, got NaN in row 17, column 2"));
    refused(&|_, far| far[3] = f64::INFINITY, &format!("{of} be finite, got inf in row 17, column 3"));
    refused(&|_, far| far[0] = -2., &format!("{of} be at least 0, got -2 in row 17, column 0"));
}
