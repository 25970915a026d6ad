//! Kinds of affinities.
use super::common::{TSNE, has, number};
use super::tiny;
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
    assert!(err.contains("--perplexity: --affinity uniform has none") && err.contains("--neighbours"), "{err}");
    TSNE.refuse(folder.path(), &["--affinity", "fixed-width=0"], "above 0");
}
