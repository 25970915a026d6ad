//! Several processes that use a saved model together, on the CPU: each takes blocks of rows in
//! turn, and files and figures are those of one process.
#![cfg(unix)]

use crate::common::{
    DAE, DBN_ON_CPU, DICTIONARY_ON_CPU, Program, SPARSE_AUTOENCODER, SPARSE_CODING, write_npy,
};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Rows are used 1,000 at a time: two blocks and a part of one. Of four ranks the last has none.
const ROWS: usize = 2501;
const WIDTH: usize = 16;
const RANKS: [&str; 3] = ["2", "3", "4"];

/// Values between 0 and 1 that look like nothing in particular, but repeat from row to row in part.
fn value(row: usize, column: usize) -> f32 {
    let mixed = (row % 97 * 31 + column * 17 + row * column % 13) % 64;
    mixed as f32 / 64.
}

/// Rows as an array, and with a class each as a table.
fn data() -> TempDir {
    let folder = TempDir::new().unwrap();
    let values: Vec<f32> = (0..ROWS * WIDTH).map(|i| value(i / WIDTH, i % WIDTH)).collect();
    write_npy(&folder.path().join("rows.npy"), [ROWS, WIDTH], &values);
    let names: Vec<_> = (0..WIDTH).map(|i| format!("f{i}")).collect();
    let mut table = format!("{},label\n", names.join(","));
    for (row, values) in values.chunks(WIDTH).enumerate() {
        let values: Vec<_> = values.iter().map(f32::to_string).collect();
        table += &format!("{},{}\n", values.join(","), ["a", "b", "c"][row % 97 % 3]);
    }
    fs::write(folder.path().join("rows.csv"), table).unwrap();
    folder
}

/// Runs a command that writes `--out` as one process and as several: all must write the same bytes
/// and say the same, but for the name of the file.
#[track_caller]
fn writes_the_same(program: &Program, at: &Path, args: &[&str], ending: &str) {
    let run = |ranks: &str| {
        let out = format!("of-{ranks}{ending}");
        let said = program.json(at, &[args, &["--out", &out, "--gpus", ranks]].concat());
        (fs::read(at.join(&out)).unwrap_or_default(), without(&said, &["out", "device"]))
    };
    let (want, said) = run("1");
    assert!(!want.is_empty(), "{args:?}");
    for ranks in RANKS {
        let (got, said_too) = run(ranks);
        assert!(got == want, "{args:?}: other bytes of {ranks} ranks");
        is_near(&said_too, &said, &format!("{args:?} of {ranks} ranks"));
    }
}

/// Runs a command that measures as one process and as several: figures must be the same up to the
/// order of sums.
#[track_caller]
fn measures_the_same(program: &Program, at: &Path, args: &[&str]) -> Value {
    let run = |ranks: &str| program.json(at, &[args, &["--gpus", ranks]].concat());
    let want = run("1");
    for ranks in RANKS {
        is_near(&run(ranks), &want, &format!("{args:?} of {ranks} ranks"));
    }
    want
}

/// What was said without times and these fields.
fn without(said: &Value, names: &[&str]) -> Value {
    let mut said = said.clone();
    let fields = said.as_object_mut().unwrap();
    names.iter().for_each(|name| drop(fields.remove(*name)));
    said
}

/// Numbers differ by the rounding of f32 at most, where chains or costs are products of other
/// sizes, and nothing else does.
#[track_caller]
fn is_near(got: &Value, want: &Value, at: &str) {
    match (got, want) {
        (Value::Object(got), Value::Object(want)) => {
            assert!(got.keys().eq(want.keys()), "{at}");
            let timed = |name: &str| name.contains("seconds");
            let fields = got.iter().zip(want).filter(|((name, _), _)| !timed(name));
            fields.for_each(|((name, got), (_, want))| is_near(got, want, &format!("{at} {name}")));
        }
        (Value::Array(got), Value::Array(want)) => {
            assert_eq!(got.len(), want.len(), "{at}");
            got.iter().zip(want).for_each(|(got, want)| is_near(got, want, at));
        }
        _ => match (got.as_f64(), want.as_f64()) {
            (Some(got), Some(want)) => {
                assert!((got - want).abs() <= 1e-5 * want.abs(), "{at}: {got}, and {want} of one")
            }
            _ => assert_eq!(got, want, "{at}"),
        },
    }
}

#[test]
fn ranks_use_a_network_as_one_does() {
    let folder = data();
    let at = folder.path();
    let train = ["train", "--data", "rows.csv", "--hidden", "9,5", "--epochs", "1", "--out", "net"];
    DBN_ON_CPU.succeed(at, &train);
    let all = ["--data", "rows.csv", "--split", "train"];
    for (more, ending) in [(&[][..], ".npy"), (&["--layer", "all"], ".safetensors"), (&[], ".csv")] {
        writes_the_same(&DBN_ON_CPU, at, &[&["encode", "net"], &all[..], more].concat(), ending);
    }
    let args = [&["reconstruct", "net", "--out", "picture.png"], &all[..]].concat();
    measures_the_same(&DBN_ON_CPU, at, &args);
    let annealed = ["--log-likelihood", "--log-z", "ais", "--chains", "30", "--temperatures", "20"];
    let args = ["evaluate", "net", "--data", "rows.csv", "--burn-in", "5"];
    let said = measures_the_same(&DBN_ON_CPU, at, &[&args, &annealed[..]].concat());
    assert_eq!(said["evaluation"]["n_test"], ROWS, "{said}");
    assert_eq!(said["log_likelihood"]["partition_function"]["n_chains"], 30, "{said}");

    let labelled = ["up-down", "net", "--epochs", "1", "--out", "labelled"];
    let classify = ["fine-tune", "net", "--classify", "--epochs", "1", "--out", "classifier"];
    let autoencode = ["fine-tune", "net", "--autoencode", "--epochs", "1", "--out", "autoencoder"];
    for (train, model) in [(labelled.to_vec(), "labelled"), (classify.to_vec(), "classifier")] {
        DBN_ON_CPU.succeed(at, &train);
        let predict = [&["predict", model], &all[..]].concat();
        writes_the_same(&DBN_ON_CPU, at, &predict, ".csv");
        writes_the_same(&DBN_ON_CPU, at, &predict, ".safetensors");
        measures_the_same(&DBN_ON_CPU, at, &["evaluate", model, "--data", "rows.csv"]);
    }
    DBN_ON_CPU.succeed(at, &autoencode);
    measures_the_same(&DBN_ON_CPU, at, &["evaluate", "autoencoder", "--data", "rows.csv"]);
}

#[test]
fn ranks_use_a_denoising_autoencoder_as_one_does() {
    let folder = data();
    let at = folder.path();
    DAE.succeed(at, &["train", "--data", "rows.npy", "--hidden", "9", "--epochs", "1", "--out", "dae"]);
    writes_the_same(&DAE, at, &["encode", "dae", "--data", "rows.npy"], ".npy");
    for noise in ["salt-and-pepper:0.3", "none"] {
        measures_the_same(&DAE, at, &["evaluate", "dae", "--data", "rows.npy", "--corruption", noise]);
    }
}

#[test]
fn ranks_use_sparse_codes_as_one_does() {
    let folder = data();
    let at = folder.path();
    let data = ["--data", "rows.npy"];
    let train = |atoms: &'static str| [&["train", "--atoms", atoms, "--epochs", "1"], &data[..]].concat();
    let used = |command: &'static str, model: &'static str| [&[command, model], &data[..]].concat();

    SPARSE_CODING.succeed(at, &[&train("20")[..], &["--out", "basis"]].concat());
    writes_the_same(&SPARSE_CODING, at, &used("encode", "basis"), ".npy");
    measures_the_same(&SPARSE_CODING, at, &used("evaluate", "basis"));
    measures_the_same(&SPARSE_CODING, at, &used("reconstruct", "basis"));

    let model = |more: &[&'static str]| [&["train"], &data[..], more].concat();
    SPARSE_AUTOENCODER.succeed(at, &model(&["--hidden", "24", "--iterations", "5", "--out", "full"]));
    writes_the_same(&SPARSE_AUTOENCODER, at, &used("encode", "full"), ".npy");
    measures_the_same(&SPARSE_AUTOENCODER, at, &used("evaluate", "full"));
    let top = ["--kind", "batch-top-k", "--active", "3", "--latents", "32", "--epochs", "1"];
    let top = [&top[..], &["--out", "latents"]].concat();
    SPARSE_AUTOENCODER.succeed(at, &model(&top));
    writes_the_same(&SPARSE_AUTOENCODER, at, &used("encode", "latents"), ".safetensors");
    measures_the_same(&SPARSE_AUTOENCODER, at, &used("evaluate", "latents"));
    measures_the_same(&SPARSE_AUTOENCODER, at, &used("reconstruct", "latents"));
}

#[test]
fn ranks_code_rows_and_patches_as_one_does() {
    let folder = data();
    let at = folder.path();
    // Dictionaries have blocks of 8,192 rows.
    let many: Vec<f32> = (0..20_000 * WIDTH).map(|i| value(i / WIDTH, i % WIDTH)).collect();
    write_npy(&at.join("many.npy"), [20_000, WIDTH], &many);
    let atoms: Vec<f32> = (0..24 * WIDTH).map(|i| value(i * 7 / WIDTH, i % WIDTH) - 0.5).collect();
    write_npy(&at.join("atoms.npy"), [24, WIDTH], &atoms);
    let encode = ["encode", "atoms.npy", "--nonzero", "3"];
    for (more, ending) in [
        (&["--data", "many.npy"][..], ".safetensors"),
        (&["--data", "many.npy", "--sparse-format", "csr"], ".npz"),
    ] {
        writes_the_same(&DICTIONARY_ON_CPU, at, &[&encode, more].concat(), ending);
    }
    let learn = ["train", "--data", "natural-images", "--patch", "4", "--patches", "500", "--atoms", "24"];
    let learn = [&learn[..], &["--nonzero", "2", "--epochs", "1", "--out", "patches"]].concat();
    DICTIONARY_ON_CPU.succeed(at, &learn);
    let encode = ["encode", "patches", "--data", "natural-images", "--nonzero", "2"];
    writes_the_same(&DICTIONARY_ON_CPU, at, &encode, ".safetensors");
}

#[test]
fn a_rank_that_fails_or_a_reader_that_goes_ends_all() {
    let folder = data();
    let at = folder.path();
    DBN_ON_CPU
        .succeed(at, &["train", "--data", "rows.npy", "--hidden", "9", "--epochs", "1", "--out", "net"]);
    // A value that no network reads, in a block of rank 1.
    let mut values: Vec<f32> = (0..ROWS * WIDTH).map(|i| value(i / WIDTH, i % WIDTH)).collect();
    values[1500 * WIDTH] = 7.;
    write_npy(&at.join("wrong.npy"), [ROWS, WIDTH], &values);
    let encode = ["encode", "net", "--data", "wrong.npy", "--out", "codes.npy", "--gpus", "2"];
    let since = Instant::now();
    let Output { status, stderr, .. } = DBN_ON_CPU.command(at, &encode).output().unwrap();
    let errors = String::from_utf8(stderr).unwrap();
    assert!(since.elapsed() < Duration::from_secs(15), "{:?}", since.elapsed());
    let want = "rank 1 of 2: dbn: --data: rows must lie between 0 and 1 for this network, got 0 to 7";
    assert!(status.code() == Some(1) && errors.contains(want), "{errors}");
    assert!(!at.join("codes.npy").exists());

    // Some hundred kilobytes, of which the reader wants none.
    let encode = ["encode", "net", "--data", "rows.npy", "--layer", "all", "--out", "-", "--gpus", "3"];
    let mut command = DBN_ON_CPU.command(at, &encode);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let Output { status, stderr, .. } = child.wait_with_output().unwrap();
    let errors = String::from_utf8(stderr).unwrap();
    assert!(status.success() && !errors.contains("rank"), "{status}: {errors}");
}
