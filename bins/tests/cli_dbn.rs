//! The program `dbn` as a user runs it: the built binary, tiny networks, real folders.
#![allow(clippy::unwrap_used)]
use candle::Device::Cpu;
use chandlery::dbn::Dbn;
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};
use tempfile::TempDir;

/// 200 digits, 19 steps a layer and epoch (190 of them train, 10 are held out), two layers of two epochs.
const TINY: [&str; 8] = ["--max-rows", "200", "--hidden", "30,20", "--epochs", "2", "--batch", "10"];

fn dbn(folder: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_dbn"))
        .args(args)
        .current_dir(folder)
        .env_remove("RUST_BACKTRACE")
        .env_remove("RUST_LIB_BACKTRACE")
        .output()
        .unwrap()
}

/// Standard output of a run that must succeed.
#[track_caller]
fn succeed(folder: &Path, args: &[&str]) -> String {
    let output = dbn(folder, args);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "dbn {args:?}: {}\n{stderr}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

/// The one line on standard error of a run that must fail with this exit code.
#[track_caller]
fn fail(folder: &Path, args: &[&str], code: i32) -> String {
    let output = dbn(folder, args);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "dbn {args:?}\n{stderr}");
    assert_eq!(stderr.trim_end().lines().count(), 1, "one line, got\n{stderr}");
    stderr.trim_end().to_owned()
}

fn tiny<'a>(more: &[&'a str]) -> Vec<&'a str> {
    TINY.iter().copied().chain(["--device", "cpu"]).chain(more.iter().copied()).collect()
}

fn trained() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    succeed(folder.path(), &tiny(&["--out", "run"]));
    folder
}

fn picture_size(path: &Path) -> (u32, u32) {
    let picture = image::open(path).unwrap().to_rgb8();
    let first = picture.get_pixel(0, 0);
    assert!(picture.pixels().any(|pixel| pixel != first), "{} is of one colour", path.display());
    picture.dimensions()
}

fn write_npy(path: &Path, rows: &[&[f32]]) {
    use npyz::WriterBuilder;
    let mut npy = npyz::WriteOptions::new()
        .default_dtype()
        .shape(&[rows.len() as u64, rows[0].len() as u64])
        .writer(std::fs::File::create(path).unwrap())
        .begin_nd()
        .unwrap();
    npy.extend(rows.concat()).unwrap();
    npy.finish().unwrap();
}

#[test]
fn a_run_leaves_a_whole_folder_and_one_json_object() {
    let folder = tempfile::tempdir().unwrap();
    let stdout = succeed(folder.path(), &tiny(&["--out", "run", "--json"]));
    let result: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(stdout.lines().count(), 1);
    assert_eq!((&result["out"], &result["layers"]), (&"run".into(), &"784-30-20".into()));
    for share in ["accuracy_features", "accuracy_pixels"] {
        // Chance is 0.1; 200 digits are enough for a linear classifier on pixels to reach 0.6.
        assert!((0.2..=1.).contains(&result[share].as_f64().unwrap()), "{share}: {result}");
    }
    assert!(result["seconds"].as_f64().unwrap() > 0.);

    let run = folder.path().join("run");
    // Tiles of 28 pixels, twice as large, with gaps of 1 between and around them.
    let side = |tiles: u32| 2 * (29 * tiles + 1);
    assert_eq!(picture_size(&run.join("filters.png")), (side(10), side(3)));
    assert_eq!(picture_size(&run.join("reconstructions.png")), (side(10), side(8)));
    assert_eq!(picture_size(&run.join("samples.png")), (side(10), side(10)));
    let curves = std::fs::read_to_string(run.join("curves.svg")).unwrap();
    for text in ["epoch", "squared error per visible unit", "nats", "layer 2, held-out"] {
        assert!(curves.contains(text), "curves.svg lacks {text}");
    }
    // Two layers of two epochs: a mark for each on two error curves and one gap curve.
    assert_eq!(curves.matches("<circle").count(), 2 * 2 * 3);

    let metrics = std::fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    let lines: Vec<Value> = metrics.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let at: Vec<_> =
        lines.iter().map(|l| (l["layer"].as_u64().unwrap(), l["epoch"].as_u64().unwrap())).collect();
    assert_eq!(at, [(1, 1), (1, 2), (2, 1), (2, 2)]);
    assert!(lines.iter().all(|l| l["reconstruction_error"].as_f64().unwrap() > 0.));

    let card = std::fs::read_to_string(run.join("README.md")).unwrap();
    for text in
        ["--hidden 30,20", "200 --", "190 training, 10 held-out and 200 test rows of 784", "samples.png"]
    {
        assert!(card.contains(text), "README.md lacks {text}");
    }
    let model = Dbn::from_pretrained(&run.display().to_string(), &Cpu).unwrap();
    assert_eq!(model.config().image, Some([28, 28, 1]));
    let left: Vec<_> = walk(&run).into_iter().filter(|name| name.contains("part")).collect();
    assert!(left.is_empty(), "half-written files stayed: {left:?}");
}

fn walk(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries
        .flat_map(|path| match path.is_dir() {
            true => walk(&path),
            false => vec![path.display().to_string()],
        })
        .collect()
}

#[test]
fn lines_go_to_stdout_without_json_and_one_is_said_for_each_epoch() {
    let folder = tempfile::tempdir().unwrap();
    let stdout =
        succeed(folder.path(), &["train"].iter().copied().chain(tiny(&["--out", "run"])).collect::<Vec<_>>());
    assert_eq!(
        stdout
            .lines()
            .filter(|line| line.contains("reconstruction error") && line.starts_with("layer"))
            .count(),
        4
    );
    assert!(stdout.contains("linear classifier on 200 test rows"), "{stdout}");
}

#[test]
fn a_run_that_was_stopped_anywhere_ends_in_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    succeed(folder.path(), &tiny(&["--out", "whole"]));
    let want = std::fs::read(at("whole/model.safetensors")).unwrap();
    // Within the first epoch; at the end of one; within the second layer.
    for steps in ["7", "19", "50"] {
        let out = format!("stopped-{steps}");
        let err = fail(folder.path(), &tiny(&["--out", &out, "--stop-after-steps", steps]), 130);
        assert_eq!(err, format!("interrupted; go on with: dbn train --resume {out}"));
        assert!(!at(&format!("{out}/model.safetensors")).exists());
        succeed(folder.path(), &["train", "--resume", &out, "--device", "cpu"]);
        let got = std::fs::read(at(&format!("{out}/model.safetensors"))).unwrap();
        assert!(got == want, "stopped after {steps} steps: other weights");
        let lines = |name: &str| -> Vec<(Value, Value)> {
            let text = std::fs::read_to_string(at(name).join("metrics.jsonl")).unwrap();
            let line = |line: &str| -> Value { serde_json::from_str(line).unwrap() };
            text.lines().map(line).map(|l| (l["epoch"].clone(), l["reconstruction_error"].clone())).collect()
        };
        assert_eq!(lines(&out), lines("whole"), "stopped after {steps} steps");
    }
}

#[test]
fn plain_contrastive_divergence_resumes_to_the_same_bits_too() {
    let folder = tempfile::tempdir().unwrap();
    let cd = [
        "--persistent=false",
        "--k",
        "2",
        "--sparsity-target",
        "0.1",
        "--sparsity-cost",
        "0.5",
        "--max-norm",
        "3",
    ];
    succeed(folder.path(), &tiny(&[&cd[..], &["--out", "whole"]].concat()));
    fail(folder.path(), &tiny(&[&cd[..], &["--out", "stopped", "--stop-after-steps", "45"]].concat()), 130);
    succeed(folder.path(), &["train", "--resume", "stopped", "--device", "cpu"]);
    let weights = |name: &str| std::fs::read(folder.path().join(name).join("model.safetensors")).unwrap();
    assert!(weights("whole") == weights("stopped"));
}

#[test]
fn a_seed_decides_every_bit() {
    let folder = tempfile::tempdir().unwrap();
    let weights = |out: &str, seed: &str| {
        succeed(folder.path(), &tiny(&["--out", out, "--seed", seed]));
        std::fs::read(folder.path().join(out).join("model.safetensors")).unwrap()
    };
    let (a, b, c) = (weights("a", "5"), weights("b", "5"), weights("c", "6"));
    assert!(a == b, "one seed, two networks");
    assert!(a != c, "two seeds, one network");
}

#[cfg(unix)]
#[test]
fn ctrl_c_finishes_the_step_writes_a_checkpoint_and_says_how_to_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let args =
        ["--max-rows", "200", "--hidden", "20", "--epochs", "1000000", "--out", "run", "--device", "cpu"];
    // As a job in the background has it: interrupts and hang-ups ignored from the start.
    let mut child = Command::new("sh")
        .args(["-c", "trap '' INT HUP; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_dbn")])
        .args(args)
        .current_dir(folder.path())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    // The first line of metrics says that the loop is under way, and so that it listens.
    let metrics = folder.path().join("run/metrics.jsonl");
    while std::fs::metadata(&metrics).map_or(0, |m| m.len()) == 0 {
        assert!(child.try_wait().unwrap().is_none(), "the run ended before it was interrupted");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(130), "{stderr}");
    assert!(stderr.contains("interrupted; go on with: dbn train --resume run"), "{stderr}");
    assert!(folder.path().join("run/checkpoint/trainer.safetensors").is_file());
}

#[test]
fn training_that_diverges_names_the_step_and_leaves_the_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let args = tiny(&["--out", "run", "--visible", "gaussian", "--learning-rate", "1e30"]);
    let err = fail(folder.path(), &args, 1);
    assert!(err.starts_with("dbn: layer 1: ") && err.contains("reconstruction error became"), "{err}");
    assert!(err.contains("between steps 1 and 19"), "{err}");
    let checkpoint = folder.path().join("run/checkpoint/trainer.safetensors");
    let (tensors, _) = chandlery::io::load_tensors(&checkpoint, &Cpu).unwrap();
    for (name, tensor) in tensors {
        let tensor = tensor.to_dtype(candle::DType::F64).unwrap().flatten_all().unwrap();
        assert!(tensor.to_vec1::<f64>().unwrap().iter().all(|x| x.is_finite()), "{name}");
    }
}

#[test]
fn encode_writes_what_the_library_computes() {
    let folder = trained();
    let at = |name: &str| folder.path().join(name);
    let data = ["--split", "test", "--max-rows", "150", "--device", "cpu"];
    let encode = |more: &[&str]| succeed(folder.path(), &[&["encode", "run"][..], &data, more].concat());
    encode(&["--out", "top.safetensors"]);
    let json: Value = serde_json::from_str(&encode(&["--out", "low.npy", "--layer", "1", "--json"])).unwrap();
    assert_eq!((json["n_samples"].as_u64(), json["n_features"].as_u64()), (Some(150), Some(30)));

    let options = chandlery_datasets::DataOptions { max_rows: Some(150), ..Default::default() };
    let test = chandlery_datasets::open("mnist-sample", &options).unwrap().test.unwrap();
    let model = Dbn::from_pretrained(&at("run").display().to_string(), &Cpu).unwrap();
    let rows = test.to_tensor(&Cpu).unwrap();
    let top = candle::safetensors::load(at("top.safetensors"), &Cpu).unwrap();
    assert_eq!(top["labels"].to_vec1::<u32>().unwrap(), test.labels.clone().unwrap().to_vec());
    let want = model.features(&rows, 2).unwrap().to_vec2::<f32>().unwrap();
    assert_eq!(top["features"].to_vec2::<f32>().unwrap(), want);
    let npy = npyz::NpyFile::new(std::fs::File::open(at("low.npy")).unwrap()).unwrap();
    assert_eq!(npy.shape(), [150, 30]);
    let want = model.features(&rows, 1).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
    assert_eq!(npy.into_vec::<f32>().unwrap(), want);
}

#[test]
fn reconstruct_sample_and_evaluate_use_a_trained_network() {
    let folder = tempfile::tempdir().unwrap();
    let long = ["--max-rows", "200", "--hidden", "60,40", "--epochs", "40", "--batch", "10", "--out", "run"];
    succeed(folder.path(), &[&long[..], &["--device", "cpu"]].concat());
    let at = |name: &str| folder.path().join(name);
    let side = |tiles: u32| 2 * (29 * tiles + 1);
    let reconstruct = ["reconstruct", "run", "--n", "20", "--max-rows", "100", "--out", "r.png", "--json"];
    let json: Value = serde_json::from_str(&succeed(folder.path(), &reconstruct)).unwrap();
    assert_eq!(picture_size(&at("r.png")), (side(10), side(4)));
    let error = json["squared_error_per_input"].as_f64().unwrap();
    // The variance of a pixel of these digits is about 0.067: a network that knows nothing errs by that.
    assert!(error > 0. && error < 0.067, "{error}");

    let sample = |out: &str, seed: &str| {
        succeed(folder.path(), &["sample", "run", "--n", "5", "--steps", "3", "--seed", seed, "--out", out]);
        assert_eq!(picture_size(&at(out)), (side(5), side(1)));
        std::fs::read(at(out)).unwrap()
    };
    assert!(sample("a.png", "1") == sample("b.png", "1"));
    assert!(sample("a.png", "1") != sample("c.png", "2"));
    let start = ["sample", "run", "--n", "4", "--steps", "1", "--start", "mnist-sample", "--json"];
    let json: Value = serde_json::from_str(&succeed(folder.path(), &start)).unwrap();
    assert_eq!((json["n"].as_u64(), json["start"].as_str()), (Some(4), Some("mnist-sample")));
    let err = fail(folder.path(), &["sample", "run", "--start", "none-such"], 1);
    assert!(err.starts_with("dbn: --start none-such: "), "{err}");

    let evaluate = ["evaluate", "run", "--max-rows", "200", "--json"];
    let json: Value = serde_json::from_str(&succeed(folder.path(), &evaluate)).unwrap();
    assert!(json["accuracy_features"].as_f64().unwrap() > 0.2, "{json}");
    assert!(json["evaluation"]["pseudo_likelihood"].as_f64().unwrap() < 0., "{json}");
}

#[test]
fn real_values_without_labels_or_pictures_train_as_well() {
    let folder = tempfile::tempdir().unwrap();
    let rows: Vec<[f32; 3]> = (0..60).map(|i| [i as f32, -2. * i as f32, (i % 7) as f32]).collect();
    write_npy(&folder.path().join("x.npy"), &rows.iter().map(|row| &row[..]).collect::<Vec<_>>());
    let args =
        ["--data", "x.npy", "--visible", "gaussian", "--hidden", "4,3", "--epochs", "2", "--batch", "10"];
    let more = ["--hidden-unit", "rectified", "--out", "run", "--json", "--device", "cpu"];
    let stdout = succeed(folder.path(), &[&args[..], &more].concat());
    let result: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((&result["accuracy_features"], &result["accuracy_pixels"]), (&Value::Null, &Value::Null));
    assert!(result["evaluation"]["reconstruction_error"].as_f64().unwrap().is_finite());
    assert!(!folder.path().join("run/filters.png").exists());
    let err = fail(folder.path(), &["sample", "run"], 1);
    assert_eq!(
        err,
        "dbn: this network's rows have no image shape that can be drawn; give one with --image HEIGHTxWIDTH"
    );
}

#[test]
fn what_cannot_be_done_is_said_in_one_line() {
    let folder = trained();
    write_npy(&folder.path().join("wide.npy"), &[&[0., 0.5, 2.], &[1., 0.5, 0.]]);
    std::fs::create_dir(folder.path().join("empty")).unwrap();
    let cases: [(&[&str], &str); 10] = [
        (
            &["--data", "nothing"],
            "dbn: --data nothing: data 'nothing': no such data set, file or folder; give one of: ",
        ),
        (
            &["--data", "wide.npy", "--batch", "1"],
            "dbn: --visible bernoulli: rows must lie between 0 and 1, got 0 to 2; rescale them, or use --visible gaussian",
        ),
        (
            &["--batch", "9999"],
            "dbn: --batch: Feed: batch must be at least 1 and at most the number of rows, got 9999 for 4750 rows",
        ),
        (
            &["--out", "run"],
            "dbn: --out run: the folder is not empty; name another, add --overwrite, or go on with --resume run",
        ),
        (
            &["--visible", "gaussian-learned"],
            "dbn: --visible gaussian-learned: there must be one layer, got 2; use gaussian, or --hidden 500",
        ),
        (&["--resume", "nowhere"], "dbn: --resume nowhere: nowhere: no such run folder"),
        (&["--resume", "empty"], "dbn: --resume empty: no run was begun in this folder: "),
        (&["encode", "run", "--layer", "3"], "dbn: --layer: must be between 1 and 2 for this network, got 3"),
        (
            &["encode", "run", "--out", "x.csv"],
            "dbn: --out: x.csv: the name must end in .npy or .safetensors",
        ),
        (
            &["encode", "run", "--data", "wide.npy"],
            "dbn: --data: rows must have 784 values for this network, got 3",
        ),
    ];
    let before = walk(folder.path()).len();
    for (args, want) in cases {
        let err = fail(folder.path(), args, 1);
        assert!(err.starts_with(want), "dbn {args:?}\n got {err}\nwant {want}");
    }
    assert_eq!(walk(folder.path()).len(), before, "what was refused left files");
}

#[cfg(not(feature = "cuda"))]
#[test]
fn a_gpu_in_a_build_without_cuda_is_an_error_that_says_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(
        fail(folder.path(), &["--device", "cuda:0"], 1),
        "dbn: --device cuda:0: this build has no CUDA; build it with `cargo run --features cuda …`, or use --device cpu"
    );
}

#[test]
fn usage_errors_exit_with_2_and_name_the_range() {
    let folder = tempfile::tempdir().unwrap();
    for (args, want) in [
        (["--epochs", "0"], "must be a whole number of at least 1"),
        (["--momentum", "1"], "must be a number of at least 0 and below 1"),
        (["--device", "gpu"], "must be cpu, cuda or cuda:N with N = 0, 1, …"),
    ] {
        let output = dbn(folder.path(), &args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(stderr.contains(want), "{args:?}: {stderr}");
    }
}

#[test]
fn a_run_whose_data_has_changed_is_not_resumed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.npy");
    let rows: Vec<[f32; 2]> = (0..40).map(|i| [(i % 3) as f32 / 2., (i % 5) as f32 / 4.]).collect();
    let refs: Vec<&[f32]> = rows.iter().map(|row| &row[..]).collect();
    write_npy(&path, &refs);
    let args = ["--data", "x.npy", "--hidden", "3", "--epochs", "9", "--batch", "10", "--out", "run"];
    fail(folder.path(), &[&args[..], &["--stop-after-steps", "4"]].concat(), 130);
    write_npy(&path, &refs[..30]);
    assert_eq!(
        fail(folder.path(), &["--resume", "run"], 1),
        "dbn: --resume: x.npy had 40 training rows when the run began, now it has 30"
    );
}
