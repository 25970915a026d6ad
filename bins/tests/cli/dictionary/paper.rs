//! `bench paper irofti`.
use crate::common::{BENCH, picture_size};
use serde_json::Value;

#[test]
fn every_figure_and_table_of_the_paper_is_made() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["paper", "irofti", "--quick", "--repeats", "1", "--device", "cpu"];
    BENCH.succeed(folder.path(), &args);
    let at = |name: &str| folder.path().join("papers").join(name);
    let made: Value = serde_json::from_str(&std::fs::read_to_string(at("irofti.json")).unwrap()).unwrap();
    let tables = |id: &str| -> Vec<Value> {
        let parts = made["parts"].as_array().unwrap();
        let part = parts.iter().find(|part| part["id"] == id).unwrap_or_else(|| panic!("no {id} in {made}"));
        part["content"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|section| section.get("table").cloned())
            .collect()
    };
    let rows = |table: &Value| table["rows"].as_array().unwrap().clone();
    for (id, n) in [
        ("figure-3", 2),
        ("figure-5", 2),
        ("algorithm-1", 1),
        ("atoms-at-once", 2),
        ("recovery", 1),
        ("denoising", 1),
        ("signals-at-once", 1),
    ] {
        assert_eq!(tables(id).len(), n, "{id}");
        for table in tables(id) {
            assert!(rows(&table).len() >= 2, "{id}: {table}");
        }
    }
    // Both forms choose the same atoms in f64.
    for row in rows(&tables("algorithm-1")[0]) {
        assert!(row[8].as_f64().unwrap() > 99.9 && row[5].as_f64().unwrap() > 98., "{row}");
        assert!((row[6].as_f64().unwrap() - row[7].as_f64().unwrap()).abs() < 1e-3, "{row}");
    }
    // Known atoms are found by every rule, one by one and all at once.
    let recovery = rows(&tables("recovery")[0]);
    assert_eq!(recovery.len(), 6);
    assert!(recovery.iter().all(|row| row[2].as_f64().unwrap() > 75.), "{recovery:?}");
    // Similar or better: the error by ñ.
    let errors = rows(&tables("atoms-at-once")[0]);
    let (one, all) = (&errors[0], &errors[errors.len() - 1]);
    for rule in 0..3 {
        let error = |row: &Value| row[2 + 2 * rule].as_f64().unwrap();
        assert!(error(all) < 1.03 * error(one), "rule {rule}: {one} {all}");
    }
    // A dictionary that is learned from the image denoises it better than nothing does.
    let denoised = rows(&tables("denoising")[0]);
    let noisy = denoised[0][3].as_f64().unwrap();
    assert!(denoised[1..].iter().all(|row| row[3].as_f64().unwrap() > noisy + 4.), "{denoised:?}");
    // The paper's factors stand at the end of each panel, and in the headlines.
    let last = |table: &Value| rows(table).last().unwrap().as_array().unwrap().last().unwrap().as_f64();
    assert_eq!(tables("figure-3").iter().map(last).collect::<Vec<_>>(), [Some(312.), Some(250.)]);
    assert_eq!(made["headlines"].as_array().unwrap().len(), 5);
    for picture in ["figure-3", "figure-5", "atoms-at-once", "signals-at-once"] {
        picture_size(&at(&format!("irofti-{picture}.png")));
    }
}
