//! The program `dictionary-learning` as a user runs it: the built binary, small images, real
//! folders.
mod classes;
mod codes;
mod given;
mod images;
mod paper;
mod train;

use crate::common::{BENCH, DICTIONARY, number};
use serde_json::Value;
use tempfile::TempDir;

/// A dictionary of 32 atoms for 4×4 patches, five epochs.
const TINY: [&str; 12] = [
    "--atoms",
    "32",
    "--nonzero",
    "3",
    "--patch",
    "4",
    "--patches",
    "1500",
    "--epochs",
    "5",
    "--device",
    "cpu",
];

fn tiny<'a>(more: &[&'a str]) -> Vec<&'a str> {
    ["train"].iter().chain(&TINY).copied().chain(more.iter().copied()).collect()
}

/// Asserts that the JSON of a command has what that of every command has, and no name of another
/// for it.
#[track_caller]
fn is_summary(result: &Value, n_atoms: u64, unit: &str) {
    assert_eq!(result["n_atoms"].as_u64(), Some(n_atoms), "{result}");
    assert_eq!(result["unit"].as_str(), Some(unit), "{result}");
    assert!(result["device"].as_str().unwrap().starts_with("cpu") && result["out"].is_string(), "{result}");
    assert!(number(result, "mean_count") <= number(result, "n_nonzero"), "{result}");
    assert!(number(result, "n_features") > 0. && number(result, "seconds") > 0., "{result}");
    assert!(number(result, "seconds") >= result["training_seconds"].as_f64().unwrap_or(0.), "{result}");
    for other in ["atoms", "seconds_total", "seconds_learning"] {
        assert!(result[other].is_null(), "{other} in {result}");
    }
}

/// Pictures to learn from: `grey.png` and `colour.png`, stripes of several directions with edges
/// between.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let level = |x: u32, y: u32, phase: f32| {
        let (x, y) = (x as f32, y as f32);
        let stripes = match (x < 40., y < 32.) {
            (true, true) => (0.9 * x).sin(),
            (true, false) => (0.7 * (x + y)).sin(),
            (false, true) => (0.8 * y + phase).sin(),
            (false, false) => 0.5 * (x / 40. - 1.),
        };
        (128. + 70. * stripes + 10. * phase) as u8
    };
    let grey = image::GrayImage::from_fn(80, 64, |x, y| image::Luma([level(x, y, 0.)]));
    grey.save(folder.path().join("grey.png")).unwrap();
    let colour = image::RgbImage::from_fn(80, 64, |x, y| {
        image::Rgb([level(x, y, 0.), level(x, y, 1.), level(y, x % 64, 2.)])
    });
    colour.save(folder.path().join("colour.png")).unwrap();
    folder
}

#[test]
fn every_command_calls_the_same_thing_by_the_same_name() {
    let folder = folder();
    let json = |args: &[&str]| DICTIONARY.json(folder.path(), &[args, &["--device", "cpu"]].concat());
    let train: Vec<&str> = tiny(&["--data", "grey.png", "--out", "run"]);
    is_summary(&DICTIONARY.json(folder.path(), &train), 32, "grey levels");
    is_summary(&json(&["encode", "run", "--data", "grey.png"]), 32, "grey levels");
    is_summary(&json(&["decode", "run", "codes.safetensors"]), 32, "grey levels");
    let small = ["--patch", "6", "--atoms", "40", "--epochs", "1"];
    for command in
        [&["denoise", "grey.png", "--sigma", "9"][..], &["inpaint", "grey.png", "--missing", "0.5"]]
    {
        let learned = json(&[command, &small].concat());
        is_summary(&learned, 40, "grey levels");
        assert!(
            number(&learned, "training_seconds") > 0. && learned["learned"].as_bool() == Some(true),
            "{learned}"
        );
        assert!(number(&learned, "sigma") >= 0., "{learned}");
        let given = json(&[command, &["--dictionary", "run"]].concat());
        is_summary(&given, 32, "grey levels");
        assert_eq!((number(&given, "training_seconds"), given["learned"].as_bool()), (0., Some(false)));
    }
}

#[test]
fn errors_are_one_line_that_says_what_to_do() {
    let folder = folder();
    DICTIONARY.succeed(folder.path(), &tiny(&["--data", "grey.png", "--out", "run"]));
    let cases: [(&[&str], &str); 19] = [
        (&["train", "--data", "none.npy"], "dictionary-learning: --data none.npy: "),
        (&["train", "--data", "grey.png", "--patch", "65"], "smaller than a patch of 65x65"),
        (
            &["train", "--data", "grey.png", "--nonzero", "9", "--atoms", "8"],
            "--nonzero: must be at most --atoms, 8, got 9",
        ),
        (&["train", "--data", "grey.png", "--out", "run"], "--out run: the folder is not empty"),
        (&["train", "--resume", "none"], "--resume none"),
        (
            &["encode", "run", "--data", "grey.png", "--out", "x.csv"],
            "x.csv: the name must end in .npz or .safetensors",
        ),
        (
            &["encode", "run", "--data", "grey.png", "--split", "test"],
            "--split: grey.png is cut into patches, which have no splits; leave it out",
        ),
        (
            &["encode", "run", "--data", "grey.png", "--nonzero", "40"],
            "--nonzero: must be at most the 32 atoms",
        ),
        (
            &["denoise", "grey.png", "--sigma", "9", "--clean", "colour.png"],
            "--clean colour.png: must be 64x80 with 1 planes",
        ),
        (&["denoise", "grey.png", "--sigma", "9", "--out", "x.gif"], "x.gif: the name must end in .png"),
        (&["denoise", "grey.png", "--out", "a/x.png"], "--out: a/x.png: must be in a folder that exists"),
        (
            &["inpaint", "grey.png", "--missing", "0.1", "--comparison", "a/x.png"],
            "--comparison: a/x.png: must be",
        ),
        (
            &["encode", "run", "--data", "grey.png", "--out", "a/x.npz"],
            "--out: a/x.npz: must be in a folder that exists",
        ),
        (
            &["denoise", "grey.png", "--atoms", "64", "--group", "65"],
            "--group: must be at most --atoms, 64, got 65",
        ),
        (
            &["inpaint", "grey.png", "--missing", "0.5", "--rule", "mod", "--group", "2"],
            "--group: has no effect with --rule mod, which updates all atoms at once",
        ),
        (&["denoise", "grey.png", "--step", "9"], "--step: must be at most the side of a patch, 8, got 9"),
        (
            &["denoise", "grey.png", "--dictionary", "run", "--step", "5"],
            "--step: must be at most the side of a patch, 4, got 5",
        ),
        (
            &["encode", "run", "--data", "grey.png", "--step", "5"],
            "--step: must be at most the side of a patch, 4, got 5",
        ),
        (
            &["encode", "run", "--data", "mnist-sample", "--step", "5"],
            "--step: is for patches of images, and mnist-sample holds rows",
        ),
    ];
    for (args, text) in cases {
        let err = DICTIONARY.fail(folder.path(), &[args, &["--device", "cpu"]].concat(), 1);
        assert!(err.starts_with("dictionary-learning: ") && err.contains(text), "{args:?}: {err}");
        assert!(!folder.path().join("denoised.png").exists(), "{args:?}: refused after the work");
    }
}

#[test]
fn the_benchmark_times_what_it_is_asked_for_beside_a_peer() {
    let folder = tempfile::tempdir().unwrap();
    let bench = |args: &[&str]| -> Vec<Value> {
        let first = ["dictionary", "--device", "cpu", "--repeats", "1", "--json"];
        let stdout = BENCH.succeed(folder.path(), &[&first[..], args].concat());
        serde_json::from_str(&stdout).unwrap()
    };
    let rows = bench(&["--what", "pursuit", "--size", "500x32x16x3"]);
    let ran: Vec<_> =
        rows.iter().map(|r| (r["task"].as_str().unwrap(), r["device"].as_str().unwrap())).collect();
    assert_eq!(ran.len(), 4);
    assert_eq!((ran[0], ran[1]), (("omp", "cpu, 1 thread"), ("ols", "cpu, 1 thread")));
    for row in &rows {
        assert!(number(row, "ms") > 0. && number(row, "error") < 1. && number(row, "floor_ms") > 0., "{row}");
    }
    // One thread and all: the same codes. OLS leaves less than OMP.
    assert_eq!(rows[0]["error"], rows[2]["error"]);
    assert!(number(&rows[1], "error") <= number(&rows[0], "error"), "{rows:?}");

    assert!(rows.iter().all(|row| row["error_ols"].is_null()), "{rows:?}");

    let rows = bench(&["--what", "training", "--no-single"]);
    assert_eq!(rows.len(), 5);
    for row in &rows {
        assert!(row["device"].as_str().unwrap().ends_with(" threads)"), "{row}");
        // OLS leaves less of most dictionaries, and hardly more of those that were learned by OMP.
        let (omp, ols) = (number(row, "error"), number(row, "error_ols"));
        assert!(ols > 0.9 * omp && ols < 1.01 * omp && ols != omp, "{row}");
        // An online epoch has parts that no arithmetic bounds; one over all rows has a floor.
        let online = row["task"].as_str().unwrap().starts_with("online");
        assert!(if online { row["floor_ms"].is_null() } else { number(row, "floor_ms") < number(row, "ms") });
    }

    // A peer that prints the line of its kind.
    let script = "print('peer m=500 n=32 p=16 s=3: 1.25 ms, 0.4 Msignals/s')";
    std::fs::write(folder.path().join("peer.py"), script).unwrap();
    let rows = bench(&["--what", "pursuit", "--size", "500x32x16x3", "--no-single", "--peer", "peer.py"]);
    assert_eq!((rows[0]["peer_ms"].as_f64(), rows[1]["peer_ms"].as_f64()), (Some(1.25), None));
    let alone = ["dictionary", "--device", "cpu", "--what", "training", "--peer", "peer.py"];
    let err = BENCH.fail(folder.path(), &alone, 1);
    assert_eq!(err, "bench: --peer: needs --what pursuit, which is not given");
}
