//! The program `dbn` as a user runs it: the built binary, tiny networks, real folders.
use crate::common::{DBN, DBN_ON_CPU, has, metrics, number, picture_size, results, side, weights};
use candle::Device::Cpu;
use chandlery::dbn::Dbn;
use chandlery::{Layered, LoadOptions, Model};
use serde_json::Value;
use std::path::Path;
use tempfile::TempDir;

/// 200 digits, 19 steps a layer and epoch (190 of them train, 10 are held out), two layers of two
/// epochs.
const TINY: [&str; 8] = ["--max-rows", "200", "--hidden", "30,20", "--epochs", "2", "--batch", "10"];

fn tiny<'a>(more: &[&'a str]) -> Vec<&'a str> {
    TINY.iter().copied().chain(["--device", "cpu"]).chain(more.iter().copied()).collect()
}

fn trained() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    DBN.succeed(folder.path(), &tiny(&["--out", "run"]));
    folder
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
    let result = DBN.json(folder.path(), &tiny(&["--out", "run"]));
    assert_eq!((&result["out"], &result["layers"]), (&"run".into(), &"784-30-20".into()));
    for share in ["accuracy_features", "accuracy_pixels"] {
        // Chance is 0.1; 200 digits are enough for a linear classifier on pixels to reach 0.6.
        assert!((0.2..=1.).contains(&number(&result, share)), "{share}: {result}");
    }
    assert!(number(&result, "seconds") > 0.);

    let run = folder.path().join("run");
    assert_eq!(picture_size(&run.join("filters.png")), (side(10), side(3)));
    assert_eq!(picture_size(&run.join("reconstructions.png")), (side(10), side(8)));
    assert_eq!(picture_size(&run.join("samples.png")), (side(10), side(10)));
    has(&run.join("curves.svg"), &["epoch", "squared error per visible unit", "nats", "layer 2, held-out"]);
    let curves = std::fs::read_to_string(run.join("curves.svg")).unwrap();
    // Two layers of two epochs: a mark for each on two error curves and one gap curve.
    assert_eq!(curves.matches("<circle").count(), 2 * 2 * 3);

    let lines = metrics(&run);
    let at: Vec<_> =
        lines.iter().map(|l| (l["layer"].as_u64().unwrap(), l["epoch"].as_u64().unwrap())).collect();
    assert_eq!(at, [(1, 1), (1, 2), (2, 1), (2, 2)]);
    assert!(lines.iter().all(|l| number(l, "reconstruction_error") > 0.));

    let rows = "190 training, 10 held-out and 200 test rows of 784";
    has(&run.join("README.md"), &["--hidden 30,20", "200 --", rows, "samples.png"]);
    let model = Dbn::from_pretrained(&run, &LoadOptions::default()).unwrap();
    assert_eq!(model.config().image, Some([28, 28, 1].into()));
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
    let stdout = DBN.succeed(
        folder.path(),
        &["train"].iter().copied().chain(tiny(&["--out", "run"])).collect::<Vec<_>>(),
    );
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
    DBN.succeed(folder.path(), &tiny(&["--out", "whole"]));
    let want = weights(&at("whole"));
    // Within the first epoch; at the end of one; within the second layer.
    for steps in ["7", "19", "50"] {
        let out = format!("stopped-{steps}");
        let err = DBN.fail(folder.path(), &tiny(&["--out", &out, "--stop-after-steps", steps]), 130);
        assert_eq!(err, format!("interrupted; resume with: dbn train --resume {out}"));
        assert!(!at(&format!("{out}/model.safetensors")).exists());
        DBN.succeed(folder.path(), &["train", "--resume", &out, "--device", "cpu"]);
        assert!(weights(&at(&out)) == want, "stopped after {steps} steps: other weights");
        let lines = |name: &str| -> Vec<(Value, Value)> {
            let both = |l: &Value| (l["epoch"].clone(), l["reconstruction_error"].clone());
            metrics(&at(name)).iter().map(both).collect()
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
        "--sparsity-weight",
        "0.5",
        "--max-norm",
        "3",
    ];
    DBN.succeed(folder.path(), &tiny(&[&cd[..], &["--out", "whole"]].concat()));
    DBN.fail(
        folder.path(),
        &tiny(&[&cd[..], &["--out", "stopped", "--stop-after-steps", "45"]].concat()),
        130,
    );
    DBN.succeed(folder.path(), &["train", "--resume", "stopped", "--device", "cpu"]);
    assert!(weights(&folder.path().join("whole")) == weights(&folder.path().join("stopped")));
}

#[test]
fn sampled_reconstructions_are_another_training_that_resumes_to_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let trained = |out: &str, more: &[&str]| {
        DBN.succeed(folder.path(), &tiny(&[more, &["--out", out]].concat()));
        weights(&folder.path().join(out))
    };
    let means = trained("means", &["--persistent=false"]);
    let sampled = trained("sampled", &["--persistent=false", "--sample-visible"]);
    assert!(means != sampled, "the option does nothing");
    let stopped = ["--persistent=false", "--sample-visible", "--out", "stopped", "--stop-after-steps", "23"];
    DBN.fail(folder.path(), &tiny(&stopped), 130);
    DBN.succeed(folder.path(), &["train", "--resume", "stopped", "--device", "cpu"]);
    assert!(weights(&folder.path().join("stopped")) == sampled, "another network after a resume");
    // Chains that persist draw them anyway.
    assert!(
        trained("chains", &["--persistent", "--sample-visible"]) == trained("chains-too", &["--persistent"]),
        "PCD draws always"
    );
}

#[test]
fn a_seed_decides_every_bit() {
    let folder = tempfile::tempdir().unwrap();
    let trained = |out: &str, seed: &str| {
        DBN.succeed(folder.path(), &tiny(&["--out", out, "--seed", seed]));
        weights(&folder.path().join(out))
    };
    let (a, b, c) = (trained("a", "5"), trained("b", "5"), trained("c", "6"));
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
    let mut command = std::process::Command::new("sh");
    command
        .args(["-c", "trap '' INT HUP; exec \"$0\" \"$@\"", DBN.path])
        .args(args)
        .current_dir(folder.path());
    let stderr = crate::common::interrupt(command, &folder.path().join("run"));
    assert!(stderr.contains("interrupted; resume with: dbn train --resume run"), "{stderr}");
}

#[test]
fn training_that_diverges_names_the_step_and_leaves_the_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let args = tiny(&["--out", "run", "--visible", "gaussian", "--learning-rate", "1e30"]);
    let err = DBN.fail(folder.path(), &args, 1);
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
    let top = ["--out", "top.safetensors"];
    DBN.succeed(folder.path(), &[&["encode", "run"][..], &data, &top].concat());
    let low = ["--out", "low.npy", "--layer", "1"];
    let json = DBN.json(folder.path(), &[&["encode", "run"][..], &data, &low].concat());
    assert_eq!((json["n_samples"].as_u64(), json["n_features"].as_u64()), (Some(150), Some(30)));

    let options = chandlery_datasets::DataOptions { max_rows: Some(150), ..Default::default() };
    let test = chandlery_datasets::open("mnist-sample", &options).unwrap().test.unwrap();
    let model = Dbn::from_pretrained(at("run"), &LoadOptions::default()).unwrap();
    let rows = test.to_tensor(&Cpu).unwrap();
    let top = candle::safetensors::load(at("top.safetensors"), &Cpu).unwrap();
    assert_eq!(top["labels"].to_vec1::<u32>().unwrap(), test.labels.clone().unwrap().to_vec());
    let want = model.features(&rows, 2).unwrap().to_vec2::<f32>().unwrap();
    assert_eq!(top["features"].to_vec2::<f32>().unwrap(), want);
    let npy = npyz::NpyFile::new(std::fs::File::open(at("low.npy")).unwrap()).unwrap();
    assert_eq!(npy.shape(), [150, 30]);
    let all = ["--out", "all.safetensors", "--layer", "all"];
    let json = DBN.json(folder.path(), &[&["encode", "run"][..], &data, &all].concat());
    assert_eq!(json["layer"].as_str(), Some("all"));
    let all = candle::safetensors::load(at("all.safetensors"), &Cpu).unwrap();
    let want = model.all_features(&rows).unwrap().to_vec2::<f32>().unwrap();
    assert_eq!(all["features"].to_vec2::<f32>().unwrap(), want);
    let want = model.features(&rows, 1).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
    assert_eq!(npy.into_vec::<f32>().unwrap(), want);
}

#[test]
fn reconstruct_sample_and_evaluate_use_a_trained_network() {
    let folder = tempfile::tempdir().unwrap();
    let long = ["--max-rows", "200", "--hidden", "60,40", "--epochs", "40", "--batch", "10", "--out", "run"];
    DBN.succeed(folder.path(), &[&long[..], &["--device", "cpu"]].concat());
    let at = |name: &str| folder.path().join(name);
    let reconstruct = ["reconstruct", "run", "--n", "20", "--max-rows", "100", "--out", "r.png"];
    let json = DBN.json(folder.path(), &reconstruct);
    assert_eq!(picture_size(&at("r.png")), (side(10), side(4)));
    let error = number(&json, "squared_error_per_input");
    // The variance of a pixel of these digits is about 0.067: a network that knows nothing errs by
    // that.
    assert!(error > 0. && error < 0.067, "{error}");

    let sample = |out: &str, seed: &str| {
        DBN.succeed(
            folder.path(),
            &["sample", "run", "--n", "5", "--steps", "3", "--seed", seed, "--out", out],
        );
        assert_eq!(picture_size(&at(out)), (side(5), side(1)));
        std::fs::read(at(out)).unwrap()
    };
    assert!(sample("a.png", "1") == sample("b.png", "1"));
    assert!(sample("a.png", "1") != sample("c.png", "2"));
    let start = ["sample", "run", "--n", "4", "--steps", "1", "--start-from", "mnist-sample"];
    let json = DBN.json(folder.path(), &start);
    assert_eq!((json["n"].as_u64(), json["start_from"].as_str()), (Some(4), Some("mnist-sample")));
    let err = DBN.fail(folder.path(), &["sample", "run", "--start-from", "none-such"], 1);
    assert!(err.starts_with("dbn: --start-from none-such: "), "{err}");

    let evaluate = ["evaluate", "run", "--max-rows", "200"];
    let json = DBN.json(folder.path(), &evaluate);
    assert!(number(&json, "accuracy_features") > 0.2, "{json}");
    assert!(number(&json, "evaluation/pseudo_likelihood") < 0., "{json}");
}

#[test]
fn real_values_without_labels_or_pictures_train_as_well() {
    let folder = tempfile::tempdir().unwrap();
    let rows: Vec<[f32; 3]> = (0..60).map(|i| [i as f32, -2. * i as f32, (i % 7) as f32]).collect();
    write_npy(&folder.path().join("x.npy"), &rows.iter().map(|row| &row[..]).collect::<Vec<_>>());
    let args =
        ["--data", "x.npy", "--visible", "gaussian", "--hidden", "4,3", "--epochs", "2", "--batch", "10"];
    let more = ["--hidden-unit", "rectified", "--out", "run", "--device", "cpu"];
    let result = DBN.json(folder.path(), &[&args[..], &more].concat());
    assert_eq!((&result["accuracy_features"], &result["accuracy_pixels"]), (&Value::Null, &Value::Null));
    assert!(number(&result, "evaluation/reconstruction_error").is_finite());
    assert!(!folder.path().join("run/filters.png").exists());
    let err = DBN.fail(folder.path(), &["sample", "run"], 1);
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
    let cases: [(&[&str], &str); 13] = [
        (
            &["--revision", "main"],
            "dbn: --data mnist-sample: data 'mnist-sample': only data of the hub have revisions, got main; leave out \
             --revision",
        ),
        (
            &["--data", "nothing"],
            "dbn: --data nothing: data 'nothing': no such data set, file or folder; give one of: ",
        ),
        (
            &["--data", "wide.npy", "--batch", "1", "--visible", "bernoulli"],
            "dbn: --visible bernoulli: rows must lie between 0 and 1, got 0 to 2; use --prepare minmax, or --visible gaussian --prepare standardise",
        ),
        (
            &["--out", "run"],
            "dbn: --out run: the folder is not empty; name another, add --overwrite, or continue with --resume run",
        ),
        (
            &["--visible", "gaussian-learned"],
            "dbn: --visible gaussian-learned: there must be one layer, got 2; use gaussian, or --hidden 500",
        ),
        (&["--resume", "nowhere"], "dbn: --resume nowhere: nowhere: no such run folder"),
        (&["--resume", "empty"], "dbn: --resume empty: this folder holds no run: it has no run.json"),
        (&["encode", "run", "--layer", "3"], "dbn: --layer: must be between 1 and 2 for this network, got 3"),
        (
            &["encode", "run", "--out", "x.txt"],
            "dbn: --out: x.txt: the name must end in .npy, .csv or .safetensors",
        ),
        (
            &["encode", "run", "--out", "no/x.npy"],
            "dbn: --out: no/x.npy: must be in a folder that exists, and no does not; make it first",
        ),
        (&["sample", "run", "--out", "no/x.png"], "dbn: --out: no/x.png: must be in a folder that exists"),
        (
            &["reconstruct", "run", "--out", "empty"],
            "dbn: --out: empty: must be the name of a file, got a folder",
        ),
        (
            &["encode", "run", "--data", "wide.npy"],
            "dbn: --data: rows must have 784 values for this network, got 3",
        ),
    ];
    let before = walk(folder.path()).len();
    for (args, want) in cases {
        let err = DBN.fail(folder.path(), args, 1);
        assert!(err.starts_with(want), "dbn {args:?}\n got {err}\nwant {want}");
    }
    assert_eq!(walk(folder.path()).len(), before, "what was refused left files");
}

#[cfg(not(feature = "cuda"))]
#[test]
fn a_gpu_in_a_build_without_cuda_is_an_error_that_says_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(
        DBN.fail(folder.path(), &["--device", "cuda:0"], 1),
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
        DBN.refuse(folder.path(), &args, want);
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
    DBN.fail(folder.path(), &[&args[..], &["--stop-after-steps", "4"]].concat(), 130);
    write_npy(&path, &refs[..30]);
    assert_eq!(
        DBN.fail(folder.path(), &["--resume", "run"], 1),
        "dbn: --resume run: x.npy had 40 rows at the start of the run, by run/run.json, and now has 30"
    );
}

#[test]
fn figures_say_which_rows_they_are_of() {
    let folder = tempfile::tempdir().unwrap();
    let rows: Vec<f32> = (0..60 * 6).map(|i| (i * 7 % 11) as f32 / 10.).collect();
    let save = |name: &str, n: usize| {
        let x = candle::Tensor::from_slice(&rows[..n * 6], (n, 6), &candle::Device::Cpu).unwrap();
        x.write_npy(folder.path().join(name)).unwrap();
    };
    save("some.npy", 60);
    save("few.npy", 12);
    let train = |data: &str, out: &str| {
        let args = ["train", "--data", data, "--hidden", "4", "--epochs", "1", "--batch", "5", "--out", out];
        DBN_ON_CPU.succeed(folder.path(), &args)
    };
    let said = train("some.npy", "some");
    assert!(said.contains("held-out rows: reconstruction error") && !said.contains("test rows:"), "{said}");
    let said = train("few.npy", "few");
    let none = "training rows (no others; nothing was measured on new rows): reconstruction error";
    assert!(said.contains(none), "{said}");
    for (run, kind) in [("some", "held-out"), ("few", "training")] {
        assert_eq!(results(&folder.path().join(run))["evaluation"]["measured_on"], kind);
        let evaluated = DBN_ON_CPU.json(folder.path(), &["evaluate", run]);
        assert_eq!(evaluated["evaluation"]["measured_on"], kind);
    }
}

#[test]
fn sizes_beyond_the_memory_are_refused_before_it_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let err = DBN_ON_CPU.fail(folder.path(), &["train", "--hidden", "1000000000", "--out", "run"], 1);
    let want = "dbn: 784 visible and 1000000000 hidden units need 25088 GB of memory in training, more than there is; take fewer";
    assert_eq!(err, want);
    let args = ["train", "--atoms", "100000000", "--device", "cpu", "--out", "run"];
    let err = crate::common::DICTIONARY.fail(folder.path(), &args, 1);
    assert!(
        err.contains("100000000 atoms of 64 values need") && err.ends_with("more than there is; take fewer"),
        "{err}"
    );
    assert!(!folder.path().join("run").exists());
}
