//! Few rows, rows far from 0, and measures of a run as it was made.
use super::{read, tiny};
use crate::common::{TSNE, has, metrics, npy, number, write_npy};
use serde_json::Value;
use std::path::Path;

fn results(run: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(run.join("results.json")).unwrap()).unwrap()
}

const FIGURES: [&str; 4] = ["kl", "trustworthiness", "knn_recall", "knn_label_accuracy"];

#[test]
fn a_run_is_measured_as_it_was_made_unless_told_otherwise() {
    let folder = tempfile::tempdir().unwrap();
    for how in [
        &["--prepare", "pca=5", "--metric", "cosine"][..],
        &["--prepare", "row-mean", "--perplexity", "5,20", "--degrees-of-freedom", "0.6"],
        &["--neighbours", "17", "--approximate=true", "--seed", "3"],
    ] {
        let args: Vec<&str> = tiny(&["--overwrite", "--out", "run"]);
        let args: Vec<&str> = match how.contains(&"--perplexity") {
            true => args.into_iter().filter(|arg| !["--perplexity", "10"].contains(arg)).collect(),
            false => args,
        };
        TSNE.succeed(folder.path(), &[&args[..], how].concat());
        let made = results(&folder.path().join("run"));
        let again = TSNE.json(folder.path(), &["evaluate", "run"]);
        for figure in FIGURES {
            assert_eq!(number(&made, figure), number(&again, figure), "{how:?}: {figure}");
        }
        let otherwise = TSNE.json(folder.path(), &["evaluate", "run", "--perplexity", "31"]);
        assert_ne!(number(&made, "kl"), number(&otherwise, "kl"), "{how:?}");
        let otherwise = ["evaluate", "run", "--prepare", "contrast"];
        let otherwise = TSNE.json(folder.path(), &otherwise);
        assert_ne!(number(&made, "knn_recall"), number(&otherwise, "knn_recall"), "{how:?}");
    }
}

#[test]
fn a_perplexity_too_large_for_few_rows_is_lowered_with_a_note() {
    let folder = tempfile::tempdir().unwrap();
    let few = ["--max-rows", "50", "--split", "train", "--early-iterations", "20", "--iterations", "20"];
    let said = |args: &[&str]| {
        let output = TSNE.command(folder.path(), args).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
    };
    let of_train = said(&[&["train"], &few[..], &["--out", "run"]].concat());
    assert!(of_train.contains("note: perplexity 30 was lowered to 16.33 for 50 rows"), "{of_train}");
    let card = std::fs::read_to_string(folder.path().join("run/README.md")).unwrap();
    assert!(card.contains("perplexity 16.33,"), "{card}");
    let of_evaluate = said(&["evaluate", "run", "--perplexity", "40"]);
    assert!(of_evaluate.contains("note: perplexity 40 was lowered to 16.33 for 50 rows"), "{of_evaluate}");
    let transform = ["transform", "run", "--max-rows", "5", "--perplexity", "25", "--out", "points.npy"];
    let of_transform = said(&transform);
    assert!(
        of_transform.contains("note: perplexity 25 was lowered to 16.33 for 50 training rows"),
        "{of_transform}"
    );
}

/// `n` rows of `d` in f64, which lie on a curve with some noise, plus an offset.
fn curve(n: usize, d: usize, offset: f64) -> Vec<f64> {
    let noise = |i: usize, c: usize| ((i * 7919 + c * 104_729) % 1009) as f64 / 1009.;
    let at = |i: usize, c: usize| ((i as f64 / n as f64) * (3 + c) as f64).sin() + 0.1 * noise(i, c) + offset;
    (0..n * d).map(|place| at(place / d, place % d)).collect()
}

fn write_f64(path: &Path, n: usize, d: usize, values: &[f64]) {
    let bytes = values.iter().flat_map(|x| x.to_le_bytes()).collect();
    std::fs::write(path, npy("<f8", &format!("({n}, {d})"), bytes)).unwrap();
}

#[test]
fn rows_far_from_0_in_f64_are_laid_out_placed_and_measured_as_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let (n, d) = (120, 6);
    let (near, far) = (curve(n, d, 0.), curve(n, d, 1e8));
    write_f64(&folder.path().join("near.npy"), n, d, &near);
    write_f64(&folder.path().join("far.npy"), n, d, &far);
    let train = |data: &str, out: &str, more: &[&str]| {
        let args =
            ["train", "--data", data, "--perplexity", "10", "--early-iterations", "60", "--iterations", "90"];
        let output =
            TSNE.command(folder.path(), &[&args[..], &["--out", out], more].concat()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        (results(&folder.path().join(out)), String::from_utf8(output.stderr).unwrap())
    };
    let (of_near, _) = train("near.npy", "near", &[]);
    let (of_far, said) = train("far.npy", "far", &[]);
    assert!(!said.contains("rounded"), "{said}");
    // The same neighbours; f64 at 1e8 holds eight decimals.
    for figure in ["trustworthiness", "knn_recall"] {
        let (a, b) = (number(&of_near, figure), number(&of_far, figure));
        assert!((a - b).abs() < 0.02, "{figure}: {b} far, {a} near 0");
    }
    let (cosine, said) = train("far.npy", "cosine", &["--metric", "cosine"]);
    assert!(said.contains("--data far.npy: values are rounded to 32 bits"), "{said}");
    assert!(number(&cosine, "trustworthiness") < 0.9, "{cosine}");
    // A layout is measured against the rows in f64: one that is the rows is as good as can be, of
    // either file.
    let points: Vec<f32> = near.chunks(d).flat_map(|row| [row[0] as f32, row[1] as f32]).collect();
    write_npy(&folder.path().join("points.npy"), [n, 2], &points);
    let measured = |data: &str| {
        let args = ["evaluate", "--data", data, "points.npy", "--perplexity", "10"];
        TSNE.json(folder.path(), &args)
    };
    let (a, b) = (measured("near.npy"), measured("far.npy"));
    for figure in ["kl", "trustworthiness", "knn_recall"] {
        assert!((number(&a, figure) - number(&b, figure)).abs() < 5e-4, "{figure}: {a} {b}");
    }
    let again = TSNE.json(folder.path(), &["evaluate", "far"]);
    for figure in ["kl", "trustworthiness", "knn_recall"] {
        assert_eq!(number(&of_far, figure), number(&again, figure), "{figure}");
    }
    // New rows lose what the rows of the layout lost, whatever the mean of their own file.
    write_f64(&folder.path().join("some.npy"), 20, d, &far[..20 * d]);
    TSNE.succeed(folder.path(), &["transform", "far", "--data", "some.npy", "--out", "some-points.npy"]);
    let (layout, placed) =
        (read(&folder.path().join("far/layout.npy")), read(&folder.path().join("some-points.npy")));
    let (layout, placed) = (layout.to_vec2::<f32>().unwrap(), placed.to_vec2::<f32>().unwrap());
    let apart = |i: usize, j: usize| (placed[i][0] - layout[j][0]).hypot(placed[i][1] - layout[j][1]);
    let own: f32 = (0..20).map(|i| apart(i, i)).sum();
    let other: f32 = (0..20).map(|i| apart(i, i + 60)).sum();
    assert!(own < 0.3 * other, "{own} from their own points, {other} from others");
}

#[test]
fn files_that_cannot_be_written_end_a_run_that_can_be_resumed() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let args = ["--skip-measures", "--dims", "3", "--stop-after-steps", "1", "--out", "run"];
    TSNE.fail(folder.path(), &tiny(&args), 130);
    // No file takes the name of a folder; each of these is another thread's.
    let names = ["layout.csv", "scatter.png"];
    names.iter().for_each(|name| std::fs::create_dir(run.join(name)).unwrap());
    let err = TSNE.fail(folder.path(), &["train", "--resume", "run"], 1);
    assert!(names.iter().all(|name| err.contains(name)), "{err}");
    assert!(!run.join("results.json").exists());
    names.iter().for_each(|name| std::fs::remove_dir(run.join(name)).unwrap());
    let made = TSNE.json(folder.path(), &["train", "--resume", "run"]);
    assert!(FIGURES[1..].iter().all(|&figure| made[figure].is_null()), "{made}");
    assert_eq!(number(&made, "kl"), number(metrics(&run).last().unwrap(), "kl"));
    has(&run.join("page.html"), &["\"n\":300", "data:image/png;base64"]);
    assert_eq!(super::read(&run.join("layout.csv")).dims(), [300, 3]);
}
