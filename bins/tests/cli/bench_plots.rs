//! `bench plots`: the pictures of BENCHMARKS.md are those of its tables.
use crate::common::BENCH;
use std::collections::BTreeMap;
use std::path::Path;

const PAGE: &str = include_str!("../../BENCHMARKS.md");

/// The pictures of a folder by their names.
fn pictures(folder: &Path) -> BTreeMap<String, String> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let read = |entry: std::fs::DirEntry| {
        (entry.file_name().into_string().unwrap(), std::fs::read_to_string(entry.path()).unwrap())
    };
    entries.map(read).collect()
}

#[test]
fn pictures_in_the_tree_are_those_of_the_page_which_shows_each() {
    let folder = tempfile::tempdir().unwrap();
    let said = BENCH.succeed(folder.path(), &["plots", "--out", "made"]);
    let (made, kept) = (
        pictures(&folder.path().join("made")),
        pictures(&Path::new(env!("CARGO_MANIFEST_DIR")).join("plots")),
    );
    assert_eq!(made.keys().collect::<Vec<_>>(), kept.keys().collect::<Vec<_>>());
    for (name, picture) in &made {
        assert!(
            kept[name] == *picture,
            "{name}: `cargo run --bin bench -- plots --out bins/plots` makes it anew"
        );
        assert!(picture.len() < 40_000, "{name}: {} bytes", picture.len());
        assert!(PAGE.contains(&format!("](plots/{name})")), "{name}: the page does not show it");
        assert!(said.contains(name), "{said}");
    }
}

#[test]
fn points_stand_where_the_figures_of_the_page_are() {
    let folder = tempfile::tempdir().unwrap();
    BENCH.succeed(folder.path(), &["plots", "--out", "."]);
    let picture = std::fs::read_to_string(folder.path().join("rbm.svg")).unwrap();
    let value = |tag: &str, key: &str| -> f64 {
        tag.split(&format!(" {key}=\"")).nth(1).unwrap().split('"').next().unwrap().parse().unwrap()
    };
    // The first line is PyTorch's f32, the fourth cell; logarithms of sizes and seconds are linear
    // in pixels.
    let circles: Vec<_> = picture.split("<circle").skip(1).take(4).collect();
    let rows: Vec<Vec<_>> = ["576 × 1024", "1024 × 4096", "2304 × 16000", "4096 × 11008"]
        .map(|size| PAGE.lines().find(|line| line.starts_with(&format!("| {size} |"))).unwrap())
        .map(|line| line.split('|').map(str::trim).collect())
        .into();
    let size = |row: &Vec<&str>| row[1].split(" × ").map(|n| n.parse::<f64>().unwrap().ln()).sum::<f64>();
    let seconds = |row: &Vec<&str>| row[3].parse::<f64>().unwrap().ln();
    for (key, figure) in [("cx", &size as &dyn Fn(&Vec<&str>) -> f64), ("cy", &seconds)] {
        let pixels: Vec<_> = circles.iter().map(|tag| value(tag, key)).collect();
        let figures: Vec<_> = rows.iter().map(figure).collect();
        let scale = (pixels[3] - pixels[0]) / (figures[3] - figures[0]);
        assert!(scale.abs() > 20., "{scale}");
        for (pixel, figure) in pixels.iter().zip(&figures) {
            // Pixels are whole.
            let want = pixels[0] + scale * (figure - figures[0]);
            assert!((pixel - want).abs() < 1.5, "{key}: {pixel} for {want}");
        }
    }
}

#[test]
fn a_page_without_a_section_or_a_column_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    for (from, to, said) in [
        ("\n## Sparse coding\n", "\n## Codes\n", "--page: no section \"Sparse coding\""),
        ("| visible × hidden |", "| sizes |", "no table with a column \"visible × hidden\""),
        ("| ours TF32 |", "| ours, TF32 |", "--page: ours TF32: a table has no figures of it"),
    ] {
        std::fs::write(folder.path().join("page.md"), PAGE.replace(from, to)).unwrap();
        let error = BENCH.fail(folder.path(), &["plots", "--page", "page.md"], 1);
        assert!(error.contains(said), "{error}");
    }
}
