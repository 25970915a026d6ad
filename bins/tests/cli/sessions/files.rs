//! Files that two write at once, disks that are full, and readers that have gone.
use super::{TRAININGS, folder, has_leftovers, names};
use crate::common::{DBN_ON_CPU, DICTIONARY_ON_CPU, Program, weights};
use std::path::Path;
use std::process::{Command, Stdio};

#[test]
fn of_two_writers_of_one_name_both_succeed_and_one_leaves_its_file_whole() {
    let folder = folder();
    let at = folder.path();
    DICTIONARY_ON_CPU.succeed(
        at,
        &[
            "train",
            "--data",
            "mnist-sample",
            "--max-rows",
            "300",
            "--atoms",
            "12",
            "--epochs",
            "1",
            "--out",
            "atoms",
        ],
    );
    let rows = ["--data", "mnist-sample", "--out"];
    let png = ["reconstruct", "base", "--data", "mnist-sample", "--n", "40", "--out"];
    let ways: [(&Program, Vec<&str>, [&str; 2], &str); 5] = [
        (&DBN_ON_CPU, [&["encode", "base"][..], &rows].concat(), ["--layer=1", "--layer=2"], "x.npy"),
        (&DBN_ON_CPU, [&["encode", "base"][..], &rows].concat(), ["--layer=1", "--layer=2"], "x.csv"),
        (&DBN_ON_CPU, [&["encode", "base"][..], &rows].concat(), ["--layer=1", "--layer=2"], "x.safetensors"),
        (
            &DICTIONARY_ON_CPU,
            vec!["encode", "atoms", "--data", "mnist-sample", "--out"],
            ["--nonzero=2", "--nonzero=3"],
            "x.npz",
        ),
        (&DBN_ON_CPU, png.to_vec(), ["--split=train", "--split=test"], "x.png"),
    ];
    for (program, args, differ, name) in ways {
        let line = |more: &'static str, name: &'static str| [&args[..], &[name, more]].concat();
        let wholes = differ.map(|more| {
            program.succeed(at, &line(more, name));
            std::fs::read(at.join(name)).unwrap()
        });
        assert!(wholes[0] != wholes[1], "{name}");
        let before = names(at);
        for _ in 0..8 {
            let quiet = |more| {
                let mut command = program.command(at, &line(more, name));
                command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
            };
            for process in differ.map(quiet) {
                let output = process.wait_with_output().unwrap();
                assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
            }
            assert!(wholes.contains(&std::fs::read(at.join(name)).unwrap()), "{name} is a mixture");
            assert_eq!(names(at), before);
        }
    }
}

/// The last line of standard error of a command that may write files of so many blocks of 512 bytes
/// only, as on a full disk.
#[cfg(unix)]
fn with_room_for(blocks: &str, program: &Program, at: &Path, args: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -f \"$0\"; exec \"$@\"", blocks, program.path]);
    let output = command.args(args).args(["--device", "cpu"]).current_dir(at).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    (output.status.code(), stderr.lines().last().unwrap_or_default().to_owned())
}

#[cfg(unix)]
#[test]
fn a_full_disk_is_told_with_the_name_of_the_file_and_nothing_partial_stays() {
    for training in &TRAININGS {
        let (folder, name) = (folder(), training.name());
        let at = folder.path();
        // Not even the first checkpoint; the first, but no further file of more than a few lines.
        for blocks in ["1", "40"] {
            let (code, err) = with_room_for(
                blocks,
                &training.program,
                at,
                &training.args(&["--out", "run", "--checkpoint-every", "0"]),
            );
            assert_eq!(code, Some(1), "{name}: {err}");
            assert!(err.contains("run/") && err.contains(": cannot write: File too large"), "{name}: {err}");
            assert!(!has_leftovers(at), "{name}: {:?}", names(at));
            // When there is room again the same command begins or the run goes on.
            if at.join("run/checkpoint/trainer.safetensors").exists() {
                training.program.succeed(at, &training.resume("run", &[]));
            } else {
                training.program.succeed(at, &training.args(&["--out", "run"]));
            }
            let before = (names(at), weights(&at.join("run")));
            // A run that cannot begin replaces none.
            let again = training.args(&["--out", "run", "--overwrite"]);
            let (code, err) = with_room_for("1", &training.program, at, &again);
            assert_eq!(code, Some(1), "{name}: {err}");
            assert!((names(at), weights(&at.join("run"))) == before, "{name}");
            std::fs::remove_dir_all(at.join("run")).unwrap();
        }
    }
}

#[cfg(target_os = "linux")]
#[test]
fn whoever_refuses_bytes_is_named() {
    let folder = folder();
    let at = folder.path();
    for name in ["x.npy", "x.csv", "x.safetensors"] {
        std::os::unix::fs::symlink("/dev/full", at.join(name)).unwrap();
        let err = DBN_ON_CPU.fail(at, &["encode", "base", "--data", "mnist-sample", "--out", name], 1);
        assert!(err.starts_with(&format!("dbn: {name}: cannot write: No space left on device")), "{err}");
    }
    let full = || std::fs::File::options().write(true).open("/dev/full").unwrap();
    let refused = |program: &Program, args: &[&str]| {
        let mut command = program.command(at, args);
        let output = command.stdout(full()).stderr(Stdio::piped()).output().unwrap();
        let err = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{args:?}: {err}");
        let err = err.lines().last().unwrap_or_default();
        let (_, why) = err.split_once(": ").unwrap();
        assert!(why.starts_with("standard output: cannot write: No space left on device"), "{args:?}: {err}");
    };
    refused(&DBN_ON_CPU, &["encode", "base", "--data", "mnist-sample", "--out", "-"]);
    for training in &TRAININGS {
        refused(&training.program, &training.args(&["--out", "run", "--overwrite"]));
        refused(&training.program, &training.args(&["--out", "run", "--overwrite", "--json"]));
        // Where there is something to say of minibatches, too.
        let few = [training.begin, training.settings, &training.length, &["--data", "mnist-sample"]].concat();
        refused(
            &training.program,
            &[&few[..], &["--max-rows", "40", "--out", "run", "--overwrite"]].concat(),
        );
    }
}

/// Standard error is for people, who may have gone.
#[cfg(unix)]
#[test]
fn a_closed_standard_error_ends_nothing() {
    let folder = folder();
    for training in &TRAININGS {
        let mut args = training.args(&["--out", "run", "--overwrite", "--json"]);
        // Few rows, of which there is more to say.
        if training.program.path != crate::common::TSNE.path {
            let rows = args.iter().position(|arg| *arg == "300").unwrap();
            args[rows] = "40";
        }
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = training.program.command(folder.path(), &args);
        let output = command.stdout(Stdio::piped()).stderr(writer).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", training.name());
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(json["out"].as_str(), Some("run"));
    }
    // An error ends with its code, heard or not.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = DBN_ON_CPU.command(folder.path(), &["encode", "nowhere/at/all"]);
    assert_eq!(command.stderr(writer).status().unwrap().code(), Some(1));
}
