//! What goes into the programs and comes out of them beside files: standard output, threads,
//! completions, folders of images.

use crate::common::{BENCH, DBN, DBN_ON_CPU, DICTIONARY, Program, SPARSE_AUTOENCODER, weights};
use std::path::Path;
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// A folder with a data set `x.csv` of 40 rows of 4 values in two classes, a network `pre` and a
/// classifier `classes` of them.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let rows = (0..40).map(|i| format!("{}.5,0.25,{},1,{}\n", 0, i % 2, ["no", "yes"][i % 2]));
    let text: String = std::iter::once("a,b,c,d,label\n".to_owned()).chain(rows).collect();
    std::fs::write(folder.path().join("x.csv"), text).unwrap();
    let rows = ["--batch", "10", "--epochs", "1"];
    let pre = ["train", "--data", "x.csv", "--hidden", "3", "--out", "pre"];
    DBN_ON_CPU.succeed(folder.path(), &[&pre[..], &rows].concat());
    let classes = ["fine-tune", "pre", "--classify", "--out", "classes"];
    DBN_ON_CPU.succeed(folder.path(), &[&classes[..], &rows].concat());
    folder
}

#[test]
fn features_and_classes_go_to_standard_output_and_nothing_else_does() {
    let folder = folder();
    let at = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    DBN_ON_CPU.succeed(folder.path(), &["encode", "pre", "--out", "features.csv"]);
    let features = DBN_ON_CPU.succeed(folder.path(), &["encode", "pre", "--out", "-"]);
    assert_eq!(features, at("features.csv"));
    let mut lines = features.lines();
    assert_eq!(lines.next(), Some("f0,f1,f2,label"));
    assert!(lines.clone().count() == 40 && lines.all(|line| line.split(',').count() == 4), "{features}");

    DBN_ON_CPU.succeed(folder.path(), &["predict", "classes", "--out", "predictions.csv"]);
    let classes = DBN_ON_CPU.succeed(folder.path(), &["predict", "classes", "--out", "-"]);
    assert_eq!(classes, at("predictions.csv"));
    assert!(classes.starts_with("row,class,p(no),p(yes)\n") && classes.lines().count() == 41, "{classes}");
    assert!(!folder.path().join("-").exists(), "a file of that name");

    for command in [["encode", "pre"], ["predict", "classes"]] {
        let err = DBN_ON_CPU.fail(folder.path(), &[&command[..], &["--out", "-", "--json"]].concat(), 1);
        assert_eq!(
            err,
            "dbn: --out -: must not be used with --json, which also writes to standard output; name a file"
        );
    }
}

#[test]
fn decoded_rows_go_to_standard_output() {
    let folder = folder();
    let cpu = |args: &[&'static str]| [args, &["--device", "cpu"]].concat();
    let train =
        ["train", "--data", "x.csv", "--atoms", "4", "--nonzero", "2", "--epochs", "1", "--out", "run"];
    DICTIONARY.succeed(folder.path(), &cpu(&train));
    DICTIONARY.succeed(folder.path(), &cpu(&["encode", "run", "--data", "x.csv"]));
    let rows = DICTIONARY.succeed(folder.path(), &cpu(&["decode", "run", "codes.safetensors", "--out", "-"]));
    assert!(rows.starts_with("f0,f1,f2,f3\n") && rows.lines().count() == 41, "{rows}");
}

#[cfg(unix)]
#[test]
fn a_scheduler_that_ends_a_run_is_told_so_and_finds_a_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let train = ["train", "--hidden", "9", "--max-rows", "200", "--epochs", "1000000", "--out", "run"];
    let said = crate::common::signal(
        DBN_ON_CPU.command(folder.path(), &train),
        &folder.path().join("run"),
        "-TERM",
        143,
    );
    assert!(said.contains("interrupted; resume with: dbn train --resume run"), "{said}");
}

#[cfg(unix)]
#[test]
fn files_can_be_read_by_whom_the_system_lets_read_new_files() {
    use std::os::unix::fs::PermissionsExt;
    let folder = folder();
    let mode = |name: &str| std::fs::metadata(folder.path().join(name)).unwrap().permissions().mode() & 0o777;
    DBN_ON_CPU.succeed(folder.path(), &["encode", "pre", "--out", "f.safetensors"]);
    DBN_ON_CPU.succeed(folder.path(), &["predict", "classes", "--out", "p.safetensors"]);
    let atoms =
        ["train", "--data", "x.csv", "--atoms", "4", "--nonzero", "2", "--epochs", "1", "--out", "run"];
    DICTIONARY.succeed(folder.path(), &[&atoms[..], &["--device", "cpu"]].concat());
    let codes = ["encode", "run", "--data", "x.csv", "--out", "c.safetensors", "--device", "cpu"];
    DICTIONARY.succeed(folder.path(), &codes);
    for name in ["f.safetensors", "p.safetensors", "c.safetensors", "run/model.safetensors"] {
        assert_eq!(mode(name), mode("x.csv"), "{name}");
    }
}

#[cfg(unix)]
#[test]
fn a_reader_that_has_had_enough_is_no_error() {
    let folder = folder();
    // More than a pipe holds.
    let args = ["encode", "pre", "--data", "mnist-sample", "--out", "-"];
    let wide = ["train", "--hidden", "9", "--epochs", "1", "--max-rows", "100", "--out", "wide"];
    DBN_ON_CPU.succeed(folder.path(), &wide);
    let args = args.map(|arg| if arg == "pre" { "wide" } else { arg });
    let mut child = DBN_ON_CPU
        .command(folder.path(), &args)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn the_number_of_threads_is_checked_and_changes_no_bit() {
    let folder = tempfile::tempdir().unwrap();
    let train = ["train", "--hidden", "40,9", "--max-rows", "300", "--epochs", "2"];
    for threads in ["1", "3"] {
        let said = DBN_ON_CPU
            .succeed(folder.path(), &[&train[..], &["--threads", threads, "--out", threads]].concat());
        let words = if threads == "1" { "on cpu (1 thread)," } else { "on cpu (3 threads)," };
        assert!(said.contains(words), "{said}");
    }
    assert!(weights(&folder.path().join("1")) == weights(&folder.path().join("3")));
    DBN_ON_CPU.succeed(folder.path(), &["train", "--resume", "1", "--threads", "2"]);
    let commands: [(Program, &[&str]); 4] = [
        (DBN, &["evaluate", "1"]),
        (DICTIONARY, &["train"]),
        (DICTIONARY, &["denoise", "x.png"]),
        (BENCH, &["rbm"]),
    ];
    for (program, command) in commands {
        for n in ["0", "1025", "-1", "two"] {
            let threads = format!("--threads={n}");
            program.refuse(
                folder.path(),
                &[command, &[&threads]].concat(),
                "must be a whole number from 1 to 1024",
            );
        }
    }
}

#[test]
fn completions_name_the_commands_and_options_of_a_program() {
    let folder = tempfile::tempdir().unwrap();
    for (program, words) in [
        (DBN, ["fine-tune", "--hidden"]),
        (DICTIONARY, ["inpaint", "--atoms"]),
        (BENCH, ["rbm", "--repeats"]),
        (SPARSE_AUTOENCODER.bare(), ["self-taught", "--sparsity-target"]),
    ] {
        for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
            let script = program.succeed(folder.path(), &["completions", shell]);
            for word in words {
                let bare = word.trim_start_matches("--");
                assert!(script.contains(bare), "{shell} lacks {word}");
            }
        }
        program.refuse(folder.path(), &["completions", "csh"], "possible values");
    }
    let script = folder.path().join("dbn.bash");
    std::fs::write(&script, DBN.succeed(folder.path(), &["completions", "bash"])).unwrap();
    // Where there is no bash there is nothing to check.
    if let Ok(checked) = Command::new("bash").arg("-n").arg(&script).status() {
        assert!(checked.success(), "bash does not understand its completions");
    }
}

/// Twelve images of 4 × 5 pixels.
fn images(folder: &Path) {
    std::fs::create_dir_all(folder).unwrap();
    for i in 0..12u8 {
        let image = image::GrayImage::from_fn(5, 4, |x, y| image::Luma([20 * i + (x * y) as u8]));
        image.save(folder.join(format!("{i:02}.png"))).unwrap();
    }
}

#[test]
fn a_flat_folder_of_images_is_rows_without_labels() {
    let folder = tempfile::tempdir().unwrap();
    images(&folder.path().join("flat"));
    let train = ["train", "--data", "flat", "--hidden", "3", "--epochs", "1", "--batch", "4", "--out", "run"];
    let said = DBN_ON_CPU.succeed(folder.path(), &train);
    assert!(said.contains("12 training, 0 held-out and 0 test rows of 20"), "{said}");
    assert!(!said.contains("linear classifier"), "{said}");
    let fix =
        "name their column with --label-column, or put the images of each class into a sub-folder of its own";
    let err = DBN_ON_CPU.fail(folder.path(), &["fine-tune", "run", "--classify", "--out", "c"], 1);
    assert_eq!(
        err,
        format!("dbn: --classify: rows must have labels of at least 2 classes, got none in flat; {fix}")
    );
    let err = DBN_ON_CPU.fail(folder.path(), &["up-down", "run", "--out", "c"], 1);
    assert!(err.ends_with(&format!("labels of at least 2 classes, got 0; {fix}")), "{err}");
}

#[test]
fn a_damaged_image_is_refused_without_a_panic_and_a_jpeg_can_be_written() {
    let folder = tempfile::tempdir().unwrap();
    images(folder.path());
    let cpu = ["--device", "cpu", "--sigma", "9", "--patch", "2", "--atoms", "8", "--epochs", "1"];
    let denoise =
        |image: &'static str, out: &'static str| [&["denoise", image, "--out", out][..], &cpu].concat();
    // A palette whose length is no multiple of three, on which a decoder panics.
    let png = std::fs::read(folder.path().join("00.png")).unwrap();
    let palette = [&[0, 0, 0, 5][..], b"PLTE", &[1, 2, 3, 4, 5]].concat();
    let mut checksum = flate2::Crc::new();
    checksum.update(&palette[4..]);
    let mut damaged = [&png[..33], &palette, &checksum.sum().to_be_bytes(), &png[33..]].concat();
    damaged[25] = 3;
    let mut checksum = flate2::Crc::new();
    checksum.update(&damaged[12..29]);
    damaged[29..33].copy_from_slice(&checksum.sum().to_be_bytes());
    std::fs::write(folder.path().join("bad.png"), damaged).unwrap();
    let err = DICTIONARY.fail(folder.path(), &denoise("bad.png", "out.png"), 1);
    assert!(err.contains("bad.png: cannot be decoded as an image"), "{err}");

    DICTIONARY.succeed(folder.path(), &denoise("05.png", "out.png"));
    DICTIONARY.succeed(folder.path(), &denoise("05.png", "out.jpg"));
    let read = |name: &str| image::open(folder.path().join(name)).unwrap().into_luma8();
    let (plain, lossy) = (read("out.png"), read("out.jpg"));
    assert_eq!(plain.dimensions(), lossy.dimensions());
    let off = plain.iter().zip(lossy.iter()).map(|(&a, &b)| a.abs_diff(b)).max();
    assert!(off.is_some_and(|off| off <= 12), "{off:?} grey levels");
}

#[test]
fn a_dictionary_takes_the_images_of_a_folder_whole_or_in_patches() {
    let folder = tempfile::tempdir().unwrap();
    images(&folder.path().join("flat"));
    let train = |more: &[&'static str]| {
        let args = ["train", "--data", "flat", "--atoms", "6", "--nonzero", "2", "--epochs", "1"];
        let out = ["--out", "run", "--overwrite", "--device", "cpu"];
        DICTIONARY.json(folder.path(), &[&args[..], &out, more].concat())
    };
    let whole = train(&["--patch", "none"]);
    assert_eq!((whole["n_rows"].as_u64(), whole["n_features"].as_u64()), (Some(12), Some(20)));
    let patches = train(&["--patch", "3", "--patches", "50"]);
    assert_eq!((patches["n_rows"].as_u64(), patches["n_features"].as_u64()), (Some(50), Some(9)));
    DICTIONARY.refuse(folder.path(), &["train", "--patch", "3x"], "each at least 1, or none");
}
