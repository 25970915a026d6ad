//! Every sub-command of `dbn` on every kind of saved model: the built binary, tiny networks, real
//! folders.
use crate::common::{DBN_ON_CPU, number, picture_size, results, side};
use candle::Device::Cpu;
use candle::{Module, Tensor};
use chandlery::dictionary::{Dictionary, DictionaryConfig};
use chandlery::feedforward::{Feedforward, FeedforwardConfig};
use chandlery::labelled::{LabelledDbn, LabelledDbnConfig, LabelledRbm};
use chandlery::rbm::{Rbm, RbmConfig};
use chandlery::{Encode, Layered, LoadOptions, Model, Philox};
use serde_json::Value;
use std::path::Path;
use std::sync::OnceLock;
use tempfile::TempDir;

/// 60 digits of which 57 train.
const ROWS: [&str; 2] = ["--max-rows", "60"];

/// What each kind is called: its folder.
const KINDS: [&str; 6] = ["plain", "machine", "labels", "classifier", "autoencoder", "dictionary"];

/// A folder with a model of each kind, made once for all tests.
fn base() -> &'static Path {
    static BASE: OnceLock<TempDir> = OnceLock::new();
    let folder = BASE.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let make =
            |args: &[&str]| DBN_ON_CPU.succeed(folder.path(), &[args, &ROWS, &["--batch", "10"]].concat());
        make(&["train", "--hidden", "12,8", "--epochs", "2", "--out", "plain"]);
        make(&["up-down", "plain", "--top-epochs", "1", "--epochs", "1", "--out", "labels"]);
        make(&["fine-tune", "plain", "--classify", "--epochs", "1", "--out", "classifier"]);
        make(&["fine-tune", "plain", "--autoencode", "--epochs", "1", "--out", "autoencoder"]);
        let machine = Rbm::init(RbmConfig::new(784, 9), Philox::new(1, 0), &Cpu).unwrap();
        machine.save_pretrained(folder.path().join("machine")).unwrap();
        let atoms = Tensor::eye(5, candle::DType::F32, &Cpu).unwrap();
        let dictionary = Dictionary::from_tensor(DictionaryConfig::new(5, 5, 2), atoms).unwrap();
        dictionary.save_pretrained(folder.path().join("dictionary")).unwrap();
        folder
    });
    folder.path()
}

/// A sub-command with what it needs to be quick, beside the model.
const COMMANDS: [(&str, &[&str]); 9] = [
    ("encode", &["--out", "e.npy"]),
    ("evaluate", &[]),
    ("evaluate --log-likelihood", &["--log-likelihood"]),
    ("predict", &["--out", "p.csv"]),
    ("reconstruct", &["--out", "r.png"]),
    ("sample", &["--steps", "2", "--image", "28x28", "--out", "s.png"]),
    ("fine-tune", &["--classify", "--epochs", "1", "--batch", "10"]),
    ("fine-tune", &["--autoencode", "--epochs", "1", "--batch", "10"]),
    ("up-down", &["--top-epochs", "1", "--epochs", "0", "--batch", "10"]),
];

/// The sub-commands that take a model of this kind.
fn takes(kind: &str) -> &'static [&'static str] {
    match kind {
        "plain" | "machine" => &[
            "encode",
            "evaluate",
            "evaluate --log-likelihood",
            "reconstruct",
            "sample",
            "fine-tune",
            "up-down",
        ],
        "labels" => &["encode", "evaluate", "predict", "reconstruct", "sample"],
        "autoencoder" => &["encode", "evaluate", "reconstruct"],
        "classifier" => &["encode", "evaluate", "predict"],
        _ => &[],
    }
}

#[test]
fn every_sub_command_takes_a_model_or_names_those_that_do() {
    for kind in KINDS {
        for (i, (command, more)) in COMMANDS.iter().enumerate() {
            let name = command.split(' ').next().unwrap();
            let out = format!("{kind}-{i}");
            let mut args = [&[name, kind][..], more].concat();
            if name != "sample" {
                args.extend(ROWS);
            }
            if ["fine-tune", "up-down"].contains(&name) {
                args.extend(["--out", &out]);
            }
            if takes(kind).contains(command) {
                DBN_ON_CPU.json(base(), &args);
                continue;
            }
            let err = DBN_ON_CPU.fail(base(), &args, 1);
            assert!(!base().join(&out).exists(), "dbn {args:?}: refused after a folder was made");
            if kind == "dictionary" {
                let want = "dbn: dictionary: this is a model of type dictionary, not a deep belief network; use it with `dictionary-learning`";
                assert_eq!(err, want, "dbn {args:?}");
                continue;
            }
            let what = match kind {
                "labels" => "a network with labels, 784-[12+10]-8",
                "classifier" => "a fine-tuned classifier, 784-12-8-10",
                "plain" => "a deep belief network, 784-12-8",
                "machine" => "a deep belief network, 784-9",
                _ => "a fine-tuned autoencoder, 784-12-8-12-784",
            };
            let uses = takes(kind)
                .iter()
                .filter(|using| !using.contains("--") && !using.contains("-t") && **using != "up-down");
            let uses: Vec<String> = uses.map(|using| format!("`dbn {using} {kind}`")).collect();
            let instead = match *command {
                "predict" => format!(
                    "make a classifier of the network of `dbn train` with `dbn fine-tune --classify`, or use {}",
                    uses.join(", ")
                ),
                _ => format!(
                    "use {}, or `dbn {command}` with the network of `dbn train` that it was made from",
                    uses.join(", ")
                ),
            };
            let want =
                format!("dbn: {kind}: this is {what}, which `dbn {command}` does not support; {instead}");
            assert_eq!(err, want, "dbn {args:?}");
        }
    }
}

/// The test rows that every command sees.
fn test_rows() -> Tensor {
    let options = chandlery_datasets::DataOptions { max_rows: Some(60), ..Default::default() };
    let data = chandlery_datasets::open("mnist-sample", &options).unwrap();
    data.test.unwrap().to_tensor(&Cpu).unwrap()
}

/// What `dbn encode` writes of the test rows; tests share folders of models, and so none of what
/// they write.
fn encoded(folder: &Path, model: &str, more: &[&str]) -> (Value, Vec<Vec<f32>>) {
    let written = tempfile::tempdir().unwrap();
    let out = written.path().join("x.safetensors").display().to_string();
    let args = [&["encode", model, "--split", "test", "--out", &out][..], &ROWS, more].concat();
    let result = DBN_ON_CPU.json(folder, &args);
    let tensors = candle::safetensors::load(&out, &Cpu).unwrap();
    assert_eq!(tensors["labels"].dims(), [60]);
    (result, tensors["features"].to_vec2().unwrap())
}

fn load<M: Model>(model: &str) -> M {
    M::from_pretrained(base().join(model), &LoadOptions::default()).unwrap()
}

#[test]
fn encode_writes_codes_last_hidden_layers_and_recognition_means() {
    let rows = test_rows();
    let values = |t: candle::Result<Tensor>| t.unwrap().to_vec2::<f32>().unwrap();
    let of = |result: &Value| (result["layer"].as_u64().unwrap(), result["n_features"].as_u64().unwrap());

    let autoencoder: Feedforward = load("autoencoder");
    let (result, codes) = encoded(base(), "autoencoder", &[]);
    assert_eq!(of(&result), (2, 8));
    assert!(codes == values(autoencoder.encode(&rows)), "other codes");
    let (result, decoded) = encoded(base(), "autoencoder", &["--layer", "4"]);
    assert_eq!(of(&result), (4, 784));
    assert!(decoded == values(autoencoder.forward(&rows)), "other reconstructions");

    let classifier: Feedforward = load("classifier");
    let (result, hidden) = encoded(base(), "classifier", &[]);
    assert_eq!(of(&result), (2, 8));
    assert!(hidden == values(classifier.features(&rows, 2)), "other activations");
    let (result, logits) = encoded(base(), "classifier", &["--layer", "3"]);
    assert_eq!(of(&result), (3, 10));
    assert!(logits == values(classifier.forward(&rows)), "other logits");

    let labels: LabelledDbn = load("labels");
    let (result, means) = encoded(base(), "labels", &[]);
    assert_eq!(of(&result), (1, 12));
    assert!(means == values(labels.encode(&rows)), "other means");

    let machine: Rbm = load("machine");
    let (result, means) = encoded(base(), "machine", &[]);
    assert_eq!(of(&result), (1, 9));
    assert!(means == values(machine.hidden_mean(&rows)), "other hidden means");

    for (model, n) in [("autoencoder", 4), ("classifier", 3), ("labels", 1), ("machine", 1)] {
        let err = DBN_ON_CPU.fail(base(), &["encode", model, "--layer", "9"], 1);
        assert_eq!(err, format!("dbn: --layer: must be between 1 and {n} for this network, got 9"));
    }
}

#[test]
fn models_without_a_layer_to_write_say_so() {
    let folder = tempfile::tempdir().unwrap();
    let philox = Philox::new(1, 0);
    let flat = Feedforward::init(FeedforwardConfig::classifier(&[784, 10]), philox, &Cpu).unwrap();
    flat.save_pretrained(folder.path().join("flat")).unwrap();
    let err = DBN_ON_CPU.fail(folder.path(), &["encode", "flat"], 1);
    assert_eq!(err, "dbn: flat: this classifier has no hidden layer; --layer 1 writes its logits");
    DBN_ON_CPU.succeed(folder.path(), &[&["encode", "flat", "--layer", "1"][..], &ROWS].concat());

    let machine = Rbm::init(RbmConfig::new(784, 5), philox, &Cpu).unwrap();
    let top = LabelledRbm::from_rbm(&machine, 10).unwrap();
    let config = LabelledDbnConfig::new(&[784, 5], 10);
    let single = LabelledDbn::from_parts(config, vec![], vec![], top).unwrap();
    single.save_pretrained(folder.path().join("single")).unwrap();
    let err = DBN_ON_CPU.fail(folder.path(), &["encode", "single"], 1);
    assert!(
        err.starts_with("dbn: single: this network has no layer below its labels; use `dbn encode`"),
        "{err}"
    );
}

#[test]
fn evaluate_and_reconstruct_say_what_fine_tuning_said() {
    let at = |name: &str| base().join(name);
    let json = |args: &[&str]| DBN_ON_CPU.json(base(), &[args, &ROWS].concat());
    let classifier = json(&["evaluate", "classifier"]);
    assert_eq!(classifier["test_error"], results(&at("classifier"))["test_error"]);
    assert_eq!(classifier["layers"], "784-12-8-10");
    assert!(
        (0. ..=1.).contains(&number(&classifier, "test_error")) && classifier["test_squared_error"].is_null()
    );

    let (autoencoder, said) = (json(&["evaluate", "autoencoder"]), results(&at("autoencoder")));
    assert_eq!(autoencoder["test_squared_error"], said["test_squared_error"]);
    // The sums of the same rows in another order, in f64.
    let [got, want] = [&autoencoder["evaluation"], &said].map(|result| number(result, "pca_squared_error"));
    assert!((got / want - 1.).abs() < 1e-9, "{got} {want}");
    let again = json(&["reconstruct", "autoencoder", "--n", "20", "--out", "a.png"]);
    assert_eq!(again["squared_error"], said["test_squared_error"]);
    assert_eq!(picture_size(&at("a.png")), (side(10), side(4)));

    let labels = json(&["reconstruct", "labels", "--n", "10", "--out", "l.png"]);
    assert_eq!(labels["squared_error"], results(&at("labels"))["evaluation"]["reconstruction_error"]);
    assert_eq!(picture_size(&at("l.png")), (side(10), side(2)));

    let rows = Tensor::zeros((4, 784), candle::DType::F32, &Cpu).unwrap();
    candle::safetensors::save(&[("x", rows)].into_iter().collect(), at("none.safetensors")).unwrap();
    let err = DBN_ON_CPU.fail(base(), &["evaluate", "classifier", "--data", "none.safetensors"], 1);
    assert!(
        err.starts_with(
            "dbn: --data: rows must have labels for a classifier, got none in none.safetensors; "
        ),
        "{err}"
    );
}

#[test]
fn a_folder_of_another_format_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("plain")).unwrap();
    let newer = r#"{"model_type": "deep-belief-network", "format": 3, "layers": []}"#;
    std::fs::write(folder.path().join("plain/config.json"), newer).unwrap();
    let err = DBN_ON_CPU.fail(folder.path(), &["evaluate", "plain"], 1);
    assert!(err.starts_with("dbn: plain/config.json: cannot be read: format must be 1, got 3; "), "{err}");
}

#[test]
fn predictions_are_the_classes_of_the_rows_and_their_probabilities() {
    let folder = tempfile::tempdir().unwrap();
    for kind in ["classifier", "labels"] {
        let model = base().join(kind).display().to_string();
        let csv = DBN_ON_CPU.json(folder.path(), &["predict", &model]);
        let evaluated = DBN_ON_CPU.json(folder.path(), &["evaluate", &model]);
        let error = match kind {
            "classifier" => number(&evaluated, "test_error"),
            _ => 1. - number(&evaluated, "accuracy"),
        };
        assert!((number(&csv, "error") - error).abs() < 1e-9, "{kind}: {csv} {evaluated}");
        let text = std::fs::read_to_string(folder.path().join("predictions.csv")).unwrap();
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split(',').collect()).collect();
        assert_eq!((lines[0][..3].to_vec(), lines[0].len()), (vec!["row", "class", "p(0)"], 12));
        assert_eq!(lines.len() as u64 - 1, csv["n_samples"].as_u64().unwrap());
        let arrays = ["predict", &model, "--out", "p.safetensors"];
        DBN_ON_CPU.succeed(folder.path(), &arrays);
        let arrays = candle::safetensors::load(folder.path().join("p.safetensors"), &Cpu).unwrap();
        let classes = arrays["classes"].to_vec1::<u32>().unwrap();
        let rows = arrays["probabilities"].to_vec2::<f32>().unwrap();
        for ((line, class), row) in lines[1..].iter().zip(classes).zip(rows) {
            assert_eq!(line[1], class.to_string(), "{kind}");
            assert!((row.iter().sum::<f32>() - 1.).abs() < 1e-4, "{kind}: {row:?}");
            let written: Vec<f32> = line[2..].iter().map(|p| p.parse().unwrap()).collect();
            assert_eq!(written, row, "{kind}");
            assert!(row.iter().all(|p| *p <= row[class as usize]), "{kind}: {row:?}");
        }
    }
    let err = DBN_ON_CPU.fail(folder.path(), &["predict", "x", "--out", "p.txt"], 1);
    assert_eq!(err, "dbn: --out: p.txt: the name must end in .csv or .safetensors, or be -");
}

#[test]
fn evaluate_gives_the_figures_of_training() {
    for kind in ["plain", "labels", "classifier", "autoencoder"] {
        let model = base().join(kind);
        let trained = results(&model);
        let evaluated = DBN_ON_CPU.json(base(), &["evaluate", kind]);
        for figure in [
            "evaluation/reconstruction_error",
            "evaluation/readout/accuracy_features",
            "accuracy",
            "test_error",
            "test_squared_error",
        ] {
            let Some(want) = trained.pointer(&format!("/{figure}")).and_then(Value::as_f64) else { continue };
            assert_eq!(number(&evaluated, figure), want, "{kind}: {figure}");
        }
    }
}
