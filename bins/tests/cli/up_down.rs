//! `dbn up-down` and what becomes of its networks, as a user runs it: the built binary, tiny
//! networks, real folders.
use crate::common::{DBN, has, metrics, number, picture_size, results, side, weights};
use candle::Device::Cpu;
use candle::{DType, Tensor};
use chandlery::labelled::LabelledDbn;
use chandlery::{LoadOptions, Model};
use serde_json::Value;
use std::path::Path;
use std::sync::OnceLock;
use tempfile::TempDir;

/// 400 digits of which 380 train: 38 steps an epoch.
const TINY: [&str; 6] = ["--max-rows", "400", "--batch", "10", "--device", "cpu"];

/// A folder with a network of `dbn train` in `base`, trained once for all tests.
fn base() -> &'static Path {
    static BASE: OnceLock<TempDir> = OnceLock::new();
    let folder = BASE.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let train = ["train", "--hidden", "60,40,50", "--epochs", "50", "--out", "base"];
        DBN.succeed(folder.path(), &[&train[..], &TINY].concat());
        folder
    });
    folder.path()
}

fn up_down<'a>(out: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    ["up-down", "base", "--out", out].iter().chain(&TINY).chain(more).copied().collect()
}

#[test]
fn a_run_learns_the_labels_and_leaves_a_whole_folder() {
    let at = |name: &str| base().join(name);
    let long = [
        "--top-epochs",
        "50",
        "--top-learning-rate",
        "0.3",
        "--epochs",
        "6",
        "--learning-rate",
        "0.1",
        "--k",
        "3,6,10",
    ];
    let result = DBN.json(base(), &up_down("run", &long));
    assert_eq!(
        (&result["out"], &result["layers"], &result["model"]),
        (&"run".into(), &"784-60-[40+10]-50".into(), &"base".into())
    );
    let accuracy = number(&result, "accuracy");
    // Before the labels are learnt every row goes to the first class, which one row in ten is of.
    let plain = chandlery::dbn::Dbn::from_pretrained(at("base"), &LoadOptions::default()).unwrap();
    let untrained = LabelledDbn::from_dbn(&plain, 10).unwrap();
    let options = chandlery_datasets::DataOptions { max_rows: Some(400), ..Default::default() };
    let test = chandlery_datasets::open("mnist-sample", &options).unwrap().test.unwrap();
    let rows = test.to_tensor(&Cpu).unwrap().to_dtype(DType::F32).unwrap();
    let rows =
        if rows.max_all().unwrap().to_scalar::<f32>().unwrap() > 1. { (rows / 255.).unwrap() } else { rows };
    let labels = test.labels_tensor(&Cpu).unwrap().unwrap();
    let baseline = untrained.accuracy(&rows, &labels).unwrap();
    assert!(baseline < 0.2, "without labels learnt: {baseline}");
    assert!(accuracy > 0.6, "with them: {accuracy}");
    let trained = LabelledDbn::from_pretrained(at("run"), &LoadOptions::default()).unwrap();
    assert_eq!(trained.accuracy(&rows, &labels).unwrap(), accuracy);
    assert_eq!(results(&at("run")), result);

    assert_eq!(picture_size(&at("run/samples_by_class.png")), (side(10), side(10)));
    let lines = metrics(&at("run"));
    assert_eq!(lines.len(), 56);
    let of = |stage: &'static str| lines.iter().filter(move |line| line["stage"] == stage);
    assert!(of("top").all(|line| line["generation_error"].is_null() && line["k"] == 3));
    assert!(of("up-down").all(|line| number(line, "generation_error") > 0.));
    assert_eq!(
        of("up-down").map(|line| line["k"].as_u64().unwrap()).collect::<Vec<_>>(),
        [3, 3, 6, 6, 10, 10]
    );
    // What all weights learn together reconstructs as well as what each layer learnt alone, or
    // better: single epochs of 400 rows differ by some percent.
    let error = |line: &Value| number(line, "reconstruction_error");
    let together = lines[53..].iter().map(error).sum::<f64>() / 3.;
    assert!(together < 1.1 * error(&lines[49]), "{together} {}", error(&lines[49]));

    let texts = ["784-60-[40+10]-50", "--top-epochs 50", "samples_by_class.png", "lowest free energy"];
    has(&at("run/README.md"), &texts);

    // What one does with it.
    let evaluated = DBN.json(base(), &["evaluate", "run", "--max-rows", "400", "--device", "cpu"]);
    assert_eq!(evaluated["accuracy"].as_f64(), Some(accuracy));
    let sample = |more: &[&str]| {
        let args = [&["sample", "run", "--steps", "5", "--out", "s.png", "--device", "cpu"], more].concat();
        DBN.json(base(), &args)
    };
    let sevens = sample(&["--label", "7", "--n", "20"]);
    assert_eq!((sevens["n"].as_u64(), sevens["label"].as_u64()), (Some(20), Some(7)));
    assert_eq!(picture_size(&at("s.png")), (side(10), side(2)));
    let sevens = std::fs::read(at("s.png")).unwrap();
    sample(&["--label", "1", "--n", "20"]);
    assert!(std::fs::read(at("s.png")).unwrap() != sevens, "the label changes nothing");
    assert_eq!(sample(&["--n", "3"])["n"].as_u64(), Some(30));
    assert_eq!(picture_size(&at("s.png")), (side(3), side(10)));
    let started = sample(&["--label", "4", "--n", "5", "--start-from", "mnist-sample"]);
    assert_eq!(started["start_from"].as_str(), Some("mnist-sample"));
    let err = DBN.fail(base(), &["sample", "run", "--label", "10", "--device", "cpu"], 1);
    assert_eq!(err, "dbn: --label: must be below the network's 10 classes, got 10");
    let err = DBN.fail(
        base(),
        &up_down("again", &[]).iter().map(|a| if *a == "base" { "run" } else { a }).collect::<Vec<_>>(),
        1,
    );
    let what = "dbn: run: this is a network with labels, 784-60-[40+10]-50, which `dbn up-down` does not support; use ";
    assert!(err.starts_with(what), "{err}");
    // Ten samples of a class at random are mostly of that class, by the network's own judgement.
    let asked = Tensor::from_iter((0..100u32).map(|i| i / 10), &Cpu).unwrap();
    let made = trained.sample(&asked, 300, chandlery::Philox::new(1, 1)).unwrap();
    let judged = trained.accuracy(&made, &asked).unwrap();
    assert!(judged > 0.5, "{judged} of samples are of the class that was asked for");
}

#[test]
fn a_run_that_was_stopped_anywhere_ends_in_the_same_bits() {
    let at = |name: &str| base().join(name);
    let short = ["--top-epochs", "2", "--epochs", "2", "--k", "1,2", "--momentum", "0.5", "--persistent"];
    DBN.succeed(base(), &up_down("whole", &short));
    let want = weights(&at("whole"));
    let lines = |name: &str| -> Vec<Value> {
        let kept = |line: &Value| {
            ["stage", "epoch", "accuracy", "held_out_accuracy", "reconstruction_error", "k"]
                .map(|key| line[key].clone())
        };
        metrics(&at(name)).iter().map(|line| kept(line).to_vec().into()).collect()
    };
    // Within the first epoch; at the end of one; at the end of a stage; within the second stage.
    for steps in ["7", "38", "76", "130"] {
        let out = format!("stopped-{steps}");
        let err =
            DBN.fail(base(), &up_down(&out, &[&short[..], &["--stop-after-steps", steps]].concat()), 130);
        assert_eq!(err, format!("interrupted; resume with: dbn up-down --resume {out}"));
        assert!(!at(&format!("{out}/model.safetensors")).exists());
        DBN.succeed(base(), &["up-down", "--resume", &out, "--device", "cpu"]);
        assert!(weights(&at(&out)) == want, "stopped after {steps} steps: other weights");
        assert_eq!(lines(&out), lines("whole"), "stopped after {steps} steps");
    }
    let err = DBN.fail(base(), &["up-down", "--resume", "base", "--device", "cpu"], 1);
    assert!(err.contains("this is a run of `dbn train`; resume it with `dbn train --resume base`"), "{err}");
}

#[test]
fn what_cannot_learn_is_refused_before_a_folder_is_made() {
    DBN.refuse(base(), &["up-down", "--device", "cpu"], "<MODEL>");
    let err = DBN.fail(base(), &["sample", "base", "--label", "3", "--device", "cpu"], 1);
    assert_eq!(err, "dbn: --label: base has no label units; make a network that has with `dbn up-down base`");
    let rows: Vec<f32> = (0..60 * 784).map(|i| (i % 2) as f32).collect();
    let rows = Tensor::from_vec(rows, (60, 784), &Cpu).unwrap();
    candle::safetensors::save(&[("x", rows)].into_iter().collect(), base().join("x.safetensors")).unwrap();
    let err = DBN.fail(
        base(),
        &["up-down", "base", "--data", "x.safetensors", "--batch", "50", "--out", "no", "--device", "cpu"],
        1,
    );
    assert!(err.contains("rows must have labels of at least 2 classes, got 0"), "{err}");
    assert!(!base().join("no").exists());
    let err = DBN.fail(base(), &up_down("nan", &["--learning-rate", "1e38", "--top-epochs", "0"]), 1);
    assert!(err.starts_with("dbn: up-down: the "), "{err}");
    assert!(err.contains("between steps 1 and 38"), "{err}");
}
