#![allow(clippy::unwrap_used)]
use super::*;

fn left(folder: &Path) -> Vec<String> {
    let mut left: Vec<_> =
        fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    left.sort();
    left
}

fn refused(folder: &Path, existing: Existing) -> String {
    let err = RunFolder::create("dbn", Some(folder), existing).unwrap_err().to_string();
    assert_eq!(RunFolder::check(Some(folder), existing).unwrap_err().to_string(), err);
    err.replace(&folder.display().to_string(), "DIR")
}

#[test]
fn a_folder_with_something_in_it_is_refused_and_kept() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["config.json", "README.md", "run.json"] {
        fs::write(dir.path().join(name), "precious").unwrap();
    }
    assert_eq!(refused(dir.path(), Existing::Refuse), "--out DIR: the folder is not empty; name another");
    assert_eq!(
        refused(dir.path(), Existing::Overwrite),
        "--out DIR: --overwrite replaces runs only, and this folder holds none: it has no files.txt; name another"
    );
    // A list of somebody's own is no list of a run.
    fs::write(dir.path().join("files.txt"), "README.md\n").unwrap();
    assert!(refused(dir.path(), Existing::Overwrite).contains("holds none"));
    assert_eq!(left(dir.path()), ["README.md", "config.json", "files.txt", "run.json"]);
}

#[test]
fn overwrite_removes_all_that_a_former_run_wrote_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let first = RunFolder::create("tsne", Some(dir.path()), Existing::Refuse).unwrap();
    first.begin(&[]).unwrap();
    for name in ["metrics.jsonl", "scatter.png", "history/000050.png", "run.json", "checkpoint/a"] {
        first.write(name, b"old").unwrap();
    }
    first.save_model::<Error>("start", |_| Ok(())).unwrap();
    fs::write(dir.path().join("start/model.safetensors"), "old").unwrap();
    fs::write(dir.path().join("notes.txt"), "mine").unwrap();
    fs::write(dir.path().join("history/mine.png"), "mine").unwrap();
    drop(first);
    assert_eq!(
        refused(dir.path(), Existing::Refuse),
        "--out DIR: the folder is not empty; name another, add --overwrite, or continue with --resume DIR"
    );
    let second = RunFolder::create("dbn", Some(dir.path()), Existing::Overwrite).unwrap();
    assert!(dir.path().join("scatter.png").exists(), "the old run stays until the new one has begun");
    second.begin(&["run.json"]).unwrap();
    assert_eq!(left(dir.path()), ["files.txt", "history", "notes.txt", "run.json"]);
    assert_eq!(left(&dir.path().join("history")), ["mine.png"]);
    // What was kept is listed still.
    drop(second);
    RunFolder::create("dbn", Some(dir.path()), Existing::Overwrite).unwrap().begin(&[]).unwrap();
    assert_eq!(left(dir.path()), ["files.txt", "history", "notes.txt"]);
}

#[test]
fn a_list_that_names_files_elsewhere_removes_none() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run");
    RunFolder::create("dbn", Some(&path), Existing::Refuse).unwrap().begin(&[]).unwrap();
    fs::write(dir.path().join("mine"), "precious").unwrap();
    let list = fs::read_to_string(path.join("files.txt")).unwrap();
    let absolute = dir.path().join("mine").display().to_string();
    for name in ["../mine", "a/../../mine", &absolute] {
        fs::write(path.join("files.txt"), format!("{list}{name}\n")).unwrap();
        let err = RunFolder::create("dbn", Some(&path), Existing::Overwrite).unwrap_err();
        assert!(format!("{err:#}").contains("must name files in the folder"), "{err:#}");
    }
    assert_eq!(left(dir.path()), ["mine", "run"]);
}

#[test]
fn what_a_run_left_that_ended_before_its_first_checkpoint_is_no_run() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir(at("checkpoint")).unwrap();
    fs::write(at("checkpoint/.next.safetensors.abc123.part"), "half").unwrap();
    fs::write(at(".files.txt.abc123.part"), "half").unwrap();
    let run = RunFolder::create("dbn", Some(dir.path()), Existing::Refuse).unwrap();
    fs::write(at("checkpoint/next.safetensors"), "whole").unwrap();
    run.begin(&["checkpoint/next.safetensors"]).unwrap();
    assert_eq!(left(&at("checkpoint")), ["next.safetensors"]);
    assert_eq!(left(dir.path()), ["checkpoint", "files.txt"]);
    run.write("run.json", b"{}").unwrap();
    drop(run);
    RunFolder::create("dbn", Some(dir.path()), Existing::Refuse).unwrap();
    for name in ["checkpoint/trainer.safetensors", "checkpoint/mine", "mine"] {
        fs::write(at(name), "whole").unwrap();
        assert!(refused(dir.path(), Existing::Refuse).contains("the folder is not empty"), "{name}");
        fs::remove_file(at(name)).unwrap();
    }
}

#[test]
fn names_that_no_file_can_have_are_told_before_the_work() {
    let dir = tempfile::tempdir().unwrap();
    let text = |path: &Path| check_writable(path).unwrap_err().to_string();
    assert!(check_writable(Path::new("x.png")).is_ok() && check_writable(&dir.path().join("x.png")).is_ok());
    let (inside, path) = (dir.path().join("a/x.png"), dir.path().display());
    assert_eq!(
        text(&inside),
        format!("{path}/a/x.png: must be in a folder that exists, and {path}/a does not; make it first")
    );
    assert_eq!(text(dir.path()), format!("{path}: must be the name of a file, got a folder"));
}

#[cfg(unix)]
#[test]
fn a_folder_is_lent_to_one_run_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run");
    let first = RunFolder::create("dbn", Some(&path), Existing::Refuse).unwrap();
    first.write("a.txt", b"kept").unwrap();
    let refused = |existing| RunFolder::create("dbn", Some(&path), existing).unwrap_err();
    let text = format!("{:#}", refused(Existing::Overwrite));
    assert!(text.contains("another process is training in this folder"), "{text}");
    assert!(RunFolder::open(&path).unwrap().locked().is_err());
    assert_eq!(fs::read(path.join("a.txt")).unwrap(), b"kept");
    drop(first);
    RunFolder::create("dbn", Some(&path), Existing::Overwrite).unwrap();
}

#[test]
fn two_runs_within_a_second_get_two_folders() {
    let dir = tempfile::tempdir().unwrap();
    let paths: Vec<_> = (0..3).map(|_| fresh(dir.path(), "dbn").unwrap()).collect();
    assert!(paths.iter().all(|p| p.is_dir()));
    assert!(paths[0] != paths[1] && paths[1] != paths[2] && paths[0] != paths[2]);
}

#[test]
fn lines_are_appended() {
    let dir = tempfile::tempdir().unwrap();
    let run = RunFolder::open(dir.path()).unwrap();
    for epoch in 0..3 {
        run.append_json_line("m.jsonl", &serde_json::json!({ "epoch": epoch })).unwrap();
    }
    let text = fs::read_to_string(run.join("m.jsonl")).unwrap();
    assert_eq!(text, "{\"epoch\":0}\n{\"epoch\":1}\n{\"epoch\":2}\n");
    run.write_json_lines("m.jsonl", &[1, 2]).unwrap();
    assert_eq!(
        fs::read_to_string(run.join("files.txt")).unwrap().lines().skip(1).collect::<Vec<_>>(),
        ["m.jsonl"]
    );
    assert_eq!(fs::read_to_string(run.join("m.jsonl")).unwrap(), "1\n2\n");
}
