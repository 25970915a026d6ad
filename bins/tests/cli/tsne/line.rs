//! Layouts in one dimension, and runs over the distances of all pairs, as a user makes them.
use super::{read, tiny};
use crate::common::{TSNE, has, number, picture_size, write_npy};

#[test]
fn a_line_has_pictures_a_page_files_and_takes_new_rows() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let made = TSNE.json(at, &tiny(&["--dims", "1", "--animation", "--thumbnails=24", "--out", "run"]));
    assert_eq!((made["n_dims"].as_u64(), made["method"].as_str()), (Some(1), Some("exact")));
    assert!(number(&made, "knn_label_accuracy") > 0.3 && number(&made, "trustworthiness") > 0.8, "{made}");
    assert_eq!(read(&at.join("run/layout.npy")).dims(), [300, 1]);
    for picture in ["scatter.png", "thumbnails.png"] {
        assert!(picture_size(&at.join("run").join(picture)).0 >= 600, "{picture}");
    }
    has(&at.join("run/page.html"), &["\"n_dims\":2"]);
    has(&at.join("run/README.md"), &["in 1 dimension"]);
    assert!(at.join("run/history.gif").exists());
    let again = TSNE.json(at, &["evaluate", "run"]);
    for figure in ["kl", "trustworthiness", "knn_recall"] {
        assert_eq!(number(&made, figure), number(&again, figure), "{figure}");
    }
    TSNE.succeed(at, &["transform", "run", "--max-rows", "20", "--split", "test", "--out", "points.npy"]);
    assert_eq!(read(&at.join("points.npy")).dims(), [20, 1]);
    TSNE.succeed(at, &["draw", "run/layout.npy", "--out", "drawn"]);
    assert!(picture_size(&at.join("drawn/scatter.png")).0 >= 600);
    // It is a start of another run.
    TSNE.succeed(
        at,
        &tiny(&["--dims", "1", "--start-from", "run/layout.npy", "--skip-measures", "--out", "more"]),
    );
    let err = TSNE.fail(at, &["--dims", "1", "--method", "fft", "--out", "wrong"], 1);
    assert!(err.contains("the method fft is for 2 dimensions, got 1"), "{err}");
}

#[test]
fn distances_of_all_pairs_take_the_place_of_rows() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let n = 60usize;
    // Two groups by the distances; the rows say nothing.
    let distance = |i: usize, j: usize| {
        if i == j { 0. } else { ((i * 7 + j * 7) % 13) as f32 * 0.01 + if i % 2 == j % 2 { 1. } else { 9. } }
    };
    let all: Vec<f32> = (0..n * n).map(|place| distance(place / n, place % n)).collect();
    write_npy(&at.join("distances.npy"), [n, n], &all);
    let table: String = (0..n).map(|i| format!("0,{}\n", i % 2)).collect();
    std::fs::write(at.join("rows.csv"), format!("x,label\n{table}")).unwrap();
    let args = ["train", "--data", "rows.csv", "--distance-matrix", "distances.npy", "--perplexity", "5"];
    let args = [&args[..], &["--early-iterations", "60", "--iterations", "90", "--out"]].concat();
    let made = TSNE.json(at, &[&args[..], &["run"]].concat());
    assert_eq!(number(&made, "knn_label_accuracy"), 1.);
    // All measures are of the matrix: as seen by rows that are all equal, no layout keeps anything.
    assert!(number(&made, "trustworthiness") > 0.8 && number(&made, "knn_recall") > 0.5, "{made}");
    let again = TSNE.json(at, &["evaluate", "run"]);
    for figure in ["kl", "trustworthiness", "knn_recall", "knn_label_accuracy"] {
        assert_eq!(number(&made, figure), number(&again, figure), "{figure}");
    }
    assert!(again["metric"].is_null(), "{again}");
    let of_rows = TSNE.json(at, &["evaluate", "run", "--metric", "euclidean"]);
    assert!(number(&of_rows, "trustworthiness") < 0.6, "{of_rows}");
    assert!(number(&of_rows, "knn_recall") < 0.2, "{of_rows}");
    // New rows have no distances, and the page shows those of the layout all the same.
    let err = TSNE.fail(at, &["transform", "run", "--data", "rows.csv", "--out", "points.npy"], 1);
    assert!(err.contains("new rows cannot be compared with its own; lay all rows out together"), "{err}");
    has(&at.join("run/page.html"), &["\"values\":{\"names\":[\"x\"]"]);
    has(&at.join("run/README.md"), &["distances of distances.npy", "holds `layout` `[n, 2]`. `layout.npy`"]);
    // Stopped and resumed, it comes to the same bits.
    TSNE.fail(at, &[&args[..], &["stopped", "--stop-after-steps", "75"]].concat(), 130);
    TSNE.succeed(at, &["train", "--resume", "stopped"]);
    let layout = |run: &str| std::fs::read(at.join(run).join("layout.npy")).unwrap();
    assert!(layout("run") == layout("stopped"));

    let mut wrong = all.clone();
    wrong[3 * n + 4] = f32::NAN;
    write_npy(&at.join("distances.npy"), [n, n], &wrong);
    let err = TSNE.fail(at, &[&args[..], &["wrong"]].concat(), 1);
    assert!(err.contains("--distance-matrix distances.npy: "), "{err}");
    assert!(err.contains("distances must be finite, got NaN in row 3, column 4"), "{err}");
    for more in [&["--metric", "cosine"][..], &["--prepare", "pca=1"]] {
        TSNE.refuse(at, &[&args[..], &["wrong"], more].concat(), "cannot be used with");
    }
    write_npy(&at.join("distances.npy"), [n, n - 1], &all[n..]);
    let err = TSNE.fail(at, &[&args[..], &["wrong"]].concat(), 1);
    assert!(err.contains("must have a line and a column for each of 60 rows, got [60, 59]"), "{err}");
}
