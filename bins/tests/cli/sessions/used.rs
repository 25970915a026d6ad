//! Runs that are used, and begun, from elsewhere.
use super::{TRAININGS, folder};
use crate::common::{DBN, DBN_ON_CPU, SPARSE_AUTOENCODER, SPARSE_CODING, TSNE, weights};
use std::path::Path;

/// Rows of a file of the test's own, with labels in another.
fn own_data(folder: &Path) {
    let rows: Vec<f32> = (0..120 * 9).map(|i| f32::from((i * 7 % 5 > 2) as u8)).collect();
    let labels: Vec<u32> = (0..120).map(|i| i % 3).collect();
    let cpu = &candle::Device::Cpu;
    let write = |name: &str, tensor: candle::Tensor| tensor.write_npy(folder.join(name)).unwrap();
    write("x.npy", candle::Tensor::from_vec(rows, (120, 9), cpu).unwrap());
    write("y.npy", candle::Tensor::from_vec(labels, 120, cpu).unwrap());
}

#[test]
fn a_saved_network_is_used_on_the_data_of_its_run_from_any_folder() {
    let folder = tempfile::tempdir().unwrap();
    let (here, there) = (folder.path().join("here"), folder.path().join("there"));
    std::fs::create_dir_all(&here).unwrap();
    std::fs::create_dir_all(&there).unwrap();
    own_data(&here);
    let cpu = ["--device", "cpu"];
    let train = [
        "train",
        "--data",
        "x.npy",
        "--label-column",
        "y.npy",
        "--hidden",
        "5",
        "--epochs",
        "1",
        "--batch",
        "20",
    ];
    DBN.succeed(&here, &[&train[..], &["--out", "run"], &cpu].concat());
    let stopped = ["--out", "stopped", "--stop-after-steps", "1"];
    DBN.fail(&here, &[&train[..], &stopped, &cpu].concat(), 130);
    let run = "../here/run";
    for command in ["encode", "evaluate", "reconstruct"] {
        for at in [&here, &there] {
            let model = if at == &here { "run" } else { run };
            let json = DBN.json(at, &[&[command, model], &cpu[..]].concat());
            assert_eq!(json["data"].as_str(), Some("x.npy"), "{command}: {json}");
        }
    }
    // What is asked for stands above what the run had.
    let json = DBN.json(&there, &[&["encode", run, "--max-rows", "7"], &cpu[..]].concat());
    assert_eq!((json["data"].as_str(), json["n_samples"].as_u64()), (Some("x.npy"), Some(7)));
    let err = DBN.fail(&there, &[&["encode", run, "--data", "mnist-sample"], &cpu[..]].concat(), 1);
    assert!(err.contains("784"), "{err}");
    for (more, out) in [
        (&["fine-tune", run, "--classify"][..], "classifier"),
        (&["up-down", run, "--top-epochs", "1"], "labelled"),
    ] {
        let args = [more, &["--epochs", "1", "--batch", "20", "--out", out], &cpu].concat();
        let json = DBN.json(&there, &args);
        assert_eq!(json["data"].as_str(), Some("x.npy"), "{json}");
    }
    // A run of a run is on the same data; so is a run that is resumed from another folder.
    let json = DBN.json(&here, &[&["evaluate", "../there/classifier"], &cpu[..]].concat());
    assert_eq!(json["data"].as_str(), Some("x.npy"), "{json}");
    DBN.succeed(&there, &[&["train", "--resume", "../here/stopped"], &cpu[..]].concat());
    assert!(weights(&here.join("run")) == weights(&here.join("stopped")), "other weights");
}

#[cfg(unix)]
#[test]
fn two_runs_into_one_folder_are_refused() {
    let folder = folder();
    let args = ["train", "--hidden", "9", "--epochs", "1000000", "--out", "run", "--device", "cpu"];
    let mut first = DBN
        .command(folder.path(), &args)
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    while std::fs::metadata(folder.path().join("run/metrics.jsonl")).map_or(0, |m| m.len()) == 0 {
        assert!(first.try_wait().unwrap().is_none(), "the run ended");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    for args in [&["train", "--out", "run", "--overwrite"][..], &["train", "--resume", "run"]] {
        let err = DBN.fail(folder.path(), &[args, &["--device", "cpu"]].concat(), 1);
        assert!(err.contains("run: another process is training in this folder; wait for it to end"), "{err}");
    }
    first.kill().unwrap();
    first.wait().unwrap();
    DBN.fail(folder.path(), &["train", "--resume", "run", "--device", "cpu", "--stop-after-steps", "1"], 130);
}

#[test]
fn fewer_rows_than_a_minibatch_are_one_minibatch() {
    let folder = tempfile::tempdir().unwrap();
    let said = DBN_ON_CPU.succeed(
        folder.path(),
        &["train", "--hidden", "6", "--max-rows", "12", "--batch", "100", "--epochs", "1", "--out", "run"],
    );
    assert!(said.contains("minibatches of 12, all rows that are trained on, in place of 100"), "{said}");
}

#[test]
fn a_run_without_a_model_is_called_unfinished_whoever_asks() {
    let folder = folder();
    for (i, training) in TRAININGS.iter().enumerate() {
        let out = format!("run{i}");
        training.stopped_at_once(folder.path(), &out);
        let ways: &[&[&str]] = match training.kind.split(' ').next().unwrap() {
            "dbn" => {
                &[&["encode"], &["evaluate"], &["predict"], &["reconstruct"], &["sample"], &["fine-tune"]]
            }
            "dae" => &[&["encode"], &["evaluate"], &["reconstruct"]],
            "tsne" => &[&["transform"], &["evaluate", "--max-rows", "300", "--data", "mnist-sample"]],
            "dictionary-learning" => &[&["encode"], &["train", "--data", "mnist-sample", "--start-from"]],
            _ => &[&["encode"], &["evaluate"], &["reconstruct"]],
        };
        for way in ways {
            let mut args = [way, &[&out[..]][..]].concat();
            match way[0] {
                "fine-tune" => args.push("--classify"),
                "transform" => args.extend(["--out", "x.npy"]),
                _ => {}
            }
            let err = training.program.fail(folder.path(), &args, 1);
            let want = format!(
                "{out}: this run is not finished, and has no model yet; finish it with `{} --resume {out}`",
                training.kind
            );
            assert!(err.ends_with(&want), "{args:?}: {err}");
        }
    }
}

#[test]
fn the_data_of_a_run_that_cannot_be_read_is_not_replaced_by_other_data() {
    let folder = folder();
    let of = |kind: &str| TRAININGS.iter().find(|training| training.kind == kind).unwrap();
    for (program, kind) in
        [(SPARSE_AUTOENCODER, "sparse-autoencoder train"), (SPARSE_CODING, "sparse-coding train")]
    {
        let run = kind.split(' ').next().unwrap();
        program.succeed(folder.path(), &of(kind).args(&["--out", run]));
        let json = program.json(folder.path(), &["encode", run]);
        assert_eq!(json["data"].as_str(), Some("mnist-sample"));
        let file = folder.path().join(run).join("run.json");
        for damaged in [&b"{}"[..], b"", &[255], br#"{"kind":"dbn train"}"#] {
            std::fs::write(&file, damaged).unwrap();
            let err = program.fail(folder.path(), &["encode", run], 1);
            let want =
                format!("{run}: the data of this run is not known; name it with --data: {run}/run.json: ");
            assert!(err.contains(&want), "{err}");
        }
        // Where there is no run, what is read in its place is said.
        std::fs::remove_file(&file).unwrap();
        let output = program.command(folder.path(), &["encode", run]).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(
            said.contains("is not the folder of a run, and there is no --data: reading natural-images"),
            "{said}"
        );
    }
}

#[cfg(unix)]
#[test]
fn a_run_is_read_while_another_process_trains_in_it() {
    let folder = folder();
    let training = TRAININGS.iter().find(|training| training.kind == "sparse-coding train").unwrap();
    training.program.succeed(folder.path(), &training.args(&["--out", "run"]));
    let lock = std::fs::File::open(folder.path().join("run")).unwrap();
    lock.try_lock().unwrap();
    let json = SPARSE_CODING.json(folder.path(), &["encode", "run"]);
    assert_eq!(json["data"].as_str(), Some("mnist-sample"));
    let err = SPARSE_CODING.fail(folder.path(), &["train", "--resume", "run"], 1);
    assert!(err.contains("another process is training in this folder"), "{err}");
}

#[test]
fn rows_that_cannot_be_computed_with_are_blamed_by_their_name() {
    let folder = folder();
    let at = folder.path();
    let rows = |name: &str, value: f32| {
        let values: Vec<f32> =
            (0..40 * 6).map(|i| if i == 45 { value } else { (i * 7 % 11) as f32 / 11. }).collect();
        crate::common::write_npy(&at.join(name), [40, 6], &values);
    };
    rows("fit.npy", 0.5);
    rows("huge.npy", 1e30);
    let train = ["train", "--data", "fit.npy", "--atoms", "4", "--epochs", "1", "--out", "run"];
    SPARSE_CODING.succeed(at, &train);
    for args in [
        &["train", "--data", "huge.npy", "--atoms", "4", "--epochs", "1", "--out", "other"][..],
        &["encode", "run", "--data", "huge.npy"],
        &["encode", "run", "--data", "huge.npy", "--out", "codes.csv"],
        &["evaluate", "run", "--data", "huge.npy"],
        &["reconstruct", "run", "--data", "huge.npy"],
    ] {
        // The first lines of a run are not of interest.
        let output = SPARSE_CODING.command(at, args).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        let err = stderr.lines().last().unwrap_or_default();
        assert!(
            err.starts_with("sparse-coding: --data huge.npy: ") && err.contains("for row "),
            "{args:?}: {err}"
        );
        assert!(!err.contains("features.safetensors") && !err.contains("codes.csv"), "{err}");
    }
    assert!(
        !at.join("features.safetensors").exists()
            && !at.join("codes.csv").exists()
            && !super::has_leftovers(at)
    );
    // Neighbours from elsewhere.
    let index = |i: usize| if i == 22 { 40 } else { ((i / 5 + 1 + i % 5) % 40) as i64 };
    let indices = (0..200).flat_map(|i| index(i).to_le_bytes()).collect();
    std::fs::write(at.join("indices.npy"), crate::common::npy("<i8", "(40, 5)", indices)).unwrap();
    crate::common::write_npy(
        &at.join("distances.npy"),
        [40, 5],
        &(0..200).map(|i| i as f32).collect::<Vec<_>>(),
    );
    let args = ["--data", "fit.npy", "--neighbours-from", "indices.npy", "--distances", "distances.npy"];
    let err = TSNE.fail(at, &args, 1);
    assert!(
        err.contains("--neighbours-from indices.npy: indices must be from 0 to 39, got 40 in row 4"),
        "{err}"
    );
}
