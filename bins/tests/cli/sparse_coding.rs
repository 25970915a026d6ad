//! The program `sparse-coding` as a user runs it: the built binary, few rows, real folders.

use crate::common::{DICTIONARY, SPARSE_CODING, has, metrics, number, picture_size, weights};
use candle::{Device::Cpu, Tensor};
use chandlery::sparse_coding::SparseCoding;
use chandlery::sparse_coding::lasso::Solver;
use chandlery::{Encode, LoadOptions, Model};
use std::path::Path;

/// Forty atoms for 1200 whitened patches of 6×6 pixels, three passes.
const TINY: [&str; 10] =
    ["--atoms", "40", "--patch", "6", "--patches", "1200", "--batch", "200", "--epochs", "3"];

fn tiny<'a>(more: &[&'a str]) -> Vec<&'a str> {
    ["train"].iter().chain(&TINY).copied().chain(more.iter().copied()).collect()
}

fn name(path: &Path) -> String {
    path.display().to_string()
}

#[test]
fn a_run_leaves_a_whole_folder_and_one_json_object() {
    let folder = tempfile::tempdir().unwrap();
    let result = SPARSE_CODING.json(folder.path(), &tiny(&["--out", "run"]));
    let (before, after) = (number(&result, "objective_first_epoch"), number(&result, "objective"));
    assert!(after < 0.99 * before && after > 0., "{before} → {after}");
    let nonzero = number(&result, "nonzero_fraction");
    assert!(nonzero > 0.01 && nonzero < 0.5, "{nonzero}");
    assert!(number(&result, "max_relative_gap") <= 1.1e-4 && number(&result, "seconds") > 0.);
    assert_eq!((result["n_rows"].as_u64(), result["n_atoms"].as_u64()), (Some(1200), Some(40)));
    let run = folder.path().join("run");
    let objectives: Vec<f64> = metrics(&run).iter().map(|line| number(line, "objective")).collect();
    assert_eq!(objectives.len(), 3);
    assert!(objectives.windows(2).all(|pair| pair[1] < pair[0]), "{objectives:?}");
    // Forty tiles of 6 pixels in seven columns and six lines, four times as large.
    assert_eq!(picture_size(&run.join("basis.png")), (4 * 50, 4 * 43));
    assert!(std::fs::read_to_string(run.join("curves.svg")).unwrap().contains("nonzero activations"));
    has(&run.join("README.md"), &["Basis of 40 atoms", "1200 patches of 6x6 pixels", "basis.png"]);
    let model = SparseCoding::from_pretrained(name(&run), &LoadOptions::default()).unwrap();
    assert_eq!(model.config().image, Some([6, 6, 1].into()));
    let lengths = model.basis().sqr().unwrap().sum(1).unwrap().to_vec1::<f32>().unwrap();
    assert!(lengths.iter().all(|&square| square <= 1.00001), "{lengths:?}");
    let grey = Tensor::full(7u8, (2, 36), &Cpu).unwrap();
    assert_eq!(model.encode(&grey).unwrap().dims(), [2, 40]);
    let err =
        DICTIONARY.fail(folder.path(), &["encode", "run", "--data", "natural-images", "--device", "cpu"], 1);
    let want = "this is a model of type sparse-coding, not a dictionary; use it with `sparse-coding`";
    assert!(err.ends_with(want), "{err}");
}

#[test]
fn a_run_that_was_stopped_anywhere_ends_in_the_same_bits_and_can_be_extended() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for (whole, stopped, basis, solver) in [
        ("a", "b", "blocks", "active-set"),
        ("c", "d", "projected-gradient", "parallel-coordinates"),
        ("e", "f", "lagrange-dual", "fista"),
    ] {
        let update = ["--basis", basis, "--solver", solver];
        SPARSE_CODING.succeed(folder.path(), &tiny(&[&["--out", whole], &update[..]].concat()));
        let args = [&["--out", stopped, "--stop-after-steps", "8"], &update[..]].concat();
        let err = SPARSE_CODING.fail(folder.path(), &tiny(&args), 130);
        assert_eq!(err, format!("interrupted; resume with: sparse-coding train --resume {stopped}"));
        SPARSE_CODING.succeed(folder.path(), &["train", "--resume", stopped]);
        assert!(weights(&at(whole)) == weights(&at(stopped)), "{update:?}: another basis");
        assert_eq!(metrics(&at(stopped)).len(), 3);
    }
    let longer = SPARSE_CODING.json(folder.path(), &["train", "--resume", "a", "--epochs", "4"]);
    assert_eq!((longer["epochs"].as_u64(), metrics(&at("a")).len()), (Some(4), 4));
    let err = SPARSE_CODING.fail(folder.path(), &["train", "--resume", "a", "--epochs", "4"], 1);
    assert!(err.contains("--epochs: must be above the 4 of this run, got 4"), "{err}");
}

#[test]
fn every_solver_and_every_update_of_the_basis_learn_about_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let objective = |more: &[&str]| {
        let name = ["run", &more.concat()].concat();
        let result = SPARSE_CODING.json(folder.path(), &tiny(&[more, &["--out", &name]].concat()));
        let model = SparseCoding::from_pretrained(
            folder.path().join(&name).display().to_string(),
            &LoadOptions::default(),
        );
        (number(&result, "objective"), model.unwrap())
    };
    let (want, model) = objective(&[]);
    assert_eq!(model.config().solver, Solver::ActiveSet);
    // All stop within 1e-4 of the best activations; from there on bases go apart a little.
    for (solver, library) in [
        ("cyclic", Solver::CoordinateDescent),
        ("fista", Solver::Fista),
        ("parallel-coordinates", Solver::PRINTED),
    ] {
        let (got, model) = objective(&["--solver", solver]);
        assert!((got / want - 1.).abs() < 5e-3, "{solver}: {got} beside {want}");
        assert_eq!(model.config().solver, library, "the model encodes as it was trained");
    }
    for basis in [&["--basis", "lagrange-dual"][..], &["--basis", "projected-gradient", "--sweeps", "50"]] {
        let (got, _) = objective(basis);
        assert!((got / want - 1.).abs() < 2e-2, "{basis:?}: {got} beside {want}");
    }
}

#[test]
fn a_model_of_digits_encodes_evaluates_and_reconstructs_its_own_data_without_being_told_it() {
    let folder = tempfile::tempdir().unwrap();
    let digits = ["--data", "mnist-sample", "--max-rows", "400", "--atoms", "30", "--nonnegative"];
    let train = ["train", "--epochs", "3", "--batch", "100", "--out", "run"];
    let made = SPARSE_CODING.json(folder.path(), &[&train[..], &digits].concat());
    assert_eq!(made["n_features"].as_u64(), Some(784));
    let encoded = SPARSE_CODING.json(folder.path(), &["encode", "run", "--out", "a.safetensors"]);
    assert_eq!((encoded["n_features"].as_u64(), encoded["labels"].as_bool()), (Some(30), Some(true)));
    let tensors = candle::safetensors::load(folder.path().join("a.safetensors"), &Cpu).unwrap();
    let least = tensors["features"].min_all().unwrap().to_scalar::<f32>().unwrap();
    assert_eq!((tensors["features"].dims()[1], least), (30, 0.));
    let options = chandlery_datasets::DataOptions { max_rows: Some(400), ..Default::default() };
    let dataset = chandlery_datasets::open("mnist-sample", &options).unwrap();
    let labels = |split: chandlery_datasets::Split| split.labels.unwrap().to_vec();
    assert_eq!(tensors["labels"].to_vec1::<u32>().unwrap(), labels(dataset.test.unwrap()), "test rows");
    SPARSE_CODING.succeed(folder.path(), &["encode", "run", "--split", "train", "--out", "b.safetensors"]);
    let of_train = candle::safetensors::load(folder.path().join("b.safetensors"), &Cpu).unwrap();
    assert_eq!(of_train["labels"].to_vec1::<u32>().unwrap(), labels(dataset.train), "training rows");
    let result = SPARSE_CODING.json(folder.path(), &["evaluate", "run"]);
    let (test, train) = (number(&result, "objective"), number(&made, "objective"));
    assert!(test > 0.8 * train && test < 1.5 * train, "{test}, on training rows {train}");
    let back = SPARSE_CODING.json(folder.path(), &["reconstruct", "run", "--out", "r.png", "--n", "10"]);
    let per_input = number(&back, "squared_error_per_input");
    assert!((per_input.sqrt() / number(&result, "rmse") - 1.).abs() < 1e-4, "{back} {result}");
    assert!(folder.path().join("r.png").exists());
}

#[test]
fn what_makes_no_sense_is_refused_before_a_folder_is_made() {
    let folder = tempfile::tempdir().unwrap();
    SPARSE_CODING.refuse(folder.path(), &["--penalty=-1"], "must be a number of at least 0");
    SPARSE_CODING.refuse(folder.path(), &["--basis", "newton"], "lagrange-dual");
    SPARSE_CODING.refuse(folder.path(), &["--solver", "newton"], "parallel-coordinates");
    SPARSE_CODING.succeed(folder.path(), &tiny(&["--out", "patches"]));
    let encoded = SPARSE_CODING.json(folder.path(), &["encode", "patches", "--data", "natural-images"]);
    assert_eq!(encoded["n_features"].as_u64(), Some(40), "patches of the size of the model's");
    let err = SPARSE_CODING.fail(folder.path(), &["encode", "patches", "--split", "train"], 1);
    assert!(err.contains("--split: natural-images is cut into patches, which have no splits"), "{err}");
    let args = ["train", "--data", "mnist-sample", "--patches", "9", "--out", "run"];
    let err = SPARSE_CODING.fail(folder.path(), &args, 1);
    assert!(
        err.ends_with("--patches: mnist-sample holds rows, not images; leave it out, or give --patch"),
        "{err}"
    );
    assert!(!folder.path().join("run").exists());
}

#[test]
fn activations_of_other_digits_beat_raw_pixels_where_labels_are_not_too_few() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["self-taught", "--labelled", "100,1000", "--seeds", "2", "--atoms", "256", "--out", "taught"];
    let result = SPARSE_CODING.json(folder.path(), &args);
    let accuracy = |by: &str| number(&result, &format!("accuracy_{by}"));
    assert!(accuracy("pixels") > 0.9, "{result}");
    assert!(accuracy("features") > accuracy("pixels") && accuracy("features") > accuracy("pca"), "{result}");
    assert!(
        SparseCoding::from_pretrained(name(&folder.path().join("taught")), &LoadOptions::default()).is_ok()
    );
    assert_eq!(result["accuracies"].as_array().map(Vec::len), Some(2));
}

/// Two waves, 60 lines of 72 pixels, as `grey.png`.
fn with_waves() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let wave = |i: u32| 55. * (f64::from(i) / 4.).sin();
    let picture =
        image::GrayImage::from_fn(72, 60, |x, y| image::Luma([(128. + wave(x) + wave(2 * y)) as u8]));
    picture.save(folder.path().join("grey.png")).unwrap();
    folder
}

#[test]
fn penalised_coefficients_denoise_an_image() {
    let folder = with_waves();
    let noisy = ["denoise", "grey.png", "--sigma", "20", "--add-noise", "--epochs", "0", "--atoms", "100"];
    let result = SPARSE_CODING.json(folder.path(), &[&noisy[..], &["--penalty", "1.5"]].concat());
    let (before, after) = (number(&result, "psnr_noisy"), number(&result, "psnr"));
    assert!(after > before + 4., "{before} → {after}");
    assert_eq!(number(&result, "penalty"), 1.5);
    assert_eq!(picture_size(&folder.path().join("denoised.png")), (72, 60));
    SPARSE_CODING.refuse(folder.path(), &[&noisy[..], &["--penalty=-1"]].concat(), "at least 0");
}

#[test]
fn penalised_coefficients_fill_in_missing_pixels() {
    let folder = with_waves();
    let at = |name: &str| folder.path().join(name);
    let small = ["--patch", "6", "--atoms", "64", "--epochs", "3", "--rounds", "1"];
    let random = ["inpaint", "grey.png", "--missing", "0.4"];
    let result = SPARSE_CODING.json(folder.path(), &[&random[..], &small].concat());
    // By the mean of the image the error of a missing pixel is 55 levels, and of all 35: 17 dB.
    let (before, after) = (number(&result, "psnr_noisy"), number(&result, "psnr"));
    assert!(before < 15. && after > 27., "{before} → {after}");
    assert_eq!(result["learned"].as_bool(), Some(true));
    // A penalty that leaves no coefficient but that of the flat atom gives the means of patches.
    let means = SPARSE_CODING.json(folder.path(), &[&random[..], &small, &["--penalty", "1e6"]].concat());
    assert!(number(&means, "psnr") < after - 5. && number(&means, "mean_count") <= 1., "{means}");

    let columns =
        image::GrayImage::from_fn(72, 60, |x, _| image::Luma([if (30..33).contains(&x) { 255 } else { 0 }]));
    columns.save(at("mask.png")).unwrap();
    let scratch =
        ["inpaint", "grey.png", "--mask", "mask.png", "--clean", "grey.png", "--comparison", "all.png"];
    let result = SPARSE_CODING.json(folder.path(), &[&scratch[..], &small].concat());
    assert!(number(&result, "psnr") > number(&result, "psnr_noisy") + 8., "{result}");
    let (got, want) = (
        image::open(at("inpainted.png")).unwrap().to_luma8(),
        image::open(at("grey.png")).unwrap().to_luma8(),
    );
    for (x, y, pixel) in got.enumerate_pixels() {
        assert!((30..33).contains(&x) || pixel == want.get_pixel(x, y), "a known pixel changed at {x}, {y}");
    }
    assert!(at("all.png").exists());
    SPARSE_CODING.refuse(folder.path(), &[&random[..], &["--penalty=-1"]].concat(), "at least 0");
    SPARSE_CODING.refuse(folder.path(), &["inpaint", "grey.png"], "--mask <FILE>|--missing <FRACTION>");
}

#[test]
fn both_programs_restore_by_the_same_code_with_codes_of_their_own() {
    let folder = with_waves();
    let at = |name: &str| folder.path().join(name);
    let small = [
        "--patch",
        "6",
        "--atoms",
        "40",
        "--epochs",
        "2",
        "--overwrite",
        "--save-dictionary",
        "kept",
        "--device",
        "cpu",
    ];
    for command in [
        &["denoise", "grey.png", "--sigma", "20", "--add-noise"][..],
        &["inpaint", "grey.png", "--missing", "0.4"],
    ] {
        let command = [command, &small].concat();
        let mut kept = vec![];
        let results = [DICTIONARY, SPARSE_CODING.bare()].map(|program| {
            let result = program.json(folder.path(), &command);
            kept.push(weights(&at("kept")));
            let card = std::fs::read_to_string(at("kept/README.md")).unwrap();
            let name = Path::new(program.path).file_name().unwrap().to_str().unwrap();
            assert!(card.contains(&format!("{name} {}", command[0])), "{card}");
            result
        });
        // Both learn by pursuits, from the same draws.
        assert!(kept[0] == kept[1], "{command:?}: another dictionary");
        let keys = |value: &serde_json::Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        assert_eq!(keys(&results[0]), keys(&results[1]));
        for name in ["psnr_noisy", "n_atoms", "n_features", "learned"] {
            assert_eq!(results[0][name], results[1][name], "{name} of {command:?}");
        }
        assert!(results[0]["penalty"].is_null() && number(&results[1], "penalty") > 0.);
        let [by_pursuit, by_lasso] = [&results[0], &results[1]].map(|result| number(result, "psnr"));
        assert!(
            by_pursuit != by_lasso && (by_pursuit - by_lasso).abs() < 4.,
            "{by_pursuit} and {by_lasso} dB"
        );
    }
}

#[test]
fn a_basis_of_whitened_patches_restores_pixels() {
    let folder = with_waves();
    let whitened =
        ["train", "--data", "grey.png", "--patch", "6", "--patches", "3000", "--atoms", "60", "--out", "run"];
    SPARSE_CODING.succeed(folder.path(), &whitened);
    let restore = |command: &[&str]| {
        let result = SPARSE_CODING.json(folder.path(), &[command, &["--dictionary", "run"]].concat());
        assert_eq!((result["n_atoms"].as_u64(), result["n_features"].as_u64()), (Some(60), Some(36)));
        [number(&result, "psnr_noisy"), number(&result, "psnr")]
    };
    let [before, after] = restore(&["denoise", "grey.png", "--sigma", "20", "--add-noise"]);
    assert!(after > before + 5., "{before} → {after}");
    let [before, after] = restore(&["inpaint", "grey.png", "--missing", "0.4"]);
    assert!(after > before + 12., "{before} → {after}");
}
