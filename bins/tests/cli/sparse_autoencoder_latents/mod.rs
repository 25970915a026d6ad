//! `sparse-autoencoder --kind` as a user runs it: the built binary, few epochs, real folders.
mod ranks;
mod streams;
mod top;
mod transcoders;

use crate::common::{DBN, SPARSE_AUTOENCODER, has, metrics, number, weights, write_npy};
use candle::{DType, Device::Cpu, Tensor};
use chandlery::sparse_autoencoder::sae::{Kind, Sae};
use chandlery::{Encode, LoadOptions, Model, Philox};
use chandlery_ops::codes::SparseCodes;
use chandlery_ops::core::{normal, uniform};
use std::path::Path;

/// Values of a row, and the features that rows are sums of.
const VALUES: usize = 12;
const FEATURES: usize = 24;

/// Rows that are sums of two features of length 10, in a file.
fn write_rows(path: &Path, n: usize, stream: u64) {
    let features = (normal((FEATURES, VALUES), &Cpu, Philox::new(1, 0)).unwrap() * 3.).unwrap();
    let weights = (uniform((n, 2), &Cpu, Philox::new(2, stream)).unwrap() + 0.5).unwrap();
    let chosen: Vec<u32> =
        (0..n as u64).flat_map(|i| Philox::new(3 + stream, i).sample(FEATURES, 2)).collect();
    let named = features.index_select(&Tensor::new(chosen, &Cpu).unwrap(), 0).unwrap();
    let rows = named.reshape((n, 2, VALUES)).unwrap().broadcast_mul(&weights.unsqueeze(2).unwrap()).unwrap();
    let rows = rows.sum(1).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
    write_npy(path, [n, VALUES], &rows);
}

/// A folder with rows to train on and others.
fn data() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    write_rows(&folder.path().join("rows.npy"), 600, 0);
    write_rows(&folder.path().join("others.npy"), 200, 1);
    folder
}

fn train<'a>(kind: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let usual = [
        "train",
        "--data",
        "rows.npy",
        "--kind",
        kind,
        "--latents",
        "48",
        "--batch",
        "64",
        "--epochs",
        "12",
        "--learning-rate",
        "0.01",
        "--dead-rows",
        "1500",
        "--warm-up",
        "5",
    ];
    usual.into_iter().chain(more.iter().copied()).collect()
}

const KINDS: [(&str, &[&str]); 7] = [
    ("batchtopk", &["--active", "2", "--precision", "bf16"]),
    ("topk", &["--active", "2"]),
    ("batch-top-k", &["--active", "2"]),
    ("matryoshka", &["--active", "2", "--clip", "1"]),
    ("relu", &["--active-penalty", "0.2", "--resample-every", "20"]),
    ("jump-relu", &["--active-penalty", "0.1"]),
    ("gated", &["--active-penalty", "0.2"]),
];

#[test]
fn a_run_of_any_kind_leaves_a_whole_folder_and_ends_in_the_same_bits_after_a_stop() {
    let folder = data();
    let at = |name: &str| folder.path().join(name);
    for (kind, more) in KINDS {
        let (whole, stopped) = (format!("{kind}-a"), format!("{kind}-b"));
        let result =
            SPARSE_AUTOENCODER.json(folder.path(), &train(kind, &[more, &["--out", &whole]].concat()));
        let lines = metrics(&at(&whole));
        assert_eq!(lines.len(), 12);
        let fvu: Vec<f64> = lines.iter().map(|line| number(line, "fvu")).collect();
        assert!(fvu[11] < 0.7 * fvu[0] && fvu[11] > 0., "{kind}: {fvu:?}");
        assert_eq!(number(&result, "fvu"), fvu[11], "{kind}");
        assert!(result["stage_seconds"].is_object() && number(&result, "l0") > 0., "{kind}: {result}");
        has(&at(&whole).join("README.md"), &["sparse autoencoder of 12 values and 48 latents", "curves.svg"]);
        // Stopped within the third epoch of ten minibatches.
        let args = [more, &["--out", &stopped, "--stop-after-steps", "27"]].concat();
        let err = SPARSE_AUTOENCODER.fail(folder.path(), &train(kind, &args), 130);
        assert_eq!(err, format!("interrupted; resume with: sparse-autoencoder train --resume {stopped}"));
        SPARSE_AUTOENCODER.succeed(folder.path(), &["train", "--resume", &stopped]);
        assert!(weights(&at(&whole)) == weights(&at(&stopped)), "{kind}: other weights");
    }
    let result = SPARSE_AUTOENCODER.json(folder.path(), &["train", "--resume", "topk-a", "--epochs", "14"]);
    assert_eq!(result["epochs"].as_u64(), Some(14));
}

#[test]
fn a_trained_model_evaluates_encodes_and_reconstructs_rows() {
    let folder = data();
    let at = |name: &str| folder.path().join(name);
    SPARSE_AUTOENCODER.succeed(folder.path(), &train("top-k", &["--active", "2", "--out", "run"]));
    let run = at("run").display().to_string();
    let model = Sae::from_pretrained(&run, &LoadOptions::default()).unwrap();
    assert_eq!(model.config().kind, Kind::TopK { k: 2 });

    // By hand, over dense codes.
    let others = ["--data", "others.npy"];
    let result = SPARSE_AUTOENCODER.json(folder.path(), &[&["evaluate", "run"], &others[..]].concat());
    let raw = candle::Tensor::read_npy(at("others.npy")).unwrap();
    let codes = model.encode(&raw).unwrap();
    let dense = codes.to_dense().unwrap().to_dtype(DType::F64).unwrap();
    let parameter = |name: &str| model.parameter_named(name).unwrap().to_dtype(DType::F64).unwrap();
    let x = model.prepare(&raw).unwrap().to_dtype(DType::F64).unwrap();
    let decoder = model.decoder().to_dtype(DType::F64).unwrap();
    let back = dense.matmul(&decoder).unwrap().broadcast_add(&parameter("b_dec")).unwrap();
    let sum = |t: &Tensor| t.sqr().unwrap().sum_all().unwrap().to_scalar::<f64>().unwrap();
    let spread = sum(&x.broadcast_sub(&x.mean_keepdim(0).unwrap()).unwrap());
    let fvu = sum(&(&back - &x).unwrap()) / spread;
    assert!((number(&result, "fvu") - fvu).abs() < 1e-5 * fvu, "{result}, {fvu}");
    let used = dense.gt(0f64).unwrap().to_dtype(DType::F64).unwrap();
    let l0 = used.sum_all().unwrap().to_scalar::<f64>().unwrap() / 200.;
    assert_eq!(number(&result, "l0"), l0);
    let never = used.sum(0).unwrap().to_vec1::<f64>().unwrap().iter().filter(|n| **n == 0.).count();
    assert_eq!(result["dead_latents"].as_u64(), Some(never as u64));
    let decades: u64 = result["density_decades"].as_array().unwrap().iter().filter_map(|n| n.as_u64()).sum();
    assert_eq!(decades as usize, 48 - never);
    assert!(number(&result, "cosine") > 0.5 && number(&result, "cosine") <= 1.);

    for out in ["codes.safetensors", "codes.npz"] {
        let args = [&["encode", "run", "--out", out], &others[..]].concat();
        assert_eq!(number(&SPARSE_AUTOENCODER.json(folder.path(), &args), "l0"), l0);
    }
    let file = candle::safetensors::load(at("codes.safetensors"), &Cpu).unwrap();
    let [indices, values, count] = ["indices", "values", "count"].map(|name| file[name].clone());
    let read = SparseCodes { indices, values, count, n_atoms: 48 }.to_dense().unwrap();
    assert_eq!(read.to_vec2::<f32>().unwrap(), codes.to_dense().unwrap().to_vec2::<f32>().unwrap());
    let err = SPARSE_AUTOENCODER.fail(
        folder.path(),
        &["encode", "run", "--data", "others.npy", "--out", "codes.csv"],
        1,
    );
    assert!(err.ends_with("codes.csv: the name must end in .npz or .safetensors"), "{err}");

    let result = SPARSE_AUTOENCODER.json(folder.path(), &[&["reconstruct", "run"], &others[..]].concat());
    let error = sum(&(back - x).unwrap()) / 200.;
    assert!((number(&result, "squared_error") - error).abs() < 1e-5 * error, "{result}, {error}");
    let err = DBN.fail(folder.path(), &["evaluate", "run", "--device", "cpu"], 1);
    assert!(err.contains("this is a model of type sae") && err.contains("`sparse-autoencoder`"), "{err}");
}

#[test]
fn what_makes_no_sense_is_refused_before_a_folder_is_made() {
    let folder = data();
    let refused = |more: &[&str]| {
        let said =
            SPARSE_AUTOENCODER.fail(folder.path(), &[&["train", "--data", "rows.npy"], more].concat(), 1);
        assert!(!folder.path().join("runs").exists(), "{more:?}");
        said
    };
    let cases: [(&[&str], &str); 6] = [
        (
            &["--kind", "topk", "--latents", "8", "--active", "9"],
            "k must be 1 to 8, the number of latents, got 9",
        ),
        (
            &["--kind", "relu", "--active", "3"],
            "--active: ReLU has a penalty in place of a number; give --active-penalty",
        ),
        (
            &["--kind", "topk", "--active-penalty", "3"],
            "--active-penalty: TopK has a number of active latents; give --active",
        ),
        (&["--kind", "topk", "--iterations", "3"], "--iterations: --kind learns in epochs; give --epochs"),
        (
            &["--kind", "topk", "--optimizer", "cg"],
            "--optimizer: --kind learns by Adam from minibatches; leave it out",
        ),
        (
            &["--kind", "topk", "--precision", "f64"],
            "--precision f64: --kind computes products in f32, tf32 or bf16; give one of these",
        ),
    ];
    for (more, want) in cases {
        let err = refused(more);
        assert!(err.contains(want), "{more:?}: {err}");
    }
    SPARSE_AUTOENCODER.refuse(folder.path(), &["train", "--latents", "8"], "--kind");
    SPARSE_AUTOENCODER.refuse(
        folder.path(),
        &["train", "--kind", "topk", "--hidden", "8"],
        "cannot be used with",
    );
    // A run that diverges ends with its steps named, NaN in the data with the row.
    let args = train("top-k", &["--active", "2", "--out", "bad"]).into_iter();
    let args: Vec<&str> = args.map(|arg| if arg == "0.01" { "1e38" } else { arg }).collect();
    let err = SPARSE_AUTOENCODER.fail(folder.path(), &args, 1);
    assert!(err.contains("infinite or NaN") && err.contains("step"), "{err}");
    let mut values = vec![1f32; 40 * VALUES];
    for (i, value) in values.iter_mut().enumerate() {
        *value += (i * 7 % 11) as f32;
    }
    values[5 * VALUES] = f32::NAN;
    write_npy(&folder.path().join("nan.npy"), [40, VALUES], &values);
    let args = [
        "train",
        "--data",
        "nan.npy",
        "--kind",
        "topk",
        "--active",
        "2",
        "--prepare",
        "none",
        "--out",
        "nan",
    ];
    let err = SPARSE_AUTOENCODER.fail(folder.path(), &args, 1);
    assert!(err.contains("nan.npy: row 5, column 0 is NaN"), "{err}");
}
