//! Runs that are resumed end as if they had not been stopped.
use super::{TRAININGS, checkpoint, figures, folder};
use crate::common::{metrics, number, results, weights};

#[test]
fn a_run_that_is_stopped_at_any_step_resumes_to_the_same_bits_and_results() {
    let folder = folder();
    for (i, training) in TRAININGS.iter().enumerate() {
        let (whole, name) = (format!("whole{i}"), training.name());
        training.program.succeed(folder.path(), &training.args(&["--out", &whole]));
        for stop in ["1", "2", "7"] {
            let out = format!("stopped{i}-{stop}");
            let stopping = training.args(&["--out", &out, "--stop-after-steps", stop]);
            if training.program.command(folder.path(), &stopping).output().unwrap().status.success() {
                continue; // fewer steps than that
            }
            let again = training.resume(&out, &["--stop-after-steps", "1"]);
            let output = training.program.command(folder.path(), &again).output().unwrap();
            // The last step of all may be the one.
            if !output.status.success() {
                assert_eq!(
                    String::from_utf8(output.stderr).unwrap().trim_end(),
                    format!("interrupted; resume with: {} --resume {out}", training.kind)
                );
                assert_eq!(output.status.code(), Some(130), "{name}");
            }
            training.program.succeed(folder.path(), &training.resume(&out, &[]));
            let [want, got] = [&whole, &out].map(|name| folder.path().join(name));
            assert!(weights(&want) == weights(&got), "{name} stopped after {stop}");
            assert_eq!(figures(&want), figures(&got), "{name} stopped after {stop}");
        }
    }
}

#[test]
fn seconds_of_a_layout_are_those_of_all_processes() {
    let folder = folder();
    let training = TRAININGS.iter().find(|training| training.kind == "tsne train").unwrap();
    training.program.fail(folder.path(), &training.args(&["--out", "run", "--stop-after-steps", "2"]), 130);
    training.program.succeed(folder.path(), &training.resume("run", &[]));
    let run = folder.path().join("run");
    let (lines, results) = (metrics(&run), results(&run));
    let of_lines =
        |stage: &str| lines.iter().map(|line| number(line, &format!("seconds/{stage}"))).collect::<Vec<_>>();
    for stage in ["neighbours", "perplexity", "symmetrisation", "start"] {
        let seconds = number(&results, &format!("training_stage_seconds/{stage}"));
        assert!(seconds > 0. && of_lines(stage).iter().all(|&line| line == seconds), "{stage}: {results}");
    }
    assert!(of_lines("descent").is_sorted_by(|a, b| a < b), "{lines:?}");
    assert_eq!(of_lines("descent").last(), Some(&number(&results, "training_stage_seconds/descent")));
    let stages = ["neighbours", "perplexity", "symmetrisation", "start", "descent"];
    let sum: f64 =
        stages.map(|stage| number(&results, &format!("training_stage_seconds/{stage}"))).iter().sum();
    assert!((number(&results, "layout_seconds") - sum).abs() < 1e-9, "{results}");
}

#[test]
fn a_diverged_model_never_replaces_a_checkpoint() {
    let folder = folder();
    for (i, training) in TRAININGS.iter().enumerate() {
        let Some(diverges) = training.diverges else { continue };
        // Whether it is noticed at the end of an epoch, at a checkpoint that is due, or when the
        // run is stopped.
        for (j, how) in
            [&[][..], &["--checkpoint-every", "0"], &["--stop-after-steps", "5"]].into_iter().enumerate()
        {
            let out = format!("run{i}-{j}");
            let err = training.program.fail(
                folder.path(),
                &training.args(&[&["--out", &out][..], diverges, how].concat()),
                1,
            );
            assert!(err.contains("became") && err.contains("lower the learning rate"), "{err}");
            let bytes = checkpoint(&folder.path().join(&out));
            let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
            for (name, tensor) in tensors.tensors() {
                if tensor.dtype() == safetensors::Dtype::F32 {
                    let finite = tensor
                        .data()
                        .chunks_exact(4)
                        .all(|b| f32::from_le_bytes(b.try_into().unwrap()).is_finite());
                    assert!(finite, "{} {how:?}: {name} is not finite", training.name());
                }
            }
        }
    }
}

#[test]
fn options_that_resuming_would_ignore_are_refused() {
    let folder = folder();
    for training in &TRAININGS {
        let own: &[&[&str]] = &[
            &["--data", "mnist"],
            &["--label-column", "x"],
            &["--max-rows", "9"],
            &["--colour", "grey"],
            &["--seed", "1"],
            &["--out", "a"],
            &["--overwrite"],
        ];
        for option in own.iter().copied().chain(
            training
                .settings
                .first()
                .map(|_| &training.settings[..1])
                .filter(|o| o[0] == "--classify" || o[0] == "--autoencode"),
        ) {
            training.program.refuse(
                folder.path(),
                &training.resume("base", option),
                &format!("--resume cannot be used with {}", option[0]),
            );
        }
        if training.begin.len() > 1 {
            training.program.refuse(
                folder.path(),
                &training.resume("base", &["base"]),
                "--resume cannot be used with",
            );
        }
    }
}

#[test]
fn the_run_of_another_command_is_refused_with_the_command_that_resumes_it() {
    let folder = folder();
    for (i, training) in TRAININGS.iter().enumerate() {
        let run = format!("run{i}");
        let args = training.args(&["--out", &run, "--stop-after-steps", "1"]);
        training.program.fail(folder.path(), &args, 130);
    }
    for training in &TRAININGS {
        for (i, other) in TRAININGS.iter().enumerate().filter(|(_, other)| other.kind != training.kind) {
            let run = format!("run{i}");
            let err = training.program.fail(folder.path(), &training.resume(&run, &[]), 1);
            let want = format!(
                "--resume {run}: this is a run of `{0}`; resume it with `{0} --resume {run}`",
                other.kind
            );
            assert!(err.ends_with(&want), "{err}");
        }
    }
}

#[test]
fn how_rows_reach_the_device_changes_no_bit() {
    let training = &TRAININGS[0];
    let folder = folder();
    let at = folder.path();
    training.program.succeed(at, &training.args(&["--out", "resident"]));
    training.program.succeed(
        at,
        &training.args(&["--out", "streamed", "--resident-bytes", "0", "--chunk-bytes", "100KB"]),
    );
    assert!(weights(&at.join("streamed")) == weights(&at.join("resident")));
    // In the middle of a run, too.
    training.program.fail(at, &training.args(&["--out", "both", "--stop-after-steps", "7"]), 130);
    training.program.succeed(at, &training.resume("both", &["--resident-bytes", "0"]));
    assert!(weights(&at.join("both")) == weights(&at.join("resident")));
    training.program.refuse(at, &training.args(&["--chunk-bytes", "many"]), "must be a number of bytes");
}
