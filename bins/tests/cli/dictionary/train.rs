//! Runs of `train`: what they leave, how they go on, what they start from.
use super::{folder, tiny};
use crate::common::{DICTIONARY, has, metrics, number, weights, write_npy};
use candle::Device::Cpu;
use chandlery::dictionary::Dictionary;
use chandlery::{LoadOptions, Model};

#[test]
fn a_run_leaves_a_whole_folder_and_one_json_object() {
    let folder = folder();
    let result = DICTIONARY.json(folder.path(), &tiny(&["--data", "grey.png", "--out", "run"]));
    assert_eq!((result["n_rows"].as_u64(), result["rule"].as_str()), (Some(1500), Some("ak-svd")));
    let (start, end) = (number(&result, "rmse_start"), number(&result, "rmse"));
    // Learning must be worth something against random patches; flat codes would leave the
    // deviation, about 35.
    assert!(end > 0. && end < 0.8 * start, "{start} → {end}");
    let times = ["training_seconds", "seconds"].map(|name| number(&result, name));
    assert!(times[0] > 0. && times[0] < times[1], "{times:?}");

    let run = folder.path().join("run");
    let lines = metrics(&run);
    assert_eq!(lines.iter().map(|l| l["epoch"].as_u64().unwrap()).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
    let picture = image::open(run.join("dictionary.png")).unwrap().to_rgb8();
    // 32 tiles of 4 pixels in six columns and six lines, six times as large.
    assert_eq!(picture.dimensions(), (6 * 31, 6 * 31));
    let curves = std::fs::read_to_string(run.join("curves.svg")).unwrap();
    assert!(curves.contains("root mean square, grey levels") && curves.matches("<circle").count() == 10);
    let texts = ["--atoms 32", "1500 patches of 4x4 pixels without their means", "dictionary.png"];
    has(&run.join("README.md"), &texts);
    let model = Dictionary::from_pretrained(&run, &LoadOptions::default()).unwrap();
    assert_eq!(model.config().image, Some([4, 4, 1].into()));
    assert!(model.config().preparation.without_last_row_mean().is_some());
    assert_eq!(model.atoms().dims(), [32, 16]);
    // The best of all epochs is what is kept.
    let best = lines.iter().map(|l| number(l, "rmse")).fold(f64::INFINITY, f64::min);
    assert!((end - best).abs() < 1e-3 * best, "{end} {best}");
}

#[test]
fn a_run_that_was_stopped_anywhere_ends_in_the_same_bits() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    let ways: [(&str, &[&str]); 3] = [
        ("a", &[]),
        ("n", &["--rule", "nsgk", "--replace", "random"]),
        ("o", &["--online", "--batch", "100"]),
    ];
    for (name, how) in ways {
        let (whole, stopped) = (format!("{name}-whole"), format!("{name}-stopped"));
        let common = [&["--data", "grey.png"][..], how].concat();
        DICTIONARY.succeed(folder.path(), &tiny(&[&common[..], &["--out", &whole]].concat()));
        let args = [&common[..], &["--out", &stopped, "--stop-after-steps", "2"]].concat();
        let err = DICTIONARY.fail(folder.path(), &tiny(&args), 130);
        assert_eq!(err, format!("interrupted; resume with: dictionary-learning train --resume {stopped}"));
        assert!(!at(&stopped).join("model.safetensors").exists());
        DICTIONARY.succeed(folder.path(), &["train", "--resume", &stopped, "--device", "cpu"]);
        assert!(weights(&at(&whole)) == weights(&at(&stopped)), "{how:?}: other atoms");
        assert_eq!(metrics(&at(&stopped)).len(), 5);
    }
}

#[test]
fn a_finished_run_goes_on_to_more_epochs_as_if_they_had_been_asked_for() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    for (name, how) in [("a", &["--error", "4"][..]), ("o", &["--online", "--batch", "100"])] {
        let (whole, short) = (format!("{name}-whole"), format!("{name}-short"));
        let longer: Vec<&str> = tiny(&[&["--data", "grey.png", "--out", &whole][..], how].concat())
            .into_iter()
            .map(|arg| if arg == "5" { "8" } else { arg })
            .collect();
        DICTIONARY.succeed(folder.path(), &longer);
        DICTIONARY
            .succeed(folder.path(), &tiny(&[&["--data", "grey.png", "--out", &short][..], how].concat()));
        let resume = ["train", "--resume", &short, "--device", "cpu", "--epochs"];
        let result = DICTIONARY.json(folder.path(), &[&resume[..], &["8"]].concat());
        assert_eq!(result["epochs"].as_u64(), Some(8));
        assert!(weights(&at(&whole)) == weights(&at(&short)), "{how:?}: other atoms");
        assert_eq!(metrics(&at(&short)).len(), 8);
        has(&at(&short).join("README.md"), &["--epochs 5", &format!("--resume {short}"), "8 epochs"]);
        let err = DICTIONARY.fail(folder.path(), &[&resume[..], &["8"]].concat(), 1);
        assert!(
            err.ends_with("--epochs: must be above the 8 of this run, got 8; leave it out to finish these 8"),
            "{err}"
        );
    }
}

#[test]
fn a_dictionary_is_the_start_of_another_even_once_it_is_gone() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    let first = DICTIONARY.json(folder.path(), &tiny(&["--data", "grey.png", "--out", "first"]));
    // The same patches, and the number of atoms of the dictionary.
    let args = [
        "train",
        "--data",
        "grey.png",
        "--patch",
        "4",
        "--patches",
        "1500",
        "--nonzero",
        "3",
        "--device",
        "cpu",
    ];
    let more = ["--start-from", "first", "--epochs", "3", "--out", "more"];
    let result = DICTIONARY.json(folder.path(), &[&args[..], &more].concat());
    assert_eq!(result["n_atoms"].as_u64(), Some(32));
    // But for a rounding, when atoms were made of length 1 once more.
    assert!((number(&result, "rmse_start") / number(&first, "rmse") - 1.).abs() < 1e-6, "{result} {first}");
    assert!(number(&result, "rmse") < number(&first, "rmse"), "{result}");

    let stopped = ["--start-from", "first", "--epochs", "3", "--out", "stopped", "--stop-after-steps", "1"];
    DICTIONARY.fail(folder.path(), &[&args[..], &stopped].concat(), 130);
    std::fs::remove_dir_all(at("first")).unwrap();
    DICTIONARY.succeed(folder.path(), &["train", "--resume", "stopped", "--device", "cpu"]);
    assert!(weights(&at("more")) == weights(&at("stopped")), "other atoms");
    let err = DICTIONARY.fail(folder.path(), &[&args[..], &more].concat(), 1);
    assert!(err.contains("--start-from first: "), "{err}");
    let err = DICTIONARY.fail(
        folder.path(),
        &["train", "--data", "grey.png", "--start-from", "more", "--device", "cpu"],
        1,
    );
    assert!(err.contains("--start-from more: its atoms must have the 64 values of a row, got 16"), "{err}");
}

#[test]
fn a_constant_atom_stays_and_coefficients_stay_above_zero_from_the_command_line() {
    let folder = folder();
    let model =
        |out: &str| Dictionary::from_pretrained(folder.path().join(out), &LoadOptions::default()).unwrap();
    for (out, how) in [
        ("a", &["--start", "random"][..]),
        ("d", &["--start", "dct"]),
        ("o", &["--online", "--batch", "100", "--forgetting", "5", "--sweeps", "2", "--max-idle", "200"]),
    ] {
        let args = ["--data", "grey.png", "--fixed-dc", "--nonnegative", "--out", out];
        DICTIONARY.succeed(folder.path(), &tiny(&[&args[..], how].concat()));
        let model = model(out);
        assert!(
            model.config().nonnegative && model.config().preparation.without_last_row_mean().is_none(),
            "{out}: {:?}",
            model.config()
        );
        let atoms = model.atoms().to_vec2::<f32>().unwrap();
        assert!(atoms[0].iter().all(|x| (x - 0.25).abs() < 1e-6), "{out}: {:?}", atoms[0]);
        assert!(
            atoms[1..].iter().all(|atom| atom.iter().any(|x| (x - atom[0]).abs() > 0.01)),
            "{out}: another is constant"
        );
        DICTIONARY.succeed(folder.path(), &["encode", out, "--data", "grey.png", "--device", "cpu"]);
        let codes = candle::safetensors::load(folder.path().join("codes.safetensors"), &Cpu).unwrap();
        let values = codes["values"].flatten_all().unwrap().to_vec1::<f32>().unwrap();
        assert!(values.iter().all(|&x| x >= 0.) && values.iter().any(|&x| x > 1.), "{out}");
    }
    // How fast the past is forgotten has its say.
    let args = [
        "--data",
        "grey.png",
        "--fixed-dc",
        "--nonnegative",
        "--out",
        "slow",
        "--online",
        "--batch",
        "100",
        "--sweeps",
        "2",
        "--max-idle",
        "200",
    ];
    DICTIONARY.succeed(folder.path(), &tiny(&[&args[..], &["--forgetting", "0"]].concat()));
    assert!(weights(&folder.path().join("slow")) != weights(&folder.path().join("o")));
}

#[test]
fn options_that_would_have_no_say_are_refused_by_name() {
    let folder = folder();
    let cases: [(&[&str], &str); 7] = [
        (
            &["--replace", "none", "--max-coherence", "0.3"],
            "--max-coherence: has no effect with --replace none",
        ),
        (&["--replace", "none", "--min-uses", "3"], "--min-uses: has no effect with --replace none"),
        (
            &["--replace", "none", "--online", "--max-idle", "3"],
            "--max-idle: has no effect with --replace none",
        ),
        (&["--group", "33"], "--group: must be at most --atoms, 32, got 33"),
        (&["--group", "3", "--rule", "mod"], "--group: has no effect with --rule mod"),
        (
            &["--fixed-dc", "--prepare=row-mean"],
            "--fixed-dc: no row would use a constant atom with --prepare row-mean",
        ),
        (
            &["--nonnegative", "--pursuit", "projection-omp"],
            "--nonnegative: --pursuit must be omp or ols with it, got projection-omp",
        ),
    ];
    for (args, text) in cases {
        let args = [&["--data", "grey.png", "--out", "run"][..], args].concat();
        let err = DICTIONARY.fail(folder.path(), &tiny(&args), 1);
        assert!(err.starts_with(&format!("dictionary-learning: {text}")), "{args:?}: {err}");
        assert!(!folder.path().join("run").exists(), "{args:?} left a folder");
    }
    // Any cosine is allowed, while atoms that are hardly used are still replaced.
    DICTIONARY.succeed(folder.path(), &tiny(&["--data", "grey.png", "--out", "any", "--max-coherence", "1"]));
}

#[cfg(unix)]
#[test]
fn ctrl_c_finishes_the_iteration_writes_a_checkpoint_and_says_how_to_go_on() {
    let folder = folder();
    let args = ["--data", "grey.png", "--epochs", "1000000", "--out", "run", "--device", "cpu"];
    let command = DICTIONARY.command(folder.path(), &args);
    let stderr = crate::common::interrupt(command, &folder.path().join("run"));
    assert!(stderr.contains("interrupted; resume with: dictionary-learning train --resume run"), "{stderr}");
}

#[test]
fn a_seed_decides_every_bit() {
    let folder = folder();
    let atoms = |out: &str, seed: &str| {
        DICTIONARY.succeed(folder.path(), &tiny(&["--data", "grey.png", "--out", out, "--seed", seed]));
        weights(&folder.path().join(out))
    };
    let (a, b, c) = (atoms("a", "5"), atoms("b", "5"), atoms("c", "6"));
    assert!(a == b, "one seed, two dictionaries");
    assert!(a != c, "two seeds, one dictionary");
}

#[test]
fn nonnegative_atoms_and_codes_factorise_rows_of_parts() {
    let folder = folder();
    // Rows that are sums of two parts.
    let parts = [[3f32, 2., 0., 0., 1.], [0., 1., 4., 2., 0.]];
    let values: Vec<f32> = (0..40)
        .flat_map(|i| {
            let (a, b) = ((i % 7) as f32, (i % 5) as f32 + 0.5);
            (0..5).map(move |c| a * parts[0][c] + b * parts[1][c])
        })
        .collect();
    write_npy(&folder.path().join("rows.npy"), [40, 5], &values);
    let common =
        ["train", "--data", "rows.npy", "--atoms", "2", "--nonzero", "2", "--nonnegative", "--device", "cpu"];
    for (run, how) in [("batch", &["--epochs", "60"][..]), ("online", &["--online", "--batch", "20"])] {
        let args = [&common[..], how, &["--nonnegative-atoms", "--out", run]].concat();
        let result = DICTIONARY.json(folder.path(), &args);
        assert!(number(&result, "rmse") < 0.05, "{result}");
        let model = Dictionary::from_pretrained(folder.path().join(run), &LoadOptions::default()).unwrap();
        assert!(model.config().nonnegative_atoms && model.config().nonnegative);
        assert!(model.atoms().min_all().unwrap().to_scalar::<f32>().unwrap() >= 0.);
        has(&folder.path().join(run).join("README.md"), &["a nonnegative matrix factorisation"]);
    }
    let refused = |more: &[&str]| DICTIONARY.fail(folder.path(), &[&common[..], more].concat(), 1);
    for rule in ["ksvd", "ak-svd", "mod"] {
        let err = refused(&["--nonnegative-atoms", "--rule", rule]);
        assert!(err.contains("--nonnegative-atoms: --rule must be sgk or nsgk"), "{err}");
        assert!(err.ends_with(rule), "{err}");
    }
    let err = refused(&["--nonnegative-atoms", "--prepare=row-mean"]);
    assert!(err.contains("--nonnegative-atoms: rows without their means"), "{err}");
}
