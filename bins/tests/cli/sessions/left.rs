//! What a run leaves behind.
use super::{TRAININGS, folder, json, names};
use crate::common::{metrics, number, results};
use std::path::Path;

#[test]
fn every_run_leaves_the_same_files_and_names() {
    let folder = folder();
    for (i, training) in TRAININGS.iter().enumerate() {
        let (out, name) = (format!("run{i}"), training.name());
        let run = folder.path().join(&out);
        let result = training.program.json(folder.path(), &training.args(&["--out", &out, "--seed", "3"]));
        assert_eq!(result, results(&run), "{name}");
        assert_eq!((result["out"].as_str(), result["seed"].as_u64()), (Some(&out[..]), Some(3)));
        assert!(
            result["device"].as_str().unwrap().starts_with("cpu") && result["data"].is_string(),
            "{result}"
        );
        let (training_seconds, seconds) = (number(&result, "training_seconds"), number(&result, "seconds"));
        assert!(0. < training_seconds && training_seconds < seconds, "{result}");
        assert_eq!(metrics(&run).len(), training.lines, "{name}");
        assert_eq!(json(&run.join("run.json"))["kind"].as_str(), Some(training.kind));
        let card = std::fs::read_to_string(run.join("README.md")).unwrap();
        for text in ["library_name: candle", "seed 3", "## Results", "## Use", "--seed 3"] {
            assert!(card.contains(text), "{text} in\n{card}");
        }
        assert!(run.join("curves.svg").is_file() || training.kind == "dbn up-down");
        assert_eq!(listed(&run), names(&run), "{name}");
    }
}

/// The files that a run says it wrote and that are there, and the list itself.
fn listed(run: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(run.join("files.txt")).unwrap();
    let listed = text.lines().skip(1).filter(|name| run.join(name).exists()).map(str::to_owned);
    let mut listed: Vec<String> = listed.chain(["files.txt".to_owned()]).collect();
    listed.sort();
    listed
}

#[test]
fn overwriting_leaves_the_files_of_the_new_run_and_those_of_nobody() {
    let folder = folder();
    let at = folder.path().join("run");
    let mut before = None;
    for training in TRAININGS.iter().rev() {
        let (args, name) = (training.args(&["--out", "run", "--overwrite"]), training.name());
        training.program.succeed(folder.path(), &args);
        match before {
            None => {
                std::fs::write(at.join("notes.txt"), "mine").unwrap();
                std::fs::write(at.join("history/notes.txt"), "mine").unwrap();
            }
            // What the run before wrote is gone, pictures and layouts, too.
            Some(before) => {
                let mine = ["history/notes.txt", "notes.txt"];
                let others: Vec<_> =
                    names(&at).into_iter().filter(|name| !mine.contains(&&name[..])).collect();
                assert_eq!(others, listed(&at), "{name} after {before}");
                assert_eq!(names(&at).len(), others.len() + mine.len(), "{name} after {before}");
            }
        }
        assert_eq!(json(&at.join("run.json"))["kind"].as_str(), Some(training.kind), "{name}");
        before = Some(name);
    }
}

#[test]
fn only_runs_are_overwritten_and_only_by_a_run_that_begins() {
    let folder = folder();
    let at = folder.path();
    for training in &TRAININGS {
        std::fs::write(at.join("README.md"), "mine").unwrap();
        let before = names(at);
        for out in [".", "base"] {
            let err = training.program.fail(at, &training.args(&["--out", out, "--overwrite"]), 1);
            let want = format!("--out {out}: --overwrite replaces runs only, and this folder holds none");
            assert!(err.contains(&want), "{err}");
        }
        assert_eq!(names(at), before, "{}", training.name());
    }
    let training = &TRAININGS[0];
    training.program.succeed(at, &training.args(&["--out", "run"]));
    let before = names(&at.join("run"));
    // Rows that there are not, and sizes that no memory holds.
    for wrong in [["--data=none.npy", "--hidden=9"], ["--data=mnist-sample", "--hidden=4000000000000"]] {
        let args = [&["train", "--out", "run", "--overwrite"][..], &wrong].concat();
        training.program.fail(at, &args, 1);
        assert_eq!(names(&at.join("run")), before, "{wrong:?}");
    }
}
