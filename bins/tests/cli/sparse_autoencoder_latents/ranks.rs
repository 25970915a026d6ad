//! Ranks that have some of the latents each.
use super::{data, train};
use crate::common::{SPARSE_AUTOENCODER, number, results, weights};
use std::path::Path;

const KINDS: [(&str, &[&str]); 4] = [
    ("top-k", &["--active", "2"]),
    ("batch-top-k", &["--active", "2"]),
    ("jump-relu", &["--active-penalty", "0.1"]),
    ("gated", &["--active-penalty", "0.2"]),
];

/// Figures of a run, which differ from those of another in the order of sums alone.
#[track_caller]
fn as_in(run: &Path, other: &Path) {
    for field in ["fvu", "l0", "dead"] {
        let [a, b] = [run, other].map(|run| number(&results(run), field));
        assert!((a - b).abs() <= 0.02 * b.abs() + 2e-3, "{field} of {}: {a}, and {b}", run.display());
    }
}

#[test]
fn latents_are_divided_and_a_run_goes_on_with_another_number_of_ranks() {
    let folder = data();
    let at = |name: &str| folder.path().join(name);
    for (kind, more) in KINDS {
        let run = |out: &str, ranks: &str, last: &[&str]| {
            let divided = ["--divide", "latents", "--gpus", ranks, "--out", out];
            let args = [&train(kind, more)[..], &divided, last].concat();
            SPARSE_AUTOENCODER.command(folder.path(), &args).output().unwrap()
        };
        let name = |ranks: &str| format!("{kind}-{ranks}");
        for ranks in ["1", "2", "3"] {
            let ended = run(&name(ranks), ranks, &[]);
            assert!(ended.status.success(), "{kind}: {}", String::from_utf8_lossy(&ended.stderr));
            as_in(&at(&name(ranks)), &at(&name("1")));
        }
        // The model is whole: it reads rows as any other.
        let args = ["evaluate", &name("3"), "--data", "others.npy"];
        assert!(number(&SPARSE_AUTOENCODER.json(folder.path(), &args), "fvu") < 1., "{kind}");

        let stopped = format!("{kind}-stopped");
        let ended = run(&stopped, "3", &["--stop-after-steps", "30"]);
        assert!(!ended.status.success() && !at(&stopped).join("model.safetensors").exists(), "{kind}");
        SPARSE_AUTOENCODER.succeed(folder.path(), &["train", "--resume", &stopped, "--gpus", "3"]);
        assert!(weights(&at(&stopped)) == weights(&at(&name("3"))), "{kind}: other bits after a stop");

        let moved = format!("{kind}-moved");
        run(&moved, "2", &["--stop-after-steps", "30"]);
        SPARSE_AUTOENCODER.succeed(folder.path(), &["train", "--resume", &moved]);
        as_in(&at(&moved), &at(&name("1")));
    }
}

#[test]
fn what_is_divided_by_rows_alone_is_refused() {
    let folder = data();
    let divided = |kind, more: &[&'static str]| [&train(kind, &["--divide", "latents"])[..], more].concat();
    for (args, want) in [
        (divided("matryoshka", &[]), "--divide latents: Matryoshka is divided by rows"),
        (divided("top-k", &["--resample-every", "20"]), "leave out one of it and --resample-every"),
    ] {
        let errors = SPARSE_AUTOENCODER.fail(folder.path(), &args, 1);
        assert!(errors.contains(want), "{errors}");
    }
    let few = ["train", "--data", "rows.npy", "--kind", "top-k", "--latents", "4", "--active", "2"];
    let few = [&few[..], &["--divide", "latents", "--gpus", "3"]].concat();
    let ended = SPARSE_AUTOENCODER.command(folder.path(), &few).output().unwrap();
    let errors = String::from_utf8(ended.stderr).unwrap();
    assert!(
        !ended.status.success() && errors.contains("latents must be at least 9 for 3 ranks, got 4"),
        "{errors}"
    );
}
