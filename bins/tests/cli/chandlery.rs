//! The program `chandlery`: all others by their names.
use crate::common::{CHANDLERY, TSNE, has, weights};

const RUN: [&str; 7] = ["--data", "mnist-sample", "--max-rows", "80", "--skip-measures", "--perplexity", "5"];

#[test]
fn a_program_under_chandlery_is_the_program() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    TSNE.succeed(folder.path(), &[&RUN[..], &["--out", "alone"]].concat());
    let given = [&["tsne"], &RUN[..], &["--out", "below", "--device", "cpu"]].concat();
    CHANDLERY.succeed(folder.path(), &given);
    assert_eq!(weights(&at("alone")), weights(&at("below")));
    has(&at("alone/run.json"), &["\"tsne --data mnist-sample"]);
    has(&at("below/run.json"), &["\"chandlery tsne --data mnist-sample"]);
}

#[test]
fn help_names_every_program_but_bench_and_examples_are_as_one_types_them() {
    let folder = tempfile::tempdir().unwrap();
    let help = CHANDLERY.succeed(folder.path(), &["--help"]);
    for command in crate::common::programs() {
        let name = command.get_name();
        assert_eq!(help.contains(&format!("\n  {name} ")), name != "bench", "{name}\n{help}");
    }
    let help = CHANDLERY.succeed(folder.path(), &["dbn", "--help"]);
    for text in ["Usage: chandlery dbn", "\n  chandlery dbn evaluate runs/NET"] {
        assert!(help.contains(text), "{text}\n{help}");
    }
    assert!(!help.contains("\n  dbn "), "{help}");
    assert!(CHANDLERY.succeed(folder.path(), &["completions", "bash"]).contains("dictionary-learning"));
}

#[test]
fn what_is_no_program_is_a_usage_error_and_other_errors_name_the_program() {
    let folder = tempfile::tempdir().unwrap();
    CHANDLERY.refuse(folder.path(), &["bench"], "unrecognized subcommand 'bench'");
    CHANDLERY.refuse(folder.path(), &["dbn", "train", "--no"], "Usage: chandlery dbn train");
    let error = CHANDLERY.fail(folder.path(), &["dbn", "evaluate", "missing"], 1);
    assert!(error.starts_with("dbn: missing"), "{error}");
}
