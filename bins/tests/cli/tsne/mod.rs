//! The program `tsne` as a user runs it.
mod descents;
mod draw;
mod edges;
mod given;
mod line;
mod neighbours;
mod sparse;

use crate::common::{TSNE, has, metrics, number, picture_size, write_npy};
use candle::Device::Cpu;
use candle::Tensor;
use chandlery::tsne::Embedding;
use chandlery::{LoadOptions, Model};
use image::AnimationDecoder;
use image::codecs::gif::GifDecoder;
use serde_json::Value;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;

/// A run of seconds: 150 training and 150 test digits.
const TINY: [&str; 8] =
    ["--max-rows", "150", "--perplexity", "10", "--early-iterations", "60", "--iterations", "90"];

fn tiny<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&["train"], &TINY[..], more].concat()
}

fn layout_of(run: &Path) -> Vec<u8> {
    std::fs::read(run.join("layout.npy")).unwrap()
}

fn read(path: &Path) -> Tensor {
    let data = chandlery_datasets::open(&path.display().to_string(), &Default::default()).unwrap();
    data.train.to_tensor(&Cpu).unwrap()
}

#[test]
fn digits_are_laid_out_by_class_with_pictures_a_page_and_figures() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let made = TSNE.json(folder.path(), &tiny(&["--animation", "--thumbnails=24", "--out", "run"]));
    assert_eq!((made["n_rows"].as_u64(), made["n_dims"].as_u64()), (Some(300), Some(2)));
    assert_eq!((made["iterations"].as_u64(), made["method"].as_str()), (Some(150), Some("exact")));
    // One of ten classes is right by chance.
    assert!(number(&made, "knn_label_accuracy") > 0.6 && number(&made, "trustworthiness") > 0.85, "{made}");
    let lines = metrics(&run);
    let last = lines.last().unwrap();
    assert!((number(&made, "kl") - number(last, "kl")).abs() < 1e-4 * number(last, "kl"), "{made} {last}");
    assert!(number(last, "kl") < number(&lines[0], "kl"));
    let stages = ["neighbours", "perplexity", "symmetrisation", "start", "descent"];
    let sum: f64 = stages.iter().map(|stage| number(&made, &format!("training_stage_seconds/{stage}"))).sum();
    assert!(
        (sum - number(&made, "layout_seconds")).abs() < 1e-9 && sum <= number(&made, "seconds"),
        "{made}"
    );

    assert_eq!(picture_size(&run.join("scatter.png")), (1200, 1200));
    assert_eq!(picture_size(&run.join("thumbnails.png")), (2000, 2000));
    let gif = GifDecoder::new(BufReader::new(File::open(run.join("history.gif")).unwrap())).unwrap();
    assert_eq!(gif.into_frames().count(), 1 + lines.len(), "the start and every check");
    let table = std::fs::read_to_string(run.join("layout.csv")).unwrap();
    assert!(table.starts_with("f0,f1,label\n") && table.lines().count() == 301);
    assert_eq!(read(&run.join("layout.npy")).dims(), [300, 2]);
    has(
        &run.join("README.md"),
        &["# t-SNE of mnist-sample in 2 dimensions", "300 rows of 784", "scatter.png", "thumbnails.png"],
    );
    has(&run.join("page.html"), &["\"n\":300", "\"labelled\":true", "data:image/png;base64"]);
    let embedding = Embedding::from_pretrained(&run, &LoadOptions::default()).unwrap();
    assert_eq!(embedding.rows().unwrap().dims(), [300, 784]);
    let evaluate = ["evaluate", "--max-rows", "150", "--perplexity", "10", "run"];
    let again = TSNE.json(folder.path(), &evaluate);
    for measure in ["kl", "trustworthiness", "knn_recall", "knn_label_accuracy"] {
        let (a, b) = (number(&made, measure), number(&again, measure));
        assert!((a - b).abs() < 1e-9, "{measure}: {a}, evaluated {b}");
    }
}

#[test]
fn a_run_that_was_stopped_anywhere_ends_in_the_same_bits_and_can_be_extended() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for (whole, stopped, steps, how) in [
        ("a", "b", "30", &["--method", "exact"][..]),
        ("c", "d", "70", &["--method", "fft", "--start", "random"]),
        ("e", "f", "1", &["--method", "barnes-hut", "--dims", "3"]),
    ] {
        let how = [how, &["--skip-measures"]].concat();
        TSNE.succeed(folder.path(), &tiny(&[&["--out", whole], &how[..]].concat()));
        let args = [&["--out", stopped, "--stop-after-steps", steps], &how[..]].concat();
        let err = TSNE.fail(folder.path(), &tiny(&args), 130);
        assert_eq!(err, format!("interrupted; resume with: tsne train --resume {stopped}"));
        TSNE.succeed(folder.path(), &["train", "--resume", stopped]);
        assert!(layout_of(&at(whole)) == layout_of(&at(stopped)), "{how:?}: another layout");
        let iterations = |run: &str| -> Vec<Value> {
            metrics(&at(run)).into_iter().map(|mut line| line["iteration"].take()).collect()
        };
        assert_eq!(iterations(whole), iterations(stopped));
    }
    let longer = TSNE.json(folder.path(), &["train", "--resume", "b", "--iterations", "115"]);
    assert_eq!(longer["iterations"].as_u64(), Some(175));
    TSNE.succeed(
        folder.path(),
        &tiny(&["--method", "exact", "--skip-measures", "--out", "g", "--seed", "1"]),
    );
    let err = TSNE.fail(folder.path(), &["train", "--resume", "g", "--iterations", "90"], 1);
    assert!(err.contains("--iterations: must be above the 90 that this run has made"), "{err}");
}

#[test]
fn new_rows_go_to_the_rows_that_they_equal() {
    let folder = tempfile::tempdir().unwrap();
    TSNE.succeed(folder.path(), &tiny(&["--split", "train", "--out", "run"]));
    let of_run = ["transform", "run", "--split", "train", "--max-rows", "150"];
    let made = TSNE.json(folder.path(), &[&of_run[..], &["--out", "same.npy"]].concat());
    assert_eq!((made["n_samples"].as_u64(), made["n_dims"].as_u64()), (Some(150), Some(2)));
    let (layout, same) = (read(&folder.path().join("run/layout.npy")), read(&folder.path().join("same.npy")));
    let apart = |a: &Tensor, b: &Tensor| {
        let mut distances = (a - b).unwrap().sqr().unwrap().sum(1).unwrap().to_vec1::<f32>().unwrap();
        distances.sort_by(f32::total_cmp);
        distances[distances.len() / 2].sqrt()
    };
    let shifted =
        Tensor::cat(&[layout.narrow(0, 75, 75).unwrap(), layout.narrow(0, 0, 75).unwrap()], 0).unwrap();
    let (own, other) = (apart(&layout, &same), apart(&layout, &shifted));
    assert!(own < 0.25 * other, "{own} from its own point, {other} from another");
    // The rows of a run are those of its data and split; those of a file are named.
    let measured = TSNE.json(folder.path(), &["evaluate", "--perplexity", "10", "run"]);
    assert_eq!(
        (measured["n_samples"].as_u64(), measured["data"].as_str()),
        (Some(150), Some("mnist-sample"))
    );
    TSNE.succeed(folder.path(), &["transform", "run", "--max-rows", "60", "--out", "points.npy"]);
    let points = ["evaluate", "--max-rows", "60", "--perplexity", "10", "points.npy"];
    let measured = TSNE.json(folder.path(), &[&points[..], &["--split", "test"]].concat());
    assert_eq!(measured["n_samples"].as_u64(), Some(60));
    let err = TSNE.fail(folder.path(), &points, 1);
    assert!(err.contains("a point for each row that --split selects, got [60, 2]"), "{err}");
    let table = TSNE.succeed(folder.path(), &["transform", "run", "--out", "-"]);
    assert!(table.starts_with("f0,f1,label\n"), "{table}");
    write_npy(&folder.path().join("narrow.npy"), [2, 3], &[0.; 6]);
    let err = TSNE.fail(folder.path(), &["transform", "run", "--data", "narrow.npy", "--out", "x.npy"], 1);
    assert!(err.ends_with("--data: rows must have 784 values for this layout, got 3"), "{err}");
}

#[test]
fn measures_are_those_that_a_hand_computes() {
    let folder = tempfile::tempdir().unwrap();
    // Two pairs of rows far apart; at perplexity 1 each row is a neighbour of its partner alone.
    write_npy(&folder.path().join("rows.npy"), [4, 1], &[0., 1., 100., 101.]);
    write_npy(&folder.path().join("points.npy"), [4, 2], &[0., 0., 1., 0., 0., 3., 1., 3.]);
    let evaluate = ["evaluate", "--data", "rows.npy"];
    let of =
        |points: &str, more: &[&str]| TSNE.json(folder.path(), &[&evaluate[..], &[points], more].concat());
    let small = of("points.npy", &["--perplexity", "1"]);
    // Ordered pairs: four at distance 1, four at 3 and four at √10.
    let z = 4. * (1. / 2. + 1. / 10. + 1. / 11.);
    let kl = 4. * 0.25 * (0.25f64 / (0.5 / z)).ln();
    assert!((number(&small, "kl") - kl).abs() < 1e-5, "{small} {kl}");
    assert!(small["trustworthiness"].is_null() && small["knn_recall"].is_null(), "{small}");

    // Rows on a line, the layout the same line but for the last point, which went from its end to
    // its start.
    let n = 30;
    let line: Vec<f32> = (0..n).map(|i| (i * i) as f32).collect();
    let mut points: Vec<f32> = line.iter().flat_map(|&x| [x, 0.]).collect();
    write_npy(&folder.path().join("rows.npy"), [n, 1], &line);
    write_npy(&folder.path().join("points.npy"), [n, 2], &points);
    let same = of("points.npy", &["--perplexity", "5"]);
    assert_eq!((number(&same, "trustworthiness"), number(&same, "knn_recall")), (1., 1.));
    points[2 * (n - 1)] = -1.;
    write_npy(&folder.path().join("points.npy"), [n, 2], &points);
    let moved = of("points.npy", &["--perplexity", "5"]);
    assert!(number(&moved, "trustworthiness") < 1. && number(&moved, "knn_recall") < 1., "{moved}");
    assert!(number(&moved, "kl") > number(&same, "kl"), "{moved} {same}");

    // The distances of rows on a line are one by all three metrics; of the cosine they are all 0.
    for metric in ["manhattan", "chebyshev"] {
        let same = of("points.npy", &["--perplexity", "5", "--metric", metric]);
        assert_eq!((&same["kl"], same["metric"].as_str()), (&moved["kl"], Some(metric)));
    }
    let angles = of("points.npy", &["--perplexity", "5", "--metric", "cosine"]);
    assert!(angles["kl"] != moved["kl"], "{angles}");

    // Labels: two groups of 15 apart from each other, one point with the label of the other group.
    let mut table = String::from("x,label\n");
    let mut layout = Vec::new();
    for i in 0..n {
        table += &format!("{i},{}\n", if i == 3 { 1 } else { i / 15 });
        layout.extend([(i % 15) as f32 * 0.1, (i / 15) as f32 * 100.]);
    }
    std::fs::write(folder.path().join("rows.csv"), table).unwrap();
    write_npy(&folder.path().join("points.npy"), [n, 2], &layout);
    let labelled = ["evaluate", "--data", "rows.csv", "points.npy", "--perplexity", "5"];
    let accuracy = number(&TSNE.json(folder.path(), &labelled), "knn_label_accuracy");
    assert!((accuracy - 29. / 30.).abs() < 1e-12, "{accuracy}");
    write_npy(&folder.path().join("points.npy"), [n - 1, 2], &layout[2..]);
    let err = TSNE.fail(folder.path(), &labelled, 1);
    assert!(
        err.ends_with(
            "must have shape [30, 1], [30, 2] or [30, 3], a point for each row that --split selects, got [29, 2]"
        ),
        "{err}"
    );
}

#[test]
fn few_equal_and_huge_rows_give_finite_layouts() {
    let folder = tempfile::tempdir().unwrap();
    let short = [
        "--early-iterations",
        "30",
        "--iterations",
        "40",
        "--perplexity",
        "1",
        "--overwrite",
        "--out",
        "run",
    ];
    let lay_out = |n: usize, n_features: usize, values: &[f32], more: &[&str]| {
        write_npy(&folder.path().join("rows.npy"), [n, n_features], values);
        TSNE.succeed(folder.path(), &[&["train", "--data", "rows.npy"], &short[..], more].concat());
        let points = read(&folder.path().join("run/layout.npy")).to_vec2::<f32>().unwrap();
        assert!(
            points.len() == n && points.iter().flatten().all(|x| x.is_finite()),
            "{n} {more:?}: {points:?}"
        );
    };
    for n in 2..=10 {
        let values: Vec<f32> = (0..3 * n).map(|i| ((i * 7) % 11) as f32).collect();
        lay_out(n, 3, &values, &[]);
    }
    for method in ["exact", "barnes-hut", "fft"] {
        let method = ["--method", method];
        lay_out(40, 2, &[3.; 80], &method);
        let half: Vec<f32> = (0..80).map(|i| if i < 40 { 1. } else { i as f32 }).collect();
        lay_out(40, 2, &half, &method);
        let huge: Vec<f32> = (0..80).map(|i| ((i * 13) % 37) as f32 * 1e6).collect();
        lay_out(40, 2, &huge, &method);
    }
}

#[test]
fn what_makes_no_sense_is_refused_before_a_folder_is_made() {
    let folder = tempfile::tempdir().unwrap();
    TSNE.refuse(folder.path(), &["--perplexity", "0"], "must be a number of at least 1");
    TSNE.refuse(folder.path(), &["--dims", "4"], "must be 1, 2 or 3");
    let refused = |args: &[&str], text: &str| {
        let err = TSNE.fail(folder.path(), &[&["train", "--out", "run"], args].concat(), 1);
        assert!(err.contains(text), "{args:?}: {err}");
        assert!(!folder.path().join("run").exists());
    };
    refused(&["--max-rows", "90", "--dims", "3", "--method", "fft"], "use barnes-hut or exact");
    refused(&["--max-rows", "30", "--perplexity", "9", "--neighbours", "8"], "neighbours must be in 9..=59");
    write_npy(&folder.path().join("one.npy"), [1, 2], &[1., 2.]);
    refused(&["--data", "one.npy"], "rows must be at least 2, got 1");
    refused(&["--data", "one.npy", "--split", "test"], "--split test: one.npy has no test rows");
    TSNE.refuse(folder.path(), &["--thumbnails=3"], "3 is not in 4..=512");
    refused(&["--data", "one.npy", "--thumbnails"], "--thumbnails: rows of one.npy are no images");
    let mut values = [0.5; 100];
    values[7] = f32::NAN;
    write_npy(&folder.path().join("nan.npy"), [50, 2], &values);
    refused(&["--data", "nan.npy", "--perplexity", "3"], "NaN");
}

#[test]
fn a_layout_by_another_metric_is_measured_by_it() {
    let folder = tempfile::tempdir().unwrap();
    for metric in ["manhattan", "chebyshev", "correlation", "hamming", "jaccard"] {
        let made = TSNE.json(folder.path(), &tiny(&["--metric", metric, "--overwrite", "--out", "run"]));
        let evaluate = |more: &[&str]| TSNE.json(folder.path(), &[&["evaluate", "run"], more].concat());
        let again = evaluate(&[]);
        assert_eq!(again["metric"].as_str(), Some(metric));
        assert_eq!(
            (&again["trustworthiness"], &again["knn_recall"]),
            (&made["trustworthiness"], &made["knn_recall"])
        );
        let euclidean = evaluate(&["--metric", "euclidean"]);
        assert!(euclidean["knn_recall"] != again["knn_recall"], "{euclidean} {again}");
        let card = std::fs::read_to_string(folder.path().join("run/README.md")).unwrap();
        assert!(card.contains(&format!("{metric} distance")), "{card}");
        let placed = ["transform", "run", "--max-rows", "30", "--split", "test", "--out", "points.npy"];
        TSNE.succeed(folder.path(), &placed);
    }
    TSNE.refuse(
        folder.path(),
        &["--metric", "minkowski"],
        "possible values: euclidean, cosine, correlation, manhattan, chebyshev, hamming, jaccard",
    );
}
