//! Checkpoints that the disk damaged.
use super::{CHECKPOINT, PREVIOUS, TRAININGS, checkpoint, figures, folder};
use crate::common::weights;
use std::fs;

#[test]
fn a_damaged_or_missing_checkpoint_is_replaced_by_the_one_before_it() {
    for training in &TRAININGS {
        let (folder, name) = (folder(), training.name());
        let at = folder.path();
        training.program.succeed(at, &training.args(&["--out", "whole"]));
        let stop = ["--out", "run", "--checkpoint-every", "0", "--stop-after-steps", "2"];
        training.program.fail(at, &training.args(&stop), 130);
        let (last, previous) = (at.join("run").join(CHECKPOINT), at.join("run").join(PREVIOUS));
        let (bytes, before) = (checkpoint(&at.join("run")), fs::read(&previous).unwrap());
        assert!(bytes != before, "{name}");
        let flipped = |at: usize| {
            let mut bytes = bytes.clone();
            bytes[at] ^= 1 << (at % 8);
            Some(bytes)
        };
        // Half of it, none, a bit of the header, of the numbers and of the last byte.
        let half = Some(bytes[..bytes.len() / 2].to_vec());
        let all = [half, None, flipped(20), flipped(bytes.len() / 2), flipped(bytes.len() - 1)];
        for (i, damaged) in all.into_iter().enumerate() {
            match damaged {
                Some(damaged) => fs::write(&last, damaged).unwrap(),
                None => fs::remove_file(&last).unwrap(),
            }
            fs::write(&previous, &before).unwrap();
            let output = training
                .program
                .command(at, &training.resume("run", &["--stop-after-steps", "1"]))
                .output()
                .unwrap();
            let said = String::from_utf8(output.stderr).unwrap();
            let want = "going on from the checkpoint before it, run/checkpoint/previous.safetensors";
            assert!(said.contains(want) && said.contains(CHECKPOINT), "{name}, damage {i}: {said}");
            assert_eq!(output.status.code(), Some(130), "{name}, damage {i}: {said}");
        }
        training.program.succeed(at, &training.resume("run", &[]));
        assert!(weights(&at.join("run")) == weights(&at.join("whole")), "{name}");
        assert_eq!(figures(&at.join("run")), figures(&at.join("whole")), "{name}");
        // With no whole one nothing is made up.
        fs::write(&last, &bytes[..9]).unwrap();
        fs::write(&previous, &before[..9]).unwrap();
        let err = training.program.fail(at, &training.resume("run", &[]), 1);
        assert!(err.contains(CHECKPOINT) && err.ends_with("so begin the run again"), "{err}");
    }
}

#[test]
fn numbers_of_a_run_that_no_option_takes_are_refused() {
    let folder = folder();
    for (i, training) in TRAININGS.iter().enumerate() {
        let out = format!("run{i}");
        training.stopped_at_once(folder.path(), &out);
        let file = folder.path().join(&out).join("run.json");
        let mut info = super::json(&file);
        let field = &training.length[0][2..];
        let known = info["settings"].get(field).is_some();
        assert!(known, "{field} of {}: {info}", training.name());
        info["settings"][field] = (1u64 << 53).into();
        fs::write(&file, info.to_string()).unwrap();
        let err = training.program.fail(folder.path(), &training.resume(&out, &[]), 1);
        let want = format!("{out}/run.json: cannot be read: settings.{field}: must be below 2^53");
        assert!(err.contains(&want), "{err}");
        training.program.refuse(
            folder.path(),
            &[training.begin, training.settings, &[training.length[0], "9007199254740992"]].concat(),
            "below 2^53",
        );
    }
}
