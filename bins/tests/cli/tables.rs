//! Tables as people have them, in the programs: classes by name, all rows of a file that is named,
//! test rows in a file of their own, data that changed under a run.
use crate::common::*;
use serde_json::Value;
use std::fmt::Write;
use std::path::Path;

/// A row of a class: its features lie around a corner of its own.
fn row(class: usize, i: usize) -> String {
    let of = |feature: usize| {
        let noise = ((i * 7 + feature * 3) % 10) as f32 / 50.;
        if feature % 3 == class { 0.8 - noise } else { 0.1 + noise }
    };
    (0..6).map(|feature| format!("{:.2},", of(feature))).collect()
}

/// A table of `n` rows of these classes in turn, each with its name after it.
fn table(names: &[(usize, &str)], n: usize) -> String {
    let mut text = "a,b,c,d,e,f,label\n".to_owned();
    for i in 0..n {
        let (class, name) = names[i % names.len()];
        writeln!(text, "{}{name}", row(class, i)).unwrap();
    }
    text
}

const ALL: [(usize, &str); 3] = [(0, "cat"), (1, "dog"), (2, "owl")];

fn write(folder: &Path, name: &str, text: &str) {
    std::fs::write(folder.join(name), text).unwrap();
}

fn classifier(folder: &Path, data: &str) {
    let train = ["train", "--data", data, "--hidden", "8", "--epochs", "3", "--batch", "20", "--out", "net"];
    DBN_ON_CPU.succeed(folder, &train);
    let tune = ["fine-tune", "net", "--classify", "--epochs", "100", "--batch", "20", "--out", "tuned"];
    let tune = [&tune[..], &["--learning-rate", "0.02", "--dropout", "0", "--input-dropout", "0"]].concat();
    DBN_ON_CPU.succeed(folder, &tune);
}

/// The classes that `predict` wrote, by row.
fn predicted(folder: &Path, file: &str) -> Vec<String> {
    let text = std::fs::read_to_string(folder.join(file)).unwrap();
    assert!(text.starts_with("row,class,p(cat),p(dog),p(owl)\n"), "{text}");
    text.lines().skip(1).map(|line| line.split(',').nth(1).unwrap().to_owned()).collect()
}

#[test]
fn classes_are_matched_by_name_and_unknown_ones_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    write(at, "cat.csv", &table(&ALL, 300));
    classifier(at, "cat.csv");
    // Two of the three classes: their numbers are not 0 and 1.
    write(at, "no_cat.csv", &table(&ALL[1..], 48));
    let all = DBN_ON_CPU.json(at, &["predict", "tuned", "--data", "no_cat.csv", "--out", "p.csv"]);
    assert_eq!(all["class_names"], serde_json::json!(["cat", "dog", "owl"]));
    let error = number(&all, "error");
    assert!(error < 0.1, "{all}");
    assert_eq!(predicted(at, "p.csv")[..2], ["dog", "owl"]);
    // Evaluate measures all rows, and says the same.
    let evaluated = DBN_ON_CPU.json(at, &["evaluate", "tuned", "--data", "no_cat.csv"]);
    assert_eq!((number(&evaluated, "evaluation/n_test"), number(&evaluated, "test_error")), (48., error));
    assert_eq!(evaluated["evaluation"]["measured_on"], "all");
    // Without labels the names are those of the model.
    let bare: String =
        table(&ALL, 9).lines().map(|l| l.rsplit_once(',').unwrap().0.to_owned() + "\n").collect();
    write(at, "bare.csv", &bare);
    DBN_ON_CPU.succeed(at, &["predict", "tuned", "--data", "bare.csv", "--out", "bare-p.csv"]);
    assert_eq!(predicted(at, "bare-p.csv")[..3], ["cat", "dog", "owl"]);
    write(at, "cow.csv", &table(&[(0, "cat"), (1, "cow")], 10));
    for command in [&["predict", "tuned", "--out", "no.csv"][..], &["evaluate", "tuned"]] {
        let err = DBN_ON_CPU.fail(at, &[command, &["--data", "cow.csv"]].concat(), 1);
        assert!(err.contains("--data cow.csv: no class 'cow'; there are: cat, dog, owl"), "{err}");
    }
    DBN_ON_CPU
        .succeed(at, &["predict", "tuned", "--data", "cow.csv", "--label-column", "none", "--out", "n.csv"]);
    // Numbers are the names of no class.
    write(at, "numbers.csv", &table(&[(0, "0"), (1, "1")], 10));
    let err = DBN_ON_CPU.fail(at, &["evaluate", "tuned", "--data", "numbers.csv"], 1);
    assert!(err.contains("no class '0'"), "{err}");
}

#[test]
fn a_folder_of_some_classes_is_matched_by_name_too() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let images = |name: &str, classes: &[(usize, &str)]| {
        for (class, class_name) in classes {
            let inside = at.join(name).join(class_name);
            std::fs::create_dir_all(&inside).unwrap();
            for i in 0..30u8 {
                let pixels = (0..9).map(|p| if p % 3 == *class { 220 - i } else { 10 + i }).collect();
                image::GrayImage::from_raw(3, 3, pixels)
                    .unwrap()
                    .save(inside.join(format!("{i}.png")))
                    .unwrap();
            }
        }
    };
    images("all", &ALL);
    images("some", &ALL[1..]);
    classifier(at, "all");
    let some = DBN_ON_CPU.json(at, &["predict", "tuned", "--data", "some", "--out", "p.csv"]);
    assert_eq!(number(&some, "errors"), 0., "{some}");
    let up_down =
        ["up-down", "net", "--epochs", "2", "--top-epochs", "2", "--batch", "10", "--out", "labelled"];
    DBN_ON_CPU.succeed(at, &up_down);
    let some = DBN_ON_CPU.json(at, &["evaluate", "labelled", "--data", "some"]);
    assert_eq!(number(&some, "evaluation/n_rows"), 60.);
    let config: Value =
        serde_json::from_slice(&std::fs::read(at.join("labelled/config.json")).unwrap()).unwrap();
    assert_eq!(config["class_names"], serde_json::json!(["cat", "dog", "owl"]));
}

#[test]
fn a_network_is_evaluated_on_all_rows_of_a_file_against_its_training_rows() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    write(at, "train.csv", &table(&ALL, 200));
    write(at, "test.csv", &table(&ALL[1..], 48));
    let train = [
        "train",
        "--data",
        "train.csv",
        "--test-data",
        "test.csv",
        "--hidden",
        "6",
        "--epochs",
        "2",
        "--batch",
        "20",
    ];
    let run = DBN_ON_CPU.json(at, &[&train[..], &["--out", "run"]].concat());
    assert_eq!(run["evaluation"]["measured_on"], "test");
    assert_eq!(number(&run, "evaluation/readout/n_test"), 48.);
    // What a run was tested on is what it is evaluated on.
    let again = DBN_ON_CPU.json(at, &["evaluate", "run"]);
    assert_eq!(again["evaluation"], run["evaluation"]);
    // A file that is named gives the same figures, for the classifier learns from the rows of the
    // run.
    let named = DBN_ON_CPU.json(at, &["evaluate", "run", "--data", "test.csv"]);
    assert_eq!(
        (&named["evaluation"]["measured_on"], &named["evaluation"]["n_test"]),
        (&"all".into(), &48.into())
    );
    let said = DBN_ON_CPU.succeed(at, &["evaluate", "run", "--data", "test.csv"]);
    assert!(said.contains("48 rows: reconstruction error"), "{said}");
    for figure in ["readout", "reconstruction_error", "free_energy_gap", "pseudo_likelihood"] {
        assert_eq!(named["evaluation"][figure], run["evaluation"][figure], "{figure}");
    }
    // Without them it learns from each half of the file.
    std::fs::rename(at.join("train.csv"), at.join("gone.csv")).unwrap();
    let alone = DBN_ON_CPU.json(at, &["evaluate", "run", "--data", "test.csv", "--log-likelihood"]);
    assert_eq!(number(&alone, "evaluation/readout/n_test"), 48.);
    assert_eq!(
        (&alone["evaluation"]["free_energy_gap"], &alone["log_likelihood"]["train"]),
        (&Value::Null, &Value::Null)
    );
    // A test file with other columns is refused by name.
    std::fs::rename(at.join("gone.csv"), at.join("train.csv")).unwrap();
    write(at, "turned.csv", &table(&ALL, 20).replace("a,b,c", "b,a,c"));
    let err = DBN_ON_CPU.fail(at, &[&train[..3], &["--test-data", "turned.csv", "--out", "no"]].concat(), 1);
    assert!(err.contains("--test-data turned.csv: column 'b' stands where train.csv has 'a'"), "{err}");
}

#[test]
fn labels_that_are_no_classes_are_in_the_way_only_where_classes_are_needed() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    write(at, "noise.csv", &table(&[(0, "-1"), (1, "0"), (2, "1")], 90));
    let train = ["--data", "noise.csv", "--epochs", "1", "--batch", "20", "--out"];
    let output = DBN_ON_CPU
        .command(at, &[&["train", "--hidden", "5"], &train[..], &["net"]].concat())
        .output()
        .unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{stderr}");
    assert!(stderr.contains("--data noise.csv: labels are left out, for they are no classes: "), "{stderr}");
    let err = DBN_ON_CPU.fail(at, &["fine-tune", "net", "--classify", "--out", "no"], 1);
    let why = "noise.csv, column 'label': line 2 has label -1";
    assert!(err.contains("--classify: rows must have labels") && err.contains(why), "{err}");
    let config: Value = serde_json::from_slice(&std::fs::read(at.join("net/config.json")).unwrap()).unwrap();
    assert_eq!(config["layers"][0]["n_visible"], 6);
    DBN_ON_CPU.succeed(
        at,
        &[&["train", "--hidden", "5", "--label-column", "none"], &train[..], &["none"]].concat(),
    );
    DAE.succeed(at, &[&["train", "--hidden", "5"], &train[..], &["dae"]].concat());
    let t = TSNE
        .json(at, &["train", "--data", "noise.csv", "--iterations", "20", "--perplexity", "5", "--out", "t"]);
    assert_eq!(t["n_rows"], 90, "{t}");
}

#[test]
fn a_run_is_not_resumed_on_data_that_changed() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let whole = table(&ALL, 100);
    let out =
        |name: &'static str| ["--data", "x.csv", "--batch", "10", "--stop-after-steps", "3", "--out", name];
    let resume = |program: &Program, run: &str| program.fail(at, &["train", "--resume", run], 1);
    write(at, "x.csv", &whole);
    let stopped = |program: &Program, more: &[&str], name| {
        let output = program.command(at, &[&["train"], more, &out(name)].concat()).output().unwrap();
        assert_eq!(output.status.code(), Some(130), "{}", String::from_utf8_lossy(&output.stderr));
    };
    stopped(&DBN_ON_CPU, &["--hidden", "5", "--epochs", "9"], "dbn");
    stopped(&DAE, &["--hidden", "5", "--epochs", "9"], "dae");
    stopped(&SPARSE_CODING, &["--atoms", "5", "--epochs", "9"], "coding");
    let changes = [
        (whole.replacen("0.8", "0.9", 1), "the values of its rows"),
        (whole.replace("cat", "cow"), "the names of its classes"),
        (whole.replacen("dog", "owl", 1), "its labels"),
    ];
    for (text, what) in &changes {
        write(at, "x.csv", text);
        let err = resume(&DBN_ON_CPU, "dbn");
        assert!(err.contains(&format!("--data x.csv: {what} changed since the start of the run")), "{err}");
        let err = resume(&DAE, "dae");
        assert!(err.contains(what), "{err}");
    }
    write(at, "x.csv", &changes[0].0);
    assert!(resume(&SPARSE_CODING, "coding").contains("the values of its rows changed"));
    write(at, "x.csv", &whole);
    DBN_ON_CPU.succeed(at, &["train", "--resume", "dbn"]);
    SPARSE_CODING.succeed(at, &["train", "--resume", "coding"]);
}

#[test]
fn the_name_of_a_data_set_wins_over_a_path_when_a_run_is_used_or_resumed() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let train = [
        "train",
        "--hidden",
        "5",
        "--epochs",
        "1",
        "--max-rows",
        "200",
        "--stop-after-steps",
        "1",
        "--out",
        "run",
    ];
    let output = DBN_ON_CPU.command(at, &train).output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    // Folders of these names are not what the run was trained on.
    for name in ["mnist-sample", "natural-images"] {
        std::fs::create_dir(at.join(name)).unwrap();
        image::GrayImage::from_raw(2, 2, vec![0; 4]).unwrap().save(at.join(name).join("x.png")).unwrap();
    }
    DBN_ON_CPU.succeed(at, &["train", "--resume", "run"]);
    let evaluated = DBN_ON_CPU.json(at, &["evaluate", "run"]);
    assert_eq!(evaluated["data"], "mnist-sample");
}
