//! `dbn fine-tune` as a user runs it: the built binary, tiny networks, real folders.
use crate::common::{DBN, DBN_ON_CPU, has, metrics, number, picture_size, results, side, weights};
use chandlery::feedforward::{Feedforward, Task};
use chandlery::{LoadOptions, Model};
use tempfile::TempDir;

/// A network `pre` of 784-30-3 with a real-valued code, and the folder that it is in.
fn pre_trained() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let args = ["train", "--max-rows", "200", "--hidden", "30,3", "--code-unit", "gaussian", "--epochs", "2"];
    DBN_ON_CPU.json(folder.path(), &[&args[..], &["--batch", "10", "--out", "pre"]].concat());
    folder
}

/// 190 rows train and 10 are held out: 19 steps an epoch, three epochs.
const TINY: [&str; 8] = ["fine-tune", "pre", "--max-rows", "200", "--epochs", "3", "--batch", "10"];

fn tiny<'a>(more: &[&'a str]) -> Vec<&'a str> {
    TINY.iter().chain(more).copied().collect()
}

#[test]
fn a_classifier_leaves_a_whole_folder_and_one_json_object() {
    let folder = pre_trained();
    let result = DBN_ON_CPU.json(folder.path(), &tiny(&["--classify", "--out", "run"]));
    assert_eq!((&result["layers"], &result["n_train"]), (&"784-30-3-10".into(), &190.into()));
    let error = number(&result, "test_error");
    assert_eq!(number(&result, "test_errors"), (error * 200.).round());
    assert!((0. ..=1.).contains(&error) && number(&result, "seconds") > 0.);
    assert!(result.get("pca_squared_error").is_none());

    let run = folder.path().join("run");
    let network = Feedforward::from_pretrained(&run, &LoadOptions::default()).unwrap();
    assert_eq!((network.config().task, network.config().image), (Task::Classify, Some([28, 28, 1].into())));
    let lines = metrics(&run);
    assert_eq!(lines.iter().map(|l| l["epoch"].as_u64().unwrap()).collect::<Vec<_>>(), [1, 2, 3]);
    assert!(lines.iter().all(|l| (0. ..=1.).contains(&number(l, "held_out_error"))));
    has(&run.join("README.md"), &["Deep classifier 784-30-3-10", "--classify", "rows misclassified"]);
    has(&run.join("curves.svg"), &["epoch", "rows misclassified, %", "held-out"]);
    assert_eq!(results(&run), result);
}

#[test]
fn an_autoencoder_draws_its_codes_and_stands_beside_principal_components() {
    let folder = pre_trained();
    let result = DBN_ON_CPU.json(folder.path(), &tiny(&["--autoencode", "--out", "run"]));
    assert_eq!((&result["layers"], &result["pca_components"]), (&"784-30-3-30-784".into(), &3.into()));
    // Three components leave about 41 of the 53 of mnist-sample; so few steps do not beat that.
    let (error, pca) = (number(&result, "test_squared_error"), number(&result, "pca_squared_error"));
    assert!((38. ..45.).contains(&pca), "{pca}");
    assert!((20. ..70.).contains(&error), "{error}");

    let run = folder.path().join("run");
    assert_eq!(picture_size(&run.join("reconstructions.png")), (side(10), side(8)));
    let title = "codes of 200 test rows: first two principal components of 3 units";
    has(&run.join("codes.svg"), &[title, "principal component of the code 1"]);
    let codes = std::fs::read_to_string(run.join("codes.svg")).unwrap();
    // A mark for each row, and one for each digit of the legend.
    assert_eq!(codes.matches("<circle").count(), 200 + 10);
    has(&run.join("README.md"), &["the same with 3 principal components", "codes.svg"]);
    let network = Feedforward::from_pretrained(&run, &LoadOptions::default()).unwrap();
    assert_eq!(network.config().task, Task::Autoencode { encoder_layers: 2 });
}

#[test]
fn a_run_that_was_stopped_anywhere_ends_in_the_same_bits() {
    let folder = pre_trained();
    let at = |name: &str| folder.path().join(name);
    // Dropout, momentum and a best epoch are what a checkpoint could forget.
    let flags = ["--classify", "--patience", "9", "--optimizer", "sgd", "--checkpoint-every", "0"];
    let run = |more: &[&'static str]| -> Vec<&'static str> { tiny(&[&flags[..], more].concat()) };
    let whole = DBN_ON_CPU.json(folder.path(), &run(&["--out", "whole"]));
    for (steps, out) in [("7", "a"), ("19", "b"), ("45", "c")] {
        let err = DBN_ON_CPU.fail(folder.path(), &run(&["--out", out, "--stop-after-steps", steps]), 130);
        assert_eq!(err, format!("interrupted; resume with: dbn fine-tune --resume {out}"));
        assert!(!at(out).join("model.safetensors").exists());
        let resumed = DBN_ON_CPU.json(folder.path(), &["fine-tune", "--resume", out]);
        assert!(weights(&at(out)) == weights(&at("whole")), "stopped after {steps} steps");
        for key in ["test_error", "best_epoch", "held_out_error", "training_error", "epochs"] {
            assert_eq!(resumed[key], whole[key], "{key}, stopped after {steps} steps");
        }
        assert_eq!(metrics(&at(out)).len(), 3);
    }
}

#[test]
fn a_seed_decides_every_bit_and_random_weights_are_others() {
    let folder = pre_trained();
    let run = |out: &'static str, more: &[&'static str]| {
        DBN_ON_CPU.json(folder.path(), &tiny(&[&["--classify", "--out", out], more].concat()));
        weights(&folder.path().join(out))
    };
    let (a, b, c) = (run("a", &[]), run("b", &[]), run("c", &["--seed", "1"]));
    assert!(a == b, "one seed, two networks");
    assert!(a != c, "two seeds, one network");
    assert!(a != run("d", &["--from-scratch"]), "random weights, and the same network");
}

/// The comparison for which pre-training was invented: 4,750 rows without labels, and for both
/// fifty labels of each digit.
#[test]
fn with_500_labels_pre_training_beats_random_weights() {
    let folder = tempfile::tempdir().unwrap();
    let pre = ["train", "--hidden", "300", "--epochs", "20", "--out", "pre"];
    DBN_ON_CPU.json(folder.path(), &pre);
    let errors = |more: &[&'static str]| -> f64 {
        // The mean of three seeds: other labels, other dropout, other random weights. One is within
        // 1 % of it.
        let of = |seed| {
            let flags =
                ["fine-tune", "pre", "--classify", "--labelled", "500", "--epochs", "60", "--batch", "50"];
            let out = ["--out", "run", "--overwrite", "--seed", seed];
            let result = DBN_ON_CPU.json(folder.path(), &[&flags[..], &out, more].concat());
            assert_eq!(result["n_train"], 500);
            number(&result, "test_error")
        };
        ["0", "1", "2"].map(of).iter().sum::<f64>() / 3.
    };
    let (pre_trained, random) = (errors(&[]), errors(&["--from-scratch"]));
    assert!(random > 0.11, "without pre-training {random}: the baseline must be the worse");
    assert!(pre_trained < random - 0.01, "pre-trained {pre_trained}, without {random}");
}

#[test]
fn what_is_wrong_is_said_before_anything_is_written() {
    let folder = pre_trained();
    let at = folder.path();
    DBN.refuse(at, &["fine-tune", "pre"], "--classify|--autoencode|--resume <RUN>");
    DBN.refuse(at, &["fine-tune", "--classify"], "MODEL");
    DBN.refuse(at, &["fine-tune", "pre", "--classify", "--autoencode"], "cannot be used with");
    DBN.refuse(at, &["fine-tune", "pre", "--autoencode", "--labelled", "9"], "cannot be used with");
    DBN.refuse(at, &["fine-tune", "--resume", "x", "--batch", "3"], "cannot be used with");
    DBN.refuse(at, &["fine-tune", "pre", "--classify", "--dropout", "1"], "of at least 0 and below 1");

    // The older name of --labelled.
    let err = DBN_ON_CPU.fail(at, &tiny(&["--classify", "--labelled", "5000", "--out", "run"]), 1);
    assert!(err.starts_with("dbn: --labelled 5000: class 0 has ") && err.ends_with("ask for fewer"), "{err}");
    let err = DBN_ON_CPU.fail(at, &["fine-tune", "nowhere", "--classify", "--out", "run"], 1);
    assert!(err.starts_with("dbn: nowhere: no such folder"), "{err}");
    let err = DBN_ON_CPU.fail(at, &["fine-tune", "--resume", "pre"], 1);
    assert!(
        err.starts_with(
            "dbn: --resume pre: this is a run of `dbn train`; resume it with `dbn train --resume pre`"
        ),
        "{err}"
    );
    assert!(!at.join("run").exists());
}

/// Layers of windows and of pooled filters, each below a dense layer.
const OF_WINDOWS: [(&str, &str); 2] =
    [("patch:8/4x4,patch:3/1x4,dense:12", "784-144-64-12"), ("conv:9x4/pool2,dense:12", "784-400-12")];

#[test]
fn networks_of_windows_and_filters_are_fine_tuned_resumed_and_loaded() {
    for (layers, sizes) in OF_WINDOWS {
        let folder = tempfile::tempdir().unwrap();
        let (at, run) = (folder.path(), |name: &str| folder.path().join(name));
        let train = ["train", "--max-rows", "200", "--epochs", "1", "--batch", "10", "--layers", layers];
        DBN_ON_CPU.json(at, &[&train[..], &["--out", "pre"]].concat());
        for (task, error) in [("--classify", "test_error"), ("--autoencode", "test_squared_error")] {
            let flags = tiny(&[task, "--dropout", "0.2", "--checkpoint-every", "0"]);
            let whole = DBN_ON_CPU.json(at, &[&flags[..], &["--out", "whole"]].concat());
            assert!(whole["layers"].as_str().unwrap().starts_with(sizes), "{whole}");
            DBN_ON_CPU.fail(at, &[&flags[..], &["--out", "cut", "--stop-after-steps", "31"]].concat(), 130);
            DBN_ON_CPU.json(at, &["fine-tune", "--resume", "cut"]);
            assert!(weights(&run("cut")) == weights(&run("whole")), "{layers} {task}: other weights");
            // What was saved is what was measured.
            let evaluated = DBN_ON_CPU.json(at, &["evaluate", "whole"]);
            assert_eq!(number(&evaluated, error), number(&whole, error), "{layers} {task}");
            let network = Feedforward::from_pretrained(run("whole"), &LoadOptions::default()).unwrap();
            assert!(!network.config().layers[0].connections.is_dense());
            let of_whole = if layers.starts_with("patch") { "6x6 windows" } else { "4 filters of 9x9" };
            has(&run("whole").join("README.md"), &[of_whole, "The weight of a layer of"]);
            for name in ["whole", "cut"] {
                std::fs::remove_dir_all(run(name)).unwrap();
            }
        }
    }
}

/// The linear classifier reads the features of the pre-trained network; fine-tuning begins at these
/// features.
#[test]
fn fine_tuning_a_network_of_windows_beats_the_linear_classifier_on_its_features() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let train = ["train", "--layers", "patch:8/4x6,dense:60", "--epochs", "4", "--out", "pre"];
    let before = 1. - number(&DBN_ON_CPU.json(at, &train), "accuracy_features");
    let flags = ["fine-tune", "pre", "--classify", "--epochs", "20", "--dropout", "0.2", "--out", "tuned"];
    let rate = ["--learning-rate", "0.01"];
    let after = number(&DBN_ON_CPU.json(at, &[&flags[..], &rate].concat()), "test_error");
    // 1,000 rows: two standard errors of a difference at 8 % are 2.4 %, of which the rows in common
    // take a part.
    assert!(after < before - 0.01, "before {before}, after {after}");
}
