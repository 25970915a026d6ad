//! Tables of few rows: what the defaults choose, and that they help.
use crate::common::{
    DAE, DBN_ON_CPU, Program, SPARSE_AUTOENCODER, TSNE, has, metrics, number, results, weights, write_npy,
};
use candle::{DType, Device::Cpu, Tensor};
use chandlery_ops::Philox;
use chandlery_ops::core::normal;
use std::collections::HashMap;
use std::path::Path;
use tempfile::TempDir;

/// `n` rows of 6 columns in 3 classes that overlap a little; columns are on other scales, one is
/// constant.
fn table(n: usize, seed: u64) -> (Tensor, Tensor) {
    let noise = normal((n, 6), &Cpu, Philox::new(seed, 0)).unwrap();
    let corner =
        |i: usize| [[0f32, 4., 0., 4., 0., 0.], [4., 0., 0., 4., 4., 0.], [0., 0., 4., 0., 4., 0.]][i % 3];
    let corners = Tensor::from_vec((0..n).flat_map(corner).collect(), (n, 6), &Cpu).unwrap();
    let scales = Tensor::new(&[1f32, 1000., 0.01, 30., 5., 0.], &Cpu).unwrap();
    let rows = (noise + corners).unwrap().broadcast_mul(&scales).unwrap();
    let rows = rows.broadcast_add(&Tensor::new(&[0f32, 5000., 0., -20., 7., 3.], &Cpu).unwrap()).unwrap();
    (rows, Tensor::new((0..n as u32).map(|i| i % 3).collect::<Vec<_>>(), &Cpu).unwrap())
}

/// A folder with such a table of 150 training rows and 90 test rows, `table.safetensors`.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let ((train, labels), (test, test_labels)) = (table(150, 1), table(90, 2));
    let arrays = [("x_train", train), ("x_test", test), ("y_train", labels), ("y_test", test_labels)];
    candle::safetensors::save(&HashMap::from(arrays), folder.path().join("table.safetensors")).unwrap();
    folder
}

const TRAIN: [&str; 4] = ["train", "--data", "table.safetensors", "--hidden"];

/// What the program says on standard error.
fn said(program: &Program, folder: &Path, args: &[&str]) -> String {
    let output = program.command(folder, args).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn a_table_is_learned_by_the_defaults_which_say_what_they_chose() {
    let folder = folder();
    let at = folder.path();
    let notes = said(&DBN_ON_CPU, at, &[&TRAIN[..], &["60", "--out", "dbn"]].concat());
    // 142 of 150 rows: a twentieth is held out. 15 updates an epoch, 2,400 in all.
    assert!(notes.contains("143 training rows: minibatches of 10, 160 epochs"), "{notes}");
    assert!(notes.contains("--visible gaussian --prepare standardise"), "{notes}");
    let of = results(&at.join("dbn"));
    assert_eq!(number(&of, "settings/batch"), 10.);
    assert_eq!(number(&of, "settings/epochs"), 160.);
    assert_eq!(of["settings"]["prepare"], serde_json::json!(["standardise"]));
    assert_eq!(metrics(&at.join("dbn")).len(), 160);
    let (features, raw) = (number(&of, "accuracy_features"), number(&of, "accuracy_pixels"));
    assert!(raw > 0.9 && features >= raw - 0.02, "{features} on features, {raw} on raw rows");

    let tuned = DBN_ON_CPU.json(at, &["fine-tune", "dbn", "--classify", "--out", "tuned"]);
    assert!(number(&tuned, "test_error") < 0.1, "{tuned}");
    // One step an epoch on all that fills a minibatch of 100, which was the default for any number
    // of rows, learns little.
    let few = [
        "fine-tune",
        "dbn",
        "--classify",
        "--from-scratch",
        "--batch",
        "100",
        "--epochs",
        "10",
        "--out",
        "few",
    ];
    assert!(number(&DBN_ON_CPU.json(at, &few), "test_error") > 0.1);

    let notes = said(&DAE, at, &[&TRAIN[..], &["60", "--out", "dae"]].concat());
    assert!(notes.contains("minibatches of 8, 139 epochs") && notes.contains("--prepare minmax"), "{notes}");
    let of = results(&at.join("dae"));
    let (features, raw) = (number(&of, "accuracy_features"), number(&of, "accuracy_pixels"));
    assert!(raw > 0.9 && features >= raw - 0.02, "{features} on features, {raw} on raw rows");
    has(&at.join("dae/config.json"), &["\"step\": \"minmax\""]);
}

#[test]
fn columns_on_one_scale_are_mapped_onto_probabilities() {
    let folder = tempfile::tempdir().unwrap();
    let counts = (normal((120, 5), &Cpu, Philox::new(4, 0)).unwrap().abs().unwrap() * 5.).unwrap();
    let counts = counts.flatten_all().unwrap().to_vec1::<f32>().unwrap();
    write_npy(&folder.path().join("counts.npy"), [120, 5], &counts);
    let train = ["train", "--data", "counts.npy", "--hidden", "4", "--epochs", "1", "--out", "run"];
    let notes = said(&DBN_ON_CPU, folder.path(), &train);
    assert!(notes.contains("--prepare minmax, chosen for this table"), "{notes}");
    assert_eq!(results(&folder.path().join("run"))["settings"]["visible"], serde_json::Value::Null);
}

#[test]
fn what_was_asked_for_is_kept_and_refusals_name_the_step() {
    let folder = folder();
    let at = folder.path();
    let run = |more: &[&str]| DBN_ON_CPU.fail(at, &[&TRAIN[..], &["4", "--out", "never"], more].concat(), 1);
    let mend = "use --prepare minmax, or --visible gaussian --prepare standardise";
    assert!(run(&["--visible", "bernoulli"]).ends_with(mend));
    assert!(run(&["--prepare", "standardise"]).ends_with(mend));
    let refused = ["4", "--loss", "cross-entropy", "--prepare", "standardise", "--out", "never"];
    let loss = DAE.fail(at, &[&TRAIN[..], &refused].concat(), 1);
    assert!(loss.ends_with("use --prepare minmax, or --loss squared-error"), "{loss}");
    let asked = [
        "4",
        "--batch",
        "50",
        "--epochs",
        "2",
        "--prepare",
        "minmax",
        "--learning-rate",
        "0.05",
        "--out",
        "run",
    ];
    let notes = said(&DBN_ON_CPU, at, &[&TRAIN[..], &asked].concat());
    assert!(!notes.contains("chosen") && !notes.contains("minibatches"), "{notes}");
    let of = results(&at.join("run"));
    assert_eq!((number(&of, "settings/batch"), number(&of, "settings/epochs")), (50., 2.));
}

#[test]
fn features_that_lose_to_raw_rows_are_warned_of() {
    let folder = folder();
    let args = ["1", "--epochs", "1", "--learning-rate", "0.0000001", "--out", "run"];
    let notes = said(&DBN_ON_CPU, folder.path(), &[&TRAIN[..], &args].concat());
    assert!(notes.contains("warning: features lose to raw inputs here"), "{notes}");
    let warning = results(&folder.path().join("run"))["warning"].as_str().unwrap().to_owned();
    assert!(notes.contains(&warning), "{notes}");
}

#[test]
fn a_run_with_a_minibatch_that_is_not_full_resumes_to_the_same_bits() {
    let folder = folder();
    let at = folder.path();
    for (program, command) in [(&DBN_ON_CPU, "dbn"), (&DAE, "dae")] {
        let train = |out: &str, more: &[&str]| {
            let quick = ["5,4", "--batch", "20", "--epochs", "3", "--out", out];
            program.command(at, &[&TRAIN[..], &quick, more].concat()).output().unwrap()
        };
        let (whole, part) = (format!("{command}-whole"), format!("{command}-part"));
        assert!(train(&whole, &[]).status.success());
        // 143 rows: seven full minibatches and one of 3. The stop comes right after the first of
        // these.
        assert_eq!(train(&part, &["--stop-after-steps", "8"]).status.code(), Some(130));
        program.succeed(at, &["train", "--resume", &part]);
        assert!(weights(&at.join(&part)) == weights(&at.join(&whole)), "{command}: other weights");
    }
}

#[test]
fn steps_of_columns_are_applied_by_every_program() {
    let folder = folder();
    let at = folder.path();
    let (rows, _) = table(60, 3);
    let positive =
        rows.abs().unwrap().to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
    write_npy(&at.join("positive.npy"), [60, 6], &positive);
    let steps = ["--data", "positive.npy", "--prepare", "log1p,standardise,pca=3"];
    let tsne = ["train", "--iterations", "20", "--perplexity", "5", "--out", "tsne"];
    TSNE.succeed(at, &[&tsne[..], &steps].concat());
    let real = ["train", "--visible", "gaussian", "--hidden", "4", "--epochs", "1", "--out", "dbn"];
    DBN_ON_CPU.succeed(at, &[&real[..], &steps].concat());
    DAE.succeed(at, &[&["train", "--hidden", "4", "--epochs", "1", "--out", "dae"][..], &steps].concat());
    let sparse = ["train", "--hidden", "4", "--decoder", "linear", "--iterations", "5", "--out", "sparse"];
    SPARSE_AUTOENCODER.succeed(at, &[&sparse[..], &steps].concat());
    for run in ["tsne", "dbn", "dae", "sparse"] {
        has(
            &at.join(run).join("config.json"),
            &["\"step\": \"log1p\"", "\"step\": \"standardise\"", "\"step\": \"pca\""],
        );
    }
    // A row without a logarithm is named, in training and in use.
    let mut bad = positive;
    bad[6 * 41 + 2] = -1.5;
    write_npy(&at.join("bad.npy"), [60, 6], &bad);
    let place = "log1p: row 41, column 2: values must be above -1, got -1.5";
    let train =
        ["train", "--data", "bad.npy", "--prepare", "log1p", "--visible", "gaussian", "--out", "never"];
    let err = DBN_ON_CPU.fail(at, &train, 1);
    assert!(err.contains(place), "{err}");
    let err = DBN_ON_CPU.fail(at, &["encode", "dbn", "--data", "bad.npy", "--out", "o.npy"], 1);
    assert!(err.contains(place), "{err}");
}
