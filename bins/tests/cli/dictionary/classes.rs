//! `classify`, and rows that are coded in chunks.
use super::{folder, tiny};
use crate::common::{DICTIONARY, number, weights};

/// Few digits: 400 to learn from and 200 to tell.
const FEW: [&str; 4] = ["--max-rows", "400", "--device", "cpu"];

#[test]
fn digits_are_told_apart_by_residuals_and_by_codes() {
    let folder = tempfile::tempdir().unwrap();
    let classify = |more: &[&str]| {
        let first = ["classify", "--nonzero", "4", "--epochs", "4"];
        DICTIONARY.json(folder.path(), &[&first[..], &FEW, more].concat())
    };
    let few = ["--atoms", "20"];
    let residual = classify(&few);
    assert_eq!((residual["n_samples"].as_u64(), residual["n_classes"].as_u64()), (Some(400), Some(10)));
    // Chance is a tenth.
    assert!(number(&residual, "accuracy") > 0.75, "{residual}");
    let of_classes = residual["class_accuracies"].as_array().unwrap();
    assert_eq!(of_classes.len(), 10);
    let mean: f64 = of_classes.iter().map(|share| share.as_f64().unwrap()).sum::<f64>() / 10.;
    // Classes have as many rows each, but for one.
    assert!((mean - number(&residual, "accuracy")).abs() < 0.01, "{residual}");
    assert_eq!(classify(&[&few[..], &["--chunk-rows", "64"]].concat())["accuracy"], residual["accuracy"]);
    let in_groups = classify(&[&few[..], &["--rule", "sgk", "--group", "3", "--pursuit", "ols"]].concat());
    assert!(number(&in_groups, "accuracy") > 0.7, "{in_groups}");

    let readout = classify(&["--by", "readout", "--atoms", "100"]);
    assert!(readout["class_accuracies"].is_null(), "{readout}");
    assert!(number(&readout, "accuracy") > 0.6 && number(&readout, "accuracy_pixels") > 0.6, "{readout}");

    std::fs::write(folder.path().join("plain.csv"), "1,2,3\n4,5,6\n").unwrap();
    let refused: [(&[&str], &str); 3] = [
        (&["--data", "plain.csv"], "--data: there must be test rows"),
        (&["--atoms", "4", "--nonzero", "5"], "--nonzero: must be at most --atoms, 4, got 5"),
        (&["--group", "65"], "--group: must be at most --atoms, 64, got 65"),
    ];
    for (args, want) in refused {
        let err = DICTIONARY.fail(folder.path(), &[&["classify", "--device", "cpu"], args].concat(), 1);
        assert!(err.contains(want), "{args:?}: {err}");
    }
}

#[test]
fn rows_in_chunks_give_the_same_atoms_and_codes() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    let train =
        |more: &[&str]| DICTIONARY.json(folder.path(), &tiny(&[&["--data", "grey.png"][..], more].concat()));
    let (whole, parts) = (train(&["--out", "whole"]), train(&["--out", "parts", "--chunk-rows", "100"]));
    let error = |result| number(result, "rmse");
    // The rounding of a product may depend on the number of its rows.
    assert!((error(&whole) - error(&parts)).abs() < 1e-3 * error(&whole), "{whole} {parts}");
    let config = |run: &str| std::fs::read_to_string(at(run).join("config.json")).unwrap();
    assert!(!config("whole").contains("chunk") && config("parts").contains("\"chunk\": 100"));
    assert_eq!(weights(&at("whole")).len(), weights(&at("parts")).len());
    let encode = |more: &[&str]| {
        let first = ["encode", "whole", "--data", "grey.png", "--device", "cpu"];
        DICTIONARY.json(folder.path(), &[&first[..], more].concat())
    };
    let (whole, parts) = (encode(&[]), encode(&["--chunk-rows", "7"]));
    assert!((error(&whole) - error(&parts)).abs() < 1e-3 * error(&whole), "{whole} {parts}");
    // A run goes on in chunks.
    let more =
        DICTIONARY.json(folder.path(), &["train", "--resume", "parts", "--epochs", "7", "--device", "cpu"]);
    assert!(config("parts").contains("\"chunk\": 100"), "{more}");
}
