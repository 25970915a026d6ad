//! Where the time of a run goes; in a process of its own, whose tests run one after the other.
#![allow(clippy::unwrap_used)]
mod common;
#[path = "cli_sessions/trainings.rs"]
mod trainings;

use common::{number, programs, results};
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
    assert!(last.starts_with("run in ") && !words.is_empty(), "{last}");
    assert!(last.ends_with(&format!(" s ({})", words.join(", "))), "{last}: {spent}");
}
