//! Dictionaries from files of atoms: `--start-from`, `--dictionary`, and the models of `encode` and
//! `decode`.
use super::{folder, tiny};
use crate::common::{DBN_ON_CPU, DICTIONARY, number};
use candle::{Device::Cpu, Tensor};
use chandlery::dictionary::Dictionary;
use chandlery::{LoadOptions, Model};
use std::path::Path;
use tempfile::TempDir;

fn write_npy(path: &Path, rows: &Tensor) {
    use npyz::WriterBuilder;
    let (n, p) = rows.dims2().unwrap();
    let mut npy = npyz::WriteOptions::new()
        .default_dtype()
        .shape(&[n as u64, p as u64])
        .writer(std::fs::File::create(path).unwrap())
        .begin_nd()
        .unwrap();
    npy.extend(rows.flatten_all().unwrap().to_vec1::<f32>().unwrap()).unwrap();
    npy.finish().unwrap();
}

fn write_safetensors(path: &Path, tensors: &[(&str, &Tensor)]) {
    let tensors = tensors.iter().map(|(name, t)| (*name, (*t).clone())).collect();
    candle::safetensors::save(&tensors, path).unwrap();
}

/// Pictures, the run `run` of 32 atoms for 4×4 patches, and those atoms times 3 as `atoms.npy` and
/// `atoms.safetensors`.
fn with_atoms() -> TempDir {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    DICTIONARY.succeed(folder.path(), &tiny(&["--data", "grey.png", "--out", "run"]));
    let run = Dictionary::from_pretrained(at("run"), &LoadOptions::default()).unwrap();
    let atoms = (run.atoms() * 3.).unwrap();
    write_npy(&at("atoms.npy"), &atoms);
    let other = Tensor::zeros((2, 3), candle::DType::F32, &Cpu).unwrap();
    write_safetensors(&at("atoms.safetensors"), &[("dictionary", &atoms), ("other", &other)]);
    folder
}

/// Asserts that two figures are the same but for a rounding of the atoms, which were made of length
/// 1 once more.
#[track_caller]
fn near(a: f64, b: f64) {
    assert!((a / b - 1.).abs() < 1e-4, "{a} {b}");
}

#[test]
fn atoms_of_a_file_are_the_start_of_training_even_once_it_is_gone() {
    let folder = with_atoms();
    let args = [
        "train",
        "--data",
        "grey.png",
        "--patch",
        "4",
        "--patches",
        "1500",
        "--nonzero",
        "3",
        "--epochs",
        "2",
    ];
    let train = |init: &str, out: &str, more: &[&str]| -> Vec<String> {
        let more = [&["--start-from", init, "--out", out, "--device", "cpu"][..], more].concat();
        args.iter().chain(&more).map(|arg| (*arg).to_owned()).collect()
    };
    let run = |args: Vec<String>| {
        DICTIONARY.json(folder.path(), &args.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let from_run = run(train("run", "a", &[]));
    for (file, out) in [("atoms.npy", "b"), ("atoms.safetensors", "c")] {
        let from_file = run(train(file, out, &[]));
        assert_eq!(from_file["n_atoms"].as_u64(), Some(32));
        near(number(&from_file, "rmse_start"), number(&from_run, "rmse_start"));
        near(number(&from_file, "rmse"), number(&from_run, "rmse"));
    }
    let stopped = train("atoms.npy", "d", &["--stop-after-steps", "1"]);
    DICTIONARY.fail(folder.path(), &stopped.iter().map(String::as_str).collect::<Vec<_>>(), 130);
    std::fs::remove_file(folder.path().join("atoms.npy")).unwrap();
    let resumed = DICTIONARY.json(folder.path(), &["train", "--resume", "d", "--device", "cpu"]);
    near(number(&resumed, "rmse"), number(&from_run, "rmse"));
}

#[test]
fn atoms_of_a_file_code_decode_and_restore() {
    let folder = with_atoms();
    let json = |args: &[&str]| DICTIONARY.json(folder.path(), &[args, &["--device", "cpu"]].concat());
    for command in [
        &["denoise", "grey.png", "--sigma", "9", "--add-noise"][..],
        &["inpaint", "grey.png", "--missing", "0.4"],
    ] {
        let figure = |dictionary: &str| {
            let result = json(&[command, &["--dictionary", dictionary]].concat());
            assert_eq!((result["n_atoms"].as_u64(), result["learned"].as_bool()), (Some(32), Some(false)));
            result["psnr"].as_f64().unwrap_or_else(|| panic!("{result}"))
        };
        let want = figure("run");
        near(figure("atoms.npy"), want);
        near(figure("atoms.safetensors"), want);
    }
    let coded = json(&["encode", "atoms.npy", "--data", "grey.png", "--nonzero", "16"]);
    assert_eq!((coded["n_rows"].as_u64(), coded["n_atoms"].as_u64()), (Some(20 * 16), Some(32)));
    let decoded = json(&["decode", "atoms.safetensors", "codes.safetensors"]);
    assert_eq!(decoded["out"].as_str(), Some("decoded.png"));
    assert_eq!(json(&["encode", "atoms.npy", "--data", "grey.png"])["n_nonzero"].as_u64(), Some(10));
}

#[test]
fn files_that_hold_no_dictionary_are_refused_by_name_and_row() {
    let folder = with_atoms();
    let at = |name: &str| folder.path().join(name);
    let good = Tensor::ones((3, 16), candle::DType::F32, &Cpu).unwrap();
    let with_row = |value: f32| {
        let row = Tensor::full(value, (1, 16), &Cpu).unwrap();
        Tensor::cat(&[&good, &row], 0).unwrap()
    };
    write_npy(&at("zero.npy"), &with_row(0.));
    write_npy(&at("nan.npy"), &with_row(f32::NAN));
    write_safetensors(&at("nan.safetensors"), &[("dictionary", &with_row(f32::NAN))]);
    write_safetensors(&at("zero.safetensors"), &[("d", &with_row(0.))]);
    write_safetensors(&at("two.safetensors"), &[("b", &good), ("a", &good)]);
    DBN_ON_CPU.succeed(
        folder.path(),
        &["train", "--max-rows", "40", "--hidden", "5", "--epochs", "1", "--batch", "10", "--out", "network"],
    );
    let zero = "row 3 (counted from 0) must not be zero, which has no direction; leave it out";
    let cases = [
        ("zero.npy", zero),
        ("zero.safetensors", zero),
        ("nan.safetensors", "row 3 (counted from 0) must be finite numbers, got NaN; leave it out"),
        (
            "two.safetensors",
            "must hold a tensor `dictionary`, or one matrix alone, [n_atoms, n_features]; it holds: a, b",
        ),
        ("none.npy", ""),
        ("network", "this is a model of type deep-belief-network, not a dictionary; use it with `dbn`"),
    ];
    for (name, want) in cases {
        let fail = |args: &[&str], flag: &str| {
            let err = DICTIONARY.fail(folder.path(), &[args, &["--device", "cpu"]].concat(), 1);
            assert!(
                err.starts_with(&format!("dictionary-learning: {flag}{name}: {want}")),
                "{args:?}: {err}"
            );
        };
        fail(
            &["train", "--data", "grey.png", "--patch", "4", "--start-from", name, "--out", "no"],
            "--start-from ",
        );
        fail(&["denoise", "grey.png", "--sigma", "9", "--dictionary", name], "--dictionary ");
        fail(&["encode", name, "--data", "grey.png"], "");
        fail(&["decode", name, "codes.safetensors"], "");
    }
    // A .npy file is read as rows of data are, which must be finite as well.
    let err =
        DICTIONARY.fail(folder.path(), &["encode", "nan.npy", "--data", "grey.png", "--device", "cpu"], 1);
    assert!(err.contains("nan.npy: row 3, column 0 is NaN"), "{err}");
    assert!(!at("no").exists());
}
