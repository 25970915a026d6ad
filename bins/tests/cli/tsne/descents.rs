//! Kinds of affinities, and settings that change on the way.
use super::{layout_of, tiny};
use crate::common::{TSNE, has, metrics, number, write_npy};
use serde_json::{Value, json};

/// What a run wrote.
fn config(run: &std::path::Path) -> Value {
    serde_json::from_slice(&std::fs::read(run.join("config.json")).unwrap()).unwrap()
}

#[test]
fn kinds_of_affinities_are_those_of_the_run_its_measures_and_its_card() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    for (kind, stored, words) in [
        ("uniform", json!("uniform"), "15 neighbours that weigh the same"),
        ("fixed-width=0.5", json!({"fixed-width": 0.5}), "a Gaussian of width 0.5 for every row"),
    ] {
        let args = ["train", "--max-rows", "150", "--early-iterations", "40", "--iterations", "60"];
        let more = ["--affinity", kind, "--neighbours", "15", "--overwrite", "--out", "run"];
        let made = TSNE.json(folder.path(), &[&args[..], &more].concat());
        assert_eq!((&made["affinity"], &made["perplexity"]), (&stored, &Value::Null));
        assert_eq!(config(&run)["affinity"], stored);
        has(&run.join("README.md"), &[words]);
        let again = TSNE.json(folder.path(), &["evaluate", "run"]);
        assert_eq!((&again["affinity"], number(&again, "kl")), (&stored, number(&made, "kl")));
        let other = TSNE.json(folder.path(), &["evaluate", "run", "--perplexity", "5"]);
        assert_eq!((&other["affinity"], number(&other, "perplexity")), (&json!("perplexity"), 5.));
        assert_ne!(number(&other, "kl"), number(&made, "kl"));
    }
    let err = TSNE.fail(folder.path(), &tiny(&["--affinity", "uniform", "--out", "other"]), 1);
    assert!(
        err.contains("--perplexity: --affinity uniform has none") && err.contains("--neighbours"),
        "{err}"
    );
    TSNE.refuse(folder.path(), &["--affinity", "fixed-width=0"], "above 0");
}

#[test]
fn changes_on_the_way_are_saved_told_and_resumed_to_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let changes = ["--change", "90:perplexity=5,exaggeration=2", "--change", "60:degrees-of-freedom=0.8"];
    let with = |more: &[&'static str]| [&tiny(&["--skip-measures"])[..], &changes, more].concat();
    TSNE.succeed(folder.path(), &with(&["--out", "whole"]));
    TSNE.fail(folder.path(), &with(&["--stop-after-steps", "70", "--out", "parts"]), 130);
    TSNE.succeed(folder.path(), &["train", "--resume", "parts"]);
    let (whole, parts) = (folder.path().join("whole"), folder.path().join("parts"));
    assert!(layout_of(&whole) == layout_of(&parts), "another layout");
    let lines = metrics(&whole);
    assert!(lines.iter().any(|line| number(line, "iteration") == 90.), "{lines:?}");
    let saved = config(&parts);
    assert_eq!(saved["changes"][1], json!({"iteration": 90, "exaggeration": 2., "perplexities": [5.]}));
    assert_eq!(number(&saved, "perplexity"), 5.);
    has(&parts.join("README.md"), &["perplexity 5 and exaggeration 2 from iteration 90 on"]);
    // Measured with the perplexity and the kernel of the end, over the neighbours that it had.
    let again = TSNE.json(folder.path(), &["evaluate", "whole"]);
    assert_eq!(number(&again, "perplexity"), 5.);
    let last = lines.last().unwrap();
    assert!((number(&again, "kl") - number(last, "kl")).abs() < 1e-4 * number(last, "kl"), "{again} {last}");

    TSNE.refuse(folder.path(), &["--change", "90:theta=0"], "theta: must be exaggeration");
    let err = TSNE.fail(folder.path(), &tiny(&["--change", "150:momentum=0.5", "--out", "other"]), 1);
    assert!(err.contains("--change: must be at an iteration below 150, got 150"), "{err}");
    let args = ["--max-rows", "50", "--affinity", "uniform", "--change", "9:perplexity=5", "--out", "other"];
    let err = TSNE.fail(folder.path(), &args, 1);
    assert!(err.contains("--change") && err.contains("--affinity uniform has none"), "{err}");
}

#[test]
fn equal_rows_are_one_point_in_pictures_measures_and_when_resumed() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    // 40 rows three times each, by turns.
    let x = |i: usize, d: usize| ((i * (7 + 4 * d)) % 40) as f32 + if i.is_multiple_of(2) { 0. } else { 90. };
    let row = |i: usize| format!("{},{},{},{}\n", x(i, 0), x(i, 1), x(i, 2), i % 2);
    let table: String = (0..120).map(|i| row(i % 40)).collect();
    std::fs::write(at.join("rows.csv"), format!("a,b,c,label\n{table}")).unwrap();
    let args = ["train", "--data", "rows.csv", "--unique", "--perplexity", "5", "--early-iterations", "60"];
    let made = TSNE.json(at, &[&args[..], &["--iterations", "90", "--out", "run"]].concat());
    assert_eq!((made["n_rows"].as_u64(), made["n_points"].as_u64()), (Some(120), Some(40)));
    let run = at.join("run");
    assert_eq!(config(&run)["unique"], json!(true));
    has(&run.join("README.md"), &["equal rows as one point", "| distinct rows | 40 |"]);
    let together = |run: &std::path::Path| {
        let layout = super::read(&run.join("layout.npy")).to_vec2::<f32>().unwrap();
        assert!(layout.len() == 120 && (0..120).all(|i| layout[i] == layout[i % 40]), "{layout:?}");
    };
    together(&run);
    let again = TSNE.json(at, &["evaluate", "run"]);
    for figure in ["kl", "trustworthiness", "knn_recall", "knn_label_accuracy"] {
        assert_eq!(number(&made, figure), number(&again, figure), "{figure}");
    }
    let more = TSNE.json(at, &["train", "--resume", "run", "--iterations", "120"]);
    assert_eq!((more["n_points"].as_u64(), more["iterations"].as_u64()), (Some(40), Some(180)));
    together(&run);
    let whole = TSNE.json(at, &[&args[..], &["--iterations", "120", "--out", "whole"]].concat());
    assert_eq!(layout_of(&run), layout_of(&at.join("whole")));
    assert_eq!(number(&more, "kl"), number(&whole, "kl"));
    let all: Vec<f32> = (0..120 * 120)
        .map(|place| {
            let (i, j) = (place / 120 % 40, place % 40);
            (0..3).map(|d| (x(i, d) - x(j, d)).abs()).sum()
        })
        .collect();
    write_npy(&at.join("distances.npy"), [120, 120], &all);
    let more = ["--distance-matrix", "distances.npy", "--iterations", "90", "--out", "matrix"];
    assert_eq!(TSNE.json(at, &[&args[..], &more].concat())["n_points"].as_u64(), Some(40));
    together(&at.join("matrix"));
    let more = ["--neighbours-from", "i.npy", "--distances", "d.npy"];
    TSNE.refuse(at, &[&args[..], &more].concat(), "cannot be used with");
    // No more neighbours weigh the same than there are rows that differ.
    let args =
        ["train", "--data", "rows.csv", "--unique", "--affinity", "uniform", "--early-iterations", "60"];
    TSNE.json(at, &[&args[..], &["--iterations", "60", "--out", "uniform"]].concat());
    has(&at.join("uniform/README.md"), &["39 neighbours that weigh the same"]);
    let said = TSNE.succeed(at, &["evaluate", "uniform"]);
    assert!(said.contains("120 rows at 39 neighbours that weigh the same"), "{said}");
}
