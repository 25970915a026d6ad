//! Sparse matrices as a user gives them.
use super::{layout_of, read};
use crate::common::{TSNE, has, number};
use chandlery::tsne::Embedding;
use chandlery::{LoadOptions, Model};
use std::fmt::Write;
use std::path::Path;

/// Counts of 90 rows of 400 in three groups, as Matrix Market and as csv.
fn counts(folder: &Path, first: usize, n: usize, name: &str) {
    let mut entries = Vec::new();
    let mut table = String::new();
    for i in 0..n {
        let row: Vec<usize> = (0..400)
            .map(|j| {
                let noise = (i + first) * 7919 + j * 104_729 + (i + first) * j * 31;
                let of_group = j % 3 == i % 3 && noise % 7 < 3;
                if of_group { 1 + noise % 9 } else { usize::from(noise.is_multiple_of(41)) }
            })
            .collect();
        let words: Vec<String> = row.iter().map(usize::to_string).collect();
        writeln!(table, "{}", words.join(",")).unwrap();
        entries.extend(row.into_iter().enumerate().filter(|(_, x)| *x > 0).map(|(j, x)| (i + 1, j + 1, x)));
    }
    let mut matrix = format!("%%MatrixMarket matrix coordinate integer general\n{n} 400 {}\n", entries.len());
    entries.iter().for_each(|(i, j, x)| writeln!(matrix, "{i} {j} {x}").unwrap());
    std::fs::write(folder.join(format!("{name}.mtx")), matrix).unwrap();
    std::fs::write(folder.join(format!("{name}.csv")), table).unwrap();
}

#[test]
fn sparse_rows_are_laid_out_as_dense_ones_resumed_measured_and_extended_by_new_rows() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    counts(at, 0, 90, "x");
    counts(at, 90, 9, "new");
    let how = |data: &'static str, out: &'static str| {
        let plan = ["--perplexity", "10", "--early-iterations", "60", "--iterations", "90"];
        [&["train", "--data", data, "--prepare", "log1p,pca=10", "--out", out][..], &plan].concat()
    };
    let made = TSNE.json(at, &how("x.mtx", "a"));
    let dense = TSNE.json(at, &how("x.csv", "dense"));
    let (trust, of_dense) = (number(&made, "trustworthiness"), number(&dense, "trustworthiness"));
    assert!((trust - of_dense).abs() < 0.02, "{trust}, dense {of_dense}");
    has(&at.join("a/README.md"), &["90 rows of 400", "`prepared_rows` `[n, n_features]`"]);
    let embedding = Embedding::from_pretrained(at.join("a"), &LoadOptions::default()).unwrap();
    assert!(embedding.rows().is_none());
    assert_eq!(embedding.prepared_rows().unwrap().unwrap().dims(), [90, 10]);
    assert_eq!(embedding.n_inputs().unwrap(), Some(400));
    // The components between three groups are two. Descents enlarge what is left between the
    // others.
    let strong = |run: &str| {
        let embedding = Embedding::from_pretrained(at.join(run), &LoadOptions::default()).unwrap();
        let read = embedding.prepared_rows().unwrap().unwrap().narrow(1, 0, 2).unwrap();
        read.to_vec2::<f32>().unwrap().concat()
    };
    for (sparse, dense) in strong("a").into_iter().zip(strong("dense")) {
        assert!((sparse - dense).abs() < 1e-3, "{sparse}, dense {dense}");
    }

    let again = TSNE.json(at, &["evaluate", "a"]);
    for measure in ["kl", "trustworthiness", "knn_recall"] {
        let (a, b) = (number(&made, measure), number(&again, measure));
        assert!((a - b).abs() < 1e-9, "{measure}: {a}, evaluated {b}");
    }

    TSNE.fail(at, &[&how("x.mtx", "b")[..], &["--stop-after-steps", "70"]].concat(), 130);
    TSNE.succeed(at, &["train", "--resume", "b"]);
    assert!(layout_of(&at.join("a")) == layout_of(&at.join("b")), "resumed to another layout");
    assert_eq!(
        std::fs::read(at.join("a/model.safetensors")).unwrap(),
        std::fs::read(at.join("b/model.safetensors")).unwrap()
    );

    for data in ["new.mtx", "new.csv"] {
        TSNE.succeed(at, &["transform", "a", "--data", data, "--out", "points.npy"]);
        let points = read(&at.join("points.npy"));
        assert_eq!(points.dims(), [9, 2]);
    }
    let err = TSNE.fail(at, &["transform", "a", "--data", "a/layout.npy", "--out", "p.npy"], 1);
    assert!(err.contains("--data: rows must have 400 values for this layout, got 2"), "{err}");
}
