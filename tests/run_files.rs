//! Thousands of damaged run folders and files of sparse codes: each is resumed, used or decoded, or
//! refused by a line that names it, in bounded time and memory.
//!
//! `CHANDLERY_MUTANTS=20000 cargo test --workspace --test run_files` makes more of them; see
//! `mutants.rs`.
#![allow(clippy::unwrap_used, clippy::expect_used)]
#[path = "../datasets/tests/common/gauge.rs"]
mod gauge;
#[path = "../datasets/tests/common/mutants.rs"]
mod mutants;
#[path = "../bins/tests/cli/common/npy.rs"]
mod npy;

use chandlery_bins::report::{Outcome, one_line};
use chandlery_bins::session::args::parse;
use chandlery_bins::{dae, dbn, dictionary, sparse_autoencoder, sparse_coding, tsne};
use mutants::{Whole, campaign, sealed};
use npy::npy;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::io::{Cursor, Write};
use std::path::Path;

#[global_allocator]
static GAUGE: gauge::Gauge = gauge::Gauge;

/// Mutants of a plain `cargo test`: some seconds.
const MUTANTS: u64 = 3_000;

const DBN: &str = "dbn";
const DICTIONARY: &str = "dictionary-learning";
const DAE: &str = "dae";
const SPARSE_AUTOENCODER: &str = "sparse-autoencoder";
const SPARSE_CODING: &str = "sparse-coding";
const TSNE: &str = "tsne";

#[test]
fn no_damaged_run_or_file_of_codes_ends_the_program_or_goes_unnamed() {
    let mut wholes = runs();
    wholes.extend(codes());
    wholes.extend(pictures());
    campaign("no_damaged_run_or_file_of_codes_ends_the_program_or_goes_unnamed", &wholes, MUTANTS, open);
}

/// Runs a program in this process.
fn run(program: &str, args: &[&str]) -> anyhow::Result<Outcome> {
    let line = [&[program][..], args, &["--device", "cpu"]].concat();
    match program {
        DBN => dbn::run(parse::<dbn::cli::Cli>(line)?),
        DAE => dae::run(parse::<dae::args::Cli>(line)?),
        SPARSE_AUTOENCODER => sparse_autoencoder::run(parse::<sparse_autoencoder::args::Cli>(line)?),
        SPARSE_CODING => sparse_coding::run(parse::<sparse_coding::args::Cli>(line)?),
        TSNE => tsne::run(parse::<tsne::args::Cli>(line)?),
        _ => dictionary::run(parse::<dictionary::args::Cli>(line)?),
    }
}

/// Does with the folder what the damaged file is for: its `spec` is the program and its command.
fn open(folder: &Path, whole: &Whole) -> Result<(), String> {
    let at = |name: &str| folder.join(name).display().to_string();
    // Runs name their data from where they are.
    std::env::set_current_dir(folder).unwrap();
    let (program, command) = whole.spec.split_once(' ').unwrap();
    let ended = match command {
        "encode" if program == DICTIONARY => {
            run(program, &["encode", &at("run"), "--data", "x.csv", "--out", &at("codes.npz")])
        }
        "encode" => run(program, &["encode", &at("run"), "--out", &at("features.csv")]),
        "evaluate" => run(program, &["evaluate", &at("run"), "--data", "x.csv"]),
        "predict" => run(program, &["predict", &at("run"), "--data", "x.csv", "--out", &at("classes.csv")]),
        "transform" => {
            run(program, &["transform", &at("run"), "--data", "x.csv", "--out", &at("points.csv")])
        }
        "decode" => run(program, &["decode", &at("run"), &at(&whole.path), "--out", &at("rows.csv")]),
        "decode-images" => run(program, &["decode", &at("run"), &at(&whole.path), "--out", &at("images")]),
        "image" => {
            let read = chandlery::pictures::planes::read_planes(&folder.join(&whole.path));
            read.map(|_| Outcome::Done).map_err(Into::into)
        }
        command => run(program, &[command, "--resume", &at("run"), "--stop-after-steps", "1"]),
    };
    ended.map(drop).map_err(|err| match one_line(&err) {
        // The option names the data, which lie in the folder.
        text if text.starts_with("--data") => format!("{}: {text}", folder.display()),
        text => text,
    })
}

/// Forty rows of four values in [0, 1] of two classes.
fn table() -> Vec<u8> {
    let row = |i: usize| format!("{},{},0.25,{},{}\n", i % 2, (i * 7 % 10) as f64 / 10., i % 3 / 2, i % 2);
    ("a,b,c,d,label\n".to_owned() + &(0..40).map(row).collect::<String>()).into_bytes()
}

/// All files of a folder and of those in it.
fn files(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        match path.is_dir() {
            true => found.extend(files(&path).into_iter().map(|(file, b)| (format!("{name}/{file}"), b))),
            false => found.push((name, std::fs::read(&path).unwrap())),
        }
    }
    found.sort();
    found
}

/// Takes out what differs from process to process, so that a mutant is the same in all.
fn steady(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                match name.as_str() {
                    "seconds" | "epoch_seconds" | "run_seconds" | "rows_per_second" if value.is_number() => {
                        *value = json!(0.5);
                    }
                    name if value.is_object() && name.ends_with("seconds") => seconds_of(value),
                    "command" => *value = json!("dbn"),
                    "directory" => *value = Value::Null,
                    _ => steady(value),
                }
            }
        }
        Value::Array(values) => values.iter_mut().for_each(steady),
        _ => {}
    }
}

/// All of the numbers.
fn seconds_of(value: &mut Value) {
    value
        .as_object_mut()
        .into_iter()
        .flatten()
        .filter(|(_, x)| x.is_number())
        .for_each(|(_, x)| *x = json!(0.5));
}

fn steady_lines(text: &[u8]) -> Vec<u8> {
    let lines = std::str::from_utf8(text).unwrap().lines().map(|line| {
        let mut value: Value = serde_json::from_str(line).unwrap();
        steady(&mut value);
        format!("{value}\n")
    });
    lines.collect::<String>().into_bytes()
}

/// The files of a run under `run/`, with its data beside it.
fn steady_run(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let kept = ["run.json", "metrics.jsonl", "config.json", "model.safetensors"];
    let files = files(&folder.join("run")).into_iter();
    // Without the checkpoint before it, which a damaged one would give way to.
    let files = files.filter(|(name, _)| kept.contains(&name.as_str()) || format!("run/{name}") == LAST);
    let steadied = files.map(|(name, bytes)| {
        let bytes = match name.as_str() {
            "run.json" => {
                let mut value = serde_json::from_slice(&bytes).unwrap();
                steady(&mut value);
                serde_json::to_vec_pretty(&value).unwrap()
            }
            "metrics.jsonl" => steady_lines(&bytes),
            "checkpoint/trainer.safetensors" => sealed(&with_notes(&bytes, steady)),
            _ => bytes,
        };
        (format!("run/{name}"), bytes)
    });
    steadied.chain([("x.csv".to_owned(), table())]).collect()
}

/// A checkpoint with other notes.
fn with_notes(bytes: &[u8], change: impl Fn(&mut Value)) -> Vec<u8> {
    let (_, header) = safetensors::SafeTensors::read_metadata(bytes).unwrap();
    let mut notes: HashMap<String, String> = header.metadata().clone().unwrap();
    if let Some(text) = notes.get_mut("chandlery") {
        let mut value = serde_json::from_str(text).unwrap();
        change(&mut value);
        *text = value.to_string();
    }
    let tensors = safetensors::SafeTensors::deserialize(bytes).unwrap().tensors();
    safetensors::serialize(tensors, Some(notes)).unwrap()
}

/// The files of a run of this command, which was stopped after so many steps or went to its end.
fn run_files(program: &str, args: &[&str], steps: Option<&str>) -> Vec<(String, Vec<u8>)> {
    let folder = tempfile::tempdir().unwrap();
    std::env::set_current_dir(folder.path()).unwrap();
    std::fs::write("x.csv", table()).unwrap();
    if args.contains(&"pre") {
        let pre =
            ["train", "--data", "x.csv", "--hidden", "3", "--batch", "8", "--epochs", "1", "--out", "pre"];
        run(DBN, &pre).unwrap();
    }
    if args.contains(&"dae") {
        let pre =
            ["train", "--data", "x.csv", "--hidden", "3", "--batch", "8", "--epochs", "1", "--out", "dae"];
        run(DAE, &pre).unwrap();
    }
    let stop = steps.map_or(vec![], |steps| vec!["--stop-after-steps", steps]);
    run(program, &[args, &["--out", "run"], &stop].concat()).unwrap();
    let files = steady_run(folder.path());
    std::env::set_current_dir("/").unwrap();
    files
}

/// `files` with that of this name damaged, and the command that reads it.
fn damaged(files: &[(String, Vec<u8>)], name: &str, spec: &str) -> Whole {
    let bytes = &files.iter().find(|(file, _)| file == name).expect("a file of the run").1;
    let others = files.iter().filter(|(file, _)| file != name);
    let whole = Whole::new(name, bytes.clone()).opened_by(spec);
    others.fold(whole, |whole, (file, bytes)| whole.with(file, bytes.clone()))
}

const RUN: &str = "run/run.json";
const LAST: &str = "run/checkpoint/trainer.safetensors";

/// What was asked for of every training command, resumed and extended, and of one that is used, and
/// checkpoints.
fn runs() -> Vec<Whole> {
    let data = ["--data", "x.csv", "--batch", "8", "--epochs", "2"];
    let atoms = ["train", "--data", "x.csv", "--atoms", "5", "--nonzero", "2", "--epochs", "3"];
    let classify = ["fine-tune", "pre", "--classify", "--patience", "2"];
    let up_down = ["up-down", "pre", "--top-epochs", "1", "--k", "1,2"];
    let network = ["train", "--hidden", "4,3", "--persistent", "--l1", "1e-5"];
    let online = [&atoms[..], &["--online", "--batch", "8"]].concat();
    let tuned = ["fine-tune", "dae", "--classify"];
    let hidden = ["train", "--hidden", "3"];
    let neighbours = ["train", "--data", "x.csv", "--perplexity", "4", "--early-iterations", "50"];
    let commands: [(&str, &str, Vec<&str>); 10] = [
        ("dbn train", DBN, [&network[..], &data].concat()),
        ("dbn fine-tune", DBN, [&classify[..], &data].concat()),
        ("dbn up-down", DBN, [&up_down[..], &data].concat()),
        ("dictionary-learning train", DICTIONARY, atoms.to_vec()),
        ("dictionary-learning train", DICTIONARY, online),
        ("dae train", DAE, [&hidden[..], &data].concat()),
        ("dae fine-tune", DAE, [&tuned[..], &data].concat()),
        (
            "sparse-autoencoder train",
            SPARSE_AUTOENCODER,
            [&hidden[..], &data[..2], &["--iterations", "5"]].concat(),
        ),
        ("sparse-coding train", SPARSE_CODING, [&["train", "--atoms", "5"][..], &data].concat()),
        ("tsne train", TSNE, [&neighbours[..], &["--iterations", "60"]].concat()),
    ];
    let mut wholes = Vec::new();
    for (spec, program, args) in &commands {
        let steps = if args.contains(&"--online") || *program == DBN || *program == DAE { "7" } else { "2" };
        let files = run_files(program, args, Some(steps));
        wholes.push(damaged(&files, RUN, spec));
        // As the disk damages it, which its checksum tells, and with a checksum that is right.
        wholes.push(damaged(&files, LAST, spec));
        wholes.push(damaged(&files, LAST, spec).wrapped(sealed));
    }
    wholes.extend(models());
    wholes
}

/// What uses a model that is there, and its files.
fn models() -> Vec<Whole> {
    let data = ["--data", "x.csv"];
    let epoch = ["--batch", "8", "--epochs", "1"];
    let hidden = ["train", "--hidden", "3"];
    let classify = ["fine-tune", "pre", "--classify"];
    let atoms = ["train", "--atoms", "5", "--nonzero", "2", "--epochs", "1"];
    let layout = ["train", "--perplexity", "4", "--early-iterations", "5", "--iterations", "10"];
    let used: [(&str, Vec<&str>, &[&str]); 7] = [
        (DBN, [&hidden[..], &data, &epoch].concat(), &["encode", "evaluate"]),
        (DBN, [&classify[..], &data, &epoch].concat(), &["predict", "evaluate"]),
        (DAE, [&hidden[..], &data, &epoch].concat(), &["encode", "evaluate"]),
        (SPARSE_AUTOENCODER, [&hidden[..], &data, &["--iterations", "5"]].concat(), &["encode", "evaluate"]),
        (SPARSE_CODING, [&["train", "--atoms", "5"][..], &data, &epoch].concat(), &["encode", "evaluate"]),
        (DICTIONARY, [&atoms[..], &data].concat(), &["encode"]),
        (TSNE, [&layout[..], &data].concat(), &["transform"]),
    ];
    let mut wholes = Vec::new();
    for (program, args, commands) in &used {
        let files = run_files(program, args, None);
        for command in *commands {
            let spec = format!("{program} {command}");
            for name in [RUN, "run/config.json", "run/model.safetensors"] {
                wholes.push(damaged(&files, name, &spec));
            }
        }
        let table = "x.csv";
        wholes.push(damaged(&files, table, &format!("{program} {}", commands[0])));
    }
    wholes
}

/// Files of codes of both formats, of rows and of images, and the arrays within an archive.
fn codes() -> Vec<Whole> {
    let atoms = ["--atoms", "5", "--nonzero", "2", "--epochs", "1"];
    let of_rows = run_files(DICTIONARY, &[&["train", "--data", "x.csv"][..], &atoms].concat(), None);
    let cut = ["train", "--data", "x.csv", "--prepare=row-mean"];
    let of_means = run_files(DICTIONARY, &[&cut[..], &atoms].concat(), None);
    let with_codes = |mut files: Vec<(String, Vec<u8>)>, data: &str, name: &str| {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name).display().to_string();
        for (name, bytes) in &files {
            std::fs::create_dir_all(folder.path().join(name).parent().unwrap()).unwrap();
            std::fs::write(at(name), bytes).unwrap();
        }
        let image = image::GrayImage::from_fn(6, 4, |x, y| image::Luma([(40 * x + 9 * y) as u8]));
        image.save(at("image.png")).unwrap();
        run(DICTIONARY, &["encode", &at("run"), "--data", &at(data), "--out", &at(name)]).unwrap();
        files.push((name.to_owned(), std::fs::read(at(name)).unwrap()));
        files
    };
    let spec = "dictionary-learning decode";
    let rows = with_codes(of_rows.clone(), "x.csv", "codes.safetensors");
    let packed = with_codes(of_means, "x.csv", "codes.npz");
    let images = with_codes(of_patches(), "image.png", "codes.safetensors");
    let indices = npy("<u4", "(3, 2)", [4u32, 1, 2, 0, 0, 0].iter().flat_map(|i| i.to_le_bytes()).collect());
    vec![
        damaged(&rows, "codes.safetensors", spec),
        damaged(&packed, "codes.npz", spec),
        damaged(&images, "codes.safetensors", "dictionary-learning decode-images"),
        of_rows
            .iter()
            .fold(Whole::new("codes.npz", indices), |whole, (name, bytes)| whole.with(name, bytes.clone()))
            .wrapped(archive)
            .opened_by(spec),
    ]
}

/// Images as `denoise` and `inpaint` read them.
fn pictures() -> Vec<Whole> {
    let image =
        image::DynamicImage::from(image::RgbImage::from_fn(6, 5, |x, y| image::Rgb([x as u8, y as u8, 9])));
    let formats = [image::ImageFormat::Png, image::ImageFormat::Jpeg, image::ImageFormat::Tiff];
    let whole = |format: image::ImageFormat| {
        let mut bytes = Cursor::new(Vec::new());
        image.write_to(&mut bytes, format).unwrap();
        let name = format!("x.{}", format.extensions_str()[0]);
        Whole::new(&name, bytes.into_inner()).opened_by("dictionary-learning image")
    };
    formats.map(whole).into()
}

/// A dictionary of patches of 2 × 2 pixels of an image of its own.
fn of_patches() -> Vec<(String, Vec<u8>)> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image.png");
    image::GrayImage::from_fn(9, 8, |x, y| image::Luma([(31 * x + 17 * y * y) as u8])).save(&path).unwrap();
    let path = path.display().to_string();
    let atoms = ["--atoms", "5", "--nonzero", "2", "--epochs", "1", "--patch", "2", "--patches", "40"];
    run_files(DICTIONARY, &[&["train", "--data", &path][..], &atoms].concat(), None)
}

/// The archive of codes of three rows over five atoms with these indices, and checksums that are
/// right.
fn archive(indices: &[u8]) -> Vec<u8> {
    let floats = |values: &[f32]| values.iter().flat_map(|x| x.to_le_bytes()).collect();
    let arrays = [
        ("indices", indices.to_vec()),
        ("values", npy("<f4", "(3, 2)", floats(&[1., -2., 3., 0., 0., 0.]))),
        ("count", npy("<u4", "(3,)", [2u32, 1, 0].iter().flat_map(|n| n.to_le_bytes()).collect())),
        ("mean", npy("<f4", "(3,)", floats(&[0.5; 3]))),
    ];
    let mut archive = zip::ZipWriter::new(Cursor::new(Vec::new()));
    for (name, bytes) in arrays {
        archive.start_file(format!("{name}.npy"), zip::write::SimpleFileOptions::default()).unwrap();
        archive.write_all(&bytes).unwrap();
    }
    archive.finish().unwrap().into_inner()
}
