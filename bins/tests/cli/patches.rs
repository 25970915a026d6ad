//! Layers of overlapping patches as a user runs them: the built binaries, tiny networks, real
//! folders.
use crate::common::{
    BENCH, DBN_ON_CPU as DBN, has, metrics, number, picture_size, results, side, weights, write_npy,
};
use chandlery::dbn::Dbn;
use chandlery::{LoadOptions, Model};
use std::path::Path;
use tempfile::TempDir;

/// Two layers of patches and a dense one on digits: 784-576-384-50 units, 19 steps a layer and
/// epoch.
const TINY: [&str; 8] =
    ["--max-rows", "200", "--layers", "patch:8/4x16,patch:3/1x24,dense:50", "--epochs", "1", "--batch", "10"];

fn tiny<'a>(more: &[&'a str]) -> Vec<&'a str> {
    TINY.iter().chain(more).copied().collect()
}

fn trained() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    DBN.succeed(folder.path(), &tiny(&["--out", "run"]));
    folder
}

#[test]
fn a_run_says_what_its_layers_are_and_leaves_a_whole_folder() {
    let folder = tempfile::tempdir().unwrap();
    let layers = "patch:8/4x16,patch:3/1x24,dense:50";
    let args = ["--max-rows", "500", "--layers", layers, "--epochs", "3", "--batch", "10", "--out", "run"];
    let stdout = DBN.succeed(folder.path(), &args);
    for line in [
        "dbn 784-576-384-50 (114114 parameters) on mnist-sample",
        "layer 1: 6x6 windows of 8x8 every 4, 16 hidden units each, 38224 parameters\n",
        "layer 2: 4x4 windows of 3x3 every 1, 24 hidden units each, 56256 parameters\n",
        "layer 3: 50 hidden units, dense, 19634 parameters\n",
    ] {
        assert!(stdout.contains(line), "{line}\n{stdout}");
    }
    let run = folder.path().join("run");
    let kept = results(&run);
    assert_eq!((&kept["layers"], kept["n_parameters"].as_u64()), (&"784-576-384-50".into(), Some(114_114)));
    // Chance is 0.1, which is what 19 steps a layer reach; these 141 reached 0.78.
    assert!(number(&kept, "accuracy_features") > 0.5, "{kept}");
    assert_eq!(metrics(&run).len(), 9);
    // A hundred windows of 8 pixels, seven times as large.
    assert_eq!(picture_size(&run.join("filters.png")), (7 * 91, 7 * 91));
    assert_eq!(picture_size(&run.join("reconstructions.png")), (side(10), side(8)));
    assert_eq!(picture_size(&run.join("samples.png")), (side(10), side(10)));
    let card = [
        "--layers patch:8/4x16,patch:3/1x24,dense:50",
        "114114 parameters, 3 epochs per layer",
        "| 1 | 784 Bernoulli | 576 Bernoulli | 6x6 windows of 8x8 every 4, 16 hidden units each | 64 inputs | 38224 |",
        "| 3 | 384 Bernoulli | 50 Bernoulli | 50 hidden units, dense | 384 inputs | 19634 |",
        "weights of 100 units of the lowest layer, those with the largest norm of 36 patches",
        "[windows, hidden units of each, values of a window]",
    ];
    has(&run.join("README.md"), &card);
    let model = Dbn::from_pretrained(&run, &LoadOptions::default()).unwrap();
    let shapes: Vec<_> = model.layers().iter().map(|rbm| rbm.weight().dims().to_vec()).collect();
    assert_eq!(shapes, [vec![36, 16, 64], vec![16, 24, 144], vec![50, 384]]);
}

#[test]
fn a_run_that_was_stopped_in_any_layer_ends_in_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    DBN.succeed(folder.path(), &tiny(&["--out", "whole"]));
    let want = weights(&at("whole"));
    for steps in ["7", "19", "30", "45"] {
        let out = format!("stopped-{steps}");
        DBN.fail(folder.path(), &tiny(&["--out", &out, "--stop-after-steps", steps]), 130);
        DBN.succeed(folder.path(), &["train", "--resume", &out]);
        assert!(weights(&at(&out)) == want, "stopped after {steps} steps: other weights");
    }
    // The settings name the layers once.
    let asked = std::fs::read_to_string(at("whole/run.json")).unwrap();
    assert!(asked.contains("\"patch:8/4x16\"") && !asked.contains("\"hidden\""), "{asked}");
}

#[test]
fn dense_layers_are_the_same_by_either_option() {
    let folder = tempfile::tempdir().unwrap();
    let train = |option: &str, layers: &str, out: &str| {
        let args = ["--max-rows", "100", "--epochs", "1", "--batch", "10", option, layers, "--out", out];
        DBN.succeed(folder.path(), &args);
        weights(&folder.path().join(out))
    };
    assert!(train("--hidden", "20,10", "a") == train("--layers", "dense:20,10", "b"));
}

#[test]
fn a_trained_network_is_used_as_any_other() {
    let folder = trained();
    let at = folder.path();
    for (layer, width) in [("1", 576), ("2", 384), ("3", 50)] {
        let args = ["encode", "run", "--split", "test", "--layer", layer, "--out", "features.npy"];
        DBN.succeed(at, &args);
        let bytes = std::fs::read(at.join("features.npy")).unwrap();
        let features = npyz::NpyFile::new(&bytes[..]).unwrap();
        assert_eq!(features.shape(), [200, width]);
        let values = features.into_vec::<f32>().unwrap();
        assert!(values.iter().all(|x| (0. ..=1.).contains(x)));
    }
    let evaluated = DBN.json(at, &["evaluate", "run"]);
    assert_eq!(
        number(&evaluated, "accuracy_features"),
        number(&results(&at.join("run")), "accuracy_features")
    );
    let reconstructed = DBN.json(at, &["reconstruct", "run"]);
    assert!(number(&reconstructed, "squared_error") > 0.);
    DBN.succeed(at, &["sample", "run", "--n", "20", "--steps", "5"]);
    assert_eq!(picture_size(&at.join("samples.png")), (side(10), side(2)));
}

#[test]
fn networks_with_patches_have_a_likelihood() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let evaluate = |layers: &str, out: &'static str| {
        let args = ["--max-rows", "100", "--epochs", "1", "--batch", "10", "--layers", layers, "--out", out];
        DBN.succeed(at, &args);
        let draws = ["--chains", "20", "--temperatures", "50", "--burn-in", "5", "--draws", "2"];
        [&["evaluate", out, "--max-rows", "20", "--log-likelihood"][..], &draws].concat()
    };
    for (layers, out) in
        [("patch:8/4x2,dense:10", "exact"), ("patch:8/4x2,dense:40", "annealed"), ("patch:8/4x2", "alone")]
    {
        let evaluated = DBN.json(at, &evaluate(layers, out));
        // Fair coins would have −784 ln 2 = −543.
        let test = number(&evaluated, "log_likelihood/test/value");
        assert!((-543. ..-50.).contains(&test), "{out}: {test}");
    }
}

#[test]
fn up_down_needs_dense_layers_and_says_so_in_one_line() {
    let folder = trained();
    let at = folder.path();
    let err = DBN.fail(at, &["up-down", "run", "--out", "other"], 1);
    let want = "every hidden unit must see every visible one, got 36 patches; use the features of the network as they are";
    assert!(err.contains(want), "{err}");
    assert!(!at.join("other").exists(), "a folder is left");
}

#[test]
fn layers_that_cannot_be_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let fail = |layers: &str| DBN.fail(at, &["--layers", layers, "--out", "run"], 1);
    let cases = [
        (
            "patch:9/4x3",
            "--layers: layer 1: windows of 9 every 4 must end with the grid: its height must be 25 or 29, got 28",
        ),
        (
            "patch:8/4x3,patch:3/2x3",
            "--layers: layer 2: windows of 3 every 2 must end with the grid: its height must be 5 or 7, got 6",
        ),
        (
            "dense:20,patch:3/1x3",
            "--layers: layer 2: patch:3/1x3 must not lie on a dense layer; put dense layers on top",
        ),
        (
            "patch:4/8x3",
            "--layers: layer 1: stride must be at most the window of 4, so that no value is left out, got 8",
        ),
    ];
    for (layers, want) in cases {
        assert!(fail(layers).ends_with(want), "{}", fail(layers));
    }
    write_npy(&at.join("rows.npy"), [40, 6], &[0.5; 240]);
    let err = DBN.fail(at, &["--data", "rows.npy", "--layers", "patch:2/1x3"], 1);
    assert!(
        err.contains("--layers: layer 1: rows must be images for patch:2/1x3, got rows of 6 values"),
        "{err}"
    );
    let err = DBN.fail(at, &["--layers", "patch:8/4x3", "--visible", "gaussian", "--prepare", "pca=784"], 1);
    assert!(err.contains("--prepare must leave the pixels of images where they are"), "{err}");
    assert!(!at.join("run").exists() && !at.join("runs").exists());
    DBN.refuse(
        at,
        &["--layers", "patch:8x4"],
        "must be dense:N, N, patch:WINDOW/STRIDExHIDDEN or conv:SIZExFILTERS",
    );
    DBN.refuse(at, &["--layers", "30", "--hidden", "30"], "cannot be used with");
    DBN.refuse(at, &["--resume", "run", "--layers", "30"], "cannot be used with");
}

/// A folder of coloured images of 8x8 pixels: red is a ramp, blue its opposite.
fn write_colours(folder: &Path) {
    std::fs::create_dir(folder).unwrap();
    for i in 0..60u8 {
        let picture = image::RgbImage::from_fn(8, 8, |x, y| {
            let red = (8 * y + x) as u8 * 3 + i;
            image::Rgb([red, 40, 255 - red])
        });
        picture.save(folder.join(format!("{i}.png"))).unwrap();
    }
}

#[test]
fn colour_images_have_windows_of_three_planes() {
    let folder = tempfile::tempdir().unwrap();
    write_colours(&folder.path().join("colours"));
    let args = ["--data", "colours", "--layers", "patch:4/2x6,10", "--epochs", "1", "--batch", "10"];
    let more = ["--visible", "gaussian", "--prepare", "center", "--out", "run"];
    DBN.succeed(folder.path(), &[&args[..], &more].concat());
    let run = folder.path().join("run");
    has(&run.join("README.md"), &["3x3 windows of 4x4 every 2, 6 hidden units each | 48 inputs"]);
    // 54 windows of 4 pixels, 14 times as large.
    assert_eq!(picture_size(&run.join("filters.png")), (14 * 51, 14 * 31));
}

#[test]
fn the_benchmark_prints_the_columns_of_the_paper() {
    let folder = tempfile::tempdir().unwrap();
    let bench = |args: &[&str]| {
        let first = ["patch-rbm", "--repeats", "1", "--device", "cpu"];
        BENCH.json(folder.path(), &[&first[..], args].concat())
    };
    let rows = bench(&["--image", "12x12,20x12", "--layers", "patch:8/4x5", "--batch", "6"]);
    let rows = rows.as_array().unwrap();
    assert_eq!(rows.len(), 6);
    for row in rows {
        assert!(number(row, "seconds") > number(row, "floor_seconds"), "{row}");
        assert!(row["paper_seconds"].is_null() && row["layer"].as_u64() == Some(1), "{row}");
    }
    assert_eq!((rows[3]["n_visible"].as_u64(), rows[3]["n_hidden"].as_u64()), (Some(240), Some(40)));
    // The network on small images: four layers and their sum.
    let small = "patch:8/4x5,patch:3/1x4,patch:2/1x6,7";
    let args = ["--network", "--image", "28x28", "--layers", small, "--precision", "f32", "--batch", "6"];
    let rows = bench(&args);
    let rows = rows.as_array().unwrap();
    let layers: Vec<_> = rows.iter().map(|row| row["layer"].as_u64()).collect();
    assert_eq!(layers, [Some(1), Some(2), Some(3), Some(4), None]);
    let sum: f64 = rows[..4].iter().map(|row| number(row, "seconds")).sum();
    assert!((number(&rows[4], "seconds") - sum).abs() < 1e-9 * sum);
    let args = ["patch-rbm", "--image", "30x28", "--layers", "patch:8/4x5", "--device", "cpu"];
    let err = BENCH.fail(folder.path(), &args, 1);
    assert!(err.ends_with("its height must be 28 or 32, got 30"), "{err}");
}

#[test]
fn the_benchmark_of_streams_has_rows_of_three_origins_and_holds_less_than_its_file() {
    let folder = tempfile::tempdir().unwrap();
    // Rows of 240 bytes, minibatches of 6: the last row does not fit into the file.
    let file_bytes = 64 << 20;
    let first = ["patch-rbm", "--streams", "--device", "cpu", "--repeats", "1", "--folder", "."];
    let small = ["--image", "20x12", "--layers", "patch:8/4x5", "--batch", "6", "--precision", "f32,tf32"];
    let sizes = ["--file-bytes", "64MiB", "--chunk-bytes", "100KB"];
    let rows = BENCH.json(folder.path(), &[&first[..], &small, &sizes].concat());
    let rows = rows.as_array().unwrap();
    let of = |key: &str| rows.iter().map(|row| row[key].as_str().unwrap()).collect::<Vec<_>>();
    assert_eq!(of("precision"), ["f32", "f32", "f32", "tf32", "tf32", "tf32"]);
    assert_eq!(of("source"), ["resident", "memory", "file", "resident", "memory", "file"]);
    for row in rows {
        let seconds = number(row, "seconds");
        assert!(seconds.is_finite() && seconds > 0., "{row}");
        assert!((number(row, "rows_per_second") * seconds - 1e6).abs() < 1e-3, "{row}");
        assert!((number(row, "bytes_per_second") * seconds - 240e6).abs() < 1., "{row}");
        let (source, bytes) = (row["source"].as_str().unwrap(), number(row, "rows_bytes") as usize);
        assert_eq!(row["cost_percent"].is_null(), source == "resident", "{row}");
        assert_eq!(bytes, if source == "file" { file_bytes / 240 * 240 } else { 256 * 6 * 240 }, "{row}");
        // Where the system counts it.
        if let Some(anonymous) = row["anonymous_bytes"].as_u64() {
            assert!((anonymous as usize) < file_bytes, "{row}");
        }
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "a file was left");
}

#[test]
fn the_benchmark_of_streams_refuses_a_file_without_a_minibatch_and_options_without_it() {
    let folder = tempfile::tempdir().unwrap();
    let bench = ["patch-rbm", "--image", "12x12", "--layers", "patch:8/4x5", "--batch", "6"];
    let fail = |args: &[&str]| {
        BENCH.fail(folder.path(), &[&bench[..], &["--device", "cpu", "--streams"], args].concat(), 1)
    };
    let why = "must hold 6 (a minibatch) to 4294967295 rows, got 863 bytes for 5 rows of 144 bytes";
    assert_eq!(fail(&["--file-bytes", "863"]), format!("bench: --file-bytes: {why}"));
    let why = "there must be such a folder; make it or name another";
    assert_eq!(fail(&["--folder", "missing"]), format!("bench: --folder missing: {why}"));
    for option in ["--file-bytes", "--folder", "--chunk-bytes"] {
        BENCH.refuse(folder.path(), &[&bench[..], &[option, "1"]].concat(), "--streams");
    }
    BENCH.refuse(folder.path(), &[&bench[..], &["--streams", "--file-bytes", "many"]].concat(), "bytes");
}
