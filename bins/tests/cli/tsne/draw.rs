//! `tsne draw`: pictures of any layout.
use super::tiny;
use crate::common::{TSNE, has, number, picture_size, write_npy};
use serde_json::Value;
use std::path::Path;

/// What the script of a page reads.
fn page(path: &Path) -> Value {
    let html = std::fs::read_to_string(path).unwrap();
    let (_, after) = html.split_once(r#"<script id="data" type="application/json">"#).unwrap();
    serde_json::from_str(after.split_once("</script>").unwrap().0).unwrap()
}

#[test]
fn a_layout_of_any_program_is_drawn_with_the_labels_that_it_has_or_those_of_its_rows() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let n = 500;
    let points: Vec<f32> = (0..n).flat_map(|i| [(i * 37 % 101) as f32, (i * i % 89) as f32]).collect();
    write_npy(&at("points.npy"), [n, 2], &points);
    let made = TSNE.json(folder.path(), &["draw", "points.npy", "--out", "alone"]);
    assert_eq!((made["n_samples"].as_u64(), made["labels"].as_bool()), (Some(500), Some(false)));
    assert_eq!(number(&made, "page_bytes") as u64, std::fs::metadata(at("alone/page.html")).unwrap().len());
    assert_eq!(picture_size(&at("alone/scatter.png")), (1200, 1200));
    assert!(!at("alone/files.txt").exists(), "no run");
    let table: String = (0..n).map(|i| format!("{},{},class {}\n", i % 7, i % 11, i % 3)).collect();
    std::fs::write(at("points.csv"), format!("x,y,label\n{table}")).unwrap();
    TSNE.succeed(folder.path(), &["draw", "points.csv", "--out", "labelled"]);
    let drawn = page(&at("labelled/page.html"));
    assert_eq!(
        (drawn["labelled"].as_bool(), &drawn["classes"][2]["name"]),
        (Some(true), &Value::from("class 2"))
    );
    assert_eq!((drawn["sprites"].is_null(), drawn["values"].is_null()), (true, true));
    // Rows have names and values; those of the table are its three columns.
    let rows: String = (0..n).map(|i| format!("{},{},{}\n", i, i % 5, i % 2)).collect();
    std::fs::write(at("rows.csv"), format!("age,size,label\n{rows}")).unwrap();
    TSNE.succeed(folder.path(), &["draw", "points.npy", "--data", "rows.csv", "--out", "rows"]);
    let drawn = page(&at("rows/page.html"));
    assert_eq!(drawn["values"]["names"], serde_json::json!(["age", "size"]));
    assert_eq!(drawn["classes"].as_array().unwrap().len(), 2);

    for (args, text) in [
        (&["draw", "points.npy"][..], "--out: name a folder"),
        (
            &["draw", "points.npy", "--out", "x", "--thumbnails"],
            "--thumbnails: rows of points.npy are no images",
        ),
        (
            &["draw", "points.npy", "--data", "mnist-sample", "--out", "x"],
            "LAYOUT points.npy: must have shape",
        ),
        (&["draw", "rows.npy", "--out", "x"], "rows.npy"),
    ] {
        let err = TSNE.fail(folder.path(), args, 1);
        assert!(err.contains(text), "{args:?}: {err}");
    }
}

#[test]
fn the_layout_of_a_run_is_drawn_again_in_its_folder() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    TSNE.succeed(folder.path(), &tiny(&["--skip-measures", "--dims", "3", "--out", "run"]));
    let before = page(&run.join("page.html"));
    TSNE.succeed(folder.path(), &["draw", "run", "--thumbnails=16"]);
    let again = page(&run.join("page.html"));
    for field in ["n", "n_dims", "points", "class_of", "classes", "sprites"] {
        assert_eq!(before[field], again[field], "{field}");
    }
    has(&run.join("files.txt"), &["thumbnails.png", "page.html"]);
    TSNE.succeed(folder.path(), &["draw", "run", "--page-limit", "1", "--out", "other"]);
    assert!(folder.path().join("other/scatter.png").exists());
}
