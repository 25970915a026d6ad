//! Where the time of a run goes; in a process of its own, whose tests run one after the other.
#![allow(clippy::unwrap_used)]
#[path = "cli/common/mod.rs"]
mod common;
#[path = "cli/sessions/trainings.rs"]
mod trainings;

use common::{BENCH, number, programs, results, write_npy};
use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use trainings::{ROWS, TRAININGS, folder};

/// Until it is dropped, the other tests wait.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The names of the stages, sorted.
const STAGES: [&str; 8] =
    ["checkpoints", "data", "files", "measures", "pictures", "preparation", "start", "training"];

#[test]
fn each_command_that_can_be_resumed_is_among_the_trainings() {
    let mut kinds = BTreeSet::new();
    for program in programs() {
        let trains = |command: &&clap::Command| command.get_arguments().any(|arg| arg.get_id() == "resume");
        for sub in program.get_subcommands().filter(trains) {
            kinds.insert(format!("{} {}", program.get_name(), sub.get_name()));
        }
        // Without a sub-command a program trains.
        assert!(!trains(&&program) || program.find_subcommand("train").is_some(), "{}", program.get_name());
    }
    assert!(kinds.len() > 6, "{kinds:?}");
    assert_eq!(kinds, TRAININGS.iter().map(|training| training.kind.to_owned()).collect());
}

#[test]
fn stages_add_up_to_the_wall_time_of_the_process() {
    let (folder, _alone) = (folder(), alone());
    for training in &TRAININGS {
        let name = training.name();
        let (mut best, mut length) = (0f64, training.length[1].parse::<usize>().unwrap());
        // A process takes some milliseconds to begin and to end, more on a busy machine: a run that
        // is too short to hide them is made longer.
        for _ in 0..8 {
            if best >= 0.95 {
                break;
            }
            let n = length.to_string();
            let long = [training.length[0], &n];
            let out = ["--out", "run", "--overwrite", "--json"];
            let args = [training.begin, training.settings, &long, &ROWS, &out].concat();
            let started = Instant::now();
            let output = training.program.command(folder.path(), &args).output().unwrap();
            let wall = started.elapsed().as_secs_f64();
            assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
            let made: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
            assert_eq!(made, results(&folder.path().join("run")), "{name}");
            let names: Vec<&String> = made["stage_seconds"].as_object().unwrap().keys().collect();
            assert_eq!(names, STAGES, "{name}");
            let seconds = STAGES.map(|stage| number(&made, &format!("stage_seconds/{stage}")));
            let sum: f64 = seconds.iter().sum();
            assert!(sum <= wall && seconds.iter().all(|&seconds| seconds >= 0.), "{name}: {wall} s, {made}");
            // Of one process, whose clock began with it.
            assert!((number(&made, "seconds") - sum).abs() < 1e-9, "{name}: {made}");
            for stage in ["data", "training", "checkpoints", "files"] {
                assert!(number(&made, &format!("stage_seconds/{stage}")) > 0., "{name}: {stage}: {made}");
            }
            best = best.max(sum / wall);
            if wall < 1. {
                length *= 4;
            }
        }
        assert!(best >= 0.95, "{name}: stages are {:.1} % of the wall time", 100. * best);
    }
}

#[test]
fn the_last_line_says_the_largest_stages_beside_training() {
    let (folder, _alone) = (folder(), alone());
    let training = TRAININGS.iter().find(|training| training.kind == "tsne train").unwrap();
    let said = training.program.succeed(folder.path(), &training.args(&["--out", "run"]));
    let last = said.lines().last().unwrap();
    let spent = results(&folder.path().join("run"))["stage_seconds"].clone();
    let mut others: Vec<(&str, f64)> =
        STAGES.iter().map(|&stage| (stage, number(&spent, stage))).filter(|of| of.0 != "training").collect();
    others.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    let words: Vec<String> = others[..2]
        .iter()
        .filter(|(_, seconds)| *seconds >= 0.05)
        .map(|(stage, seconds)| format!("{stage} {seconds:.1} s"))
        .collect();
    // A machine may be so fast that no stage takes long enough to be told.
    let told = if words.is_empty() { String::new() } else { format!(" ({})", words.join(", ")) };
    assert!(last.starts_with("run in ") && last.ends_with(&format!(" s{told}")), "{last}: {spent}");
}

#[test]
fn whole_commands_are_timed_and_leave_nothing() {
    let (folder, _alone) = (tempfile::tempdir().unwrap(), alone());
    let rows: Vec<f32> = (0..80 * 6).map(|i| (i * 37 % 11) as f32 / 10.).collect();
    write_npy(&folder.path().join("x.npy"), [80, 6], &rows);
    let runs = |only: &str| {
        let args = ["runs", "--only", only, "--data", "x.npy", "--repeats", "3", "--device", "cpu"];
        let mut command = BENCH.command(folder.path(), &[&args[..], &["--json"]].concat());
        let output = command.env("TMPDIR", folder.path()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()
    };
    let table = runs("sparse-coding,evaluate");
    let rows = table.as_array().unwrap();
    assert_eq!(
        rows.iter().map(|row| &row["command"]).collect::<Vec<_>>(),
        ["sparse-coding", "dbn evaluate dbn"]
    );
    for row in rows {
        let wall = ["seconds_min", "seconds", "seconds_max"].map(|name| number(row, name));
        assert!(0. < wall[0] && wall.is_sorted(), "{row}");
        let names: Vec<&String> = row["stage_seconds"].as_object().unwrap().keys().collect();
        assert_eq!(names, STAGES, "{row}");
        let sum: f64 = STAGES.map(|stage| number(row, &format!("stage_seconds/{stage}"))).iter().sum();
        let outside = number(row, "outside_seconds");
        assert!(outside > 0. && (sum + outside - wall[1]).abs() < 1e-9, "{row}");
    }
    assert!(number(&rows[0], "stage_seconds/training") > 0., "{table}");
    assert_eq!(number(&rows[1], "stage_seconds/training"), 0., "{table}");
    let left = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(left.collect::<Vec<_>>(), ["x.npy"]);
}

#[test]
fn programs_that_are_not_there_are_named() {
    let (folder, _alone) = (tempfile::tempdir().unwrap(), alone());
    let alone = folder.path().join("bench");
    std::fs::copy(BENCH.path, &alone).unwrap();
    let output = std::process::Command::new(&alone).args(["runs", "--only", "dae"]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    let want =
        format!("bench: {}: this program must stand beside bench", folder.path().join("dae").display());
    assert!(said.starts_with(&want), "{said}");
}

#[test]
fn a_grid_takes_turns_with_its_peer_and_marks_where_it_is_behind() {
    let (folder, _alone) = (tempfile::tempdir().unwrap(), alone());
    // Slow for minibatches of one row, fast for others, and without an answer for many.
    let script = "import sys, json
print('ready', flush=True)
for line in sys.stdin:
    cell = json.loads(line)
    seconds = {1: [9.0, 8.0, 7.0], 4: [1e-12]}.get(cell['batch'])
    known = {'peer': cell['family'] + cell['size'], 'seconds': seconds}
    print(json.dumps(known if seconds else {'missing': 'no answer'}), flush=True)";
    std::fs::write(folder.path().join("peer.py"), script).unwrap();
    for (family, size, shown) in [
        ("rbm", "12x7", "12x7"),
        ("dae", "9", "9x9"),
        ("classifier", "6x5", "6x5"),
        ("sparse-autoencoder", "8x3", "8x3"),
        ("convolution", "6x6x2:3:3", "6x6x2:3:3"),
        ("lasso", "8x12", "8x12"),
        ("pursuit", "16x20", "16x20"),
    ] {
        let mut args = vec!["grid", "--family", family, "--widths", size, "--minibatches", "1,4,6"];
        args.extend([
            "--repeats",
            "3",
            "--slice",
            "0.1",
            "--peer",
            "peer.py",
            "--out",
            "made",
            "--device",
            "cpu",
        ]);
        let output = BENCH.command(folder.path(), &[&args[..], &["--json"]].concat()).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{said}");
        let rows: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let ratio = |row: usize| rows[row]["ratio"].as_f64();
        for row in rows.as_array().unwrap() {
            assert_eq!((row["family"].as_str(), row["size"].as_str()), (Some(family), Some(shown)), "{row}");
            let us = ["us_min", "us", "us_max"].map(|name| number(row, name));
            assert!(0. < us[0] && us.is_sorted() && number(row, "gflops") > 0., "{row}");
        }
        assert_eq!((number(&rows[0], "peer_us_min"), number(&rows[0], "peer_us")), (7e6, 8e6), "{rows}");
        assert_eq!(rows[0]["peer"], format!("{family}{shown}"));
        assert!(ratio(0) > Some(1.) && ratio(1) < Some(1.) && ratio(2).is_none(), "{rows}");
        assert_eq!(rows[2]["peer"], "no answer");
        let behind: Vec<bool> = said.lines().map(|line| line.contains(" behind ")).collect();
        assert_eq!(behind.iter().filter(|&&behind| behind).count(), 1, "{said}");
        assert!(said.contains("1 of 2 cells are behind; geometric mean of the ratios "), "{said}");
        let file = std::fs::read(folder.path().join(format!("made/{family}.json"))).unwrap();
        assert_eq!(serde_json::from_slice::<serde_json::Value>(&file).unwrap(), rows);
        assert!(folder.path().join(format!("made/{family}.png")).is_file());
    }
    let grid = |more: &[&str]| {
        let args = ["grid", "--family", "lasso", "--out", "made", "--device", "cpu", "--minibatches", "4"];
        BENCH.fail(folder.path(), &[&args[..], more].concat(), 1)
    };
    assert_eq!(grid(&["--precision", "bf16"]), "bench: --precision: lasso computes in f32, got bf16");
    assert_eq!(
        grid(&["--widths", "8x"]),
        "bench: --widths: must be VISIBLExHIDDEN, such as 576x1024, got 8x"
    );
    assert_eq!(
        grid(&["--widths", "1024x1024", "--most", "0.001"]),
        "bench: --most: no cell has at most 0.001 GFLOP a step; ask for smaller ones"
    );
    std::fs::write(folder.path().join("peer.py"), "print('loading')").unwrap();
    let said = grid(&["--widths", "8x12", "--peer", "peer.py"]);
    assert!(said.contains("--peer peer.py: "), "{said}");
}
