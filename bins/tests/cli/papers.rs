//! `bench paper`: each table and figure of each source, in its small form.
use crate::common::BENCH;
use serde_json::Value;
use std::path::Path;

/// Makes a paper, and checks that all that is in it can be read.
fn reproduce(name: &str, sections: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let papers = BENCH.json(at, &["paper", name, "--quick", "--device", "cpu"]);
    let [paper] = papers.as_array().unwrap().as_slice() else { panic!("{papers}") };
    let ids: Vec<&str> =
        paper["parts"].as_array().unwrap().iter().map(|part| part["id"].as_str().unwrap()).collect();
    assert_eq!(ids, sections);
    assert!(!paper["headlines"].as_array().unwrap().is_empty());
    for part in paper["parts"].as_array().unwrap() {
        let content = part["content"].as_array().unwrap();
        assert!(!content.is_empty(), "{part}");
        content.iter().for_each(|content| check(&at.join("papers"), content));
    }
    let page = std::fs::read_to_string(at.join(format!("papers/{name}.md"))).unwrap();
    for id in sections {
        assert!(page.contains(&format!("`bench paper {name} --only {id} --quick`")), "{page}");
    }
    let whole = std::fs::read_to_string(at.join("PAPERS.md")).unwrap();
    assert!(whole.contains(&page.replace("](", "](papers/")), "{whole}");
}

/// A table of full rows with numbers in them, or a picture that stands in the folder.
fn check(folder: &Path, content: &Value) {
    if let Some(picture) = content.get("picture") {
        let (width, height) =
            image::image_dimensions(folder.join(picture["file"].as_str().unwrap())).unwrap();
        assert!(width >= 100 && height >= 100, "{width}x{height}: {picture}");
        return;
    }
    let table = &content["table"];
    let (heads, rows) = (table["heads"].as_array().unwrap(), table["rows"].as_array().unwrap());
    assert!(!rows.is_empty(), "{table}");
    let numbers = rows.iter().flat_map(|row| row.as_array().unwrap()).filter(|cell| cell.is_number());
    assert!(numbers.count() >= rows.len(), "{table}");
    assert!(rows.iter().all(|row| row.as_array().unwrap().len() == heads.len()), "{table}");
}

#[test]
fn raina() {
    reproduce(
        "raina",
        &["table-1", "section-2", "table-2", "figure-speed-up", "table-3", "convolution", "table-4"],
    );
}

#[test]
fn the_denoising_autoencoder() {
    reproduce("kumar", &["figure-4", "modules", "naive", "tile-width", "f32-f64", "stacks", "streams"]);
}

#[test]
fn klaus_and_welles_are_reproduced() {
    reproduce(
        "klaus",
        &[
            "table-1",
            "table-2",
            "table-3",
            "table-4",
            "table-5",
            "table-6",
            "table-7",
            "figure-18",
            "figure-19",
            "figure-20",
            "figure-21",
            "figure-22",
            "optimizers",
        ],
    );
}

#[test]
fn t_sne_of_cuml() {
    reproduce(
        "cuml",
        &[
            "table-1",
            "table-2",
            "table-3",
            "sizes",
            "pca",
            "table-4",
            "error",
            "optimisation-1",
            "optimisation-3",
            "outliers",
            "figure-3",
            "figure-4",
            "figure-7",
        ],
    );
}

#[test]
fn a_set_that_is_not_there_is_refused_before_the_work() {
    let temp = tempfile::tempdir().unwrap();
    let err = BENCH.fail(temp.path(), &["paper", "kumar", "--device", "cpu", "--mnist", "./none"], 1);
    assert!(err.contains("--mnist: ") && err.contains("./none"), "{err}");
}
