//! What every training command of every program does alike.
mod damaged;
mod files;
mod interrupted;
mod killed;
mod left;
mod resumed;
mod trainings;
mod used;

use crate::common::metrics;
use serde_json::Value;
use std::path::Path;
use trainings::{TRAININGS, Training, folder};

fn json(path: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

const CHECKPOINT: &str = "checkpoint/trainer.safetensors";
const PREVIOUS: &str = "checkpoint/previous.safetensors";

fn checkpoint(run: &Path) -> Vec<u8> {
    std::fs::read(run.join(CHECKPOINT)).unwrap()
}

/// The lines of metrics of a run, and its results, without what differs from one process to the
/// next.
fn figures(run: &Path) -> (Vec<Value>, Value) {
    fn strip(value: &mut Value) {
        if let Value::Object(fields) = value {
            fields.retain(|name, _| !name.contains("second") && name != "out");
            fields.values_mut().for_each(strip);
        }
    }
    let (mut lines, mut results) = (metrics(run), json(&run.join("results.json")));
    lines.iter_mut().chain([&mut results]).for_each(strip);
    (lines, results)
}

/// The names of all files below a folder, sorted.
fn names(folder: &Path) -> Vec<String> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        match path.is_dir() {
            true => names.extend(self::names(&path).into_iter().map(|file| format!("{name}/{file}"))),
            false => names.push(name),
        }
    }
    names.sort();
    names
}

/// Whether a folder holds a file that is not whole.
fn has_leftovers(folder: &Path) -> bool {
    names(folder).iter().any(|name| name.ends_with(".part"))
}
