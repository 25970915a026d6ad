//! `bench all`: commands of a page are run, and a page of what they print is written. `bench group`:
//! ranks on the CPU.
use crate::common::{BENCH, has, number};
use serde_json::Value;

#[test]
fn commands_of_a_page_are_run_and_what_they_print_is_a_page() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let command = "dae --size 12x5 --batch 64 --repeats 1";
    let page =
        format!("## Small\n\n```sh\ncargo run --bin bench --features cuda -- {command}  # small\n```\n");
    std::fs::write(at("page.md"), page).unwrap();
    let args = ["all", "--page", "page.md", "--markdown", "made.md", "--device", "cpu"];
    let made = BENCH.json(folder.path(), &args);
    assert_eq!(made[0]["section"], "Small");
    assert!(number(&made, "0/seconds") > 0.);
    let said = format!("`bench {command} --device cpu` (");
    has(&at("made.md"), &["## Small", &said, "```text", "12x5"]);
    std::fs::write(at("page.md"), "## None\n").unwrap();
    let error = BENCH.fail(folder.path(), &["all", "--page", "page.md", "--device", "cpu"], 1);
    assert!(error.contains("--page: no command"), "{error}");
}

#[test]
fn ranks_are_timed_on_the_cpu() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["group", "--device", "cpu", "--ranks", "3", "--parts", "collectives", "--most-bytes", "5000"];
    let made = BENCH.json(folder.path(), &[&args[..], &["--repeats", "1", "--calls", "2"]].concat());
    let exchanges = made["exchanges"].as_array().unwrap();
    let names: Vec<_> = exchanges.iter().filter_map(|row| row["collective"].as_str()).collect();
    assert_eq!(names, ["all-reduce", "reduce-scatter", "all-gather"]);
    // 1,000 numbers, and two more so that they divide by 3.
    assert!(exchanges.iter().all(|row| row["bytes"] == 4008 && row["microseconds"].as_f64().unwrap() > 0.));
    assert_eq!((&made["ranks"], &made["steps"]), (&Value::from(3), &Value::Array(vec![])));
}
