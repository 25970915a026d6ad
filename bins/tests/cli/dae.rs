//! The program `dae` as a user runs it: the built binary, tiny networks, real folders.

use crate::common::{DAE, DBN, DBN_ON_CPU, has, metrics, number, picture_size, results, side, weights};
use candle::Device::Cpu;
use candle::{DType, Module, Tensor};
use chandlery::dae::{Dae, StackedDae};
use chandlery::pictures::planes::write_planes;
use chandlery::{Decode, LoadOptions, Model};
use std::path::Path;

/// 190 rows train and 10 are held out: 19 steps an epoch.
const TINY: [&str; 9] =
    ["train", "--max-rows", "200", "--hidden", "30", "--batch", "10", "--learning-rate", "0.2"];

fn tiny<'a>(more: &[&'a str]) -> Vec<&'a str> {
    TINY.iter().chain(more).copied().collect()
}

fn name(path: &Path) -> String {
    path.display().to_string()
}

/// A folder with a small run `run` of `epochs` epochs.
fn trained(epochs: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    DAE.succeed(folder.path(), &tiny(&["--epochs", epochs, "--out", "run"]));
    folder
}

#[test]
fn a_run_learns_to_remove_noise_and_leaves_a_whole_folder() {
    let folder = tempfile::tempdir().unwrap();
    let result = DAE.json(folder.path(), &tiny(&["--epochs", "20", "--out", "run"]));
    let [noise, corrupted, clean] =
        ["rmse_of_noise", "rmse_test", "rmse_test_clean"].map(|name| number(&result, name));
    // The mean of all digits is .26 from them.
    assert!(corrupted < 0.25 && corrupted < 0.7 * noise && clean < 0.25, "{noise} {corrupted} {clean}");
    assert!(number(&result, "seconds") >= number(&result, "training_seconds"));
    let run = folder.path().join("run");
    assert_eq!(results(&run)["rmse_test"], result["rmse_test"]);
    let lines = metrics(&run);
    assert_eq!(lines.len(), 20);
    assert!(number(&lines[19], "loss") < number(&lines[0], "loss"));
    assert!(number(&lines[19], "held_out_rmse") < number(&lines[0], "held_out_rmse"));
    // Thirty filters; forty rows, of each of which there are three.
    assert_eq!(picture_size(&run.join("filters.png")), (side(10), side(3)));
    assert_eq!(picture_size(&run.join("reconstructions.png")), (side(10), side(12)));
    has(
        &run.join("README.md"),
        &["Denoising autoencoder 784-30", "salt-and-pepper:0.3", "dae::Dae::from_pretrained"],
    );
    has(&run.join("curves.svg"), &["layer 1, held-out"]);
    let dae = Dae::from_pretrained(name(&run), &LoadOptions::default()).unwrap();
    assert_eq!(dae.config().image, Some([28, 28, 1].into()));
    assert_eq!(dae.forward(&Tensor::zeros((2, 784), DType::U8, &Cpu).unwrap()).unwrap().dims(), [2, 30]);
    // What is measured again is the same.
    let again = DAE.json(folder.path(), &["evaluate", "run"]);
    for (of_run, of_evaluate) in [("rmse_test", "rmse"), ("rmse_test_clean", "rmse_clean")] {
        assert_eq!(result[of_run], again[of_evaluate], "{again}");
    }
    let err = DBN.fail(folder.path(), &["evaluate", "run", "--device", "cpu"], 1);
    assert!(err.ends_with("not a deep belief network; use it with `dae`"), "{err}");
}

#[test]
fn a_run_that_was_stopped_anywhere_ends_in_the_same_bits_and_can_be_extended() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    // Step 25 is in the second epoch of the first layer, step 70 in the first of the second.
    for (whole, stopped, steps, more) in [
        ("a", "b", "25", &[][..]),
        ("c", "d", "70", &["--hidden", "30,12", "--corruption", "masking:0.2,gaussian:0.1"]),
        ("e", "f", "25", &["--untied", "--momentum", "0.5", "--weight-decay", "1e-4"]),
    ] {
        let train = |args: &[&'static str]| {
            let mut all = tiny(&["--epochs", "3"]);
            // A later option of a name would be a second one.
            if more.contains(&"--hidden") {
                all.retain(|arg| !["--hidden", "30"].contains(arg));
            }
            [&all[..], more, args].concat()
        };
        DAE.succeed(folder.path(), &[&train(&[])[..], &["--out", whole]].concat());
        let stop = ["--out", stopped, "--stop-after-steps", steps];
        let err = DAE.fail(folder.path(), &[&train(&[])[..], &stop].concat(), 130);
        assert_eq!(err, format!("interrupted; resume with: dae train --resume {stopped}"));
        DAE.succeed(folder.path(), &["train", "--resume", stopped]);
        assert!(weights(&at(whole)) == weights(&at(stopped)), "{more:?}: other weights");
        assert_eq!(results(&at(whole))["rmse_test"], results(&at(stopped))["rmse_test"]);
    }
    // A run that is extended is the longer run, since the learning rate is constant.
    DAE.succeed(folder.path(), &["train", "--resume", "a", "--epochs", "5"]);
    DAE.succeed(folder.path(), &tiny(&["--epochs", "5", "--out", "long"]));
    assert!(weights(&at("a")) == weights(&at("long")));
    let err = DAE.fail(folder.path(), &["train", "--resume", "a", "--epochs", "5"], 1);
    assert!(err.contains("--epochs: must be above the 5 of this run, got 5"), "{err}");
}

#[test]
fn a_stack_is_trained_layer_by_layer_and_encodes_by_any_of_its_layers() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["--max-rows", "200", "--hidden", "30,12", "--batch", "10", "--epochs", "4"];
    let result = DAE.json(folder.path(), &[&args[..], &["--out", "run"]].concat());
    assert_eq!(result["layers"], "784-30-12");
    let run = folder.path().join("run");
    let layers: Vec<_> = metrics(&run).iter().map(|line| line["layer"].as_u64().unwrap()).collect();
    assert_eq!(layers, [1, 1, 1, 1, 2, 2, 2, 2]);
    has(&run.join("README.md"), &["Stacked denoising autoencoder", "layers.N.weight"]);
    let stack = StackedDae::from_pretrained(name(&run), &LoadOptions::default()).unwrap();
    for (layer, width) in [(None, 12), (Some("1"), 30), (Some("2"), 12)] {
        let asked = layer.map_or(vec![], |layer| vec!["--layer", layer]);
        let encode = ["encode", "run", "--split", "test", "--out", "f.safetensors"];
        let encoded = DAE.json(folder.path(), &[&encode[..], &asked].concat());
        assert_eq!(encoded["n_features"].as_u64(), Some(width));
        let tensors = candle::safetensors::load(folder.path().join("f.safetensors"), &Cpu).unwrap();
        assert_eq!(tensors["features"].dims()[1] as u64, width);
        assert_eq!(tensors["labels"].dims(), &tensors["features"].dims()[..1]);
    }
    assert_eq!(stack.layers().len(), 2);
    let err = DAE.fail(folder.path(), &["encode", "run", "--layer", "3"], 1);
    assert!(err.ends_with("--layer: must be between 1 and 2 for this model, got 3"), "{err}");
}

#[test]
fn fine_tuning_makes_a_classifier_or_an_autoencoder_that_dbn_uses() {
    let folder = tempfile::tempdir().unwrap();
    let rows = ["--max-rows", "400", "--batch", "10"];
    let train = |args: &[&str]| DAE.json(folder.path(), &[args, &rows].concat());
    train(&["--hidden", "60,30", "--epochs", "4", "--out", "pre"]);
    let tuned = train(&["fine-tune", "pre", "--classify", "--epochs", "15", "--out", "classes"]);
    assert_eq!(tuned["layers"], "784-60-30-10");
    assert!(number(&tuned, "test_error") < 0.5, "{tuned}");
    has(&folder.path().join("classes/README.md"), &["denoising-autoencoder", "dae fine-tune"]);
    let measured = DBN_ON_CPU.json(folder.path(), &["evaluate", "classes"]);
    assert_eq!(measured["test_error"], tuned["test_error"]);
    let deep = train(&["fine-tune", "pre", "--autoencode", "--epochs", "15", "--out", "deep"]);
    assert_eq!(deep["layers"], "784-60-30-60-784");
    // Before any step it reconstructs as the stack does, and steps lower the error.
    let clean = DAE.json(folder.path(), &["evaluate", "pre"]);
    let before = 784. * number(&clean, "rmse_clean").powi(2);
    let after = number(&deep, "test_squared_error");
    assert!(after < before, "{before} {after}");
    let stop =
        ["fine-tune", "pre", "--classify", "--epochs", "15", "--out", "half", "--stop-after-steps", "50"];
    DAE.fail(folder.path(), &[&stop[..], &rows].concat(), 130);
    DAE.succeed(folder.path(), &["fine-tune", "--resume", "half"]);
    assert!(weights(&folder.path().join("half")) == weights(&folder.path().join("classes")));
}

/// Writes an image of one bright bar on black.
fn bar(path: &Path, height: usize, width: usize) {
    let pixel = |i: usize| if (width / 2 - 2..width / 2 + 2).contains(&(i % width)) { 255f32 } else { 0. };
    let pixels: Vec<f32> = (0..height * width).map(pixel).collect();
    write_planes(&Tensor::from_vec(pixels, (1, height, width), &Cpu).unwrap(), path).unwrap();
}

#[test]
fn image_files_are_restored_and_those_of_another_size_are_refused() {
    let folder = trained("20");
    let at = |name: &str| folder.path().join(name);
    bar(&at("one.png"), 28, 28);
    bar(&at("two.bmp"), 28, 28);
    let plain = DAE.json(folder.path(), &["denoise", "run", "one.png", "two.bmp"]);
    assert!(plain["rmse"].is_null());
    assert_eq!(picture_size(&at("denoised/one.png")), (28, 28));
    assert_eq!(picture_size(&at("denoised/comparison.png")), (side(2), side(2)));
    // The file has what the library makes of the pixels, to a grey level.
    let dae = Dae::from_pretrained(name(&at("run")), &LoadOptions::default()).unwrap();
    let levels = |path: &Path| {
        let image = image::open(path).unwrap().to_luma8();
        Tensor::from_vec(image.into_raw(), (1, 784), &Cpu).unwrap()
    };
    let want = (dae.reconstruct(&levels(&at("one.png"))).unwrap() * 255.).unwrap();
    let got = levels(&at("denoised/two.png")).to_dtype(DType::F32).unwrap();
    let apart = (want - got).unwrap().abs().unwrap().max_all().unwrap().to_scalar::<f32>().unwrap();
    assert!(apart <= 0.501, "{apart}");

    let noisy = ["denoise", "run", "one.png", "--corruption", "salt-and-pepper:0.3", "--out", "noisy"];
    let made = DAE.json(folder.path(), &noisy);
    assert!(number(&made, "rmse") < number(&made, "rmse_corrupted"), "{made}");
    assert_eq!(picture_size(&at("noisy/comparison.png")), (side(1), side(3)));

    bar(&at("wide.png"), 28, 30);
    let err = DAE.fail(folder.path(), &["denoise", "run", "wide.png", "--out", "never"], 1);
    let text = "this model restores images of 28x28 pixels in grey (height x width), got 28x30 pixels in grey (height x width)";
    assert!(err.ends_with(text), "{err}");
    assert!(!at("never").exists());
    let err = DAE.fail(folder.path(), &["denoise", "run", "one.png", "--out", "."], 1);
    assert!(err.contains("would be written over; name another"), "{err}");
    let err = DAE.fail(folder.path(), &["denoise", "run", "one.png", "noisy/one.png"], 1);
    assert!(err.contains("the name one.png must be free"), "{err}");
}

#[test]
fn noise_of_an_evaluation_is_that_of_the_run_unless_told() {
    let folder = trained("20");
    let of = |more: &[&str]| DAE.json(folder.path(), &[&["evaluate", "run"], more].concat());
    assert_eq!(of(&[])["corruption"], "salt-and-pepper:0.3");
    let none = of(&["--corruption", "none"]);
    assert_eq!((number(&none, "rmse_of_noise"), &none["rmse"]), (0., &none["rmse_clean"]));
    let masked = of(&["--corruption", "masking:0.9"]);
    assert!(number(&masked, "rmse") > number(&none, "rmse"));
    assert_ne!(masked["rmse"], of(&["--corruption", "masking:0.9", "--seed", "5"])["rmse"]);
    DAE.succeed(folder.path(), &["reconstruct", "run", "--n", "20", "--out", "r.png"]);
    assert_eq!(picture_size(&folder.path().join("r.png")), (side(10), side(6)));
}

#[test]
fn noise_that_flips_trains_and_the_losses_that_the_paper_prints_are_measured() {
    let folder = tempfile::tempdir().unwrap();
    let train = tiny(&["--epochs", "3", "--corruption", "flip:0.2", "--out", "run"]);
    let result = DAE.json(folder.path(), &train);
    assert_eq!(result["corruption"][0], "flip:0.2");
    let lines = metrics(&folder.path().join("run"));
    assert!(number(&lines[2], "loss") < number(&lines[0], "loss"));
    let of = DAE.json(folder.path(), &["evaluate", "run"]);
    assert_eq!(of["corruption"], "flip:0.2");
    let (rmse, squares, distance) =
        (number(&of, "rmse"), number(&of, "squared_error"), number(&of, "distance"));
    // Both are of the same rows, summed over values in place of their mean.
    assert!((squares / (784. * rmse * rmse) - 1.).abs() < 1e-9, "{of}");
    // A mean of distances is at most the root of the mean of their squares.
    assert!(distance < squares.sqrt() && distance > 0.5 * squares.sqrt(), "{of}");
}

#[test]
fn views_of_rows_are_those_of_the_library_with_their_labels() {
    let folder = trained("10");
    let at = |name: &str| folder.path().join(name);
    let args = ["sample", "run", "--split", "test", "--max-rows", "12", "--views", "3", "--n", "5"];
    let made = DAE.json(folder.path(), &args);
    let n = made["n_samples"].as_u64().unwrap();
    assert_eq!((made["views"].as_u64(), &made["corruption"]), (Some(3), &"salt-and-pepper:0.3".into()));
    // Five rows, each with its three views.
    assert_eq!(picture_size(&at("views/views.png")), (side(4), side(5)));
    let load = |name: &str| candle::safetensors::load(at(name), &Cpu).unwrap();
    let tensors = load("views/views.safetensors");
    assert_eq!(tensors["features"].dims(), [3 * n as usize, 784]);
    let labels = tensors["labels"].to_vec1::<u32>().unwrap();
    assert!(labels.chunks(3).all(|of_row| of_row.iter().all(|label| *label == of_row[0])), "{labels:?}");
    // The same chain by the library, from the same rows.
    DAE.succeed(
        folder.path(),
        &[
            "sample",
            "run",
            "--split",
            "test",
            "--max-rows",
            "12",
            "--views",
            "1",
            "--corruption",
            "none",
            "--out",
            "clean",
        ],
    );
    let dae = Dae::from_pretrained(name(&at("run")), &LoadOptions::default()).unwrap();
    let first = &load("clean/views.safetensors")["features"];
    let rows = chandlery_datasets::open(
        "mnist-sample",
        &chandlery_datasets::DataOptions { max_rows: Some(12), ..Default::default() },
    )
    .unwrap();
    let raw = rows.test.unwrap().to_tensor(&Cpu).unwrap();
    let want = dae.reconstruct_prepared(&raw).unwrap();
    let apart = (first - &want).unwrap().abs().unwrap().max_all().unwrap().to_scalar::<f32>().unwrap();
    assert!(apart < 1e-6, "{apart}");
    // The same seed gives the same bits, another gives others; a longer chain begins with a shorter
    // one.
    let of = |more: &[&str]| {
        DAE.succeed(folder.path(), &[&args[..], more].concat());
        load("views/views.safetensors")["features"].to_vec2::<f32>().unwrap()
    };
    let (once, again, other) = (of(&[]), of(&[]), of(&["--seed", "8"]));
    assert!(once == again && once != other);
    let twice = {
        let args = ["sample", "run", "--split", "test", "--max-rows", "12", "--views", "2", "--out", "two"];
        DAE.succeed(folder.path(), &args);
        load("two/views.safetensors")["features"].to_vec2::<f32>().unwrap()
    };
    assert_eq!((&twice[0], &twice[1], &twice[2]), (&once[0], &once[1], &once[3]));
    DAE.refuse(folder.path(), &["sample", "run", "--views", "0"], "must be a whole number of at least 1");
}

#[test]
fn real_valued_rows_are_given_back_by_linear_outputs() {
    let folder = tempfile::tempdir().unwrap();
    let more = ["--prepare", "row-mean,pca=20", "--hidden-unit", "tanh", "--epochs", "3", "--out", "run"];
    let args = ["--max-rows", "200", "--hidden", "15", "--corruption", "gaussian:0.2", "--batch", "10"];
    let result = DAE.json(folder.path(), &[&args[..], &more].concat());
    assert_eq!(result["layers"], "20-15");
    assert!(number(&result, "rmse_test").is_finite());
    let dae = Dae::from_pretrained(name(&folder.path().join("run")), &LoadOptions::default()).unwrap();
    assert_eq!((dae.config().n_inputs(), dae.config().n_visible), (784, 20));
    assert_eq!(picture_size(&folder.path().join("run/filters.png")), (side(10), side(2)));
    let loss = ["--loss", "cross-entropy", "--prepare", "row-mean", "--max-rows", "200", "--out", "never"];
    let err = DAE.fail(folder.path(), &loss, 1);
    assert!(err.contains("--loss cross-entropy: rows must lie between 0 and 1"), "{err}");
    assert!(!folder.path().join("never").exists());
}

#[test]
fn what_makes_no_sense_is_refused_before_a_folder_is_made() {
    let folder = tempfile::tempdir().unwrap();
    for (args, text) in [
        (["--corruption", "pepper:0.3"], "corruption must be none, salt-and-pepper:SHARE"),
        (["--corruption", "masking:1.5"], "must be in [0, 1], got 1.5"),
        (["--hidden", "30,0"], "must be a whole number of at least 1"),
        (["--learning-rate", "0"], "must be a number above 0"),
        (["--momentum", "1"], "must be a number of at least 0 and below 1"),
        (["--precision", "f16"], "precision must be f32, tf32 or bf16, got f16"),
        (["--hidden-unit", "step"], "possible values: sigmoid, tanh, rectified, linear"),
    ] {
        DAE.refuse(folder.path(), &args, text);
    }
    let err = DAE.fail(folder.path(), &["--corruption", "none,none,none", "--out", "run"], 1);
    assert!(
        err.ends_with("--corruption: give one for all layers, or one for each of 1 layer, got 3"),
        "{err}"
    );
    DAE.refuse(folder.path(), &["train", "--resume", "run", "--untied"], "cannot be used with");
    let err = DAE.fail(
        folder.path(),
        &[
            "--hidden-unit",
            "linear",
            "--learning-rate",
            "1e9",
            "--max-rows",
            "200",
            "--epochs",
            "5",
            "--out",
            "nan",
        ],
        1,
    );
    assert!(err.contains("lower the learning rate"), "{err}");
    assert!(!folder.path().join("run").exists());
    DBN_ON_CPU.succeed(
        folder.path(),
        &["--max-rows", "60", "--hidden", "5", "--epochs", "1", "--batch", "10", "--out", "dbn"],
    );
    let err = DAE.fail(folder.path(), &["evaluate", "dbn"], 1);
    assert!(err.ends_with("not a denoising autoencoder; use it with `dbn`"), "{err}");
}
