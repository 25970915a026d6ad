//! `--resume RUN --epochs N`: runs that are extended, whether they are finished or were
//! interrupted.

use crate::common::{DBN_ON_CPU, DICTIONARY, metrics, number, weights};
use serde_json::Value;
use std::path::Path;
use tempfile::TempDir;

/// 57 rows train and 3 are held out: 5 steps an epoch.
const ROWS: [&str; 4] = ["--max-rows", "60", "--batch", "10"];

/// A folder with `base`, a small trained network.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    DBN_ON_CPU.succeed(
        folder.path(),
        &[&["train", "--hidden", "12,8", "--epochs", "2", "--out", "base"][..], &ROWS].concat(),
    );
    folder
}

/// The learning rates of a run's epochs, of those whose line has `value` as `field`.
fn rates(run: &Path, field: &str, value: impl Into<Value>) -> Vec<f64> {
    let value = value.into();
    let lines = metrics(run);
    lines.iter().filter(|line| line[field] == value).map(|line| number(line, "learning_rate")).collect()
}

fn falls(rates: &[f64]) -> bool {
    rates.windows(2).all(|pair| pair[0] > pair[1])
}

#[test]
fn a_finished_network_is_extended_from_its_last_layer() {
    let folder = folder();
    let run = folder.path().join("base");
    let before = weights(&run);
    let said = DBN_ON_CPU.succeed(folder.path(), &["train", "--resume", "base", "--epochs", "5"]);
    assert!(said.contains("layer 2/2  epoch 3/5") && said.contains("layer 2/2  epoch 5/5"), "{said}");
    assert!(!said.contains("layer 1/2  epoch"), "{said}");
    assert!(weights(&run) != before);
    // The learning rate falls anew, from where five epochs have it after two.
    let rates = rates(&run, "layer", 2);
    assert_eq!(rates.len(), 5);
    assert!(falls(&rates[2..]) && rates[2] > 0.5 * rates[0], "{rates:?}");
    let err = DBN_ON_CPU.fail(folder.path(), &["train", "--resume", "base", "--epochs", "4"], 1);
    assert_eq!(
        err,
        "dbn: --resume base: --epochs: must be above the 5 of this run, got 4; leave it out to finish these 5"
    );
}

#[test]
fn a_fine_tuned_network_is_extended_with_its_best_epoch() {
    let folder = folder();
    let run = folder.path().join("run");
    let new = ["fine-tune", "base", "--autoencode", "--epochs", "2", "--out", "run"];
    DBN_ON_CPU.succeed(folder.path(), &[&new[..], &ROWS].concat());
    let before = weights(&run);
    let json = DBN_ON_CPU.json(folder.path(), &["fine-tune", "--resume", "run", "--epochs", "6"]);
    assert_eq!(json["epochs"].as_u64(), Some(6));
    assert!(weights(&run) != before);
    let all: Vec<f64> = metrics(&run).iter().map(|line| number(line, "learning_rate")).collect();
    assert_eq!(all.len(), 6);
    assert!(falls(&all[2..]) && (all[2] / all[0] - 4. / 6.).abs() < 1e-9, "{all:?}");
    // What was asked for last is what the run keeps.
    let err = DBN_ON_CPU.fail(folder.path(), &["fine-tune", "--resume", "run", "--epochs", "6"], 1);
    assert!(err.starts_with("dbn: --resume run: --epochs: must be above the 6 of this run, got 6"), "{err}");
}

#[test]
fn a_run_that_patience_ended_is_not_extended() {
    let folder = folder();
    // A step so small that no row is classified otherwise: no epoch is better than the first.
    let new =
        ["fine-tune", "base", "--classify", "--epochs", "9", "--patience", "2", "--learning-rate", "1e-12"];
    let json = DBN_ON_CPU.json(folder.path(), &[&new[..], &["--out", "run"], &ROWS].concat());
    assert_eq!((json["epochs"].as_u64(), json["best_epoch"].as_u64()), (Some(3), Some(1)));
    let err = DBN_ON_CPU.fail(folder.path(), &["fine-tune", "--resume", "run", "--epochs", "12"], 1);
    assert_eq!(
        err,
        "dbn: --resume run: --epochs: this run must not have been stopped by --patience, and it was after 3 epochs; start a \
         new run with a larger --patience"
    );
    DBN_ON_CPU.succeed(folder.path(), &["fine-tune", "--resume", "run"]);
}

#[test]
fn an_up_down_run_is_extended_in_its_last_stage_with_its_gibbs_steps() {
    let folder = folder();
    let run = folder.path().join("run");
    let new = ["up-down", "base", "--top-epochs", "1", "--epochs", "2", "--k", "1,3", "--out", "run"];
    DBN_ON_CPU.succeed(folder.path(), &[&new[..], &ROWS].concat());
    let said = DBN_ON_CPU.succeed(folder.path(), &["up-down", "--resume", "run", "--epochs", "6"]);
    assert!(said.contains("up-down  epoch 3/6") && !said.contains("top      epoch"), "{said}");
    let rates = rates(&run, "stage", "up-down");
    assert_eq!(rates.len(), 6);
    assert!(falls(&rates[2..]) && (rates[2] / rates[0] - 4. / 6.).abs() < 1e-9, "{rates:?}");
    let k: Vec<f64> = metrics(&run).iter().skip(1).map(|line| number(line, "k")).collect();
    assert_eq!(k, [1., 3., 1., 3., 3., 3.], "each number for half of the six epochs, from the third on");
    let err = DBN_ON_CPU.fail(folder.path(), &["up-down", "--resume", "run", "--epochs", "3"], 1);
    assert!(err.starts_with("dbn: --resume run: --epochs: must be above the 6 of this run, got 3"), "{err}");
}

#[test]
fn a_run_of_the_labels_only_is_extended_to_the_up_down_algorithm() {
    let folder = folder();
    let new = ["up-down", "base", "--top-epochs", "2", "--epochs", "0", "--out", "run"];
    DBN_ON_CPU.succeed(folder.path(), &[&new[..], &ROWS].concat());
    DBN_ON_CPU.succeed(folder.path(), &["up-down", "--resume", "run", "--epochs", "2"]);
    assert_eq!(rates(&folder.path().join("run"), "stage", "up-down").len(), 2);
}

#[test]
fn an_extended_run_that_is_interrupted_goes_on_as_extended() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    let runs: [&[&str]; 3] = [
        &["train", "--hidden", "6"],
        &["fine-tune", "base", "--classify", "--optimizer", "sgd"],
        &["up-down", "base", "--top-epochs", "1", "--k", "1,2"],
    ];
    for run in runs {
        for (out, steps) in [("whole", None), ("parts", Some("3"))] {
            let new = [run, &["--epochs", "2", "--overwrite", "--out", out], &ROWS].concat();
            // Before its end, and within an epoch.
            DBN_ON_CPU.fail(folder.path(), &[&new[..], &["--stop-after-steps", "8"]].concat(), 130);
            let extend = [&run[..1], &["--resume", out, "--epochs", "4"]].concat();
            match steps {
                None => drop(DBN_ON_CPU.succeed(folder.path(), &extend)),
                Some(steps) => {
                    DBN_ON_CPU.fail(
                        folder.path(),
                        &[&extend[..], &["--stop-after-steps", steps]].concat(),
                        130,
                    );
                    DBN_ON_CPU.succeed(folder.path(), &[run[0], "--resume", out]);
                }
            }
        }
        assert!(weights(&at("whole")) == weights(&at("parts")), "{run:?}");
        assert!(metrics(&at("parts")).len() == metrics(&at("whole")).len(), "{run:?}");
    }
}

#[test]
fn a_dictionary_is_extended_by_epochs() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    for online in [&[][..], &["--online", "--batch", "50"]] {
        let new = ["train", "--data", "mnist-sample", "--max-rows", "200", "--atoms", "12", "--nonzero", "2"];
        let out = ["--epochs", "2", "--out", "run", "--overwrite", "--device", "cpu"];
        DICTIONARY.succeed(folder.path(), &[&new[..], &out, online].concat());
        let resume = |n: &'static str| ["train", "--resume", "run", "--device", "cpu", "--epochs", n];
        DICTIONARY.succeed(folder.path(), &resume("5"));
        assert_eq!(metrics(&run).len(), 5, "{online:?}");
        let err = DICTIONARY.fail(folder.path(), &resume("4"), 1);
        let want = "--epochs: must be above the 5 of this run, got 4";
        assert!(err.contains(want), "{err}");
        assert_eq!(metrics(&run).len(), 5, "{online:?}: a refused extension changed the run");
    }
}
