//! The program `sparse-autoencoder` as a user runs it: the built binary, few iterations, real
//! folders.

use crate::common::{BENCH, DBN, SPARSE_AUTOENCODER, has, metrics, number, picture_size, weights, write_npy};
use candle::Device::Cpu;
use candle::Module;
use chandlery::sparse_autoencoder::SparseAutoencoder;
use chandlery::{LoadOptions, Model};
use std::path::Path;

/// Sixteen features of 1200 patches of 6×6 pixels, thirty iterations.
const TINY: [&str; 8] = ["--hidden", "16", "--patch", "6", "--patches", "1200", "--iterations", "30"];

fn tiny<'a>(more: &[&'a str]) -> Vec<&'a str> {
    ["train"].iter().chain(&TINY).copied().chain(more.iter().copied()).collect()
}

fn name(path: &Path) -> String {
    path.display().to_string()
}

#[test]
fn a_run_leaves_a_whole_folder_and_one_json_object() {
    let folder = tempfile::tempdir().unwrap();
    let result = SPARSE_AUTOENCODER.json(folder.path(), &tiny(&["--out", "run"]));
    let (start, end) = (number(&result, "cost_start"), number(&result, "cost"));
    // All features at ½ cost 3 · 16 · KL(.01‖.5) = 31; learning takes nearly all of that away.
    assert!(start > 25. && end < 2., "{start} → {end}");
    assert_eq!((result["iterations"].as_u64(), result["n_rows"].as_u64()), (Some(30), Some(1200)));
    assert!(number(&result, "seconds") >= number(&result, "training_seconds"));
    let sum =
        number(&result, "squared_error") + number(&result, "decay") + 3. * number(&result, "divergence");
    assert!((sum - end).abs() < 1e-9 * end, "{sum} {end}");
    let run = folder.path().join("run");
    let lines = metrics(&run);
    assert_eq!(lines.len(), 30);
    let costs: Vec<f64> = lines.iter().map(|line| number(line, "cost")).collect();
    assert!(costs.windows(2).all(|pair| pair[1] < pair[0]), "{costs:?}");
    // Sixteen tiles of 6 pixels in four columns, nine times as large.
    assert_eq!(picture_size(&run.join("filters.png")), (9 * 29, 9 * 29));
    let curves = std::fs::read_to_string(run.join("curves.svg")).unwrap();
    assert!(curves.contains("norm of the gradient"));
    has(
        &run.join("README.md"),
        &["Sparse autoencoder 36-16-36", "1200 patches of 6x6 pixels", "filters.png"],
    );
    let model = SparseAutoencoder::from_pretrained(name(&run), &LoadOptions::default()).unwrap();
    assert_eq!(model.config().image, Some([6, 6, 1].into()));
    let grey = candle::Tensor::full(7u8, (2, 36), &Cpu).unwrap();
    assert_eq!(model.forward(&grey).unwrap().dims(), [2, 16]);
    let err = DBN.fail(folder.path(), &["evaluate", "run", "--device", "cpu"], 1);
    let want = "this is a model of type sparse-autoencoder, not a deep belief network; use it with `sparse-autoencoder`";
    assert!(err.ends_with(want), "{err}");
}

#[test]
fn a_run_that_was_stopped_anywhere_ends_in_the_same_bits_and_can_be_extended() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for (whole, stopped, how) in [
        ("a", "b", &[][..]),
        ("c", "d", &["--precision", "f64"]),
        ("e", "f", &["--resident-bytes", "0", "--chunk-bytes", "18000"]),
    ] {
        SPARSE_AUTOENCODER.succeed(folder.path(), &tiny(&[&["--out", whole], how].concat()));
        let args = [&["--out", stopped, "--stop-after-steps", "7"], how].concat();
        let err = SPARSE_AUTOENCODER.fail(folder.path(), &tiny(&args), 130);
        assert_eq!(err, format!("interrupted; resume with: sparse-autoencoder train --resume {stopped}"));
        SPARSE_AUTOENCODER.succeed(folder.path(), &["train", "--resume", stopped]);
        assert!(weights(&at(whole)) == weights(&at(stopped)), "{how:?}: other weights");
        assert_eq!(metrics(&at(stopped)).len(), 30);
    }
    let longer = SPARSE_AUTOENCODER.json(folder.path(), &["train", "--resume", "a", "--iterations", "35"]);
    assert_eq!(longer["iterations"].as_u64(), Some(35));
    let err = SPARSE_AUTOENCODER.fail(folder.path(), &["train", "--resume", "a", "--iterations", "35"], 1);
    assert!(err.ends_with("--iterations: must be above the 35 that this run has made, got 35"), "{err}");
}

#[test]
fn every_optimiser_learns_resumes_in_the_same_bits_and_can_be_extended() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let patches = ["train", "--hidden", "16", "--patch", "6", "--patches", "1200", "--start", "gaussian"];
    let minibatches = ["--optimizer", "adam", "--epochs", "6", "--batch", "300", "--learning-rate", "0.01"];
    for (name, how, counted, all, more) in [
        ("cg", &["--optimizer", "cg", "--iterations", "20"][..], "iterations", 20, "25"),
        ("gd", &["--optimizer", "gd", "--iterations", "20"], "iterations", 20, "25"),
        (
            "fixed",
            &["--optimizer", "gd", "--learning-rate", "0.1", "--iterations", "20"],
            "iterations",
            20,
            "25",
        ),
        ("adam", &minibatches, "epochs", 6, "8"),
    ] {
        let stopped = format!("{name}-stopped");
        let whole = SPARSE_AUTOENCODER.json(folder.path(), &[&patches[..], &["--out", name], how].concat());
        let (start, end) = (number(&whole, "cost_start"), number(&whole, "cost"));
        assert!(end < 0.9 * start, "{name}: {start} → {end}");
        assert_eq!((whole[counted].as_u64(), metrics(&at(name)).len()), (Some(all), all as usize));
        let args = [&patches[..], &["--out", &stopped, "--stop-after-steps", "7"], how].concat();
        SPARSE_AUTOENCODER.fail(folder.path(), &args, 130);
        SPARSE_AUTOENCODER.succeed(folder.path(), &["train", "--resume", &stopped]);
        assert!(weights(&at(name)) == weights(&at(&stopped)), "{name}: other weights");
        let extend = format!("--{counted}");
        let longer = SPARSE_AUTOENCODER.json(folder.path(), &["train", "--resume", name, &extend, more]);
        assert_eq!(longer[counted].as_u64(), more.parse().ok());
        assert!(number(&longer, "cost") < end, "{name}: {longer}");
        let other = if counted == "epochs" { "--iterations" } else { "--epochs" };
        let err = SPARSE_AUTOENCODER.fail(folder.path(), &["train", "--resume", name, other, "90"], 1);
        assert!(err.contains(&format!("give {extend}")), "{err}");
    }
    has(&at("adam").join("README.md"), &["Learned by Adam", "minibatches of 300"]);
    let err = SPARSE_AUTOENCODER.fail(folder.path(), &["--optimizer", "cg", "--batch", "9"], 1);
    assert!(err.contains("--batch: conjugate gradient takes all rows at once"), "{err}");
}

/// Ten iterations from given weights.
fn train<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&["train", "--patch", "6", "--patches", "1200", "--iterations", "10"][..], more].concat()
}

#[test]
fn training_starts_from_a_run_or_from_a_file_of_weights_that_the_run_keeps() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let first = SPARSE_AUTOENCODER.json(folder.path(), &tiny(&["--out", "first"]));
    let again = SPARSE_AUTOENCODER.json(folder.path(), &train(&["--start-from", "first", "--out", "again"]));
    assert_eq!(again["n_hidden"].as_u64(), Some(16));
    let (ended, begun) = (number(&first, "cost"), number(&again, "cost_start"));
    assert!((begun - ended).abs() < 1e-5 * ended && number(&again, "cost") < ended, "{ended} {begun}");
    // A file of the two matrices alone: biases are 0.
    let tensors = candle::safetensors::load(at("first").join("model.safetensors"), &Cpu).unwrap();
    let two: std::collections::HashMap<_, _> =
        ["weight", "decoder_weight"].map(|name| (name.to_owned(), tensors[name].clone())).into();
    candle::safetensors::save(&two, at("two.safetensors")).unwrap();
    let stops = train(&["--start-from", "two.safetensors", "--out", "two", "--stop-after-steps", "4"]);
    SPARSE_AUTOENCODER.fail(folder.path(), &stops, 130);
    std::fs::remove_file(at("two.safetensors")).unwrap();
    let two = SPARSE_AUTOENCODER.json(folder.path(), &["train", "--resume", "two"]);
    assert!(number(&two, "cost_start") > ended, "{two}");
    let kept = candle::safetensors::load(at("two").join("checkpoint/start/model.safetensors"), &Cpu).unwrap();
    assert_eq!(kept["bias"].to_vec1::<f32>().unwrap(), [0.; 16]);
    let bits = |tensors: &std::collections::HashMap<String, candle::Tensor>| {
        tensors["weight"].flatten_all().unwrap().to_vec1::<f32>().unwrap()
    };
    assert_eq!(bits(&kept), bits(&tensors));
    for (args, text) in [
        (
            train(&["--start-from", "nowhere.safetensors", "--out", "no"]),
            "--start-from nowhere.safetensors: ",
        ),
        (
            [&["train", "--patch", "5", "--start-from", "first", "--out", "no"][..]].concat(),
            "must be for the 25 values of a prepared row, got 36",
        ),
        (
            train(&["--start-from", "first", "--decoder", "linear", "--out", "no"]),
            "the outputs of this model are sigmoid units; give --decoder sigmoid",
        ),
    ] {
        let err = SPARSE_AUTOENCODER.fail(folder.path(), &args, 1);
        assert!(err.contains(text), "{err}");
        assert!(!at("no").exists());
    }
}

#[test]
fn a_model_of_digits_encodes_evaluates_and_reconstructs_its_own_data_without_being_told_it() {
    let folder = tempfile::tempdir().unwrap();
    let digits =
        ["--data", "mnist-sample", "--max-rows", "400", "--hidden", "20", "--sparsity-target", "0.1"];
    let train = ["train", "--weight-decay", "3e-3", "--iterations", "40", "--out", "run"];
    let made = SPARSE_AUTOENCODER.json(folder.path(), &[&train[..], &digits].concat());
    assert_eq!(made["n_visible"].as_u64(), Some(784));
    let encoded = SPARSE_AUTOENCODER.json(folder.path(), &["encode", "run", "--out", "f.safetensors"]);
    assert_eq!((encoded["n_features"].as_u64(), encoded["labels"].as_bool()), (Some(20), Some(true)));
    let tensors = candle::safetensors::load(folder.path().join("f.safetensors"), &Cpu).unwrap();
    assert_eq!(tensors["features"].dims()[1], 20);
    let table = SPARSE_AUTOENCODER.succeed(folder.path(), &["encode", "run", "--out", "-"]);
    assert!(table.starts_with("f0,f1,") && table.lines().next().is_some_and(|line| line.ends_with(",label")));
    assert_eq!(table.lines().count(), 1 + tensors["features"].dims()[0], "rows and nothing else");
    let cost = ["--sparsity-target", "0.1", "--weight-decay", "3e-3"];
    let result = SPARSE_AUTOENCODER.json(folder.path(), &[&["evaluate", "run"][..], &cost].concat());
    let (test, train) = (number(&result, "squared_error"), number(&made, "squared_error"));
    assert!(test > 0. && test < 2. * train, "{test}, on training rows {train}");
    assert!((number(&result, "mean_activation") - 0.1).abs() < 0.05, "{result}");
    let back = SPARSE_AUTOENCODER.json(folder.path(), &["reconstruct", "run", "--out", "r.png", "--n", "10"]);
    assert!((number(&back, "squared_error") - 2. * test).abs() < 1e-3 * test, "{back} {test}");
    assert!(folder.path().join("r.png").exists());
}

#[test]
fn what_makes_no_sense_is_refused_before_a_folder_is_made() {
    let folder = tempfile::tempdir().unwrap();
    SPARSE_AUTOENCODER.refuse(
        folder.path(),
        &["--sparsity-target", "0"],
        "must be a number above 0 and below 1",
    );
    SPARSE_AUTOENCODER.refuse(folder.path(), &["--weight-decay=-1"], "must be a number of at least 0");
    let err = SPARSE_AUTOENCODER.fail(
        folder.path(),
        &["train", "--data", "mnist-sample", "--patches", "9", "--out", "run"],
        1,
    );
    assert!(
        err.ends_with("--patches: mnist-sample holds rows, not images; leave it out, or give --patch"),
        "{err}"
    );
    assert!(!folder.path().join("run").exists());
    let rows = folder.path().join("nan.npy");
    write_npy(&rows, [3, 2], &[0.5, 0.2, f32::NAN, 0.1, 0.3, 0.4]);
    let err = SPARSE_AUTOENCODER.fail(folder.path(), &["train", "--data", "nan.npy", "--out", "run"], 1);
    assert!(err.contains("NaN"), "{err}");
}

#[test]
fn features_of_other_digits_beat_raw_pixels() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["self-taught", "--out", "taught"];
    let result = SPARSE_AUTOENCODER.json(folder.path(), &args);
    let (pixels, features) = (number(&result, "accuracy_pixels"), number(&result, "accuracy_features"));
    assert!(pixels > 0.9 && features > pixels, "{pixels} {features}");
    assert!(
        SparseAutoencoder::from_pretrained(name(&folder.path().join("taught")), &LoadOptions::default())
            .is_ok()
    );
    assert_eq!((result["seeds"].as_u64(), result["accuracies"].as_array().map(Vec::len)), (Some(1), Some(1)));
}

#[test]
fn self_taught_learning_is_measured_over_labels_and_seeds() {
    let folder = tempfile::tempdir().unwrap();
    let classes = ["--unlabelled-classes", "7-9", "--labelled-classes", "3-5", "--labelled", "300,30"];
    let small = ["--hidden", "16", "--iterations", "15", "--components", "12", "--seeds", "3"];
    let args = [&["self-taught"][..], &classes, &small].concat();
    let result = SPARSE_AUTOENCODER.json(folder.path(), &args);
    let rows = result["accuracies"].as_array().unwrap();
    let labelled: Vec<_> = rows.iter().map(|row| row["n_labelled"].as_u64()).collect();
    assert_eq!((labelled, result["n_components"].as_u64()), (vec![Some(30), Some(300)], Some(12)));
    for by in ["pixels", "pca", "features"] {
        let of = |row: usize, field: &str| rows[row][by][field].as_f64().unwrap();
        assert_eq!(rows[0][by]["each"].as_array().map(Vec::len), Some(3));
        assert!(of(0, "mean") < of(1, "mean"), "{by}: {result}");
        // Chance is 1/3; other rows are drawn with each seed.
        assert!(of(0, "mean") > 0.5 && of(0, "standard_deviation") > 0., "{by}: {result}");
        assert_eq!(result[format!("accuracy_{by}")], rows[1][by]["mean"]);
    }
    let table = SPARSE_AUTOENCODER.succeed(folder.path(), &args);
    assert!(table.contains("12 PCA coordinates") && table.contains(" ± "), "{table}");
    SPARSE_AUTOENCODER.refuse(folder.path(), &["self-taught", "--labelled-classes", "4-0"], "as in 5-9");
    let err = SPARSE_AUTOENCODER.fail(folder.path(), &["self-taught", "--labelled-classes", "4"], 1);
    assert!(err.ends_with("--labelled-classes: must be at least 2 classes, got class 4"), "{err}");
}

#[test]
fn the_benchmark_prints_the_columns_of_the_paper() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["sparse-autoencoder", "--size", "64x32,20x10", "--repeats", "1", "--device", "cpu"];
    let rows = BENCH.json(folder.path(), &args);
    assert_eq!(
        (rows[0]["paper_cuda_seconds"].as_f64(), rows[1]["paper_cuda_seconds"].as_f64()),
        (Some(1.93), None)
    );
    let first = &rows[0];
    assert!(
        number(first, "seconds") > 0. && number(first, "serial_seconds") > number(first, "floor_seconds")
    );
}
