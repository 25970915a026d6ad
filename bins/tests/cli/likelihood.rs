//! `dbn evaluate --log-likelihood`, and the training flags that a likelihood wants, as a user types
//! them.
use crate::common::{DBN_ON_CPU, metrics, number, weights};
use candle::Device::Cpu;
use chandlery::dbn::Dbn;
use chandlery::rbm::likelihood::Estimate;
use chandlery::{LoadOptions, Model, Philox};
use std::path::Path;

/// 300 digits in minibatches of 10, binary rows drawn from them.
fn train(folder: &Path, hidden: &str, more: &[&str]) {
    let args = ["train", "--max-rows", "300", "--batch", "10", "--binarize", "--hidden", hidden];
    DBN_ON_CPU.succeed(folder, &[&args[..], more].concat());
}

#[test]
fn a_small_machine_is_summed_exactly_and_annealing_finds_the_same() {
    let folder = tempfile::tempdir().unwrap();
    train(folder.path(), "10", &["--epochs", "8", "--out", "run"]);
    let evaluate = ["evaluate", "run", "--max-rows", "300", "--log-likelihood"];
    let report = DBN_ON_CPU.json(folder.path(), &evaluate)["log_likelihood"].clone();
    assert_eq!((&report["partition_function"]["by"], &report["rows"]), (&"exact".into(), &"drawn".into()));
    let (log_z, test) = (number(&report, "partition_function/log_z"), number(&report, "test/value"));

    // The library says the same of the same rows.
    let options = chandlery_datasets::DataOptions { max_rows: Some(300), ..Default::default() };
    let rows = chandlery_datasets::open("mnist-sample", &options).unwrap().test.unwrap();
    let rows = (rows.to_tensor(&Cpu).unwrap() / 1.).unwrap();
    let drawn = chandlery_ops::core::bernoulli(&rows, Philox::new(0, 6 << 32)).unwrap();
    let model = Dbn::from_pretrained(folder.path().join("run"), &LoadOptions::default()).unwrap();
    let rbm = &model.layers()[0];
    assert!((rbm.exact_log_z(&mut |_, _| {}).unwrap() - log_z).abs() < 1e-9);
    let want = rbm.log_likelihood(&drawn, &Estimate::exact(log_z)).unwrap().value;
    assert!((test - want).abs() < 1e-3, "{test}, the library {want}");
    // Independent pixels with the right means have about −206 nats, fair coins −543.
    assert!(test > -206. && number(&report, "train/value") > -206., "{report}");

    let anneal = ["--log-z", "ais", "--chains", "200", "--temperatures", "1000"];
    let report = DBN_ON_CPU.json(folder.path(), &[&evaluate[..], &anneal].concat())["log_likelihood"].clone();
    let found = &report["partition_function"];
    assert_eq!((&found["by"], &found["agree"]), (&"ais".into(), &true.into()), "{report}");
    for way in ["forward", "reverse"] {
        let (lower, upper) = (number(found, &format!("{way}/lower")), number(found, &format!("{way}/upper")));
        assert!(lower <= log_z && log_z <= upper && upper - lower < 2., "{way}: {found}, exact {log_z}");
    }
    let (lower, upper) = (number(&report, "test/lower"), number(&report, "test/upper"));
    assert!(lower <= test && test <= upper, "{report}, exact {test}");

    let stdout =
        DBN_ON_CPU.succeed(folder.path(), &[&evaluate[..], &["--binarize-by", "threshold"]].concat());
    assert!(stdout.contains("average log-likelihood, 300 test rows (thresholded): -"), "{stdout}");
}

#[test]
fn annealing_of_a_small_machine_takes_few_chains_and_temperatures_and_finds_the_exact_sum() {
    let folder = tempfile::tempdir().unwrap();
    let rows: String = (0..200u32)
        .map(|i| {
            (0..16)
                .map(|j| (i.wrapping_mul(2_654_435_761) >> (j % 7 + 9) & 1).to_string())
                .collect::<Vec<_>>()
                .join(",")
                + "\n"
        })
        .collect();
    std::fs::write(folder.path().join("bits.csv"), rows).unwrap();
    let args =
        ["train", "--data", "bits.csv", "--hidden", "12", "--batch", "10", "--epochs", "10", "--out", "run"];
    DBN_ON_CPU.succeed(folder.path(), &args);
    let evaluate = ["evaluate", "run", "--log-likelihood"];
    let exact = DBN_ON_CPU.json(folder.path(), &evaluate)["log_likelihood"].clone();
    let log_z = number(&exact, "partition_function/log_z");
    let report = DBN_ON_CPU.json(folder.path(), &[&evaluate[..], &["--log-z", "ais"]].concat());
    let found = report["log_likelihood"]["partition_function"].clone();
    assert_eq!((&found["n_chains"], &found["n_temperatures"]), (&500.into(), &1000.into()), "{report}");
    for way in ["forward", "reverse"] {
        assert!(
            (number(&found, &format!("{way}/value")) - log_z).abs() < 0.05,
            "{way}: {found}, exact {log_z}"
        );
    }
}

#[test]
fn two_layers_have_a_lower_bound_and_more_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    train(folder.path(), "20,8", &["--epochs", "4", "--out", "two"]);
    let evaluate = ["evaluate", "two", "--max-rows", "300", "--log-likelihood"];
    let report = DBN_ON_CPU.json(folder.path(), &evaluate)["log_likelihood"].clone();
    let (bound, error) = (number(&report, "test/value"), number(&report, "bound_standard_errors/0"));
    assert!((-250. ..-100.).contains(&bound) && error > 0. && error < 1., "{report}");
    let stdout = DBN_ON_CPU.succeed(folder.path(), &evaluate);
    assert!(
        stdout.contains("lower bound on the average log-likelihood, 300 test rows (drawn): -"),
        "{stdout}"
    );

    train(folder.path(), "9,8,7", &["--epochs", "1", "--out", "three"]);
    let err = DBN_ON_CPU.fail(folder.path(), &["evaluate", "three", "--log-likelihood"], 1);
    assert_eq!(
        err,
        "dbn: --log-likelihood: the network must have one layer, or two for a lower bound, got 3"
    );
}

#[test]
fn binarised_training_resumes_bit_for_bit_along_its_schedule() {
    let folder = tempfile::tempdir().unwrap();
    let more = ["--epochs", "4", "--learning-rate", "0.08", "--final-learning-rate", "0.02"];
    train(folder.path(), "12", &[&more[..], &["--out", "whole"]].concat());
    let stopped = ["--max-rows", "300", "--batch", "10", "--binarize", "--hidden", "12", "--out", "stopped"];
    let stopped = [&stopped[..], &more, &["--stop-after-steps", "50"]].concat();
    DBN_ON_CPU.fail(folder.path(), &stopped, 130);
    DBN_ON_CPU.succeed(folder.path(), &["train", "--resume", "stopped"]);
    let at = |run: &str| folder.path().join(run);
    assert!(weights(&at("whole")) == weights(&at("stopped")));
    let rates: Vec<f64> = metrics(&at("whole")).iter().map(|line| number(line, "learning_rate")).collect();
    for (rate, want) in rates.iter().zip([0.08, 0.065, 0.05, 0.035]) {
        assert!((rate - want).abs() < 1e-12, "{rates:?}");
    }
    // Drawn rows are other rows: the flag is no ornament.
    let grey = ["train", "--max-rows", "300", "--batch", "10", "--hidden", "12", "--out", "grey"];
    DBN_ON_CPU.succeed(folder.path(), &[&grey[..], &more].concat());
    assert!(weights(&at("whole")) != weights(&at("grey")));
}

#[test]
fn what_has_no_likelihood_is_said_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let gaussian = ["train", "--max-rows", "300", "--batch", "10", "--visible", "gaussian", "--epochs", "1"];
    let gaussian = [&gaussian[..], &["--hidden", "6", "--out", "real"]].concat();
    let err = DBN_ON_CPU.fail(folder.path(), &[&gaussian[..], &["--binarize"]].concat(), 1);
    assert_eq!(err, "dbn: --binarize: --visible must be bernoulli, got gaussian; leave one of them out");
    DBN_ON_CPU.succeed(folder.path(), &gaussian);
    let evaluate = ["evaluate", "real", "--max-rows", "300", "--log-likelihood"];
    let report = DBN_ON_CPU.json(folder.path(), &evaluate)["log_likelihood"].clone();
    assert_eq!(report["rows"], "as they are");
    assert!(number(&report, "test/value") < 0., "{report}");
    let err = DBN_ON_CPU.fail(folder.path(), &[&evaluate[..], &["--binarize-by", "draw"]].concat(), 1);
    assert_eq!(err, "dbn: --binarize-by: rows must be of binary units, got gaussian; leave it out");
    let rectified = ["--hidden-unit", "rectified", "--overwrite"];
    DBN_ON_CPU.succeed(folder.path(), &[&gaussian[..], &rectified].concat());
    let err = DBN_ON_CPU.fail(folder.path(), &evaluate, 1);
    assert_eq!(err, "dbn: --log-likelihood: hidden units must be bernoulli, got rectified");
    for (flags, want) in [
        (["--log-likelihood", "--chains", "1"], "must be a whole number of at least 2"),
        (["--log-likelihood", "--temperatures", "2"], "must be a whole number of at least 3"),
        (["--json", "--chains", "9"], "--log-likelihood"),
    ] {
        DBN_ON_CPU.refuse(folder.path(), &[&["evaluate", "real"][..], &flags].concat(), want);
    }
}
