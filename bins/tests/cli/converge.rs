//! Training ends where its loss has converged: `--tolerance` and `--patience` in every program of
//! epochs.

use crate::common::{
    DAE, DBN_ON_CPU, DICTIONARY_ON_CPU, Program, SPARSE_AUTOENCODER, SPARSE_CODING, has, metrics, weights,
};
use std::path::Path;

const ROWS: [&str; 2] = ["--max-rows", "120"];

/// A program, what it trains, and how many layers or stages end by themselves.
fn trainings() -> Vec<(&'static Program, Vec<&'static str>, usize)> {
    let dictionary = ["train", "--data", "mnist-sample", "--atoms", "12", "--nonzero", "2"];
    let (dictionary, batch) = (dictionary.to_vec(), ["--batch", "20"]);
    let sparse_autoencoder = ["train", "--data", "mnist-sample", "--hidden", "9", "--optimizer", "adam"];
    vec![
        (&SPARSE_AUTOENCODER, [&sparse_autoencoder[..], &batch].concat(), 1),
        (&DAE, [&["train", "--hidden", "9,6"][..], &batch].concat(), 2),
        (&DBN_ON_CPU, [&["train", "--hidden", "9,6"][..], &batch].concat(), 2),
        (&DBN_ON_CPU, [&["up-down", "base", "--top-epochs", "9"][..], &batch].concat(), 2),
        (&DBN_ON_CPU, [&["fine-tune", "base", "--classify"][..], &batch].concat(), 1),
        (&DICTIONARY_ON_CPU, dictionary.clone(), 1),
        (&DICTIONARY_ON_CPU, [&dictionary[..], &["--online"], &batch].concat(), 1),
        (&SPARSE_CODING, [&["train", "--data", "mnist-sample", "--atoms", "12"][..], &batch].concat(), 1),
    ]
}

fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let base = ["train", "--hidden", "9", "--epochs", "1", "--batch", "20", "--out", "base"];
    DBN_ON_CPU.succeed(folder.path(), &[&base[..], &ROWS].concat());
    folder
}

fn lines(at: &Path, run: &str) -> usize {
    metrics(&at.join(run)).len()
}

#[test]
fn training_ends_after_epochs_without_an_improvement_and_says_so() {
    let folder = folder();
    let at = folder.path();
    for (i, (program, training, parts)) in trainings().into_iter().enumerate() {
        let out = format!("run{i}");
        // No loss falls by more than itself, so the first two epochs after the first are the end.
        let until = ["--epochs", "9", "--tolerance", "2", "--patience", "2", "--out", &out];
        let said = program.succeed(at, &[&training[..], &ROWS, &until].concat());
        let line = "converged after 3 epochs of 9: the loss improved by less than 2 of itself in each of 2 epochs in a row";
        assert_eq!(said.matches(line).count(), parts, "{training:?}\n{said}");
        assert_eq!(lines(at, &out), 3 * parts, "{training:?}");
        // A run that has ended stays so.
        let before = weights(&at.join(&out));
        program.succeed(at, &[training[0], "--resume", &out]);
        assert!((lines(at, &out), weights(&at.join(&out))) == (3 * parts, before), "{training:?}");
        let err = program.fail(at, &[training[0], "--resume", &out, "--epochs", "12"], 1);
        let want = "--epochs: this run must not have been ended by --tolerance, and it was after 3 epochs; start a new run with a smaller --tolerance";
        assert!(err.ends_with(want), "{err}");
        assert_eq!(lines(at, &out), 3 * parts, "{training:?}");
    }
    has(
        &at.join("run1/README.md"),
        &["9 epochs per layer at most, until the loss improved by less than 2 of itself"],
    );
}

#[test]
fn a_loss_that_falls_ends_nothing_and_trains_to_the_same_bits() {
    let folder = folder();
    let at = folder.path();
    let train = ["train", "--hidden", "9", "--learning-rate", "0.05", "--epochs", "5", "--batch", "20"];
    DAE.succeed(at, &[&train[..], &ROWS, &["--out", "all"]].concat());
    let said = DAE.succeed(
        at,
        &[&train[..], &ROWS, &["--tolerance", "0", "--patience", "1", "--out", "until"]].concat(),
    );
    assert!(!said.contains("converged"), "{said}");
    assert_eq!((lines(at, "all"), lines(at, "until")), (5, 5));
    assert!(weights(&at.join("all")) == weights(&at.join("until")));
}

#[test]
fn a_run_that_is_stopped_keeps_its_count_of_epochs_without_an_improvement() {
    let folder = folder();
    let at = folder.path();
    for (i, (program, training, parts)) in trainings().into_iter().enumerate() {
        let [whole, stopped] = ["whole", "stopped"].map(|name| format!("{name}{i}"));
        let until = ["--epochs", "9", "--tolerance", "2", "--patience", "3"];
        let train = [&training[..], &ROWS, &until].concat();
        program.succeed(at, &[&train[..], &["--out", &whole]].concat());
        assert_eq!(lines(at, &whole), 4 * parts, "{training:?}");
        // Some steps at a time, up to the end.
        let mut command = [&train[..], &["--out", &stopped, "--stop-after-steps", "13"]].concat();
        let mut processes = 1;
        while !program.command(at, &command).output().unwrap().status.success() {
            command = vec![training[0], "--resume", &stopped, "--stop-after-steps", "13"];
            processes += 1;
            assert!(processes < 60, "{training:?} does not end");
        }
        assert_eq!(lines(at, &stopped), 4 * parts, "{training:?} in {processes} processes");
        assert!(weights(&at.join(&whole)) == weights(&at.join(&stopped)), "{training:?}");
    }
}

#[test]
fn patience_of_fine_tuning_is_that_of_held_out_rows_unless_there_is_a_tolerance() {
    let folder = folder();
    let at = folder.path();
    let tune =
        ["fine-tune", "base", "--classify", "--epochs", "6", "--patience", "2", "--learning-rate", "1e-12"];
    let held_out = DBN_ON_CPU.json(at, &[&tune[..], &ROWS, &["--out", "a"]].concat());
    assert_eq!((held_out["epochs"].as_u64(), held_out["best_epoch"].as_u64()), (Some(3), Some(1)));
    let loss = DBN_ON_CPU.json(at, &[&tune[..], &ROWS, &["--tolerance", "2", "--out", "b"]].concat());
    assert_eq!((loss["epochs"].as_u64(), loss["best_epoch"].as_u64()), (Some(3), None));
}

#[test]
fn a_tolerance_out_of_range_and_a_patience_without_one_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    for program in [&DAE, &DBN_ON_CPU, &DICTIONARY_ON_CPU, &SPARSE_CODING] {
        program.refuse(folder.path(), &["train", "--tolerance=-1"], "must be a number of at least 0");
        program.refuse(folder.path(), &["train", "--tolerance", "nan"], "must be a number of at least 0");
        program.refuse(folder.path(), &["train", "--patience", "3"], "--tolerance <SHARE>");
    }
    DAE.refuse(
        folder.path(),
        &["train", "--tolerance", "0.1", "--patience", "0"],
        "must be a whole number of at least 1",
    );
    DAE.refuse(folder.path(), &["train", "--resume", "run", "--tolerance", "0.1"], "cannot be used with");
    let err = SPARSE_AUTOENCODER.fail(folder.path(), &["train", "--tolerance", "0.1"], 1);
    assert!(err.contains("--tolerance: L-BFGS makes iterations over all rows"), "{err}");
}
